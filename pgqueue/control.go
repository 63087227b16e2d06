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
	intents := false
	err := q.change(ctx, "cancel", tenantID, instanceID, func(tx *transaction, r *row) (changed bool, err error) {
		if r.record, changed = r.record.AfterCancel(r.now); !changed {
			return false, nil
		}
		r.epochs.Instance++
		if intents, err = q.cancelIntents(ctx, tx, r); err != nil {
			return false, err
		}
		r.pull(r.now)
		return true, nil
	})
	if err == nil && intents {
		q.announceAnyIntent()
	}
	return err
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

// Pause implements [supervisor.Instances]. When it returns, every commit and every
// mark of an intent that did not see it has been applied.
func (q *Queue) Pause(ctx context.Context, scope supervisor.Scope) error {
	if err := q.ready(ctx); err != nil {
		return err
	}
	if err := scope.Validate(); err != nil {
		return err
	}
	switch {
	case scope.InstanceID != "":
		err := q.change(ctx, "pause", scope.TenantID, scope.InstanceID, func(_ *transaction, r *row) (bool, error) {
			if r.paused {
				return false, nil
			}
			r.paused = true
			r.epochs.Instance++
			return true, nil
		})
		if err != nil {
			return err
		}
		return q.wrap(ctx, "pause", q.passBarrier(ctx))
	case scope.ResourceID != "":
		return q.setPause(ctx, scope, sqlPauseResource)
	}
	return q.setPause(ctx, scope, sqlPauseTenant)
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
UPDATE {{schema}}.tenant SET paused = false WHERE tenant_id = $1 AND paused RETURNING true`

	sqlResumeResource = `
UPDATE {{schema}}.resource r SET paused = false
FROM {{schema}}.tenant t WHERE t.tenant_id = $1 AND r.tenant_no = t.tenant_no AND r.resource_id = $2 AND r.paused
RETURNING true`

	// sqlLockTenant makes the statement behind it see what another pause did.
	sqlLockTenant = `SELECT true FROM {{schema}}.tenant WHERE tenant_id = $1 FOR NO KEY UPDATE`

	// sqlBarrier waits for every transaction that holds the lock shared.
	sqlBarrier      = `SELECT pg_advisory_xact_lock($1)`
	sqlShareBarrier = `SELECT pg_advisory_xact_lock_shared($1)`
)

// setPause runs the statement that pauses a tenant or a resource.
func (q *Queue) setPause(ctx context.Context, scope supervisor.Scope, sql string) error {
	if err := q.tenant(ctx, q.pool, scope.TenantID); err != nil {
		return q.wrap(ctx, "pause", err)
	}
	err := q.store.transact(ctx, q.pool, func(tx *transaction) error {
		q.addPause(tx, scope, sql, nil)
		return nil
	})
	if err == nil {
		err = q.passBarrier(ctx)
	}
	return q.wrap(ctx, "pause", err)
}

// addPause adds a statement that pauses or resumes a tenant or a resource to a
// transaction.
func (q *Queue) addPause(tx *transaction, scope supervisor.Scope, sql string, each func(*cells) error) {
	a := q.store.newArgs()
	defer q.store.free(a)
	a.text(scope.TenantID)
	tx.add(sqlLockTenant, a, nil)
	if scope.ResourceID != "" {
		a.text(scope.ResourceID)
	}
	tx.add(sql, a, each)
}

// passBarrier waits for what relies on how things were before.
func (q *Queue) passBarrier(ctx context.Context) error {
	return q.store.transact(ctx, q.pool, func(tx *transaction) error {
		q.addBarrier(tx, sqlBarrier)
		return nil
	})
}

func (q *Queue) addBarrier(tx *transaction, sql string) {
	a := q.store.newArgs()
	defer q.store.free(a)
	a.int8(q.barrierKey())
	tx.add(sql, a, nil)
}

// endPause runs the statement that resumes a tenant or a resource, and makes its
// intents due. It keeps all away that decide about intents, so that none of them
// parks one for a pause that has just ended.
func (q *Queue) endPause(ctx context.Context, scope supervisor.Scope, sql string) error {
	err := q.store.transact(ctx, q.pool, func(tx *transaction) error {
		changed := false
		q.addBarrier(tx, sqlBarrier)
		q.addPause(tx, scope, sql, func(c *cells) error {
			changed = c.bool()
			return nil
		})
		if err := tx.send(ctx); err != nil || !changed {
			return err
		}
		q.unparkIntents(tx, 0, scope)
		return nil
	})
	if err != nil {
		return q.wrap(ctx, "resume", err)
	}
	q.announceAnyIntent()
	return nil
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
		err := q.change(ctx, "resume", scope.TenantID, scope.InstanceID, func(tx *transaction, r *row) (bool, error) {
			return q.resumeRow(ctx, tx, r)
		})
		if err == nil {
			q.announceAnyIntent()
		}
		return err
	case scope.ResourceID != "":
		return q.endPause(ctx, scope, sqlResumeResource)
	}
	if err := q.endPause(ctx, scope, sqlResumeTenant); err != nil {
		return err
	}
	q.announce("", time.Time{})
	return nil
}

// resumeRow ends the pause of an instance. One that backs off no longer holds
// its wakeups back until the retry time.
func (q *Queue) resumeRow(ctx context.Context, tx *transaction, r *row) (changed bool, err error) {
	changed, r.paused = r.paused, false
	if changed {
		q.unparkIntents(tx, r.no, supervisor.Scope{})
	}
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
