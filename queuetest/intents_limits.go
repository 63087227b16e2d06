package queuetest

import (
	"fmt"
	"slices"

	"github.com/workflow-supervisor/supervisor"
)

// limit sets a limit; fields that are left out do not count.
func (x *trial) limit(tenant string, capability string, most int) {
	x.Helper()
	l := supervisor.IntentLimit{TenantID: tenant, Max: most}
	if capability != "" {
		l.CapabilityID = x.capability(capability).ID
	}
	x.check(x.operator.LimitIntents(x.ctx, l), "LimitIntents %+v", l)
}

// takeEach plans an intent for each id, in order, and claims them all.
func (x *trial) takeEach(ids ...string) []supervisor.IntentWork {
	x.Helper()
	for _, id := range ids {
		x.plan("of "+id, x.effect(id))
		x.sleep(poll)
	}
	works := x.take(len(ids))
	slices.SortFunc(works, func(a, b supervisor.IntentWork) int {
		return slices.Index(ids, a.Intent.ID) - slices.Index(ids, b.Intent.ID)
	})
	return works
}

func intentLimitCases() []testCase {
	return needing(intentOperator, []testCase{
		{
			topic: "intent-limit", name: "mark-refused",
			rule: "a mark that finds no free slot is refused: the intent is parked, and due again when a slot is freed",
			run: func(x *trial) {
				x.limit("", "a", 1)
				works := x.takeBoth()
				first := x.mark(works[0])
				x.refused(works[1], supervisor.CauseLimit)
				second := works[1].Intent
				x.stands(second.InstanceID, second.ID, func(r *supervisor.IntentRecord) {
					equal(x, "Parked", r.Parked, supervisor.ParkedByLimit)
					equal(x, "Attempt", r.Attempt, 0)
				})
				x.noIntent("no slot is free")
				x.settle(first, success(`1`))
				work := x.handOff()
				equal(x, "the intent that gets the slot", work.Intent.ID, second.ID)
			},
		},
		{
			topic: "intent-limit", name: "claim-parks",
			rule: "an intent that finds no free slot is not handed out, which is no error and no hot loop",
			run: func(x *trial) {
				x.limit("", "a", 1)
				x.plan("a", x.effect("i1"))
				first := x.handOff()
				x.plan("b", x.effect("i2"))
				for range 3 {
					x.noIntent("no slot is free")
				}
				x.stands("b", "i2", func(r *supervisor.IntentRecord) { equal(x, "Parked", r.Parked, supervisor.ParkedByLimit) })
				x.settle(first, success(`1`))
				equal(x, "the intent that gets the slot", x.handOff().Intent.ID, "i2")
			},
		},
		{
			topic: "intent-limit", name: "frees",
			rule: "a slot is freed by settlement, or by becoming unknown or retryable, or by a mark that is taken back; not by a receipt or the end of a lease",
			run: func(x *trial) {
				x.limit("", "a", 1)
				for n, free := range []func(work supervisor.IntentWork){
					func(work supervisor.IntentWork) { x.settle(work, success(`1`)) },
					func(work supervisor.IntentWork) { x.settle(work, failure("no")) },
					func(work supervisor.IntentWork) { x.settle(work, ambiguous()) },
					func(work supervisor.IntentWork) { x.settle(work, retryIn(far)) },
					func(work supervisor.IntentWork) {
						x.giveIntentBack(work, supervisor.IntentRelease{NotHandedOff: true, After: far})
					},
				} {
					x.plan(fmt.Sprint("a", n), x.effect("i"))
					work := x.handOff()
					x.plan(fmt.Sprint("b", n), x.effect("next"))
					x.noIntent("no slot is free")
					free(work)
					next := x.handOff()
					equal(x, fmt.Sprintf("the intent that gets slot %d", n), next.Intent.ID, "next")
					x.settle(next, success(`1`))
				}
				// Neither of these is the end of the work.
				x.plan("a", x.effect("i"))
				x.mark(x.takeShort())
				x.plan("b", x.effect("next"))
				work := x.takeTask(supervisor.IntentTaskRecover)
				x.noIntent("a lease that has ended frees no slot")
				x.accept(work, running(far))
				x.noIntent("accepted work holds its slot")
			},
		},
		{
			topic: "intent-limit", name: "first-parked-first",
			rule: "intents that wait for a slot get it in the order in which they came",
			run: func(x *trial) {
				works := x.takeEach("i3", "i1", "i2", "i4")
				x.limit("", "a", 1)
				holder := x.mark(works[0])
				for _, work := range works[1:] {
					x.refused(work, supervisor.CauseLimit)
					x.sleep(poll)
				}
				for _, id := range []string{"i1", "i2", "i4"} {
					x.noIntent("no slot is free")
					x.settle(holder, success(`1`))
					holder = x.handOff()
					equal(x, "the intent that gets the slot", holder.Intent.ID, id)
				}
			},
		},
		{
			topic: "intent-limit", name: "scopes",
			rule: "a limit of a capability bounds all tenants, one of a tenant all capabilities, one of both the tenant's share; an intent needs a slot in each that covers it",
			run:  intentLimitScopes,
		},
		{
			topic: "intent-limit", name: "in-flight-counts",
			rule: "those in flight count when a limit is set or lowered",
			run: func(x *trial) {
				works := x.takeEach("i1", "i2", "i3")
				first, second := x.mark(works[0]), x.mark(works[1])
				x.limit("", "a", 1)
				x.refused(works[2], supervisor.CauseLimit)
				x.settle(first, success(`1`))
				x.noIntent("one is still in flight")
				x.settle(second, success(`1`))
				equal(x, "the intent that gets the slot", x.handOff().Intent.ID, "i3")
			},
		},
		{
			topic: "intent-limit", name: "raised-and-removed",
			rule: "a limit that is raised or removed (0) wakes what waits for a slot",
			run: func(x *trial) {
				works := x.takeEach("i1", "i2", "i3")
				x.limit("", "a", 1)
				x.mark(works[0])
				x.refused(works[1], supervisor.CauseLimit)
				x.refused(works[2], supervisor.CauseLimit)
				x.limit("", "a", 2)
				equal(x, "the intent that gets the slot", x.handOff().Intent.ID, "i2")
				x.noIntent("no slot is free")
				x.limit("", "a", 0)
				equal(x, "the intent that needs no slot any more", x.handOff().Intent.ID, "i3")
			},
		},
		{
			topic: "intent-limit", name: "mark-repeatable",
			rule: "a claim that marks takes a slot for each intent, and marks none beyond the limit",
			run: func(x *trial) {
				x.limit("", "a", 2)
				for n := range 5 {
					x.plan(fmt.Sprint("a", n), x.effect("i", native))
				}
				req := x.wanted(10)
				req.MarkRepeatable = true
				for _, want := range []int{2, 2, 1} {
					works := x.claimIntents(req)
					works = append(works, x.claimIntents(req)...)
					equal(x, "the number of claimed intents", len(works), want)
					for _, work := range works {
						equal(x, "State", work.Intent.State, supervisor.ActionDispatchCommitted)
					}
					for _, work := range works {
						x.settle(work, success(`1`))
					}
				}
			},
		},
		{
			topic: "intent-limit", name: "deadline-while-parked",
			rule: "an intent that waits for a slot does not sleep through its deadline",
			run: func(x *trial) {
				x.limit("", "a", 1)
				x.plan("a", x.effect("i1"))
				x.handOff()
				deadline := x.soon()
				x.plan("b", x.effect("i2", until(deadline)))
				x.noIntent("no slot is free")
				x.passes(deadline)
				x.noIntent("its deadline has passed")
				x.told("b", toldWithdrawn("i2", 0, supervisor.CauseDeadline))
			},
		},
		{
			topic: "intent-limit", name: "starves-no-other",
			rule: "a capability without a free slot holds up no other, however many wait for it",
			run: func(x *trial) {
				x.limit("", "a", 1)
				x.plan("a", x.effect("i"))
				x.handOff()
				var waiting []supervisor.ActionIntent
				for n := range 30 {
					waiting = append(waiting, x.effect(fmt.Sprint("waits", n)))
				}
				x.plan("b", waiting...)
				x.plan("c", x.effect("free", of(x.capability("b"))))
				equal(x, "the intent that is claimed", x.takeOne().Intent.ID, "free")
			},
		},
		{
			topic: "intent-limit", name: "cancelled-while-parked", needs: instances,
			rule: "cancelling what holds no slot frees none, and what waits behind it still gets the next one",
			run: func(x *trial) {
				works := x.takeEach("i1", "i2", "i3")
				x.limit("", "a", 1)
				holder := x.mark(works[0])
				x.refused(works[1], supervisor.CauseLimit)
				x.refused(works[2], supervisor.CauseLimit)
				x.cancel("of i2")
				x.noIntent("no slot is free")
				x.settle(holder, success(`1`))
				equal(x, "the intent that gets the slot", x.handOff().Intent.ID, "i3")
			},
		},
		{
			topic: "intent-limit", name: "slot-not-wanted", needs: instances,
			rule: "a slot that is freed for an intent which can no longer use it goes to the next one",
			run: func(x *trial) {
				works := x.takeEach("i1", "i2", "i3")
				x.limit("", "a", 1)
				holder := x.mark(works[0])
				x.refused(works[1], supervisor.CauseLimit)
				x.refused(works[2], supervisor.CauseLimit)
				x.settle(holder, success(`1`)) // i2 is let in
				x.cancel("of i2")
				equal(x, "the intent that gets the slot", x.handOff().Intent.ID, "i3")
			},
		},
		{
			topic: "intent-limit", name: "another-handle", needs: reopen,
			rule: "slots are counted durably, over all dispatchers and processes, and a slot that another frees wakes what waits",
			run: func(x *trial) {
				other, ok := x.reopen().(supervisor.IntentQueue)
				if !ok {
					x.Skipf("the other handle is no supervisor.IntentQueue")
				}
				works := x.takeEach("i1", "i2")
				x.limit("", "a", 1)
				first, err := other.MarkIntent(x.ctx, &works[0])
				x.check(err, "MarkIntent by another handle")
				x.refused(works[1], supervisor.CauseLimit)
				x.noIntent("no slot is free")
				x.check(other.SettleIntent(x.ctx, &first, success(`1`)), "SettleIntent by another handle")
				equal(x, "the intent that gets the slot", x.handOff().Intent.ID, "i2")
			},
		},
		{
			topic: "intent-limit", name: "invalid",
			rule: "a limit without a scope, or a negative one, is refused",
			run: func(x *trial) {
				for what, limit := range map[string]supervisor.IntentLimit{
					"no scope":          {Max: 1},
					"a negative bound":  {TenantID: x.tenant, Max: -1},
					"a tenant with NUL": {TenantID: x.tenant + "\x00", Max: 1},
				} {
					x.wantErr(x.operator.LimitIntents(x.ctx, limit), "LimitIntents with %s", what)
				}
				x.takeEach("i1", "i2")
			},
		},
	})
}

