package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"time"
)

// Provider carries out the effects of one capability. Its methods are called by
// many goroutines at once, for different intents; for the same one only while a
// call whose lease was lost, or that was abandoned, still runs.
type Provider interface {
	// Dispatch hands an effect off and blocks until it is known to be accepted.
	// It owns its argument. How it ends decides what may follow:
	//
	//   - a receipt: the effect was accepted. It may be terminal at once,
	//   - [NotSent]: proof that nothing left this process, or that it was turned
	//     away without an effect; it may be tried again,
	//   - [Refused]: proof that it was turned away for good,
	//   - anything else, another error, a panic, the end of ctx, an invalid
	//     receipt: nobody knows. It is then treated exactly like a crash in the
	//     middle of the call.
	//
	// ctx ends with the dispatcher's lease and with the provider's timeout.
	Dispatch(ctx context.Context, handoff *Handoff) (Receipt, error)
}

// ReceiptObserver is an optional ability of a [Provider]: looking at work that
// it accepted.
type ReceiptObserver interface {
	// Observe says what became of accepted work. It changes nothing. An error
	// says nothing about the work: it is asked again later.
	Observe(ctx context.Context, handoff *Handoff, receipt Receipt) (Report, error)
}

// Reconciler is an optional ability of a [Provider]: finding out whether a
// hand-off of which no receipt was stored was accepted.
type Reconciler interface {
	// Reconcile answers [Accepted], [NotAccepted] or [CannotTell]; an error is
	// the last of them. Only NotAccepted with Final allows a repeat.
	Reconcile(ctx context.Context, handoff *Handoff) (Reconciliation, error)
}

// Canceller is an optional ability of a [Provider]: asking it to stop accepted
// work.
type Canceller interface {
	// Cancel asks, and returns nil when the provider has acknowledged. It proves
	// nothing about the outcome, which is observed as before: work that succeeded
	// all the same stays a success. It is called again after an error, so it must
	// be harmless to repeat.
	Cancel(ctx context.Context, handoff *Handoff, receipt Receipt) error
}

// Handoff is one attempt to have an effect carried out.
type Handoff struct {
	// Intent is what to do. Its IdempotencyKey stays the same over all attempts.
	Intent ActionIntent
	// Attempt is the number of this attempt, from 1. It makes, with the intent's
	// id, the identity of the hand-off, under which a provider that reconciles
	// remembers it.
	Attempt int
	// MarkedAt is when the hand-off began, by the queue's clock.
	MarkedAt time.Time
}

// Identity names the hand-off: the intent's tenant, instance and id, each escaped
// as a path segment, and the number of the attempt. No two hand-offs have the
// same, and it is fit for a header.
func (h *Handoff) Identity() string {
	return fmt.Sprintf("%s/%s/%s/%d", url.PathEscape(h.Intent.TenantID), url.PathEscape(h.Intent.InstanceID),
		url.PathEscape(h.Intent.ID), h.Attempt)
}

// ProviderStatus is what a provider says about work.
type ProviderStatus string

// The statuses that a provider gives.
const (
	// ProviderRunning: accepted and not ended. It is the meaning of an empty status.
	ProviderRunning ProviderStatus = "running"
	// ProviderSucceeded: the effect happened.
	ProviderSucceeded ProviderStatus = "succeeded"
	// ProviderFailed: it ended and the effect did not happen.
	ProviderFailed ProviderStatus = "failed"
	// ProviderRetryable: as failed, and another attempt may succeed.
	ProviderRetryable ProviderStatus = "retryable"
	// ProviderCancelled: it was stopped and the effect did not happen.
	ProviderCancelled ProviderStatus = "cancelled"
	// ProviderUnknown: the provider has lost track of it.
	ProviderUnknown ProviderStatus = "unknown"
)

// Report is what a provider says about work that it accepted.
type Report struct {
	// Status; empty means running.
	Status ProviderStatus `json:"status,omitempty"`
	// Output of a success, of at most [MaxOutputBytes]; white space in it may be
	// lost. Nil means null.
	Output json.RawMessage `json:"output,omitempty"`
	// Reason tells the workflow why there is no success, in at most
	// [MaxReasonBytes]; what is beyond is cut.
	Reason string `json:"reason,omitempty"`
	// After is when to look again at running work; zero leaves it to the
	// dispatcher, which begins with 1 s and doubles up to 1 min.
	After time.Duration `json:"after,omitempty"`
}

