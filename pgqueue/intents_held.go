package pgqueue

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/workflow-supervisor/supervisor"
)

// heldIntents remembers what claims and marks made through this queue have seen,
// so that what follows can be decided without reading the intent again.
// Forgetting one is harmless: it is read then.
type heldIntents struct {
	now     func() time.Time // the host's clock
	mu      sync.Mutex
	intents map[supervisor.IntentKey]*heldIntent
	// sweepAt is the size at which ended leases are looked for next.
	sweepAt int
}

// heldIntent is an intent under a lease. The row is never changed.
type heldIntent struct {
	row intentRow
	// forgetAt is when the lease ended a good while ago, on the host's clock; it
	// has no bearing on the lease.
	forgetAt time.Time
}

// remember adds an intent that was leased.
func (h *heldIntents) remember(x *intentRow, lease time.Duration) {
	held := &heldIntent{row: *x}
	held.row.record = x.record.Clone()
	now := h.now()
	held.forgetAt = now.Add(2*lease + time.Minute)
	h.put(held, now)
}

func (h *heldIntents) put(held *heldIntent, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.intents == nil {
		h.intents, h.sweepAt = make(map[supervisor.IntentKey]*heldIntent), sweepFrom
	}
	h.intents[held.row.record.Key()] = held
	if len(h.intents) < h.sweepAt {
		return
	}
	for key, held := range h.intents {
		if held.forgetAt.Before(now) {
			delete(h.intents, key)
		}
	}
	h.sweepAt = max(sweepFrom, 2*len(h.intents))
}

// get returns the intent under a lease version, nil where it is not known.
func (h *heldIntents) get(key supervisor.IntentKey, version int64) *heldIntent {
	h.mu.Lock()
	defer h.mu.Unlock()
	held := h.intents[key]
	if held == nil || held.row.record.LeaseVersion != version {
		return nil
	}
	return held
}

// forget drops an intent.
func (h *heldIntents) forget(key supervisor.IntentKey) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.intents, key)
}

// applyHeld decides the changes of a batch that need no look at their intents,
// and applies those in one statement whose intents are still as they were. It
// gives their verdicts and returns the others.
func (q *Queue) applyHeld(ctx context.Context, conn *pgx.Conn, batch []*intentOp, now time.Time) (rest []*intentOp) {
	rowType, err := q.intentType.find(ctx, q, conn)
	if err != nil {
		return batch
	}
	a := q.store.newArgs()
	defer q.store.free(a)
	ready, rest := q.decideHeld(a, rowType, batch, now)
	if len(ready) == 0 {
		return rest
	}
	var done []*intentOp
	var rows []*intentRow
	err = q.store.call(ctx, conn, q.store.statements.applyIntents, a, func(c *cells) error {
		c.elements(func(_ int, element []byte) {
			place := cells{values: [][]byte{element}}
			if n := place.int4() - 1; n >= 0 && n < len(ready) {
				done, rows = append(done, ready[n]), append(rows, ready[n].row)
				ready[n] = nil
			}
		})
		return nil
	})
	ready = slices.DeleteFunc(ready, func(op *intentOp) bool { return op == nil })
	if err != nil {
		// Also an answer that has come is void without its end.
		ready = append(ready, done...)
		if refused(err) {
			return append(rest, ready...)
		}
		rows = rows[:0]
		for _, op := range ready {
			q.heldIntents.forget(op.key)
			rows = append(rows, op.row)
		}
		// Where it was applied nobody else tells of it.
		q.announceIntents(rows, now)
		q.intents.settle(ready, outcomeUnknown, err)
		return rest
	}
	for _, op := range done {
		q.heldAfter(op)
	}
	if len(rows) > 0 {
		q.announceIntents(rows, now)
		q.intents.settle(done, applied, nil)
	}
	return append(rest, ready...)
}

// decideHeld decides the changes of a batch, as far as their intents are known,
// and writes them in the one order of locks.
func (q *Queue) decideHeld(a *args, rowType uint32, batch []*intentOp, now time.Time) (ready, rest []*intentOp) {
	batch = q.intents.read(batch)
	defer q.intents.release(batch)
	for _, op := range batch {
		if !q.heldIntents.decide(op, now) {
			rest = append(rest, op)
			continue
		}
		ready = append(ready, op)
	}
	slices.SortStableFunc(ready, func(a, b *intentOp) int { return compareIntents(a.row, b.row) })
	// Two changes of one intent: one after the other.
	last := (*intentRow)(nil)
	ready = slices.DeleteFunc(ready, func(op *intentOp) bool {
		if last != nil && compareIntents(last, op.row) == 0 {
			rest = append(rest, op)
			return true
		}
		last = op.row
		return false
	})
	if len(ready) == 0 {
		return nil, rest
	}
	for _, op := range ready {
		now = later(now, op.row.now)
	}
	a.int8(q.barrierKey())
	a.instant(now)
	a.arrayOf(rowType, 0, len(ready))
	for _, op := range ready {
		if err := op.row.write(a); err != nil {
			return nil, batch
		}
	}
	return ready, rest
}

// decide decides a change from what was seen of its intent, where that is known
// and nothing is said against it.
func (h *heldIntents) decide(op *intentOp, now time.Time) bool {
	if op.lease == 0 {
		return false
	}
	held := h.get(op.key, op.lease)
	if held == nil {
		return false
	}
	x := held.row
	// One that was claimed since the clock was read is not changed before.
	x.now = later(now, x.now)
	// Both are for the statement to see to.
	x.runLocked, x.control.Finished = true, false
	before := x.record.Intent.State
	err := x.apply(func(*supervisor.IntentRecord) (bool, error) {
		return op.rule(&x, func() bool { return true })
	})
	if err != nil || !x.changed {
		return false
	}
	x.marks = before != supervisor.ActionDispatchCommitted && x.record.Intent.State == supervisor.ActionDispatchCommitted
	op.row, op.said = &x, nil
	return true
}

// heldAfter keeps what a mark has made of an intent, and drops one whose lease has
// ended.
func (q *Queue) heldAfter(op *intentOp) {
	if !op.row.marks {
		q.heldIntents.forget(op.key)
		return
	}
	x := *op.row
	x.record = x.record.Clone()
	x.touched++
	x.marks, x.changed, x.wakeup = false, false, nil
	q.heldIntents.mu.Lock()
	held := q.heldIntents.intents[op.key]
	q.heldIntents.mu.Unlock()
	if held != nil {
		q.heldIntents.put(&heldIntent{row: x, forgetAt: held.forgetAt}, q.hostNow())
	}
}

// compareIntents is the one order in which intents are locked and written.
func compareIntents(a, b *intentRow) int {
	return cmp.Or(cmp.Compare(a.no, b.no), cmp.Compare(a.record.Intent.ID, b.record.Intent.ID))
}
