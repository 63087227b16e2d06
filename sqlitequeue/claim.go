package sqlitequeue

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

// setAsideDelay is how long an instance whose row cannot be decoded is left
// alone before it is tried again.
const setAsideDelay = 5 * time.Minute

// maxReap bounds the ended leases that one claim makes claimable.
const maxReap = 1000

// ClaimDue implements [supervisor.WorkQueue].
func (q *Queue) ClaimDue(ctx context.Context, req supervisor.ClaimRequest) (items []supervisor.WorkItem, err error) {
	if err := req.Validate(); err != nil {
		return nil, err
	}
	claim := claim{req: &req}
	err = q.update(ctx, "claim", change{last: true, run: func(t *transaction) (err error) {
		items, err = claim.run(t)
		return err
	}})
	if err != nil {
		return nil, err
	}
	q.news.seen(req.SpecIDs, claim.now)
	return items, nil
}

// claim is one claim of due instances.
type claim struct {
	req *supervisor.ClaimRequest
	now instant
	// turn is the last turn that a tenant had.
	turn int64
}

// claimTenant is a tenant that takes part in the turns of a claim.
type claimTenant struct {
	key   int64
	turn  int64
	lanes []*claimLane
	// served is the turn in which this claim served it last; 0 for none.
	served int64
}

// claimLane is a lane that may have something due.
type claimLane struct {
	key     int64
	readyAt instant
	// found are due records that were not taken yet, in order; exhausted: there
	// are no others.
	found     []claimRecord
	exhausted bool
	last      claimRecord
}

type claimRecord struct {
	readyAt instant
	key     int64
}

const (
	reapLeases = `UPDATE supervisor_records SET version = version + 1,
		reap_at = CASE WHEN lease_ends_at > ?1 THEN lease_ends_at END,
		ready_at = CASE WHEN lease_ends_at <= ?1 AND paused = 0 AND status = 0 THEN due_at END
		WHERE key IN (SELECT key FROM supervisor_records WHERE reap_at <= ?1 ORDER BY reap_at LIMIT ?2)
		RETURNING lane, ready_at`
	selectDueLanes = `SELECT l.key, l.ready_at, l.spec_id, n.key, n.turn
		FROM supervisor_lanes l CROSS JOIN supervisor_tenants n ON n.key = l.tenant
		WHERE l.ready_at <= ? AND n.paused = 0`
	selectDue = `SELECT ready_at, key FROM supervisor_records
		WHERE lane = ? AND ready_at <= ? AND (ready_at, key) > (?, ?) ORDER BY ready_at, key LIMIT ?`
	selectLastTurn = `SELECT max(turn) FROM supervisor_tenants`
	updateTurn     = `UPDATE supervisor_tenants SET turn = ? WHERE key = ?`
	correctLane    = `UPDATE supervisor_lanes SET ready_at =
		(SELECT ready_at FROM supervisor_records WHERE lane = ?1 AND ready_at IS NOT NULL ORDER BY ready_at LIMIT 1)
		WHERE key = ?1`
)

func (c *claim) run(t *transaction) ([]supervisor.WorkItem, error) {
	c.now = t.now()
	if err := c.reap(t); err != nil {
		return nil, err
	}
	if err := t.flush(); err != nil {
		return nil, err
	}
	tenants, err := c.dueTenants(t)
	if err != nil || len(tenants) == 0 {
		return nil, err
	}
	if c.turn, err = t.session.queryInt(selectLastTurn); err != nil {
		return nil, err
	}
	keys, err := c.choose(t, tenants)
	if err != nil {
		return nil, err
	}
	items, err := c.acquire(t, keys)
	if err != nil {
		return nil, err
	}
	return items, c.settle(t, tenants)
}

// reap makes instances claimable again whose lease has ended, due as they were.
func (c *claim) reap(t *transaction) error {
	rows, err := t.session.query(reapLeases, int64(c.now), int64(maxReap))
	if err != nil {
		return err
	}
	for rows.next() {
		if readyAt := rows.instant(1); readyAt != never {
			t.pullLane(rows.int(0), readyAt, c.now)
		}
	}
	return rows.close()
}

