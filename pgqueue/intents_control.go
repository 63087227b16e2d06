package pgqueue

import (
	"context"

	"github.com/workflow-supervisor/supervisor"
)

// cancelIntents withdraws the intents of a locked instance that wait for a
// hand-off, asks for the others to be cancelled, and tells the instance, unless it
// is finished. It changes the row, which its caller writes, and returns whether
// there were any.
func (q *Queue) cancelIntents(ctx context.Context, tx *transaction, r *row) (found bool, err error) {
	a := q.store.newArgs()
	defer q.store.free(a)
	a.int8(r.no)
	var intents []*intentRow
	tx.add(sqlInstanceIntents, a, func(c *cells) error {
		x := new(intentRow)
		// One that cannot be decoded is not claimed either.
		if x.broken = x.scan(c); x.broken == nil {
			intents = append(intents, x)
		}
		return nil
	})
	if err := tx.send(ctx); err != nil || len(intents) == 0 {
		return false, err
	}
	limits, err := q.lockLimits(ctx, tx, intents)
	if err != nil {
		return false, err
	}
	finished := r.record.Status == supervisor.StatusCompleted || r.record.Status == supervisor.StatusCancelled
	for _, x := range intents {
		x.now, x.runLocked, x.control.Finished = r.now, true, finished
		held := x.record.HoldsSlot()
		if err := x.apply(func(record *supervisor.IntentRecord) (bool, error) {
			return record.RequestCancel(r.now), nil
		}); err != nil {
			return false, err
		}
		limits.count(&x.record.Intent, btoi(x.record.HoldsSlot())-btoi(held))
		if x.wakeup != nil {
			// The row of the instance is written by the caller.
			q.addWakeup(tx, r.no, x.wakeup, x.wakeup.Digest(), r.now, nil)
			r.arrived(r.now)
			x.wakeup = nil
		}
	}
	_, err = q.writeIntents(ctx, tx, intents, limits)
	return true, err
}

// unparkIntents makes the intents of an instance, or of a tenant or one of its
// resources, due that wait for a hand-off and are not leased. It is
// [supervisor.IntentRecord.Unpark] for many.
func (q *Queue) unparkIntents(tx *transaction, instanceNo int64, scope supervisor.Scope) {
	a := q.store.newArgs()
	defer q.store.free(a)
	a.int8OrNull(instanceNo)
	a.textOrNull(scope.TenantID)
	a.textOrNull(scope.ResourceID)
	tx.add(sqlUnparkIntents, a, nil)
}
