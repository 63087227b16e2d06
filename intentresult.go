package supervisor

import (
	"encoding/json"
	"fmt"
	"strconv"
)

// intentWakeupPrefix begins the ids of the wakeups that tell of intents.
const intentWakeupPrefix = "intent:"

// ActionResult is the payload of a wakeup of kind action: what became of an
// intent.
type ActionResult struct {
	IntentID   string        `json:"intent"`
	Capability CapabilityPin `json:"capability"`
	State      ActionState   `json:"state"`
	// Outcome is succeeded, failed, cancelled or withdrawn, or unknown, after
	// which another result follows once it is found out.
	Outcome IntentOutcome `json:"outcome"`
	Cause   IntentCause   `json:"cause,omitempty"`
	// Attempt is the number of the last hand-off; 0 where there was none.
	Attempt int `json:"attempt"`
	// Output of a success; Reason of anything else, which may be empty.
	Output json.RawMessage `json:"output,omitempty"`
	Reason string          `json:"reason,omitempty"`
}

// Wakeup is what tells the instance of the outcome: with the id
// "intent:<id>:settled" of a terminal one and "intent:<id>:unknown:<attempt>"
// of an unknown one.
func (r *IntentRecord) Wakeup() (Wakeup, error) {
	payload, err := encodeJSON(ActionResult{
		IntentID:   r.Intent.ID,
		Capability: r.Intent.Capability,
		State:      r.Intent.State,
		Outcome:    r.Outcome,
		Cause:      r.Cause,
		Attempt:    r.Attempt,
		Output:     r.Output,
		Reason:     r.Reason,
	})
	if err != nil {
		return Wakeup{}, fmt.Errorf("supervisor: result of intent %q: %w", shorten(r.Intent.ID), err)
	}
	id := intentWakeupPrefix + r.Intent.ID + ":settled"
	if r.Intent.State == ActionUnknown {
		id = intentWakeupPrefix + r.Intent.ID + ":unknown:" + strconv.Itoa(r.Attempt)
	}
	return Wakeup{ID: id, Kind: WakeupKindAction, Payload: payload}, nil
}

// ParseActionResult reads a wakeup of kind action. One of another kind, and a
// payload that is no result, is an error.
func ParseActionResult(w *Wakeup) (ActionResult, error) {
	var result ActionResult
	if w.Kind != WakeupKindAction {
		return result, fmt.Errorf("supervisor: wakeup %q is of kind %q, not %q", shorten(w.ID), shorten(w.Kind), WakeupKindAction)
	}
	if err := json.Unmarshal(w.Payload, &result); err != nil {
		return ActionResult{}, fmt.Errorf("supervisor: wakeup %q: %w", shorten(w.ID), err)
	}
	switch result.Outcome {
	case OutcomeSucceeded, OutcomeFailed, OutcomeCancelled, OutcomeWithdrawn, OutcomeUnknown:
		return result, nil
	}
	return ActionResult{}, fmt.Errorf("supervisor: wakeup %q: outcome %q is not known", shorten(w.ID), shorten(string(result.Outcome)))
}
