package queuetest

import (
	"time"

	"github.com/workflow-supervisor/supervisor"
)

func intentSettleCases() []testCase {
	return []testCase{
		{
			topic: "intent-settle", name: "success",
			rule: "a success settles the intent and tells its instance by one wakeup, which wakes it",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				work := x.handOff()
				x.settle(work, success(`{"charged":true}`))
				x.want(x.intents.RenewIntent(x.ctx, work.Lease(held)), supervisor.ErrLeaseLost, "RenewIntent after the settlement")
				x.told("a", toldSuccess("i", `{"charged":true}`))
				x.stands("a", "i", func(r *supervisor.IntentRecord) {
					equal(x, "State", r.Intent.State, supervisor.ActionSucceeded)
					equal(x, "Outcome", r.Outcome, supervisor.OutcomeSucceeded)
					equal(x, "Output", string(compact(r.Output)), `{"charged":true}`)
					if off := r.SettledAt.Sub(x.now()).Abs(); off > x.slack+patience {
						x.Errorf("SettledAt is off by %v", off)
					}
				})
				x.noIntent("it is settled")
				x.idle("one wakeup is enough")
			},
		},
		{
			topic: "intent-settle", name: "failure",
			rule: "failed and cancelled are rejected, with the reason and the cause for the instance",
			run: func(x *trial) {
				x.plan("a", x.effect("i1"), x.effect("i2"))
				for _, outcome := range []supervisor.IntentOutcome{supervisor.OutcomeFailed, supervisor.OutcomeCancelled} {
					s := failure("no money")
					s.Outcome, s.Cause = outcome, supervisor.CauseReported
					work := x.handOff()
					x.settle(work, s)
					x.told("a", supervisor.ActionResult{
						IntentID: work.Intent.ID, State: supervisor.ActionRejected, Outcome: outcome, Cause: supervisor.CauseReported,
						Attempt: 1, Reason: "no money",
					})
				}
			},
		},
		{
			topic: "intent-settle", name: "with-its-receipt",
			rule: "a terminal receipt and its settlement are one write",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				receipt := ended(supervisor.ProviderSucceeded, `1`)
				s := success(`1`)
				s.Receipt = &receipt
				x.settle(x.handOff(), s)
				x.told("a", toldSuccess("i", `1`))
				x.stands("a", "i", func(r *supervisor.IntentRecord) {
					if r.Receipt == nil || r.Receipt.Reference != "ref" {
						x.Errorf("the receipt is %+v, want that of the settlement", r.Receipt)
					}
				})
			},
		},
		{
			topic: "intent-settle", name: "receipt-that-contradicts",
			rule: "a settlement whose receipt contradicts the stored one is ErrReceiptConflict and settles nothing",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				x.accept(x.handOff(), running(0))
				work := x.takeTask(supervisor.IntentTaskObserve)
				receipt := ended(supervisor.ProviderSucceeded, `1`)
				receipt.Reference = "elsewhere"
				s := success(`1`)
				s.Receipt = &receipt
				x.want(x.intents.SettleIntent(x.ctx, &work, s), supervisor.ErrReceiptConflict, "SettleIntent with the receipt of other work")
				x.stands("a", "i", func(r *supervisor.IntentRecord) {
					equal(x, "State", r.Intent.State, supervisor.ActionExecuting)
					equal(x, "the number of contradictions", len(r.Evidence), 1)
				})
				x.idle("nothing was settled")
				x.settle(work, success(`1`))
				x.told("a", toldSuccess("i", `1`))
			},
		},
		{
			topic: "intent-settle", name: "agreeing-repeats",
			rule: "an agreeing repeat of a terminal outcome is nil, from whoever it comes, and tells nobody again",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				frozen := x.mark(x.takeShort())
				work := x.takeTask(supervisor.IntentTaskRecover)
				x.settle(work, success(`{"n":1}`))
				before := x.intentView("a", "i")
				x.settle(work, success(`{"n":1}`))
				x.told("a", toldSuccess("i", `{"n":1}`))
				x.settle(work, success(` {"n": 1}`))
				x.settle(frozen, success(`{"n":1}`))
				x.sameIntent("a", "i", before, "agreeing repeats")
				x.idle("it was told once")
			},
		},
		{
			topic: "intent-settle", name: "contradictions",
			rule: "another terminal outcome after the first is ErrReceiptConflict and kept as evidence; the first stays",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				work := x.handOff()
				x.settle(work, success(`1`))
				for _, s := range []supervisor.Settlement{success(`2`), failure("no")} {
					x.want(x.intents.SettleIntent(x.ctx, &work, s), supervisor.ErrReceiptConflict, "SettleIntent as %s after a success", s.State)
				}
				x.want(x.intents.SettleIntent(x.ctx, &work, ambiguous()), supervisor.ErrLeaseLost, "SettleIntent as unknown after a success")
				x.told("a", toldSuccess("i", `1`))
				x.stands("a", "i", func(r *supervisor.IntentRecord) {
					equal(x, "State", r.Intent.State, supervisor.ActionSucceeded)
					equal(x, "the number of contradictions", len(r.Evidence), 2)
				})
			},
		},
		{
			topic: "intent-settle", name: "never-handed-off",
			rule: "what was never handed off neither succeeds nor becomes unknown; with proof it may be rejected",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				work := x.takeOne()
				for _, s := range []supervisor.Settlement{success(`1`), ambiguous(), retryIn(0)} {
					x.want(x.intents.SettleIntent(x.ctx, &work, s), supervisor.ErrStateConflict, "SettleIntent as %s before the mark", s.State)
				}
				x.idle("nothing was settled")
				x.settle(work, failure("not this time"))
				x.told("a", supervisor.ActionResult{
					IntentID: "i", State: supervisor.ActionRejected, Outcome: supervisor.OutcomeFailed, Cause: supervisor.CauseRefused, Reason: "not this time",
				})
			},
		},
		{
			topic: "intent-settle", name: "unknown",
			rule: "an outcome that becomes unknown is told by a wakeup of its own; it is not final, and the intent is not due by itself",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				s := ambiguous()
				s.Reason = "the line went dead"
				work := x.handOff()
				x.settle(work, s)
				want := toldUnknown("i", 1)
				want.Reason = "the line went dead"
				x.told("a", want)
				x.noIntent("an unknown outcome waits for an operator")
				x.stands("a", "i", func(r *supervisor.IntentRecord) {
					equal(x, "State", r.Intent.State, supervisor.ActionUnknown)
					equal(x, "whether SettledAt is zero", r.SettledAt.IsZero(), true)
				})
				x.want(x.intents.SettleIntent(x.ctx, &work, success(`1`)), supervisor.ErrLeaseLost, "SettleIntent of an unknown outcome that nobody holds")
			},
		},
		{
			topic: "intent-settle", name: "retryable",
			rule: "a retryable intent tells nobody and is due once its delay has passed, under the same key and with another attempt",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				work := x.handOff()
				x.settle(work, retryIn(x.Lease))
				x.idle("a retry is no outcome")
				next := x.takeTask(supervisor.IntentTaskDispatch)
				if least := work.MarkedAt.Add(x.Lease); next.ClaimedAt.Before(least) {
					x.Errorf("claimed at %v, but it was to be retried at %v at the earliest", next.ClaimedAt, least)
				}
				equal(x, "State", next.Intent.State, supervisor.ActionRetryable)
				equal(x, "IdempotencyKey", next.Intent.IdempotencyKey, work.Intent.IdempotencyKey)
				marked := x.mark(next)
				equal(x, "Attempt", marked.Attempt, 2)
				x.settle(marked, retryIn(far))
				x.noIntent("the next attempt is an hour away")
			},
		},
		{
			topic: "intent-settle", name: "retryable-at-its-deadline",
			rule: "a retryable intent does not sleep through its deadline: it is settled then",
			run: func(x *trial) {
				var deadline time.Time
				x.timely(func(at time.Time) {
					deadline = at
					x.plan("a", x.effect("i", until(at)))
					for _, work := range x.claimIntents(x.wanted(1)) {
						if marked, err := x.intents.MarkIntent(x.ctx, &work); err == nil {
							x.settle(marked, retryIn(far))
						}
					}
				})
				x.passes(deadline)
				x.noIntent("the deadline has passed")
				x.told("a", toldWithdrawn("i", 1, supervisor.CauseDeadline))
			},
		},
	}
}