// dueTenants returns the tenants that may have something due of the wanted
// specs, the least recently served first.
func (c *claim) dueTenants(t *transaction) ([]*claimTenant, error) {
	rows, err := t.session.query(selectDueLanes, int64(c.now))
	if err != nil {
		return nil, err
	}
	var tenants []*claimTenant
	known := make(map[int64]*claimTenant)
	for rows.next() {
		if len(c.req.SpecIDs) > 0 && !slices.Contains(c.req.SpecIDs, rows.string(2)) {
			continue
		}
		key := rows.int(3)
		tenant := known[key]
		if tenant == nil {
			tenant = &claimTenant{key: key, turn: rows.int(4)}
			known[key] = tenant
			tenants = append(tenants, tenant)
		}
		tenant.lanes = append(tenant.lanes, &claimLane{
			key: rows.int(0), readyAt: rows.instant(1), last: claimRecord{readyAt: never, key: -1},
		})
	}
	if err := rows.close(); err != nil {
		return nil, err
	}
	slices.SortFunc(tenants, func(a, b *claimTenant) int {
		return cmp.Or(cmp.Compare(a.turn, b.turn), cmp.Compare(a.lanes[0].readyAt, b.lanes[0].readyAt), cmp.Compare(a.key, b.key))
	})
	return tenants, nil
}

// choose picks due records: one of each tenant, round after round.
func (c *claim) choose(t *transaction, tenants []*claimTenant) (keys []int64, err error) {
	left := slices.Clone(tenants)
	page := (c.req.Limit + len(tenants) - 1) / len(tenants)
	for len(left) > 0 && len(keys) < c.req.Limit {
		round := left
		left = left[:0]
		for _, tenant := range round {
			if len(keys) == c.req.Limit {
				break
			}
			key, found, err := tenant.next(t, c.now, page)
			if err != nil {
				return nil, err
			}
			if found {
				c.turn++
				tenant.served = c.turn
				keys = append(keys, key)
				left = append(left, tenant)
			}
		}
	}
	return keys, nil
}

// next takes the due record of a tenant that was due first.
func (t *claimTenant) next(tx *transaction, now instant, page int) (key int64, found bool, err error) {
	var first *claimLane
	for _, lane := range t.lanes {
		if len(lane.found) == 0 && !lane.exhausted {
			if err := lane.read(tx, now, page); err != nil {
				return 0, false, err
			}
		}
		if len(lane.found) > 0 && (first == nil || lane.found[0].before(first.found[0])) {
			first = lane
		}
	}
	if first == nil {
		return 0, false, nil
	}
	key = first.found[0].key
	first.found = first.found[1:]
	return key, true, nil
}

func (r claimRecord) before(other claimRecord) bool {
	return r.readyAt < other.readyAt || (r.readyAt == other.readyAt && r.key < other.key)
}

// read reads the next due records of a lane.
func (l *claimLane) read(t *transaction, now instant, page int) error {
	rows, err := t.session.query(selectDue, l.key, int64(now), int64(l.last.readyAt), l.last.key, int64(page))
	if err != nil {
		return err
	}
	for rows.next() {
		l.last = claimRecord{readyAt: rows.instant(0), key: rows.int(1)}
		l.found = append(l.found, l.last)
	}
	l.exhausted = len(l.found) < page
	return rows.close()
}

// settle writes down who was served, and what is left in the lanes that were
// looked through to their end.
func (c *claim) settle(t *transaction, tenants []*claimTenant) error {
	// What the claim itself made claimable in its lanes comes first, lest it is
	// overwritten.
	if err := t.flush(); err != nil {
		return err
	}
	for _, tenant := range tenants {
		if tenant.served > 0 {
			if _, err := t.session.exec(updateTurn, tenant.served, tenant.key); err != nil {
				return err
			}
		}
		for _, lane := range tenant.lanes {
			if !lane.exhausted {
				continue
			}
			if _, err := t.session.exec(correctLane, lane.key); err != nil {
				return err
			}
		}
	}
	return nil
}

const (
	selectChosen = `SELECT ` + recordColumns + `, ` + instanceColumns + `, CAST(coalesce(r.state, s.state) AS BLOB),
		s.release_reason IS NOT NULL OR s.set_aside_reason IS NOT NULL
		FROM json_each(?) j
		CROSS JOIN supervisor_records r ON r.key = j.value
		CROSS JOIN supervisor_instances i ON i.key = r.key
		LEFT JOIN supervisor_texts s ON s.key = r.key ORDER BY j.key`
	clearReasons = `UPDATE supervisor_texts SET release_reason = NULL, set_aside_reason = NULL WHERE key = ?`
	setAside     = `UPDATE supervisor_records SET version = version + 1, ready_at = ?1, set_aside_until = ?1, beside = 1 WHERE key = ?2`
	keepReason   = `INSERT INTO supervisor_texts (key, set_aside_reason) VALUES (?1, ?2)
		ON CONFLICT (key) DO UPDATE SET set_aside_reason = ?2`
)

// claimed is an instance that a claim has chosen.
type claimed struct {
	entry   *entry
	state   json.RawMessage
	reasons bool
	// malformed: the row cannot be decoded.
	malformed error
}

