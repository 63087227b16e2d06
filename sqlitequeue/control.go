package sqlitequeue

import (
	"context"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

// Cancel implements [supervisor.Instances].
func (q *Queue) Cancel(ctx context.Context, tenantID, instanceID string) error {
	var cancelled bool
	return q.control(ctx, "cancel", tenantID, instanceID, func(t *transaction, e *entry, next *row, now instant) error {
		var record supervisor.Record
		if record, cancelled = e.row.record().AfterCancel(now.time()); !cancelled {
			return nil
		}
		next.setRecord(&record)
		next.epoch++
		next.pull(e.instance, now, now)
		return nil
	}, func(t *transaction, e *entry, now instant) error {
		if !cancelled {
			return nil
		}
		return t.cancelIntents(e, now)
	})
}

// Retry implements [supervisor.Instances].
func (q *Queue) Retry(ctx context.Context, tenantID, instanceID string) error {
	return q.control(ctx, "retry", tenantID, instanceID, func(t *transaction, e *entry, next *row, now instant) error {
		record, ok := e.row.record().AfterRetry()
		if !ok {
			return refusal("retry of", e.id(), supervisor.ErrStateConflict)
		}
		next.setRecord(&record)
		next.pull(e.instance, now, now)
		return nil
	}, nil)
}

// control changes one instance, and then what goes with it.
func (q *Queue) control(ctx context.Context, what, tenantID, instance string,
	decide func(t *transaction, e *entry, next *row, now instant) error, then func(t *transaction, e *entry, now instant) error,
) error {
	id := instanceID{tenantID, instance}
	return q.update(ctx, what, change{run: func(t *transaction) error {
		now := t.now()
		e, err := t.change(id, now, func(e *entry, next *row) error {
			if e == nil {
				return notFound(id)
			}
			return decide(t, e, next, now)
		})
		if err != nil || then == nil {
			return err
		}
		return then(t, e, now)
	}})
}

func (e *entry) id() instanceID { return instanceID{e.instance.TenantID, e.instance.ID} }

// pull brings the due time forward to an instant (never: none), as far as the
// rules allow; past instants mean now. What is not active is never due.
func (r *row) pull(instance *supervisor.Instance, at, now instant) {
	record := r.record()
	due := instantOf(record.NextDue(&instance.Lifecycle, earlier(r.dueAt, at).time(), time.Time{}))
	if due != never {
		due = later(due, earlier(r.dueAt, now))
	}
	r.dueAt = due
	r.place(now)
}

const (
	pauseTenant   = `UPDATE supervisor_tenants SET paused = 1, epoch = epoch + 1 WHERE key = ? AND paused = 0`
	resumeTenant  = `UPDATE supervisor_tenants SET paused = 0 WHERE tenant_id = ? AND paused = 1`
	raiseResource = `UPDATE supervisor_tenants SET resource_epoch = resource_epoch + 1 WHERE key = ?`
	pauseResource = `INSERT INTO supervisor_resources (tenant, resource_id, epoch, paused) VALUES (?1, ?2, ?3, 1)
		ON CONFLICT (tenant, resource_id) DO UPDATE SET epoch = ?3, paused = 1`
	resourcePaused = `SELECT paused FROM supervisor_resources WHERE tenant = ? AND resource_id = ?`
	resumeResource = `UPDATE supervisor_resources SET paused = 0 WHERE tenant = ? AND resource_id = ? AND paused = 1`
	tenantLanes    = `SELECT key, ready_at FROM supervisor_lanes WHERE tenant = ? AND ready_at IS NOT NULL`
)

// Pause implements [supervisor.Instances].
func (q *Queue) Pause(ctx context.Context, scope supervisor.Scope) error {
	if err := scope.Validate(); err != nil {
		return err
	}
	if scope.InstanceID != "" {
		return q.control(ctx, "pause", scope.TenantID, scope.InstanceID, func(_ *transaction, e *entry, next *row, now instant) error {
			if !e.row.paused {
				next.paused = true
				next.epoch++
				next.place(now)
			}
			return nil
		}, nil)
	}
	return q.update(ctx, "pause", change{run: func(t *transaction) error {
		tenant, err := t.makeTenant(scope.TenantID)
		if err != nil {
			return err
		}
		if scope.ResourceID == "" {
			_, err = t.session.exec(pauseTenant, tenant.key)
		} else {
			err = t.pauseResource(tenant, scope.ResourceID)
		}
		// Read again by whoever comes next in this transaction.
		delete(t.tenants, scope.TenantID)
		return err
	}})
}

func (t *transaction) pauseResource(tenant *tenant, id string) error {
	paused, err := t.session.queryInt(resourcePaused, tenant.key, id)
	if err != nil || paused != 0 {
		return err
	}
	if _, err := t.session.exec(raiseResource, tenant.key); err != nil {
		return err
	}
	_, err = t.session.exec(pauseResource, tenant.key, id, tenant.resourceEpoch+1)
	return err
}

// Resume implements [supervisor.Instances].
func (q *Queue) Resume(ctx context.Context, scope supervisor.Scope) error {
	if err := scope.Validate(); err != nil {
		return err
	}
	if scope.InstanceID != "" {
		var paused bool
		return q.control(ctx, "resume", scope.TenantID, scope.InstanceID, func(t *transaction, e *entry, next *row, now instant) error {
			paused = e.row.paused
			return t.resume(e, next, now)
		}, func(t *transaction, e *entry, now instant) error {
			if !paused {
				return nil
			}
			return t.resumeIntents(now, resumeIdleInstance, e.row.key)
		})
	}
	return q.update(ctx, "resume", change{run: func(t *transaction) error {
		tenant, err := t.tenant(scope.TenantID)
		if err != nil || tenant == nil {
			return err
		}
		if scope.ResourceID != "" {
			resumed, err := t.session.exec(resumeResource, tenant.key, scope.ResourceID)
			if err != nil || resumed == 0 {
				return err
			}
			return t.resumeIntents(t.now(), resumeIdleResource, tenant.key, scope.ResourceID)
		}
		delete(t.tenants, scope.TenantID)
		resumed, err := t.session.exec(resumeTenant, scope.TenantID)
		if err != nil || resumed == 0 {
			return err
		}
		if err := t.resumeIntents(t.now(), resumeIdleTenant, tenant.key); err != nil {
			return err
		}
		return t.announceLanes(tenant.key)
	}})
}

// announceLanes tells waiters of what a tenant has due.
func (t *transaction) announceLanes(tenant int64) error {
	now := t.now()
	rows, err := t.session.query(tenantLanes, tenant)
	if err != nil {
		return err
	}
	for rows.next() {
		t.pullLane(rows.int(0), rows.instant(1), now)
	}
	return rows.close()
}

const selectFirstPending = `SELECT min(due_at) FROM supervisor_wakeups WHERE instance = ? AND consumed_at IS NULL`

// resume ends the pause of an instance. One that backs off no longer holds its
// wakeups back until the retry time.
func (t *transaction) resume(e *entry, next *row, now instant) error {
	next.paused = false
	record := e.row.record()
	if _, lifted := record.AfterResume(); !lifted {
		next.place(now)
		return nil
	}
	next.retryAt = never
	first := never
	if e.row.wakeups > 0 {
		var err error
		if first, err = t.session.queryInstant(selectFirstPending, e.row.key); err != nil {
			return err
		}
	}
	next.pull(e.instance, first, now)
	return nil
}
