package supervisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// LifecyclePolicy bounds the life of an instance. The zero value is valid: it
// runs until it says that it is complete, without timers.
//
// No background job watches the instants below: they count in the next due
// time, and the claim that finds one passed raises it.
type LifecyclePolicy struct {
	// StartsAt is the least due time.
	StartsAt time.Time `json:"starts_at,omitzero"`
	// ExpiresAt ends the instance as OnExpiry says.
	ExpiresAt  time.Time        `json:"expires_at,omitzero"`
	Completion CompletionPolicy `json:"completion,omitzero"`
	// EventIdleTimeout is how long the instance may go without consuming a
	// wakeup other than a timer, ProgressTimeout without a commit that did not
	// fail; both from its creation on. Zero for none.
	EventIdleTimeout time.Duration `json:"event_idle_timeout,omitempty"`
	ProgressTimeout  time.Duration `json:"progress_timeout,omitempty"`
	OnExpiry         ExpiryPolicy  `json:"on_expiry,omitempty"`
	// DrainDeadline is when a drain ends as if cancelled.
	DrainDeadline time.Time `json:"drain_deadline,omitzero"`
}

// ExpiryPolicy says what happens at ExpiresAt.
type ExpiryPolicy string

// The expiry policies.
const (
	// ExpiryDrain lets the instance finish what it began: it gets the wakeup
	// lifecycle:expired and may make no more intents. The empty value means the
	// same.
	ExpiryDrain ExpiryPolicy = "drain"
	// ExpiryCancel does what Cancel does.
	ExpiryCancel ExpiryPolicy = "cancel"
)

// CompletionPolicy says after which outcomes an instance is completed even
// where its commands would go on.
type CompletionPolicy struct {
	Kind CompletionKind `json:"kind,omitempty"`
	// N is the count of the kinds that have one, else 0.
	N int `json:"n,omitempty"`
}

// CompletionKind is the kind of a completion policy.
type CompletionKind string

// The completion kinds.
const (
	// CompleteExplicitStop: only by [Complete] or cancellation. The empty value
	// means the same.
	CompleteExplicitStop        CompletionKind = "explicit_stop"
	CompleteFirstTrigger        CompletionKind = "first_trigger"
	CompleteFirstMatch          CompletionKind = "first_match"
	CompleteFirstActionTerminal CompletionKind = "first_action_terminal"
	CompleteFirstSuccess        CompletionKind = "first_success"
	// CompleteAfterMatchedEvaluations and CompleteAfterSuccessfulRuns count to N.
	CompleteAfterMatchedEvaluations CompletionKind = "after_matched_evaluations"
	CompleteAfterSuccessfulRuns     CompletionKind = "after_successful_runs"
)

// RunOnce is the policy of an instance that ends with its first success.
func RunOnce() LifecyclePolicy {
	return LifecyclePolicy{Completion: CompletionPolicy{Kind: CompleteFirstSuccess}}
}

// Validate reports everything that is wrong with the policy.
func (p *LifecyclePolicy) Validate() error {
	var errs []error
	for _, at := range [...]struct {
		field string
		value time.Time
	}{
		{"StartsAt", p.StartsAt}, {"ExpiresAt", p.ExpiresAt}, {"DrainDeadline", p.DrainDeadline},
	} {
		errs = append(errs, checkInstant("Lifecycle."+at.field, at.value))
	}
	for _, timeout := range [...]struct {
		field string
		value time.Duration
	}{
		{"EventIdleTimeout", p.EventIdleTimeout}, {"ProgressTimeout", p.ProgressTimeout},
	} {
		if timeout.value < 0 {
			errs = append(errs, fmt.Errorf("Lifecycle.%s is %v, must not be negative", timeout.field, timeout.value))
		}
	}
	if !p.ExpiresAt.IsZero() && !p.StartsAt.IsZero() && !p.ExpiresAt.After(p.StartsAt) {
		errs = append(errs, fmt.Errorf("Lifecycle.ExpiresAt is %v, must be after StartsAt %v", p.ExpiresAt, p.StartsAt))
	}
	if !p.DrainDeadline.IsZero() {
		if !p.ExpiresAt.IsZero() && p.DrainDeadline.Before(p.ExpiresAt) {
			errs = append(errs, fmt.Errorf("Lifecycle.DrainDeadline is %v, must not be before ExpiresAt %v", p.DrainDeadline, p.ExpiresAt))
		}
		if !p.StartsAt.IsZero() && !p.DrainDeadline.After(p.StartsAt) {
			errs = append(errs, fmt.Errorf("Lifecycle.DrainDeadline is %v, must be after StartsAt %v", p.DrainDeadline, p.StartsAt))
		}
	}
	switch p.OnExpiry {
	case "", ExpiryDrain, ExpiryCancel:
	default:
		errs = append(errs, fmt.Errorf("Lifecycle.OnExpiry %q is not known", shorten(string(p.OnExpiry))))
	}
	errs = append(errs, p.Completion.validate())
	return errors.Join(errs...)
}

func (c CompletionPolicy) validate() error {
	switch c.Kind {
	case CompleteAfterMatchedEvaluations, CompleteAfterSuccessfulRuns:
		if c.N < 1 {
			return fmt.Errorf("Lifecycle.Completion.N is %d, %s needs at least 1", c.N, c.Kind)
		}
		return nil
	case "", CompleteExplicitStop, CompleteFirstTrigger, CompleteFirstMatch, CompleteFirstActionTerminal, CompleteFirstSuccess:
		if c.N != 0 {
			return fmt.Errorf("Lifecycle.Completion.N is %d, %q has none", c.N, c.Kind)
		}
		return nil
	}
	return fmt.Errorf("Lifecycle.Completion.Kind %q is not known", shorten(string(c.Kind)))
}

