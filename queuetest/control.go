package queuetest

import (
	"fmt"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

// epochCases prove that commands made under epochs that have moved are refused.
func epochCases() []testCase {
	return needing(instances, withKept([]testCase{
		{
			topic: "epochs", name: "paused-tenant",
			rule: "a commit after the pause of its tenant is ErrEpochStale",
			run: func(x *trial) {
				x.refusedAfter("Pause of the tenant", func() error {
					return x.Instances.Pause(x.ctx, supervisor.Scope{TenantID: x.tenant})
				})
			},
		},
		{
			topic: "epochs", name: "paused-instance",
			rule: "a commit after the pause of its instance is ErrEpochStale",
			run: func(x *trial) {
				x.refusedAfter("Pause of the instance", func() error {
					return x.Instances.Pause(x.ctx, supervisor.Scope{TenantID: x.tenant, InstanceID: "a"})
				})
			},
		},
		{
			topic: "epochs", name: "resumed",
			rule: "a pause that was ended again refuses its holders all the same",
			run: func(x *trial) {
				x.refusedAfter("Pause and Resume", func() error {
					scope := supervisor.Scope{TenantID: x.tenant}
					if err := x.Instances.Pause(x.ctx, scope); err != nil {
						return err
					}
					return x.Instances.Resume(x.ctx, scope)
				})
			},
		},
		{
			topic: "epochs", name: "cancelled",
			rule: "a cancellation between claim and commit is not overwritten: the commit is ErrEpochStale and nothing of it is applied",
			run: func(x *trial) {
				x.refusedAfter("Cancel", func() error { return x.Instances.Cancel(x.ctx, x.tenant, "a") })
			},
		},
		{
			topic: "epochs", name: "of-others",
			rule: "pauses and cancellations of others refuse nobody",
			run: func(x *trial) {
				x.due("a")
				x.add(x.instance("b"), x.now().Add(far))
				other := x.instance("a")
				other.TenantID += " other"
				x.add(other, x.now().Add(far))
				item := x.claimOne()
				x.check(x.Instances.Pause(x.ctx, supervisor.Scope{TenantID: other.TenantID}), "Pause")
				x.check(x.Instances.Cancel(x.ctx, other.TenantID, "a"), "Cancel")
				x.check(x.Instances.Pause(x.ctx, supervisor.Scope{TenantID: x.tenant, InstanceID: "b"}), "Pause")
				x.check(x.Renew(x.ctx, lease(&item, held)), "Renew")
				command := x.command(&item, `1`, supervisor.Complete{})
				x.check(x.tryCommit(&item, &command), "commit")
			},
		},
		{
			topic: "epochs", name: "paused-resource",
			rule: "an intent of a resource that was paused since the claim is ErrEpochStale, and nothing of its command is applied",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				x.pauseResource("r")
				command := x.command(&item, `1`, supervisor.Continue{})
				command.ActionIntents = []supervisor.ActionIntent{x.intent(&item, "free"), x.intent(&item, "i")}
				command.ActionIntents[1].ResourceScopeID = "r"
				before := x.look(&item)
				x.want(x.tryCommit(&item, &command), supervisor.ErrEpochStale, "commit with an intent of a paused resource")
				x.same(&item, before, "a refused commit")
				// Without that intent it is accepted, for a resource's pause stops no commits.
				command.ActionIntents = command.ActionIntents[:1]
				command.DeliveryDigest = "without the intent"
				x.commit(&item, command)
				// The next claim captures the counter, so that new intents are current.
				again := x.claimOne()
				equal(x, "ControlEpochs.Resource", again.ControlEpochs.Resource, 1)
				next := x.command(&again, `2`, supervisor.Complete{})
				next.ActionIntents = []supervisor.ActionIntent{x.intent(&again, "i")}
				next.ActionIntents[0].ResourceScopeID = "r"
				x.check(x.tryCommit(&again, &next), "commit with an intent of a resource that was paused before the claim")
			},
		},
		{
			topic: "epochs", name: "resumed-resource",
			rule: "an intent of a resource that was paused since the claim is ErrEpochStale, also once the resource is resumed",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				x.pauseResource("r")
				x.check(x.Instances.Resume(x.ctx, supervisor.Scope{TenantID: x.tenant, ResourceID: "r"}), "Resume of resource %q", "r")
				command := x.command(&item, `1`, supervisor.Complete{})
				command.ActionIntents = []supervisor.ActionIntent{x.intent(&item, "i")}
				command.ActionIntents[0].ResourceScopeID = "r"
				x.want(x.tryCommit(&item, &command), supervisor.ErrEpochStale, "commit with an intent of a resource paused and resumed since the claim")
			},
		},
		{
			topic: "epochs", name: "other-resource",
			rule: "an intent is current while its own resource's value is not above its resource epoch, whatever became of other resources",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				x.pauseResource("other")
				command := x.command(&item, `1`, supervisor.Complete{})
				command.ActionIntents = []supervisor.ActionIntent{x.intent(&item, "i"), x.intent(&item, "j")}
				command.ActionIntents[0].ResourceScopeID = "r"
				x.check(x.tryCommit(&item, &command), "commit with an intent of a resource that was not paused")
			},
		},
	}))
}