// intentToldCases prove how outcomes reach instances.
func intentToldCases() []testCase {
	return []testCase{
		{
			topic: "intent-told", name: "during-an-evaluation",
			rule: "an outcome that comes while the instance is evaluated is not lost: it is due again at once",
			run: func(x *trial) {
				x.planBy(x.actor("a"), supervisor.Continue{}, x.effect("i"))
				item := x.claimOne()
				x.settle(x.handOff(), success(`1`))
				x.step(&item, `1`, supervisor.Continue{Delay: far})
				x.told("a", toldSuccess("i", `1`))
			},
		},
		{
			topic: "intent-told", name: "not-before-the-retry-time",
			rule: "an outcome does not make an instance that backs off due before its retry time",
			run: func(x *trial) {
				x.planBy(x.actor("a"), supervisor.Continue{}, x.effect("i"))
				item := x.claimOne()
				x.fail(&item, "failed", x.now().Add(far))
				x.settle(x.handOff(), success(`1`))
				x.idle("the retry time is an hour away")
			},
		},
		{
			topic: "intent-told", name: "finished-instance", needs: instances,
			rule: "an intent of a finished instance settles without a wakeup",
			run: func(x *trial) {
				x.planBy(x.actor("completed"), supervisor.Complete{}, x.effect("i"))
				x.settle(x.handOff(), success(`1`))
				x.inState("completed", "i", supervisor.ActionSucceeded)
				equal(x, "PendingWakeups", x.get("completed").PendingWakeups, 0)

				x.plan("cancelled", x.effect("i"))
				work := x.handOff()
				x.check(x.Instances.Cancel(x.ctx, x.tenant, "cancelled"), "Cancel")
				item := x.claimOne()
				x.step(&item, `1`, supervisor.Complete{})
				x.settle(work, success(`1`))
				x.inState("cancelled", "i", supervisor.ActionSucceeded)
				equal(x, "PendingWakeups", x.get("cancelled").PendingWakeups, 0)
				x.idle("both are finished")
			},
		},
		{
			topic: "intent-told", name: "failed-for-good", needs: instances,
			rule: "an outcome is kept for an instance that failed for good, and wakes nothing",
			run: func(x *trial) {
				x.planBy(x.actor("a"), supervisor.Continue{}, x.effect("i"))
				item := x.claimOne()
				x.fail(&item, "for good", time.Time{})
				x.settle(x.handOff(), success(`1`))
				x.idle("the instance failed for good")
				x.check(x.Instances.Retry(x.ctx, x.tenant, "a"), "Retry")
				x.told("a", toldSuccess("i", `1`))
			},
		},
		{
			topic: "intent-told", name: "each-of-many",
			rule: "each intent tells its own outcome, to its own instance",
			run: func(x *trial) {
				x.plan("a", x.effect("i1"), x.effect("i2"))
				x.plan("b", x.effect("i1"))
				for range 3 {
					work := x.handOff()
					x.settle(work, success(`"`+work.Intent.InstanceID+work.Intent.ID+`"`))
				}
				item := x.woken("a")
				results := []supervisor.ActionResult{toldSuccess("i1", `"ai1"`), toldSuccess("i2", `"ai2"`)}
				if len(item.Wakeups) == 2 && item.Wakeups[0].ID == "intent:i2:settled" {
					results[0], results[1] = results[1], results[0]
				}
				x.tells(&item, results...)
				item = x.woken("b")
				x.tells(&item, toldSuccess("i1", `"bi1"`))
			},
		},
		{
			topic: "intent-told", name: "same-ids-in-two-tenants",
			rule: "everything is keyed by tenant, instance and id: equal ids in two tenants never meet",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				other := x.actor("a")
				other.TenantID += " other"
				x.planBy(other, supervisor.Continue{Delay: far}, x.effect("i"))
				works := x.take(2)
				for n := range works {
					works[n] = x.mark(works[n])
				}
				for _, work := range works {
					if work.Intent.TenantID == x.tenant {
						x.settle(work, success(`1`))
					}
				}
				item := x.claimOne()
				equal(x, "the tenant that is told", item.TenantID, x.tenant)
				x.idle("the other intent is in flight")
			},
		},
	}
}

