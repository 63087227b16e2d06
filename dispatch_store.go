package supervisor

import (
	"context"
	"errors"
	"time"
)

// callContext is a context for a call to the queue that outlives the caller's
// and is bounded by CommitTimeout.
func (c *crew) callContext() *lazyContext {
	return &lazyContext{
		parent: c.commits, cause: context.DeadlineExceeded, deadline: time.Now().Add(c.settings.CommitTimeout),
	}
}

// store makes a verdict durable. What is known of the world outside is stored
// again and again while the queue fails, under a lease that is renewed as well as
// may be: the provider is not called meanwhile, neither here nor elsewhere. It
// ends with the drain of a loop, or with the context of a pass or DrainTimeout
// after the first failure.
func (d *dispatch) store(v verdict) {
	var giveUp <-chan time.Time
	// Who renewed before may have done so a period ago.
	var renewedAt time.Time
	period := d.pass.engine.settings.renewalPeriod()
	for failures := 0; v != (verdict{}); {
		err := d.attempt(v)
		if err == nil {
			d.stored(v)
			return
		}
		next, again := d.after(v, err)
		if !again {
			v = next
			continue
		}
		if failures++; failures == 1 && d.pass.engine.loop == nil {
			patience := time.NewTimer(d.pass.engine.settings.DrainTimeout)
			defer patience.Stop()
			giveUp = patience.C
		}
		if !d.rest(growingDelay(firstStoreDelay, min(lastStoreDelay, period), failures-1), giveUp) {
			d.fail(err)
			return
		}
		if time.Since(renewedAt) >= period {
			renewedAt = time.Now()
			d.renewOnce()
		}
	}
}

// The rhythm of attempts to store what is known.
const (
	firstStoreDelay = 50 * time.Millisecond
	lastStoreDelay  = 5 * time.Second
)

// rest waits between attempts; false where there is to be none any more. The
// receipt of an abandoned call may come when its pass has long ended: what counts
// is the context that the pass was given.
func (d *dispatch) rest(delay time.Duration, giveUp <-chan time.Time) bool {
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-d.pass.ctx.parent.Done():
	case <-giveUp:
	}
	return false
}

// renewOnce extends the lease; if that fails nothing is worse than before.
func (d *dispatch) renewOnce() {
	ctx := d.pass.engine.callContext()
	defer ctx.end()
	_ = guard("queue RenewIntent", func() error { return d.renew(ctx) })
}

// attempt makes the call that stores a verdict.
func (d *dispatch) attempt(v verdict) error {
	queue, work := d.pass.engine.queue, d.work()
	ctx := d.pass.engine.callContext()
	defer ctx.end()
	op, call := "queue ReleaseIntent", func() error { return queue.ReleaseIntent(ctx, work, *v.release) }
	switch {
	case v.settlement != nil:
		op, call = "queue SettleIntent", func() error { return queue.SettleIntent(ctx, work, *v.settlement) }
	case v.receipt != nil:
		receipt := *v.receipt
		if receipt.After == 0 && d.provider.observer == nil {
			receipt.After = noLook
		}
		op, call = "queue RecordReceipt", func() error { return queue.RecordReceipt(ctx, work, receipt) }
	}
	// In a goroutine of its own: a Goexit in the queue must not take along what
	// is known of the world outside.
	err := join(op, call)
	if err == nil || v.release == nil {
		d.pass.engine.notify.intentStored(work, v, err)
	}
	return err
}

// after says what to do about an error of the store: store something else, the
// zero verdict being nothing, or the same again.
func (d *dispatch) after(v verdict, err error) (next verdict, again bool) {
	switch {
	case errors.Is(err, ErrReceiptConflict):
		d.pass.count(DispatchStats{Conflicts: 1})
		d.pass.failed(d.key(), err)
		return verdict{}, false
	case errors.Is(err, ErrLeaseLost) && v.receipt == nil:
		d.lost(err)
		return v.evidence(), false
	case errors.Is(err, ErrStateConflict) && v.settlement != nil:
		// Somebody has stored a receipt meanwhile. It is compared with this one, or
		// the release makes it due for a look.
		if evidence := v.evidence(); evidence != (verdict{}) {
			return evidence, false
		}
		return verdict{release: &IntentRelease{}}, false
	case errors.Is(err, ErrCommandRejected) && v.settlement != nil && v.settlement.State != ActionUnknown,
		errors.Is(err, ErrCommandRejected) && v.receipt != nil:
		// It will never take this: say at least that there was something.
		return unknownOutcome(&Diagnostic{Phase: PhaseDispatch, Category: CategoryInvalid}), false
	case errors.Is(err, ErrCommandRejected), errors.Is(err, ErrNotFound), errors.Is(err, ErrStateConflict), errors.Is(err, ErrLeaseLost):
		d.fail(err)
		return verdict{}, false
	case v.release != nil && !v.release.NotHandedOff && !v.release.CancelAcknowledged:
		// Nothing would be lost: the lease runs out.
		d.fail(err)
		return verdict{}, false
	}
	return v, true
}

// evidence is what of a verdict may be stored without the lease.
func (v verdict) evidence() verdict {
	switch {
	case v.settlement != nil && v.settlement.Receipt != nil:
		return verdict{receipt: v.settlement.Receipt}
	case v.receipt != nil:
		return verdict{receipt: v.receipt}
	}
	return verdict{}
}

// storeEvidence stores the receipt of a verdict that is no longer wanted.
func (d *dispatch) storeEvidence() { d.store(d.verdict.evidence()) }

func (d *dispatch) key() IntentKey { return d.work().Key() }

// fail records that something could not be stored or done.
func (d *dispatch) fail(err error) {
	if d.pass.failed(d.key(), err) {
		d.pass.count(DispatchStats{Failed: 1})
	}
}

// stored counts what was stored.
func (d *dispatch) stored(v verdict) {
	var stats DispatchStats
	switch {
	case v.receipt != nil:
		stats.Accepted = 1
	case v.settlement == nil:
		return
	case v.settlement.State == ActionSucceeded:
		stats.Succeeded = 1
	case v.settlement.State == ActionRejected:
		stats.Rejected = 1
	case v.settlement.State == ActionRetryable:
		stats.Retryable = 1
	default:
		stats.Unknown = 1
	}
	d.pass.count(stats)
	if d.pass.engine.loop != nil {
		d.pass.engine.loop.poke()
	}
}
