package queuetest

import (
	"context"
	"iter"

	"github.com/workflow-supervisor/supervisor"
)

// WrapIntents returns a queue of intents that meets the plan's faults before, or
// instead of, the given one. It is a [supervisor.IntentWaiter] and a
// [supervisor.IntentOperator] where, and only where, the given queue is one.
//
// A queue that is given to a supervisor and to a dispatcher is wrapped twice, by
// Wrap for the one and by WrapIntents for the other; calls are counted over both.
func (f *Faults) WrapIntents(queue supervisor.IntentQueue) supervisor.IntentQueue {
	q := faultIntents{f, queue}
	w, waits := queue.(supervisor.IntentWaiter)
	o, operates := queue.(supervisor.IntentOperator)
	waiting, operating := faultIntentWaiter{f, w}, faultOperator{f, o}
	switch {
	case waits && operates:
		return struct {
			faultIntents
			faultIntentWaiter
			faultOperator
		}{q, waiting, operating}
	case waits:
		return struct {
			faultIntents
			faultIntentWaiter
		}{q, waiting}
	case operates:
		return struct {
			faultIntents
			faultOperator
		}{q, operating}
	}
	return q
}

type faultIntents struct {
	faults *Faults
	queue  supervisor.IntentQueue
}

func (q faultIntents) ClaimIntents(ctx context.Context, req supervisor.IntentClaimRequest) ([]supervisor.IntentWork, error) {
	return call(ctx, q.faults, OpClaimIntents, func() ([]supervisor.IntentWork, error) { return q.queue.ClaimIntents(ctx, req) })
}

func (q faultIntents) RenewIntent(ctx context.Context, lease supervisor.IntentLease) error {
	return only(ctx, q.faults, OpRenewIntent, func() error { return q.queue.RenewIntent(ctx, lease) })
}

func (q faultIntents) MarkIntent(ctx context.Context, work *supervisor.IntentWork) (supervisor.IntentWork, error) {
	return call(ctx, q.faults, OpMarkIntent, func() (supervisor.IntentWork, error) { return q.queue.MarkIntent(ctx, work) })
}

func (q faultIntents) RecordReceipt(ctx context.Context, work *supervisor.IntentWork, receipt supervisor.Receipt) error {
	return only(ctx, q.faults, OpRecordReceipt, func() error { return q.queue.RecordReceipt(ctx, work, receipt) })
}

func (q faultIntents) SettleIntent(ctx context.Context, work *supervisor.IntentWork, settlement supervisor.Settlement) error {
	return only(ctx, q.faults, OpSettleIntent, func() error { return q.queue.SettleIntent(ctx, work, settlement) })
}

func (q faultIntents) ReleaseIntent(ctx context.Context, work *supervisor.IntentWork, release supervisor.IntentRelease) error {
	return only(ctx, q.faults, OpReleaseIntent, func() error { return q.queue.ReleaseIntent(ctx, work, release) })
}

type faultIntentWaiter struct {
	faults *Faults
	wait   supervisor.IntentWaiter
}

func (q faultIntentWaiter) WaitIntents(ctx context.Context, capabilities []supervisor.CapabilityPin) error {
	return only(ctx, q.faults, OpWaitIntents, func() error { return q.wait.WaitIntents(ctx, capabilities) })
}

type faultOperator struct {
	faults   *Faults
	operator supervisor.IntentOperator
}

func (q faultOperator) ConfirmIntent(ctx context.Context, key supervisor.IntentKey, by string) error {
	return only(ctx, q.faults, OpConfirmIntent, func() error { return q.operator.ConfirmIntent(ctx, key, by) })
}

func (q faultOperator) RejectIntent(ctx context.Context, key supervisor.IntentKey, by, reason string) error {
	return only(ctx, q.faults, OpRejectIntent, func() error { return q.operator.RejectIntent(ctx, key, by, reason) })
}

func (q faultOperator) ResolveIntent(ctx context.Context, key supervisor.IntentKey, by string, resolution supervisor.IntentResolution) error {
	return only(ctx, q.faults, OpResolveIntent, func() error { return q.operator.ResolveIntent(ctx, key, by, resolution) })
}

func (q faultOperator) ListIntents(ctx context.Context, filter supervisor.IntentFilter) iter.Seq2[supervisor.IntentRecord, error] {
	return listing(ctx, q.faults, OpListIntents, q.operator.ListIntents(ctx, filter))
}

func (q faultOperator) LimitIntents(ctx context.Context, limit supervisor.IntentLimit) error {
	return only(ctx, q.faults, OpLimitIntents, func() error { return q.operator.LimitIntents(ctx, limit) })
}
