package queuetest

import (
	"errors"

	"github.com/workflow-supervisor/supervisor"
)

// intentStep is a call that is one transaction: prepared, made while a write
// fails, repeated, and then looked at.
type intentStep struct {
	// prepare returns the call; id names the instance.
	prepare func(id string) (call func() error)
	// repeated lists errors of the repeated call that say that the first one was
	// applied.
	repeated []error
	// told is what the instance is told once the call was applied, nil for
	// nothing.
	told []supervisor.ActionResult
	// check looks at what else has to hold.
	check func(id string)
}

// allOrNothing makes a call while each of its writes fails in turn.
func (x *trial) allOrNothing(name string, step intentStep) {
	x.Helper()
	x.failingAt(func(n int, id string) error {
		call := step.prepare(id)
		before, pending := x.intentView(id, "i"), x.pending(id)
		disarm := x.FailWrite(n)
		err := call()
		reached := disarm()
		if reached && err != nil && !isOneOf(err, step.repeated) {
			x.failedCleanly(err, name)
			if !errors.Is(err, supervisor.ErrCommitUnknown) {
				x.sameIntent(id, "i", before, "%s that failed at write %d", name, n)
				equal(x, "PendingWakeups after a failed "+name, x.pending(id), pending)
			}
		}
		if !reached && !isOneOf(err, step.repeated) {
			x.check(err, "%s whose write %d was never reached", name, n)
		}
		if err := call(); !isOneOf(err, step.repeated) {
			x.check(err, "repeated %s", name)
		}
		if step.told != nil {
			x.told(id, step.told...)
		}
		x.idle("the instance was told once")
		if step.check != nil {
			step.check(id)
		}
		if !reached {
			return errNotReached
		}
		return nil
	})
}

func isOneOf(err error, list []error) bool {
	for _, one := range list {
		if errors.Is(err, one) {
			return true
		}
	}
	return false
}

// pending counts the wakeups of an instance, where the queue shows them.
func (x *trial) pending(id string) int {
	x.Helper()
	if x.Instances == nil {
		return 0
	}
	s, err := x.Instances.Get(x.ctx, x.tenant, id)
	if errors.Is(err, errors.ErrUnsupported) {
		return 0
	}
	x.check(err, "Get %q", id)
	return s.PendingWakeups
}

