package queuetest

import (
	"errors"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

func pruneCases() []testCase {
	cases := needing(instances, []testCase{
		{
			topic: "prune", name: "finished",
			rule: "Prune removes what finished before an instant (failed too), with all its rows, and returns how many",
			run:  pruneFinished,
		},
		{
			topic: "prune", name: "finished-later",
			rule: "Prune leaves what finished after its instant",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				x.step(&item, `1`, supervisor.Complete{})
				before := x.look(&item)
				equal(x, "the number of removed instances", x.prune(item.ClaimedAt.Add(-far)), 0)
				x.same(&item, before, "Prune of an hour before")
			},
		},
		{
			topic: "prune", name: "active",
			rule: "of the others Prune removes all events but the latest that are older, and changes nothing else",
			run:  pruneActive,
		},
		{
			topic: "prune", name: "events-of-finished-later",
			rule: "of what finished after its instant, too, Prune removes all events but the latest that are older",
			run: func(x *trial) {
				x.now() // measures how exact the clock is
				x.due("a")
				for range 3 {
					item := x.claimOne()
					x.step(&item, `1`, supervisor.Continue{})
				}
				// The last commit is later than the others by more than the clock
				// that the instant is named by may be off.
				item := x.claimOne()
				x.sleep(2*x.slack + x.Lease)
				between := x.now().Add(-x.Lease / 2)
				x.step(&item, `2`, supervisor.Complete{})
				equal(x, "the number of removed instances", x.prune(between), 0)
				events := x.history("a")
				if len(events) != 1 || events[0].StateVersion != 4 {
					x.Errorf("the events are %+v, want the latest alone, of state version 4", events)
				}
			},
		},
		{
			topic: "prune", name: "fresh-events",
			rule: "Prune leaves events that are not older than its instant",
			run: func(x *trial) {
				x.due("a")
				for range 3 {
					item := x.claimOne()
					x.step(&item, `1`, supervisor.Continue{})
				}
				x.prune(x.now().Add(-far))
				equal(x, "the number of events", len(x.history("a")), 3)
			},
		},
		{
			topic: "prune", name: "id-is-free-again",
			rule: "after Prune the id of an instance can be started anew, and nothing of the old one is left",
			run: func(x *trial) {
				instance := x.due("a", note("w"))
				item := x.claimOne()
				command := x.command(&item, `1`, supervisor.Complete{})
				command.ActionIntents = []supervisor.ActionIntent{x.intent(&item, "i")}
				command.ConsumedWakeups = []string{"w"}
				x.commit(&item, command)
				x.pruneAll()
				other := note("w")
				other.Kind = "another kind"
				x.add(instance, time.Time{}, other)
				again := x.claimOne()
				equal(x, "StateVersion", again.StateVersion, 0)
				equalList(x, "the ids of the wakeups", wakeupIDs(&again), []string{"w"})
				equal(x, "the number of events", len(x.history("a")), 0)
				command = x.command(&again, `2`, supervisor.Complete{})
				command.ActionIntents = []supervisor.ActionIntent{x.intent(&again, "i")}
				x.commit(&again, command)
			},
		},
		{
			topic: "prune", name: "consumed-ids", needs: fastClock,
			rule: "ids of consumed wakeups are forgotten by a Prune after WakeupMemory, not before",
			run: func(x *trial) {
				x.due("a", note("w"))
				item := x.claimOne()
				x.consume(&item, supervisor.Continue{Delay: 30 * 24 * far}, "w")
				x.pruneAll()
				x.deliver("a", note("w"), time.Time{})
				x.idle("the wakeup was consumed a moment ago")
				x.sleep(supervisor.WakeupMemory + far)
				x.prune(x.now())
				x.deliver("a", note("w"), time.Time{})
				again := x.claimOne()
				equalList(x, "the wakeups after their ids were forgotten", wakeupIDs(&again), []string{"w"})
			},
		},
	})
	for n := range cases {
		cases[n].alone = true // Prune goes over all tenants
	}
	return cases
}

func (x *trial) prune(before time.Time) int {
	x.Helper()
	removed, err := x.Instances.Prune(x.ctx, before)
	x.check(err, "Prune")
	return removed
}

// pruneAll prunes all that has finished; no measured clock is exact enough to
// name the present.
func (x *trial) pruneAll() int {
	x.Helper()
	return x.prune(x.now().Add(far))
}

func pruneFinished(x *trial) {
	x.now() // measured by an instance that finishes nothing
	for id, d := range map[string]supervisor.Disposition{
		"completed": supervisor.Complete{}, "failed": supervisor.Failed{Reason: "for good"}, "cancelled": supervisor.Complete{},
	} {
		x.due(id, note("w"))
		if id == "cancelled" {
			x.check(x.Instances.Cancel(x.ctx, x.tenant, id), "Cancel")
		}
		item := x.claimOne()
		x.step(&item, `1`, d)
	}
	x.due("active")
	equal(x, "the number of removed instances", x.pruneAll(), 3)
	for _, id := range []string{"completed", "failed", "cancelled"} {
		_, err := x.Instances.Get(x.ctx, x.tenant, id)
		x.want(err, supervisor.ErrNotFound, "Get of a pruned instance")
		for _, err := range x.Instances.History(x.ctx, x.tenant, id) {
			x.want(err, supervisor.ErrNotFound, "History of a pruned instance")
		}
		err = x.Instances.Deliver(x.ctx, x.tenant, id, note("w"), time.Time{})
		x.want(err, supervisor.ErrNotFound, "Deliver to a pruned instance")
	}
	equal(x, "the number of removed instances by a second Prune", x.pruneAll(), 0)
	equal(x, "the id that is left", x.claimOne().ID, "active")
}

func pruneActive(x *trial) {
	x.due("a", note("consumed"), note("pending"))
	item := x.claimOne()
	x.consume(&item, supervisor.Continue{}, "consumed")
	for range 3 {
		item = x.claimOne()
		x.step(&item, `{"kept":true}`, supervisor.Continue{})
	}
	item = x.claimOne()
	command := x.command(&item, `{"last":true}`, supervisor.Continue{Delay: far})
	x.commit(&item, command)
	before := x.get("a")
	equal(x, "the number of removed instances", x.pruneAll(), 0)
	events := x.history("a")
	if len(events) != 1 || events[0].StateVersion != 5 {
		x.Errorf("the events are %+v, want the latest alone, of state version 5", events)
	}
	after := x.get("a")
	equal(x, "StateVersion", after.StateVersion, before.StateVersion)
	equal(x, "PendingWakeups", after.PendingWakeups, 1)
	x.equalJSON("State", after.State, `{"last":true}`)
	if !after.NextDueAt.Equal(before.NextDueAt) {
		x.Errorf("NextDueAt changed from %v to %v", before.NextDueAt, after.NextDueAt)
	}
	// The latest key is kept with the instance, consumed ids are remembered.
	x.check(x.CommitCommand(x.ctx, &item, &command), "repeated commit after Prune")
	x.deliver("a", note("consumed"), time.Time{})
	x.idle("the wakeup was consumed a moment ago")
	if err := x.Instances.Deliver(x.ctx, x.tenant, "a", supervisor.Wakeup{ID: "consumed", Kind: "other"}, time.Time{}); !errors.Is(err, supervisor.ErrDeliveryConflict) {
		x.Errorf("Deliver of a consumed id with other content after Prune: error is %s, want one that is %q", describe(err), supervisor.ErrDeliveryConflict)
	}
}
