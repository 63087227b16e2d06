package supervisor

import (
	"context"
	"math"
	"slices"
	"time"
)

// memIntentWaiter is a call of WaitIntents that has found nothing yet; its
// fields mean what those of a memWaiter mean.
type memIntentWaiter struct {
	capabilities []CapabilityPin // none: all
	nextDue      int64
	due          bool
	wake         chan struct{}
}

func (w *memIntentWaiter) wants(lane *memIntentLane) bool {
	return len(w.capabilities) == 0 || slices.Contains(w.capabilities, lane.pin)
}

// WaitIntents implements [IntentWaiter]. Due times 100 years away or more wake
// nobody.
func (q *MemoryWorkQueue) WaitIntents(ctx context.Context, capabilities []CapabilityPin) error {
	w := &memIntentWaiter{capabilities: capabilities, nextDue: math.MaxInt64, wake: make(chan struct{}, 1)}
	defer q.unwatchIntents(w)
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		due, delay := q.watchIntents(w)
		if due {
			return nil
		}
		wait(ctx, w.wake, delay)
	}
}

// watchIntents registers a waiter and reports whether there is something for
// it, and otherwise after which delay it has to look again; a negative one is
// never.
func (q *MemoryWorkQueue) watchIntents(w *memIntentWaiter) (due bool, delay time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.now()
	key := instantKey(now)
	if w.due || w.nextDue <= key {
		return true, 0
	}
	if due, w.nextDue = q.intents.news(w.capabilities); due || w.nextDue <= key {
		return true, 0
	}
	if q.intents.waiters == nil {
		q.intents.waiters = make(map[*memIntentWaiter]struct{})
	}
	q.intents.waiters[w] = struct{}{}
	if w.nextDue >= instantKey(now.AddDate(waitingHorizonYears, 0, 0)) {
		return false, -1
	}
	return false, time.Duration(w.nextDue - key)
}

func (q *MemoryWorkQueue) unwatchIntents(w *memIntentWaiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.intents.waiters, w)
}

// news reports whether an intent of the capabilities (none: all) was made due
// since claims last looked, and otherwise the next due time, as a key.
func (s *memIntentSchedule) news(capabilities []CapabilityPin) (due bool, next int64) {
	next = math.MaxInt64
	look := func(lane *memIntentLane) {
		due = due || lane.event > max(s.all.events, lane.seen.events)
		seen := max(s.all.until, lane.seen.until)
		if x := lane.waiting.first(func(x *memEntry[memIntentRow]) bool { return x.key > seen }); x != nil {
			next = min(next, x.key)
		}
	}
	if len(capabilities) == 0 {
		for _, lane := range s.lanes {
			look(lane)
		}
	}
	for n := range capabilities {
		if lane := s.lanes[capabilities[n]]; lane != nil {
			look(lane)
		}
	}
	return due, next
}

// announceIntent tells waiters that an intent of a lane falls due at an instant.
func (q *MemoryWorkQueue) announceIntent(lane *memIntentLane, at, now time.Time) {
	if at.After(now) {
		for w := range q.intents.waiters {
			if instantKey(at) < w.nextDue && w.wants(lane) {
				signal(w.wake)
			}
		}
		return
	}
	q.intents.events++
	lane.event = q.intents.events
	for w := range q.intents.waiters {
		if w.wants(lane) {
			w.due = true
			signal(w.wake)
		}
	}
}
