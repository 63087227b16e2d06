package queuetest

import (
	"encoding/json"

	"github.com/workflow-supervisor/supervisor"
)

// intentAmbiguousCases prove that nothing ends as if it had not happened while an
// earlier attempt may have had an effect.
func intentAmbiguousCases() []testCase {
	// doubt leaves an intent that waits for a repeat which is safe, though nobody
	// knows what became of the first attempt.
	doubt := func(x *trial, id string) {
		x.Helper()
		x.plan(id, x.effect("i", native, scoped("r")))
		s := unproven()
		s.Delay = far
		x.settle(x.handOff(), s)
		x.noIntent("the repeat is an hour away")
	}
	return []testCase{
		{
			topic: "intent-ambiguous", name: "cancelled", needs: instances,
			rule: "an effect that an earlier attempt may have had is never called withdrawn by Cancel: it is in flight until somebody finds out",
			run: func(x *trial) {
				doubt(x, "a")
				x.cancel("a")
				item := x.woken("a")
				x.tells(&item)
				x.step(&item, `1`, supervisor.Continue{Delay: far})
				work := x.takeTask(supervisor.IntentTaskRecover)
				if work.CancelRequestedAt.IsZero() {
					x.Errorf("CancelRequestedAt is zero after Cancel")
				}
				x.settle(work, success(`1`))
				x.told("a", toldSuccess("i", `1`))
			},
		},
		{
			topic: "intent-ambiguous", name: "stale", needs: instances,
			rule: "nor by a pause: under stale epochs it is not sent again, but recovered",
			run: func(x *trial) {
				doubt(x, "a")
				resource := supervisor.Scope{TenantID: x.tenant, ResourceID: "r"}
				x.pause(resource)
				x.resume(resource)
				work := x.takeTask(supervisor.IntentTaskRecover)
				x.idle("nobody knows its outcome yet")
				x.settle(work, ambiguous())
				x.told("a", toldUnknown("i", 1))
			},
		},
		{
			topic: "intent-ambiguous", name: "late-receipt",
			rule: "while it waits for its repeat, the receipt of the earlier attempt is taken",
			run: func(x *trial) {
				x.plan("a", x.effect("i", native))
				work := x.handOff()
				s := unproven()
				s.Delay = far
				x.settle(work, s)
				x.accept(work, ended(supervisor.ProviderSucceeded, `1`))
				x.settle(x.takeTask(supervisor.IntentTaskObserve), success(`1`))
				x.told("a", toldSuccess("i", `1`))
			},
		},
		{
			topic: "intent-ambiguous", name: "no-repeat-after-cancel", needs: instances | intentOperator,
			rule: "after Cancel an operator's repeat of an unknown outcome sends nothing: it settles",
			run: func(x *trial) {
				x.lose("a")
				x.cancel("a")
				x.check(x.operator.ResolveIntent(x.ctx, x.intentKey("a", "i"), "alice", supervisor.IntentResolution{Kind: supervisor.ResolveRepeat}), "ResolveIntent")
				x.noIntent("its instance was cancelled")
				x.stands("a", "i", func(r *supervisor.IntentRecord) {
					equal(x, "State", r.Intent.State, supervisor.ActionReconciled)
					equal(x, "Outcome", r.Outcome, supervisor.OutcomeFailed)
					equal(x, "Cause", r.Cause, supervisor.CauseCancelled)
				})
			},
		},
		{
			topic: "intent-ambiguous", name: "against-the-receipt",
			rule: "what a terminal receipt says is settled, and nothing else: another outcome is evidence and ErrReceiptConflict",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				x.accept(x.handOff(), ended(supervisor.ProviderSucceeded, `1`))
				work := x.takeTask(supervisor.IntentTaskObserve)
				failed := failure("no")
				failed.Proof = supervisor.ProofReported
				other := success("")
				other.Output = json.RawMessage(`2`)
				for _, s := range []supervisor.Settlement{failed, other} {
					x.want(x.intents.SettleIntent(x.ctx, &work, s), supervisor.ErrReceiptConflict, "SettleIntent as %s against the receipt", s.State)
				}
				x.idle("nothing was settled")
				x.settle(work, success(`1`))
				x.told("a", toldSuccess("i", `1`))
			},
		},
	}
}
