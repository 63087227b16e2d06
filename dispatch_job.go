package supervisor

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// dispatch is the job of a pass for one intent: from its task to what is stored
// of it.
type dispatch struct {
	service
	pass     *dispatchPass
	provider *registeredProvider
	sentAt   time.Time

	// stage is what the goroutine of the job is doing; that of a timer, which
	// may have to give it up, reads it.
	stage atomic.Pointer[dispatchStage]
	// called is the call that the breaker waits to be told the end of.
	called atomic.Int32 // a breakerCall
	// leaseGone: it was told.
	leaseGone atomic.Bool

	// What the job gave. Only its goroutine touches these.
	verdict  verdict
	finished bool
	// problem is what kept the job from a verdict, for the error of the pass.
	problem error
}

// dispatchStage is never changed.
type dispatchStage struct {
	// work is the intent as claimed, or as marked since.
	work  *IntentWork
	phase DiagnosticPhase // empty: the provider is not being called
	// acknowledged: the provider took the request to cancel.
	acknowledged bool
}

func newDispatch(p *dispatchPass, work *IntentWork) *dispatch {
	// Each has memory of its own, so that a slow one does not keep that of the
	// others.
	own := *work
	d := &dispatch{pass: p, provider: p.engine.providers.find(work.Intent.Capability), sentAt: p.sentAt}
	d.stage.Store(&dispatchStage{work: &own})
	return d
}

func (d *dispatch) work() *IntentWork { return d.stage.Load().work }

// calling notes which call of the provider begins.
func (d *dispatch) calling(phase DiagnosticPhase) {
	stage := *d.stage.Load()
	stage.phase = phase
	d.stage.Store(&stage)
}

// perform does what the task asks for.
func (d *dispatch) perform() {
	d.verdict = d.act()
	d.finished = true
}

func (d *dispatch) act() verdict {
	work := d.work()
	if context.Cause(&d.ctx) != nil {
		return verdict{release: &IntentRelease{NotHandedOff: work.Task == IntentTaskDispatch, After: time.Nanosecond}}
	}
	switch work.Task {
	case IntentTaskDispatch:
		return d.handOff()
	case IntentTaskRecover:
		return d.recover()
	}
	return d.observe()
}

// handOff marks the intent, unless the claim did, and calls the provider.
func (d *dispatch) handOff() verdict {
	call, wait := d.provider.breaker.begin(time.Now())
	if call == breakerNoCall {
		return verdict{release: &IntentRelease{
			NotHandedOff: true, After: wait, Diagnostic: &Diagnostic{Phase: PhaseDispatch, Category: CategoryBreaker},
		}}
	}
	d.called.Store(int32(call))
	if d.work().Intent.State != ActionDispatchCommitted {
		if v, marked := d.mark(); !marked {
			return v
		}
	}
	ctx, free := d.limited(d.provider.options.Timeout, ErrProviderTimeout)
	defer free()
	startedAt := d.pass.engine.notify.dispatchStarted(d.work())
	handoff := d.work().Handoff()
	d.calling(PhaseDispatch)
	// The last look before the call: whoever gave this job up in the meantime
	// has taken the lease first.
	cause := context.Cause(ctx)
	if cause == nil && !d.pass.engine.keeper.confirmed(&d.lease) {
		cause = errUnconfirmed
	}
	if cause != nil {
		d.calling("")
		d.pass.engine.notify.dispatchEnded(d.work(), cause, startedAt)
		return d.notMade(&IntentRelease{NotHandedOff: true, After: time.Nanosecond})
	}
	d.pass.count(DispatchStats{HandedOff: 1})
	receipt, err := d.provider.Dispatch(ctx, &handoff)
	if err = soundError(err); err == nil {
		err = validReceipt(&receipt)
	}
	d.callEnded(err != nil && !isRefused(err))
	// Before an observer is told, who may end the goroutine.
	d.verdict, d.finished = d.provider.byDispatch(ctx, d.work(), &receipt, err), true
	d.pass.engine.notify.dispatchEnded(d.work(), err, startedAt)
	return d.verdict
}

