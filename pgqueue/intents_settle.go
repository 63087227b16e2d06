package pgqueue

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/workflow-supervisor/supervisor"
)

// MarkIntent implements [supervisor.IntentQueue]. Marks, receipts and settlements
// that come at the same time share a transaction.
func (q *Queue) MarkIntent(ctx context.Context, work *supervisor.IntentWork) (supervisor.IntentWork, error) {
	x, err := q.changeIntent(ctx, "mark", &intentOp{
		key:   work.Key(),
		held:  true,
		lease: work.LeaseVersion,
		takes: true,
		rule: func(x *intentRow, slotFree func() bool) (bool, error) {
			return x.record.Mark(work, &x.control, slotFree, x.now)
		},
	})
	if err != nil {
		return supervisor.IntentWork{}, err
	}
	return supervisor.IntentWork{IntentRecord: x.record.Clone(), Task: work.Task, ClaimedAt: work.ClaimedAt}, nil
}

// RecordReceipt implements [supervisor.IntentQueue].
func (q *Queue) RecordReceipt(ctx context.Context, work *supervisor.IntentWork, receipt supervisor.Receipt) error {
	if err := receipt.Validate(); err != nil {
		return fmt.Errorf("%w: %w", supervisor.ErrCommandRejected, err)
	}
	receipt.After = micros(receipt.After)
	_, err := q.changeIntent(ctx, "receipt of", &intentOp{
		key:   work.Key(),
		lease: work.LeaseVersion,
		bytes: len(receipt.Output),
		rule: func(x *intentRow, _ func() bool) (bool, error) {
			return x.record.Accept(work, receipt, x.now)
		},
	})
	return err
}

// SettleIntent implements [supervisor.IntentQueue].
func (q *Queue) SettleIntent(ctx context.Context, work *supervisor.IntentWork, settlement supervisor.Settlement) error {
	if err := settlement.Validate(); err != nil {
		return fmt.Errorf("%w: %w", supervisor.ErrCommandRejected, err)
	}
	settlement.Delay = micros(settlement.Delay)
	_, err := q.changeIntent(ctx, "settlement of", &intentOp{
		key:   work.Key(),
		held:  true,
		lease: work.LeaseVersion,
		tells: settlement.State != supervisor.ActionRetryable,
		bytes: 2 * len(settlement.Output),
		rule: func(x *intentRow, _ func() bool) (bool, error) {
			return x.record.Settle(work, &settlement, x.now)
		},
		// What is not terminal has no repeat that the rule knows.
		repeated: func(r *supervisor.IntentRecord) bool { return left(r, work) && became(r, &settlement) },
	})
	return err
}

// ReleaseIntent implements [supervisor.IntentQueue].
func (q *Queue) ReleaseIntent(ctx context.Context, work *supervisor.IntentWork, release supervisor.IntentRelease) error {
	if err := release.Validate(); err != nil {
		return fmt.Errorf("%w: %w", supervisor.ErrCommandRejected, err)
	}
	release.After = micros(release.After)
	_, err := q.changeIntent(ctx, "release of", &intentOp{
		key:   work.Key(),
		held:  true,
		lease: work.LeaseVersion,
		rule: func(x *intentRow, _ func() bool) (bool, error) {
			return x.record.Release(work, &release, x.now)
		},
		repeated: func(r *supervisor.IntentRecord) bool { return left(r, work) },
	})
	return err
}

// became reports whether a settlement, of which the rule knows no repeat, may have
// left an intent as it is.
func became(r *supervisor.IntentRecord, s *supervisor.Settlement) bool {
	state := r.Intent.State
	switch s.State {
	case supervisor.ActionUnknown:
		return state == supervisor.ActionUnknown
	case supervisor.ActionRejected:
		// Without a proof about every attempt.
		return state == supervisor.ActionUnknown && r.Cause == supervisor.CauseAmbiguous
	case supervisor.ActionRetryable:
		if r.CancelRequestedAt.IsZero() {
			return state == supervisor.ActionRetryable
		}
		// What is to be cancelled has no next attempt.
		switch state {
		case supervisor.ActionUnknown:
			return r.Cause == supervisor.CauseAmbiguous
		case supervisor.ActionDispatchCommitted:
			return r.Ambiguous != 0
		case supervisor.ActionRejected, supervisor.ActionReconciled:
			return r.Cause == supervisor.CauseCancelled || r.Cause == supervisor.CauseDeadline
		}
	}
	return false
}

