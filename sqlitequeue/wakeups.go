package sqlitequeue

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"slices"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

// Deliver implements [supervisor.Instances].
func (q *Queue) Deliver(ctx context.Context, tenantID, instanceID string, wakeup supervisor.Wakeup, dueAt time.Time) error {
	d, err := newDelivery(tenantID, instanceID, &wakeup, dueAt)
	if err != nil {
		return err
	}
	return q.update(ctx, "deliver", change{run: d.run})
}

// DeliverTx is Deliver in a transaction of the caller's, which has to be as
// [Queue.StartTx] says.
func (q *Queue) DeliverTx(ctx context.Context, tx *sql.Tx, tenantID, instanceID string, wakeup supervisor.Wakeup, dueAt time.Time) error {
	d, err := newDelivery(tenantID, instanceID, &wakeup, dueAt)
	if err != nil {
		return err
	}
	return q.within(ctx, tx, "deliver", d.run)
}

// delivery is a wakeup on its way to an instance.
type delivery struct {
	id     instanceID
	wakeup *supervisor.Wakeup
	digest string
	dueAt  time.Time
}

func newDelivery(tenantID, instance string, wakeup *supervisor.Wakeup, dueAt time.Time) (*delivery, error) {
	if err := wakeup.Validate(); err != nil {
		return nil, err
	}
	if err := checkInstant("dueAt", dueAt); err != nil {
		return nil, err
	}
	return &delivery{id: instanceID{tenantID, instance}, wakeup: wakeup, digest: wakeup.Digest(), dueAt: dueAt}, nil
}

const (
	selectWakeup = `SELECT digest FROM supervisor_wakeups WHERE instance = ? AND id = ?`
	insertWakeup = `INSERT INTO supervisor_wakeups (instance, id, digest, kind, branch_id, payload, urgent, due_at)
		VALUES (?, ?, ?, ?, ?, CAST(? AS TEXT), ?, ?)`
)

// errKnown ends a delivery that was there before; it is no error of the caller's.
var errKnown = errors.New("known")

func (d *delivery) run(t *transaction) error {
	now := t.now()
	// A past due time is kept, for the order among wakeups.
	dueAt := instantOf(d.dueAt)
	if dueAt == never {
		dueAt = now
	}
	e, err := t.change(d.id, now, func(e *entry, next *row) error {
		if e == nil {
			return notFound(d.id)
		}
		if err := d.known(t, e); err != nil {
			return err
		}
		if e.row.status == statusCompleted || e.row.status == statusCancelled {
			return refusal("delivery to", d.id, supervisor.ErrFinished)
		}
		next.wakeups++
		record := e.row.record()
		due := instantOf(record.WakeupDue(&e.instance.Lifecycle, d.dueAt, now.time()))
		if due != never && due < next.dueAt {
			next.dueAt = due
			next.place(now)
		}
		return nil
	})
	if errors.Is(err, errKnown) {
		return nil
	}
	if err != nil {
		return err
	}
	e.outside = earlier(e.outside, dueAt)
	return t.insertWakeup(e.row.key, d.wakeup, d.digest, dueAt)
}

// known returns errKnown or a conflict where the instance has the wakeup's id.
func (d *delivery) known(t *transaction, e *entry) error {
	rows, err := t.session.query(selectWakeup, e.row.key, d.wakeup.ID)
	if err != nil {
		return err
	}
	known, digest := rows.next(), ""
	if known {
		digest = rows.string(0)
	}
	switch err := rows.close(); {
	case err != nil:
		return err
	case !known:
		return nil
	case digest == d.digest:
		return errKnown
	}
	return refusal("delivery to", d.id, &supervisor.DeliveryConflictError{Key: d.wakeup.ID, StoredDigest: digest, Digest: d.digest})
}

func (t *transaction) insertWakeup(instance int64, wakeup *supervisor.Wakeup, digest string, dueAt instant) error {
	_, err := t.session.exec(insertWakeup, instance, wakeup.ID, digest, wakeup.Kind, wakeup.BranchID, blob(wakeup.Payload),
		integer(urgent(wakeup.Kind)), int64(dueAt))
	return err
}

// urgent reports whether wakeups of a kind come before others where a claim
// cannot hold all of them.
func urgent(kind string) bool {
	switch kind {
	case "action", "child", "gate", supervisor.WakeupKindTimer:
		return true
	}
	return false
}

