package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"time"
)

// IntentQueue is what a [Dispatcher] needs of a store of action intents. What
// [WorkQueue] says of calls in general holds here, too.
//
// A queue decides by the rules of [IntentRecord]. Claiming, marking and settling
// are each one transaction, which also writes the wakeup that tells the
// instance. The fence is the lease version of the intent: an instance's own
// claims and commits never void its intents.
//
// An intent that is not there (any more) is nobody's: RecordReceipt is
// [ErrNotFound] for it, all other methods are [ErrLeaseLost].
type IntentQueue interface {
	// ClaimIntents leases intents that are due, never more than req.Limit, and
	// returns at once with none where nothing is due. Those of one capability
	// come in order of due time; across the wanted capabilities that have due
	// intents one is taken in turn, so that none starves another.
	//
	// What [IntentRecord.Admit] says of a due intent is carried out in the same
	// transaction: it is settled, parked or handed out. With req.MarkRepeatable
	// intents that [IntentRecord.Repeatable] are also marked, as by MarkIntent.
	// An intent whose lease has ended is due again.
	ClaimIntents(ctx context.Context, req IntentClaimRequest) ([]IntentWork, error)

	// RenewIntent extends a lease by lease.Duration from the store's now. Only
	// the holder of exactly this lease version, of a lease that has not ended,
	// may: everything else is [ErrLeaseLost]. Repeating it is harmless.
	RenewIntent(ctx context.Context, lease IntentLease) error

	// MarkIntent marks the point of no return, right before the provider is
	// called, and returns the intent as it stands then. [IntentRecord.Mark]
	// decides. Where it refuses with [ErrIntentRefused] what follows (the intent
	// is settled, or parked until it is worth trying) was stored and the lease
	// has ended. Repeating a mark that was set is nil, one that was refused
	// [ErrLeaseLost].
	MarkIntent(ctx context.Context, work *IntentWork) (IntentWork, error)

	// RecordReceipt stores the receipt of a hand-off, from whoever has it, by
	// [IntentRecord.Accept]. From the holder of the lease it also ends the lease
	// and sets when to look at the work. A contradiction is kept as evidence and
	// is [ErrReceiptConflict].
	RecordReceipt(ctx context.Context, work *IntentWork, receipt Receipt) error

	// SettleIntent stores an outcome and tells the instance, by
	// [IntentRecord.Settle], and ends the lease. An agreeing repeat of a terminal
	// outcome is nil, a contradiction is kept as evidence and is
	// [ErrReceiptConflict]; else only the holder may, all others get
	// [ErrLeaseLost].
	SettleIntent(ctx context.Context, work *IntentWork, settlement Settlement) error

	// ReleaseIntent ends the lease without an outcome, by
	// [IntentRecord.Release]. Who does not hold it gets [ErrLeaseLost].
	ReleaseIntent(ctx context.Context, work *IntentWork, release IntentRelease) error
}

// IntentWaiter is an optional ability of an [IntentQueue]: telling when a claim
// is worth trying.
type IntentWaiter interface {
	// WaitIntents blocks until a commit, a freed slot, a resume, a confirmation
	// or a cancel makes an intent of the capabilities (none: all) due, until the
	// next due time or lease end comes, or until ctx ends, whose error it
	// returns. It may wake for nothing.
	WaitIntents(ctx context.Context, capabilities []CapabilityPin) error
}

// IntentOperator is the client side of intents. All queues that we ship have it.
// An unknown intent is [ErrNotFound].
type IntentOperator interface {
	// ConfirmIntent authorizes an intent that awaits confirmation. by names who
	// did, for people. Again is nil; one that was rejected, settled or never
	// awaited one is [ErrIntentConflict].
	ConfirmIntent(ctx context.Context, key IntentKey, by string) error
	// RejectIntent settles an intent that awaits confirmation as rejected, with
	// a reason for its instance. Again is nil; one that was confirmed is
	// [ErrIntentConflict].
	RejectIntent(ctx context.Context, key IntentKey, by, reason string) error
	// ResolveIntent says what became of an intent whose outcome is unknown, or
	// allows a repeat. The same answer again is nil; another one, or an intent
	// that is not unknown, is [ErrIntentConflict].
	ResolveIntent(ctx context.Context, key IntentKey, by string, resolution IntentResolution) error
	// ListIntents yields intents in order of tenant, instance and id. It stops
	// with an error; the pages behind it never see a change by halves, but the
	// listing as a whole is no snapshot.
	ListIntents(ctx context.Context, filter IntentFilter) iter.Seq2[IntentRecord, error]
	// LimitIntents sets how many intents of a scope may be between mark and
	// settlement at one time, over all dispatchers; those in flight count.
	LimitIntents(ctx context.Context, limit IntentLimit) error
}