// acquire leases the chosen records and returns them as they are claimed.
func (c *claim) acquire(t *transaction, keys []int64) ([]supervisor.WorkItem, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	chosen, err := readChosen(t, keys)
	if err != nil {
		return nil, err
	}
	items := make([]supervisor.WorkItem, 0, len(chosen))
	for n := range chosen {
		e := chosen[n].entry
		if chosen[n].malformed != nil {
			if err := c.setAside(t, e.row.key, chosen[n].malformed); err != nil {
				return nil, err
			}
			continue
		}
		tenant, err := t.tenant(e.instance.TenantID)
		if err != nil {
			return nil, err
		}
		next := e.row
		next.setAsideUntil = never
		next.workerID = c.req.WorkerID
		raised := next.acquire(e.instance, tenant, c.req.LeaseDuration, c.now)
		cancelled := next.epoch != e.row.epoch
		if stored, err := t.store(&e.row, &next, c.now); err != nil || !stored {
			return nil, t.unexpected(err, "a record changed while it was claimed")
		}
		e.row = next
		if cancelled {
			if err := t.cancelIntents(e, c.now); err != nil {
				return nil, err
			}
		}
		if chosen[n].reasons {
			if _, err := t.session.exec(clearReasons, next.key); err != nil {
				return nil, err
			}
		}
		wakeups, err := t.capture(e, raised, c.now)
		if err != nil {
			return nil, err
		}
		items = append(items, e.item(tenant, chosen[n].state, wakeups))
		t.remember(e)
	}
	return items, nil
}

func readChosen(t *transaction, keys []int64) ([]claimed, error) {
	list, err := json.Marshal(keys)
	if err != nil {
		return nil, err
	}
	rows, err := t.session.query(selectChosen, string(list))
	if err != nil {
		return nil, err
	}
	chosen := make([]claimed, 0, len(keys))
	for rows.next() {
		c := claimed{entry: &entry{outside: never}}
		c.entry.row.scan(rows)
		c.entry.instance, c.malformed = scanInstance(rows, recordWidth)
		c.state = rows.bytes(recordWidth + instanceWidth)
		c.reasons = rows.int(recordWidth+instanceWidth+1) != 0
		if c.malformed == nil {
			c.malformed = rows.malformed
		}
		chosen = append(chosen, c)
	}
	return chosen, rows.close()
}

// setAside leaves an instance alone for a while whose row cannot be decoded.
func (c *claim) setAside(t *transaction, key int64, malformed error) error {
	until := c.now + instant(setAsideDelay/time.Microsecond)
	if _, err := t.session.exec(setAside, int64(until), key); err != nil {
		return err
	}
	_, err := t.session.exec(keepReason, key, fmt.Sprintf("%v: %v", errMalformed, malformed))
	return err
}

// acquire leases the row, as its holder's next lease version, and raises the
// lifecycle timers that have passed; it returns their wakeups.
func (r *row) acquire(instance *supervisor.Instance, tenant *tenant, duration time.Duration, now instant) []supervisor.RaisedWakeup {
	var raised []supervisor.RaisedWakeup
	if instance.Lifecycle != (supervisor.LifecyclePolicy{}) {
		record, wakeups, cancel := instance.Lifecycle.RaiseTimers(r.record(), now.time())
		r.setRecord(&record)
		raised = wakeups
		r.wakeups += int64(len(raised))
		if cancel {
			r.epoch++
		}
	}
	r.leaseVersion++
	r.lease = lease{
		leaseVersion:  r.leaseVersion,
		endsAt:        now.after(duration),
		tenantEpoch:   tenant.epoch,
		instanceEpoch: r.epoch,
		claimedAt:     now,
	}
	r.place(now)
	return raised
}

// item is the claimed instance in memory of the caller's.
func (e *entry) item(tenant *tenant, state json.RawMessage, wakeups []supervisor.Wakeup) supervisor.WorkItem {
	r := &e.row
	shared := supervisor.WorkItem{
		Instance:    *e.instance,
		ScheduledAt: r.dueAt.time(),
		CreatedAt:   r.createdAt.time(),
		ClaimedAt:   r.claimedAt.time(),
		State:       state,
		ControlEpochs: supervisor.ControlEpochs{
			Tenant: r.tenantEpoch, Instance: r.instanceEpoch, Resource: tenant.resourceEpoch,
		},
		StateVersion:    r.stateVersion,
		CancelRequested: r.cancelRequested,
		LeaseVersion:    r.leaseVersion,
		Attempt:         int(r.attempt),
	}
	if state == nil {
		shared.State = e.instance.Config
	}
	item := shared.Clone()
	item.Wakeups = wakeups
	return item
}
