package pgqueue

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

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
		claim := &intentClaim{req: &req, wanted: min(req.Limit-len(works), math.MaxInt32)}
		err := q.claimPlain(ctx, claim)
		if err == nil && claim.limited {
			err = q.claimLimited(ctx, claim)
		}
		if err == nil {
			err = q.admitDue(ctx, claim)
		}
		works = append(works, claim.works...)
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
	// others are due intents that the claim left as they are, for a transaction that
	// locks them and their instances in order: it may have to tell these.
	others []supervisor.IntentKey
	// limited: there are limits, by which claims and marks are decided one after
	// the other.
	limited bool
	// full: as many as were wanted were due, so that there may be more.
	full bool
	// at is the instant up to which the claim has looked.
	at time.Time
}

const sqlSetIntentAside = `
UPDATE {{schema}}.intent SET due_at = clock_timestamp() + $3::bigint * interval '1 microsecond', touched = touched + 1
WHERE instance_no = $1 AND id = $2`

// claimPlain leases what is due and needs nothing else, in one statement. Where
// there are limits it only says so.
func (q *Queue) claimPlain(ctx context.Context, claim *intentClaim) error {
	a := q.store.newArgs()
	defer q.store.free(a)
	q.writeClaim(a, claim, true)
	var rows []*intentRow
	var now time.Time
	err := q.store.do(ctx, q.own, q.store.statements.claimIntents, a, func(c *cells) error {
		rows, now = claim.scan(c, rows, now)
		return nil
	})
	if err != nil || claim.limited {
		return err
	}
	claim.full = len(rows) >= claim.wanted
	for _, x := range rows {
		switch {
		case x.broken != nil:
			q.setIntentAside(ctx, x)
		case x.record.Leased(now):
			claim.works = append(claim.works, supervisor.IntentWork{IntentRecord: x.record, Task: supervisor.IntentTaskDispatch, ClaimedAt: now})
			q.heldIntents.remember(x, claim.req.LeaseDuration)
		default:
			claim.others = append(claim.others, x.record.Key())
		}
	}
	return nil
}

func (q *Queue) writeClaim(a *args, claim *intentClaim, plain bool) {
	a.int8(q.barrierKey())
	a.pins(claim.req.Capabilities)
	a.int4(claim.wanted)
	if !plain {
		a.null(pgtype.TextOID)
		a.null(pgtype.Int8OID)
		a.null(pgtype.BoolOID)
		return
	}
	a.text(claim.req.WorkerID)
	a.int8(leaseMicros(claim.req.LeaseDuration))
	a.bool(claim.req.MarkRepeatable)
}

// scan reads a row of sqlClaimIntents, the last of which tells of the claim.
func (claim *intentClaim) scan(c *cells, rows []*intentRow, now time.Time) ([]*intentRow, time.Time) {
	x := new(intentRow)
	if c.values[0] == nil {
		_ = x.scan(c)
		claim.at, claim.limited = x.record.DueAt, x.limited
		return rows, x.now
	}
	x.broken = x.scan(c)
	return append(rows, x), now
}

// setIntentAside puts an intent that cannot be decoded off. Where that fails the
// next claim finds it again.
func (q *Queue) setIntentAside(ctx context.Context, x *intentRow) {
	_ = q.store.transact(ctx, q.own, func(tx *transaction) error {
		q.addSetAside(tx, x)
		return nil
	})
}

func (q *Queue) addSetAside(tx *transaction, x *intentRow) {
	a := q.store.newArgs()
	defer q.store.free(a)
	a.int8(x.no)
	a.text(x.record.Intent.ID)
	a.int8(setAsideDelay.Microseconds())
	tx.add(sqlSetIntentAside, a, nil)
}

// claimLimited leases what is due, as far as limits let it.
func (q *Queue) claimLimited(ctx context.Context, claim *intentClaim) error {
	empty := *claim
	err := q.store.transact(ctx, q.own, func(tx *transaction) error {
		*claim = empty
		return q.claimLocked(ctx, tx, claim)
	})
	if err != nil {
		// Whether they were leased is not known: the next claim of others may have
		// the same lease version.
		*claim = empty
	}
	return err
}

// claimLocked leases what is due within a transaction.
func (q *Queue) claimLocked(ctx context.Context, tx *transaction, claim *intentClaim) error {
	a := q.store.newArgs()
	defer q.store.free(a)
	q.writeClaim(a, claim, false)
	var rows []*intentRow
	var now time.Time
	tx.add(sqlClaimIntents, a, func(c *cells) error {
		rows, now = claim.scan(c, rows, now)
		return nil
	})
	if err := tx.send(ctx); err != nil {
		return err
	}
	claim.full = len(rows) >= claim.wanted
	var limits *limitSet
	var parked []*intentRow
	if claim.limited {
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
		q.addSetAside(tx, x)
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
	var task supervisor.IntentTask
	held := x.record.HoldsSlot()
	err := x.apply(func(r *supervisor.IntentRecord) (told bool, err error) {
		task, told = claim.admit(x, func() bool { return limits.free(&r.Intent) })
		return told, nil
	})
	if errors.Is(err, errTells) {
		claim.others = append(claim.others, x.record.Key())
		return
	}
	limits.count(&x.record.Intent, btoi(x.record.HoldsSlot())-btoi(held))
	if task != "" {
		claim.works = append(claim.works, supervisor.IntentWork{IntentRecord: x.record, Task: task, ClaimedAt: x.now})
	}
}

// admit decides about a due intent by the rules.
func (claim *intentClaim) admit(x *intentRow, slotFree func() bool) (task supervisor.IntentTask, told bool) {
	req, r := claim.req, &x.record
	task, told = r.Admit(&x.control, slotFree, x.now)
	if task == "" {
		return "", told
	}
	r.Acquire(req.WorkerID, time.Duration(leaseMicros(req.LeaseDuration))*time.Microsecond, x.now)
	if req.MarkRepeatable && task == supervisor.IntentTaskDispatch && r.Repeatable() {
		r.MarkNow(x.now)
	}
	return task, false
}

// admitDue decides about due intents that the claim left, where they still are.
func (q *Queue) admitDue(ctx context.Context, claim *intentClaim) error {
	if len(claim.others) == 0 {
		return nil
	}
	var after func()
	var tasks []supervisor.IntentTask
	var ops []*intentOp
	err := q.store.transact(ctx, q.own, func(tx *transaction) (err error) {
		tasks = make([]supervisor.IntentTask, len(claim.others))
		ops = make([]*intentOp, len(claim.others))
		for n, key := range claim.others {
			ops[n] = &intentOp{key: key, tells: true, takes: true, rule: func(x *intentRow, slotFree func() bool) (told bool, err error) {
				if x.record.DueAt.IsZero() || x.record.DueAt.After(x.now) {
					return false, errNotDue
				}
				tasks[n], told = claim.admit(x, slotFree)
				return told, nil
			}}
		}
		after, err = q.decideIntents(ctx, tx, ops, func(ops []*intentOp) []*intentOp { return ops })
		return err
	})
	if err != nil {
		return err
	}
	after()
	for n, task := range tasks {
		if x := ops[n].row; task != "" && ops[n].said == nil {
			claim.works = append(claim.works, supervisor.IntentWork{IntentRecord: x.record, Task: task, ClaimedAt: x.now})
		}
	}
	return nil
}
