package supervisor

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"
)

// TransitionCommand is the only result of an evaluation. A queue commits all
// of it in one transaction or nothing.
type TransitionCommand struct {
	// DeliveryKey makes the commit idempotent: the same key with the same
	// digest is applied once, with another digest it is a conflict.
	DeliveryKey    string `json:"delivery_key"`
	DeliveryDigest string `json:"delivery_digest"`

	// The event is appended to the instance's history. A nil payload means null.
	EventType    string          `json:"event_type"`
	EventDigest  string          `json:"event_digest"`
	EventPayload json.RawMessage `json:"event_payload,omitempty"`

	// NextState replaces the state; it must not be nil.
	NextState json.RawMessage `json:"next_state,omitempty"`
	// ActionIntents are persisted with the command and dispatched afterwards.
	ActionIntents []ActionIntent `json:"action_intents,omitempty"`
	// Outcome is what the lifecycle's completion policy counts.
	Outcome EvaluationOutcome `json:"outcome,omitzero"`
	// ConsumedWakeups are ids of claimed wakeups that never come again.
	ConsumedWakeups []string `json:"consumed_wakeups,omitempty"`
	// Disposition says what happens to the instance next.
	Disposition Disposition `json:"disposition"`
}

// EvaluationOutcome tells the completion policy what one evaluation did.
type EvaluationOutcome struct {
	// Triggered: a trigger or schedule occurrence was consumed.
	Triggered bool `json:"triggered,omitempty"`
	// Matched: an event passed a material step.
	Matched bool `json:"matched,omitempty"`
	// Succeeded: an event reached a sink or the final step.
	Succeeded bool `json:"succeeded,omitempty"`
	// ActionTerminal: a terminal outcome of an action was observed.
	ActionTerminal bool `json:"action_terminal,omitempty"`
}

// EventEvaluationFailed is the type of the events that [FailureCommand] makes.
const EventEvaluationFailed = "workflow.evaluation_failed"

// NewCommand returns a command for what was claimed with key and digests
// (SHA-256) filled in. payload and nextState are encoded as JSON; a
// [json.RawMessage] is taken as it is, without a copy or a check, and nil is
// null. Set intents, outcome and consumed wakeups afterwards.
//
// The key is unique per tenant, instance and state version.
func NewCommand(item *WorkItem, eventType string, payload, nextState any, d Disposition) (TransitionCommand, error) {
	if d == nil {
		return TransitionCommand{}, errors.New("supervisor: command: Disposition is nil")
	}
	rawPayload, err := encodeJSON(payload)
	if err != nil {
		return TransitionCommand{}, fmt.Errorf("supervisor: command: payload: %w", err)
	}
	rawState, err := encodeJSON(nextState)
	if err != nil {
		return TransitionCommand{}, fmt.Errorf("supervisor: command: next state: %w", err)
	}
	return digested(item, "transition", TransitionCommand{
		EventType:    eventType,
		EventPayload: rawPayload,
		NextState:    rawState,
		Disposition:  d,
	}), nil
}

// FailureCommand records a failed evaluation: the state stays, nothing is
// consumed, no intents. A zero retryAt fails the instance for good. The reason
// is made valid UTF-8 without NUL and cut to [MaxReasonBytes], visibly; a blank
// one is replaced. The command shares the memory of the item's state.
func FailureCommand(item *WorkItem, reason string, retryAt time.Time) TransitionCommand {
	return failureCommand(item, reason, "", retryAt)
}

func failureCommand(item *WorkItem, reason string, class FailureClass, retryAt time.Time) TransitionCommand {
	reason = cleanReason(reason)
	if isBlank(reason) {
		reason = "evaluation failed without a reason"
	}
	state := item.State
	if len(state) == 0 {
		state = json.RawMessage("null")
	}
	// Two strings always encode.
	payload, _ := encodeJSON(failurePayload{Error: reason, Class: class})
	return digested(item, "failure", TransitionCommand{
		EventType:    EventEvaluationFailed,
		EventPayload: payload,
		NextState:    state,
		Disposition:  Failed{Reason: reason, RetryAt: retryAt},
	})
}

