package pgqueue

import (
	"context"
	"crypto/rand"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// notifier tells the waiters of other processes what falls due. A notification
// has a transaction of its own, after the one that it is about: inside, it would
// hold a lock over the flush of the log that all committing transactions of the
// database wait for. The first goes at once; those that follow closely become
// one.
type notifier struct {
	mu      sync.Mutex
	running bool
	pending bool
	due     time.Time // the earliest of what is pending; zero: now
	id      string    // of this queue, whose own notices are no news to it
}

// Notices that follow one another are at least firstQuiet apart, up to lastQuiet
// while they do not stop.
const firstQuiet, lastQuiet = 2 * time.Millisecond, 50 * time.Millisecond

// announce tells all waiters that something falls due, zero being now.
func (q *Queue) announce(dueAt time.Time) {
	q.waits.announce(dueAt)
	n := &q.notices
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case !n.pending:
		n.pending, n.due = true, dueAt
	case dueAt.IsZero() || dueAt.Before(n.due):
		n.due = dueAt
	}
	if !n.running && q.closed.Err() == nil {
		n.running = true
		// Ends when nothing is pending; joined by Close.
		q.background.Go(func() { n.run(q) })
	}
}

// announceCommit tells of an instance that a commit at an instant made due.
func (q *Queue) announceCommit(due, now time.Time) {
	if !due.After(now) {
		due = time.Time{}
	}
	q.announce(due)
}

func (n *notifier) run(q *Queue) {
	for quiet := firstQuiet; ; quiet = min(2*quiet, lastQuiet) {
		n.mu.Lock()
		if !n.pending {
			n.running = false
			n.mu.Unlock()
			return
		}
		payload := notice(n.id, n.due)
		n.pending = false
		n.mu.Unlock()
		q.send(payload)
		q.pause(q.closed, quiet)
	}
}

// send is best effort: who misses a notice polls.
func (q *Queue) send(payload string) {
	ctx, cancel := context.WithTimeout(q.closed, sendTimeout)
	defer cancel()
	_ = q.store.on(ctx, q.own, func(conn *pgx.Conn) error {
		// Nothing is lost with it, so that it need not wait for the disk. Both
		// literals are made of letters, digits and blanks.
		return conn.PgConn().Exec(ctx, fmt.Sprintf(
			"BEGIN; SET LOCAL synchronous_commit = off; SELECT pg_notify('%s', '%s'); COMMIT", q.channel(), payload)).Close()
	})
}

// sendTimeout bounds statements that the queue sends on its own account.
const sendTimeout = 10 * time.Second

// channel is the channel of the schema, whatever its name.
func (q *Queue) channel() string { return "supervisor_" + strconv.FormatUint(uint64(q.lockKey()), 16) }

// notice is the payload of a notification: who sends it, and when something
// falls due, in microseconds; nothing for now. One that a caller's transaction
// sends is from nobody, for no waiter knows of it yet.
func notice(from string, dueAt time.Time) string {
	if dueAt.IsZero() {
		return from
	}
	return from + " " + strconv.FormatInt(toMicros(dueAt), 10)
}

// heard takes a notice of any process.
func (q *Queue) heard(payload string) {
	id, micros, future := strings.Cut(payload, " ")
	if id == q.notices.id {
		return
	}
	var dueAt time.Time
	if future {
		due, err := strconv.ParseInt(micros, 10, 64)
		if err != nil {
			return
		}
		dueAt = fromMicros(due)
	}
	q.waits.announce(dueAt)
}

// listen starts the listener, once, unless it is not wanted.
func (q *Queue) listen() {
	if q.options.DisableListen {
		return
	}
	q.waits.started.Do(func() {
		// Ends with the queue; joined by Close.
		q.background.Go(func() {
			for delay := firstRetryDelay; ; delay = min(2*delay, lastRetryDelay) {
				heard, err := q.hear()
				q.waits.lookAgain(false)
				if q.closed.Err() != nil {
					return
				}
				if q.options.Observer.ListenFailed != nil {
					q.options.Observer.ListenFailed(err)
				}
				if heard {
					delay = firstRetryDelay
				}
				if !q.pause(q.closed, delay) {
					return
				}
			}
		})
	})
}

// hear listens on a connection of its own until that fails or the queue is
// closed. heard is whether it listened at all.
func (q *Queue) hear() (heard bool, err error) {
	conn, err := q.connectListener(q.closed)
	if err != nil {
		return false, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = conn.Close(ctx)
	}()
	if err := conn.PgConn().Exec(q.closed, "LISTEN "+q.channel()).Close(); err != nil {
		return false, err
	}
	// What was missed before is looked for.
	q.waits.lookAgain(true)
	for {
		notification, err := conn.WaitForNotification(q.closed)
		if err != nil {
			return true, err
		}
		q.heard(notification.Payload)
	}
}

func (q *Queue) connectListener(ctx context.Context) (*pgx.Conn, error) {
	if q.options.Listen != nil {
		return pgx.ConnectConfig(ctx, q.options.Listen.Copy())
	}
	config := q.pool.Config()
	connect := config.ConnConfig.Copy()
	if config.BeforeConnect != nil {
		if err := config.BeforeConnect(ctx, connect); err != nil {
			return nil, err
		}
	}
	return pgx.ConnectConfig(ctx, connect)
}

// newNoticeID returns a name that no other queue has.
func newNoticeID() string { return strings.ToLower(rand.Text()) }