// Counters are what an instance's commits have added up to.
type Counters struct {
	Triggered      int64 `json:"triggered,omitempty"`
	Matched        int64 `json:"matched,omitempty"`
	Succeeded      int64 `json:"succeeded,omitempty"`
	ActionTerminal int64 `json:"action_terminal,omitempty"`
}

// Add returns the counters after a commit that did not fail: each grows by one
// at most.
func (c Counters) Add(outcome EvaluationOutcome) Counters {
	for _, count := range [...]struct {
		counter *int64
		happens bool
	}{
		{&c.Triggered, outcome.Triggered},
		{&c.Matched, outcome.Matched},
		{&c.Succeeded, outcome.Succeeded},
		{&c.ActionTerminal, outcome.ActionTerminal},
	} {
		if count.happens {
			*count.counter++
		}
	}
	return c
}

// Met reports whether the counters complete the instance.
func (c CompletionPolicy) Met(counters Counters) bool {
	switch c.Kind {
	case CompleteFirstTrigger:
		return counters.Triggered >= 1
	case CompleteFirstMatch:
		return counters.Matched >= 1
	case CompleteFirstActionTerminal:
		return counters.ActionTerminal >= 1
	case CompleteFirstSuccess:
		return counters.Succeeded >= 1
	case CompleteAfterMatchedEvaluations:
		return counters.Matched >= int64(c.N)
	case CompleteAfterSuccessfulRuns:
		return counters.Succeeded >= int64(c.N)
	}
	return false
}

// Raised is the set of lifecycle timers that an instance has raised; each is
// raised once in its life.
type Raised uint8

// The timers, by the reason in their wakeup.
const (
	RaisedExpired Raised = 1 << iota
	RaisedEventIdle
	RaisedNoProgress
)

// lifecycleWakeupPrefix begins the ids of wakeups raised by timers.
const lifecycleWakeupPrefix = "lifecycle:"

// lifecycleTimer is one timer of a policy for one instance.
type lifecycleTimer struct {
	raised Raised // 0: does what Cancel does
	reason string
	at     time.Time // zero: none
}

// timers lists what the policy has in store for an instance. An instance that
// is being cancelled converges anyway and has none.
func (p *LifecyclePolicy) timers(r *Record) [4]lifecycleTimer {
	var timers [4]lifecycleTimer
	if r.CancelRequested || r.Status != StatusActive {
		return timers
	}
	if !p.ExpiresAt.IsZero() {
		timers[0] = lifecycleTimer{raised: RaisedExpired, reason: "expired", at: p.ExpiresAt}
		if p.OnExpiry == ExpiryCancel {
			timers[0].raised = 0
		}
	}
	timers[1].at = p.DrainDeadline
	if p.EventIdleTimeout > 0 {
		timers[2] = lifecycleTimer{raised: RaisedEventIdle, reason: "event_idle", at: later(r.CreatedAt, r.LastEventAt).Add(p.EventIdleTimeout)}
	}
	if p.ProgressTimeout > 0 {
		timers[3] = lifecycleTimer{raised: RaisedNoProgress, reason: "no_progress", at: later(r.CreatedAt, r.LastProgressAt).Add(p.ProgressTimeout)}
	}
	for n := range timers {
		if timers[n].raised&r.Raised != 0 {
			timers[n].at = time.Time{}
		}
	}
	return timers
}

// RaisedWakeup is a wakeup that a lifecycle timer adds, due when the timer was.
type RaisedWakeup struct {
	Wakeup Wakeup
	DueAt  time.Time
}

// RaiseTimers returns the record after a claim at now found timers passed: the
// wakeups to add, pending until they are consumed, and whether the claim has to
// do what Cancel does, which also raises the instance epoch. Queues call it in
// the claim's transaction, before they capture the item.
func (p *LifecyclePolicy) RaiseTimers(r Record, now time.Time) (next Record, wakeups []RaisedWakeup, cancel bool) {
	for _, timer := range p.timers(&r) {
		if timer.at.IsZero() || timer.at.After(now) {
			continue
		}
		if timer.raised == 0 {
			cancel = true
			continue
		}
		r.Raised |= timer.raised
		// The reason is one of three words, so the payload needs no escapes.
		wakeups = append(wakeups, RaisedWakeup{
			Wakeup: Wakeup{
				ID:      lifecycleWakeupPrefix + timer.reason,
				Kind:    WakeupKindTimer,
				Payload: json.RawMessage(`{"kind":"terminal_action","reason":"` + timer.reason + `"}`),
			},
			DueAt: timer.at.UTC(),
		})
	}
	if cancel {
		r.CancelRequested = true
		r.RetryAt = time.Time{}
	}
	return r, wakeups, cancel
}

// ends reports whether a commit that did not fail ends the instance because it
// consumed a lifecycle timer.
func (p *LifecyclePolicy) ends(command *TransitionCommand, now time.Time) bool {
	for _, id := range command.ConsumedWakeups {
		switch id {
		case lifecycleWakeupPrefix + "event_idle", lifecycleWakeupPrefix + "no_progress":
			return true
		case lifecycleWakeupPrefix + "expired":
			if !p.DrainDeadline.After(now) {
				return true
			}
		}
	}
	return false
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// earlier returns the earlier of two instants, zero being none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || (!b.IsZero() && b.Before(a)) {
		return b
	}
	return a
}
