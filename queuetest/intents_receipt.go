package queuetest

import (
	"fmt"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

func intentReceiptCases() []testCase {
	return []testCase{
		{
			topic: "intent-receipt", name: "running",
			rule: "the receipt of accepted work from the holder is stored, ends the lease and sets when to look at the work",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				work := x.handOff()
				x.accept(work, running(x.Lease))
				x.want(x.intents.RenewIntent(x.ctx, work.Lease(held)), supervisor.ErrLeaseLost, "RenewIntent after the receipt")
				again := x.takeTask(supervisor.IntentTaskObserve)
				equal(x, "State", again.Intent.State, supervisor.ActionExecuting)
				equal(x, "Attempt", again.Attempt, 1)
				if again.Receipt == nil || again.Receipt.Reference != "ref" {
					x.Errorf("the receipt of the claimed work is %+v, want the stored one", again.Receipt)
				}
				if least := work.MarkedAt.Add(x.Lease); again.ClaimedAt.Before(least) {
					x.Errorf("claimed at %v, but the receipt asks to look at %v at the earliest", again.ClaimedAt, least)
				}
				x.idle("accepted work is no outcome")
			},
		},
		{
			topic: "intent-receipt", name: "look-later",
			rule: "what a receipt says of the next look is kept to",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				x.accept(x.handOff(), running(far))
				x.noIntent("the next look is an hour away")
			},
		},
		{
			topic: "intent-receipt", name: "terminal",
			rule: "a receipt may be terminal at once: the work is due for settlement, and settled by its stored receipt",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				x.accept(x.handOff(), ended(supervisor.ProviderSucceeded, `{"id":7}`))
				work := x.takeTask(supervisor.IntentTaskObserve)
				if work.Receipt == nil || work.Receipt.Status != supervisor.ProviderSucceeded {
					x.Fatalf("the receipt of the claimed work is %+v, want the terminal one", work.Receipt)
				}
				equal(x, "Output of the receipt", string(compact(work.Receipt.Output)), `{"id":7}`)
				x.settle(work, success(`{"id":7}`))
				x.told("a", toldSuccess("i", `{"id":7}`))
			},
		},
		{
			topic: "intent-receipt", name: "from-a-lost-lease",
			rule: "a receipt is stored from whoever has it, also from a dispatcher that lost its lease; the lease of the holder goes on",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				frozen := x.mark(x.takeShort())
				holder := x.takeTask(supervisor.IntentTaskRecover)
				x.accept(frozen, running(0))
				x.stands("a", "i", func(r *supervisor.IntentRecord) {
					equal(x, "State", r.Intent.State, supervisor.ActionExecuting)
					if r.Receipt == nil {
						x.Errorf("the receipt was not stored")
					}
				})
				x.check(x.intents.RenewIntent(x.ctx, holder.Lease(held)), "RenewIntent by the holder")
				x.noIntent("it is held")
				// The holder does not know the receipt: what it would conclude
				// without is refused, and its release makes the work due at once.
				for _, s := range []supervisor.Settlement{retryIn(0), ambiguous(), failure("none")} {
					x.want(x.intents.SettleIntent(x.ctx, &holder, s), supervisor.ErrStateConflict, "SettleIntent as %s beside an unknown receipt", s.State)
				}
				x.giveIntentBack(holder, supervisor.IntentRelease{After: far})
				work := x.takeTask(supervisor.IntentTaskObserve)
				x.settle(work, success(`1`))
				x.told("a", toldSuccess("i", `1`))
			},
		},
		{
			topic: "intent-receipt", name: "after-the-lease-ended",
			rule: "a receipt after the end of the lease, where nobody else took it, is stored as from the holder",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				work := x.mark(x.takeShort())
				x.outlast()
				x.accept(work, running(far))
				x.noIntent("the next look is an hour away")
				x.inState("a", "i", supervisor.ActionExecuting)
			},
		},
		{
			topic: "intent-receipt", name: "terminal-from-a-lost-lease",
			rule: "a terminal receipt from a dispatcher that lost its lease is settled by the holder alone",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				frozen := x.mark(x.takeShort())
				holder := x.takeTask(supervisor.IntentTaskRecover)
				x.accept(frozen, ended(supervisor.ProviderSucceeded, `1`))
				x.idle("a receipt is no settlement")
				x.want(x.intents.SettleIntent(x.ctx, &frozen, success(`1`)), supervisor.ErrLeaseLost, "SettleIntent under a lost lease")
				x.settle(holder, success(`1`))
				x.told("a", toldSuccess("i", `1`))
			},
		},
		{
			topic: "intent-receipt", name: "of-an-unknown-outcome",
			rule: "a terminal receipt that arrives in unknown settles the intent as reconciled: a second wakeup follows the first",
			run: func(x *trial) {
				x.plan("a", x.effect("i1"), x.effect("i2"))
				for _, result := range []struct {
					receipt supervisor.Receipt
					outcome supervisor.IntentOutcome
				}{
					{ended(supervisor.ProviderSucceeded, `{"late":true}`), supervisor.OutcomeSucceeded},
					{ended(supervisor.ProviderFailed, ""), supervisor.OutcomeFailed},
				} {
					work := x.handOff()
					id := work.Intent.ID
					x.settle(work, ambiguous())
					x.told("a", toldUnknown(id, 1))
					x.accept(work, result.receipt)
					x.told("a", supervisor.ActionResult{
						IntentID: id, State: supervisor.ActionReconciled, Outcome: result.outcome, Cause: supervisor.CauseReported,
						Attempt: 1, Output: result.receipt.Output,
					})
					x.accept(work, result.receipt)
					x.idle("a repeated receipt tells nothing new")
				}
			},
		},
		{
			topic: "intent-receipt", name: "running-of-an-unknown-outcome",
			rule: "the receipt of running work that arrives in unknown makes it due for observation; what that finds settles it as reconciled",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				work := x.handOff()
				x.settle(work, ambiguous())
				x.told("a", toldUnknown("i", 1))
				x.noIntent("an unknown outcome waits for an operator")
				x.accept(work, running(0))
				x.inState("a", "i", supervisor.ActionUnknown)
				x.settle(x.takeTask(supervisor.IntentTaskObserve), success(`2`))
				result := toldSuccess("i", `2`)
				result.State = supervisor.ActionReconciled
				x.told("a", result)
			},
		},
	}
}

