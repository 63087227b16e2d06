package pgqueue

import (
	"context"
	"crypto/rand"
	"encoding/hex"
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
	// pending is the earliest due time of each spec, zero being now; the empty
	// spec is any. What begins with intentMark is about intents.
	pending map[string]time.Time
	id      string // of this queue, whose own notices are no news to it
}

// noticeSpecs bounds the specs that one notice names.
const noticeSpecs = 6

func (n *notifier) add(specID string, dueAt time.Time) {
	if n.pending == nil {
		n.pending = make(map[string]time.Time)
	}
	earliest, known := n.pending[specID]
	switch {
	case !known && len(n.pending) >= noticeSpecs:
		clear(n.pending)
		n.pending[""], n.pending[intentMark] = time.Time{}, time.Time{}
	case !known || dueAt.IsZero() || (!earliest.IsZero() && dueAt.Before(earliest)):
		n.pending[specID] = dueAt
	}
}

// Notices that follow one another are at least firstQuiet apart, up to lastQuiet
// while they do not stop.
const firstQuiet, lastQuiet = 2 * time.Millisecond, 50 * time.Millisecond

// announce tells all waiters that something of a spec (empty: of any) falls due,
// zero being now.
func (q *Queue) announce(specID string, dueAt time.Time) {
	q.waits.announce(specID, dueAt)
	q.notify(specID, dueAt)
}

// notify tells waiters of other processes.
func (q *Queue) notify(name string, dueAt time.Time) {
	n := &q.notices
	n.mu.Lock()
	defer n.mu.Unlock()
	n.add(name, dueAt)
	if !n.running && q.closed.Err() == nil {
		n.running = true
		// Ends when nothing is pending; joined by Close.
		q.background.Go(func() { n.run(q) })
	}
}

// announceCommit tells of an instance that a commit at an instant made due.
func (q *Queue) announceCommit(specID string, due, now time.Time) {
	if !due.After(now) {
		due = time.Time{}
	}
	q.announce(specID, due)
}

func (n *notifier) run(q *Queue) {
	for quiet := firstQuiet; ; quiet = min(2*quiet, lastQuiet) {
		n.mu.Lock()
		if len(n.pending) == 0 {
			n.running = false
			n.mu.Unlock()
			return
		}
		payload := notice(n.id, n.pending)
		clear(n.pending)
		n.mu.Unlock()
		q.send(payload)
		q.pause(q.closed, quiet)
	}
}

// send is best effort: who misses a notice polls. Close waits for the last one,
// so that a program which starts something and ends is heard at once.
func (q *Queue) send(payload string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(q.closed), sendTimeout)
	defer cancel()
	stop := context.AfterFunc(q.closed, func() { time.AfterFunc(lastSendTimeout, cancel) })
	defer stop()
	_ = q.store.on(ctx, q.own, func(conn *pgx.Conn) error {
		// Nothing is lost with it, so that it need not wait for the disk. The
		// literals hold nothing that would have to be quoted.
		return conn.PgConn().Exec(ctx, fmt.Sprintf(
			"BEGIN; SET LOCAL synchronous_commit = off; SELECT pg_notify('%s', '%s'); COMMIT", q.channel(), payload)).Close()
	})
}

// sendTimeout bounds statements that the queue sends on its own account,
// lastSendTimeout what is left of them when it is closed.
const sendTimeout, lastSendTimeout = 10 * time.Second, time.Second

// channel is the channel of the schema, whatever its name.
func (q *Queue) channel() string { return "supervisor_" + strconv.FormatUint(uint64(q.lockKey()), 16) }

// notice is the payload of a notification: who sends it, and for each spec, in
// hexadecimal digits, when something falls due, in microseconds, if not now. One
// that a caller's transaction sends is from nobody, for no waiter knows of it
// yet.
func notice(from string, due map[string]time.Time) string {
	var payload strings.Builder
	payload.WriteString(from)
	for specID, at := range due {
		payload.WriteByte(' ')
		payload.WriteString(hex.EncodeToString([]byte(specID)))
		if !at.IsZero() {
			payload.WriteByte(':')
			payload.WriteString(strconv.FormatInt(toMicros(at), 10))
		}
	}
	return payload.String()
}

// heard takes a notice of any process. What it cannot read it takes for news of
// anything.
func (q *Queue) heard(payload string) {
	id, entries, _ := strings.Cut(payload, " ")
	if id == q.notices.id {
		return
	}
	for entry := range strings.SplitSeq(entries, " ") {
		name, micros, future := strings.Cut(entry, ":")
		specID, err := hex.DecodeString(name)
		var dueAt time.Time
		if err == nil && future {
			var due int64
			due, err = strconv.ParseInt(micros, 10, 64)
			dueAt = fromMicros(due)
		}
		if err != nil {
			specID, dueAt = nil, time.Time{}
		}
		if capability, about := strings.CutPrefix(string(specID), intentMark); about {
			q.intentWaits.announce(capability, dueAt)
			continue
		}
		q.waits.announce(string(specID), dueAt)
	}
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
				q.intentWaits.lookAgain(false)
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
	q.intentWaits.lookAgain(true)
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
