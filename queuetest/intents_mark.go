package queuetest

import (
	"errors"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

// refusal is the cause that a refused mark names.
func refusal(err error) supervisor.IntentCause {
	if refused, ok := errors.AsType[*supervisor.IntentRefusedError](err); ok {
		return refused.Cause
	}
	return ""
}

func intentMarkCases() []testCase {
	return []testCase{
		{
			topic: "intent-mark", name: "marks",
			rule: "MarkIntent marks the point of no return and returns the intent as it stands then",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				work := x.takeOne()
				marked := x.mark(work)
				equal(x, "State", marked.Intent.State, supervisor.ActionDispatchCommitted)
				equal(x, "Attempt", marked.Attempt, 1)
				equal(x, "MarkedUnder", marked.MarkedUnder, work.LeaseVersion)
				equal(x, "LeaseVersion", marked.LeaseVersion, work.LeaseVersion)
				equal(x, "IdempotencyKey", marked.Intent.IdempotencyKey, "key of i")
				if marked.MarkedAt.Before(work.ClaimedAt) || marked.MarkedAt.After(x.now().Add(x.slack)) {
					x.Errorf("MarkedAt is %v, want an instant between the claim at %v and now, %v", marked.MarkedAt, work.ClaimedAt, x.now())
				}
				x.stands("a", "i", func(r *supervisor.IntentRecord) {
					equal(x, "the stored state", r.Intent.State, supervisor.ActionDispatchCommitted)
					equal(x, "the stored Attempt", r.Attempt, 1)
				})
				x.idle("a mark tells the instance nothing")
			},
		},
		{
			topic: "intent-mark", name: "repeated",
			rule: "repeating a mark under the same lease gives the same answer",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				work := x.takeOne()
				first := x.mark(work)
				before := x.intentView("a", "i")
				for _, repeated := range []supervisor.IntentWork{work, first} {
					second := x.mark(repeated)
					equal(x, "Attempt", second.Attempt, 1)
					if !second.MarkedAt.Equal(first.MarkedAt) {
						x.Errorf("MarkedAt is %v by the second call, %v by the first", second.MarkedAt, first.MarkedAt)
					}
				}
				x.sameIntent("a", "i", before, "repeated marks")
			},
		},
		{
			topic: "intent-mark", name: "deadline",
			rule: "a mark after the deadline is refused; the intent is settled and its instance told",
			run: func(x *trial) {
				var work supervisor.IntentWork
				var deadline time.Time
				x.timely(func(at time.Time) {
					deadline = at
					x.plan("a", x.effect("i", until(at)))
					if works := x.claimIntents(x.wanted(1)); len(works) == 1 {
						work = works[0]
					}
				})
				if work.Intent.ID == "" {
					x.Fatalf("the intent was not handed out before its deadline")
				}
				x.passes(deadline)
				x.refused(work, supervisor.CauseDeadline)
				x.told("a", toldWithdrawn("i", 0, supervisor.CauseDeadline))
				x.inState("a", "i", supervisor.ActionRejected)
			},
		},
		{
			topic: "intent-mark", name: "before-the-deadline",
			rule: "a mark before the deadline stands: what comes later is a request to cancel",
			run: func(x *trial) {
				var work supervisor.IntentWork
				var deadline time.Time
				x.timely(func(at time.Time) {
					deadline = at
					x.plan("a", x.effect("i", until(at)))
					if works := x.claimIntents(x.wanted(1)); len(works) == 1 {
						work = works[0]
						if marked, err := x.intents.MarkIntent(x.ctx, &work); err == nil {
							work = marked
						}
					}
				})
				if work.Attempt != 1 {
					x.Fatalf("the intent was not marked before its deadline")
				}
				x.accept(work, running(far)) // the deadline is not slept through
				x.passes(deadline)
				again := x.takeTask(supervisor.IntentTaskCancel)
				if again.CancelRequestedAt.Before(deadline) {
					x.Errorf("CancelRequestedAt is %v, want one after the deadline, %v", again.CancelRequestedAt, deadline)
				}
				x.settle(again, success(`"in time"`))
				x.told("a", toldSuccess("i", `"in time"`))
			},
		},
		{
			topic: "intent-mark", name: "stale-epoch", needs: instances,
			rule: "a mark under epochs that have moved is refused; the intent is settled and its instance told",
			run: func(x *trial) {
				for n, scope := range []supervisor.Scope{
					{TenantID: x.tenant, InstanceID: "a0"}, {TenantID: x.tenant, ResourceID: "r"}, {TenantID: x.tenant},
				} {
					id := []string{"a0", "a1", "a2"}[n]
					x.plan(id, x.effect("i", scoped("r")))
					work := x.takeOne()
					x.pause(scope)
					x.resume(scope)
					x.refused(work, supervisor.CauseStaleEpoch)
					x.told(id, toldWithdrawn("i", 0, supervisor.CauseStaleEpoch))
				}
			},
		},
		{
			topic: "intent-mark", name: "of-others", needs: instances,
			rule: "pauses of others refuse no mark",
			run: func(x *trial) {
				x.plan("a", x.effect("i", scoped("r")))
				x.plan("b")
				work := x.takeOne()
				for _, scope := range []supervisor.Scope{
					{TenantID: x.tenant, InstanceID: "b"}, {TenantID: x.tenant, ResourceID: "other"}, {TenantID: x.tenant + " other"},
				} {
					x.pause(scope)
				}
				x.mark(work)
			},
		},
		{
			topic: "intent-mark", name: "not-waiting",
			rule: "what does not wait for a hand-off is not marked",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				x.accept(x.handOff(), running(0))
				work := x.takeTask(supervisor.IntentTaskObserve)
				_, err := x.intents.MarkIntent(x.ctx, &work)
				x.want(err, supervisor.ErrStateConflict, "MarkIntent of work that was accepted")
				x.settle(work, success(`1`))
				_, err = x.intents.MarkIntent(x.ctx, &work)
				x.want(err, supervisor.ErrLeaseLost, "MarkIntent after the settlement")
			},
		},
	}
}