func intentEvidenceCases() []testCase {
	return []testCase{
		{
			topic: "intent-receipt", name: "agreeing-repeats",
			rule: "an agreeing receipt again is nil and changes nothing",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				work := x.handOff()
				x.accept(work, running(far))
				x.accept(work, running(far))
				x.noIntent("the next look is an hour away")
				x.accept(work, ended(supervisor.ProviderSucceeded, `{"a":1}`)) // the same work, ended
				x.accept(work, ended(supervisor.ProviderSucceeded, ` { "a" : 1 } `))
				x.accept(work, running(far)) // an old one that was under way
				holder := x.takeTask(supervisor.IntentTaskObserve)
				if holder.Receipt == nil || !holder.Receipt.Terminal() {
					x.Errorf("the receipt is %+v, want the terminal one to stay", holder.Receipt)
				}
				equal(x, "the number of contradictions", len(holder.Evidence), 0)
			},
		},
		{
			topic: "intent-receipt", name: "contradictions",
			rule: "a receipt that contradicts the stored one is ErrReceiptConflict and kept as evidence; the stored one stays",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				work := x.handOff()
				x.accept(work, ended(supervisor.ProviderSucceeded, `1`))
				elsewhere := ended(supervisor.ProviderSucceeded, `1`)
				elsewhere.Reference = "elsewhere"
				for _, receipt := range []supervisor.Receipt{
					elsewhere, ended(supervisor.ProviderSucceeded, `2`), ended(supervisor.ProviderFailed, ""),
				} {
					x.want(x.intents.RecordReceipt(x.ctx, &work, receipt), supervisor.ErrReceiptConflict, "RecordReceipt of %+v after another", receipt)
				}
				x.stands("a", "i", func(r *supervisor.IntentRecord) {
					equal(x, "the number of contradictions", len(r.Evidence), 3)
					if len(r.Evidence) == 3 {
						equal(x, "Reference of the first contradiction", r.Evidence[0].Reference, "elsewhere")
						equal(x, "Status of the last contradiction", r.Evidence[2].Status, supervisor.ProviderFailed)
						equal(x, "Worker of a contradiction", r.Evidence[0].Worker, work.LeaseOwner)
						equal(x, "Attempt of a contradiction", r.Evidence[0].Attempt, 1)
					}
				})
				work = x.takeTask(supervisor.IntentTaskObserve)
				if work.Receipt == nil || work.Receipt.Reference != "ref" || string(compact(work.Receipt.Output)) != "1" {
					x.Errorf("the receipt is %+v, want the first one to stay", work.Receipt)
				}
				x.settle(work, success(`1`))
				x.told("a", toldSuccess("i", `1`))
			},
		},
		{
			topic: "intent-receipt", name: "after-the-settlement",
			rule: "after a terminal state an agreeing receipt is nil, another one is evidence and ErrReceiptConflict; no outcome changes and nobody is told again",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				work := x.handOff()
				x.accept(work, running(0))
				x.settle(x.takeTask(supervisor.IntentTaskObserve), success(`{"n":1}`))
				x.told("a", toldSuccess("i", `{"n":1}`))
				x.accept(work, ended(supervisor.ProviderSucceeded, `{"n":1}`))
				x.accept(work, running(0))
				for _, receipt := range []supervisor.Receipt{
					ended(supervisor.ProviderSucceeded, `{"n":2}`), ended(supervisor.ProviderFailed, ""), ended(supervisor.ProviderCancelled, ""),
				} {
					x.want(x.intents.RecordReceipt(x.ctx, &work, receipt), supervisor.ErrReceiptConflict, "RecordReceipt of %+v after the settlement", receipt)
				}
				x.stands("a", "i", func(r *supervisor.IntentRecord) {
					equal(x, "State", r.Intent.State, supervisor.ActionSucceeded)
					equal(x, "the number of contradictions", len(r.Evidence), 3)
					equal(x, "Output", string(compact(r.Output)), `{"n":1}`)
				})
				x.idle("nothing changed")
				x.noIntent("it is settled")
			},
		},
		{
			topic: "intent-receipt", name: "evidence-is-bounded", needs: intentOperator,
			rule: "of the contradictions the latest are kept, MaxEvidence of them",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				work := x.handOff()
				x.accept(work, running(far))
				for n := range supervisor.MaxEvidence + 3 {
					receipt := running(0)
					receipt.Reference = fmt.Sprint("ref ", n)
					x.want(x.intents.RecordReceipt(x.ctx, &work, receipt), supervisor.ErrReceiptConflict, "RecordReceipt with another reference")
				}
				x.stands("a", "i", func(r *supervisor.IntentRecord) {
					equal(x, "the number of contradictions", len(r.Evidence), supervisor.MaxEvidence)
					equal(x, "the last one", r.Evidence[len(r.Evidence)-1].Reference, fmt.Sprint("ref ", supervisor.MaxEvidence+2))
				})
			},
		},
		{
			topic: "intent-receipt", name: "never-handed-off",
			rule: "the receipt of an intent that was never handed off contradicts that",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				work := x.takeOne()
				x.want(x.intents.RecordReceipt(x.ctx, &work, running(0)), supervisor.ErrReceiptConflict, "RecordReceipt before the mark")
				x.inState("a", "i", supervisor.ActionPrepared)
				x.mark(work)
			},
		},
		{
			topic: "intent-receipt", name: "of-an-earlier-attempt",
			rule: "the receipt of an earlier attempt contradicts the proof that it had no effect; where repeats are one and the same work it is taken",
			run: func(x *trial) {
				x.plan("a", x.effect("none"))
				first := x.handOff()
				x.settle(first, retryIn(0))
				second := x.handOff()
				equal(x, "Attempt", second.Attempt, 2)
				x.want(x.intents.RecordReceipt(x.ctx, &first, running(0)), supervisor.ErrReceiptConflict, "RecordReceipt of attempt 1 after the mark of attempt 2")
				x.inState("a", "none", supervisor.ActionDispatchCommitted)
				x.accept(second, running(far))

				x.plan("b", x.effect("native", native))
				first = x.handOff()
				x.settle(first, unproven())
				second = x.handOff()
				x.accept(first, running(far))
				x.inState("b", "native", supervisor.ActionExecuting)
				x.accept(second, running(far))
			},
		},
	}
}

