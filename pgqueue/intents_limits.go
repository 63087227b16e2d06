package pgqueue

import (
	"context"
	"math"
	"slices"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/workflow-supervisor/supervisor"
)

const (
	sqlLimits = `
SELECT l.tenant_id, l.capability_id, l.most, l.used FROM {{schema}}.intent_limit l
WHERE (l.tenant_id = '' OR l.tenant_id = ANY ($1)) AND (l.capability_id = '' OR l.capability_id = ANY ($2))
ORDER BY l.tenant_id, l.capability_id`

	sqlLock = ` FOR NO KEY UPDATE`

	sqlCountLimits = `
UPDATE {{schema}}.intent_limit l SET used = greatest(0, l.used + m.delta)
FROM unnest($1::text[], $2::text[], $3::bigint[]) AS m(tenant_id, capability_id, delta)
WHERE l.tenant_id = m.tenant_id AND l.capability_id = m.capability_id`

	sqlSetLimit = `SELECT {{schema}}.set_limit_v1($1, $2, $3)`
)

// limitSet are the limits that cover some intents, locked. The nil set is for
// where there are none.
type limitSet struct{ limits []*slotLimit }

// slotLimit is a limit, how many slots of it are used, and by how many that
// changes.
type slotLimit struct {
	supervisor.IntentLimit
	used, delta int
	// promised are slots for which intents were made due.
	promised int
}

// free reports whether all limits that cover an intent have a slot for it.
func (s *limitSet) free(i *supervisor.ActionIntent) bool {
	if s == nil {
		return true
	}
	for _, l := range s.limits {
		if l.Covers(i) && l.used+l.delta+l.promised >= l.Max {
			return false
		}
	}
	return true
}

// count counts slots that an intent takes, or frees where n is negative.
func (s *limitSet) count(i *supervisor.ActionIntent, n int) {
	if s == nil || n == 0 {
		return
	}
	for _, l := range s.limits {
		if l.Covers(i) {
			l.delta += n
		}
	}
}

// promise counts slots for an intent that is made due.
func (s *limitSet) promise(i *supervisor.ActionIntent) {
	for _, l := range s.limits {
		if l.Covers(i) {
			l.promised++
		}
	}
}

func (s *limitSet) read(c *cells) error {
	s.limits = append(s.limits, &slotLimit{
		IntentLimit: supervisor.IntentLimit{TenantID: c.text(), CapabilityID: c.text(), Max: int(c.int8())},
		used:        int(c.int8()),
	})
	return nil
}

// lockLimits locks the limits that cover some intents, nil for none.
func (q *Queue) lockLimits(ctx context.Context, tx *transaction, rows []*intentRow) (*limitSet, error) {
	if !slices.ContainsFunc(rows, func(x *intentRow) bool { return x.limited }) {
		return nil, nil
	}
	set := new(limitSet)
	q.addLimitsOf(tx, sqlLimits+sqlLock, rows, set.read)
	return set, tx.send(ctx)
}

// addLimitsOf adds a look at the limits that cover some intents to a transaction.
func (q *Queue) addLimitsOf(tx *transaction, sql string, rows []*intentRow, each func(*cells) error) {
	tenants, capabilities := make(map[string]bool), make(map[string]bool)
	for _, x := range rows {
		tenants[x.record.Intent.TenantID] = true
		capabilities[x.record.Intent.Capability.ID] = true
	}
	a := q.store.newArgs()
	defer q.store.free(a)
	for _, set := range []map[string]bool{tenants, capabilities} {
		a.array(pgtype.TextOID, len(set))
		for id := range set {
			a.text(id)
		}
	}
	tx.add(sql, a, each)
}

// addLimits adds the writing of what changed of limits to a transaction.
func (q *Queue) addLimits(tx *transaction, set *limitSet) {
	if set == nil {
		return
	}
	changed := slices.DeleteFunc(slices.Clone(set.limits), func(l *slotLimit) bool { return l.delta == 0 })
	if len(changed) == 0 {
		return
	}
	a := q.store.newArgs()
	defer q.store.free(a)
	a.array(pgtype.TextOID, len(changed))
	for _, l := range changed {
		a.text(l.TenantID)
	}
	a.array(pgtype.TextOID, len(changed))
	for _, l := range changed {
		a.text(l.CapabilityID)
	}
	a.array(pgtype.Int8OID, len(changed))
	for _, l := range changed {
		a.int8(int64(l.delta))
	}
	tx.add(sqlCountLimits, a, nil)
}

