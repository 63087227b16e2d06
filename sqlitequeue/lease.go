package sqlitequeue

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

// Renew implements [supervisor.WorkQueue].
func (q *Queue) Renew(ctx context.Context, lease supervisor.Lease) error {
	if lease.Duration <= 0 {
		return fmt.Errorf("sqlitequeue: renew: Duration is %v, must be positive", lease.Duration)
	}
	id := instanceID{lease.TenantID, lease.InstanceID}
	var end instant
	err := q.update(ctx, "renew", change{run: func(t *transaction) error {
		now := t.now()
		end = now.after(lease.Duration)
		tenant, err := t.tenant(lease.TenantID)
		if err != nil {
			return err
		}
		_, err = t.change(id, now, func(e *entry, next *row) error {
			if e == nil || e.row.leaseVersion != lease.Version || e.row.workerID != lease.WorkerID || !e.row.leased(now) {
				return refusal("renew", id, supervisor.ErrLeaseLost)
			}
			if e.row.tenantEpoch != tenant.epoch || e.row.instanceEpoch != e.row.epoch {
				return refusal("renew", id, supervisor.ErrEpochStale)
			}
			next.endsAt = end
			next.place(now)
			return nil
		})
		return err
	}})
	if err == nil && q.clock.now() >= end {
		// The disk took longer than the lease was to last.
		return refusal("renew", id, supervisor.ErrLeaseLost)
	}
	return err
}

const keepReleaseReason = `INSERT INTO supervisor_texts (key, release_reason) VALUES (?1, ?2)
	ON CONFLICT (key) DO UPDATE SET release_reason = ?2`

// Release implements [supervisor.Releaser].
func (q *Queue) Release(ctx context.Context, item *supervisor.WorkItem, reason string) error {
	reason = cleanReason(item, reason)
	id := instanceID{item.TenantID, item.ID}
	return q.update(ctx, "release", change{run: func(t *transaction) error {
		now := t.now()
		e, err := t.change(id, now, func(e *entry, next *row) error {
			if e == nil || !e.row.held() || e.row.leaseVersion != item.LeaseVersion {
				return refusal("release", id, supervisor.ErrLeaseLost)
			}
			next.endLease()
			next.leaseVersion++
			next.beside = true
			next.place(now)
			return nil
		})
		if err != nil {
			return err
		}
		t.forget(id)
		_, err = t.session.exec(keepReleaseReason, e.row.key, reason)
		return err
	}})
}

// cleanReason makes a reason storable as the library does those of failures.
func cleanReason(item *supervisor.WorkItem, reason string) string {
	if strings.TrimSpace(reason) == "" {
		return ""
	}
	failed, _ := supervisor.FailureCommand(item, reason, time.Time{}).Disposition.(supervisor.Failed)
	return failed.Reason
}

// AdmitEvaluation asks [Options.Admit]. Its error is
// [supervisor.ErrNotAdmitted] whatever else it is, unless it is
// [supervisor.ErrUnavailable].
func (q *Queue) AdmitEvaluation(ctx context.Context, item *supervisor.WorkItem) error {
	if err := ctx.Err(); err != nil {
		return storeError("admit", context.Cause(ctx))
	}
	if q.options.Admit == nil {
		return nil
	}
	err := q.options.Admit(ctx, item)
	if err == nil || errors.Is(err, supervisor.ErrNotAdmitted) || errors.Is(err, supervisor.ErrUnavailable) {
		return err
	}
	return fmt.Errorf("%w: %w", supervisor.ErrNotAdmitted, err)
}