// callEnded tells the breaker, once.
func (d *dispatch) callEnded(failed bool) {
	if call := breakerCall(d.called.Swap(int32(breakerNoCall))); call != breakerNoCall {
		d.provider.breaker.ended(call, failed, time.Now())
	}
}

// notMade takes the call back.
func (d *dispatch) notMade(release *IntentRelease) verdict {
	if call := breakerCall(d.called.Swap(int32(breakerNoCall))); call != breakerNoCall {
		d.provider.breaker.notMade(call)
	}
	return verdict{release: release}
}

// mark sets the point of no return. Where it cannot, the verdict says what to
// store instead.
func (d *dispatch) mark() (v verdict, marked bool) {
	var work IntentWork
	ctx := d.pass.engine.callContext()
	defer ctx.end()
	// In a goroutine of its own, for the pass is to be told of a Goexit, too.
	err := join("queue MarkIntent", func() (err error) {
		work, err = d.pass.engine.queue.MarkIntent(ctx, d.work())
		return err
	})
	if err == nil && (work.Key() != d.key() || work.LeaseVersion != d.work().LeaseVersion || work.Intent.State != ActionDispatchCommitted) {
		err = errors.New("queue MarkIntent answered with another intent, or with one that is not marked")
	}
	switch {
	case err == nil:
		d.stage.Store(&dispatchStage{work: &work})
		return verdict{}, true
	case errors.Is(err, ErrIntentRefused):
		d.pass.count(DispatchStats{Refused: 1})
		return d.notMade(nil), false
	case errors.Is(err, ErrStateConflict):
		// Somebody has stored the receipt of an attempt before.
		d.pass.count(DispatchStats{Refused: 1})
		return d.notMade(&IntentRelease{NotHandedOff: true, After: firstLook}), false
	case errors.Is(err, ErrLeaseLost):
		d.lost(err)
		return d.notMade(nil), false
	}
	// Whether it was set or not, the provider was not called.
	d.problem = err
	return d.notMade(&IntentRelease{NotHandedOff: true, After: firstLook}), false
}

// recover finds out what became of a hand-off of which no receipt is stored.
func (d *dispatch) recover() verdict {
	work := d.work()
	if !d.provider.reconciles(work) {
		return d.provider.ambiguous(work, &Diagnostic{Phase: PhaseDispatch, Category: CategoryCrash})
	}
	ctx, free := d.limited(d.provider.options.Timeout, ErrProviderTimeout)
	defer free()
	d.calling(PhaseReconcile)
	handoff := work.Handoff()
	answer, err := d.provider.reconciler.Reconcile(ctx, &handoff)
	if err = soundError(err); err != nil {
		return d.provider.byReconciliation(work, nil, trouble(ctx, PhaseReconcile, err))
	}
	return d.provider.byReconciliation(work, answer, nil)
}

// observe looks at accepted work, and first asks to cancel it where that is
// wanted.
func (d *dispatch) observe() verdict {
	work := d.work()
	if work.Receipt.Terminal() {
		return d.provider.byReport(work, &work.Receipt.Report)
	}
	var release IntentRelease
	canceller := d.provider.canceller
	if work.Task == IntentTaskCancel {
		if canceller == nil {
			release.Diagnostic = &Diagnostic{Phase: PhaseCancel, Category: CategoryUnsupported}
		} else if stop := d.cancel(work, &release); stop {
			return verdict{release: &release}
		}
	}
	if d.provider.observer == nil {
		if work.Task != IntentTaskCancel || release.CancelAcknowledged || canceller == nil {
			release.After = noLook
		}
		return verdict{release: &release}
	}
	ctx, free := d.limited(d.provider.options.Timeout, ErrProviderTimeout)
	defer free()
	d.calling(PhaseObserve)
	handoff := work.Handoff()
	report, err := d.provider.observer.Observe(ctx, &handoff, *work.Receipt.clone())
	if err = soundError(err); err != nil {
		release.Diagnostic = trouble(ctx, PhaseObserve, err)
		return verdict{release: &release}
	}
	if err := report.Validate(); err != nil {
		release.Diagnostic = &Diagnostic{Phase: PhaseObserve, Category: CategoryInvalid}
		return verdict{release: &release}
	}
	switch {
	case report.Status == "" || report.Status == ProviderRunning:
		release.After = report.After
		return verdict{release: &release}
	case report.Status == ProviderUnknown && work.Intent.State == ActionUnknown:
		release.Diagnostic = &Diagnostic{Phase: PhaseObserve, Category: CategoryUndecided}
		return verdict{release: &release}
	}
	return d.provider.byReport(work, &report)
}

