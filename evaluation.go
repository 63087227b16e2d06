package supervisor

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// evaluation is the service of one claim of one item: from the claim, through
// the driver, to one commit or release.
//
// Three may want to settle it: the goroutine that evaluates, a renewal that
// failed, and the timer that abandons a driver. The keeper lets exactly one.
type evaluation[C any] struct {
	pass  *pass[C]
	place int // in pass.served
	// item is what was claimed. Drivers get a copy; validation, renewal and
	// commit use this one.
	item  WorkItem
	lease heldLease
	ctx   lazyContext
	// sentAt is when the call that made this claim was sent, claimedAt when the
	// first of the claims kept since was.
	sentAt, claimedAt time.Time
	kept              int

	// What the evaluation gave. Only its goroutine touches these.
	own      WorkItem
	calling  string // the foreign code that is being called
	driver   string
	finished bool
	command  TransitionCommand
	err      error
	// commits is the context of the settlement's first call.
	commits lazyContext

	// Guarded by pass.mu. inside: a goroutine is between the item's beginning
	// and the driver's return.
	inside    bool
	abandoned bool
	patience  *time.Timer // abandons the driver; nil while nothing has ended its context
}

// serve evaluates and settles, and goes on with the claims that commits keep.
func (e *evaluation[C]) serve() {
	for e != nil {
		e = e.transition()
	}
}

// transition is one evaluation and its settlement. The deferred calls also run
// when foreign code ends the goroutine by runtime.Goexit.
func (e *evaluation[C]) transition() (next *evaluation[C]) {
	notify := &e.pass.engine.notify
	abandoned, settles := false, false
	defer func() {
		e.ctx.end()
		if next != nil {
			return
		}
		if settles {
			e.pass.finishHalf()
		}
		if !abandoned {
			e.pass.leave(e.place)
		}
	}()
	defer func() {
		if settles {
			next = e.settle()
		}
	}()
	var startedAt time.Time
	if notify.evaluates() {
		startedAt = time.Now()
	}
	defer func() {
		e.contain(recover())
		if abandoned = !e.returned(); abandoned {
			return
		}
		// From here on the result stands, whatever a renewal says.
		settles = e.pass.engine.keeper.take(&e.lease)
		e.validate()
		if notify.evaluates() {
			notify.evaluationEnded(&e.item, e.driver, e.err, time.Since(startedAt))
		}
	}()
	e.command, e.err = e.decide(&e.ctx)
	e.finished = true
	return nil
}

// contain makes an error of what foreign code did instead of returning.
func (e *evaluation[C]) contain(panicked any) {
	if err := contained(e.calling, panicked); err != nil {
		e.err = err
	} else if !e.finished {
		e.err = &PanicError{Op: e.calling}
	}
}

// validate makes an error of a command that cannot be committed.
func (e *evaluation[C]) validate() {
	if e.err != nil {
		return
	}
	if err := e.command.ValidateFor(&e.item); err != nil {
		e.err = fmt.Errorf("driver returned an invalid command: %w", err)
	}
}

// decide takes the item through pins, admission, resolution and driver.
func (e *evaluation[C]) decide(ctx context.Context) (TransitionCommand, error) {
	p, engine := e.pass, e.pass.engine
	if p.contextErr != nil {
		return TransitionCommand{}, fmt.Errorf("context: %w", p.contextErr)
	}
	if cause := context.Cause(ctx); cause != nil {
		return TransitionCommand{}, fmt.Errorf("not evaluated: %w", cause)
	}
	if timeout := engine.settings.EvaluationTimeout; timeout > 0 {
		limited, cancel := context.WithTimeoutCause(ctx, timeout, ErrEvaluationTimeout)
		defer cancel()
		engine.background.Add(1)
		unwatch := context.AfterFunc(limited, func() {
			defer engine.background.Done()
			p.mu.Lock()
			defer p.mu.Unlock()
			e.expectReturn()
		})
		defer func() {
			if unwatch() {
				engine.background.Done()
			}
		}()
		ctx = limited
	}
	command, err := e.consult(ctx)
	if err != nil {
		return TransitionCommand{}, explained(ctx, soundError(err))
	}
	return command, nil
}

// consult asks all foreign code that has a say in the evaluation.
func (e *evaluation[C]) consult(ctx context.Context) (TransitionCommand, error) {
	engine := e.pass.engine
	if err := e.item.ValidatePins(); err != nil {
		return TransitionCommand{}, err
	}
	if !e.item.IsConverging() {
		e.calling = "queue AdmitEvaluation"
		if err := engine.queue.AdmitEvaluation(ctx, &e.item); err != nil {
			return TransitionCommand{}, fmt.Errorf("admission: %w", soundError(err))
		}
	}
	e.calling = "driver resolution"
	e.own = e.item.Clone()
	driver, err := engine.registry.resolve(ctx, engine.queue, &e.own)
	if err != nil {
		return TransitionCommand{}, err
	}
	if engine.notify.evaluates() {
		_ = guard("driver Name", func() error {
			e.driver = driver.Name()
			return nil
		})
		engine.notify.evaluationStarted(&e.item, e.driver)
	}
	e.calling = "driver"
	return driver.Evaluate(ctx, e.pass.value, &e.own)
}