func intentReleaseCases() []testCase {
	return []testCase{
		{
			topic: "intent-release", name: "unmarked",
			rule: "ReleaseIntent ends the lease without an outcome: an unmarked intent is due again at once, or after the time that was asked for",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				x.giveIntentBack(x.takeOne(), supervisor.IntentRelease{})
				work := x.takeTask(supervisor.IntentTaskDispatch)
				equal(x, "Attempt", work.Attempt, 0)
				x.giveIntentBack(work, supervisor.IntentRelease{After: x.Lease})
				again := x.takeOne()
				if least := work.ClaimedAt.Add(x.Lease); again.ClaimedAt.Before(least) {
					x.Errorf("claimed at %v, but it was given back until %v at the earliest", again.ClaimedAt, least)
				}
				x.giveIntentBack(again, supervisor.IntentRelease{After: far})
				x.noIntent("it was given back for an hour")
			},
		},
		{
			topic: "intent-release", name: "not-handed-off",
			rule: "with NotHandedOff a mark is taken back and its attempt does not count",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				x.giveIntentBack(x.handOff(), supervisor.IntentRelease{NotHandedOff: true})
				work := x.takeTask(supervisor.IntentTaskDispatch)
				equal(x, "Attempt", work.Attempt, 0)
				equal(x, "Attempt after another mark", x.mark(work).Attempt, 1)
			},
		},
		{
			topic: "intent-release", name: "not-handed-off-by-another",
			rule: "a mark is taken back only by the lease that set it, and only while no receipt is stored",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				x.mark(x.takeShort())
				other := x.takeTask(supervisor.IntentTaskRecover)
				x.want(x.intents.ReleaseIntent(x.ctx, &other, supervisor.IntentRelease{NotHandedOff: true}),
					supervisor.ErrStateConflict, "ReleaseIntent as not handed off by another lease")
				x.inState("a", "i", supervisor.ActionDispatchCommitted)
				x.settle(other, ambiguous())
			},
		},
		{
			topic: "intent-release", name: "marked",
			rule: "a marked intent that is given back stays marked: it is due for recovery, after 1 s unless another time was asked for",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				x.giveIntentBack(x.handOff(), supervisor.IntentRelease{})
				released := x.now()
				again := x.takeTask(supervisor.IntentTaskRecover)
				equal(x, "Attempt", again.Attempt, 1)
				if again.ClaimedAt.Before(released.Add(time.Second - x.slack - patience/20)) {
					x.Errorf("claimed at %v, but it was given back at about %v for 1 s", again.ClaimedAt, released)
				}
				x.giveIntentBack(again, supervisor.IntentRelease{After: far})
				x.noIntent("it was given back for an hour")
			},
		},
		{
			topic: "intent-release", name: "looks-grow-rarer", needs: fastClock,
			rule: "looks that bring nothing new begin after 1 s and double up to 1 min",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				x.accept(x.handOff(), running(0))
				last := x.takeOne()
				for _, seconds := range []int{1, 2, 4, 8, 16, 32, 60, 60} {
					gap := time.Duration(seconds) * time.Second
					x.giveIntentBack(last, supervisor.IntentRelease{})
					x.sleep(gap - time.Second)
					next := x.takeTask(supervisor.IntentTaskObserve)
					if got := next.ClaimedAt.Sub(last.ClaimedAt); got < gap || got > gap+time.Second/2 {
						x.Errorf("the next look came after %v, want %v", got, gap)
					}
					last = next
				}
			},
		},
		{
			topic: "intent-release", name: "holder-only",
			rule: "who does not hold the lease gets ErrLeaseLost, also who gave it back before",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				work := x.takeOne()
				wrong := work
				wrong.LeaseVersion++
				x.want(x.intents.ReleaseIntent(x.ctx, &wrong, supervisor.IntentRelease{}), supervisor.ErrLeaseLost, "ReleaseIntent with another version")
				x.giveIntentBack(work, supervisor.IntentRelease{After: far})
				x.want(x.intents.ReleaseIntent(x.ctx, &work, supervisor.IntentRelease{}), supervisor.ErrLeaseLost, "ReleaseIntent again")
				_, err := x.intents.MarkIntent(x.ctx, &work)
				x.want(err, supervisor.ErrLeaseLost, "MarkIntent after the release")
				x.want(x.intents.RenewIntent(x.ctx, work.Lease(held)), supervisor.ErrLeaseLost, "RenewIntent after the release")
			},
		},
		{
			topic: "intent-release", name: "diagnostic", needs: intentOperator,
			rule: "the diagnostic of a release is kept, with the queue's time",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				x.giveIntentBack(x.handOff(), supervisor.IntentRelease{
					After: far, Diagnostic: &supervisor.Diagnostic{Phase: supervisor.PhaseDispatch, Category: supervisor.CategoryTimeout},
				})
				x.stands("a", "i", func(r *supervisor.IntentRecord) {
					if r.Diagnostic == nil || r.Diagnostic.Phase != supervisor.PhaseDispatch || r.Diagnostic.Category != supervisor.CategoryTimeout {
						x.Fatalf("the diagnostic is %+v, want that of the release", r.Diagnostic)
					}
					if off := r.Diagnostic.At.Sub(x.now()).Abs(); off > x.slack+patience {
						x.Errorf("At of the diagnostic is off by %v", off)
					}
				})
			},
		},
	}
}