// cancel asks the provider to stop and says in a release what came of it; stop
// says that nothing else may be called.
func (d *dispatch) cancel(work *IntentWork, release *IntentRelease) (stop bool) {
	ctx, free := d.limited(d.provider.options.Timeout, ErrProviderTimeout)
	defer free()
	d.calling(PhaseCancel)
	handoff := work.Handoff()
	err := guard("provider Cancel", func() error { return d.provider.canceller.Cancel(ctx, &handoff, *work.Receipt.clone()) })
	if err != nil {
		release.Diagnostic = trouble(ctx, PhaseCancel, err)
	} else {
		release.CancelAcknowledged = true
		d.stage.Store(&dispatchStage{work: work, phase: PhaseCancel, acknowledged: true})
	}
	free()
	return !d.paused() || context.Cause(&d.ctx) != nil
}

// contain makes a verdict of what foreign code did instead of returning.
func (d *dispatch) contain(panicked any) {
	if d.finished {
		return
	}
	d.verdict = d.interrupted(CategoryPanic)
	if stage := d.stage.Load(); stage.phase == PhaseDispatch {
		err := contained("provider", panicked)
		if err == nil {
			err = &PanicError{Op: "provider"}
		}
		d.callEnded(true)
		d.pass.engine.notify.dispatchEnded(stage.work, err, time.Time{})
	}
	d.notMade(nil)
}

// interrupted is the verdict where a call never returned.
func (d *dispatch) interrupted(category DiagnosticCategory) verdict {
	stage := d.stage.Load()
	diagnostic := &Diagnostic{Phase: stage.phase, Category: category}
	switch {
	case stage.phase == PhaseDispatch:
		return d.provider.ambiguous(stage.work, diagnostic)
	case stage.phase == PhaseReconcile:
		return d.provider.byReconciliation(stage.work, nil, diagnostic)
	case stage.phase != "":
		return verdict{release: &IntentRelease{CancelAcknowledged: stage.acknowledged, Diagnostic: diagnostic}}
	}
	return verdict{release: &IntentRelease{NotHandedOff: stage.work.Task == IntentTaskDispatch, After: firstLook}}
}

// performed keeps the receipt of a call whose lease was lost meanwhile: losing a
// true receipt would make an ambiguity.
func (d *dispatch) performed(settles bool) {
	if !settles {
		d.storeEvidence()
	}
}

// late does the same for a call that was given up.
func (d *dispatch) late() { d.storeEvidence() }

// abandon gives up a call that ignores the end of its context.
func (d *dispatch) abandon(err error, settles bool) {
	d.pass.count(DispatchStats{Abandoned: 1})
	d.pass.engine.notify.dispatchAbandoned(d.work(), err)
	if d.stage.Load().phase == PhaseDispatch {
		d.callEnded(true)
	}
	d.notMade(nil)
	if settles {
		d.store(d.interrupted(CategoryAbandoned))
	}
}

func (d *dispatch) renew(ctx context.Context) error {
	return d.pass.engine.queue.RenewIntent(ctx, d.work().Lease(d.pass.engine.settings.LeaseDuration))
}

func (d *dispatch) renewed() {}

// renewalFailed only counts: the call that is in flight has the verdict, and its
// receipt is stored from whoever has it.
func (d *dispatch) renewalFailed(_, cause error) { d.lost(cause) }

// lost tells that the lease is gone, which several may notice.
func (d *dispatch) lost(err error) {
	if d.leaseGone.Swap(true) {
		return
	}
	d.pass.count(DispatchStats{LeasesLost: 1})
	d.pass.engine.notify.intentLost(d.work(), err)
}

// settle stores the verdict.
func (d *dispatch) settle() *service {
	if d.problem != nil {
		d.fail(d.problem)
	}
	d.store(d.verdict)
	return nil
}
