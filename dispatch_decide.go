package supervisor

import (
	"context"
	"errors"
	"time"
)

// verdict is what is to be stored of a piece of work: one of settlement, receipt
// and release, or nothing where the queue has stored all there is.
type verdict struct {
	settlement *Settlement
	receipt    *Receipt
	release    *IntentRelease
}

// What follows are pure functions of what is stored and of what the provider
// said, so that a dispatcher after a crash decides as the one before would have.

// byReceipt says what follows from a receipt.
func (p *registeredProvider) byReceipt(work *IntentWork, receipt *Receipt) verdict {
	switch receipt.Status {
	case "", ProviderRunning:
		return verdict{receipt: receipt}
	}
	v := p.byReport(work, &receipt.Report)
	v.settlement.Receipt = receipt
	return v
}

// byReport says what follows from a report about work that does not run any
// more.
func (p *registeredProvider) byReport(work *IntentWork, report *Report) verdict {
	switch report.Status {
	case ProviderSucceeded:
		return verdict{settlement: &Settlement{State: ActionSucceeded, Cause: CauseReported, Output: report.Output}}
	case ProviderRetryable:
		v := p.again(work, ProofReported, nil)
		v.settlement.Reason = report.Reason
		return v
	case ProviderFailed, ProviderCancelled:
		outcome := OutcomeFailed
		if report.Status == ProviderCancelled {
			outcome = OutcomeCancelled
		}
		return verdict{settlement: &Settlement{
			State: ActionRejected, Outcome: outcome, Cause: CauseReported, Proof: ProofReported, Reason: report.Reason,
		}}
	}
	return p.lost(work, nil)
}

// again lets the intent be sent once more, within the bound of attempts.
func (p *registeredProvider) again(work *IntentWork, proof IntentProof, trouble *Diagnostic) verdict {
	delay, more := p.options.Retry.next(work.Attempt)
	switch {
	case more:
		return verdict{settlement: &Settlement{State: ActionRetryable, Delay: delay, Proof: proof, Diagnostic: trouble}}
	case proof != "":
		return verdict{settlement: &Settlement{
			State: ActionRejected, Outcome: OutcomeFailed, Cause: CauseAttempts, Proof: proof, Diagnostic: trouble,
		}}
	}
	return unknownOutcome(trouble)
}

func unknownOutcome(trouble *Diagnostic) verdict {
	return verdict{settlement: &Settlement{State: ActionUnknown, Cause: CauseAmbiguous, Diagnostic: trouble}}
}

// lost says what follows where nobody will ever know: repeat what may be
// repeated. A request to cancel stops repeats.
func (p *registeredProvider) lost(work *IntentWork, trouble *Diagnostic) verdict {
	switch {
	case work.CancelRequestedAt.IsZero() && work.Repeatable():
		return p.again(work, "", trouble)
	case work.harmless():
		return verdict{settlement: &Settlement{
			State: ActionRejected, Outcome: OutcomeCancelled, Cause: CauseCancelled, Diagnostic: trouble,
		}}
	}
	return unknownOutcome(trouble)
}

// ambiguous says what follows where the hand-off was marked and nothing is known
// of it: after a crash, and after a call that ended in any way but a receipt,
// NotSent or Refused.
func (p *registeredProvider) ambiguous(work *IntentWork, trouble *Diagnostic) verdict {
	if p.reconciles(work) {
		return verdict{release: &IntentRelease{Diagnostic: trouble}}
	}
	return p.lost(work, trouble)
}

// reconciles reports whether the reconciler decides about an ambiguous hand-off:
// for its own retry class, and where a cancel forbids to repeat one of class
// native.
func (p *registeredProvider) reconciles(work *IntentWork) bool {
	if p.reconciler == nil || work.harmless() {
		return false
	}
	switch work.Intent.RetryClass {
	case IdempotencyReconcileBeforeRetry:
		return true
	case IdempotencyNative:
		return !work.CancelRequestedAt.IsZero()
	}
	return false
}

// byReconciliation says what follows from a reconciler's answer; nil is none.
func (p *registeredProvider) byReconciliation(work *IntentWork, answer Reconciliation, trouble *Diagnostic) verdict {
	switch answer := answer.(type) {
	case Accepted:
		if err := answer.Receipt.Validate(); err == nil {
			return p.byReceipt(work, &answer.Receipt)
		}
		trouble = &Diagnostic{Phase: PhaseReconcile, Category: CategoryInvalid}
	case NotAccepted:
		if answer.Final {
			return p.again(work, ProofNotAccepted, nil)
		}
	}
	if trouble == nil {
		trouble = &Diagnostic{Phase: PhaseReconcile, Category: CategoryUndecided}
	}
	if work.Looks+1 >= p.options.Reconciliations {
		return unknownOutcome(trouble)
	}
	return verdict{release: &IntentRelease{Diagnostic: trouble}}
}

// byDispatch says what follows from a call of Dispatch under ctx.
func (p *registeredProvider) byDispatch(ctx context.Context, work *IntentWork, receipt *Receipt, err error) verdict {
	switch {
	case err == nil:
		return p.byReceipt(work, receipt)
	case isRefused(err):
		return verdict{settlement: &Settlement{
			State: ActionRejected, Outcome: OutcomeFailed, Cause: CauseRefused, Proof: ProofNotSent,
			Diagnostic: &Diagnostic{Phase: PhaseDispatch, Category: CategoryRefused},
		}}
	case isNotSent(err):
		return p.again(work, ProofNotSent, &Diagnostic{Phase: PhaseDispatch, Category: CategoryNotSent})
	}
	return p.ambiguous(work, trouble(ctx, PhaseDispatch, err))
}

// invalidAnswerError is that of a call which returned what cannot be stored.
type invalidAnswerError struct{ err error }

func (e *invalidAnswerError) Error() string { return e.err.Error() }
func (e *invalidAnswerError) Unwrap() error { return e.err }

// validReceipt is the error of a call of Dispatch that returned no other.
func validReceipt(receipt *Receipt) error {
	if err := receipt.Validate(); err != nil {
		return &invalidAnswerError{err}
	}
	return nil
}

// trouble names what an error of a provider is, without its text.
func trouble(ctx context.Context, phase DiagnosticPhase, err error) *Diagnostic {
	category := CategoryError
	_, panicked := errors.AsType[*PanicError](err)
	_, invalid := errors.AsType[*invalidAnswerError](err)
	switch cause := context.Cause(ctx); {
	case invalid:
		category = CategoryInvalid
	case panicked:
		category = CategoryPanic
	case errors.Is(cause, ErrProviderTimeout):
		category = CategoryTimeout
	case errors.Is(cause, ErrShutdown):
		category = CategoryShutdown
	case errors.Is(cause, ErrLeaseLost):
		category = CategoryLeaseLost
	}
	return &Diagnostic{Phase: phase, Category: category}
}

// noLook is when to look again at work that nobody can look at: its end is told
// by a receipt from elsewhere.
const noLook = 24 * time.Hour
