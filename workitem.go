package supervisor

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Instance is what is started and never changes: the identity of a workflow
// instance and the exact content that it is pinned to for its whole life.
type Instance struct {
	// ID names the instance within its tenant, in at most [MaxIDBytes] bytes.
	ID string `json:"id"`
	// RunID is a UUID in the 36-character form.
	RunID string `json:"run_id"`
	// TenantID is the owner. Everything is keyed by tenant and id: equal ids in
	// two tenants never meet.
	TenantID string `json:"tenant_id"`
	// SubjectID is the user or service on whose behalf the instance runs.
	SubjectID string `json:"subject_id,omitempty"`
	// SpecID selects the driver.
	SpecID string `json:"spec_id"`
	// DefinitionID is the published definition that the revision belongs to.
	DefinitionID string `json:"definition_id"`

	// WorkflowRevision is positive; WorkflowRevisionDigest identifies its content.
	WorkflowRevision       uint64 `json:"workflow_revision"`
	WorkflowRevisionDigest string `json:"workflow_revision_digest"`

	ExecutionProfileID       string `json:"execution_profile_id"`
	ExecutionProfileRevision uint64 `json:"execution_profile_revision"`
	ExecutionProfileDigest   string `json:"execution_profile_digest"`

	// KernelABIVersion is the contract between revision and library.
	KernelABIVersion string `json:"kernel_abi_version"`
	// CapabilityPins are the only capabilities that the instance may dispatch.
	CapabilityPins []CapabilityPin `json:"capability_pins,omitempty"`
	Lifecycle      LifecyclePolicy `json:"lifecycle,omitzero"`
	// Config is the instance's configuration, passed through unchanged. Nil means null.
	Config json.RawMessage `json:"config,omitempty"`
}

// Bounds and defaults of instances.
const (
	// MaxIDBytes bounds every id, delivery key and spec id, so that a key of
	// three of them fits an index entry of every store.
	MaxIDBytes = 512

	DefaultTenantID  = "default"
	DefaultSubjectID = "system"
	// DefaultProfileID names the execution profile of instances made by
	// [NewInstance]; its revision is 1.
	DefaultProfileID = "default"
	// DefaultKernelABIVersion is the ABI that this library implements.
	DefaultKernelABIVersion = "1"
)

// NewInstance returns an instance of a spec that is served by code, every pin
// filled with its default: tenant "default", subject "system", a new run id
// that is also the id, definition equal to the spec, digest
// "code:<spec>@<revision>", profile "default" revision 1, ABI "1". Change any
// field before starting it.
//
// config is encoded as JSON; a [json.RawMessage] is copied unchanged. The error
// names the argument that cannot be used.
func NewInstance(specID string, revision uint64, config any) (Instance, error) {
	raw, err := encodeJSON(config)
	if err != nil {
		return Instance{}, fmt.Errorf("supervisor: config: %w", err)
	}
	runID, err := uuid.NewRandom()
	if err != nil {
		return Instance{}, fmt.Errorf("supervisor: run id: %w", err)
	}
	instance := Instance{
		ID:                       runID.String(),
		RunID:                    runID.String(),
		TenantID:                 DefaultTenantID,
		SubjectID:                DefaultSubjectID,
		SpecID:                   specID,
		DefinitionID:             specID,
		WorkflowRevision:         revision,
		WorkflowRevisionDigest:   codeDigest(specID, revision),
		ExecutionProfileID:       DefaultProfileID,
		ExecutionProfileRevision: 1,
		ExecutionProfileDigest:   "profile:" + DefaultProfileID + "@1",
		KernelABIVersion:         DefaultKernelABIVersion,
		Config:                   bytes.Clone(raw),
	}
	if err := instance.Validate(); err != nil {
		return Instance{}, err
	}
	return instance, nil
}

// codeDigest is the revision digest of a spec whose content is Go code.
func codeDigest(specID string, revision uint64) string {
	return fmt.Sprintf("code:%s@%d", specID, revision)
}

// Validate reports everything that keeps the instance from being started: blank
// or oversized ids, invalid pins, lifecycle, text or JSON. Every queue applies
// it in Start.
func (i *Instance) Validate() error {
	// Pins that must not be blank are the business of validatePins.
	errs := []error{
		i.validatePins(),
		i.Lifecycle.Validate(),
		checkID("ID", i.ID),
		checkID("TenantID", i.TenantID),
		checkID("SpecID", i.SpecID),
		checkOptionalID("SubjectID", i.SubjectID),
		checkOptionalID("DefinitionID", i.DefinitionID),
		checkOptionalID("ExecutionProfileID", i.ExecutionProfileID),
		checkText("WorkflowRevisionDigest", i.WorkflowRevisionDigest),
		checkText("ExecutionProfileDigest", i.ExecutionProfileDigest),
		checkText("KernelABIVersion", i.KernelABIVersion),
	}
	for n := range i.CapabilityPins {
		errs = append(errs, i.CapabilityPins[n].validate(fmt.Sprintf("CapabilityPins[%d]", n)))
	}
	if len(i.Config) > 0 {
		errs = append(errs, checkJSON("Config", i.Config))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("supervisor: instance: %w", err)
	}
	return nil
}

