package supervisor

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// ActionState is where an intent stands between preparation and settlement.
type ActionState string

// The states of an intent.
const (
	// ActionPrepared: persisted by a command, not yet looked at.
	ActionPrepared ActionState = "prepared"
	// ActionAwaitingConfirmation: a human has to allow it.
	ActionAwaitingConfirmation ActionState = "awaiting_confirmation"
	// ActionAuthorized: may be sent.
	ActionAuthorized ActionState = "authorized"
	// ActionDispatchCommitted: the point of no return is marked; it may have been sent.
	ActionDispatchCommitted ActionState = "dispatch_committed"
	// ActionExecuting: the provider accepted it.
	ActionExecuting ActionState = "executing"
	// ActionSucceeded: the effect happened.
	ActionSucceeded ActionState = "succeeded"
	// ActionRejected: the effect did not happen and will not.
	ActionRejected ActionState = "rejected"
	// ActionRetryable: this attempt provably had no effect; another may follow.
	ActionRetryable ActionState = "retryable"
	// ActionUnknown: whether the effect happened cannot be told.
	ActionUnknown ActionState = "unknown"
	// ActionReconciled: an unknown outcome was found out.
	ActionReconciled ActionState = "reconciled"
)

// CanTransitionTo reports whether an intent in state s may move to next. From
// unknown an intent moves to retryable only after reconciliation showed that a
// repeat is harmless; proving that is the caller's duty.
func (s ActionState) CanTransitionTo(next ActionState) bool {
	switch s {
	case ActionPrepared:
		return next == ActionAwaitingConfirmation || next == ActionAuthorized || next == ActionRejected
	case ActionAwaitingConfirmation:
		return next == ActionAuthorized || next == ActionRejected
	case ActionAuthorized:
		return next == ActionDispatchCommitted || next == ActionRejected
	case ActionDispatchCommitted:
		return next == ActionExecuting || next == ActionSucceeded || next == ActionRejected ||
			next == ActionRetryable || next == ActionUnknown
	case ActionExecuting:
		return next == ActionSucceeded || next == ActionRejected || next == ActionRetryable || next == ActionUnknown
	case ActionRetryable:
		return next == ActionDispatchCommitted || next == ActionRejected
	case ActionUnknown:
		return next == ActionReconciled || next == ActionRetryable
	}
	return false
}

// DispatchCommitted reports whether the effect may have happened: the point of
// no return was marked and no proof says otherwise.
func (s ActionState) DispatchCommitted() bool {
	switch s {
	case ActionDispatchCommitted, ActionExecuting, ActionSucceeded, ActionUnknown, ActionReconciled:
		return true
	}
	return false
}

// Terminal reports whether no further move is allowed.
func (s ActionState) Terminal() bool {
	return s == ActionSucceeded || s == ActionRejected || s == ActionReconciled
}

// Effect classifies what an action does to the world.
type Effect string

// The effects, from harmless to costly.
const (
	EffectPure          Effect = "pure"
	EffectRead          Effect = "read"
	EffectInternalWrite Effect = "internal_write"
	EffectExternalWrite Effect = "external_write"
	// EffectFunds moves money or its like; it needs a reservation.
	EffectFunds Effect = "funds"
)

func (e Effect) valid() bool {
	switch e {
	case EffectPure, EffectRead, EffectInternalWrite, EffectExternalWrite, EffectFunds:
		return true
	}
	return false
}

// IdempotencyMode says what may be done with an intent whose outcome is not known.
type IdempotencyMode string

// The idempotency modes.
const (
	// IdempotencyNone: the provider cannot tell repeats apart.
	IdempotencyNone IdempotencyMode = "none"
	// IdempotencyNative: the provider takes repeats under one key as one.
	IdempotencyNative IdempotencyMode = "native"
	// IdempotencyReconcileBeforeRetry: the provider can say what became of it.
	IdempotencyReconcileBeforeRetry IdempotencyMode = "reconcile_before_retry"
	// IdempotencyNeverAutomaticRetry: only an operator may allow a repeat.
	IdempotencyNeverAutomaticRetry IdempotencyMode = "never_automatic_retry"
)

func (m IdempotencyMode) valid() bool {
	switch m {
	case IdempotencyNone, IdempotencyNative, IdempotencyReconcileBeforeRetry, IdempotencyNeverAutomaticRetry:
		return true
	}
	return false
}

// ResourceReservationRef points at a reservation that the product holds and
// fences elsewhere; the library only carries it.
type ResourceReservationRef struct {
	ID           string `json:"id"`
	FencingToken int64  `json:"fencing_token,omitempty"`
}

// ActionIntent is an external effect that a command asks for. The commit
// persists it; it is dispatched afterwards, never during evaluation.
//
// A driver fills in ID, Capability, IdempotencyKey, Effect and RetryClass as it
// likes, State with [ActionPrepared], and from its item TenantID, InstanceID,
// RunID, ControlEpochs, LeaseEpoch (LeaseVersion) and ActionEpoch (StateVersion).
// The rest is optional.
type ActionIntent struct {
	// ID names the intent within its tenant and instance, for good: one that an
	// instance has had is refused.
	ID         string `json:"id"`
	TenantID   string `json:"tenant_id"`
	InstanceID string `json:"instance_id"`
	RunID      string `json:"run_id"`
	// Capability must be exactly one of the instance's pins.
	Capability CapabilityPin `json:"capability"`
	// IdempotencyKey is what the provider sees; it stays the same over repeats.
	IdempotencyKey string      `json:"idempotency_key"`
	State          ActionState `json:"state"`
	// Input is passed through unchanged. Nil means null.
	Input         json.RawMessage `json:"input,omitempty"`
	Effect        Effect          `json:"effect"`
	RetryClass    IdempotencyMode `json:"retry_class"`
	ControlEpochs ControlEpochs   `json:"control_epochs"`
	// ResourceScopeID is the resource whose pause holds the intent back; empty for none.
	ResourceScopeID string `json:"resource_scope_id,omitempty"`
	// LeaseEpoch and ActionEpoch are the lease version and the state version
	// that made the intent.
	LeaseEpoch  int64 `json:"lease_epoch"`
	ActionEpoch int64 `json:"action_epoch"`
	// Deadline is the latest instant for the hand-off; zero for none.
	Deadline    time.Time               `json:"deadline,omitzero"`
	Reservation *ResourceReservationRef `json:"reservation,omitempty"`
	CreatedAt   time.Time               `json:"created_at,omitzero"`
	// RequiresConfirmation holds the intent back until a human allows it; the
	// commit stores it as awaiting confirmation.
	RequiresConfirmation bool `json:"requires_confirmation,omitempty"`
	// Confirmation is who decided and when; nil while nobody has. It is the
	// queue's to set.
	Confirmation *Confirmation `json:"confirmation,omitempty"`
}