const (
	selectDueWakeups = `SELECT seq, due_at, octet_length(payload) FROM supervisor_wakeups
		WHERE instance = ? AND urgent = ? AND consumed_at IS NULL AND due_at <= ? ORDER BY due_at, seq LIMIT ?`
	claimWakeup = `UPDATE supervisor_wakeups SET claim = ? WHERE seq = ?
		RETURNING id, kind, branch_id, CAST(payload AS BLOB)`
	selectPendingWakeup = `SELECT seq FROM supervisor_wakeups WHERE instance = ? AND id = ? AND consumed_at IS NULL`
	consumeWakeup       = `UPDATE supervisor_wakeups SET consumed_at = ?, kind = NULL, branch_id = NULL, payload = NULL WHERE seq = ?`
)

// dueWakeup is a pending wakeup that a claim may contain.
type dueWakeup struct {
	seq   int64
	dueAt instant
	bytes int64
}

// capture stores the wakeups that an acquisition has raised, and returns those
// that it contains, marked with its lease version.
func (t *transaction) capture(e *entry, raised []supervisor.RaisedWakeup, now instant) ([]supervisor.Wakeup, error) {
	for n := range raised {
		wakeup := &raised[n].Wakeup
		if err := t.insertWakeup(e.row.key, wakeup, wakeup.Digest(), instantOf(raised[n].DueAt)); err != nil {
			return nil, err
		}
	}
	e.outside = never
	if e.row.wakeups == 0 {
		return nil, nil
	}
	contained, err := t.dueWakeups(e.row.key, now)
	if err != nil {
		return nil, err
	}
	wakeups := make([]supervisor.Wakeup, 0, len(contained))
	for _, due := range contained {
		rows, err := t.session.query(claimWakeup, e.row.leaseVersion, due.seq)
		if err != nil {
			return nil, err
		}
		if rows.next() {
			wakeups = append(wakeups, supervisor.Wakeup{
				ID: rows.string(0), Kind: rows.string(1), BranchID: rows.string(2), Payload: rows.bytes(3),
			})
		}
		if err := rows.close(); err != nil {
			return nil, err
		}
	}
	if e.row.wakeups > int64(len(contained)) {
		if e.outside, err = t.outside(&e.row); err != nil {
			return nil, err
		}
	}
	if len(wakeups) == 0 {
		return nil, nil
	}
	return wakeups, nil
}

// dueWakeups returns the pending wakeups that a claim at now contains, those
// that are due first at the beginning.
func (t *transaction) dueWakeups(instance int64, now instant) ([]dueWakeup, error) {
	var found [2][]dueWakeup
	for n := range found {
		rows, err := t.session.query(selectDueWakeups, instance, int64(1-n), int64(now), int64(supervisor.MaxClaimWakeups+1))
		if err != nil {
			return nil, err
		}
		for rows.next() {
			due := dueWakeup{seq: rows.int(0), dueAt: rows.instant(1)}
			if rows.values[2] != nil {
				due.bytes = rows.int(2)
			}
			found[n] = append(found[n], due)
		}
		if err := rows.close(); err != nil {
			return nil, err
		}
	}
	contained := fitting(slices.Concat(found[0], found[1]))
	slices.SortFunc(contained, func(a, b dueWakeup) int {
		return cmp.Or(cmp.Compare(a.dueAt, b.dueAt), cmp.Compare(a.seq, b.seq))
	})
	return contained, nil
}

// fitting returns as many wakeups as a claim holds. The first that does not fit
// ends it, so that nothing overtakes that; one beyond the bound goes alone.
func fitting(due []dueWakeup) []dueWakeup {
	bytes := int64(0)
	for n := range due {
		bytes += due[n].bytes
		if n == supervisor.MaxClaimWakeups || (n > 0 && bytes > supervisor.MaxClaimWakeupBytes) {
			return due[:n]
		}
	}
	return due
}

// pendingWakeups returns the wakeups with these ids that were not consumed.
func (t *transaction) pendingWakeups(instance int64, ids []string) (pending []int64, err error) {
	for _, id := range ids {
		seq, err := t.session.queryInt(selectPendingWakeup, instance, id)
		if err != nil {
			return nil, err
		}
		if seq != 0 {
			pending = append(pending, seq)
		}
	}
	return pending, nil
}

func (t *transaction) consume(wakeups []int64, now instant) error {
	for _, seq := range wakeups {
		if _, err := t.session.exec(consumeWakeup, int64(now), seq); err != nil {
			return err
		}
	}
	return nil
}
