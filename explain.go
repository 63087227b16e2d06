package supervisor

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// Explanation answers why an instance is not running now.
type Explanation struct {
	Reason Reason `json:"reason"`
	// Detail is text for people: an error, or what the reason alone leaves open.
	Detail string `json:"detail,omitempty"`
	// By is the lease owner of a running instance, or the scope of a pause.
	By string `json:"by,omitempty"`
	// Until is when the reason ends by itself; zero: never, or at no known time.
	Until time.Time `json:"until,omitzero"`
}

// Reason is why an instance is not running now.
type Reason string

// The reasons, in the order in which they are looked for: the first that holds
// is the answer.
const (
	ReasonCompleted Reason = "completed"
	ReasonFailed    Reason = "failed"
	ReasonCancelled Reason = "cancelled"
	// ReasonSetAside: its row cannot be decoded.
	ReasonSetAside Reason = "set_aside"
	// ReasonRunning: leased, by whom and until when.
	ReasonRunning Reason = "running"
	// ReasonPaused: by which scope.
	ReasonPaused Reason = "paused"
	// ReasonCancelling: cancellation was requested and it converges.
	ReasonCancelling Reason = "cancelling"
	// ReasonRevisionUnpublished: the last evaluation found its pinned revision
	// not published.
	ReasonRevisionUnpublished Reason = "revision_unpublished"
	// ReasonNoDriver: the last evaluation found no driver for its spec and
	// revision.
	ReasonNoDriver Reason = "no_driver"
	// ReasonBackingOff: after which error, until when.
	ReasonBackingOff Reason = "backing_off"
	// ReasonWaiting: not due for 100 years or more; it waits for a delivery.
	ReasonWaiting Reason = "waiting"
	// ReasonNotDue: until when.
	ReasonNotDue Reason = "not_due"
	// ReasonDue: nothing holds it back; a worker will claim it.
	ReasonDue Reason = "due"
)

// FailureClass tells apart the failures that [Explain] has reasons of its own for.
type FailureClass string

// The failure classes; empty for any other failure.
const (
	FailureRevisionUnpublished FailureClass = "revision_unpublished"
	FailureNoDriver            FailureClass = "no_driver"
)

// failurePayload is the payload of an EventEvaluationFailed event.
type failurePayload struct {
	Error string       `json:"error"`
	Class FailureClass `json:"class,omitempty"`
}

// FailureClassOf returns the class of the failure that a command records.
// Queues keep it beside the failure's text.
func FailureClassOf(command *TransitionCommand) FailureClass {
	if command.EventType != EventEvaluationFailed {
		return ""
	}
	var payload failurePayload
	if json.Unmarshal(command.EventPayload, &payload) != nil {
		return ""
	}
	switch payload.Class {
	case FailureRevisionUnpublished, FailureNoDriver:
		return payload.Class
	}
	return ""
}

// waitingHorizonYears is how far away a due time no longer is one.
const waitingHorizonYears = 100

// ExplainFacts are what an explanation is made of.
type ExplainFacts struct {
	Snapshot Snapshot
	// Now is the queue's clock.
	Now time.Time
	// SetAsideUntil and SetAsideReason tell of a row that cannot be decoded.
	SetAsideUntil  time.Time
	SetAsideReason string
	FailureClass   FailureClass
	// ReleaseReason is why the latest claim was given back; empty where there
	// was a commit since.
	ReleaseReason string
}

// Explain is the pure rule behind every queue's Explain.
func Explain(facts *ExplainFacts) Explanation {
	s := &facts.Snapshot
	switch s.Status {
	case StatusCompleted:
		return Explanation{Reason: ReasonCompleted}
	case StatusFailed:
		return Explanation{Reason: ReasonFailed, Detail: s.LastError}
	case StatusCancelled:
		return Explanation{Reason: ReasonCancelled}
	}
	if facts.SetAsideUntil.After(facts.Now) {
		return Explanation{Reason: ReasonSetAside, Detail: facts.SetAsideReason, Until: facts.SetAsideUntil}
	}
	if s.LeaseEndsAt.After(facts.Now) {
		return Explanation{Reason: ReasonRunning, By: s.LeaseOwner, Until: s.LeaseEndsAt}
	}
	if s.PausedBy != nil {
		return Explanation{Reason: ReasonPaused, By: s.PausedBy.String()}
	}
	due := !s.NextDueAt.After(facts.Now)
	until := s.NextDueAt
	if due {
		until = time.Time{}
	}
	if s.CancelRequested {
		return Explanation{Reason: ReasonCancelling, Detail: s.LastError, Until: until}
	}
	if s.Attempt > 0 {
		switch facts.FailureClass {
		case FailureRevisionUnpublished:
			return Explanation{Reason: ReasonRevisionUnpublished, Detail: s.LastError, Until: until}
		case FailureNoDriver:
			return Explanation{Reason: ReasonNoDriver, Detail: s.LastError, Until: until}
		}
		if !due {
			return Explanation{Reason: ReasonBackingOff, Detail: s.LastError, Until: until}
		}
	}
	switch {
	case due:
		return Explanation{Reason: ReasonDue, Detail: facts.ReleaseReason}
	case !s.NextDueAt.Before(facts.Now.AddDate(waitingHorizonYears, 0, 0)):
		return Explanation{Reason: ReasonWaiting, Detail: "waits for a delivery"}
	}
	return Explanation{Reason: ReasonNotDue, Detail: facts.ReleaseReason, Until: until}
}

// String names the scope for people.
func (s Scope) String() string {
	var text strings.Builder
	fmt.Fprintf(&text, "tenant %q", s.TenantID)
	if s.InstanceID != "" {
		fmt.Fprintf(&text, " instance %q", s.InstanceID)
	}
	if s.ResourceID != "" {
		fmt.Fprintf(&text, " resource %q", s.ResourceID)
	}
	return text.String()
}