// NewIntent returns a prepared intent of a claimed item, for the command of its
// evaluation: scope, run, epochs and versions are the item's, the idempotency key
// is made of the run and the id, so that it is the same whenever this run asks for
// this intent. It is an external write of class none, the most careful kind;
// change Effect, RetryClass and any other field before it is committed.
//
// input is encoded as JSON; a [json.RawMessage] is copied unchanged. The error
// names the argument that cannot be used.
func NewIntent(item *WorkItem, id string, capability CapabilityPin, input any) (ActionIntent, error) {
	raw, err := encodeJSON(input)
	if err != nil {
		return ActionIntent{}, fmt.Errorf("supervisor: action intent %q: input: %w", shorten(id), err)
	}
	intent := ActionIntent{
		ID:             id,
		TenantID:       item.TenantID,
		InstanceID:     item.ID,
		RunID:          item.RunID,
		Capability:     capability,
		IdempotencyKey: item.RunID + "/" + id,
		State:          ActionPrepared,
		Input:          bytes.Clone(raw),
		Effect:         EffectExternalWrite,
		RetryClass:     IdempotencyNone,
		ControlEpochs:  item.ControlEpochs,
		LeaseEpoch:     item.LeaseVersion,
		ActionEpoch:    item.StateVersion,
	}
	if err := intent.ValidatePrepared(); err != nil {
		return ActionIntent{}, err
	}
	return intent, nil
}

// Confirmation is a human's decision about an intent.
type Confirmation struct {
	By string    `json:"by"`
	At time.Time `json:"at"`
}

// Clone returns a copy that shares no memory with i.
func (i *ActionIntent) Clone() ActionIntent {
	clone := *i
	clone.Input = bytes.Clone(i.Input)
	if i.Reservation != nil {
		reservation := *i.Reservation
		clone.Reservation = &reservation
	}
	if i.Confirmation != nil {
		confirmation := *i.Confirmation
		clone.Confirmation = &confirmation
	}
	return clone
}

// ValidatePrepared reports what keeps the intent from being persisted: a state
// other than prepared, a blank id, scope, key or pin, an unknown effect or
// retry class, negative epochs, funds without a reservation, or text, JSON and
// instants that a store cannot hold.
func (i *ActionIntent) ValidatePrepared() error {
	if err := i.validatePrepared(); err != nil {
		return fmt.Errorf("supervisor: action intent %q: %w", shorten(i.ID), err)
	}
	return nil
}

func (i *ActionIntent) validatePrepared() error {
	if i.State != ActionPrepared {
		return fmt.Errorf("State is %q, must be %q", shorten(string(i.State)), ActionPrepared)
	}
	for _, id := range [...]struct{ field, value string }{
		{"ID", i.ID}, {"TenantID", i.TenantID}, {"InstanceID", i.InstanceID}, {"RunID", i.RunID},
		{"IdempotencyKey", i.IdempotencyKey},
	} {
		if err := checkID(id.field, id.value); err != nil {
			return err
		}
	}
	if err := i.Capability.validate("Capability"); err != nil {
		return err
	}
	if err := checkOptionalID("ResourceScopeID", i.ResourceScopeID); err != nil {
		return err
	}
	if !i.Effect.valid() {
		return fmt.Errorf("Effect %q is not known", shorten(string(i.Effect)))
	}
	if !i.RetryClass.valid() {
		return fmt.Errorf("RetryClass %q is not known", shorten(string(i.RetryClass)))
	}
	for _, epoch := range [...]struct {
		field string
		value int64
	}{
		{"ControlEpochs.Tenant", i.ControlEpochs.Tenant},
		{"ControlEpochs.Instance", i.ControlEpochs.Instance},
		{"ControlEpochs.Resource", i.ControlEpochs.Resource},
		{"LeaseEpoch", i.LeaseEpoch},
		{"ActionEpoch", i.ActionEpoch},
	} {
		if epoch.value < 0 {
			return fmt.Errorf("%s is %d, must not be negative", epoch.field, epoch.value)
		}
	}
	if i.Confirmation != nil {
		return errors.New("Confirmation is set, only the queue does that")
	}
	if i.Reservation != nil {
		if err := checkID("Reservation.ID", i.Reservation.ID); err != nil {
			return err
		}
	} else if i.Effect == EffectFunds {
		return errors.New("Reservation is nil, funds need one")
	}
	if len(i.Input) > 0 {
		if err := checkJSON("Input", i.Input); err != nil {
			return err
		}
	}
	if err := checkInstant("Deadline", i.Deadline); err != nil {
		return err
	}
	return checkInstant("CreatedAt", i.CreatedAt)
}
