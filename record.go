package supervisor

import (
	"math"
	"time"
)

// Record is the part of an instance's row that the rules of this package read
// and write. It is exported for queues of your own: all queues that we ship
// decide with these pure functions, so that they cannot disagree.
//
// The rules know no lock, clock or storage; instants come from the queue's
// clock. A queue stores the fields as they are.
type Record struct {
	Status          Status    `json:"status"`
	CreatedAt       time.Time `json:"created_at"`
	FinishedAt      time.Time `json:"finished_at,omitzero"` // zero: not finished
	CancelRequested bool      `json:"cancel_requested,omitempty"`
	// Attempt counts commits in a row that failed. An active instance with an
	// attempt backs off.
	Attempt int `json:"attempt,omitempty"`
	// RetryAt is the least due time of an instance that backs off; zero where
	// there is none or it was lifted.
	RetryAt  time.Time `json:"retry_at,omitzero"`
	Counters Counters  `json:"counters,omitzero"`
	// LastEventAt is the last commit that consumed a wakeup other than a timer,
	// LastProgressAt the last one that did not fail; zero for none.
	LastEventAt    time.Time `json:"last_event_at,omitzero"`
	LastProgressAt time.Time `json:"last_progress_at,omitzero"`
	Raised         Raised    `json:"raised,omitempty"`
}

// NewRecord is the record of an instance that starts now.
func NewRecord(now time.Time) Record {
	return Record{Status: StatusActive, CreatedAt: now}
}

// AfterCommit returns the record after a command was applied at now, and the
// instant that its disposition asks for, which is zero where the instance is
// finished. The command has passed ValidateContent.
func (r Record) AfterCommit(policy *LifecyclePolicy, item *WorkItem, command *TransitionCommand, now time.Time) (next Record, dispositionAt time.Time) {
	if consumesEvent(item, command) {
		r.LastEventAt = now
	}
	r.RetryAt = time.Time{}
	if failed, ok := command.Disposition.(Failed); ok {
		if r.Attempt < math.MaxInt32 {
			r.Attempt++
		}
		if failed.RetryAt.IsZero() {
			return r.finished(StatusFailed, now), time.Time{}
		}
		r.RetryAt = clampInstant(later(now, failed.RetryAt))
		return r, r.RetryAt
	}
	r.Attempt = 0
	r.Counters = r.Counters.Add(command.Outcome)
	r.LastProgressAt = now
	switch d := command.Disposition.(type) {
	case Continue:
		dispositionAt = clampInstant(now.Add(max(d.Delay, 0)))
	case Reschedule:
		dispositionAt = clampInstant(later(now, d.At))
	default:
		return r.finished(StatusCompleted, now), time.Time{}
	}
	if policy.Completion.Met(r.Counters) || policy.ends(command, now) {
		return r.finished(StatusCompleted, now), time.Time{}
	}
	return r, dispositionAt
}

// finished ends the instance; a requested cancellation gives the status.
func (r Record) finished(status Status, now time.Time) Record {
	r.Status, r.FinishedAt = status, now
	if r.CancelRequested {
		r.Status = StatusCancelled
	}
	return r
}

// consumesEvent reports whether a command consumes a wakeup other than a timer.
func consumesEvent(item *WorkItem, command *TransitionCommand) bool {
	if len(command.ConsumedWakeups) == 0 {
		return false
	}
	timers := 0
	for n := range item.Wakeups {
		if item.Wakeups[n].Kind == WakeupKindTimer {
			timers++
		}
	}
	if timers == 0 {
		return true
	}
	// The consumed ids differ from one another, so that more of them than
	// timers cannot all be timers.
	if len(command.ConsumedWakeups) > timers {
		return true
	}
	kinds := make(map[string]bool, timers)
	for n := range item.Wakeups {
		if item.Wakeups[n].Kind == WakeupKindTimer {
			kinds[item.Wakeups[n].ID] = true
		}
	}
	for _, id := range command.ConsumedWakeups {
		if !kinds[id] {
			return true
		}
	}
	return false
}

// NextDue returns when the instance is due next: the earliest of at, which is
// what a disposition, start or operator asks for, of wakeupAt, the first due
// time of pending wakeups that count (at a commit: those that its claim did not
// contain), and of the policy's timers. Zero arguments are none. It is never
// before the retry time of an instance that backs off, nor, unless cancellation
// was requested, before StartsAt. It is zero for an instance that is not
// active.
//
// A result that has passed means now, so that an instance that is due again at
// once goes behind those that were due already; the queue, which knows the
// clock, takes the later of the two.
func (r *Record) NextDue(policy *LifecyclePolicy, at, wakeupAt time.Time) time.Time {
	if r.Status != StatusActive {
		return time.Time{}
	}
	due := earlier(at, wakeupAt)
	for _, timer := range policy.timers(r) {
		due = earlier(due, timer.at)
	}
	return r.notBefore(policy, due)
}

// WakeupDue returns when a wakeup delivered for dueAt makes the instance due at
// the earliest; a past or zero dueAt means now. It is zero for an instance that
// is not active, which keeps the wakeup.
func (r *Record) WakeupDue(policy *LifecyclePolicy, dueAt, now time.Time) time.Time {
	if r.Status != StatusActive {
		return time.Time{}
	}
	return r.notBefore(policy, later(now, dueAt))
}

func (r *Record) notBefore(policy *LifecyclePolicy, due time.Time) time.Time {
	if !r.CancelRequested {
		due = later(due, policy.StartsAt)
	}
	return clampInstant(later(due, r.RetryAt))
}

// AfterCancel returns the record after Cancel at now and whether that changed
// anything; then the queue raises the instance epoch and makes the instance,
// unless it is finished now, due at now.
func (r Record) AfterCancel(now time.Time) (next Record, changed bool) {
	switch {
	case r.Status == StatusFailed:
		r.CancelRequested = true
		return r.finished(StatusCancelled, now), true
	case r.Status != StatusActive || r.CancelRequested:
		return r, false
	}
	r.CancelRequested = true
	r.RetryAt = time.Time{}
	return r, true
}

// AfterRetry returns the record after Retry and whether it may be retried; then
// the queue makes it due now.
func (r Record) AfterRetry() (next Record, ok bool) {
	if r.Status != StatusFailed && !r.BacksOff() {
		return r, false
	}
	r.Status = StatusActive
	r.FinishedAt, r.RetryAt = time.Time{}, time.Time{}
	r.Attempt = 0
	return r, true
}

// AfterResume returns the record after the pause of this very instance ended
// (not that of a tenant or resource) and whether that lifted the retry time of
// an instance that backs off; then the queue brings its due time forward to the
// first of its pending wakeups, with NextDue of the present due time and
// theirs. The instant that the failure asked for stays.
func (r Record) AfterResume() (next Record, lifted bool) {
	if !r.BacksOff() || r.RetryAt.IsZero() {
		return r, false
	}
	r.RetryAt = time.Time{}
	return r, true
}

// BacksOff reports whether the last commit of an active instance failed.
func (r *Record) BacksOff() bool { return r.Status == StatusActive && r.Attempt > 0 }

// RefusesIntents reports whether commands with intents are [ErrCommandRejected]:
// the lifecycle has expired.
func (r *Record) RefusesIntents() bool { return r.Raised&RaisedExpired != 0 }
