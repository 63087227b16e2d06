package queuetest

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

func commitCases() []testCase {
	return []testCase{
		{
			topic: "commit", name: "applies",
			rule: "a commit writes the state and its version plus one, and releases the lease",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				x.step(&item, `{"step":1}`, supervisor.Continue{})
				again := x.claimOne()
				x.equalJSON("State", again.State, `{"step":1}`)
				equal(x, "StateVersion", again.StateVersion, item.StateVersion+1)
				sameInstance(x, &again.Instance, &item.Instance)
				if !again.CreatedAt.Equal(item.CreatedAt) {
					x.Errorf("CreatedAt changed from %v to %v", item.CreatedAt, again.CreatedAt)
				}
			},
		},
		{
			topic: "commit", name: "complete",
			rule: "Complete ends the instance",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				x.step(&item, `"end"`, supervisor.Complete{})
				x.idle("the instance is completed")
				if x.Instances == nil {
					return
				}
				s := x.get("a")
				equal(x, "Status", s.Status, supervisor.StatusCompleted)
				x.equalJSON("State", s.State, `"end"`)
				if s.FinishedAt.IsZero() || !s.NextDueAt.IsZero() || !s.LeaseEndsAt.IsZero() || s.LeaseOwner != "" {
					x.Errorf("FinishedAt is %v, NextDueAt %v, LeaseEndsAt %v, LeaseOwner %q; want the first alone to be set",
						s.FinishedAt, s.NextDueAt, s.LeaseEndsAt, s.LeaseOwner)
				}
			},
		},
		{
			topic: "commit", name: "continue",
			rule: "Continue evaluates the instance again after its delay by the store's clock",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				x.step(&item, `1`, supervisor.Continue{Delay: x.Lease})
				again := x.claimOne()
				if least := item.ClaimedAt.Add(x.Lease); again.ClaimedAt.Before(least) {
					x.Errorf("claimed again at %v, before %v", again.ClaimedAt, least)
				}
				x.step(&again, `2`, supervisor.Continue{Delay: far})
				x.idle("it continues an hour later")
			},
		},
		{
			topic: "commit", name: "reschedule",
			rule: "Reschedule evaluates the instance again at its instant by the store's clock",
			run: func(x *trial) {
				var at time.Time
				x.timely(func(soon time.Time) {
					at = soon
					x.due("a")
					item := x.claimOne()
					x.step(&item, `1`, supervisor.Reschedule{At: at})
				})
				again := x.claimOne()
				if again.ClaimedAt.Before(at) {
					x.Errorf("claimed again at %v, before %v", again.ClaimedAt, at)
				}
				if !again.ScheduledAt.Equal(at) {
					x.Errorf("ScheduledAt is %v, want %v", again.ScheduledAt, at)
				}
				x.step(&again, `2`, supervisor.Reschedule{At: again.ClaimedAt.Add(far)})
				x.idle("it is scheduled an hour later")
			},
		},
		{
			topic: "commit", name: "past-means-now",
			rule: "delays below zero and instants in the past mean now",
			run: func(x *trial) {
				x.due("a")
				for _, d := range []supervisor.Disposition{
					supervisor.Continue{Delay: math.MinInt64},
					supervisor.Reschedule{At: time.Date(1970, 1, 1, 0, 0, 0, 0, time.UTC)},
					supervisor.Reschedule{},
					supervisor.Failed{Reason: "past", RetryAt: time.Date(2, 1, 1, 0, 0, 0, 0, time.UTC)},
				} {
					item := x.claimOne()
					x.step(&item, `1`, d)
					again := x.claimShort()
					if again.ScheduledAt.Before(item.ClaimedAt) {
						x.Errorf("after %#v ScheduledAt is %v, want the time of the commit, after %v", d, again.ScheduledAt, item.ClaimedAt)
					}
					x.step(&again, `2`, supervisor.Continue{})
				}
			},
		},
		{
			topic: "commit", name: "end-of-calendar",
			rule: "a delay too long for the calendar means its end",
			run: func(x *trial) {
				for _, d := range []supervisor.Disposition{
					supervisor.Continue{Delay: math.MaxInt64},
					supervisor.Reschedule{At: time.Date(9999, 12, 31, 23, 59, 59, 999_999_999, time.UTC)},
					supervisor.Failed{Reason: "far away", RetryAt: time.Date(9999, 12, 31, 23, 59, 59, 999_999_999, time.UTC)},
				} {
					instance := x.due("far " + describeDisposition(d))
					item := x.claimOne()
					x.step(&item, `1`, d)
					x.idle("it is due in centuries")
					if x.Instances != nil {
						if due := x.get(instance.ID).NextDueAt; due.Year() < 2200 {
							x.Errorf("NextDueAt is %v after %#v, want an instant in some centuries", due, d)
						}
					}
				}
			},
		},
		{
			topic: "commit", name: "failed-with-retry",
			rule: "a commit with Failed raises Attempt by one and is due again at its retry time",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				for attempt := 1; attempt <= 3; attempt++ {
					retryAt := x.soon()
					x.fail(&item, "again", retryAt)
					item = x.claimOne()
					equal(x, "Attempt", item.Attempt, attempt)
					if item.ClaimedAt.Before(retryAt) {
						x.Errorf("claimed at %v, before the retry time %v", item.ClaimedAt, retryAt)
					}
					x.equalJSON("State after a failure", item.State, `{"config":1}`)
				}
				x.fail(&item, "later", item.ClaimedAt.Add(far))
				x.idle("the retry time is an hour away")
			},
		},
		{
			topic: "commit", name: "success-resets-attempt",
			rule: "every commit that does not fail sets Attempt to 0",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				x.fail(&item, "once", item.ClaimedAt)
				item = x.claimOne()
				equal(x, "Attempt after a failure", item.Attempt, 1)
				x.step(&item, `1`, supervisor.Continue{})
				item = x.claimOne()
				equal(x, "Attempt after a success", item.Attempt, 0)
			},
		},
		{
			topic: "commit", name: "failed-for-good",
			rule: "Failed without a retry time fails the instance for good",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				x.fail(&item, "for good", time.Time{})
				x.idle("the instance failed for good")
				if x.Instances == nil {
					return
				}
				s := x.get("a")
				equal(x, "Status", s.Status, supervisor.StatusFailed)
				equal(x, "LastError", s.LastError, "for good")
				equal(x, "Attempt", s.Attempt, 1)
				if s.FinishedAt.IsZero() || !s.NextDueAt.IsZero() {
					x.Errorf("FinishedAt is %v and NextDueAt %v, want the first alone to be set", s.FinishedAt, s.NextDueAt)
				}
			},
		},
		{
			topic: "commit", name: "failed-writes-state",
			rule: "a commit writes the state of its command, also of a driver's own Failed",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				x.step(&item, `{"given":"up"}`, supervisor.Failed{Reason: "own", RetryAt: item.ClaimedAt})
				again := x.claimOne()
				x.equalJSON("State", again.State, `{"given":"up"}`)
				equal(x, "StateVersion", again.StateVersion, 1)
				equal(x, "Attempt", again.Attempt, 1)
			},
		},
		{
			topic: "commit", name: "failing-in-different-words",
			rule: "failures of one instance with different texts are separate commits, none a conflict",
			run: func(x *trial) {
				x.due("a")
				for n, reason := range []string{"err one", "err two", "err one"} {
					item := x.claimOne()
					equal(x, "StateVersion", item.StateVersion, int64(n))
					x.fail(&item, reason, item.ClaimedAt)
				}
				item := x.claimOne()
				x.step(&item, `"well"`, supervisor.Complete{})
				if x.Instances == nil {
					return
				}
				var types []string
				for _, event := range x.history("a") {
					types = append(types, event.Type)
				}
				failed := supervisor.EventEvaluationFailed
				equalList(x, "the types of the events", types, []string{failed, failed, failed, "queuetest.stepped"})
			},
		},
		{
			topic: "commit", name: "invalid-pins-can-fail",
			rule: "ValidateContent leaves out the pins, so that the failure of an item with invalid pins can be stored",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				item.WorkflowRevisionDigest, item.RunID = "", "not a uuid"
				x.fail(&item, "invalid pins", item.ClaimedAt.Add(far))
				x.idle("it failed and backs off")
			},
		},
		{
			topic: "commit", name: "many-intents",
			rule: "a commit writes its intents, however many: their ids are known afterwards",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				command := x.command(&item, `1`, supervisor.Continue{})
				for n := range 300 {
					command.ActionIntents = append(command.ActionIntents, x.intent(&item, fmt.Sprint("i", n)))
				}
				x.commit(&item, command)
				x.stored(&item, command.ActionIntents)
				again := x.claimOne()
				command = x.command(&again, `2`, supervisor.Continue{})
				for _, id := range []string{"i0", "i150", "i299"} {
					command.ActionIntents = []supervisor.ActionIntent{x.intent(&again, id)}
					x.want(x.CommitCommand(x.ctx, &again, &command), supervisor.ErrCommandRejected, "CommitCommand with the known intent %q", id)
				}
				command.ActionIntents = []supervisor.ActionIntent{x.intent(&again, "i300")}
				x.commit(&again, command)
			},
		},
		{
			topic: "commit", name: "stores-intents", needs: readIntents,
			rule: "a commit stores its intents unchanged; a refused one stores none",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				command := x.command(&item, `1`, supervisor.Continue{})
				for n, value := range exactJSON() {
					intent := x.intent(&item, fmt.Sprintf("i%02d", n))
					intent.Input = json.RawMessage(value)
					intent.ResourceScopeID = "resource " + intent.ID
					intent.Effect, intent.RetryClass = supervisor.EffectFunds, supervisor.IdempotencyReconcileBeforeRetry
					intent.Reservation = &supervisor.ResourceReservationRef{ID: "reservation", FencingToken: math.MaxInt64}
					intent.Deadline = x.now().Add(far)
					command.ActionIntents = append(command.ActionIntents, intent)
				}
				wrong := item.Clone()
				wrong.LeaseVersion++
				refused := x.command(&wrong, `1`, supervisor.Continue{})
				refused.ActionIntents = []supervisor.ActionIntent{x.intent(&wrong, "refused")}
				x.want(x.CommitCommand(x.ctx, &wrong, &refused), supervisor.ErrLeaseLost, "CommitCommand under another lease version")
				x.commit(&item, command)
				x.stored(&item, command.ActionIntents)
				x.check(x.CommitCommand(x.ctx, &item, &command), "repeated commit")
				x.stored(&item, command.ActionIntents)
			},
		},
		{
			topic: "commit", name: "ended-context",
			rule: "a context that ends never leaves half a commit behind",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				ctx, cancel := context.WithCancel(x.ctx)
				cancel()
				command := x.command(&item, `"done"`, supervisor.Continue{})
				before := x.look(&item)
				if err := x.CommitCommand(ctx, &item, &command); err != nil {
					x.same(&item, before, "a commit whose context had ended")
				}
				// Repeated, the command is applied once, whatever became of it before.
				x.commit(&item, command)
				again := x.claimOne()
				x.equalJSON("State", again.State, `"done"`)
				equal(x, "StateVersion", again.StateVersion, 1)
			},
		},
	}
}

