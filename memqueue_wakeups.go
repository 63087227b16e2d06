package supervisor

import (
	"math"
	"slices"
	"time"
)

// mailbox holds the wakeups of one instance.
type mailbox struct {
	// pending is ordered by due time, equal ones by arrival.
	pending []*memWakeup
	// known are the ids of pending and consumed wakeups.
	known map[string]*knownWakeup
}

// memWakeup is a wakeup that waits for the commit that consumes it. The
// payload is never written to.
type memWakeup struct {
	Wakeup
	dueAt time.Time
	known *knownWakeup
	// claim is the lease version of the latest claim that contained it.
	claim int64
}

// knownWakeup remembers an id and its content.
type knownWakeup struct {
	digest     string
	consumedAt time.Time // zero: pending
}

// neverClaimed is the lease version of no claim.
const neverClaimed = math.MinInt64

// deliver adds a wakeup, whose memory it keeps.
func (r *memRow) deliver(wakeup Wakeup, digest string, dueAt time.Time) {
	if r.mail == nil {
		r.mail = &mailbox{known: make(map[string]*knownWakeup)}
	}
	known := &knownWakeup{digest: digest}
	r.mail.known[wakeup.ID] = known
	// Behind those that are due at the same instant: deliveries that are due
	// now go to the end of all but timers that are still ahead.
	at, _ := slices.BinarySearchFunc(r.mail.pending, dueAt, func(w *memWakeup, dueAt time.Time) int {
		if w.dueAt.After(dueAt) {
			return 1
		}
		return -1
	})
	r.mail.pending = slices.Insert(r.mail.pending, at, &memWakeup{Wakeup: wakeup, dueAt: dueAt, known: known, claim: neverClaimed})
}

// due returns the pending wakeups that are due at now.
func (m *mailbox) due(now time.Time) []*memWakeup {
	end, _ := slices.BinarySearchFunc(m.pending, now, func(w *memWakeup, now time.Time) int {
		if w.dueAt.After(now) {
			return 1
		}
		return -1
	})
	return m.pending[:end]
}

// claim marks the wakeups that a claim under a lease version contains and
// returns their number and the bytes of their payloads.
func (m *mailbox) claim(version int64, now time.Time) (wakeups, bytes int) {
	if m == nil {
		return 0, 0
	}
	due := m.due(now)
	for _, wakeup := range due {
		bytes += len(wakeup.Payload)
	}
	if len(due) <= MaxClaimWakeups && bytes <= MaxClaimWakeupBytes {
		for _, wakeup := range due {
			wakeup.claim = version
		}
		return len(due), bytes
	}
	// The first that does not fit ends the claim, so that nothing overtakes it;
	// one that is larger than the bound goes alone.
	bytes = 0
	for _, preferred := range [...]bool{true, false} {
		for _, wakeup := range due {
			if claimedFirst(wakeup.Kind) != preferred {
				continue
			}
			if wakeups == MaxClaimWakeups || (wakeups > 0 && bytes+len(wakeup.Payload) > MaxClaimWakeupBytes) {
				return wakeups, bytes
			}
			wakeup.claim = version
			wakeups++
			bytes += len(wakeup.Payload)
		}
	}
	return wakeups, bytes
}

// claimedFirst reports whether wakeups of a kind come before others where a
// claim cannot hold all of them.
func claimedFirst(kind string) bool {
	switch kind {
	case WakeupKindAction, "child", "gate", WakeupKindTimer:
		return true
	}
	return false
}

// firstOutside returns the first due time of pending wakeups that the claim
// under a lease version did not contain; zero for none.
func (m *mailbox) firstOutside(version int64) time.Time {
	if m == nil {
		return time.Time{}
	}
	for _, wakeup := range m.pending {
		if wakeup.claim != version {
			return wakeup.dueAt
		}
	}
	return time.Time{}
}

// consume ends the wakeups with these ids.
func (m *mailbox) consume(ids []string, now time.Time) {
	if m == nil || len(ids) == 0 {
		return
	}
	for _, id := range ids {
		if known := m.known[id]; known != nil {
			known.consumedAt = now
		}
	}
	m.pending = slices.DeleteFunc(m.pending, func(w *memWakeup) bool { return !w.known.consumedAt.IsZero() })
}

// forget drops the ids that were consumed before both instants.
func (m *mailbox) forget(before, memory time.Time) {
	if m == nil {
		return
	}
	for id, known := range m.known {
		if at := known.consumedAt; !at.IsZero() && at.Before(before) && at.Before(memory) {
			delete(m.known, id)
		}
	}
}

// get returns what is known of an id, nil for nothing.
func (m *mailbox) get(id string) *knownWakeup {
	if m == nil {
		return nil
	}
	return m.known[id]
}

// firstDue returns the first due time of pending wakeups; zero for none.
func (m *mailbox) firstDue() time.Time {
	if m == nil || len(m.pending) == 0 {
		return time.Time{}
	}
	return m.pending[0].dueAt
}