// left reports whether the lease of work has been ended and nobody has claimed the
// intent since: its holder did it.
func left(r *supervisor.IntentRecord, work *supervisor.IntentWork) bool {
	return r.LeaseVersion == work.LeaseVersion && r.Attempt <= work.Attempt && r.LeaseEndsAt.IsZero()
}

// micros rounds a delay up to what the database can hold.
func micros(d time.Duration) time.Duration {
	if rest := d % time.Microsecond; rest > 0 && d < math.MaxInt64-time.Microsecond {
		return d - rest + time.Microsecond
	}
	return d
}

// intentRenewal is a renewal that waits for the next statement.
type intentRenewal struct {
	lease supervisor.IntentLease
	done  chan error
}

// RenewIntent implements [supervisor.IntentQueue].
func (q *Queue) RenewIntent(ctx context.Context, lease supervisor.IntentLease) error {
	if err := q.ready(ctx); err != nil {
		return err
	}
	if lease.Duration <= 0 {
		return fmt.Errorf("pgqueue: intent lease: Duration is %v, must be positive", lease.Duration)
	}
	q.heldIntents.forget(lease.IntentKey)
	r := &intentRenewal{lease: lease, done: make(chan error, 1)}
	q.intentRenewals.submit(q, r)
	select {
	case err := <-r.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-q.closed.Done():
		return ErrClosed
	}
}

// renewIntents extends the leases of a batch and tells each caller.
func (q *Queue) renewIntents(batch []*intentRenewal) {
	ctx, cancel := context.WithTimeout(q.closed, renewTimeout)
	defer cancel()
	a := q.store.newArgs()
	defer q.store.free(a)
	column := func(oid uint32, each func(r *supervisor.IntentLease)) {
		a.array(oid, len(batch))
		for _, r := range batch {
			each(&r.lease)
		}
	}
	column(pgtype.TextOID, func(r *supervisor.IntentLease) { a.text(storable(r.TenantID)) })
	column(pgtype.TextOID, func(r *supervisor.IntentLease) { a.text(storable(r.InstanceID)) })
	column(pgtype.TextOID, func(r *supervisor.IntentLease) { a.text(storable(r.IntentID)) })
	column(pgtype.Int8OID, func(r *supervisor.IntentLease) { a.int8(r.Version) })
	column(pgtype.TextOID, func(r *supervisor.IntentLease) { a.text(storable(r.WorkerID)) })
	column(pgtype.Int8OID, func(r *supervisor.IntentLease) { a.int8(leaseMicros(r.Duration)) })
	verdicts := make([]int, len(batch))
	for n := range verdicts {
		verdicts[n] = renewLost
	}
	err := q.store.do(ctx, q.renewing, q.store.statements.renewIntents, a, func(c *cells) error {
		c.elements(func(n int, element []byte) {
			verdict := cells{values: [][]byte{element}}
			if n < len(verdicts) {
				verdicts[n] = verdict.int4()
			}
		})
		return nil
	})
	for n, r := range batch {
		switch {
		case err != nil:
			r.done <- q.wrap(context.Background(), "renew intent", err)
		case verdicts[n] == renewed:
			r.done <- nil
		default:
			r.done <- fmt.Errorf("pgqueue: renewal of intent %q of instance %q of tenant %q: %w", shorten(r.lease.IntentID),
				shorten(r.lease.InstanceID), shorten(r.lease.TenantID), supervisor.ErrLeaseLost)
		}
	}
}
