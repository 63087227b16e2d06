package pgqueue

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"
)

// waiters are the calls of WaitDue, and how far claims have looked: what was due
// at the instant of a claim was its to take, and is no news.
type waiters struct {
	mu      sync.Mutex
	waiting map[*waiter]struct{}
	// events counts what fell due other than by time; latest is the number of
	// the last one of each spec, latestAny of one whose spec is not known.
	events    uint64
	latest    map[string]uint64
	latestAny uint64
	seen      map[string]seenDue
	// listening is whether notifications of other processes come in.
	listening bool
	started   sync.Once
}

// seenDue is how far a claim of some specs has looked.
type seenDue struct {
	events uint64
	at     time.Time
}

// waiter is a call of WaitDue that has found nothing yet.
type waiter struct {
	specIDs []string // none: all
	// next is the instant that it waits for, by the server's clock; zero: none.
	next time.Time
	// due is set when something fell due.
	due bool
	// wake has room for one signal.
	wake chan struct{}
}

// wants reports whether a spec is waited for; empty is any.
func (w *waiter) wants(specID string) bool {
	return specID == "" || len(w.specIDs) == 0 || slices.Contains(w.specIDs, specID)
}

func (w *waiter) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// seenSets bounds the sets of specs that are remembered, latestSpecs the specs.
// Forgetting them wakes too often, never too late.
const seenSets, latestSpecs = 64, 4096

// specsKey names a set of specs; the empty one is all.
func specsKey(specIDs []string) string {
	if len(specIDs) < 2 {
		return strings.Join(specIDs, "")
	}
	return strings.Join(slices.Sorted(slices.Values(specIDs)), "\x00")
}

// claiming returns the events that a claim which starts now will have seen.
func (w *waiters) claiming() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.events
}

// claimed records a claim of some specs at an instant.
func (w *waiters) claimed(specIDs []string, events uint64, at time.Time) {
	key := specsKey(specIDs)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.seen == nil || len(w.seen) >= seenSets {
		w.seen = make(map[string]seenDue)
	}
	seen := w.seen[key]
	w.seen[key] = seenDue{events: max(seen.events, events), at: later(seen.at, at)}
}

// news reports whether something of the specs fell due behind some events.
func (w *waiters) news(specIDs []string, events uint64) bool {
	if len(specIDs) == 0 {
		return w.events > events
	}
	if w.latestAny > events {
		return true
	}
	for _, id := range specIDs {
		if w.latest[id] > events {
			return true
		}
	}
	return false
}

// announce tells waiters of this process that something of a spec (empty: of
// any) falls due, zero being now.
func (w *waiters) announce(specID string, dueAt time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if dueAt.IsZero() {
		w.events++
		switch {
		case specID == "":
			w.latestAny = w.events
		case w.latest == nil || len(w.latest) >= latestSpecs:
			w.latest, w.latestAny = make(map[string]uint64), w.events
			fallthrough
		default:
			w.latest[specID] = w.events
		}
	}
	for waiter := range w.waiting {
		switch {
		case !waiter.wants(specID):
			continue
		case dueAt.IsZero():
			waiter.due = true
		case !waiter.next.IsZero() && !dueAt.Before(waiter.next):
			continue
		}
		waiter.signal()
	}
}

// lookAgain lets all waiters ask the database again.
func (w *waiters) lookAgain(listening bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.listening = listening
	for waiter := range w.waiting {
		waiter.signal()
	}
}

// idleLook is how often a waiter asks the database again though notifications
// come in: they tell what others did, but not that one of them died over it.
const idleLook = 30 * time.Second

// WaitDue implements [supervisor.Waiter]. It listens for notifications of other
// processes and asks the database once for the next due time; without a
// listener it asks each Options.PollInterval.
func (q *Queue) WaitDue(ctx context.Context, specIDs []string) error {
	if err := q.ready(ctx); err != nil {
		return err
	}
	return q.wait(ctx, &q.waits, specIDs, func(w *waiter, since time.Time) (time.Duration, error) {
		return q.nextDue(ctx, specIDs, since, w)
	})
}

// wait blocks until something of some names falls due behind the last claim of
// them. next says how long to sleep before asking it again; nothing where there
// is something.
func (q *Queue) wait(ctx context.Context, waits *waiters, names []string, next func(w *waiter, since time.Time) (time.Duration, error)) error {
	q.listen()
	w := &waiter{specIDs: names, wake: make(chan struct{}, 1)}
	key := specsKey(names)
	waits.mu.Lock()
	if waits.waiting == nil {
		waits.waiting = make(map[*waiter]struct{})
	}
	waits.waiting[w] = struct{}{}
	seen, claimed := waits.seen[key]
	w.due = claimed && waits.news(names, seen.events)
	waits.mu.Unlock()
	defer func() {
		waits.mu.Lock()
		delete(waits.waiting, w)
		waits.mu.Unlock()
	}()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		if waits.isDue(w) {
			return nil
		}
		delay, err := next(w, seen.at)
		if err != nil {
			return q.wrap(ctx, "wait", err)
		}
		if delay <= 0 {
			return nil
		}
		timer.Reset(delay)
		select {
		case <-timer.C:
		case <-w.wake:
		case <-ctx.Done():
			return ctx.Err()
		case <-q.closed.Done():
			return ErrClosed
		}
	}
}

func (w *waiters) isDue(of *waiter) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return of.due
}

const sqlNextDue = `SELECT next_at, now FROM {{schema}}.next_due_v1($1, coalesce($2::timestamptz, '-infinity'))`

// nextDue asks for the next due time behind an instant and returns how long to
// sleep before looking again; nothing where it has come.
func (q *Queue) nextDue(ctx context.Context, specIDs []string, since time.Time, w *waiter) (time.Duration, error) {
	a := q.store.newArgs()
	defer q.store.free(a)
	a.texts(specIDs)
	a.instant(since)
	var next, now time.Time
	err := q.store.do(ctx, q.own, q.store.statements.nextDue, a, func(c *cells) error {
		next, now = c.instant(), c.instant()
		return nil
	})
	if err != nil {
		return 0, err
	}
	return q.sleep(&q.waits, w, next, now), nil
}

// sleep returns how long a waiter sleeps until an instant, zero for none.
func (q *Queue) sleep(waits *waiters, w *waiter, next, now time.Time) time.Duration {
	waits.mu.Lock()
	defer waits.mu.Unlock()
	w.next = next
	most := q.options.PollInterval
	if waits.listening {
		most = idleLook
	}
	if next.IsZero() || next.Sub(now) > most {
		return most
	}
	return next.Sub(now)
}