// explained adds the cause of a context's end to the error of who noticed it.
func explained(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		return fmt.Errorf("%w (%w)", err, cause)
	}
	return err
}

// returned notes that the driver is back; false if it was abandoned before.
func (e *evaluation[C]) returned() bool {
	e.pass.mu.Lock()
	defer e.pass.mu.Unlock()
	e.inside = false
	if e.patience != nil && e.patience.Stop() {
		e.pass.engine.background.Done()
	}
	return !e.abandoned
}

// expectReturn gives a driver whose context has ended AbandonAfter to return.
// The caller holds pass.mu.
func (e *evaluation[C]) expectReturn() {
	if e.inside && e.patience == nil {
		e.pass.engine.background.Add(1)
		e.patience = time.AfterFunc(e.pass.engine.settings.AbandonAfter, e.abandon)
	}
}

// abandon runs in the timer's goroutine when a driver did not return: its slot
// is freed and its result, should it ever come, is dropped.
func (e *evaluation[C]) abandon() {
	p := e.pass
	defer p.engine.background.Done()
	p.mu.Lock()
	if !e.inside {
		p.mu.Unlock()
		return
	}
	e.inside, e.abandoned = false, true
	p.mu.Unlock()
	defer p.leave(e.place)
	err := fmt.Errorf("evaluation was abandoned, it ignored the end of its context for %v: %w",
		p.engine.settings.AbandonAfter, e.endOfContext())
	p.count(Stats{Abandoned: 1})
	p.engine.notify.abandoned(&e.item, err)
	if p.engine.keeper.take(&e.lease) {
		defer p.finishHalf()
		e.conclude(err)
	}
}

// endOfContext is why the evaluation's context ended.
func (e *evaluation[C]) endOfContext() error {
	if cause := context.Cause(&e.ctx); cause != nil {
		return cause
	}
	return ErrEvaluationTimeout // the only end that is not the whole context's
}

// renewLease and the two that follow make the evaluation a leaseHolder; they
// run in the goroutine of a renewal.
func (e *evaluation[C]) renewLease(ctx context.Context) error {
	engine := e.pass.engine
	return engine.queue.Renew(ctx, Lease{
		TenantID:   e.item.TenantID,
		InstanceID: e.item.ID,
		WorkerID:   engine.settings.WorkerID,
		Version:    e.item.LeaseVersion,
		Duration:   engine.settings.LeaseDuration,
	})
}

func (e *evaluation[C]) leaseRenewed() { e.pass.engine.notify.renewed(&e.item) }

func (e *evaluation[C]) leaseFailed(err error) {
	defer e.pass.finishHalf()
	cause := fmt.Errorf("lease renewal failed: %w", err)
	e.ctx.interrupt(cause)
	e.pass.mu.Lock()
	e.expectReturn()
	e.pass.mu.Unlock()
	if errors.Is(err, ErrEpochStale) {
		e.revoke(err)
		return
	}
	e.commitFailure(cause, byRenewal)
}

// settle commits what the evaluation gave. It returns the next evaluation where
// the commit kept the claim.
func (e *evaluation[C]) settle() *evaluation[C] {
	if e.err != nil {
		e.conclude(e.err)
		return nil
	}
	return e.commit(&e.command, byDriver)
}

// conclude settles without a result: by a failure, or by handing the claim back
// where the supervisor ends.
func (e *evaluation[C]) conclude(err error) {
	if e.pass.engine.releaser != nil && errors.Is(context.Cause(&e.pass.ctx), ErrShutdown) {
		e.handBack(ErrShutdown)
		return
	}
	e.commitFailure(err, bySupervisor)
}

// origin is who made a command.
type origin int

const (
	byDriver origin = iota
	bySupervisor
	byRenewal // by the supervisor, after a renewal that failed
)

// storeNow is the store's clock as far as it can be known here: what the claim
// said plus what has passed since. The host's clock never enters.
func (e *evaluation[C]) storeNow() time.Time {
	return e.item.ClaimedAt.Add(time.Since(e.sentAt))
}

func (e *evaluation[C]) commitFailure(err error, by origin) {
	var class FailureClass
	switch {
	case errors.Is(err, errNoDriver):
		class = FailureNoDriver
	case errors.Is(err, ErrRevisionUnavailable):
		class = FailureRevisionUnpublished
	}
	command := failureCommand(&e.item, errorText(err), class, e.pass.engine.settings.retryAt(&e.item, err, e.storeNow()))
	e.commit(&command, by)
}

