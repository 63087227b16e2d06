package supervisor

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// IntentRecord is what a queue keeps of an intent. Its methods are the rules of
// dispatch: pure functions of what is stored, exported for queues of your own,
// as those of [Record] are. They know no lock, clock or storage; instants come
// from the queue's clock.
//
// A queue keeps the columns that it selects by (the intent's state, DueAt,
// Parked and the lease) and the rest as it likes, IntentProgress as one JSON
// text for example.
type IntentRecord struct {
	Intent ActionIntent `json:"intent"`
	// DueAt is when a claim has something to do; while a lease is held, its end.
	// Zero: not by itself.
	DueAt time.Time `json:"due_at,omitzero"`
	// Parked says what the intent waits for instead of a time.
	Parked IntentParking `json:"parked,omitempty"`
	// LeaseVersion is raised by every claim. LeaseEndsAt is zero where no lease
	// is held.
	LeaseVersion int64     `json:"lease_version"`
	LeaseOwner   string    `json:"lease_owner,omitempty"`
	LeaseEndsAt  time.Time `json:"lease_ends_at,omitzero"`
	IntentProgress
}

// IntentProgress is how far an intent has come.
type IntentProgress struct {
	// Attempt counts marks; it is the number of the latest hand-off.
	Attempt int `json:"attempt,omitempty"`
	// MarkedAt is when the latest hand-off began: the admission time of its receipt.
	MarkedAt time.Time `json:"marked_at,omitzero"`
	// MarkedUnder is the lease version that marked it.
	MarkedUnder int64 `json:"marked_under,omitempty"`
	// Ambiguous is the number of the first hand-off that may have had an effect
	// of which nothing is known, though the intent was to be sent again because
	// that is safe; 0 for none. What a provider reports of the key settles it.
	Ambiguous int `json:"ambiguous,omitempty"`
	// Receipt of the latest hand-off, nil for none.
	Receipt *Receipt `json:"receipt,omitempty"`
	// Looks counts, since the intent last changed or was given back for a time of
	// its own, observations, reconciliations and requests to cancel that brought
	// nothing new.
	Looks int `json:"looks,omitempty"`

	CancelRequestedAt    time.Time `json:"cancel_requested_at,omitzero"`
	CancelAcknowledgedAt time.Time `json:"cancel_acknowledged_at,omitzero"`

	Outcome   IntentOutcome   `json:"outcome,omitempty"`
	Cause     IntentCause     `json:"cause,omitempty"`
	Output    json.RawMessage `json:"output,omitempty"`
	Reason    string          `json:"reason,omitempty"`
	SettledAt time.Time       `json:"settled_at,omitzero"` // zero: not terminal

	// Diagnostic is the latest trouble, nil for none.
	Diagnostic *Diagnostic `json:"diagnostic,omitempty"`
	// Resolved is the latest answer of an operator, nil for none.
	Resolved *ResolvedIntent `json:"resolved,omitempty"`
	// Evidence are contradictions, the latest [MaxEvidence] of them.
	Evidence []Evidence `json:"evidence,omitempty"`
}

// IntentParking is what an intent waits for.
type IntentParking string

// What intents wait for.
const (
	NotParked IntentParking = ""
	// ParkedByPause: until Resume of what is paused.
	ParkedByPause IntentParking = "pause"
	// ParkedByLimit: until a slot is free.
	ParkedByLimit IntentParking = "limit"
)

// IntentOutcome is what became of an effect.
type IntentOutcome string

// The outcomes.
const (
	OutcomeSucceeded IntentOutcome = "succeeded"
	OutcomeFailed    IntentOutcome = "failed"
	// OutcomeCancelled: it was stopped after the hand-off and did not happen.
	OutcomeCancelled IntentOutcome = "cancelled"
	// OutcomeWithdrawn: it was never handed off.
	OutcomeWithdrawn IntentOutcome = "withdrawn"
	// OutcomeUnknown: it may or may not have happened. It is not final.
	OutcomeUnknown IntentOutcome = "unknown"
)

// IntentCause says why an intent has its outcome, or why a mark was refused.
type IntentCause string

