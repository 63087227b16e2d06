package queuetest

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

func deliverCases() []testCase {
	return needing(instances, []testCase{
		{
			topic: "deliver", name: "pulls-due-time",
			rule: "a delivery pulls the due time of a waiting instance to its own",
			run: func(x *trial) {
				x.add(x.instance("a"), x.now().Add(far))
				x.deliver("a", note("w"), time.Time{})
				item := x.claimOne()
				equalList(x, "the ids of the wakeups", wakeupIDs(&item), []string{"w"})
			},
		},
		{
			topic: "deliver", name: "due-later",
			rule: "a delivery falls due at dueAt by the queue's clock, and pulls the due time to it",
			run: func(x *trial) {
				var due time.Time
				x.timely(func(at time.Time) {
					due = at
					x.add(x.instance("a"), x.now().Add(far))
					x.deliver("a", note("w"), due)
				})
				item := x.claimOne()
				if item.ClaimedAt.Before(due) || !item.ScheduledAt.Equal(due) {
					x.Errorf("claimed at %v as scheduled at %v, want %v", item.ClaimedAt, item.ScheduledAt, due)
				}
				equalList(x, "the ids of the wakeups", wakeupIDs(&item), []string{"w"})
			},
		},
		{
			topic: "deliver", name: "never-pushes-back",
			rule: "a delivery never moves the due time of an instance back",
			run: func(x *trial) {
				x.due("a")
				x.deliver("a", note("w"), x.now().Add(far))
				item := x.claimOne()
				equalList(x, "the ids of the wakeups", wakeupIDs(&item), []string{})
			},
		},
		{
			topic: "deliver", name: "not-before-retry",
			rule: "a delivery does not make an instance that backs off due before its retry time",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				retryAt := x.soon()
				x.fail(&item, "failed", retryAt)
				x.deliver("a", note("w"), time.Time{})
				again := x.claimOne()
				if again.ClaimedAt.Before(retryAt) {
					x.Errorf("claimed at %v, before the retry time %v", again.ClaimedAt, retryAt)
				}
				equalList(x, "the ids of the wakeups", wakeupIDs(&again), []string{"w"})
				x.fail(&again, "failed", x.now().Add(far))
				x.deliver("a", note("w2"), time.Time{})
				x.idle("the retry time is an hour away")
			},
		},
		{
			topic: "deliver", name: "during-failing-evaluation",
			rule: "an instance that backs off keeps its wakeups with the retry time as their floor, also those that arrived during the evaluation",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				x.deliver("a", note("w"), time.Time{})
				x.fail(&item, "failed", x.now().Add(far))
				x.idle("the retry time is an hour away")
			},
		},
		{
			topic: "deliver", name: "not-before-start",
			rule: "a delivery does not make an instance due before its lifecycle's StartsAt",
			run: func(x *trial) {
				instance := x.instance("a")
				instance.Lifecycle.StartsAt = x.now().Add(far)
				x.add(instance, time.Time{})
				x.deliver("a", note("w"), time.Time{})
				x.idle("the instance starts in an hour")
			},
		},
		{
			topic: "deliver", name: "repeated",
			rule: "a known id with the same content is nil and adds nothing",
			run: func(x *trial) {
				x.due("a", note("w"))
				for range 3 {
					x.deliver("a", note("w"), time.Time{})
				}
				item := x.claimOne()
				equalList(x, "the ids of the wakeups", wakeupIDs(&item), []string{"w"})
			},
		},
		{
			topic: "deliver", name: "repeated-after-consumption",
			rule: "a known id with the same content, also a consumed one, is nil and never comes again",
			run: func(x *trial) {
				x.due("a", note("w"))
				item := x.claimOne()
				x.consume(&item, supervisor.Continue{Delay: far}, "w")
				x.deliver("a", note("w"), time.Time{})
				x.idle("the wakeup was consumed")
				other := note("w")
				other.Payload = json.RawMessage(`"other"`)
				x.want(x.Instances.Deliver(x.ctx, x.tenant, "a", other, time.Time{}),
					supervisor.ErrDeliveryConflict, "Deliver of a consumed id with another payload")
			},
		},
		{
			topic: "deliver", name: "conflict",
			rule: "a known id with another kind, branch or payload is ErrDeliveryConflict",
			run: func(x *trial) {
				original := supervisor.Wakeup{ID: "w", Kind: "note", BranchID: "b", Payload: json.RawMessage(`1`)}
				x.due("a", original)
				for _, other := range []supervisor.Wakeup{
					{ID: "w", Kind: "timer", BranchID: "b", Payload: json.RawMessage(`1`)},
					{ID: "w", Kind: "note", BranchID: "c", Payload: json.RawMessage(`1`)},
					{ID: "w", Kind: "note", BranchID: "b", Payload: json.RawMessage(`2`)},
					{ID: "w", Kind: "note", BranchID: "b"},
				} {
					x.want(x.Instances.Deliver(x.ctx, x.tenant, "a", other, time.Time{}),
						supervisor.ErrDeliveryConflict, "Deliver of %+v after %+v", other, original)
				}
				item := x.claimOne()
				if len(item.Wakeups) != 1 || item.Wakeups[0].Kind != "note" {
					x.Errorf("the wakeups are %+v, want the first alone", item.Wakeups)
				}
			},
		},
		{
			topic: "deliver", name: "nil-payload-is-null",
			rule: "a nil payload and null are the same content",
			run: func(x *trial) {
				x.due("a")
				x.deliver("a", supervisor.Wakeup{ID: "w", Kind: "note"}, time.Time{})
				x.deliver("a", supervisor.Wakeup{ID: "w", Kind: "note", Payload: json.RawMessage(`null`)}, time.Time{})
			},
		},
		{
			topic: "deliver", name: "unknown-instance",
			rule: "a delivery to an unknown instance is ErrNotFound",
			run: func(x *trial) {
				x.due("a")
				x.want(x.Instances.Deliver(x.ctx, x.tenant, "unknown", note("w"), time.Time{}),
					supervisor.ErrNotFound, "Deliver to an unknown id")
				x.want(x.Instances.Deliver(x.ctx, x.tenant+" unknown", "a", note("w"), time.Time{}),
					supervisor.ErrNotFound, "Deliver in an unknown tenant")
			},
		},
		{
			topic: "deliver", name: "finished",
			rule: "a delivery to a completed or cancelled instance is ErrFinished",
			run: func(x *trial) {
				x.due("completed")
				item := x.claimOne()
				x.step(&item, `1`, supervisor.Complete{})
				x.due("cancelled")
				x.check(x.Instances.Cancel(x.ctx, x.tenant, "cancelled"), "Cancel")
				item = x.claimOne()
				x.step(&item, `1`, supervisor.Complete{})
				for _, id := range []string{"completed", "cancelled"} {
					x.want(x.Instances.Deliver(x.ctx, x.tenant, id, note("w"), time.Time{}),
						supervisor.ErrFinished, "Deliver to a %s instance", id)
				}
				x.idle("both are finished")
			},
		},
		{
			topic: "deliver", name: "failed-for-good",
			rule: "a delivery to an instance that failed for good is kept and wakes nothing",
			run: func(x *trial) {
				x.due("a", note("before"))
				item := x.claimOne()
				x.fail(&item, "for good", time.Time{})
				x.deliver("a", note("after"), time.Time{})
				x.idle("the instance failed for good")
				equal(x, "Status", x.get("a").Status, supervisor.StatusFailed)
				x.check(x.Instances.Retry(x.ctx, x.tenant, "a"), "Retry")
				again := x.claimOne()
				equalList(x, "the wakeups of the retry", wakeupIDs(&again), []string{"before", "after"})
			},
		},
		{
			topic: "deliver", name: "leaves-the-holder-alone",
			rule: "a delivery does not disturb a held lease",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				x.deliver("a", note("w"), time.Time{})
				x.idle("the lease of the claim lasts")
				x.check(x.Renew(x.ctx, lease(&item, held)), "Renew")
				x.step(&item, `1`, supervisor.Complete{})
			},
		},
		{
			topic: "deliver", name: "invalid",
			rule: "every queue applies Wakeup.Validate in Deliver",
			run: func(x *trial) {
				x.add(x.instance("a"), x.now().Add(far))
				before := x.get("a")
				for _, invalid := range []struct {
					field  string
					wakeup supervisor.Wakeup
				}{
					{"ID", supervisor.Wakeup{ID: "\u00a0", Kind: "note"}},
					{"ID", supervisor.Wakeup{ID: strings.Repeat("i", supervisor.MaxIDBytes+1), Kind: "note"}},
					{"ID", supervisor.Wakeup{ID: "lifecycle:expired", Kind: "note"}},
					{"ID", supervisor.Wakeup{ID: "a\x00b", Kind: "note"}},
					{"Kind", supervisor.Wakeup{ID: "w"}},
					{"Kind", supervisor.Wakeup{ID: "w", Kind: "\xff"}},
					{"BranchID", supervisor.Wakeup{ID: "w", Kind: "note", BranchID: "\xed\xa0\x80"}},
					{"Payload", supervisor.Wakeup{ID: "w", Kind: "note", Payload: json.RawMessage(`{`)}},
					{"Payload", supervisor.Wakeup{ID: "w", Kind: "note", Payload: json.RawMessage(`"\u0000"`)}},
					{"Payload", supervisor.Wakeup{ID: "w", Kind: "note", Payload: json.RawMessage(`"\ud800"`)}},
				} {
					err := x.Instances.Deliver(x.ctx, x.tenant, "a", invalid.wakeup, time.Time{})
					x.unsupported(err)
					if err == nil || !strings.Contains(err.Error(), invalid.field) {
						x.Errorf("Deliver of %+v: error is %s, want one that names %s", invalid.wakeup, describe(err), invalid.field)
					}
				}
				equal(x, "PendingWakeups", x.get("a").PendingWakeups, before.PendingWakeups)
			},
		},
		{
			topic: "deliver", name: "remembered", alone: true,
			rule: "ids of consumed wakeups are remembered for at least WakeupMemory, Prune or not",
			run: func(x *trial) {
				x.due("a", note("w"))
				item := x.claimOne()
				x.consume(&item, supervisor.Continue{Delay: far}, "w")
				_, err := x.Instances.Prune(x.ctx, x.now().Add(-far))
				x.check(err, "Prune")
				if x.abilities&fastClock != 0 {
					x.sleep(supervisor.WakeupMemory - time.Minute)
					again := x.claimOne()
					x.step(&again, `2`, supervisor.Continue{Delay: 100 * 24 * far})
				}
				x.deliver("a", note("w"), time.Time{})
				x.idle("the wakeup was consumed")
			},
		},
	})
}

// needing adds an ability to what each case needs.
func needing(needs ability, cases []testCase) []testCase {
	for n := range cases {
		cases[n].needs |= needs
	}
	return cases
}