// validatePins checks what every evaluation relies on.
func (i *Instance) validatePins() error {
	for _, pin := range [...]struct{ field, value string }{
		{"DefinitionID", i.DefinitionID},
		{"WorkflowRevisionDigest", i.WorkflowRevisionDigest},
		{"ExecutionProfileID", i.ExecutionProfileID},
		{"ExecutionProfileDigest", i.ExecutionProfileDigest},
		{"KernelABIVersion", i.KernelABIVersion},
	} {
		if isBlank(pin.value) {
			return fmt.Errorf("%s is blank", pin.field)
		}
	}
	if i.WorkflowRevision == 0 {
		return errors.New("WorkflowRevision is 0, must be positive")
	}
	if i.ExecutionProfileRevision == 0 {
		return errors.New("ExecutionProfileRevision is 0, must be positive")
	}
	// uuid.Validate also takes the braced, URN and undashed forms, which
	// stores would hold as different text.
	if len(i.RunID) != 36 {
		return fmt.Errorf("RunID %q is not a UUID in the 36-character form", shorten(i.RunID))
	}
	if err := uuid.Validate(i.RunID); err != nil {
		return fmt.Errorf("RunID %q is not a UUID: %w", shorten(i.RunID), err)
	}
	return nil
}

// CapabilityPin names one exact capability: all three parts must match.
type CapabilityPin struct {
	ID              string `json:"id"`
	ContractVersion string `json:"contract_version"`
	ContentDigest   string `json:"content_digest"`
}

func (p *CapabilityPin) validate(field string) error {
	err := checkID("ID", p.ID)
	if err == nil {
		err = checkRequired("ContractVersion", p.ContractVersion)
	}
	if err == nil {
		err = checkRequired("ContentDigest", p.ContentDigest)
	}
	if err != nil {
		return fmt.Errorf("%s.%w", field, err)
	}
	return nil
}

// ControlEpochs are counters of operator interventions, captured by a claim:
// a command made under epochs that have moved since is refused.
type ControlEpochs struct {
	Tenant   int64 `json:"tenant"`
	Instance int64 `json:"instance"`
	Resource int64 `json:"resource"`
}

// Wakeup is a durable fact that became due for an instance: a delivery or a
// timer. The commit that consumes it does so in its own transaction.
type Wakeup struct {
	// ID makes deliveries idempotent; it is unique within the instance.
	ID   string `json:"id"`
	Kind string `json:"kind"`
	// BranchID is the branch that is addressed; empty for none.
	BranchID string `json:"branch_id,omitempty"`
	// Payload is passed through unchanged. Nil means null.
	Payload json.RawMessage `json:"payload,omitempty"`
}

// Kinds of wakeups that the library itself raises.
const (
	// WakeupKindTimer: by a [LifecyclePolicy].
	WakeupKindTimer = "timer"
	// WakeupKindAction: by the outcome of an intent; see [ActionResult].
	WakeupKindAction = "action"
)

// Validate reports everything that keeps the wakeup from being delivered: a
// blank, reserved or oversized id, a blank kind, a payload beyond
// [MaxClaimWakeupBytes], invalid text or JSON. Every queue applies it in
// Deliver.
func (w *Wakeup) Validate() error {
	errs := []error{checkID("ID", w.ID), checkRequired("Kind", w.Kind), checkOptionalID("BranchID", w.BranchID)}
	for prefix, owner := range map[string]string{lifecycleWakeupPrefix: "lifecycle timers", intentWakeupPrefix: "results of intents"} {
		if strings.HasPrefix(w.ID, prefix) {
			errs = append(errs, fmt.Errorf("ID %q begins with %q, which is kept for %s", shorten(w.ID), prefix, owner))
		}
	}
	switch {
	case len(w.Payload) > MaxClaimWakeupBytes:
		// No claim could ever hold it.
		errs = append(errs, fmt.Errorf("Payload has %d bytes, more than %d", len(w.Payload), MaxClaimWakeupBytes))
	case len(w.Payload) > 0:
		errs = append(errs, checkJSON("Payload", w.Payload))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("supervisor: wakeup: %w", err)
	}
	return nil
}