// unparkFreed makes as many parked intents due as slots came free, those parked
// longest first and only where all limits that cover one have room, and returns
// them to be written.
func (q *Queue) unparkFreed(ctx context.Context, tx *transaction, set *limitSet, decided []*intentRow) ([]*intentRow, error) {
	if set == nil {
		return nil, nil
	}
	freed := make(map[*slotLimit]int)
	var by []supervisor.IntentLimit
	most := 0
	for _, l := range set.limits {
		if l.delta < 0 {
			by = append(by, l.IntentLimit)
			freed[l] = -l.delta
			most += -l.delta
		}
	}
	if most == 0 {
		return nil, nil
	}
	parked, err := q.parked(ctx, tx, nil, by, false, most)
	if err != nil || len(parked) == 0 {
		return nil, err
	}
	// Limits that cover a parked intent, but none that was decided, are looked at
	// without a lock: their order is past. Whoever is parked by a mistake about
	// them is found by the next claim that has room.
	others := new(limitSet)
	q.addLimitsOf(tx, sqlLimits, parked, others.read)
	if err := tx.send(ctx); err != nil {
		return nil, err
	}
	for _, l := range others.limits {
		if !slices.ContainsFunc(set.limits, func(k *slotLimit) bool { return k.IntentLimit == l.IntentLimit }) {
			set.limits = append(set.limits, l)
		}
	}
	keys := make(map[supervisor.IntentKey]bool, len(decided))
	for _, x := range decided {
		keys[x.record.Key()] = true
	}
	var unparked []*intentRow
	for _, x := range parked {
		i := &x.record.Intent
		if keys[x.record.Key()] || !set.free(i) {
			continue
		}
		due := false
		for l, n := range freed {
			if n > 0 && l.Covers(i) {
				freed[l], due = n-1, true
			}
		}
		if due {
			x.unpark(set)
			unparked = append(unparked, x)
		}
	}
	return unparked, nil
}

// unpark makes a parked intent due, which is to have a slot.
func (x *intentRow) unpark(set *limitSet) {
	_ = x.apply(func(r *supervisor.IntentRecord) (bool, error) {
		r.Unpark(x.now)
		return false, nil
	})
	set.promise(&x.record.Intent)
}

// parked locks and reads intents of some capabilities (none: all) that are parked
// by a limit and covered by one of some limits (none: by any), those parked longest
// first, up to most of each tenant and capability; with room only where all limits
// that cover them have room, as far as the database knows. Those that somebody
// else has locked are left: whoever it is decides about them.
func (q *Queue) parked(ctx context.Context, tx *transaction, pins []supervisor.CapabilityPin, by []supervisor.IntentLimit, room bool, most int) (parked []*intentRow, err error) {
	a := q.store.newArgs()
	defer q.store.free(a)
	a.pins(pins)
	if len(by) == 0 {
		a.null(pgtype.TextArrayOID)
		a.null(pgtype.TextArrayOID)
	} else {
		a.array(pgtype.TextOID, len(by))
		for n := range by {
			a.text(by[n].TenantID)
		}
		a.array(pgtype.TextOID, len(by))
		for n := range by {
			a.text(by[n].CapabilityID)
		}
	}
	a.bool(room)
	a.int4(min(most, math.MaxInt32))
	tx.add(sqlParkedIntents, a, func(c *cells) error {
		x := new(intentRow)
		if x.broken = x.scan(c); x.broken == nil {
			parked = append(parked, x)
		}
		return nil
	})
	return parked, tx.send(ctx)
}

// LimitIntents implements [supervisor.IntentOperator]. Nothing is marked or
// settled while it counts what is in flight.
func (q *Queue) LimitIntents(ctx context.Context, limit supervisor.IntentLimit) error {
	if err := q.ready(ctx); err != nil {
		return err
	}
	if err := limit.Validate(); err != nil {
		return err
	}
	var after func()
	err := q.store.transact(ctx, q.pool, func(tx *transaction) error {
		a := q.store.newArgs()
		defer q.store.free(a)
		a.int8(q.barrierKey())
		tx.add(sqlBarrier, a, nil)
		a.reset()
		a.text(limit.TenantID)
		a.text(limit.CapabilityID)
		a.int8(int64(limit.Max))
		tx.add(sqlSetLimit, a, nil)
		parked, err := q.parked(ctx, tx, nil, []supervisor.IntentLimit{limit}, true, math.MaxInt32)
		if err != nil {
			return err
		}
		set := new(limitSet)
		q.addLimitsOf(tx, sqlLimits, parked, set.read)
		if err := tx.send(ctx); err != nil {
			return err
		}
		var unparked []*intentRow
		for _, x := range parked {
			if limit.Covers(&x.record.Intent) && set.free(&x.record.Intent) {
				x.unpark(set)
				unparked = append(unparked, x)
			}
		}
		after, err = q.writeIntents(ctx, tx, unparked, nil)
		return err
	})
	if err == nil {
		after()
	}
	return q.wrap(ctx, "limit intents", err)
}
