package sqlitequeue

import (
	"context"
	"errors"
	"fmt"

	"github.com/workflow-supervisor/supervisor"
)

const renewIntent = `UPDATE supervisor_intents SET version = version + 1, lease_ends_at = ?1, due_at = ?1
	WHERE instance = (SELECT key FROM supervisor_instances WHERE tenant_id = ?2 AND id = ?3) AND id = ?4
	AND lease_version = ?5 AND lease_owner = ?6 AND lease_ends_at > ?7`

// RenewIntent implements [supervisor.IntentQueue].
func (q *Queue) RenewIntent(ctx context.Context, lease supervisor.IntentLease) error {
	if lease.Duration <= 0 {
		return fmt.Errorf("sqlitequeue: renew intent: Duration is %v, must be positive", lease.Duration)
	}
	var end instant
	err := q.update(ctx, "renew intent", change{run: func(t *transaction) error {
		now := t.now()
		end = now.after(lease.Duration)
		// As IntentRecord.Extend does it.
		renewed, err := t.session.exec(renewIntent, int64(end), lease.TenantID, lease.InstanceID, lease.IntentID,
			lease.Version, lease.WorkerID, int64(now))
		if err != nil {
			return err
		}
		if renewed == 0 {
			return intentRefusal("renew intent", &lease.IntentKey, supervisor.ErrLeaseLost)
		}
		if held := t.intents.held[lease.IntentKey]; held != nil {
			held.version++
			held.record.DueAt, held.record.LeaseEndsAt = end.time(), end.time()
		}
		return nil
	}})
	if err == nil && q.clock.now() >= end {
		// The disk took longer than the lease was to last.
		return intentRefusal("renew intent", &lease.IntentKey, supervisor.ErrLeaseLost)
	}
	return err
}

// MarkIntent implements [supervisor.IntentQueue].
func (q *Queue) MarkIntent(ctx context.Context, work *supervisor.IntentWork) (marked supervisor.IntentWork, err error) {
	err = q.changeIntent(ctx, "mark intent", work.Key(), supervisor.ErrLeaseLost, func(t *transaction, now instant) intentDecision {
		return func(next *supervisor.IntentRecord, slots *slots) (told bool, err error) {
			control, err := t.control(slots.intent)
			if err != nil {
				return false, err
			}
			told, err = next.Mark(work, &control, slots.free, now.time())
			marked = supervisor.IntentWork{IntentRecord: *next, Task: work.Task, ClaimedAt: work.ClaimedAt}
			return told, err
		}
	})
	if err != nil {
		return supervisor.IntentWork{}, err
	}
	marked.IntentRecord = marked.Clone()
	return marked, nil
}

// RecordReceipt implements [supervisor.IntentQueue].
func (q *Queue) RecordReceipt(ctx context.Context, work *supervisor.IntentWork, receipt supervisor.Receipt) error {
	return q.changeIntent(ctx, "record receipt", work.Key(), supervisor.ErrNotFound, func(_ *transaction, now instant) intentDecision {
		return func(next *supervisor.IntentRecord, _ *slots) (bool, error) {
			return next.Accept(work, receipt, now.time())
		}
	})
}

// SettleIntent implements [supervisor.IntentQueue].
func (q *Queue) SettleIntent(ctx context.Context, work *supervisor.IntentWork, settlement supervisor.Settlement) error {
	return q.changeIntent(ctx, "settle intent", work.Key(), supervisor.ErrLeaseLost, func(_ *transaction, now instant) intentDecision {
		return func(next *supervisor.IntentRecord, _ *slots) (bool, error) {
			return next.Settle(work, &settlement, now.time())
		}
	})
}

// ReleaseIntent implements [supervisor.IntentQueue].
func (q *Queue) ReleaseIntent(ctx context.Context, work *supervisor.IntentWork, release supervisor.IntentRelease) error {
	return q.changeIntent(ctx, "release intent", work.Key(), supervisor.ErrLeaseLost, func(_ *transaction, now instant) intentDecision {
		return func(next *supervisor.IntentRecord, _ *slots) (bool, error) {
			return next.Release(work, &release, now.time())
		}
	})
}

// changeIntent has the writer apply a decision to an intent. unknown is the
// error where there is no such intent.
func (q *Queue) changeIntent(ctx context.Context, what string, key supervisor.IntentKey, unknown error, decide func(t *transaction, now instant) intentDecision) error {
	return q.update(ctx, what, change{unknown: true, run: func(t *transaction) error {
		now := t.now()
		_, err := t.changeIntent(&key, now, decide(t, now))
		if errors.Is(err, supervisor.ErrNotFound) && t.session.err == nil {
			return intentRefusal(what, &key, unknown)
		}
		return err
	}})
}

const (
	selectControl = `SELECT instance_epoch, paused, status FROM supervisor_records WHERE key = ?`
)

// control reads what the control plane says of an intent.
func (t *transaction) control(e *intent) (control supervisor.IntentControl, err error) {
	tenant, err := t.tenant(e.record.Intent.TenantID)
	if err != nil {
		return control, err
	}
	control.Epochs.Tenant, control.Paused = tenant.epoch, tenant.paused
	rows, err := t.session.query(selectControl, e.instance)
	if err != nil {
		return control, err
	}
	if rows.next() {
		control.Epochs.Instance = rows.int(0)
		control.Paused = control.Paused || rows.int(1) != 0
		control.Finished = finished(rows.int(2))
	}
	if err := rows.close(); err != nil || e.record.Intent.ResourceScopeID == "" {
		return control, err
	}
	if rows, err = t.session.query(selectResource, e.tenant, e.record.Intent.ResourceScopeID); err != nil {
		return control, err
	}
	if rows.next() {
		control.Epochs.Resource = rows.int(0)
		control.Paused = control.Paused || rows.int(1) != 0
	}
	return control, rows.close()
}