// refusedAfter commits after a control call that has to refuse the holder.
func (x *trial) refusedAfter(call string, control func() error) {
	x.Helper()
	x.due("a", note("w"))
	// Without a Releaser the lease has to end by itself, perhaps while the views
	// below are compared.
	var item supervisor.WorkItem
	if x.release != nil {
		item = x.claimOne()
	} else {
		item = x.claimShort()
	}
	x.check(control(), "%s", call)
	before := x.look(&item)
	command := x.command(&item, `"refused"`, supervisor.Complete{})
	command.ConsumedWakeups = []string{"w"}
	command.ActionIntents = []supervisor.ActionIntent{x.intent(&item, "i")}
	x.want(x.tryCommit(&item, &command), supervisor.ErrEpochStale, "commit after %s", call)
	if x.release != nil {
		x.same(&item, before, "a refused commit")
		x.giveBack(&item, "revoked")
	}
	x.check(x.Instances.Resume(x.ctx, supervisor.Scope{TenantID: x.tenant}), "Resume")
	x.check(x.Instances.Resume(x.ctx, supervisor.Scope{TenantID: x.tenant, InstanceID: "a"}), "Resume")
	// Once the lease has ended it is claimed as it was, under the new epochs.
	again := x.claimOne()
	x.equalJSON("State", again.State, `{"config":1}`)
	equal(x, "StateVersion", again.StateVersion, 0)
	equal(x, "Attempt", again.Attempt, 0)
	equalList(x, "the ids of the wakeups", wakeupIDs(&again), []string{"w"})
	if again.ControlEpochs == item.ControlEpochs {
		x.Errorf("the epochs of the next claim are still %+v", again.ControlEpochs)
	}
	x.step(&again, `"accepted"`, supervisor.Complete{})
}

func (x *trial) pauseResource(id string) {
	x.Helper()
	x.check(x.Instances.Pause(x.ctx, supervisor.Scope{TenantID: x.tenant, ResourceID: id}), "Pause of resource %q", id)
}