// The causes.
const (
	// CauseReported: the provider said so.
	CauseReported IntentCause = "reported"
	// CauseRefused: the provider turned it away for good.
	CauseRefused IntentCause = "refused"
	// CauseAttempts: the last attempt that is allowed had no effect.
	CauseAttempts IntentCause = "attempts"
	// CauseAmbiguous: the outcome of the last hand-off is not known.
	CauseAmbiguous IntentCause = "ambiguous"
	// CauseStaleEpoch: a pause or cancel came after the intent was made.
	CauseStaleEpoch IntentCause = "stale_epoch"
	// CauseDeadline: it was not handed off in time.
	CauseDeadline IntentCause = "deadline"
	// CauseCancelled: its instance was cancelled.
	CauseCancelled IntentCause = "cancelled"
	// CauseDenied: a human did not confirm it.
	CauseDenied IntentCause = "denied"
	// CauseResolved: an operator said so.
	CauseResolved IntentCause = "resolved"
	// CausePaused and CauseLimit only refuse marks.
	CausePaused IntentCause = "paused"
	CauseLimit  IntentCause = "limit"
)

func (c IntentCause) valid() bool {
	switch c {
	case "", CauseReported, CauseRefused, CauseAttempts, CauseAmbiguous, CauseStaleEpoch, CauseDeadline,
		CauseCancelled, CauseDenied, CauseResolved, CausePaused, CauseLimit:
		return true
	}
	return false
}

// Diagnostic is the trouble of a call, in closed sets: never the provider's own
// text, which may hold secrets.
type Diagnostic struct {
	Phase    DiagnosticPhase    `json:"phase"`
	Category DiagnosticCategory `json:"category"`
	// At is set by the queue.
	At time.Time `json:"at,omitzero"`
}

// DiagnosticPhase is the call that had the trouble.
type DiagnosticPhase string

// The phases.
const (
	PhaseDispatch  DiagnosticPhase = "dispatch"
	PhaseReconcile DiagnosticPhase = "reconcile"
	PhaseObserve   DiagnosticPhase = "observe"
	PhaseCancel    DiagnosticPhase = "cancel"
)

// DiagnosticCategory is the kind of trouble.
type DiagnosticCategory string

// The categories.
const (
	// CategoryError: an error that claims nothing.
	CategoryError DiagnosticCategory = "error"
	// CategoryNotSent and CategoryRefused: an error that claims just that.
	CategoryNotSent DiagnosticCategory = "not_sent"
	CategoryRefused DiagnosticCategory = "refused"
	// CategoryPanic: a panic or runtime.Goexit.
	CategoryPanic DiagnosticCategory = "panic"
	// CategoryTimeout: the provider's timeout passed.
	CategoryTimeout DiagnosticCategory = "timeout"
	// CategoryShutdown and CategoryLeaseLost: the call's context ended for these.
	CategoryShutdown  DiagnosticCategory = "shutdown"
	CategoryLeaseLost DiagnosticCategory = "lease_lost"
	// CategoryAbandoned: the call ignored the end of its context.
	CategoryAbandoned DiagnosticCategory = "abandoned"
	// CategoryInvalid: the answer cannot be stored.
	CategoryInvalid DiagnosticCategory = "invalid"
	// CategoryCrash: the dispatcher ended between mark and receipt.
	CategoryCrash DiagnosticCategory = "crash"
	// CategoryUndecided: the provider could not tell, or its answer is not final.
	CategoryUndecided DiagnosticCategory = "undecided"
	// CategoryUnsupported: the provider lacks the ability.
	CategoryUnsupported DiagnosticCategory = "unsupported"
	// CategoryBreaker: the circuit breaker is open.
	CategoryBreaker DiagnosticCategory = "breaker"
)

func (d *Diagnostic) validate() error {
	switch d.Phase {
	case PhaseDispatch, PhaseReconcile, PhaseObserve, PhaseCancel:
	default:
		return fmt.Errorf("Diagnostic.Phase %q is not known", shorten(string(d.Phase)))
	}
	switch d.Category {
	case CategoryError, CategoryNotSent, CategoryRefused, CategoryPanic, CategoryTimeout, CategoryShutdown, CategoryLeaseLost,
		CategoryAbandoned, CategoryInvalid, CategoryCrash, CategoryUndecided, CategoryUnsupported, CategoryBreaker:
		return nil
	}
	return fmt.Errorf("Diagnostic.Category %q is not known", shorten(string(d.Category)))
}

// Evidence is a receipt or outcome that contradicts what was stored before it.
type Evidence struct {
	At      time.Time      `json:"at"`
	Worker  string         `json:"worker,omitempty"`
	Attempt int            `json:"attempt"`
	Status  ProviderStatus `json:"status,omitempty"`
	// Reference is that of a receipt; OutputDigest of a success's output.
	Reference    string `json:"reference,omitempty"`
	OutputDigest string `json:"output_digest,omitempty"`
}

