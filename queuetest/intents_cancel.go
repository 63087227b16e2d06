package queuetest

import (
	"time"

	"github.com/workflow-supervisor/supervisor"
)

// intentCancelCases prove what the cancellation of an instance does to its
// intents.
func intentCancelCases() []testCase {
	return needing(instances, []testCase{
		{
			topic: "intent-cancel", name: "withdraws-unmarked",
			rule: "Cancel withdraws unmarked intents in its own transaction and tells the instance",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				x.cancel("a")
				x.stands("a", "i", func(r *supervisor.IntentRecord) {
					equal(x, "State", r.Intent.State, supervisor.ActionRejected)
					equal(x, "Outcome", r.Outcome, supervisor.OutcomeWithdrawn)
					equal(x, "Cause", r.Cause, supervisor.CauseCancelled)
				})
				x.noIntent("it was withdrawn")
				item := x.claimOne()
				equal(x, "CancelRequested", item.CancelRequested, true)
				x.tells(&item, toldWithdrawn("i", 0, supervisor.CauseCancelled))
			},
		},
		{
			topic: "intent-cancel", name: "withdraws-claimed",
			rule: "an unmarked intent that a dispatcher holds is withdrawn, too, so that its mark fails",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				work := x.takeOne()
				x.cancel("a")
				_, err := x.intents.MarkIntent(x.ctx, &work)
				x.want(err, supervisor.ErrLeaseLost, "MarkIntent after Cancel")
				x.want(x.intents.RenewIntent(x.ctx, work.Lease(held)), supervisor.ErrLeaseLost, "RenewIntent after Cancel")
				x.told("a", toldWithdrawn("i", 0, supervisor.CauseCancelled))
			},
		},
		{
			topic: "intent-cancel", name: "withdraws-what-waits",
			rule: "Cancel withdraws what awaits confirmation, waits for a retry or is paused, as well",
			run: func(x *trial) {
				x.plan("a", x.effect("retryable"))
				x.settle(x.handOff(), retryIn(far))
				x.cancel("a")
				x.told("a", toldWithdrawn("retryable", 1, supervisor.CauseCancelled))

				x.plan("b", x.effect("awaiting", confirmed))
				x.cancel("b")
				x.told("b", toldWithdrawn("awaiting", 0, supervisor.CauseCancelled))

				resource := supervisor.Scope{TenantID: x.tenant, ResourceID: "r"}
				x.pause(resource)
				x.plan("c", x.effect("parked", scoped("r")))
				x.noIntent("its resource is paused")
				x.cancel("c")
				x.told("c", toldWithdrawn("parked", 0, supervisor.CauseCancelled))
				x.resume(resource)
				x.noIntent("all were withdrawn")
			},
		},
		{
			topic: "intent-cancel", name: "asks-for-marked",
			rule: "Cancel records a request for marked intents; accepted work is handed out to be cancelled until that is acknowledged, and then observed",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				x.accept(x.handOff(), running(far))
				x.noIntent("the next look is an hour away")
				x.cancel("a")
				for range 2 { // not acknowledged: asked again
					work := x.takeTask(supervisor.IntentTaskCancel)
					if work.CancelRequestedAt.IsZero() {
						x.Errorf("CancelRequestedAt is zero")
					}
					x.giveIntentBack(work, supervisor.IntentRelease{After: poll})
				}
				x.giveIntentBack(x.takeTask(supervisor.IntentTaskCancel), supervisor.IntentRelease{CancelAcknowledged: true, After: poll})
				work := x.takeTask(supervisor.IntentTaskObserve)
				if work.CancelAcknowledgedAt.IsZero() {
					x.Errorf("CancelAcknowledgedAt is zero after the acknowledgement")
				}
				s := failure("stopped")
				s.Outcome, s.Cause, s.Proof = supervisor.OutcomeCancelled, supervisor.CauseReported, supervisor.ProofReported
				x.settle(work, s)
				x.told("a", supervisor.ActionResult{
					IntentID: "i", State: supervisor.ActionRejected, Outcome: supervisor.OutcomeCancelled, Cause: supervisor.CauseReported,
					Attempt: 1, Reason: "stopped",
				})
			},
		},
		{
			topic: "intent-cancel", name: "marked-without-a-receipt",
			rule: "a marked intent is not withdrawn: it may have been sent, and its receipt is stored",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				work := x.handOff()
				x.cancel("a")
				x.stands("a", "i", func(r *supervisor.IntentRecord) {
					equal(x, "State", r.Intent.State, supervisor.ActionDispatchCommitted)
					equal(x, "whether a cancellation is asked for", r.CancelRequestedAt.IsZero(), false)
				})
				x.check(x.intents.RenewIntent(x.ctx, work.Lease(held)), "RenewIntent of a marked intent after Cancel")
				item := x.claimOne()
				equal(x, "the number of wakeups", len(item.Wakeups), 0)
				x.step(&item, `1`, supervisor.Continue{Delay: far})
				x.accept(work, running(0))
				x.settle(x.takeTask(supervisor.IntentTaskCancel), success(`1`))
				x.told("a", toldSuccess("i", `1`))
			},
		},
		{
			topic: "intent-cancel", name: "late-success",
			rule: "a success that comes after Cancel stays a success",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				work := x.handOff()
				x.cancel("a")
				x.settle(work, success(`{"late":true}`))
				x.told("a", toldSuccess("i", `{"late":true}`))
				x.inState("a", "i", supervisor.ActionSucceeded)
			},
		},
		{
			topic: "intent-cancel", name: "no-retry",
			rule: "after Cancel there is no further attempt: what had no effect is settled as cancelled",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				work := x.handOff()
				x.cancel("a")
				x.settle(work, retryIn(0))
				x.told("a", supervisor.ActionResult{
					IntentID: "i", State: supervisor.ActionRejected, Outcome: supervisor.OutcomeCancelled, Cause: supervisor.CauseCancelled, Attempt: 1,
				})
				x.noIntent("it is settled")
			},
		},
		{
			topic: "intent-cancel", name: "repeated",
			rule: "Cancel again changes nothing, also of intents",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				x.handOff()
				x.cancel("a")
				before := x.intentView("a", "i")
				x.cancel("a")
				x.sameIntent("a", "i", before, "Cancel again")
			},
		},
		{
			topic: "intent-cancel", name: "finished-instance",
			rule: "Cancel of a finished instance leaves its intents",
			run: func(x *trial) {
				x.planBy(x.actor("a"), supervisor.Complete{}, x.effect("i1"), x.effect("i2"))
				x.handOff()
				x.cancel("a")
				x.handOff()
			},
		},
		{
			topic: "intent-cancel", name: "others",
			rule: "Cancel leaves the intents of other instances and of the same id in other tenants",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				x.plan("b", x.effect("i"))
				other := x.actor("a")
				other.TenantID += " other"
				x.planBy(other, supervisor.Continue{Delay: far}, x.effect("i"))
				x.cancel("a")
				for _, work := range x.take(2) {
					if work.Key() == x.intentKey("a", "i") {
						x.Errorf("the withdrawn intent was handed out")
					}
					x.mark(work)
				}
				x.noIntent("the others are held")
			},
		},
		{
			topic: "intent-cancel", name: "failed-for-good",
			rule: "Cancel of an instance that failed for good withdraws its intents without a wakeup: it is cancelled at once",
			run: func(x *trial) {
				x.planBy(x.actor("a"), supervisor.Continue{}, x.effect("i"))
				item := x.claimOne()
				x.fail(&item, "for good", time.Time{})
				x.cancel("a")
				equal(x, "Status", x.get("a").Status, supervisor.StatusCancelled)
				x.inState("a", "i", supervisor.ActionRejected)
				equal(x, "PendingWakeups", x.get("a").PendingWakeups, 0)
				x.noIntent("it was withdrawn")
			},
		},
		{
			topic: "intent-cancel", name: "by-expiry",
			rule: "ExpiresAt with cancel does what Cancel does, also to intents",
			run: func(x *trial) {
				var expires time.Time
				x.timely(func(at time.Time) {
					expires = at
					instance := x.actor("a")
					instance.Lifecycle.ExpiresAt, instance.Lifecycle.OnExpiry = at, supervisor.ExpiryCancel
					x.add(instance, time.Time{})
					for _, item := range x.claim(x.request(1)) {
						if !item.CancelRequested { // else the machine was too slow
							x.commitIntents(&item, supervisor.Continue{Delay: far}, x.effect("i"))
						}
					}
				})
				x.passes(expires)
				item := x.claimOne()
				equal(x, "CancelRequested", item.CancelRequested, true)
				x.noIntent("its instance was cancelled")
				x.stands("a", "i", func(r *supervisor.IntentRecord) {
					equal(x, "State", r.Intent.State, supervisor.ActionRejected)
					equal(x, "Cause", r.Cause, supervisor.CauseCancelled)
				})
			},
		},
	})
}

func (x *trial) cancel(id string) {
	x.Helper()
	x.check(x.Instances.Cancel(x.ctx, x.tenant, id), "Cancel of %q", id)
}