func pauseCases() []testCase {
	return needing(instances, []testCase{
		{
			topic: "pause", name: "tenant",
			rule: "a paused tenant's instances are not due until Resume",
			run: func(x *trial) {
				x.due("a")
				x.due("b")
				other := x.instance("a")
				other.TenantID += " other"
				x.add(other, time.Time{})
				scope := supervisor.Scope{TenantID: x.tenant}
				x.check(x.Instances.Pause(x.ctx, scope), "Pause")
				equal(x, "the tenant that is claimed", x.claimOne().TenantID, other.TenantID)
				x.idle("the tenant is paused")
				x.check(x.Instances.Resume(x.ctx, scope), "Resume")
				x.claimN(2)
			},
		},
		{
			topic: "pause", name: "instance",
			rule: "a paused instance is not due until Resume; others are",
			run: func(x *trial) {
				x.due("a")
				x.due("b")
				scope := supervisor.Scope{TenantID: x.tenant, InstanceID: "a"}
				x.check(x.Instances.Pause(x.ctx, scope), "Pause")
				equal(x, "the id that is claimed", x.claimOne().ID, "b")
				x.idle("the other instance is paused")
				x.check(x.Instances.Resume(x.ctx, scope), "Resume")
				equal(x, "the id that is claimed", x.claimOne().ID, "a")
			},
		},
		{
			topic: "pause", name: "resource",
			rule: "the pause of a resource stops no claims",
			run: func(x *trial) {
				x.due("a")
				x.pauseResource("r")
				item := x.claimOne()
				if by := x.get("a").PausedBy; by != nil {
					x.Errorf("PausedBy is %v, want nil", by)
				}
				x.step(&item, `1`, supervisor.Complete{})
			},
		},
		{
			topic: "pause", name: "adds-up",
			rule: "pauses of different scopes add up, and PausedBy names the widest",
			run: func(x *trial) {
				x.due("a")
				tenant := supervisor.Scope{TenantID: x.tenant}
				instance := supervisor.Scope{TenantID: x.tenant, InstanceID: "a"}
				x.pausedBy(nil)
				x.check(x.Instances.Pause(x.ctx, instance), "Pause")
				x.pausedBy(&instance)
				x.check(x.Instances.Pause(x.ctx, tenant), "Pause")
				x.pausedBy(&tenant)
				x.check(x.Instances.Resume(x.ctx, tenant), "Resume")
				x.pausedBy(&instance)
				x.idle("the instance itself is still paused")
				x.check(x.Instances.Pause(x.ctx, tenant), "Pause")
				x.check(x.Instances.Resume(x.ctx, instance), "Resume")
				x.pausedBy(&tenant)
				x.idle("the tenant is still paused")
				x.check(x.Instances.Resume(x.ctx, tenant), "Resume")
				x.pausedBy(nil)
				x.claimOne()
			},
		},
		{
			topic: "pause", name: "raises-once",
			rule: "Pause raises its scope's epoch, pausing again changes nothing, Resume raises nothing",
			run: func(x *trial) {
				x.due("a")
				epochs := func(after string, tenant, instance, resource int64) {
					x.Helper()
					equal(x, "ControlEpochs after "+after, x.get("a").ControlEpochs,
						supervisor.ControlEpochs{Tenant: tenant, Instance: instance, Resource: resource})
				}
				epochs("Start", 0, 0, 0)
				want := supervisor.ControlEpochs{}
				for n, scope := range []supervisor.Scope{
					{TenantID: x.tenant}, {TenantID: x.tenant, InstanceID: "a"}, {TenantID: x.tenant, ResourceID: "r"},
				} {
					*[]*int64{&want.Tenant, &want.Instance, &want.Resource}[n] = 2
					x.check(x.Instances.Resume(x.ctx, scope), "Resume of what is not paused")
					for range 2 {
						x.check(x.Instances.Pause(x.ctx, scope), "Pause")
						x.check(x.Instances.Pause(x.ctx, scope), "Pause again")
						x.check(x.Instances.Resume(x.ctx, scope), "Resume")
						x.check(x.Instances.Resume(x.ctx, scope), "Resume again")
					}
					epochs(fmt.Sprintf("two pauses of %v", scope), want.Tenant, want.Instance, want.Resource)
				}
				item := x.claimOne()
				equal(x, "ControlEpochs of the next claim", item.ControlEpochs, want)
			},
		},
		{
			topic: "pause", name: "before-start",
			rule: "tenants and resources need not exist yet to be paused; Start works on",
			run: func(x *trial) {
				scope := supervisor.Scope{TenantID: x.tenant}
				x.check(x.Instances.Pause(x.ctx, scope), "Pause of a tenant without instances")
				x.pauseResource("not known")
				x.due("a")
				x.idle("the tenant was paused before the start")
				x.check(x.Instances.Resume(x.ctx, scope), "Resume")
				x.claimOne()
			},
		},
		{
			topic: "pause", name: "unknown-instance",
			rule: "pausing an unknown instance is ErrNotFound",
			run: func(x *trial) {
				x.want(x.Instances.Pause(x.ctx, supervisor.Scope{TenantID: x.tenant, InstanceID: "unknown"}),
					supervisor.ErrNotFound, "Pause of an unknown instance")
			},
		},
		{
			topic: "pause", name: "invalid-scope",
			rule: "a scope that Scope.Validate refuses is an error",
			run: func(x *trial) {
				x.due("a")
				for _, scope := range []supervisor.Scope{
					{}, {InstanceID: "a"}, {TenantID: " ", ResourceID: "r"},
					{TenantID: x.tenant, InstanceID: "a", ResourceID: "r"}, {TenantID: "a\x00b"},
				} {
					x.wantErr(x.Instances.Pause(x.ctx, scope), "Pause of %+v", scope)
					x.wantErr(x.Instances.Resume(x.ctx, scope), "Resume of %+v", scope)
				}
				x.claimOne()
			},
		},
		{
			topic: "pause", name: "lapsed-lease",
			rule: "an instance whose lease ends during a pause is not due before Resume",
			run: func(x *trial) {
				x.due("a")
				x.claimShort()
				scope := supervisor.Scope{TenantID: x.tenant, InstanceID: "a"}
				x.check(x.Instances.Pause(x.ctx, scope), "Pause")
				x.outlast()
				x.idle("the instance is paused")
				x.check(x.Instances.Resume(x.ctx, scope), "Resume")
				x.claimOne()
			},
		},
		{
			topic: "pause", name: "deliver-and-cancel",
			rule: "Deliver, Cancel and due times work on during a pause; a cancelled instance converges after Resume",
			run: func(x *trial) {
				x.add(x.instance("a"), x.now().Add(far))
				x.add(x.instance("b"), x.now().Add(far))
				scope := supervisor.Scope{TenantID: x.tenant}
				x.check(x.Instances.Pause(x.ctx, scope), "Pause")
				x.deliver("a", note("w"), time.Time{})
				x.check(x.Instances.Cancel(x.ctx, x.tenant, "b"), "Cancel")
				x.idle("the tenant is paused")
				x.check(x.Instances.Resume(x.ctx, scope), "Resume")
				for _, item := range x.claimN(2) {
					if item.ID == "a" {
						equalList(x, "the wakeups of a", wakeupIDs(&item), []string{"w"})
					}
					equal(x, "CancelRequested of "+item.ID, item.CancelRequested, item.ID == "b")
				}
			},
		},
		{
			topic: "pause", name: "resume-lifts-retry-floor",
			rule: "Resume of an instance that backs off also lets pending wakeups come before the retry time; Resume of its tenant does not",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				x.fail(&item, "failed", x.now().Add(far))
				x.deliver("a", note("w"), time.Time{})
				tenant := supervisor.Scope{TenantID: x.tenant}
				x.check(x.Instances.Pause(x.ctx, tenant), "Pause")
				x.check(x.Instances.Resume(x.ctx, tenant), "Resume")
				x.idle("Resume of the tenant lifts no retry time")
				instance := supervisor.Scope{TenantID: x.tenant, InstanceID: "a"}
				x.check(x.Instances.Pause(x.ctx, instance), "Pause")
				x.check(x.Instances.Resume(x.ctx, instance), "Resume")
				again := x.claimOne()
				equalList(x, "the ids of the wakeups", wakeupIDs(&again), []string{"w"})
				equal(x, "Attempt", again.Attempt, 1)
			},
		},
		{
			topic: "pause", name: "resume-is-no-retry",
			rule: "Resume of an instance that backs off without pending wakeups leaves its retry time",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				x.fail(&item, "failed", x.now().Add(far))
				scope := supervisor.Scope{TenantID: x.tenant, InstanceID: "a"}
				x.check(x.Instances.Pause(x.ctx, scope), "Pause")
				x.check(x.Instances.Resume(x.ctx, scope), "Resume")
				x.idle("the retry time is an hour away")
			},
		},
	})
}

// pausedBy checks the scope that a snapshot of "a" names.
func (x *trial) pausedBy(want *supervisor.Scope) {
	x.Helper()
	got := x.get("a").PausedBy
	if (got == nil) != (want == nil) || got != nil && *got != *want {
		x.Errorf("PausedBy is %v, want %v", got, want)
	}
}
