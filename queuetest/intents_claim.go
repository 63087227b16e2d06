package queuetest

import (
	"fmt"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

func intentClaimCases() []testCase {
	return []testCase{
		{
			topic: "intent-claim", name: "due-at-once",
			rule: "an intent that a commit stored is due at once, to be dispatched, and the claim leases it",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				work := x.takeTask(supervisor.IntentTaskDispatch)
				equal(x, "Key", work.Key(), x.intentKey("a", "i"))
				equal(x, "State", work.Intent.State, supervisor.ActionPrepared)
				equal(x, "Attempt", work.Attempt, 0)
				equal(x, "LeaseOwner", work.LeaseOwner, dispatcher)
				if work.LeaseVersion < 1 {
					x.Errorf("LeaseVersion is %d, want one that is positive", work.LeaseVersion)
				}
				x.leaseEnds(work.ClaimedAt, work.LeaseEndsAt, held)
				if off := work.ClaimedAt.Sub(x.now()).Abs(); off > x.slack+patience {
					x.Errorf("ClaimedAt is %v, which is off by %v", work.ClaimedAt, off)
				}
			},
		},
		{
			topic: "intent-claim", name: "nothing-due",
			rule: "ClaimIntents returns at once with none where nothing is due",
			run: func(x *trial) {
				begun := time.Now()
				x.noIntent("there is none")
				if took := time.Since(begun); took > patience/2 {
					x.Errorf("a claim of nothing took %v", took)
				}
			},
		},
		{
			topic: "intent-claim", name: "not-before-the-commit",
			rule: "an intent exists once its command is committed, not before",
			run: func(x *trial) {
				x.add(x.actor("a"), time.Time{})
				item := x.claimOne()
				x.noIntent("nothing was committed")
				x.commitIntents(&item, supervisor.Continue{Delay: far}, x.effect("i"))
				x.takeOne()
			},
		},
		{
			topic: "intent-claim", name: "limit",
			rule: "a claim returns never more than Limit intents, and leases no others",
			run: func(x *trial) {
				x.plan("a", x.effect("i1"), x.effect("i2"), x.effect("i3"))
				seen := map[string]bool{}
				for _, limit := range []int{2, 1} {
					works := x.claimIntents(x.wanted(limit))
					equal(x, "the number of claimed intents", len(works), limit)
					for n := range works {
						seen[works[n].Intent.ID] = true
					}
				}
				equal(x, "the number of different intents", len(seen), 3)
				x.noIntent("all are held")
			},
		},
		{
			topic: "intent-claim", name: "order",
			rule: "the intents of one capability come in order of due time",
			run: func(x *trial) {
				want := []string{"i5", "i3", "i4", "i1", "i2"}
				for _, id := range want {
					x.plan("of "+id, x.effect(id))
					x.sleep(poll)
				}
				got := intentIDs(x.claimIntents(x.wanted(2)))
				for range 3 {
					got = append(got, intentIDs(x.claimIntents(x.wanted(1)))...)
				}
				equalList(x, "the claimed intents", got, want)
			},
		},
		{
			topic: "intent-claim", name: "turns",
			rule: "across the wanted capabilities that have due intents one is taken in turn, so that none starves another",
			run: func(x *trial) {
				for n := range 6 {
					x.plan(fmt.Sprint("a", n), x.effect(fmt.Sprint("flood", n)))
				}
				x.sleep(poll)
				x.plan("b", x.effect("other1", of(x.capability("b"))), x.effect("other2", of(x.capability("b"))))
				equal(x, "the number of intents of the other capability among 4",
					countOf(x.claimIntents(x.wanted(4)), x.capability("b")), 2)
			},
		},
		{
			topic: "intent-claim", name: "turns-over-claims",
			rule: "no capability starves another, also where each claim takes one intent",
			run: func(x *trial) {
				for n := range 8 {
					x.plan(fmt.Sprint("a", n), x.effect(fmt.Sprint("flood", n)))
				}
				x.sleep(poll)
				x.plan("b", x.effect("other", of(x.capability("b"))))
				for range 6 {
					if countOf(x.take(1), x.capability("b")) == 1 {
						return
					}
				}
				x.Errorf("6 claims of one intent each took all from one capability, though another has one that is due")
			},
		},
		{
			topic: "intent-claim", name: "pins",
			rule: "capabilities are wanted by the whole pin: the same id with another version or digest is not claimed",
			run: func(x *trial) {
				x.plan("a", x.effect("i"), x.effect("version", of(x.capability("a version"))), x.effect("digest", of(x.capability("a digest"))))
				for name, id := range map[string]string{"a": "i", "a version": "version", "a digest": "digest"} {
					req := x.wanted(10)
					req.Capabilities = []supervisor.CapabilityPin{x.capability(name)}
					equalList(x, "the intents claimed for one pin", intentIDs(x.claimIntents(req)), []string{id})
				}
			},
		},
		{
			topic: "intent-claim", name: "all-capabilities", alone: true,
			rule: "no capabilities mean all",
			run: func(x *trial) {
				x.plan("a", x.effect("i"), x.effect("other", of(x.capability("b"))))
				req := x.wanted(10)
				req.Capabilities = nil
				equal(x, "the number of claimed intents", len(x.takeAs(2, req)), 2)
			},
		},
		{
			topic: "intent-claim", name: "held-is-not-due",
			rule: "an intent under a lease is not due, marked or not",
			run: func(x *trial) {
				x.plan("a", x.effect("i1"), x.effect("i2"))
				works := x.take(2)
				x.noIntent("both are held")
				x.mark(works[0])
				x.noIntent("both are held, one of them is marked")
			},
		},
		{
			topic: "intent-claim", name: "lapsed-unmarked",
			rule: "an unmarked intent whose lease has ended is due again, to be dispatched, under a higher lease version",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				first := x.takeShort()
				second := x.takeTask(supervisor.IntentTaskDispatch)
				if second.LeaseVersion <= first.LeaseVersion {
					x.Errorf("LeaseVersion is %d after %d, want a higher one", second.LeaseVersion, first.LeaseVersion)
				}
				equal(x, "Attempt", second.Attempt, 0)
			},
		},
		{
			topic: "intent-claim", name: "lapsed-marked",
			rule: "a marked intent without a receipt whose lease has ended is due again, to be recovered",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				marked := x.mark(x.takeShort())
				again := x.takeTask(supervisor.IntentTaskRecover)
				equal(x, "State", again.Intent.State, supervisor.ActionDispatchCommitted)
				equal(x, "Attempt", again.Attempt, 1)
				if !again.MarkedAt.Equal(marked.MarkedAt) {
					x.Errorf("MarkedAt is %v after another claim, want that of the hand-off, %v", again.MarkedAt, marked.MarkedAt)
				}
			},
		},
		{
			topic: "intent-claim", name: "deadline",
			rule: "an intent whose deadline has passed is not handed out: the claim settles it and its instance is told",
			run: func(x *trial) {
				x.plan("a", x.effect("i", until(x.now().Add(-far))))
				x.noIntent("its deadline has passed")
				x.told("a", toldWithdrawn("i", 0, supervisor.CauseDeadline))
				x.inState("a", "i", supervisor.ActionRejected)
				x.noIntent("it is settled")
			},
		},
		{
			topic: "intent-claim", name: "own-progress-voids-nothing",
			rule: "an instance's own claims and commits never void its intents",
			run: func(x *trial) {
				x.planBy(x.actor("a"), supervisor.Continue{}, x.effect("i1"), x.effect("i2"))
				work := x.takeOne()
				item := x.claimOne() // the instance goes on
				work = x.mark(work)
				x.step(&item, `1`, supervisor.Continue{})
				again := x.claimOne()
				second := x.handOff()
				x.step(&again, `2`, supervisor.Continue{Delay: far})
				x.settle(second, success(`1`))
				x.settle(work, success(`2`))
				item = x.woken("a")
				equal(x, "the number of wakeups", len(item.Wakeups), 2)
			},
		},
		{
			topic: "intent-claim", name: "finished-instance",
			rule: "an instance that completes voids none of its intents",
			run: func(x *trial) {
				x.planBy(x.actor("a"), supervisor.Complete{}, x.effect("i"))
				x.handOff()
			},
		},
		{
			topic: "intent-claim", name: "invalid-request",
			rule: "every queue applies IntentClaimRequest.Validate",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				for what, spoil := range map[string]func(*supervisor.IntentClaimRequest){
					"a blank worker":              func(r *supervisor.IntentClaimRequest) { r.WorkerID = " " },
					"a worker with NUL":           func(r *supervisor.IntentClaimRequest) { r.WorkerID = "w\x00" },
					"no lease":                    func(r *supervisor.IntentClaimRequest) { r.LeaseDuration = 0 },
					"a negative lease":            func(r *supervisor.IntentClaimRequest) { r.LeaseDuration = -time.Second },
					"a limit of 0":                func(r *supervisor.IntentClaimRequest) { r.Limit = 0 },
					"a negative limit":            func(r *supervisor.IntentClaimRequest) { r.Limit = -1 },
					"a blank capability":          func(r *supervisor.IntentClaimRequest) { r.Capabilities[0].ID = "" },
					"a capability without digest": func(r *supervisor.IntentClaimRequest) { r.Capabilities[0].ContentDigest = "" },
				} {
					req := x.wanted(1)
					spoil(&req)
					works, err := x.intents.ClaimIntents(x.ctx, req)
					x.wantErr(err, "ClaimIntents with %s", what)
					equal(x, "the number of intents beside the error", len(works), 0)
				}
				x.takeOne()
			},
		},
		{
			topic: "intent-claim", name: "results-belong-to-caller",
			rule: "results belong to the caller, and arguments are not kept",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				req := x.wanted(1)
				work := x.takeAs(1, req)[0]
				for n := range work.Intent.Input {
					work.Intent.Input[n] = 'x'
				}
				for n := range req.Capabilities {
					req.Capabilities[n] = supervisor.CapabilityPin{}
				}
				marked := x.mark(work)
				x.equalJSON("Input", marked.Intent.Input, `{"amount":1}`)
				output := []byte(`{"charged":true}`)
				s := success("")
				s.Output = output
				x.settle(marked, s)
				copy(output, `{"changed":1234}`)
				x.told("a", toldSuccess("i", `{"charged":true}`))
			},
		},
	}
}