// digested fills key and digests. Every part of a hashed text is preceded by
// its length, so that no two sequences of parts read the same.
//
// The texts share one string, and what is hashed is gathered on the stack while
// it is small: a command is made for every transition.
func digested(item *WorkItem, kind string, c TransitionCommand) TransitionCommand {
	var space [1024]byte
	identity := sha256.Sum256(appendPart(appendPart(space[:0], item.TenantID), item.ID))

	content := appendPart(space[:0], c.EventType)
	event := sha256.Sum256(appendPart(content, c.EventPayload))

	disposition, detail := dispositionText(c.Disposition)
	content = append(space[:0], event[:]...)
	content = appendPart(appendPart(content, disposition), detail)
	delivery := sha256.Sum256(append(content, c.NextState...))

	var texts [256]byte
	key := append(append(texts[:0], kind...), ':')
	key = append(hex.AppendEncode(key, identity[:16]), ':')
	key = strconv.AppendInt(key, item.StateVersion, 10)
	withEvent := appendDigest(key, event)
	all := string(appendDigest(withEvent, delivery))
	c.DeliveryKey = all[:len(key)]
	c.EventDigest = all[len(key):len(withEvent)]
	c.DeliveryDigest = all[len(withEvent):]
	return c
}

func appendDigest(text []byte, sum [sha256.Size]byte) []byte {
	return hex.AppendEncode(append(text, digestPrefix...), sum[:])
}

// appendPart appends a part of a hashed content, preceded by its length.
func appendPart[T string | []byte | json.RawMessage](content []byte, part T) []byte {
	content = binary.AppendUvarint(content, uint64(len(part)))
	return append(content, part...)
}

// Clone returns a deep copy that shares no memory with c.
func (c *TransitionCommand) Clone() TransitionCommand {
	size := len(c.EventPayload) + len(c.NextState)
	for n := range c.ActionIntents {
		size += len(c.ActionIntents[n].Input)
	}
	arena := make([]byte, 0, size)
	command := *c
	command.EventPayload, arena = cloneInto(arena, c.EventPayload)
	command.NextState, arena = cloneInto(arena, c.NextState)
	if c.ActionIntents != nil {
		command.ActionIntents = append(make([]ActionIntent, 0, len(c.ActionIntents)), c.ActionIntents...)
		for n := range command.ActionIntents {
			intent := &command.ActionIntents[n]
			intent.Input, arena = cloneInto(arena, intent.Input)
			if intent.Reservation != nil {
				reservation := *intent.Reservation
				intent.Reservation = &reservation
			}
		}
	}
	if c.ConsumedWakeups != nil {
		command.ConsumedWakeups = append(make([]string, 0, len(c.ConsumedWakeups)), c.ConsumedWakeups...)
	}
	return command
}

// ValidateFor is what a pass checks of a driver's command before it commits
// it: the item's pins and everything that [TransitionCommand.ValidateContent]
// checks. The error names what is wrong.
func (c *TransitionCommand) ValidateFor(item *WorkItem) error {
	if err := item.ValidatePins(); err != nil {
		return err
	}
	return c.ValidateContent(item)
}

// ValidateContent is the part of the check that every queue repeats at the
// commit, answering [ErrCommandRejected] with its error: all queues give the
// same verdict on the same command. It leaves out the item's own pins, so that
// the failure of an item with invalid pins can be stored.
func (c *TransitionCommand) ValidateContent(item *WorkItem) error {
	if err := c.validateContent(item); err != nil {
		return fmt.Errorf("supervisor: command: %w", err)
	}
	return nil
}

func (c *TransitionCommand) validateContent(item *WorkItem) error {
	for _, text := range [...]struct{ field, value string }{
		{"DeliveryDigest", c.DeliveryDigest}, {"EventType", c.EventType}, {"EventDigest", c.EventDigest},
	} {
		if err := checkRequired(text.field, text.value); err != nil {
			return err
		}
	}
	if err := checkID("DeliveryKey", c.DeliveryKey); err != nil {
		return err
	}
	if err := checkDisposition(c.Disposition); err != nil {
		return err
	}
	if len(c.NextState) == 0 {
		return errors.New("NextState is nil")
	}
	if err := checkJSON("NextState", c.NextState); err != nil {
		return err
	}
	if len(c.EventPayload) > 0 {
		if err := checkJSON("EventPayload", c.EventPayload); err != nil {
			return err
		}
	}
	if err := c.validateConsumed(item); err != nil {
		return err
	}
	if item.CancelRequested && len(c.ActionIntents) > 0 {
		return errors.New("ActionIntents is not empty, but cancellation was requested")
	}
	intents := newIDSet(len(c.ActionIntents))
	for n := range c.ActionIntents {
		intent := &c.ActionIntents[n]
		if err := intent.validateFor(item); err != nil {
			return fmt.Errorf("ActionIntents[%d] %q: %w", n, shorten(intent.ID), err)
		}
		if !intents.add(intent.ID) {
			return fmt.Errorf("ActionIntents[%d] repeats the ID %q", n, shorten(intent.ID))
		}
	}
	return nil
}

