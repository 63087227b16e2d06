package queuetest

import (
	"time"

	"github.com/workflow-supervisor/supervisor"
)

func cancelCases() []testCase {
	return needing(instances, []testCase{
		{
			topic: "cancel", name: "makes-due",
			rule: "Cancel makes a waiting instance due now, with cancellation requested and the instance epoch raised",
			run: func(x *trial) {
				x.add(x.instance("a"), x.now().Add(far))
				x.check(x.Instances.Cancel(x.ctx, x.tenant, "a"), "Cancel")
				item := x.claimOne()
				equal(x, "CancelRequested", item.CancelRequested, true)
				equal(x, "ControlEpochs", item.ControlEpochs, supervisor.ControlEpochs{Instance: 1})
				if !item.IsConverging() {
					x.Errorf("the claimed item does not converge")
				}
			},
		},
		{
			topic: "cancel", name: "ends-as-cancelled",
			rule: "a terminal commit of an instance with cancellation requested gives the status cancelled",
			run: func(x *trial) {
				for id, end := range map[string]func(*supervisor.WorkItem) supervisor.TransitionCommand{
					"complete": func(item *supervisor.WorkItem) supervisor.TransitionCommand {
						return x.command(item, `1`, supervisor.Complete{})
					},
					"failed": func(item *supervisor.WorkItem) supervisor.TransitionCommand {
						return x.command(item, `1`, supervisor.Failed{Reason: "for good"})
					},
					"policy": func(item *supervisor.WorkItem) supervisor.TransitionCommand {
						command := x.command(item, `1`, supervisor.Continue{})
						command.Outcome.Succeeded = true
						return command
					},
				} {
					instance := x.instance(id)
					if id == "policy" {
						instance.Lifecycle = supervisor.RunOnce()
					}
					x.add(instance, time.Time{})
					x.check(x.Instances.Cancel(x.ctx, x.tenant, id), "Cancel")
					item := x.claimOne()
					x.commit(&item, end(&item))
					s := x.get(id)
					equal(x, "Status after "+id, s.Status, supervisor.StatusCancelled)
					if s.FinishedAt.IsZero() || !s.NextDueAt.IsZero() {
						x.Errorf("FinishedAt is %v and NextDueAt %v, want the first alone to be set", s.FinishedAt, s.NextDueAt)
					}
				}
				x.idle("all are cancelled")
			},
		},
		{
			topic: "cancel", name: "converges-step-by-step",
			rule: "other dispositions leave an instance with cancellation requested active",
			run: func(x *trial) {
				x.due("a")
				x.check(x.Instances.Cancel(x.ctx, x.tenant, "a"), "Cancel")
				item := x.claimOne()
				x.step(&item, `1`, supervisor.Continue{})
				item = x.claimOne()
				equal(x, "CancelRequested", item.CancelRequested, true)
				x.fail(&item, "not yet", item.ClaimedAt)
				item = x.claimOne()
				equal(x, "CancelRequested", item.CancelRequested, true)
				equal(x, "Status", x.get("a").Status, supervisor.StatusActive)
				x.step(&item, `2`, supervisor.Complete{})
				equal(x, "Status", x.get("a").Status, supervisor.StatusCancelled)
			},
		},
		{
			topic: "cancel", name: "repeated",
			rule: "cancelling again changes nothing",
			run: func(x *trial) {
				x.due("a")
				x.check(x.Instances.Cancel(x.ctx, x.tenant, "a"), "Cancel")
				item := x.claimOne()
				before := x.look(&item)
				x.check(x.Instances.Cancel(x.ctx, x.tenant, "a"), "Cancel again")
				x.same(&item, before, "a second Cancel")
				x.step(&item, `1`, supervisor.Continue{Delay: far})
				x.check(x.Instances.Cancel(x.ctx, x.tenant, "a"), "Cancel again")
				x.idle("its driver converges in an hour")
			},
		},
		{
			topic: "cancel", name: "finished",
			rule: "cancelling a finished instance is nil and changes nothing",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				x.step(&item, `1`, supervisor.Complete{})
				before := x.look(&item)
				x.check(x.Instances.Cancel(x.ctx, x.tenant, "a"), "Cancel")
				x.same(&item, before, "Cancel of a completed instance")
				equal(x, "Status", x.get("a").Status, supervisor.StatusCompleted)
			},
		},
		{
			topic: "cancel", name: "failed-for-good",
			rule: "an instance that failed for good is cancelled at once",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				x.fail(&item, "for good", time.Time{})
				x.check(x.Instances.Cancel(x.ctx, x.tenant, "a"), "Cancel")
				equal(x, "Status", x.get("a").Status, supervisor.StatusCancelled)
				x.idle("the instance is cancelled")
				x.want(x.Instances.Retry(x.ctx, x.tenant, "a"), supervisor.ErrStateConflict, "Retry of a cancelled instance")
			},
		},
		{
			topic: "cancel", name: "unknown",
			rule: "cancelling an unknown instance is ErrNotFound",
			run: func(x *trial) {
				x.due("a")
				x.want(x.Instances.Cancel(x.ctx, x.tenant, "unknown"), supervisor.ErrNotFound, "Cancel of an unknown id")
				x.want(x.Instances.Cancel(x.ctx, x.tenant+" unknown", "a"), supervisor.ErrNotFound, "Cancel in an unknown tenant")
			},
		},
		{
			topic: "cancel", name: "lifts-retry-floor",
			rule: "Cancel lifts the retry time of an instance that backs off",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				x.fail(&item, "failed", x.now().Add(far))
				x.check(x.Instances.Cancel(x.ctx, x.tenant, "a"), "Cancel")
				again := x.claimOne()
				equal(x, "CancelRequested", again.CancelRequested, true)
			},
		},
		{
			topic: "cancel", name: "before-start",
			rule: "an instance that is cancelled before its lifecycle's StartsAt is due now",
			run: func(x *trial) {
				instance := x.instance("a")
				instance.Lifecycle.StartsAt = x.now().Add(far)
				x.add(instance, time.Time{})
				x.check(x.Instances.Cancel(x.ctx, x.tenant, "a"), "Cancel")
				item := x.claimOne()
				equal(x, "CancelRequested", item.CancelRequested, true)
			},
		},
		{
			topic: "cancel", name: "leaves-the-lease",
			rule: "a lease that is held stays until its holder is refused or it ends",
			run: func(x *trial) {
				x.due("a")
				first := x.claimShort()
				x.check(x.Instances.Cancel(x.ctx, x.tenant, "a"), "Cancel")
				again := x.claimOne()
				if again.ClaimedAt.Before(first.ClaimedAt.Add(x.Lease)) {
					x.Errorf("claimed again at %v, before the lease of %v from %v had ended", again.ClaimedAt, x.Lease, first.ClaimedAt)
				}
				equal(x, "CancelRequested", again.CancelRequested, true)
			},
		},
		{
			topic: "cancel", name: "no-intents",
			rule: "intents on a cancelled item are ErrCommandRejected",
			run: func(x *trial) {
				x.due("a")
				x.check(x.Instances.Cancel(x.ctx, x.tenant, "a"), "Cancel")
				item := x.claimOne()
				command := x.command(&item, `1`, supervisor.Complete{})
				command.ActionIntents = []supervisor.ActionIntent{x.intent(&item, "i")}
				x.want(x.CommitCommand(x.ctx, &item, &command), supervisor.ErrCommandRejected, "CommitCommand with an intent")
				x.step(&item, `1`, supervisor.Complete{})
			},
		},
	})
}

