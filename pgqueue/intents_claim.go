package pgqueue

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/workflow-supervisor/supervisor"
)

// ClaimIntents implements [supervisor.IntentQueue]. It takes one transaction, and
// one more where due intents turned out to need something else than a claim.
func (q *Queue) ClaimIntents(ctx context.Context, req supervisor.IntentClaimRequest) ([]supervisor.IntentWork, error) {
	if err := q.ready(ctx); err != nil {
		return nil, err
	}
	if err := req.Validate(); err != nil {
		return nil, err
	}
	names := capabilityNames(req.Capabilities)
	seen := q.intentWaits.claiming()
	var works []supervisor.IntentWork
	for {
		wanted := min(req.Limit-len(works), math.MaxInt32)
		var claim *intentClaim
		err := q.store.repeat(ctx, func() error {
			return q.store.on(ctx, q.own, func(conn *pgx.Conn) error {
				claim = &intentClaim{req: &req, wanted: wanted}
				return q.store.transactOn(ctx, conn, func(tx *transaction) error { return q.claimIntents(ctx, tx, claim) })
			})
		})
		if err == nil {
			works = append(works, claim.works...)
			err = q.admitDue(ctx, claim.telling)
		}
		if err != nil {
			// What was claimed before is served.
			return works, q.wrap(ctx, "claim intents", err)
		}
		if len(works) >= req.Limit {
			return works, nil
		}
		if !claim.full {
			q.intentWaits.claimed(names, seen, claim.at)
			return works, nil
		}
	}
}

// intentClaim is one look for due intents.
type intentClaim struct {
	req    *supervisor.IntentClaimRequest
	wanted int

	works []supervisor.IntentWork
	// telling are due intents that have come to an outcome: their instances are
	// told in a transaction that locks them in order.
	telling []supervisor.IntentKey
	// full: as many as were wanted were due, so that there may be more.
	full bool
	// at is the instant up to which the claim has looked.
	at time.Time
}

const sqlSetIntentAside = `
UPDATE {{schema}}.intent SET due_at = clock_timestamp() + $3::bigint * interval '1 microsecond', touched = touched + 1
WHERE instance_no = $1 AND id = $2`

// claimIntents leases what is due within a transaction.
func (q *Queue) claimIntents(ctx context.Context, tx *transaction, claim *intentClaim) error {
	a := q.store.newArgs()
	defer q.store.free(a)
	a.int8(q.barrierKey())
	a.pins(claim.req.Capabilities)
	a.int4(claim.wanted)
	rows := make([]*intentRow, 0, min(claim.wanted, 256))
	limited := false
	var now time.Time
	tx.add(sqlClaimIntents, a, func(c *cells) error {
		x := new(intentRow)
		if c.values[0] == nil {
			x.scan(c)
			claim.at, limited, now = x.record.DueAt, x.limited, x.now
			return nil
		}
		x.broken = x.scan(c)
		rows = append(rows, x)
		return nil
	})
	if err := tx.send(ctx); err != nil {
		return err
	}
	claim.full = len(rows) >= claim.wanted
	var limits *limitSet
	var parked []*intentRow
	if limited {
		var err error
		if !claim.full {
			// A slot may be free for which nobody is due: who was to have it was
			// withdrawn, or its process died.
			if parked, err = q.parked(ctx, tx, claim.req.Capabilities, nil, true, claim.wanted-len(rows)); err != nil {
				return err
			}
		}
		if limits, err = q.lockLimits(ctx, tx, append(rows, parked...)); err != nil {
			return err
		}
	}
	for _, x := range rows {
		x.now = now
		if x.broken == nil {
			claim.take(x, limits)
			continue
		}
		// It fails nothing else, and is left alone for a while.
		a.reset()
		a.int8(x.no)
		a.text(x.record.Intent.ID)
		a.int8(setAsideDelay.Microseconds())
		tx.add(sqlSetIntentAside, a, nil)
	}
	if len(parked) > 0 {
		// Those that are to be marked next have the slots before them.
		for n := range claim.works {
			if w := &claim.works[n]; w.Task == supervisor.IntentTaskDispatch && !w.HoldsSlot() {
				limits.promise(&w.Intent)
			}
		}
	}
	for _, x := range parked {
		if x.now = now; limits.free(&x.record.Intent) && len(claim.works) < claim.wanted {
			claim.take(x, limits)
			if !x.record.HoldsSlot() {
				limits.promise(&x.record.Intent)
			}
			rows = append(rows, x)
		}
	}
	_, err := q.writeIntents(ctx, tx, rows, limits)
	return err
}

// take leases an intent that is due, or carries out what else became of it.
func (claim *intentClaim) take(x *intentRow, limits *limitSet) {
	req := claim.req
	var task supervisor.IntentTask
	held := x.record.HoldsSlot()
	err := x.apply(func(r *supervisor.IntentRecord) (told bool, err error) {
		task, told = r.Admit(&x.control, func() bool { return limits.free(&r.Intent) }, x.now)
		if task == "" {
			return told, nil
		}
		r.Acquire(req.WorkerID, time.Duration(leaseMicros(req.LeaseDuration))*time.Microsecond, x.now)
		if req.MarkRepeatable && task == supervisor.IntentTaskDispatch && r.Repeatable() {
			r.MarkNow(x.now)
		}
		return false, nil
	})
	if errors.Is(err, errTells) {
		claim.telling = append(claim.telling, x.record.Key())
		return
	}
	limits.count(&x.record.Intent, btoi(x.record.HoldsSlot())-btoi(held))
	if task != "" {
		claim.works = append(claim.works, supervisor.IntentWork{IntentRecord: x.record, Task: task, ClaimedAt: x.now})
	}
}

// admitDue carries out what became of due intents whose instances are to be told,
// where it is still so.
func (q *Queue) admitDue(ctx context.Context, keys []supervisor.IntentKey) error {
	if len(keys) == 0 {
		return nil
	}
	ops := make([]*intentOp, len(keys))
	for n, key := range keys {
		ops[n] = &intentOp{key: key, tells: true, takes: true, rule: func(x *intentRow, slotFree func() bool) (bool, error) {
			if x.record.DueAt.IsZero() || x.record.DueAt.After(x.now) {
				return false, errNotDue
			}
			task, told := x.record.Admit(&x.control, slotFree, x.now)
			if task != "" {
				return false, errNotDue
			}
			return told, nil
		}}
	}
	var after func()
	err := q.store.transact(ctx, q.own, func(tx *transaction) (err error) {
		after, err = q.decideIntents(ctx, tx, ops, func(ops []*intentOp) []*intentOp { return ops })
		return err
	})
	if err == nil {
		after()
	}
	return err
}