// Digest returns a digest of kind, branch and payload: the content by which
// queues tell a repeated delivery from one that conflicts. A nil payload and
// null are the same content.
func (w *Wakeup) Digest() string {
	payload := w.Payload
	if len(payload) == 0 {
		payload = json.RawMessage("null")
	}
	content := appendPart(appendPart(nil, w.Kind), w.BranchID)
	return string(appendDigest(nil, sha256.Sum256(append(content, payload...))))
}

// isTerminalAction reports whether the wakeup is a timer that asks the instance
// to converge. Payloads that are not an object with the string kind
// "terminal_action" do not.
func (w *Wakeup) isTerminalAction() bool {
	if w.Kind != WakeupKindTimer {
		return false
	}
	var payload map[string]json.RawMessage
	if json.Unmarshal(w.Payload, &payload) != nil {
		return false
	}
	var kind *string
	return json.Unmarshal(payload["kind"], &kind) == nil && kind != nil && *kind == "terminal_action"
}

// WorkItem is one claimed instance with everything that a driver needs to
// evaluate it. A queue hands out memory that the caller owns.
type WorkItem struct {
	Instance

	// ScheduledAt is when the instance fell due, CreatedAt when it was started
	// and ClaimedAt when it was claimed, all by the queue's clock.
	ScheduledAt time.Time `json:"scheduled_at"`
	CreatedAt   time.Time `json:"created_at"`
	ClaimedAt   time.Time `json:"claimed_at"`

	// State is what the last transition stored; it equals Config before the
	// first one.
	State json.RawMessage `json:"state,omitempty"`
	// StateVersion is the compare-and-swap version of State: 0 before the first
	// transition, then one more with each. A failure that was recorded is one too,
	// and leaves State as it is.
	StateVersion    int64         `json:"state_version"`
	ControlEpochs   ControlEpochs `json:"control_epochs"`
	CancelRequested bool          `json:"cancel_requested,omitempty"`
	// LeaseVersion is the fencing number, raised by every acquisition.
	LeaseVersion int64 `json:"lease_version"`
	// Attempt counts the evaluations in a row that failed before this one.
	Attempt int `json:"attempt,omitempty"`
	// Wakeups are the due timers and deliveries, oldest first.
	Wakeups []Wakeup `json:"wakeups,omitempty"`
}

// IsConverging reports whether this claim only has to bring the instance to its
// end: cancellation was requested, or one of its wakeups is a timer whose
// payload is an object with the kind "terminal_action".
func (w *WorkItem) IsConverging() bool {
	if w.CancelRequested {
		return true
	}
	for n := range w.Wakeups {
		if w.Wakeups[n].isTerminalAction() {
			return true
		}
	}
	return false
}

// ValidatePins reports the first pin that is missing or out of range; the error
// names the field. An item that fails it is never evaluated.
func (w *WorkItem) ValidatePins() error {
	if err := w.validatePins(); err != nil {
		return fmt.Errorf("supervisor: work item: %w", err)
	}
	for _, version := range [...]struct {
		field        string
		value, least int64
	}{
		{"StateVersion", w.StateVersion, 0},
		{"ControlEpochs.Tenant", w.ControlEpochs.Tenant, 0},
		{"ControlEpochs.Instance", w.ControlEpochs.Instance, 0},
		{"LeaseVersion", w.LeaseVersion, 1},
	} {
		if version.value < version.least {
			return fmt.Errorf("supervisor: work item: %s is %d, must be at least %d", version.field, version.value, version.least)
		}
	}
	return nil
}

// Clone returns a deep copy that shares no memory with w.
func (w *WorkItem) Clone() WorkItem {
	// All JSON of the copy lives in one buffer: a claim is copied for every
	// evaluation, and one allocation is cheaper than one for each value.
	size := len(w.Config) + len(w.State)
	for n := range w.Wakeups {
		size += len(w.Wakeups[n].Payload)
	}
	arena := make([]byte, 0, size)
	item := *w
	item.Config, arena = cloneInto(arena, w.Config)
	item.State, arena = cloneInto(arena, w.State)
	if w.CapabilityPins != nil {
		item.CapabilityPins = append(make([]CapabilityPin, 0, len(w.CapabilityPins)), w.CapabilityPins...)
	}
	if w.Wakeups != nil {
		item.Wakeups = append(make([]Wakeup, 0, len(w.Wakeups)), w.Wakeups...)
		for n := range item.Wakeups {
			item.Wakeups[n].Payload, arena = cloneInto(arena, w.Wakeups[n].Payload)
		}
	}
	return item
}

// cloneInto appends raw to arena and returns the copy, cut to its length so
// that an append to it cannot reach its neighbour, and the arena.
func cloneInto(arena []byte, raw json.RawMessage) (json.RawMessage, []byte) {
	if raw == nil {
		return nil, arena
	}
	start := len(arena)
	arena = append(arena, raw...)
	return arena[start:len(arena):len(arena)], arena
}
