package sqlitequeue

import (
	"context"
	"slices"
	"sync"
	"time"
)

// bell wakes waiting calls.
type bell struct {
	mu sync.Mutex
	// changed is closed and replaced when a transaction has made something
	// claimable, at once or later.
	changed chan struct{}
	waiting int
}

// announce wakes the waiting calls, for them to look.
func (b *bell) announce() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.waiting > 0 {
		close(b.changed)
		b.changed = make(chan struct{})
	}
}

func (b *bell) wait() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting++
	return b.changed
}

func (b *bell) waited() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting--
}

// news tells waiting calls what the queue has made due.
type news struct {
	bell
	// looked and lookedAll are when claims of a spec, or of all, looked last:
	// what was due then was theirs to take, and what they left is no news.
	looked    map[string]instant
	lookedAll instant

	closed chan struct{}
}

func (n *news) init() {
	n.changed, n.closed = make(chan struct{}), make(chan struct{})
	n.looked, n.lookedAll = make(map[string]instant), never
}

func (n *news) close() { close(n.closed) }

func (n *news) isClosed() bool {
	select {
	case <-n.closed:
		return true
	default:
		return false
	}
}

// seen notes a claim of some specs (none: all) at an instant.
func (n *news) seen(specIDs []string, at instant) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(specIDs) == 0 {
		n.lookedAll = max(n.lookedAll, at)
		return
	}
	for _, id := range specIDs {
		if at > n.looked[id] {
			n.looked[id] = at
		}
	}
}

// since returns from when on something due of a spec is news.
func (n *news) since(specID string) instant {
	n.mu.Lock()
	defer n.mu.Unlock()
	if looked, ok := n.looked[specID]; ok {
		return max(looked, n.lookedAll)
	}
	return n.lookedAll
}

// leastLook bounds how often a waiting call looks while other instances than
// its own come and go.
const leastLook = 500 * time.Microsecond

// WaitDue implements [supervisor.Waiter]. It notices changes made through this
// queue at once, those of other processes and of callers' transactions within
// [Options.PollInterval].
func (q *Queue) WaitDue(ctx context.Context, specIDs []string) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		// Before looking, lest what comes in between is missed.
		changed := q.news.wait()
		due, delay, err := q.look(ctx, specIDs)
		if err == nil && !due {
			err = q.await(ctx, changed, delay)
		}
		q.news.waited()
		if due || err != nil {
			if ended := ctx.Err(); ended != nil {
				return ended
			}
			return err
		}
	}
}

// await returns after a change, but not before leastLook, or after the delay.
func (q *Queue) await(ctx context.Context, changed <-chan struct{}, delay time.Duration) error {
	began := time.Now()
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-q.news.closed:
		return ErrClosed
	case <-timer.C:
		return nil
	case <-changed:
	}
	if early := leastLook - time.Since(began); early > 0 {
		return pause(ctx, early)
	}
	return nil
}

const (
	selectLanes = `SELECT l.key, l.ready_at, l.ready_event, l.spec_id
		FROM supervisor_lanes l CROSS JOIN supervisor_tenants n ON n.key = l.tenant
		WHERE l.ready_at IS NOT NULL AND n.paused = 0 ORDER BY l.ready_at`
	selectFirstReap  = `SELECT min(reap_at) FROM supervisor_records WHERE reap_at IS NOT NULL`
	selectReadyAfter = `SELECT min(ready_at) FROM supervisor_records WHERE lane = ? AND ready_at > ?`
)

// look reports whether something of the specs has fallen due since claims last
// looked, and otherwise after which delay to look again.
func (q *Queue) look(ctx context.Context, specIDs []string) (due bool, delay time.Duration, err error) {
	next, now := never, q.clock.now()
	err = q.read(ctx, "wait", func(s *session) error {
		left, err := q.lookAtLanes(s, specIDs, now, &next)
		if err != nil {
			return err
		}
		for lane, since := range left {
			first, err := s.queryInstant(selectReadyAfter, lane, int64(since))
			if err != nil {
				return err
			}
			next = earlier(next, first)
		}
		reap, err := s.queryInstant(selectFirstReap)
		if err != nil {
			return err
		}
		next = earlier(next, reap)
		return nil
	})
	if err != nil {
		return false, 0, err
	}
	due, delay = q.until(next, now)
	return due, delay, nil
}

// until reports whether something that is due next at an instant is due now, and
// otherwise after which delay to look again.
func (q *Queue) until(next, now instant) (due bool, delay time.Duration) {
	if next == never {
		return false, q.options.PollInterval
	}
	// Not beyond the poll interval, for the end of the calendar overflows.
	most := instant(q.options.PollInterval / time.Microsecond)
	return next <= now, time.Duration(min(next-now, most)+1) * time.Microsecond
}

// lookAtLanes brings next forward to the first news that lanes tell of: now,
// where one has news. It returns the lanes that had something due which is no
// news, with the instant from which on it would be.
func (q *Queue) lookAtLanes(s *session, specIDs []string, now instant, next *instant) (left map[int64]instant, err error) {
	rows, err := s.query(selectLanes)
	if err != nil {
		return nil, err
	}
	for rows.next() {
		spec := rows.string(3)
		if len(specIDs) > 0 && !slices.Contains(specIDs, spec) {
			continue
		}
		readyAt, since := rows.instant(1), q.news.since(spec)
		if readyAt > now {
			*next = earlier(*next, readyAt)
			break
		}
		if rows.instant(2) > since {
			*next = now
			break
		}
		if left == nil {
			left = make(map[int64]instant)
		}
		left[rows.int(0)] = since
	}
	return left, rows.close()
}
