package pgqueue

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/workflow-supervisor/supervisor"
)

// change locks an instance, lets rule change its row and writes it back, unless
// rule says that nothing changed.
func (q *Queue) change(ctx context.Context, what, tenantID, instanceID string, rule func(tx *transaction, r *row) (changed bool, err error)) error {
	if err := q.ready(ctx); err != nil {
		return err
	}
	due, specID := false, ""
	err := q.store.transact(ctx, q.pool, func(tx *transaction) error {
		due = false
		r, err := q.load(ctx, tx, 0, storable(tenantID), storable(instanceID))
		if err != nil {
			return err
		}
		if r == nil {
			return about(what, tenantID, instanceID, supervisor.ErrNotFound)
		}
		changed, err := rule(tx, r)
		if err != nil || !changed {
			return err
		}
		specID = r.instance.SpecID
		due = r.record.Status == supervisor.StatusActive && r.pausedBy() == nil
		q.put(tx, r)
		return nil
	})
	if err == nil && due {
		q.announce(specID, time.Time{})
	}
	return q.wrapRule(ctx, what, err)
}

// pull makes a row due at an instant, unless it is due before, as its record
// allows; one that is no longer active is never due.
func (r *row) pull(at time.Time) {
	r.dueAt = r.record.NextDue(&r.instance.Lifecycle, earlier(r.dueAt, at), time.Time{})
}

// Cancel implements [supervisor.Instances].
func (q *Queue) Cancel(ctx context.Context, tenantID, instanceID string) error {
	return q.change(ctx, "cancel", tenantID, instanceID, func(_ *transaction, r *row) (changed bool, err error) {
		if r.record, changed = r.record.AfterCancel(r.now); !changed {
			return false, nil
		}
		r.epochs.Instance++
		r.pull(r.now)
		return true, nil
	})
}

// Retry implements [supervisor.Instances].
func (q *Queue) Retry(ctx context.Context, tenantID, instanceID string) error {
	return q.change(ctx, "retry", tenantID, instanceID, func(_ *transaction, r *row) (ok bool, err error) {
		if r.record, ok = r.record.AfterRetry(); !ok {
			return false, about("retry", tenantID, instanceID, supervisor.ErrStateConflict)
		}
		r.pull(r.now)
		return true, nil
	})
}

// Pause implements [supervisor.Instances]. When the pause of a tenant or a
// resource returns, every commit that did not see it has been applied.
func (q *Queue) Pause(ctx context.Context, scope supervisor.Scope) error {
	if err := q.ready(ctx); err != nil {
		return err
	}
	if err := scope.Validate(); err != nil {
		return err
	}
	switch {
	case scope.InstanceID != "":
		return q.change(ctx, "pause", scope.TenantID, scope.InstanceID, func(_ *transaction, r *row) (bool, error) {
			if r.paused {
				return false, nil
			}
			r.paused = true
			r.epochs.Instance++
			return true, nil
		})
	case scope.ResourceID != "":
		return q.setPause(ctx, "pause", scope, sqlPauseResource)
	}
	return q.setPause(ctx, "pause", scope, sqlPauseTenant)
}

