package queuetest

import (
	"time"

	"github.com/workflow-supervisor/supervisor"
)

func intentLeaseCases() []testCase {
	return []testCase{
		{
			topic: "intent-lease", name: "renewal-extends",
			rule: "RenewIntent extends a lease by its duration from the store's now, and repeating it is harmless",
			run: func(x *trial) {
				// On a busy machine a short lease may end before its renewal is sent.
				x.unhurried(func(unit time.Duration) bool {
					x.plan("a", x.effect("i"))
					begun := time.Now()
					req := x.wanted(1)
					req.LeaseDuration = unit
					work := x.takeAs(1, req)[0]
					err := x.intents.RenewIntent(x.ctx, work.Lease(2*unit))
					if err != nil && time.Since(begun) >= unit {
						return false
					}
					x.check(err, "RenewIntent of a lease of %v", unit)
					x.check(x.intents.RenewIntent(x.ctx, work.Lease(2*unit)), "repeated RenewIntent")
					again := x.takeOne()
					if least := work.ClaimedAt.Add(2 * unit); again.ClaimedAt.Before(least) {
						x.Errorf("claimed again at %v, but the renewed lease ended at %v at the earliest", again.ClaimedAt, least)
					}
					return true
				})
			},
		},
		{
			topic: "intent-lease", name: "renewal-of-a-marked-one",
			rule: "a mark leaves the lease to its holder, who may renew it, also while its instance is paused", needs: instances,
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				work := x.mark(x.takeOne())
				x.pause(supervisor.Scope{TenantID: x.tenant})
				x.check(x.intents.RenewIntent(x.ctx, work.Lease(held)), "RenewIntent of a marked intent of a paused tenant")
				x.settle(work, success(`1`))
			},
		},
		{
			topic: "intent-lease", name: "other-versions",
			rule: "only the holder of exactly this lease version may renew: everything else is ErrLeaseLost",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				work := x.takeOne()
				before := x.intentView("a", "i")
				for _, version := range []int64{work.LeaseVersion - 1, work.LeaseVersion + 1, 0, -1} {
					wrong := work.Lease(9 * held)
					wrong.Version = version
					x.want(x.intents.RenewIntent(x.ctx, wrong), supervisor.ErrLeaseLost, "RenewIntent with version %d of lease %d", version, work.LeaseVersion)
				}
				for _, key := range []supervisor.IntentKey{
					x.intentKey("a", "unknown"), x.intentKey("unknown", "i"),
					{TenantID: x.tenant + " other", InstanceID: "a", IntentID: "i"},
				} {
					wrong := work.Lease(9 * held)
					wrong.IntentKey = key
					x.want(x.intents.RenewIntent(x.ctx, wrong), supervisor.ErrLeaseLost, "RenewIntent of %+v", key)
				}
				x.sameIntent("a", "i", before, "refused renewals")
			},
		},
		{
			topic: "intent-lease", name: "duration",
			rule: "a renewal needs a duration that is positive",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				work := x.takeOne()
				before := x.intentView("a", "i")
				x.wantErr(x.intents.RenewIntent(x.ctx, work.Lease(0)), "RenewIntent with Duration 0")
				x.wantErr(x.intents.RenewIntent(x.ctx, work.Lease(-time.Hour)), "RenewIntent with a negative Duration")
				x.sameIntent("a", "i", before, "refused renewals")
				x.noIntent("the lease of the claim lasts")
			},
		},
		{
			topic: "intent-lease", name: "ended",
			rule: "a lease that has ended is not renewed",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				work := x.takeShort()
				x.outlast()
				x.want(x.intents.RenewIntent(x.ctx, work.Lease(held)), supervisor.ErrLeaseLost, "RenewIntent after the end of the lease")
				x.takeOne()
			},
		},
		{
			topic: "intent-lease", name: "frozen-holder",
			rule: "the fence is the lease version of the intent: who lost it to another neither marks, settles, releases nor renews, also under the same name",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				frozen := x.takeShort()
				second := x.takeOne() // by the same name
				before := x.intentView("a", "i")
				_, err := x.intents.MarkIntent(x.ctx, &frozen)
				x.want(err, supervisor.ErrLeaseLost, "MarkIntent under a lost lease")
				x.want(x.intents.SettleIntent(x.ctx, &frozen, failure("late")), supervisor.ErrLeaseLost, "SettleIntent under a lost lease")
				x.want(x.intents.ReleaseIntent(x.ctx, &frozen, supervisor.IntentRelease{}), supervisor.ErrLeaseLost, "ReleaseIntent under a lost lease")
				x.want(x.intents.RenewIntent(x.ctx, frozen.Lease(held)), supervisor.ErrLeaseLost, "RenewIntent under a lost lease")
				x.sameIntent("a", "i", before, "calls under a lost lease")
				x.settle(x.mark(second), success(`1`))
				x.told("a", toldSuccess("i", `1`))
			},
		},
		{
			topic: "intent-lease", name: "frozen-after-the-mark",
			rule: "who lost a marked intent neither settles, releases nor marks it again",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				frozen := x.mark(x.takeShort())
				second := x.takeTask(supervisor.IntentTaskRecover)
				before := x.intentView("a", "i")
				_, err := x.intents.MarkIntent(x.ctx, &frozen)
				x.want(err, supervisor.ErrLeaseLost, "MarkIntent under a lost lease")
				for _, s := range []supervisor.Settlement{success(`1`), failure("late"), retryIn(0), ambiguous()} {
					x.want(x.intents.SettleIntent(x.ctx, &frozen, s), supervisor.ErrLeaseLost, "SettleIntent as %s under a lost lease", s.State)
				}
				x.want(x.intents.ReleaseIntent(x.ctx, &frozen, supervisor.IntentRelease{NotHandedOff: true}),
					supervisor.ErrLeaseLost, "ReleaseIntent under a lost lease")
				x.sameIntent("a", "i", before, "calls under a lost lease")
				x.settle(second, ambiguous())
				x.told("a", toldUnknown("i", 1))
			},
		},
		{
			topic: "intent-lease", name: "ended-but-not-taken",
			rule: "a lease that has ended but that nobody else took still marks and settles: the version decides, not the clock",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				work := x.takeShort()
				x.outlast()
				marked := x.mark(work)
				x.settle(marked, success(`1`))
				x.told("a", toldSuccess("i", `1`))
			},
		},
		{
			topic: "intent-lease", name: "another-handle", needs: reopen,
			rule: "the fence holds across processes",
			run: func(x *trial) {
				other, ok := x.reopen().(supervisor.IntentQueue)
				if !ok {
					x.Skipf("the other handle is no supervisor.IntentQueue")
				}
				x.plan("a", x.effect("i"))
				frozen := x.takeShort()
				x.outlast()
				works, err := other.ClaimIntents(x.ctx, x.wanted(1))
				x.check(err, "ClaimIntents by another handle")
				if len(works) != 1 {
					x.Fatalf("another handle claimed %d intents, want the one whose lease has ended", len(works))
				}
				_, err = x.intents.MarkIntent(x.ctx, &frozen)
				x.want(err, supervisor.ErrLeaseLost, "MarkIntent of what another handle holds")
				_, err = other.MarkIntent(x.ctx, &works[0])
				x.check(err, "MarkIntent by another handle")
			},
		},
	}
}