func intentAtomicityCases() []testCase {
	cases := []testCase{
		{
			topic: "intent-atomicity", name: "settle",
			rule: "a settlement and the wakeup that tells of it are one transaction: a store that fails at any write leaves all or nothing",
			run: func(x *trial) {
				x.allOrNothing("SettleIntent", intentStep{
					prepare: func(id string) func() error {
						x.plan(id, x.effect("i"))
						work := x.handOff()
						receipt := ended(supervisor.ProviderSucceeded, `1`)
						s := success(`1`)
						s.Receipt = &receipt
						return func() error { return x.intents.SettleIntent(x.ctx, &work, s) }
					},
					told:  []supervisor.ActionResult{toldSuccess("i", `1`)},
					check: func(id string) { x.inState(id, "i", supervisor.ActionSucceeded) },
				})
			},
		},
		{
			topic: "intent-atomicity", name: "unknown",
			rule: "an outcome that becomes unknown is stored and told in one transaction",
			run: func(x *trial) {
				x.allOrNothing("SettleIntent", intentStep{
					prepare: func(id string) func() error {
						x.plan(id, x.effect("i"))
						work := x.handOff()
						return func() error { return x.intents.SettleIntent(x.ctx, &work, ambiguous()) }
					},
					repeated: []error{supervisor.ErrLeaseLost},
					told:     []supervisor.ActionResult{toldUnknown("i", 1)},
				})
			},
		},
		{
			topic: "intent-atomicity", name: "mark",
			rule: "a mark is one transaction: after a failed one nothing is marked, or the repeated one gives the same answer",
			run: func(x *trial) {
				x.allOrNothing("MarkIntent", intentStep{
					prepare: func(id string) func() error {
						x.plan(id, x.effect("i"))
						work := x.takeOne()
						return func() error {
							_, err := x.intents.MarkIntent(x.ctx, &work)
							return err
						}
					},
					check: func(id string) {
						x.stands(id, "i", func(r *supervisor.IntentRecord) {
							equal(x, "State", r.Intent.State, supervisor.ActionDispatchCommitted)
							equal(x, "Attempt", r.Attempt, 1)
						})
					},
				})
			},
		},
		{
			topic: "intent-atomicity", name: "refused-mark", needs: instances,
			rule: "what follows from a refused mark is stored in one transaction with its wakeup",
			run: func(x *trial) {
				x.allOrNothing("MarkIntent", intentStep{
					prepare: func(id string) func() error {
						x.plan(id, x.effect("i"))
						work := x.takeOne()
						scope := supervisor.Scope{TenantID: x.tenant, InstanceID: id}
						x.pause(scope)
						x.resume(scope)
						return func() error {
							_, err := x.intents.MarkIntent(x.ctx, &work)
							return err
						}
					},
					repeated: []error{supervisor.ErrIntentRefused, supervisor.ErrLeaseLost},
					told:     []supervisor.ActionResult{toldWithdrawn("i", 0, supervisor.CauseStaleEpoch)},
				})
			},
		},
		{
			topic: "intent-atomicity", name: "claim",
			rule: "what a claim settles it settles in one transaction with the wakeup; a failed claim leases nothing for longer than the lease",
			run: func(x *trial) {
				x.allOrNothing("ClaimIntents", intentStep{
					prepare: func(id string) func() error {
						x.plan(id, x.effect("i", until(x.now().Add(-far))), x.effect("j"))
						return func() error {
							req := x.wanted(2)
							req.LeaseDuration = x.Lease
							_, err := x.intents.ClaimIntents(x.ctx, req)
							return err
						}
					},
					told: []supervisor.ActionResult{toldWithdrawn("i", 0, supervisor.CauseDeadline)},
					check: func(id string) {
						work := x.takeOne()
						equal(x, "the intent that is left", work.Intent.InstanceID+"/"+work.Intent.ID, id+"/j")
						x.mark(work)
					},
				})
			},
		},
		{
			topic: "intent-atomicity", name: "receipt",
			rule: "a receipt is stored in one transaction",
			run: func(x *trial) {
				x.allOrNothing("RecordReceipt", intentStep{
					prepare: func(id string) func() error {
						x.plan(id, x.effect("i"))
						work := x.handOff()
						return func() error { return x.intents.RecordReceipt(x.ctx, &work, running(far)) }
					},
					check: func(id string) { x.inState(id, "i", supervisor.ActionExecuting) },
				})
			},
		},
		{
			topic: "intent-atomicity", name: "cancel", needs: instances,
			rule: "Cancel and what it does to intents are one transaction",
			run: func(x *trial) {
				x.failingAt(func(n int, id string) error {
					x.plan(id, x.effect("i"), x.effect("j"))
					marked := x.handOff()
					other := map[string]string{"i": "j", "j": "i"}[marked.Intent.ID]
					before := [2]string{x.intentView(id, "i"), x.intentView(id, "j")}
					disarm := x.FailWrite(n)
					err := x.Instances.Cancel(x.ctx, x.tenant, id)
					reached := disarm()
					if reached {
						x.failedCleanly(err, "Cancel")
						if err != nil && !errors.Is(err, supervisor.ErrCommitUnknown) {
							equal(x, "CancelRequested after a failed Cancel", x.get(id).CancelRequested, false)
							x.sameIntent(id, "i", before[0], "a failed Cancel")
							x.sameIntent(id, "j", before[1], "a failed Cancel")
						}
					} else {
						x.check(err, "Cancel whose write %d was never reached", n)
					}
					x.cancel(id)
					x.stands(id, marked.Intent.ID, func(r *supervisor.IntentRecord) {
						equal(x, "whether a cancellation of the marked one is asked for", r.CancelRequestedAt.IsZero(), false)
					})
					x.told(id, toldWithdrawn(other, 0, supervisor.CauseCancelled))
					if !reached {
						return errNotReached
					}
					return nil
				})
			},
		},
		{
			topic: "intent-atomicity", name: "operators", needs: intentOperator,
			rule: "ConfirmIntent, RejectIntent and ResolveIntent are one transaction each: what failed can be repeated and is applied once",
			run: func(x *trial) {
				x.allOrNothing("ConfirmIntent", intentStep{
					prepare: func(id string) func() error {
						x.plan(id, x.effect("i", confirmed))
						return func() error { return x.operator.ConfirmIntent(x.ctx, x.intentKey(id, "i"), "alice") }
					},
					check: func(string) { x.handOff() },
				})
				denied := toldWithdrawn("i", 0, supervisor.CauseDenied)
				denied.Reason = "no"
				x.tenant += " second"
				x.allOrNothing("RejectIntent", intentStep{
					prepare: func(id string) func() error {
						x.plan(id, x.effect("i", confirmed))
						return func() error { return x.operator.RejectIntent(x.ctx, x.intentKey(id, "i"), "alice", "no") }
					},
					told: []supervisor.ActionResult{denied},
				})
				x.tenant += " third"
				x.allOrNothing("ResolveIntent", intentStep{
					prepare: func(id string) func() error {
						x.lose(id)
						answer := supervisor.IntentResolution{Kind: supervisor.ResolveFailed, Reason: "no"}
						return func() error { return x.operator.ResolveIntent(x.ctx, x.intentKey(id, "i"), "alice", answer) }
					},
					told: []supervisor.ActionResult{{
						IntentID: "i", State: supervisor.ActionReconciled, Outcome: supervisor.OutcomeFailed, Cause: supervisor.CauseResolved,
						Attempt: 1, Reason: "no",
					}},
				})
			},
		},
		{
			topic: "intent-atomicity", name: "slots", needs: intentOperator,
			rule: "slots are counted in the transaction that marks or settles: failed ones neither take nor free any",
			run: func(x *trial) {
				x.limit("", "a", 1)
				x.failingAt(func(n int, id string) error {
					x.plan(id, x.effect("i"))
					work := x.takeOne()
					disarm := x.FailWrite(n)
					_, err := x.intents.MarkIntent(x.ctx, &work)
					marks := disarm()
					x.failedCleanly(err, "MarkIntent")
					work = x.mark(work)
					x.plan(id+" next", x.effect("next"))
					x.noIntent("no slot is free")
					disarm = x.FailWrite(n)
					err = x.intents.SettleIntent(x.ctx, &work, success(`1`))
					settles := disarm()
					x.failedCleanly(err, "SettleIntent")
					if err != nil && !errors.Is(err, supervisor.ErrCommitUnknown) {
						x.noIntent("the settlement failed, so that no slot is free")
					}
					x.settle(work, success(`1`))
					next := x.handOff()
					equal(x, "the intent that gets the slot", next.Intent.InstanceID, id+" next")
					x.settle(next, success(`1`))
					if !marks && !settles {
						return errNotReached
					}
					return nil
				})
			},
		},
	}
	for n := range cases {
		cases[n].needs |= failWrite
		cases[n].alone = true
	}
	return cases
}