// stored compares the stored intents of an instance, where they can be read.
func (x *trial) stored(item *supervisor.WorkItem, want []supervisor.ActionIntent) {
	x.Helper()
	if x.Intents == nil {
		return
	}
	got, err := x.Intents(x.ctx, item.TenantID, item.ID)
	x.check(err, "Intents")
	byID := func(a, b supervisor.ActionIntent) int { return strings.Compare(a.ID, b.ID) }
	got, want = slices.SortedFunc(slices.Values(got), byID), slices.SortedFunc(slices.Values(want), byID)
	if len(got) != len(want) {
		x.Errorf("%d intents are stored, want %d", len(got), len(want))
		return
	}
	for n := range got {
		x.equalJSON("the input of intent "+want[n].ID, got[n].Input, string(want[n].Input))
		got[n].CreatedAt = want[n].CreatedAt // may be the store's
		gotText, _ := json.Marshal(got[n])
		wantText, _ := json.Marshal(want[n])
		x.equalJSON("intent "+want[n].ID, gotText, string(wantText))
	}
}

func describeDisposition(d supervisor.Disposition) string {
	switch d.(type) {
	case supervisor.Continue:
		return "continue"
	case supervisor.Reschedule:
		return "reschedule"
	case supervisor.Failed:
		return "failed"
	}
	return "complete"
}