// takeBoth plans two intents and claims them.
func (x *trial) takeBoth() []supervisor.IntentWork {
	x.Helper()
	return x.takeEach("i1", "i2")
}

func intentLimitScopes(x *trial) {
	there := x.actor("there")
	there.TenantID += " other"
	x.planBy(there, supervisor.Continue{Delay: far}, x.effect("a"), x.effect("b", of(x.capability("b"))))
	x.plan("here", x.effect("a"), x.effect("b", of(x.capability("b"))))
	x.plan("more", x.effect("a"), x.effect("b", of(x.capability("b"))))
	works := map[string]supervisor.IntentWork{}
	for _, work := range x.take(6) {
		works[work.Intent.InstanceID+"/"+work.Intent.ID] = work
	}
	// One slot for each tenant's share of a, for all of b, and two for the tenant.
	x.limit(x.tenant, "a", 1)
	x.limit("", "b", 1)
	x.limit(x.tenant, "", 2)
	here := x.mark(works["here/a"])
	x.refused(works["more/a"], supervisor.CauseLimit) // the tenant's share
	x.mark(works["there/a"])                          // another tenant
	hereB := x.mark(works["here/b"])
	x.refused(works["there/b"], supervisor.CauseLimit) // the capability
	x.refused(works["more/b"], supervisor.CauseLimit)  // the tenant as a whole, and the capability
	x.settle(here, success(`1`))
	// The freed slot is that of the tenant's share of a.
	equal(x, "the intent that gets the slot", x.handOff().Intent.InstanceID, "more")
	x.settle(hereB, success(`1`))
	next := x.handOff()
	equal(x, "the intent that gets the slot of the capability", next.Intent.InstanceID, "there")
	x.noIntent("no slot is free")
	x.settle(next, success(`1`))
	equal(x, "the intent that gets the slot of both", x.handOff().Intent.InstanceID, "more")
}