// IntentKey names an intent.
type IntentKey struct {
	TenantID   string `json:"tenant_id"`
	InstanceID string `json:"instance_id"`
	IntentID   string `json:"intent_id"`
}

// Validate reports a part that no intent has.
func (k *IntentKey) Validate() error {
	if err := errors.Join(checkID("TenantID", k.TenantID), checkID("InstanceID", k.InstanceID), checkID("IntentID", k.IntentID)); err != nil {
		return fmt.Errorf("supervisor: intent key: %w", err)
	}
	return nil
}

// Errors of intents, met with [errors.Is].
var (
	// ErrIntentRefused: the mark was refused and nothing may be sent; see
	// [IntentRefusedError].
	ErrIntentRefused = errors.New("supervisor: hand-off refused")
	// ErrReceiptConflict: a receipt or outcome contradicts what is stored; it
	// was kept as evidence.
	ErrReceiptConflict = errors.New("supervisor: receipt conflicts with the stored one")
	// ErrIntentConflict: an operator's answer contradicts an earlier one, or the
	// intent does not wait for it.
	ErrIntentConflict = errors.New("supervisor: intent does not wait for this answer")
)

// IntentRefusedError is an [ErrIntentRefused] with its cause.
type IntentRefusedError struct{ Cause IntentCause }

func (e *IntentRefusedError) Error() string { return fmt.Sprintf("%v: %s", ErrIntentRefused, e.Cause) }

// Unwrap returns ErrIntentRefused.
func (e *IntentRefusedError) Unwrap() error { return ErrIntentRefused }

// IntentClaimRequest asks for due intents.
type IntentClaimRequest struct {
	// Capabilities are the wanted pins; none means all.
	Capabilities []CapabilityPin `json:"capabilities,omitempty"`
	// WorkerID names the holder of the leases for people.
	WorkerID string `json:"worker_id"`
	// LeaseDuration is how long the claim lasts without renewal; positive.
	LeaseDuration time.Duration `json:"lease_duration"`
	// Limit bounds the number of intents; positive.
	Limit int `json:"limit"`
	// MarkRepeatable saves a write for intents that may be sent again anyway:
	// they are marked by the claim. Set it only where every intent claimed is
	// sent at once.
	MarkRepeatable bool `json:"mark_repeatable,omitempty"`
}

// Validate reports what keeps the request from being served. Every queue
// applies it in ClaimIntents.
func (r *IntentClaimRequest) Validate() error {
	errs := []error{checkID("WorkerID", r.WorkerID)}
	if r.LeaseDuration <= 0 {
		errs = append(errs, fmt.Errorf("LeaseDuration is %v, must be positive", r.LeaseDuration))
	}
	if r.Limit <= 0 {
		errs = append(errs, fmt.Errorf("Limit is %d, must be positive", r.Limit))
	}
	for n := range r.Capabilities {
		errs = append(errs, r.Capabilities[n].validate(fmt.Sprintf("Capabilities[%d]", n)))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("supervisor: intent claim request: %w", err)
	}
	return nil
}

// IntentTask is what a claimed intent needs.
type IntentTask string

// The tasks.
const (
	// IntentTaskDispatch: mark it, unless the claim did, and call the provider.
	IntentTaskDispatch IntentTask = "dispatch"
	// IntentTaskRecover: it was marked and no receipt is stored.
	IntentTaskRecover IntentTask = "recover"
	// IntentTaskObserve: it was accepted; see what became of it. The stored
	// receipt may be terminal.
	IntentTaskObserve IntentTask = "observe"
	// IntentTaskCancel: as observe, and ask the provider first to stop it.
	IntentTaskCancel IntentTask = "cancel"
)

// IntentWork is a claimed intent. It belongs to the caller.
type IntentWork struct {
	IntentRecord
	Task IntentTask `json:"task"`
	// ClaimedAt is when the queue gave it out, by its own clock.
	ClaimedAt time.Time `json:"claimed_at"`
}

// Handoff is the attempt that the work is about.
func (w *IntentWork) Handoff() Handoff {
	return Handoff{Intent: w.Intent.Clone(), Attempt: w.Attempt, MarkedAt: w.MarkedAt}
}

// Lease names the lease of the work, to be renewed by a duration.
func (w *IntentWork) Lease(duration time.Duration) IntentLease {
	return IntentLease{IntentKey: w.Key(), WorkerID: w.LeaseOwner, Version: w.LeaseVersion, Duration: duration}
}