// intentProofCases prove the rule above all others.
func intentProofCases() []testCase {
	classes := []supervisor.IdempotencyMode{
		supervisor.IdempotencyNone, supervisor.IdempotencyReconcileBeforeRetry, supervisor.IdempotencyNeverAutomaticRetry,
	}
	return []testCase{
		{
			topic: "intent-proof", name: "no-repeat-without-proof",
			rule: "an intent that changes something and whose provider cannot tell repeats apart never becomes retryable without a proof that the attempt before had no effect",
			run: func(x *trial) {
				for _, class := range classes {
					for _, effect := range []supervisor.Effect{supervisor.EffectInternalWrite, supervisor.EffectExternalWrite, supervisor.EffectFunds} {
						id := string(class) + " " + string(effect)
						x.plan(id, x.effect("i", func(i *supervisor.ActionIntent) {
							i.RetryClass, i.Effect = class, effect
							i.Reservation = &supervisor.ResourceReservationRef{ID: "reservation"}
						}))
						work := x.handOff()
						before := x.intentView(id, "i")
						x.want(x.intents.SettleIntent(x.ctx, &work, unproven()), supervisor.ErrStateConflict, "SettleIntent of a %s as retryable without proof", id)
						rejected := failure("")
						rejected.Proof = ""
						x.want(x.intents.SettleIntent(x.ctx, &work, rejected), supervisor.ErrStateConflict, "SettleIntent of a %s as rejected without proof", id)
						x.sameIntent(id, "i", before, "settlements without proof")
						x.settle(work, ambiguous())
					}
				}
				x.noIntent("all outcomes are unknown")
			},
		},
		{
			topic: "intent-proof", name: "after-a-crash",
			rule: "a marked intent that another dispatcher finds is not repeated without proof, either",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				x.mark(x.takeShort())
				work := x.takeTask(supervisor.IntentTaskRecover)
				x.want(x.intents.SettleIntent(x.ctx, &work, unproven()), supervisor.ErrStateConflict, "SettleIntent as retryable without proof")
				x.settle(work, supervisor.Settlement{State: supervisor.ActionRetryable, Proof: supervisor.ProofNotAccepted})
				equal(x, "Attempt", x.mark(x.takeTask(supervisor.IntentTaskDispatch)).Attempt, 2)
			},
		},
		{
			topic: "intent-proof", name: "every-proof",
			rule: "each proof allows a repeat",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				for n, proof := range []supervisor.IntentProof{supervisor.ProofNotSent, supervisor.ProofNotAccepted, supervisor.ProofReported} {
					work := x.handOff()
					equal(x, "Attempt", work.Attempt, n+1)
					x.settle(work, supervisor.Settlement{State: supervisor.ActionRetryable, Proof: proof})
				}
			},
		},
		{
			topic: "intent-proof", name: "repeatable",
			rule: "what changes nothing, and what the provider takes as one under its key, may be repeated without proof",
			run: func(x *trial) {
				for id, change := range map[string]func(*supervisor.ActionIntent){
					"pure": func(i *supervisor.ActionIntent) { i.Effect = supervisor.EffectPure }, "read": reading, "native": native,
				} {
					x.plan(id, x.effect("i", change))
					x.settle(x.handOff(), unproven())
					equal(x, "Attempt of what is "+id, x.handOff().Attempt, 2)
				}
			},
		},
		{
			topic: "intent-proof", name: "unknown-stays",
			rule: "an unknown outcome is not repeated by dispatchers: only an operator, a receipt or its observation ends it",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				work := x.handOff()
				x.settle(work, ambiguous())
				x.told("a", toldUnknown("i", 1))
				for _, s := range []supervisor.Settlement{retryIn(0), failure("no"), success(`1`)} {
					x.want(x.intents.SettleIntent(x.ctx, &work, s), supervisor.ErrLeaseLost, "SettleIntent as %s of an unknown outcome", s.State)
				}
				_, err := x.intents.MarkIntent(x.ctx, &work)
				x.want(err, supervisor.ErrLeaseLost, "MarkIntent of an unknown outcome")
				x.noIntent("its outcome is unknown")
				x.inState("a", "i", supervisor.ActionUnknown)
			},
		},
	}
}