// refusalCases prove the order of the checks and that what is refused changes
// nothing.
func refusalCases() []testCase {
	return withKept([]testCase{
		{
			topic: "refusal", name: "unknown-instance",
			rule: "a commit for an unknown instance is ErrNotFound",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				for _, lost := range []func(*supervisor.WorkItem){
					func(w *supervisor.WorkItem) { w.ID = "unknown" },
					func(w *supervisor.WorkItem) { w.TenantID = x.tenant + " unknown" },
				} {
					unknown := item.Clone()
					lost(&unknown)
					command := x.command(&unknown, `1`, supervisor.Complete{})
					x.want(x.tryCommit(&unknown, &command), supervisor.ErrNotFound, "commit of %q in %q", unknown.ID, unknown.TenantID)
				}
			},
		},
		{
			topic: "refusal", name: "state-version",
			rule: "a commit for another state version is ErrStateConflict",
			run: func(x *trial) {
				x.due("a")
				first := x.claimOne()
				x.step(&first, `1`, supervisor.Continue{})
				item := x.claimOne()
				before := x.look(&item)
				for _, version := range []int64{item.StateVersion - 1, item.StateVersion + 1} {
					wrong := item.Clone()
					wrong.StateVersion = version
					command := x.command(&wrong, `"wrong"`, supervisor.Complete{})
					command.DeliveryKey = "key of a wrong version"
					x.want(x.tryCommit(&wrong, &command), supervisor.ErrStateConflict, "commit at state version %d of %d", version, item.StateVersion)
				}
				x.same(&item, before, "commits at other state versions")
				x.step(&item, `2`, supervisor.Complete{})
			},
		},
		{
			topic: "refusal", name: "finished",
			rule: "a commit for a finished instance is ErrStateConflict to its last holder",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				x.step(&item, `1`, supervisor.Complete{})
				before := x.look(&item)
				item.StateVersion++
				command := x.command(&item, `"more"`, supervisor.Continue{})
				x.want(x.tryCommit(&item, &command), supervisor.ErrStateConflict, "commit after Complete")
				x.same(&item, before, "a commit after Complete")
				x.idle("the instance is completed")
			},
		},
		{
			topic: "refusal", name: "content-before-existence",
			rule: "content is checked before existence",
			run: func(x *trial) {
				x.due("a")
				unknown := x.claimOne()
				unknown.ID = "unknown"
				command := x.command(&unknown, `1`, supervisor.Complete{})
				command.EventType = " "
				x.want(x.tryCommit(&unknown, &command), supervisor.ErrCommandRejected, "commit of an invalid command for an unknown instance")
			},
		},
		{
			topic: "refusal", name: "lease-before-state",
			rule: "the lease version is checked before the state version",
			run: func(x *trial) {
				x.due("a")
				old := x.claimOne()
				x.step(&old, `1`, supervisor.Continue{})
				current := x.claimOne()
				command := x.command(&old, `"old"`, supervisor.Complete{})
				command.DeliveryKey = "another key"
				x.want(x.tryCommit(&old, &command), supervisor.ErrLeaseLost, "commit with a stale lease version and a stale state version")
				x.step(&current, `2`, supervisor.Complete{})
			},
		},
		{
			topic: "refusal", name: "state-before-epochs", needs: instances,
			rule: "the state version is checked before the epochs",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				x.check(x.Instances.Cancel(x.ctx, x.tenant, "a"), "Cancel")
				item.StateVersion++
				command := x.command(&item, `1`, supervisor.Complete{})
				x.want(x.tryCommit(&item, &command), supervisor.ErrStateConflict, "commit at a wrong state version under a stale epoch")
			},
		},
		{
			topic: "refusal", name: "epochs-before-intents", needs: instances,
			rule: "the epochs are checked before the intents are compared with those that the instance has",
			run: func(x *trial) {
				x.due("a")
				first := x.claimOne()
				command := x.command(&first, `1`, supervisor.Continue{})
				command.ActionIntents = []supervisor.ActionIntent{x.intent(&first, "i")}
				x.commit(&first, command)
				item := x.claimOne()
				x.check(x.Instances.Cancel(x.ctx, x.tenant, "a"), "Cancel")
				command = x.command(&item, `2`, supervisor.Continue{})
				command.ActionIntents = []supervisor.ActionIntent{x.intent(&item, "i")}
				x.want(x.tryCommit(&item, &command), supervisor.ErrEpochStale, "commit with a known intent id under a stale epoch")
			},
		},
		{
			topic: "refusal", name: "known-intent",
			rule: "an intent id that the instance already has is ErrCommandRejected, and nothing is applied",
			run: func(x *trial) {
				wakeup := note("w")
				x.due("a", wakeup)
				first := x.claimOne()
				command := x.command(&first, `1`, supervisor.Continue{})
				command.ActionIntents = []supervisor.ActionIntent{x.intent(&first, "i1")}
				x.commit(&first, command)

				item := x.claimOne()
				before := x.look(&item)
				repeated := x.command(&item, `"refused"`, supervisor.Complete{})
				repeated.ConsumedWakeups = []string{wakeup.ID}
				repeated.ActionIntents = []supervisor.ActionIntent{x.intent(&item, "i0"), x.intent(&item, "i1")}
				x.want(x.tryCommit(&item, &repeated), supervisor.ErrCommandRejected, "commit with a known intent id")
				x.same(&item, before, "a refused commit")

				// Nothing of it is there: neither the state, nor its first
				// intent, nor its key, and its wakeup is still pending.
				again := x.command(&item, `2`, supervisor.Continue{})
				again.ActionIntents = []supervisor.ActionIntent{x.intent(&item, "i0")}
				x.commit(&item, again)
				last := x.claimOne()
				x.equalJSON("State", last.State, `2`)
				equal(x, "StateVersion", last.StateVersion, 2)
				equalList(x, "the ids of the wakeups", wakeupIDs(&last), []string{wakeup.ID})
			},
		},
	})
}