// MaxEvidence bounds the contradictions that are kept of one intent.
const MaxEvidence = 8

// ResolvedIntent is an operator's answer.
type ResolvedIntent struct {
	IntentResolution
	By string    `json:"by"`
	At time.Time `json:"at"`
}

// IntentControl is what the control plane says of an intent at present.
type IntentControl struct {
	// Epochs are the present ones of its tenant and instance, and the value of
	// its own resource (0 where it has none or that was never paused).
	Epochs ControlEpochs
	// Paused: its tenant, its instance or its resource is.
	Paused bool
	// Finished: the instance is completed or cancelled and takes no wakeups.
	Finished bool
}

// stale reports whether a control call came after the intent was made.
func (c *IntentControl) stale(i *ActionIntent) bool {
	return c.Epochs.Tenant != i.ControlEpochs.Tenant || c.Epochs.Instance != i.ControlEpochs.Instance ||
		c.Epochs.Resource > i.ControlEpochs.Resource
}

// NewIntentRecord is the record of an intent that a commit stores at now. One
// that requires confirmation awaits it.
func NewIntentRecord(intent ActionIntent, now time.Time) IntentRecord {
	r := IntentRecord{Intent: intent, DueAt: now}
	if intent.RequiresConfirmation {
		r.Intent.State = ActionAwaitingConfirmation
		r.DueAt = intent.Deadline
	}
	return r
}

// Key names the intent.
func (r *IntentRecord) Key() IntentKey {
	return IntentKey{TenantID: r.Intent.TenantID, InstanceID: r.Intent.InstanceID, IntentID: r.Intent.ID}
}

// Clone returns a copy that shares no memory with r.
func (r *IntentRecord) Clone() IntentRecord {
	clone := *r
	clone.Intent = r.Intent.Clone()
	clone.Receipt = r.Receipt.clone()
	clone.Output = slices.Clone(r.Output)
	if r.Diagnostic != nil {
		diagnostic := *r.Diagnostic
		clone.Diagnostic = &diagnostic
	}
	if r.Resolved != nil {
		resolved := *r.Resolved
		resolved.Output = slices.Clone(resolved.Output)
		clone.Resolved = &resolved
	}
	clone.Evidence = slices.Clone(r.Evidence)
	return clone
}

func (r *Receipt) clone() *Receipt {
	if r == nil {
		return nil
	}
	clone := *r
	clone.Output = slices.Clone(r.Output)
	return &clone
}

// Waiting reports whether the intent waits for a hand-off: nothing was sent, or
// what was sent provably had no effect or, where Ambiguous is set, may be
// repeated without harm.
func (r *IntentRecord) Waiting() bool {
	switch r.Intent.State {
	case ActionPrepared, ActionAwaitingConfirmation, ActionAuthorized, ActionRetryable:
		return true
	}
	return false
}

// HoldsSlot reports whether the intent counts against limits: it is between
// mark and settlement.
func (r *IntentRecord) HoldsSlot() bool {
	return r.Intent.State == ActionDispatchCommitted || r.Intent.State == ActionExecuting
}

// InFlight reports whether the intent may have, or have had, an effect of which
// the outcome is not known. Prune keeps its instance.
func (r *IntentRecord) InFlight() bool {
	return r.HoldsSlot() || r.Intent.State == ActionUnknown || r.Waiting() && r.Ambiguous != 0
}

// Repeatable reports whether the intent may be sent again though nobody knows
// what became of the attempt before: it changes nothing, or the provider takes
// repeats under one key as one.
func (r *IntentRecord) Repeatable() bool {
	return r.harmless() || r.Intent.RetryClass == IdempotencyNative
}

// harmless reports whether the effect changes nothing.
func (r *IntentRecord) harmless() bool {
	return r.Intent.Effect == EffectPure || r.Intent.Effect == EffectRead
}

// Leased reports whether a lease keeps others away at now.
func (r *IntentRecord) Leased(now time.Time) bool { return r.LeaseEndsAt.After(now) }

// holds reports whether work names the lease that the intent is under, also one
// that has ended but that nobody else took since.
func (r *IntentRecord) holds(work *IntentWork) bool {
	return work.LeaseVersion == r.LeaseVersion && !r.LeaseEndsAt.IsZero()
}