// intentPauseCases prove what a pause holds back.
func intentPauseCases() []testCase {
	return needing(instances, []testCase{
		{
			topic: "intent-pause", name: "not-claimed",
			rule: "while its tenant, instance or resource is paused, an intent is neither handed out nor settled; once resumed, one under an older epoch is settled as stale_epoch and its instance told",
			run: func(x *trial) {
				for n, scope := range []supervisor.Scope{
					{TenantID: x.tenant, InstanceID: "a0"}, {TenantID: x.tenant, ResourceID: "r"}, {TenantID: x.tenant},
				} {
					id := []string{"a0", "a1", "a2"}[n]
					x.plan(id, x.effect("i", scoped("r")))
					x.pause(scope)
					x.noIntent("%v is paused", scope)
					x.noIntent("%v is still paused", scope)
					x.inState(id, "i", supervisor.ActionPrepared)
					x.resume(scope)
					x.noIntent("it was made before the pause")
					x.told(id, toldWithdrawn("i", 0, supervisor.CauseStaleEpoch))
				}
			},
		},
		{
			topic: "intent-pause", name: "mark-refused",
			rule: "a mark while the tenant, the instance or the resource is paused is refused: the intent is parked, and told of as stale_epoch once that is resumed",
			run: func(x *trial) {
				for n, scope := range []supervisor.Scope{
					{TenantID: x.tenant, InstanceID: "a0"}, {TenantID: x.tenant, ResourceID: "r"}, {TenantID: x.tenant},
				} {
					id := []string{"a0", "a1", "a2"}[n]
					x.plan(id, x.effect("i", scoped("r")))
					work := x.takeOne()
					x.pause(scope)
					x.refused(work, supervisor.CausePaused)
					x.stands(id, "i", func(r *supervisor.IntentRecord) {
						equal(x, "Parked", r.Parked, supervisor.ParkedByPause)
						equal(x, "Attempt", r.Attempt, 0)
						equal(x, "State", r.Intent.State, supervisor.ActionPrepared)
					})
					x.noIntent("%v is paused", scope)
					x.resume(scope)
					x.noIntent("it was made before the pause")
					x.told(id, toldWithdrawn("i", 0, supervisor.CauseStaleEpoch))
				}
			},
		},
		{
			topic: "intent-pause", name: "made-during-a-pause",
			rule: "an intent made while its resource is paused is parked, and handed out after Resume",
			run: func(x *trial) {
				scope := supervisor.Scope{TenantID: x.tenant, ResourceID: "r"}
				x.pause(scope)
				x.plan("a", x.effect("i", scoped("r")), x.effect("free"))
				equal(x, "the id of the intent without a resource", x.takeOne().Intent.ID, "free")
				x.noIntent("the resource is paused")
				x.resume(scope)
				work := x.takeTask(supervisor.IntentTaskDispatch)
				equal(x, "the id of the intent after Resume", work.Intent.ID, "i")
				x.mark(work)
			},
		},
		{
			topic: "intent-pause", name: "adds-up",
			rule: "an intent of which two scopes are paused waits until both are resumed",
			run: func(x *trial) {
				tenant, resource := supervisor.Scope{TenantID: x.tenant}, supervisor.Scope{TenantID: x.tenant, ResourceID: "r"}
				x.pause(resource)
				x.plan("a", x.effect("i", scoped("r")))
				x.noIntent("the resource is paused")
				x.pause(tenant)
				x.resume(resource)
				x.noIntent("the tenant is still paused")
				x.idle("the tenant is paused")
				x.resume(tenant)
				x.noIntent("the pause of the tenant came after the intent")
				x.told("a", toldWithdrawn("i", 0, supervisor.CauseStaleEpoch))
			},
		},
		{
			topic: "intent-pause", name: "marked-goes-on",
			rule: "receipts, observation and settlement of marked intents go on during a pause",
			run: func(x *trial) {
				x.plan("a", x.effect("i1"), x.effect("i2"))
				works := x.take(2)
				first, second := x.mark(works[0]), x.mark(works[1])
				tenant := supervisor.Scope{TenantID: x.tenant}
				x.pause(tenant)
				x.accept(first, running(0))
				work := x.takeTask(supervisor.IntentTaskObserve)
				equal(x, "the observed intent", work.Intent.ID, first.Intent.ID)
				x.settle(work, success(`1`))
				x.giveIntentBack(second, supervisor.IntentRelease{})
				x.settle(x.takeTask(supervisor.IntentTaskRecover), success(`2`))
				x.idle("the tenant is paused")
				x.resume(tenant)
				item := x.woken("a")
				x.tells(&item, toldSuccess(first.Intent.ID, `1`), toldSuccess(second.Intent.ID, `2`))
			},
		},
		{
			topic: "intent-pause", name: "retryable-under-an-older-epoch",
			rule: "a retryable intent waits for a hand-off like any other: parked by a pause, stale after it",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				x.settle(x.handOff(), retryIn(0))
				scope := supervisor.Scope{TenantID: x.tenant, InstanceID: "a"}
				x.pause(scope)
				x.noIntent("the instance is paused")
				x.resume(scope)
				x.noIntent("the pause came after the intent")
				x.told("a", toldWithdrawn("i", 1, supervisor.CauseStaleEpoch))
			},
		},
		{
			topic: "intent-pause", name: "leased-at-resume",
			rule: "a mark after pause and resume is refused as stale, also where the lease outlived both",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				work := x.takeOne()
				scope := supervisor.Scope{TenantID: x.tenant}
				x.pause(scope)
				x.resume(scope)
				x.noIntent("it is held")
				x.refused(work, supervisor.CauseStaleEpoch)
				x.told("a", toldWithdrawn("i", 0, supervisor.CauseStaleEpoch))
			},
		},
	})
}