func retryCases() []testCase {
	return needing(instances, []testCase{
		{
			topic: "retry", name: "failed-for-good",
			rule: "Retry makes an instance that failed for good active and due now, from its state, with attempt 0",
			run: func(x *trial) {
				x.due("a", note("w"))
				item := x.claimOne()
				x.step(&item, `{"reached":1}`, supervisor.Continue{})
				item = x.claimOne()
				x.fail(&item, "for good", time.Time{})
				x.check(x.Instances.Retry(x.ctx, x.tenant, "a"), "Retry")
				s := x.get("a")
				equal(x, "Status", s.Status, supervisor.StatusActive)
				equal(x, "FinishedAt.IsZero", s.FinishedAt.IsZero(), true)
				again := x.claimOne()
				x.equalJSON("State", again.State, `{"reached":1}`)
				equal(x, "Attempt", again.Attempt, 0)
				equal(x, "StateVersion", again.StateVersion, 2)
				equalList(x, "the ids of the wakeups", wakeupIDs(&again), []string{"w"})
				x.step(&again, `{"reached":2}`, supervisor.Complete{})
			},
		},
		{
			topic: "retry", name: "backing-off",
			rule: "Retry makes an instance that backs off due now, with attempt 0",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				x.fail(&item, "failed", x.now().Add(far))
				x.idle("it backs off")
				x.check(x.Instances.Retry(x.ctx, x.tenant, "a"), "Retry")
				again := x.claimOne()
				equal(x, "Attempt", again.Attempt, 0)
			},
		},
		{
			topic: "retry", name: "others",
			rule: "Retry of any other instance is ErrStateConflict",
			run: func(x *trial) {
				x.add(x.instance("waiting"), x.now().Add(far))
				x.want(x.Instances.Retry(x.ctx, x.tenant, "waiting"), supervisor.ErrStateConflict, "Retry of an instance that waits")
				x.idle("it still waits")
				x.due("completed")
				item := x.claimOne()
				x.step(&item, `1`, supervisor.Complete{})
				x.want(x.Instances.Retry(x.ctx, x.tenant, "completed"), supervisor.ErrStateConflict, "Retry of a completed instance")
				x.due("recovered")
				item = x.claimOne()
				x.fail(&item, "failed", item.ClaimedAt)
				item = x.claimOne()
				x.step(&item, `1`, supervisor.Continue{Delay: far})
				x.want(x.Instances.Retry(x.ctx, x.tenant, "recovered"), supervisor.ErrStateConflict, "Retry of an instance that recovered")
				x.idle("none of them is due")
			},
		},
		{
			topic: "retry", name: "unknown",
			rule: "Retry of an unknown instance is ErrNotFound",
			run: func(x *trial) {
				x.want(x.Instances.Retry(x.ctx, x.tenant, "unknown"), supervisor.ErrNotFound, "Retry of an unknown instance")
			},
		},
	})
}