// IntentLease names one acquisition of one intent and how long it is to last
// from now.
type IntentLease struct {
	IntentKey
	WorkerID string        `json:"worker_id"`
	Version  int64         `json:"version"`
	Duration time.Duration `json:"duration"`
}

// Settlement is an outcome to be stored.
type Settlement struct {
	// State is succeeded, rejected, retryable or unknown. Where the intent was
	// unknown before, succeeded and rejected are stored as reconciled.
	State ActionState `json:"state"`
	// Outcome of a rejected intent: failed or cancelled. Others have none to say.
	Outcome IntentOutcome `json:"outcome,omitempty"`
	Cause   IntentCause   `json:"cause,omitempty"`
	// Proof is why it is certain that there was no effect. Without one only
	// intents that change nothing are rejected, and only those that may be
	// repeated anyway are retryable.
	Proof IntentProof `json:"proof,omitempty"`
	// Output of a success, Reason of anything else, for the instance.
	Output json.RawMessage `json:"output,omitempty"`
	Reason string          `json:"reason,omitempty"`
	// Delay until a retryable intent may be sent again.
	Delay time.Duration `json:"delay,omitempty"`
	// Receipt is stored along: the proof of a provider that answered at once.
	Receipt    *Receipt    `json:"receipt,omitempty"`
	Diagnostic *Diagnostic `json:"diagnostic,omitempty"`
}

// IntentProof says how it is known that a hand-off had no effect.
type IntentProof string

// The proofs.
const (
	// ProofNotSent: nothing left the dispatcher, or it was turned away ([NotSent],
	// [Refused]).
	ProofNotSent IntentProof = "not_sent"
	// ProofNotAccepted: a reconciler answered [NotAccepted], final.
	ProofNotAccepted IntentProof = "not_accepted"
	// ProofReported: a receipt or an observation says so.
	ProofReported IntentProof = "reported"
)

// Validate reports what keeps the settlement from being stored. Every queue
// applies it in SettleIntent.
func (s *Settlement) Validate() error {
	if err := s.validate(); err != nil {
		return fmt.Errorf("supervisor: settlement: %w", err)
	}
	return nil
}

func (s *Settlement) validate() error {
	switch s.State {
	case ActionSucceeded, ActionRetryable, ActionUnknown:
		if s.Outcome != "" {
			return fmt.Errorf("Outcome %q of state %q, only a rejected intent has one", s.Outcome, s.State)
		}
	case ActionRejected:
		if s.Outcome != OutcomeFailed && s.Outcome != OutcomeCancelled {
			return fmt.Errorf("Outcome %q of a rejected intent, must be %q or %q", shorten(string(s.Outcome)), OutcomeFailed, OutcomeCancelled)
		}
	default:
		return fmt.Errorf("State %q is no outcome", shorten(string(s.State)))
	}
	switch s.Proof {
	case "", ProofNotSent, ProofNotAccepted, ProofReported:
	default:
		return fmt.Errorf("Proof %q is not known", shorten(string(s.Proof)))
	}
	if !s.Cause.valid() {
		return fmt.Errorf("Cause %q is not known", shorten(string(s.Cause)))
	}
	if len(s.Output) > 0 {
		if s.State != ActionSucceeded {
			return fmt.Errorf("Output of state %q, only a success has one", s.State)
		}
		if err := checkOutput(s.Output); err != nil {
			return err
		}
	}
	if s.Delay < 0 {
		return fmt.Errorf("Delay is %v, must not be negative", s.Delay)
	}
	if s.Receipt != nil {
		if err := s.Receipt.Validate(); err != nil {
			return err
		}
		if !s.Receipt.allows(s) {
			return fmt.Errorf("State %q does not follow from a receipt that is %q", s.State, s.Receipt.Status)
		}
	}
	if s.Diagnostic != nil {
		return s.Diagnostic.validate()
	}
	return nil
}

// IntentRelease ends a lease without an outcome.
type IntentRelease struct {
	// NotHandedOff: the provider was not called for the attempt of this lease. A
	// mark that was set is taken back, the attempt does not count.
	NotHandedOff bool `json:"not_handed_off,omitempty"`
	// CancelAcknowledged: the provider took the request to cancel.
	CancelAcknowledged bool `json:"cancel_acknowledged,omitempty"`
	// After is when the intent is due again; zero leaves it to the rule, which
	// begins with 1 s and doubles up to 1 min.
	After      time.Duration `json:"after,omitempty"`
	Diagnostic *Diagnostic   `json:"diagnostic,omitempty"`
}