// commit sends a command and accounts for what became of it. A commit that
// errs is never followed by another command for the item, for it may have been
// applied; the exception is one that was certainly not.
func (e *evaluation[C]) commit(command *TransitionCommand, by origin) (next *evaluation[C]) {
	p := e.pass
	answered := false
	defer func() {
		if !answered {
			p.commitErred(&e.item, &PanicError{Op: "queue CommitCommand"})
		}
	}()
	sentAt := time.Now()
	kept, err := e.send(command, e.mayKeep(command, by))
	answered = true
	p.engine.notify.committed(&e.item, command, err)
	switch {
	case err == nil:
		p.count(tally(command, by))
		if kept != nil {
			return e.carryOn(kept, sentAt)
		}
		if p.engine.loop != nil && dueAtOnce(command.Disposition) {
			p.engine.loop.poke()
		}
	case errors.Is(err, ErrEpochStale):
		e.revoke(err)
	case by == byDriver && errors.Is(err, ErrCommandRejected):
		e.commitFailure(fmt.Errorf("the command cannot be stored: %w", err), bySupervisor)
	case by == byRenewal && errors.Is(err, ErrLeaseLost):
		p.count(Stats{LeasesLost: 1})
		p.engine.notify.leaseLost(&e.item, err)
	default:
		p.commitErred(&e.item, err)
	}
	return nil
}

// send makes the call.
func (e *evaluation[C]) send(command *TransitionCommand, keep bool) (kept *WorkItem, err error) {
	engine := e.pass.engine
	ctx := e.commitContext()
	defer ctx.end()
	err = guard("queue CommitCommand", func() (err error) {
		if keep {
			kept, err = engine.keeping.CommitAndKeep(ctx, &e.item, command, engine.settings.LeaseDuration)
			return err
		}
		return engine.queue.CommitCommand(ctx, &e.item, command)
	})
	return kept, err
}

// commitContext is a new context for a commit or release: it outlives the
// caller's and is bounded by CommitTimeout. The first one lives in the
// evaluation, for most settle with one call. Only who has the right to settle
// may call it.
func (e *evaluation[C]) commitContext() *lazyContext {
	ctx := &e.commits
	if ctx.parent != nil {
		ctx = new(lazyContext)
	}
	ctx.parent, ctx.cause = e.pass.engine.commits, context.DeadlineExceeded
	ctx.deadline = time.Now().Add(e.pass.engine.settings.CommitTimeout)
	return ctx
}

// tally counts a command that was committed.
func tally(command *TransitionCommand, by origin) Stats {
	if by != byDriver {
		return Stats{Failed: 1}
	}
	switch command.Disposition.(type) {
	case Continue:
		return Stats{Continued: 1}
	case Reschedule:
		return Stats{Rescheduled: 1}
	case Complete:
		return Stats{Completed: 1}
	}
	return Stats{}
}

// dueAtOnce reports whether the instance is due again for certain.
func dueAtOnce(d Disposition) bool {
	again, ok := d.(Continue)
	return ok && again.Delay <= 0
}

// maxKept bounds the transitions that one claim is carried on for, so that an
// instance that is always due cannot hold a slot from others.
const maxKept = 16

// mayKeep says whether to ask the queue to keep the claim.
func (e *evaluation[C]) mayKeep(command *TransitionCommand, by origin) bool {
	engine := e.pass.engine
	if engine.keeping == nil || by != byDriver || e.kept+1 >= maxKept || engine.loop.draining() ||
		time.Since(e.claimedAt) >= engine.settings.LeaseDuration/2 {
		return false
	}
	switch command.Disposition.(type) {
	case Continue, Reschedule:
		return true
	}
	return false
}

// carryOn is the evaluation of the item that a commit kept.
func (e *evaluation[C]) carryOn(item *WorkItem, sentAt time.Time) *evaluation[C] {
	p := e.pass
	next := &evaluation[C]{
		pass: p, place: e.place,
		item:   *item,
		sentAt: sentAt, claimedAt: e.claimedAt,
		kept: e.kept + 1,
	}
	next.ctx.parent = &p.ctx
	next.inside = true
	p.engine.keeper.hold(&next.lease, next, sentAt)
	p.mu.Lock()
	p.served[e.place] = next
	p.mu.Unlock()
	p.count(Stats{Claimed: 1})
	p.engine.notify.claimed(&next.item, true)
	return next
}

// revoke hands back a claim that a pause or cancel took away: no failure and no
// attempt are recorded. Without a Releaser the lease runs out.
func (e *evaluation[C]) revoke(cause error) {
	defer func() {
		e.pass.count(Stats{Revoked: 1})
		e.pass.engine.notify.revoked(&e.item, cause)
	}()
	e.handBack(cause)
}

// handBack releases the claim, if the queue can.
func (e *evaluation[C]) handBack(cause error) {
	engine := e.pass.engine
	if engine.releaser == nil {
		return
	}
	ctx := e.commitContext()
	defer ctx.end()
	err := guard("queue Release", func() error { return engine.releaser.Release(ctx, &e.item, errorText(cause)) })
	// A lease that is lost already needs no release; any other error leaves the
	// lease to run out.
	if err != nil && !errors.Is(err, ErrLeaseLost) {
		engine.notify.problem("release failed", err)
	}
}
