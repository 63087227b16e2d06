package queuetest

import (
	"reflect"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

func keepCases() []testCase {
	return needing(keeper, []testCase{
		{
			topic: "keep", name: "due-at-once",
			rule: "CommitAndKeep keeps the claim where the instance is due again at once: the same transaction raises the lease version, extends the lease and captures the next item",
			run: func(x *trial) {
				instance := x.due("a")
				item := x.claimShort()
				next := x.mustKeep(&item, x.command(&item, `{"step":1}`, supervisor.Continue{}))
				sameInstance(x, &next.Instance, &instance)
				x.equalJSON("State", next.State, `{"step":1}`)
				equal(x, "StateVersion", next.StateVersion, 1)
				equal(x, "Attempt", next.Attempt, 0)
				if next.LeaseVersion <= item.LeaseVersion {
					x.Errorf("lease version %d follows %d", next.LeaseVersion, item.LeaseVersion)
				}
				if next.ClaimedAt.Before(item.ClaimedAt) || next.ScheduledAt.Before(item.ClaimedAt) || !next.CreatedAt.Equal(item.CreatedAt) {
					x.Errorf("the kept item was created at %v, scheduled at %v and claimed at %v; the one before was created at %v and claimed at %v",
						next.CreatedAt, next.ScheduledAt, next.ClaimedAt, item.CreatedAt, item.ClaimedAt)
				}
				x.outlast() // the lease that was kept is the longer one
				x.idle("the claim was kept")
				x.check(x.Renew(x.ctx, lease(next, held)), "Renew of the kept claim")
				x.step(next, `{"step":2}`, supervisor.Continue{})
				last := x.claimOne()
				equal(x, "StateVersion", last.StateVersion, 2)
				x.equalJSON("State", last.State, `{"step":2}`)
			},
		},
		{
			topic: "keep", name: "lease-end", needs: instances,
			rule: "CommitAndKeep extends the lease by the duration from the store's now",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				command := x.command(&item, `1`, supervisor.Continue{})
				next, err := x.keep.CommitAndKeep(x.ctx, &item, &command, 2*held)
				x.check(err, "CommitAndKeep")
				if next == nil {
					x.Fatalf("CommitAndKeep kept nothing though the instance is due again at once")
				}
				s := x.get("a")
				x.leaseEnds(next.ClaimedAt, s.LeaseEndsAt, 2*held)
				equal(x, "LeaseOwner", s.LeaseOwner, worker)
				equal(x, "the number of events", len(x.history("a")), 1)
			},
		},
		{
			topic: "keep", name: "many-steps",
			rule: "a claim can be kept over many transitions",
			run: func(x *trial) {
				x.due("a")
				first := x.claimOne()
				item := &first
				for n := range 20 {
					equal(x, "StateVersion", item.StateVersion, int64(n))
					item = x.mustKeep(item, x.command(item, `1`, supervisor.Continue{}))
				}
				x.keepsNothing(item, x.command(item, `2`, supervisor.Complete{}), "it is completed")
			},
		},
		{
			topic: "keep", name: "fences",
			rule: "the claim before a kept one can neither renew nor commit",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				next := x.mustKeep(&item, x.command(&item, `1`, supervisor.Continue{}))
				x.want(x.Renew(x.ctx, lease(&item, held)), supervisor.ErrLeaseLost, "Renew under the lease version before")
				other := x.command(&item, `"other"`, supervisor.Complete{})
				other.DeliveryKey = "another key"
				x.want(x.CommitCommand(x.ctx, &item, &other), supervisor.ErrLeaseLost, "CommitCommand under the lease version before")
				x.step(next, `2`, supervisor.Complete{})
			},
		},
		{
			topic: "keep", name: "nothing-to-keep",
			rule: "next is nil, and the lease released, where the instance is not due, finished or held back by its lifecycle",
			run: func(x *trial) {
				for id, d := range map[string]supervisor.Disposition{
					"later": supervisor.Continue{Delay: far}, "completed": supervisor.Complete{}, "failed": supervisor.Failed{Reason: "for good"},
				} {
					x.due(id)
					item := x.claimOne()
					x.keepsNothing(&item, x.command(&item, `1`, d), "it is "+id)
					x.want(x.Renew(x.ctx, lease(&item, held)), supervisor.ErrLeaseLost, "Renew of what is %s", id)
				}
				x.living("once", supervisor.RunOnce(), time.Time{})
				item := x.claimOne()
				command := x.command(&item, `1`, supervisor.Continue{})
				command.Outcome.Succeeded = true
				x.keepsNothing(&item, command, "its policy is met")
				x.due("backing off")
				item = x.claimOne()
				x.keepsNothing(&item, supervisor.FailureCommand(&item, "failed", x.now().Add(far)), "it backs off")
				x.idle("nothing is due")
			},
		},
		{
			topic: "keep", name: "pending-wakeups",
			rule: "the kept item holds the wakeups that are due, those consumed excepted",
			run: func(x *trial) {
				x.due("a", note("w1"), note("w2"), note("w3"))
				item := x.claimOne()
				command := x.command(&item, `1`, supervisor.Continue{})
				command.ConsumedWakeups = []string{"w2"}
				next := x.mustKeep(&item, command)
				equalList(x, "the ids of the wakeups", wakeupIDs(next), []string{"w1", "w3"})
				if len(next.Wakeups) == 2 {
					x.equalJSON("the payload of w3", next.Wakeups[1].Payload, string(note("w3").Payload))
				}
				command = x.command(next, `2`, supervisor.Continue{})
				command.ConsumedWakeups = []string{"w1", "w3"}
				next = x.mustKeep(next, command)
				equalList(x, "the ids of the wakeups", wakeupIDs(next), []string{})
			},
		},
		{
			topic: "keep", name: "wakeup-during-evaluation", needs: instances,
			rule: "a wakeup that arrived during the evaluation makes the instance due again at once: it is kept with it",
			run: func(x *trial) {
				x.due("a", note("w1"))
				item := x.claimOne()
				x.deliver("a", note("w2"), time.Time{})
				command := x.command(&item, `1`, supervisor.Continue{Delay: far})
				command.ConsumedWakeups = []string{"w1"}
				next := x.mustKeep(&item, command)
				equalList(x, "the ids of the wakeups", wakeupIDs(next), []string{"w2"})
				x.keepsNothing(next, x.command(next, `2`, supervisor.Continue{Delay: far}), "the kept claim contained the wakeup")
			},
		},
		{
			topic: "keep", name: "epochs-afresh", needs: instances,
			rule: "the kept item carries epochs read afresh",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				x.pauseResource("r")
				next := x.mustKeep(&item, x.command(&item, `1`, supervisor.Continue{}))
				equal(x, "ControlEpochs", next.ControlEpochs, supervisor.ControlEpochs{Resource: 1})
				x.check(x.Instances.Cancel(x.ctx, x.tenant, "a"), "Cancel")
				x.want(x.Renew(x.ctx, lease(next, held)), supervisor.ErrEpochStale, "Renew of the kept claim after Cancel")
				command := x.command(next, `2`, supervisor.Continue{})
				kept, err := x.keep.CommitAndKeep(x.ctx, next, &command, held)
				x.want(err, supervisor.ErrEpochStale, "CommitAndKeep after Cancel")
				equal(x, "the item beside the error is nil", kept == nil, true)
			},
		},
		{
			topic: "keep", name: "raises-timers",
			rule: "a lifecycle timer that has passed is raised in the kept item as in a claim",
			run: func(x *trial) {
				x.unhurried(func(unit time.Duration) bool {
					at := x.now().Add(unit)
					x.living("a", supervisor.LifecyclePolicy{ExpiresAt: at}, time.Time{})
					item := x.claimOne()
					if len(item.Wakeups) > 0 {
						return false
					}
					x.passes(at)
					next := x.mustKeep(&item, x.command(&item, `1`, supervisor.Continue{Delay: far}))
					x.raised(next, "expired")
					return true
				})
			},
		},
		{
			topic: "keep", name: "repeated",
			rule: "a repeat of the latest command returns the kept item again while its lease version is still the holder's",
			run: func(x *trial) {
				x.due("a", note("w"))
				item := x.claimOne()
				command := x.command(&item, `1`, supervisor.Continue{})
				next := x.mustKeep(&item, command)
				before := x.look(&item)
				again := x.mustKeep(&item, command)
				next.ClaimedAt = again.ClaimedAt // when it was captured is not part of what is kept
				if !reflect.DeepEqual(next, again) {
					x.Errorf("the repeated commit kept\n%+v\nwant\n%+v", again, next)
				}
				x.same(&item, before, "a repeated commit")
				x.step(again, `2`, supervisor.Complete{})
			},
		},
		{
			topic: "keep", name: "repeated-after-a-pause", needs: instances,
			rule: "the kept item that a repeat returns carries the resource epoch of now and the other epochs of its lease",
			run: func(x *trial) {
				x.pauseResource("r")
				x.due("a")
				item := x.claimOne()
				command := x.command(&item, `1`, supervisor.Continue{})
				x.mustKeep(&item, command)
				x.pauseResource("s")
				again := x.mustKeep(&item, command)
				equal(x, "ControlEpochs after the pause of a resource", again.ControlEpochs, supervisor.ControlEpochs{Resource: 2})
				next := x.command(again, `2`, supervisor.Continue{})
				next.ActionIntents = []supervisor.ActionIntent{x.intent(again, "i")}
				next.ActionIntents[0].ResourceScopeID = "s"
				x.mustKeep(again, next)
				x.check(x.Instances.Cancel(x.ctx, x.tenant, "a"), "Cancel")
				revoked := x.mustKeep(again, next)
				equal(x, "ControlEpochs after Cancel", revoked.ControlEpochs, supervisor.ControlEpochs{Resource: 2})
				late := x.command(revoked, `3`, supervisor.Complete{})
				x.want(x.tryCommit(revoked, &late), supervisor.ErrEpochStale, "commit of what was cancelled after it was kept")
			},
		},
		{
			topic: "keep", name: "repeated-after-another-took-it",
			rule: "a repeat of the latest command returns nil where another holds the instance",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				command := x.command(&item, `1`, supervisor.Continue{})
				_, err := x.keep.CommitAndKeep(x.ctx, &item, &command, x.Lease)
				x.check(err, "CommitAndKeep")
				x.outlast()
				other := x.claimOne()
				x.keepsNothing(&item, command, "another holds it")
				x.check(x.Renew(x.ctx, lease(&other, held)), "Renew by the other")
				x.step(&other, `2`, supervisor.Complete{})
				x.want(x.CommitCommand(x.ctx, &item, &command), supervisor.ErrLeaseLost, "repeat of a command that is no longer the latest")
			},
		},
		{
			topic: "keep", name: "repeated-without-keeping",
			rule: "a repeat of a command that was committed without keeping returns nil",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				command := x.command(&item, `1`, supervisor.Continue{Delay: far})
				x.commit(&item, command)
				x.keepsNothing(&item, command, "it was committed before")
			},
		},
		{
			topic: "keep", name: "memory",
			rule: "the kept item belongs to the caller",
			run: func(x *trial) {
				x.due("a", note("w"))
				item := x.claimOne()
				next := x.mustKeep(&item, x.command(&item, `{"kept":1}`, supervisor.Continue{}))
				spoil(next.State)
				spoil(next.Config)
				for n := range next.Wakeups {
					spoil(next.Wakeups[n].Payload)
				}
				next.State = []byte(`{"kept":1}`)
				x.step(next, `{"kept":2}`, supervisor.Continue{})
				last := x.claimOne()
				x.equalJSON("Config", last.Config, `{"config":1}`)
				if len(last.Wakeups) == 1 {
					x.equalJSON("the wakeup's payload", last.Wakeups[0].Payload, string(note("w").Payload))
				}
			},
		},
	})
}

// mustKeep commits a command after which the instance is due again at once.
func (x *trial) mustKeep(item *supervisor.WorkItem, command supervisor.TransitionCommand) *supervisor.WorkItem {
	x.Helper()
	next, err := x.keep.CommitAndKeep(x.ctx, item, &command, held)
	x.check(err, "CommitAndKeep of %q at state version %d", item.ID, item.StateVersion)
	if next == nil {
		x.Fatalf("CommitAndKeep of %q kept nothing though it is due again at once", item.ID)
	}
	return next
}

// keepsNothing commits a command after which there is nothing to keep.
func (x *trial) keepsNothing(item *supervisor.WorkItem, command supervisor.TransitionCommand, because string) {
	x.Helper()
	next, err := x.keep.CommitAndKeep(x.ctx, item, &command, held)
	x.check(err, "CommitAndKeep of %q at state version %d", item.ID, item.StateVersion)
	if next != nil {
		x.Errorf("CommitAndKeep of %q kept an item, want nil: %s", item.ID, because)
	}
}
