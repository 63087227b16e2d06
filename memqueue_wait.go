package supervisor

import (
	"context"
	"math"
	"slices"
	"time"
)

// memWaiter is a call of WaitDue that has found nothing yet.
type memWaiter struct {
	specIDs []string // none: all
	// nextDue is the due time that it waits for, until that or an earlier lease
	// end, both as keys: then it looks again by itself.
	nextDue, until int64
	// due is set when something fell due while it waited.
	due bool
	// wake has room for one signal to look again.
	wake chan struct{}
}

func (w *memWaiter) wants(spec *memSpec) bool {
	return len(w.specIDs) == 0 || slices.Contains(w.specIDs, spec.id)
}

// WaitDue implements [Waiter]. Due times 100 years away or more wake nobody.
func (q *MemoryWorkQueue) WaitDue(ctx context.Context, specIDs []string) error {
	w := &memWaiter{specIDs: specIDs, nextDue: math.MaxInt64, wake: make(chan struct{}, 1)}
	defer q.unwatch(w)
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		due, delay := q.watch(w)
		if due {
			return nil
		}
		wait(ctx, w.wake, delay)
	}
}

// wait returns when ctx has ended, wake was signalled or a delay is over; a
// negative one never is.
func wait(ctx context.Context, wake <-chan struct{}, delay time.Duration) {
	var over <-chan time.Time
	if delay >= 0 {
		timer := time.NewTimer(delay)
		defer timer.Stop()
		over = timer.C
	}
	select {
	case <-ctx.Done():
	case <-wake:
	case <-over:
	}
}

// watch registers a waiter and reports whether there is something for it, and
// otherwise after which delay it has to look again; a negative one is never.
func (q *MemoryWorkQueue) watch(w *memWaiter) (due bool, delay time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.now()
	q.endLeases(now)
	key := instantKey(now)
	if w.due || w.nextDue <= key {
		return true, 0
	}
	if due, w.nextDue = q.schedule.news(w.specIDs, key); due {
		return true, 0
	}
	w.until = w.nextDue
	if q.leases.len() > 0 {
		w.until = min(w.until, q.leases.top().key)
	}
	if q.waiters == nil {
		q.waiters = make(map[*memWaiter]struct{})
	}
	q.waiters[w] = struct{}{}
	if w.until >= instantKey(now.AddDate(waitingHorizonYears, 0, 0)) {
		return false, -1
	}
	return false, time.Duration(w.until - key)
}

func (q *MemoryWorkQueue) unwatch(w *memWaiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.waiters, w)
}

// announce tells waiters that an instance of a spec falls due at an instant.
func (q *MemoryWorkQueue) announce(spec *memSpec, at, now time.Time) {
	if at.After(now) {
		q.retime(spec, at)
		return
	}
	q.schedule.events++
	spec.event = q.schedule.events
	for w := range q.waiters {
		if w.wants(spec) {
			w.due = true
			signal(w.wake)
		}
	}
}

// retime lets waiters look again that would otherwise sleep past an instant.
func (q *MemoryWorkQueue) retime(spec *memSpec, at time.Time) {
	for w := range q.waiters {
		if w.wants(spec) && instantKey(at) < w.until {
			signal(w.wake)
		}
	}
}