// Receipt is the proof that an effect was accepted.
type Receipt struct {
	// Reference is the provider's own name of the work, by which it is observed
	// and cancelled, in at most [MaxReferenceBytes]; it may be empty.
	Reference string `json:"reference,omitempty"`
	Report
}

// Bounds of what providers and operators say.
const (
	MaxReferenceBytes = 4096
	MaxOutputBytes    = 1 << 20
)

// Terminal reports whether the work has ended.
func (r *Report) Terminal() bool {
	switch r.Status {
	case ProviderSucceeded, ProviderFailed, ProviderRetryable, ProviderCancelled:
		return true
	}
	return false
}

// Validate reports what keeps the report from being stored: an unknown status,
// an output of other work than a success, a negative delay, or text and JSON
// that no store holds.
func (r *Report) Validate() error {
	switch r.Status {
	case "", ProviderRunning, ProviderSucceeded, ProviderFailed, ProviderRetryable, ProviderCancelled, ProviderUnknown:
	default:
		return fmt.Errorf("supervisor: report: Status %q is not known", shorten(string(r.Status)))
	}
	if r.After < 0 {
		return fmt.Errorf("supervisor: report: After is %v, must not be negative", r.After)
	}
	if len(r.Output) == 0 {
		return nil
	}
	if r.Status != ProviderSucceeded {
		return fmt.Errorf("supervisor: report: Output of work that is %q, only a success has one", r.Status)
	}
	if err := checkOutput(r.Output); err != nil {
		return fmt.Errorf("supervisor: report: %w", err)
	}
	return nil
}

func checkOutput(output json.RawMessage) error {
	if len(output) > MaxOutputBytes {
		return fmt.Errorf("Output has %d bytes, more than %d", len(output), MaxOutputBytes)
	}
	return checkJSON("Output", output)
}

// Validate is that of the report and of the reference.
func (r *Receipt) Validate() error {
	if len(r.Reference) > MaxReferenceBytes {
		return fmt.Errorf("supervisor: receipt: Reference has %d bytes, more than %d", len(r.Reference), MaxReferenceBytes)
	}
	if err := checkText("Reference", r.Reference); err != nil {
		return fmt.Errorf("supervisor: receipt: %w", err)
	}
	return r.Report.Validate()
}

// Reconciliation is what a [Reconciler] found: [Accepted], [NotAccepted] or
// [CannotTell].
type Reconciliation interface{ reconciliation() }

// Accepted says that the hand-off was accepted, with this receipt.
type Accepted struct{ Receipt Receipt }

// NotAccepted says that the hand-off was not accepted so far. With Final the provider
// will also refuse it from now on, should it arrive late, so that the next
// attempt cannot be a second one. Without, it is asked again later.
type NotAccepted struct{ Final bool }

// CannotTell says that the provider does not know.
type CannotTell struct{}

func (Accepted) reconciliation()    {}
func (NotAccepted) reconciliation() {}
func (CannotTell) reconciliation()  {}

// NotSent marks a provider's error as proof that the hand-off had no effect and
// never will: nothing left the process, or it was turned away. The intent may be
// sent again. A nil error stays nil.
func NotSent(err error) error {
	if err == nil {
		return nil
	}
	return &notSentError{err}
}

type notSentError struct{ err error }

func (e *notSentError) Error() string { return errorText(e.err) }
func (e *notSentError) Unwrap() error { return e.err }

// Refused marks a provider's error as proof that the effect was turned away for
// good: the intent is rejected, also where the error is [NotSent], too. A nil
// error stays nil.
func Refused(err error) error {
	if err == nil {
		return nil
	}
	return &refusedError{err}
}

type refusedError struct{ err error }

func (e *refusedError) Error() string { return errorText(e.err) }
func (e *refusedError) Unwrap() error { return e.err }

func isNotSent(err error) bool {
	_, ok := errors.AsType[*notSentError](err)
	return ok
}

func isRefused(err error) bool {
	_, ok := errors.AsType[*refusedError](err)
	return ok
}