const (
	sqlPauseTenant = `
UPDATE {{schema}}.tenant SET paused = true, epoch = epoch + 1 WHERE tenant_id = $1 AND NOT paused`

	sqlPauseResource = `
WITH tenant AS (
    SELECT t.tenant_no FROM {{schema}}.tenant t
    WHERE t.tenant_id = $1 AND NOT EXISTS (
        SELECT 1 FROM {{schema}}.resource r WHERE r.tenant_no = t.tenant_no AND r.resource_id = $2 AND r.paused)
    FOR NO KEY UPDATE
), raised AS (
    UPDATE {{schema}}.tenant t SET resource_epoch = t.resource_epoch + 1 FROM tenant WHERE t.tenant_no = tenant.tenant_no
    RETURNING t.tenant_no, t.resource_epoch
)
INSERT INTO {{schema}}.resource (tenant_no, resource_id, epoch, paused)
SELECT tenant_no, $2, resource_epoch, true FROM raised
ON CONFLICT (tenant_no, resource_id) DO UPDATE SET epoch = excluded.epoch, paused = true`

	sqlResumeTenant = `
UPDATE {{schema}}.tenant SET paused = false WHERE tenant_id = $1 AND paused`

	sqlResumeResource = `
UPDATE {{schema}}.resource r SET paused = false
FROM {{schema}}.tenant t WHERE t.tenant_id = $1 AND r.tenant_no = t.tenant_no AND r.resource_id = $2 AND r.paused`

	// sqlLockTenant makes the statement behind it see what another pause did.
	sqlLockTenant = `SELECT true FROM {{schema}}.tenant WHERE tenant_id = $1 FOR NO KEY UPDATE`

	// sqlBarrier waits for every transaction that holds the lock shared.
	sqlBarrier = `SELECT pg_advisory_xact_lock($1)`
)

// setPause runs the statement that pauses or resumes a tenant or a resource.
func (q *Queue) setPause(ctx context.Context, what string, scope supervisor.Scope, sql string) error {
	if err := q.tenant(ctx, q.pool, scope.TenantID); err != nil {
		return q.wrap(ctx, what, err)
	}
	a := q.store.newArgs()
	defer q.store.free(a)
	err := q.store.transact(ctx, q.pool, func(tx *transaction) error {
		a.reset()
		a.text(scope.TenantID)
		tx.add(sqlLockTenant, a, nil)
		if scope.ResourceID != "" {
			a.text(scope.ResourceID)
		}
		tx.add(sql, a, nil)
		return nil
	})
	if err == nil {
		err = q.store.transact(ctx, q.pool, func(tx *transaction) error {
			a.reset()
			a.int8(q.barrierKey())
			tx.add(sqlBarrier, a, nil)
			return nil
		})
	}
	return q.wrap(ctx, what, err)
}

// tenant adds a tenant where it is missing.
func (q *Queue) tenant(ctx context.Context, pool *pgxpool.Pool, tenantID string) error {
	a := q.store.newArgs()
	defer q.store.free(a)
	a.text(tenantID)
	return q.store.do(ctx, pool, q.store.statements.ensureTenant, a, nil)
}

const sqlFirstWakeup = `
SELECT min(w.due_at) FROM {{schema}}.wakeup w WHERE w.instance_no = $1 AND w.counted AND w.consumed_at IS NULL`

// Resume implements [supervisor.Instances].
func (q *Queue) Resume(ctx context.Context, scope supervisor.Scope) error {
	if err := q.ready(ctx); err != nil {
		return err
	}
	if err := scope.Validate(); err != nil {
		return err
	}
	switch {
	case scope.InstanceID != "":
		return q.change(ctx, "resume", scope.TenantID, scope.InstanceID, func(tx *transaction, r *row) (bool, error) {
			return q.resumeRow(ctx, tx, r)
		})
	case scope.ResourceID != "":
		return q.setPause(ctx, "resume", scope, sqlResumeResource)
	}
	if err := q.setPause(ctx, "resume", scope, sqlResumeTenant); err != nil {
		return err
	}
	q.announce("", time.Time{})
	return nil
}

// resumeRow ends the pause of an instance. One that backs off no longer holds
// its wakeups back until the retry time.
func (q *Queue) resumeRow(ctx context.Context, tx *transaction, r *row) (changed bool, err error) {
	changed, r.paused = r.paused, false
	record, lifted := r.record.AfterResume()
	if !lifted {
		return changed, nil
	}
	r.record = record
	var first time.Time
	a := q.store.newArgs()
	defer q.store.free(a)
	a.int8(r.no)
	tx.add(sqlFirstWakeup, a, func(c *cells) error {
		first = c.instant()
		return nil
	})
	if err := tx.send(ctx); err != nil {
		return false, err
	}
	if !first.IsZero() {
		r.pull(later(first, r.now))
	}
	return true, nil
}
