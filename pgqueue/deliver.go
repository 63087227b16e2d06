package pgqueue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

const (
	sqlKnownWakeup = `
SELECT w.digest FROM {{schema}}.wakeup w
JOIN {{schema}}.instance i ON i.instance_no = w.instance_no
WHERE i.tenant_id = $1 AND i.id = $2 AND w.id = $3`

	sqlAddWakeup = `
INSERT INTO {{schema}}.wakeup (instance_no, id, due_at, counted, kind, branch_id, digest, payload)
VALUES ($1, $2, $3, true, $4, $5, $6, $7)
ON CONFLICT (instance_no, id) DO NOTHING
RETURNING true`

	sqlInbox = `
SELECT DISTINCT b.instance_no FROM (
    SELECT w.instance_no FROM {{schema}}.wakeup w WHERE NOT w.counted ORDER BY w.arrival LIMIT $1
) b`

	sqlCountWakeups = `
UPDATE {{schema}}.wakeup SET counted = true WHERE instance_no = $1 AND NOT counted RETURNING due_at`

	// Of an instance that Prune removed while the delivery was on its way.
	sqlDropWakeups = `
DELETE FROM {{schema}}.wakeup WHERE instance_no = $1 AND NOT EXISTS (SELECT FROM {{schema}}.run r WHERE r.instance_no = $1)`
)

// errRaced ends a transaction that another one has overtaken; it is repeated.
var errRaced = errors.New("pgqueue: overtaken by another transaction")

// Deliver implements [supervisor.Instances].
func (q *Queue) Deliver(ctx context.Context, tenantID, instanceID string, wakeup supervisor.Wakeup, dueAt time.Time) error {
	if err := q.checkDelivery(ctx, &wakeup, dueAt); err != nil {
		return err
	}
	digest := wakeup.Digest()
	var due time.Time
	var specID string
	var now time.Time
	deliver := func(tx *transaction) error {
		due = time.Time{}
		a := q.store.newArgs()
		defer q.store.free(a)
		a.text(tenantID)
		a.text(instanceID)
		a.text(wakeup.ID)
		known := ""
		tx.add(sqlKnownWakeup, a, func(c *cells) error {
			known = c.text()
			return nil
		})
		r, err := q.load(ctx, tx, 0, tenantID, instanceID)
		if err != nil {
			return err
		}
		switch {
		case r == nil:
			return about("deliver to", tenantID, instanceID, supervisor.ErrNotFound)
		case known == digest:
			return nil
		case known != "":
			return deliveryConflict(tenantID, instanceID, wakeup.ID, known, digest)
		case r.record.Status == supervisor.StatusCompleted || r.record.Status == supervisor.StatusCancelled:
			return about("deliver to", tenantID, instanceID, supervisor.ErrFinished)
		}
		now = r.now
		at := dueAt
		if at.IsZero() {
			at = r.now
		}
		stored := false
		q.addWakeup(tx, r.no, &wakeup, digest, at, func(c *cells) error {
			stored = c.bool()
			return nil
		})
		due, specID = r.arrived(at), r.instance.SpecID
		q.put(tx, r)
		// The commit goes with a statement that may turn out to be in vain.
		if err := tx.send(ctx); err != nil {
			return err
		}
		if !stored {
			return errRaced
		}
		return nil
	}
	err := q.store.transact(ctx, q.pool, deliver)
	for errors.Is(err, errRaced) && ctx.Err() == nil {
		err = q.store.transact(ctx, q.pool, deliver)
	}
	if err == nil && !due.IsZero() {
		q.announceCommit(specID, due, now)
	}
	return q.wrapRule(ctx, "deliver", err)
}

func (q *Queue) checkDelivery(ctx context.Context, wakeup *supervisor.Wakeup, dueAt time.Time) error {
	if err := q.ready(ctx); err != nil {
		return err
	}
	if err := wakeup.Validate(); err != nil {
		return err
	}
	if err := checkInstant("dueAt", dueAt); err != nil {
		return fmt.Errorf("pgqueue: deliver: %w", err)
	}
	return nil
}

func deliveryConflict(tenantID, instanceID, id, stored, digest string) error {
	return about("deliver to", tenantID, instanceID, &supervisor.DeliveryConflictError{Key: id, StoredDigest: stored, Digest: digest})
}

func (q *Queue) addWakeup(tx *transaction, no int64, wakeup *supervisor.Wakeup, digest string, dueAt time.Time, each func(*cells) error) {
	a := q.store.newArgs()
	defer q.store.free(a)
	a.int8(no)
	a.text(wakeup.ID)
	a.instant(dueAt)
	a.text(wakeup.Kind)
	a.text(wakeup.BranchID)
	a.text(digest)
	a.raw(wakeup.Payload)
	tx.add(sqlAddWakeup, a, each)
}

// arrived counts one more pending wakeup, due at an instant, and returns when
// it makes the instance due, zero where it changes nothing.
func (r *row) arrived(at time.Time) (due time.Time) {
	r.pending++
	r.wakeupAt = earlier(r.wakeupAt, at)
	due = r.record.WakeupDue(&r.instance.Lifecycle, at, r.now)
	if due.IsZero() || !due.Before(r.dueAt) {
		return time.Time{}
	}
	r.dueAt = due
	return due
}

