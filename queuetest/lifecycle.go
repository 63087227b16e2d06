package queuetest

import (
	"encoding/json"
	"fmt"
	"reflect"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

func lifecycleCases() []testCase {
	return []testCase{
		{
			topic: "lifecycle", name: "starts-at",
			rule: "StartsAt is the least due time",
			run: func(x *trial) {
				var startsAt time.Time
				x.timely(func(at time.Time) {
					startsAt = at
					x.living("a", supervisor.LifecyclePolicy{StartsAt: startsAt}, time.Time{})
				})
				item := x.claimOne()
				if item.ClaimedAt.Before(startsAt) || !item.ScheduledAt.Equal(startsAt) {
					x.Errorf("claimed at %v as scheduled at %v, want %v", item.ClaimedAt, item.ScheduledAt, startsAt)
				}
				x.living("b", supervisor.LifecyclePolicy{StartsAt: x.now()}, x.now().Add(far))
				x.idle("the later of dueAt and StartsAt counts")
			},
		},
		{
			topic: "lifecycle", name: "completion",
			rule: "a commit that does not fail adds its outcome to the counters, and completes the instance when the policy is then met, whatever the disposition",
			run:  lifecycleCompletion,
		},
		{
			topic: "lifecycle", name: "complete-under-every-policy",
			rule: "Complete ends under every policy",
			run: func(x *trial) {
				x.living("a", supervisor.LifecyclePolicy{Completion: supervisor.CompletionPolicy{
					Kind: supervisor.CompleteAfterSuccessfulRuns, N: 100,
				}}, time.Time{})
				item := x.claimOne()
				x.step(&item, `1`, supervisor.Complete{})
				x.idle("it is completed")
			},
		},
		{
			topic: "lifecycle", name: "failures-do-not-count",
			rule: "a Failed command adds nothing to the counters",
			run: func(x *trial) {
				x.living("a", supervisor.LifecyclePolicy{Completion: supervisor.CompletionPolicy{
					Kind: supervisor.CompleteAfterSuccessfulRuns, N: 2,
				}}, time.Time{})
				for n := range 3 {
					item := x.claimOne()
					equal(x, "Attempt", item.Attempt, n)
					command := x.command(&item, `1`, supervisor.Failed{Reason: "failed", RetryAt: item.ClaimedAt})
					command.Outcome = supervisor.EvaluationOutcome{Triggered: true, Matched: true, Succeeded: true, ActionTerminal: true}
					x.commit(&item, command)
				}
				for range 2 {
					item := x.claimOne()
					command := x.command(&item, `1`, supervisor.Continue{})
					command.Outcome.Succeeded = true
					x.commit(&item, command)
				}
				x.idle("two runs succeeded")
			},
		},
		{
			topic: "lifecycle", name: "expires",
			rule: "the claim that finds ExpiresAt passed raises the wakeup lifecycle:expired; it counts in the next due time",
			run: func(x *trial) {
				expiresAt := x.soon()
				x.living("a", supervisor.LifecyclePolicy{ExpiresAt: expiresAt}, x.now().Add(far))
				item := x.claimOne()
				if item.ClaimedAt.Before(expiresAt) {
					x.Errorf("claimed at %v, before it expired at %v", item.ClaimedAt, expiresAt)
				}
				x.raised(&item, "expired")
				equal(x, "CancelRequested", item.CancelRequested, false)
			},
		},
		{
			topic: "lifecycle", name: "expires-after-a-step",
			rule: "the timers of a lifecycle count in the next due time after every commit",
			run: func(x *trial) {
				x.unhurried(func(unit time.Duration) bool {
					x.living("a", supervisor.LifecyclePolicy{ExpiresAt: x.now().Add(unit)}, time.Time{})
					item := x.claimOne()
					if len(item.Wakeups) > 0 {
						return false
					}
					x.step(&item, `1`, supervisor.Continue{Delay: far})
					item = x.claimOne()
					x.raised(&item, "expired")
					return true
				})
			},
		},
		{
			topic: "lifecycle", name: "raised-once",
			rule: "a lifecycle timer is raised once and stays pending until it is consumed",
			run: func(x *trial) {
				x.living("a", supervisor.LifecyclePolicy{ExpiresAt: x.soon()}, x.now().Add(far))
				for n := range 3 {
					item := x.claimOne()
					x.raised(&item, "expired")
					if n == 1 {
						x.fail(&item, "failed", item.ClaimedAt)
						continue
					}
					x.step(&item, `1`, supervisor.Continue{})
				}
			},
		},
		{
			topic: "lifecycle", name: "consumed-timer-ends",
			rule: "the commit that consumes a lifecycle timer and does not fail ends the instance as completed, whatever its disposition",
			run: func(x *trial) {
				x.living("a", supervisor.LifecyclePolicy{ExpiresAt: x.soon()}, x.now().Add(far))
				item := x.claimOne()
				x.consume(&item, supervisor.Continue{}, "lifecycle:expired")
				x.idle("it expired and is completed")
				if x.Instances != nil {
					equal(x, "Status", x.get("a").Status, supervisor.StatusCompleted)
				}
			},
		},
		{
			topic: "lifecycle", name: "failed-timer-does-not-end",
			rule: "a commit that consumes a lifecycle timer but fails does not end the instance",
			run: func(x *trial) {
				x.living("a", supervisor.LifecyclePolicy{ExpiresAt: x.soon()}, x.now().Add(far))
				item := x.claimOne()
				command := x.command(&item, `1`, supervisor.Failed{Reason: "failed", RetryAt: item.ClaimedAt})
				command.Outcome.Triggered = true
				command.ConsumedWakeups = []string{"lifecycle:expired"}
				x.commit(&item, command)
				again := x.claimOne()
				equalList(x, "the ids of the wakeups", wakeupIDs(&again), []string{})
				x.step(&again, `2`, supervisor.Continue{})
				x.claimOne()
			},
		},
		{
			topic: "lifecycle", name: "drain",
			rule: "before its DrainDeadline an expired instance goes on draining after it consumed lifecycle:expired",
			run: func(x *trial) {
				x.living("a", supervisor.LifecyclePolicy{ExpiresAt: x.soon(), DrainDeadline: x.now().Add(far)}, x.now().Add(far))
				item := x.claimOne()
				x.consume(&item, supervisor.Continue{}, "lifecycle:expired")
				again := x.claimOne()
				equalList(x, "the ids of the wakeups", wakeupIDs(&again), []string{})
				x.step(&again, `1`, supervisor.Complete{})
			},
		},
		{
			topic: "lifecycle", name: "drain-deadline",
			rule: "a passed DrainDeadline does what Cancel does",
			run: func(x *trial) {
				x.unhurried(func(unit time.Duration) bool {
					at := x.now().Add(unit)
					deadline := at.Add(2 * unit)
					x.living("a", supervisor.LifecyclePolicy{ExpiresAt: at, DrainDeadline: deadline}, x.now().Add(far))
					item := x.claimOne()
					if !item.CancelRequested {
						x.consume(&item, supervisor.Continue{Delay: far}, "lifecycle:expired")
						if x.now().Add(x.slack).After(deadline) {
							return false // consumed so late it has ended the instance
						}
						item = x.claimOne()
					}
					x.notBefore(&item, deadline)
					x.cancelledByLifecycle(&item)
					return true
				})
			},
		},
		{
			topic: "lifecycle", name: "expiry-cancels",
			rule: "ExpiresAt with the policy cancel does what Cancel does",
			run: func(x *trial) {
				x.living("a", supervisor.LifecyclePolicy{ExpiresAt: x.soon(), OnExpiry: supervisor.ExpiryCancel}, x.now().Add(far))
				item := x.claimOne()
				equal(x, "the number of wakeups", len(item.Wakeups), 0)
				x.cancelledByLifecycle(&item)
			},
		},
		{
			topic: "lifecycle", name: "no-intents-after-expiry",
			rule: "commands with intents are ErrCommandRejected once the lifecycle has expired",
			run: func(x *trial) {
				x.living("a", supervisor.LifecyclePolicy{ExpiresAt: x.soon(), DrainDeadline: x.now().Add(far)}, x.now().Add(far))
				item := x.claimOne()
				for range 2 { // at the claim that raised the timer, and at those after it
					command := x.command(&item, `1`, supervisor.Complete{})
					command.ActionIntents = []supervisor.ActionIntent{x.intent(&item, "i")}
					before := x.look(&item)
					x.want(x.CommitCommand(x.ctx, &item, &command), supervisor.ErrCommandRejected, "CommitCommand with an intent after expiry")
					x.same(&item, before, "a refused commit")
					x.consume(&item, supervisor.Continue{}, wakeupIDs(&item)...)
					item = x.claimOne()
				}
				x.step(&item, `2`, supervisor.Complete{})
			},
		},
		{
			topic: "lifecycle", name: "event-idle",
			rule: "event_idle is raised when no wakeup other than a timer was consumed for EventIdleTimeout, counted from creation",
			run: func(x *trial) {
				x.unhurried(func(unit time.Duration) bool {
					x.living("a", supervisor.LifecyclePolicy{EventIdleTimeout: 2 * unit}, time.Time{})
					item := x.claimOne()
					if len(item.Wakeups) > 0 {
						return false
					}
					x.step(&item, `1`, supervisor.Continue{Delay: far}) // progress is no event
					again := x.claimOne()
					x.raised(&again, "event_idle")
					x.notBefore(&again, item.CreatedAt.Add(2*unit))
					x.consume(&again, supervisor.Continue{}, "lifecycle:event_idle")
					x.idle("it was idle and is completed")
					return true
				})
			},
		},
		{
			topic: "lifecycle", name: "event-defers-idle",
			rule: "event_idle counts from the last commit that consumed a wakeup other than a timer",
			run: func(x *trial) {
				x.unhurried(func(unit time.Duration) bool {
					instance := x.instance("a")
					instance.Lifecycle.EventIdleTimeout = 3 * unit
					x.add(instance, time.Time{}, note("w"))
					item := x.claimOne()
					if len(item.Wakeups) > 1 {
						return false
					}
					x.sleep(unit)
					x.consume(&item, supervisor.Continue{Delay: far}, "w")
					again := x.claimOne()
					x.raised(&again, "event_idle")
					x.notBefore(&again, item.ClaimedAt.Add(unit+3*unit))
					return true
				})
			},
		},
		{
			topic: "lifecycle", name: "no-progress",
			rule: "no_progress is raised when no commit but failures came for ProgressTimeout",
			run: func(x *trial) {
				x.unhurried(func(unit time.Duration) bool {
					x.living("a", supervisor.LifecyclePolicy{ProgressTimeout: 2 * unit}, time.Time{})
					item := x.claimOne()
					if len(item.Wakeups) > 0 {
						return false
					}
					x.sleep(unit)
					x.fail(&item, "failed", item.ClaimedAt.Add(2*unit)) // a failure is no progress
					again := x.claimOne()
					x.raised(&again, "no_progress")
					x.consume(&again, supervisor.Reschedule{At: again.ClaimedAt}, "lifecycle:no_progress")
					x.idle("it made no progress and is completed")
					return true
				})
			},
		},
		{
			topic: "lifecycle", name: "progress-defers",
			rule: "no_progress counts from the last commit that did not fail",
			run: func(x *trial) {
				x.unhurried(func(unit time.Duration) bool {
					x.living("a", supervisor.LifecyclePolicy{ProgressTimeout: 2 * unit}, time.Time{})
					item := x.claimOne()
					if len(item.Wakeups) > 0 {
						return false
					}
					x.sleep(unit)
					x.step(&item, `1`, supervisor.Continue{Delay: far})
					again := x.claimOne()
					x.raised(&again, "no_progress")
					x.notBefore(&again, item.ClaimedAt.Add(unit+2*unit))
					return true
				})
			},
		},
		{
			topic: "lifecycle", name: "held-lease-goes-on",
			rule: "a held lease is not interrupted by the lifecycle",
			run: func(x *trial) {
				x.unhurried(func(unit time.Duration) bool {
					at := x.now().Add(unit)
					x.living("a", supervisor.LifecyclePolicy{ExpiresAt: at, OnExpiry: supervisor.ExpiryCancel}, time.Time{})
					item := x.claimOne()
					if item.CancelRequested {
						return false
					}
					x.passes(at)
					x.check(x.Renew(x.ctx, lease(&item, held)), "Renew after the instance expired")
					x.step(&item, `1`, supervisor.Continue{Delay: far})
					again := x.claimOne()
					x.cancelledByLifecycle(&again)
					return true
				})
			},
		},
		{
			topic: "lifecycle", name: "retry-floor-holds",
			rule: "the retry time holds timers back",
			run: func(x *trial) {
				at := x.soon()
				x.living("a", supervisor.LifecyclePolicy{ExpiresAt: at}, time.Time{})
				item := x.claimOne()
				x.fail(&item, "failed", x.now().Add(far))
				x.passes(at)
				x.idle("the retry time is an hour away")
			},
		},
		{
			topic: "lifecycle", name: "pause-holds", needs: instances,
			rule: "a pause holds timers back",
			run: func(x *trial) {
				at := x.soon()
				x.living("a", supervisor.LifecyclePolicy{ExpiresAt: at}, x.now().Add(far))
				scope := supervisor.Scope{TenantID: x.tenant}
				x.check(x.Instances.Pause(x.ctx, scope), "Pause")
				x.passes(at)
				x.idle("the tenant is paused")
				x.check(x.Instances.Resume(x.ctx, scope), "Resume")
				item := x.claimOne()
				x.raised(&item, "expired")
			},
		},
		{
			topic: "lifecycle", name: "failed-for-good-has-none",
			rule: "an instance that failed for good has no timers",
			run: func(x *trial) {
				at := x.soon()
				x.living("a", supervisor.LifecyclePolicy{ExpiresAt: at}, time.Time{})
				item := x.claimOne()
				x.fail(&item, "for good", time.Time{})
				x.passes(at)
				x.idle("it failed for good")
			},
		},
	}
}

// living adds an instance with a lifecycle.
func (x *trial) living(id string, policy supervisor.LifecyclePolicy, dueAt time.Time) {
	x.Helper()
	instance := x.instance(id)
	instance.Lifecycle = policy
	x.add(instance, dueAt)
}

// notBefore checks when an item was claimed at the earliest.
func (x *trial) notBefore(item *supervisor.WorkItem, least time.Time) {
	x.Helper()
	if item.ClaimedAt.Before(least) {
		x.Errorf("claimed at %v, want %v at the earliest", item.ClaimedAt, least)
	}
}

// raised checks that a lifecycle timer is the only wakeup of an item.
func (x *trial) raised(item *supervisor.WorkItem, reason string) {
	x.Helper()
	if len(item.Wakeups) != 1 || item.Wakeups[0].ID != "lifecycle:"+reason || item.Wakeups[0].Kind != "timer" {
		x.Fatalf("the wakeups are %+v, want the timer lifecycle:%s once", item.Wakeups, reason)
	}
	var payload map[string]string
	err := json.Unmarshal(item.Wakeups[0].Payload, &payload)
	if want := map[string]string{"kind": "terminal_action", "reason": reason}; err != nil || !reflect.DeepEqual(payload, want) {
		x.Errorf("the timer's payload is %s, want %v", item.Wakeups[0].Payload, want)
	}
	if !item.IsConverging() {
		x.Errorf("an item with a lifecycle timer does not converge")
	}
}

// cancelledByLifecycle checks an item whose lifecycle did what Cancel does.
func (x *trial) cancelledByLifecycle(item *supervisor.WorkItem) {
	x.Helper()
	equal(x, "CancelRequested", item.CancelRequested, true)
	equal(x, "the instance epoch", item.ControlEpochs.Instance, 1)
	x.step(item, `"end"`, supervisor.Complete{})
	if x.Instances != nil {
		equal(x, "Status", x.get(item.ID).Status, supervisor.StatusCancelled)
	}
}

func lifecycleCompletion(x *trial) {
	triggered := supervisor.EvaluationOutcome{Triggered: true}
	matched := supervisor.EvaluationOutcome{Matched: true}
	succeeded := supervisor.EvaluationOutcome{Succeeded: true}
	terminal := supervisor.EvaluationOutcome{ActionTerminal: true}
	for _, policy := range []struct {
		completion supervisor.CompletionPolicy
		steps      []supervisor.EvaluationOutcome // the last one completes
	}{
		{supervisor.CompletionPolicy{Kind: supervisor.CompleteFirstTrigger}, []supervisor.EvaluationOutcome{{}, matched, triggered}},
		{supervisor.CompletionPolicy{Kind: supervisor.CompleteFirstMatch}, []supervisor.EvaluationOutcome{triggered, matched}},
		{supervisor.CompletionPolicy{Kind: supervisor.CompleteFirstSuccess}, []supervisor.EvaluationOutcome{matched, terminal, succeeded}},
		{supervisor.CompletionPolicy{Kind: supervisor.CompleteFirstActionTerminal}, []supervisor.EvaluationOutcome{succeeded, terminal}},
		{supervisor.CompletionPolicy{Kind: supervisor.CompleteAfterMatchedEvaluations, N: 2}, []supervisor.EvaluationOutcome{matched, {}, matched}},
		{supervisor.CompletionPolicy{Kind: supervisor.CompleteAfterSuccessfulRuns, N: 3}, []supervisor.EvaluationOutcome{succeeded, succeeded, matched, succeeded}},
	} {
		id := string(policy.completion.Kind)
		x.living(id, supervisor.LifecyclePolicy{Completion: policy.completion}, time.Time{})
		for n, outcome := range policy.steps {
			item := x.claimOne()
			equal(x, "the claimed id", item.ID, id)
			command := x.command(&item, fmt.Sprint(n), supervisor.Continue{})
			command.Outcome = outcome
			x.commit(&item, command)
		}
		x.idle("the policy " + id + " is met")
		if x.Instances != nil {
			equal(x, "Status under "+id, x.get(id).Status, supervisor.StatusCompleted)
		}
	}
	x.living("explicit_stop", supervisor.LifecyclePolicy{}, time.Time{})
	for range 2 {
		item := x.claimOne()
		command := x.command(&item, `1`, supervisor.Continue{})
		command.Outcome = supervisor.EvaluationOutcome{Triggered: true, Matched: true, Succeeded: true, ActionTerminal: true}
		x.commit(&item, command)
	}
	x.claimOne()
}
