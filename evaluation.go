package supervisor

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// evaluation is the job of a pass for one item: from pins to driver, then one
// commit or release.
type evaluation[C any] struct {
	service
	pass *pass[C]
	// item is what was claimed. Drivers get a copy; validation, renewal and
	// commit use this one.
	item WorkItem
	// sentAt is when the call that made this claim was sent, claimedAt when the
	// first of the claims kept since was.
	sentAt, claimedAt time.Time
	kept              int

	// What the evaluation gave. Only its goroutine touches these.
	own       WorkItem
	calling   string // the foreign code that is being called
	driver    string
	startedAt time.Time // zero unless somebody wants to know
	finished  bool
	command   TransitionCommand
	err       error
}

// perform is the evaluation.
func (e *evaluation[C]) perform() {
	if e.pass.engine.notify.evaluates() {
		e.startedAt = time.Now()
	}
	e.command, e.err = e.decide()
	e.finished = true
}

// contain makes an error of what foreign code did instead of returning.
func (e *evaluation[C]) contain(panicked any) {
	if err := contained(e.calling, panicked); err != nil {
		e.err = err
	} else if !e.finished {
		e.err = &PanicError{Op: e.calling}
	}
}

// performed makes an error of a command that cannot be committed.
func (e *evaluation[C]) performed(bool) {
	if e.err == nil {
		if err := e.command.ValidateFor(&e.item); err != nil {
			e.err = fmt.Errorf("driver returned an invalid command: %w", err)
		}
	}
	if !e.startedAt.IsZero() {
		e.pass.engine.notify.evaluationEnded(&e.item, e.driver, e.err, time.Since(e.startedAt))
	}
}

// late drops the result of a driver that was abandoned.
func (e *evaluation[C]) late() {}

// decide takes the item through pins, admission, resolution and driver.
func (e *evaluation[C]) decide() (TransitionCommand, error) {
	if e.pass.contextErr != nil {
		return TransitionCommand{}, fmt.Errorf("context: %w", e.pass.contextErr)
	}
	if cause := context.Cause(&e.ctx); cause != nil {
		return TransitionCommand{}, fmt.Errorf("not evaluated: %w", cause)
	}
	ctx, free := e.limited(e.pass.engine.settings.EvaluationTimeout, ErrEvaluationTimeout)
	defer free()
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

func (e *evaluation[C]) abandon(err error, settles bool) {
	err = fmt.Errorf("evaluation was %w", err)
	e.pass.count(Stats{Abandoned: 1})
	e.pass.engine.notify.abandoned(&e.item, err)
	if settles {
		e.conclude(err)
	}
}

func (e *evaluation[C]) renew(ctx context.Context) error {
	engine := e.pass.engine
	return engine.queue.Renew(ctx, Lease{
		TenantID:   e.item.TenantID,
		InstanceID: e.item.ID,
		WorkerID:   engine.settings.WorkerID,
		Version:    e.item.LeaseVersion,
		Duration:   engine.settings.LeaseDuration,
	})
}

func (e *evaluation[C]) renewed() { e.pass.engine.notify.renewed(&e.item) }

func (e *evaluation[C]) renewalFailed(err, cause error) {
	if errors.Is(err, ErrEpochStale) {
		e.revoke(err)
		return
	}
	e.commitFailure(cause, byRenewal)
}

// settle commits what the evaluation gave. It returns the next evaluation where
// the commit kept the claim.
func (e *evaluation[C]) settle() *service {
	if e.err != nil {
		e.conclude(e.err)
		return nil
	}
	return e.commit(&e.command, byDriver)
}

// conclude settles without a result: by a failure, or by handing the claim back
// where the supervisor ends.
func (e *evaluation[C]) conclude(err error) {
	if e.pass.engine.releaser != nil && e.pass.shuttingDown() {
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
func (e *evaluation[C]) commit(command *TransitionCommand, by origin) (next *service) {
	p := e.pass
	answered := false
	defer func() {
		if !answered {
			err := &PanicError{Op: "queue CommitCommand"}
			p.commitErred(&e.item, err)
			p.engine.notify.committed(&e.item, command, err)
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
	ctx := e.settlementContext()
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
func (e *evaluation[C]) carryOn(item *WorkItem, sentAt time.Time) *service {
	p := e.pass
	next := &evaluation[C]{
		pass:   p,
		item:   *item,
		sentAt: sentAt, claimedAt: e.claimedAt,
		kept: e.kept + 1,
	}
	p.replace(&e.service, &next.service, next, sentAt)
	p.count(Stats{Claimed: 1})
	p.engine.notify.claimed(&next.item, true)
	return &next.service
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
	ctx := e.settlementContext()
	defer ctx.end()
	err := guard("queue Release", func() error { return engine.releaser.Release(ctx, &e.item, errorText(cause)) })
	// A lease that is lost already needs no release; any other error leaves the
	// lease to run out.
	if err != nil && !errors.Is(err, ErrLeaseLost) {
		engine.notify.problem("release failed", err)
	}
}