// deliverIn stores a wakeup in a caller's transaction; the next claim counts it.
func (q *Queue) deliverIn(ctx context.Context, ask asker, tenantID, instanceID string, wakeup supervisor.Wakeup, dueAt time.Time) error {
	if err := q.checkDelivery(ctx, &wakeup, dueAt); err != nil {
		return err
	}
	var payload any
	if len(wakeup.Payload) > 0 {
		payload = string(wakeup.Payload)
	}
	digest := wakeup.Digest()
	var answer, stored string
	err := ask(ctx, q.store.text(sqlDeliver), []any{
		tenantID, instanceID, wakeup.ID, wakeup.Kind, wakeup.BranchID, digest, payload, instantText(dueAt),
	}, &answer, &stored)
	if err != nil {
		return q.wrap(ctx, "deliver", err)
	}
	switch answer {
	case "missing":
		return about("deliver to", tenantID, instanceID, supervisor.ErrNotFound)
	case "finished":
		return about("deliver to", tenantID, instanceID, supervisor.ErrFinished)
	case "conflict":
		return deliveryConflict(tenantID, instanceID, wakeup.ID, stored, digest)
	case "known":
		return nil
	}
	// Also for one that is due later: until it is counted nobody knows when.
	return q.notifyIn(ctx, ask, "", time.Time{})
}

// inboxBatch bounds the deliveries that one claim counts before it goes on.
const inboxBatch = 256

// countInbox counts deliveries that were made in callers' transactions, each
// instance in a transaction of its own, so that no two locks are held at once.
func (q *Queue) countInbox(ctx context.Context) error {
	var numbers []int64
	a := q.store.newArgs()
	defer q.store.free(a)
	a.int8(inboxBatch)
	err := q.store.do(ctx, q.own, q.store.statements.inbox, a, func(c *cells) error {
		numbers = append(numbers, c.int8())
		return nil
	})
	for _, no := range numbers {
		if err != nil {
			return err
		}
		err = q.store.transact(ctx, q.own, func(tx *transaction) error { return q.countWakeups(ctx, tx, no) })
	}
	return err
}

func (q *Queue) countWakeups(ctx context.Context, tx *transaction, no int64) error {
	r, err := q.load(ctx, tx, no, "", "")
	if err != nil {
		return err
	}
	a := q.store.newArgs()
	defer q.store.free(a)
	a.int8(no)
	if r == nil {
		tx.add(sqlDropWakeups, a, nil)
		return nil
	}
	counted := 0
	tx.add(sqlCountWakeups, a, func(c *cells) error {
		r.arrived(c.instant())
		counted++
		return nil
	})
	if err := tx.send(ctx); err != nil || counted == 0 {
		return err
	}
	q.put(tx, r)
	return nil
}

// load adds a lock of an instance, by number or else by tenant and id, to a
// transaction, sends it and returns the row, nil where there is none. A row
// that cannot be decoded is an error.
func (q *Queue) load(ctx context.Context, tx *transaction, no int64, tenantID, instanceID string) (*row, error) {
	a := q.store.newArgs()
	defer q.store.free(a)
	a.int8OrNull(no)
	a.textOrNull(tenantID)
	a.textOrNull(instanceID)
	var found *row
	var broken error
	tx.add(sqlLoad, a, func(c *cells) error {
		found = new(row)
		broken = found.scan(c)
		return nil
	})
	if err := tx.send(ctx); err != nil {
		return nil, err
	}
	if broken != nil {
		return found, &brokenRowError{row: found, cause: broken}
	}
	return found, nil
}

// put adds the writing of a locked row to a transaction.
func (q *Queue) put(tx *transaction, r *row) {
	a := q.store.newArgs()
	defer q.store.free(a)
	record := &r.record
	a.int8(r.no)
	a.instant(r.dueAt)
	a.int8(r.leaseVersion)
	a.instant(r.leaseEndsAt)
	a.textOrNull(r.leaseOwner)
	a.int8(r.leaseEpoch)
	a.int8(r.leaseTenantEpoch)
	a.int8(r.epochs.Instance)
	a.text(string(record.Status))
	a.bool(r.paused)
	a.bool(r.kept)
	a.bool(record.CancelRequested)
	a.int4(record.Attempt)
	a.int4(r.pending)
	a.int4(int(record.Raised))
	a.instant(record.RetryAt)
	a.instant(record.FinishedAt)
	a.instant(r.wakeupAt)
	a.instant(timerAt(&r.instance.Lifecycle, record))
	a.textOrNull(r.releaseReason)
	a.instant(r.setAsideUntil)
	a.textOrNull(r.setAsideReason)
	tx.add(sqlStore, a, nil)
}

// brokenRowError is a stored row that cannot be decoded.
type brokenRowError struct {
	row   *row
	cause error
}

func (e *brokenRowError) Error() string {
	return fmt.Sprintf("pgqueue: instance %q of tenant %q cannot be decoded: %v",
		shorten(e.row.instance.ID), shorten(e.row.instance.TenantID), e.cause)
}

func (e *brokenRowError) Unwrap() error { return e.cause }

// wrapRule wraps an error of the database and leaves those of the rules alone.
func (q *Queue) wrapRule(ctx context.Context, what string, err error) error {
	for _, sentinel := range ruleErrors {
		if errors.Is(err, sentinel) {
			return err
		}
	}
	return q.wrap(ctx, what, err)
}

var ruleErrors = [...]error{
	supervisor.ErrNotFound, supervisor.ErrFinished, supervisor.ErrDeliveryConflict, supervisor.ErrStateConflict,
	supervisor.ErrLeaseLost, supervisor.ErrEpochStale, supervisor.ErrCommandRejected, supervisor.ErrCommitUnknown,
	supervisor.ErrUnavailable,
}