func (c *TransitionCommand) validateConsumed(item *WorkItem) error {
	if len(c.ConsumedWakeups) == 0 {
		return nil
	}
	if _, failed := c.Disposition.(Failed); failed && !c.Outcome.Triggered {
		return errors.New("ConsumedWakeups is not empty, but a Failed command consumes only when Outcome.Triggered")
	}
	left := newIDSet(len(item.Wakeups))
	for n := range item.Wakeups {
		left.add(item.Wakeups[n].ID)
	}
	for n, id := range c.ConsumedWakeups {
		if left.remove(id) {
			continue
		}
		if slices.Contains(c.ConsumedWakeups[:n], id) {
			return fmt.Errorf("ConsumedWakeups[%d] repeats %q", n, shorten(id))
		}
		return fmt.Errorf("ConsumedWakeups[%d] %q was not claimed", n, shorten(id))
	}
	return nil
}

// idSet is a set of ids. Commands have few of them, which are kept in place and
// compared one by one; with more comes a map, for a claim may hold a thousand
// wakeups.
type idSet struct {
	count int
	few   [8]string
	many  map[string]struct{}
}

// newIDSet returns a set that has room for a number of ids.
func newIDSet(room int) (s idSet) {
	if room > len(s.few) {
		s.many = make(map[string]struct{}, room)
	}
	return s
}

// add reports whether the id is new.
func (s *idSet) add(id string) bool {
	if s.many != nil {
		before := len(s.many)
		s.many[id] = struct{}{}
		return len(s.many) > before
	}
	if slices.Contains(s.few[:s.count], id) {
		return false
	}
	s.few[s.count] = id
	s.count++
	return true
}

// remove reports whether the id was there.
func (s *idSet) remove(id string) bool {
	if s.many != nil {
		before := len(s.many)
		delete(s.many, id)
		return len(s.many) < before
	}
	at := slices.Index(s.few[:s.count], id)
	if at < 0 {
		return false
	}
	s.count--
	s.few[at] = s.few[s.count]
	return true
}

// validateFor checks an intent against the claim that made it. The resource
// epoch is proved by the store, which alone knows the resources.
func (i *ActionIntent) validateFor(item *WorkItem) error {
	if err := i.validatePrepared(); err != nil {
		return err
	}
	switch {
	case i.TenantID != item.TenantID:
		return fmt.Errorf("TenantID is %q, claimed was %q", shorten(i.TenantID), shorten(item.TenantID))
	case i.InstanceID != item.ID:
		return fmt.Errorf("InstanceID is %q, claimed was %q", shorten(i.InstanceID), shorten(item.ID))
	case i.RunID != item.RunID:
		return fmt.Errorf("RunID is %q, claimed was %q", shorten(i.RunID), shorten(item.RunID))
	case i.ControlEpochs.Tenant != item.ControlEpochs.Tenant:
		return fmt.Errorf("ControlEpochs.Tenant is %d, claimed was %d", i.ControlEpochs.Tenant, item.ControlEpochs.Tenant)
	case i.ControlEpochs.Instance != item.ControlEpochs.Instance:
		return fmt.Errorf("ControlEpochs.Instance is %d, claimed was %d", i.ControlEpochs.Instance, item.ControlEpochs.Instance)
	case i.LeaseEpoch != item.LeaseVersion:
		return fmt.Errorf("LeaseEpoch is %d, claimed was %d", i.LeaseEpoch, item.LeaseVersion)
	}
	if !slices.Contains(item.CapabilityPins, i.Capability) {
		return fmt.Errorf("Capability %q is not exactly one of the pins of the claimed revision", shorten(i.Capability.ID))
	}
	return nil
}