// Validate reports what keeps the release from being stored.
func (r *IntentRelease) Validate() error {
	if r.After < 0 {
		return fmt.Errorf("supervisor: intent release: After is %v, must not be negative", r.After)
	}
	if r.Diagnostic != nil {
		if err := r.Diagnostic.validate(); err != nil {
			return fmt.Errorf("supervisor: intent release: %w", err)
		}
	}
	return nil
}

// IntentResolution is an operator's answer for an unknown outcome.
type IntentResolution struct {
	// Kind says which of the three it is.
	Kind IntentResolutionKind `json:"kind"`
	// Attempt is the hand-off that it is about; 0 means the latest.
	Attempt int `json:"attempt,omitempty"`
	// Output of a success. Nil means null.
	Output json.RawMessage `json:"output,omitempty"`
	// Reason of a failure, for the instance.
	Reason string `json:"reason,omitempty"`
}

// IntentResolutionKind is what an operator found.
type IntentResolutionKind string

// The answers.
const (
	ResolveSucceeded IntentResolutionKind = "succeeded"
	ResolveFailed    IntentResolutionKind = "failed"
	// ResolveRepeat allows another attempt: the operator has the proof that the
	// one before has no effect, or takes the risk.
	ResolveRepeat IntentResolutionKind = "repeat"
)

// Validate reports an answer that is none.
func (r *IntentResolution) Validate() error {
	switch r.Kind {
	case ResolveSucceeded, ResolveFailed, ResolveRepeat:
	default:
		return fmt.Errorf("supervisor: intent resolution: Kind %q is not known", shorten(string(r.Kind)))
	}
	if len(r.Output) > 0 {
		if r.Kind != ResolveSucceeded {
			return fmt.Errorf("supervisor: intent resolution: Output of kind %q, only a success has one", r.Kind)
		}
		if err := checkOutput(r.Output); err != nil {
			return fmt.Errorf("supervisor: intent resolution: %w", err)
		}
	}
	return nil
}

// IntentFilter selects intents; empty fields select all.
type IntentFilter struct {
	TenantID   string `json:"tenant_id,omitempty"`
	InstanceID string `json:"instance_id,omitempty"`
	// CapabilityID is that of the pin, whatever its version.
	CapabilityID string      `json:"capability_id,omitempty"`
	State        ActionState `json:"state,omitempty"`
}

// Validate reports a state that no intent has. ListIntents yields its error.
func (f *IntentFilter) Validate() error {
	switch f.State {
	case "", ActionPrepared, ActionAwaitingConfirmation, ActionAuthorized, ActionDispatchCommitted, ActionExecuting,
		ActionSucceeded, ActionRejected, ActionRetryable, ActionUnknown, ActionReconciled:
		return nil
	}
	return fmt.Errorf("supervisor: intent filter: State %q is not known", shorten(string(f.State)))
}

// Matches reports whether the filter selects a record.
func (f *IntentFilter) Matches(r *IntentRecord) bool {
	return (f.TenantID == "" || f.TenantID == r.Intent.TenantID) &&
		(f.InstanceID == "" || f.InstanceID == r.Intent.InstanceID) &&
		(f.CapabilityID == "" || f.CapabilityID == r.Intent.Capability.ID) &&
		(f.State == "" || f.State == r.Intent.State)
}

// IntentLimit bounds the intents of a scope that are between mark and
// settlement. At least one of the two ids is given; both together bound a
// tenant's share of a capability. An intent needs a free slot in each limit that
// covers it.
type IntentLimit struct {
	TenantID     string `json:"tenant_id,omitempty"`
	CapabilityID string `json:"capability_id,omitempty"`
	// Max is positive; 0 removes the limit.
	Max int `json:"max"`
}

// Validate reports what keeps the limit from being set.
func (l *IntentLimit) Validate() error {
	errs := []error{checkOptionalID("TenantID", l.TenantID), checkOptionalID("CapabilityID", l.CapabilityID)}
	if l.TenantID == "" && l.CapabilityID == "" {
		errs = append(errs, errors.New("neither TenantID nor CapabilityID is given"))
	}
	if l.Max < 0 {
		errs = append(errs, fmt.Errorf("Max is %d, must not be negative", l.Max))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("supervisor: intent limit: %w", err)
	}
	return nil
}

// Covers reports whether an intent needs a slot of the limit.
func (l *IntentLimit) Covers(i *ActionIntent) bool {
	return (l.TenantID == "" || l.TenantID == i.TenantID) && (l.CapabilityID == "" || l.CapabilityID == i.Capability.ID)
}