func countOf(works []supervisor.IntentWork, pin supervisor.CapabilityPin) (count int) {
	for n := range works {
		if works[n].Intent.Capability == pin {
			count++
		}
	}
	return count
}

func intentRepeatableCases() []testCase {
	return []testCase{
		{
			topic: "intent-claim", name: "mark-repeatable",
			rule: "with MarkRepeatable intents that may be repeated are also marked, as by MarkIntent, and no others",
			run: func(x *trial) {
				pure := x.effect("pure", func(i *supervisor.ActionIntent) { i.Effect = supervisor.EffectPure })
				x.plan("a", pure, x.effect("read", reading), x.effect("native", native),
					x.effect("none"),
					x.effect("reconcile", func(i *supervisor.ActionIntent) { i.RetryClass = supervisor.IdempotencyReconcileBeforeRetry }),
					x.effect("never", func(i *supervisor.ActionIntent) { i.RetryClass = supervisor.IdempotencyNeverAutomaticRetry }))
				req := x.wanted(6)
				req.MarkRepeatable = true
				for _, work := range x.takeAs(6, req) {
					id := work.Intent.ID
					equal(x, "Task of "+id, work.Task, supervisor.IntentTaskDispatch)
					state, attempt := supervisor.ActionPrepared, 0
					if work.Repeatable() {
						state, attempt = supervisor.ActionDispatchCommitted, 1
						equal(x, "MarkedUnder of "+id, work.MarkedUnder, work.LeaseVersion)
						if off := work.MarkedAt.Sub(work.ClaimedAt).Abs(); off > time.Second {
							x.Errorf("MarkedAt of %s is %v, want the time of the claim, %v", id, work.MarkedAt, work.ClaimedAt)
						}
					}
					equal(x, "State of "+id, work.Intent.State, state)
					equal(x, "Attempt of "+id, work.Attempt, attempt)
					x.inState("a", id, state)
					// Marking what is marked gives the same answer.
					equal(x, "Attempt of "+id+" after MarkIntent", x.mark(work).Attempt, 1)
				}
			},
		},
		{
			topic: "intent-claim", name: "mark-only-when-asked",
			rule: "without MarkRepeatable a claim marks nothing",
			run: func(x *trial) {
				x.plan("a", x.effect("native", native), x.effect("read", reading))
				for _, work := range x.take(2) {
					equal(x, "State of "+work.Intent.ID, work.Intent.State, supervisor.ActionPrepared)
					equal(x, "Attempt of "+work.Intent.ID, work.Attempt, 0)
				}
			},
		},
		{
			topic: "intent-claim", name: "mark-recovers-nothing",
			rule: "MarkRepeatable marks what is to be dispatched: an attempt that was marked before is handed out to be recovered, unchanged",
			run: func(x *trial) {
				x.plan("a", x.effect("native", native))
				x.mark(x.takeShort())
				req := x.wanted(1)
				req.MarkRepeatable = true
				work := x.takeAs(1, req)[0]
				equal(x, "Task", work.Task, supervisor.IntentTaskRecover)
				equal(x, "Attempt", work.Attempt, 1)
				_, err := x.intents.MarkIntent(x.ctx, &work)
				x.want(err, supervisor.ErrStateConflict, "MarkIntent of an attempt that another lease marked")
				// The way to another attempt is a settlement.
				x.settle(work, unproven())
				work = x.takeAs(1, req)[0]
				equal(x, "Task", work.Task, supervisor.IntentTaskDispatch)
				equal(x, "Attempt", work.Attempt, 2)
			},
		},
	}
}

// unproven makes an intent that may be repeated anyway retryable at once.
func unproven() supervisor.Settlement {
	return supervisor.Settlement{State: supervisor.ActionRetryable}
}
