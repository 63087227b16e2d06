package queuetest

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/workflow-supervisor/supervisor"
)

func intentConfirmCases() []testCase {
	return needing(intentOperator, []testCase{
		{
			topic: "intent-confirm", name: "awaits",
			rule: "an intent that requires confirmation is stored as awaiting it and not handed out before",
			run: func(x *trial) {
				x.plan("a", x.effect("i", confirmed))
				x.noIntent("it awaits confirmation")
				x.inState("a", "i", supervisor.ActionAwaitingConfirmation)
				x.idle("it has no outcome")
			},
		},
		{
			topic: "intent-confirm", name: "confirms",
			rule: "ConfirmIntent authorizes the intent, records who did and when, and makes it due",
			run: func(x *trial) {
				x.plan("a", x.effect("i", confirmed))
				x.confirm("a", "i", "alice")
				work := x.takeTask(supervisor.IntentTaskDispatch)
				equal(x, "State", work.Intent.State, supervisor.ActionAuthorized)
				if work.Intent.Confirmation == nil || work.Intent.Confirmation.By != "alice" {
					x.Fatalf("Confirmation is %+v, want that by alice", work.Intent.Confirmation)
				}
				if off := work.Intent.Confirmation.At.Sub(x.now()).Abs(); off > x.slack+patience {
					x.Errorf("At of the confirmation is off by %v", off)
				}
				equal(x, "Attempt", x.mark(work).Attempt, 1)
			},
		},
		{
			topic: "intent-confirm", name: "repeated",
			rule: "confirming again is nil and changes nothing; rejecting what was confirmed is ErrIntentConflict",
			run: func(x *trial) {
				x.plan("a", x.effect("i", confirmed))
				x.confirm("a", "i", "alice")
				before := x.intentView("a", "i")
				x.confirm("a", "i", "alice")
				x.confirm("a", "i", "bob")
				x.want(x.operator.RejectIntent(x.ctx, x.intentKey("a", "i"), "bob", "no"), supervisor.ErrIntentConflict, "RejectIntent after the confirmation")
				x.sameIntent("a", "i", before, "repeated answers")
				x.settle(x.handOff(), success(`1`))
				x.confirm("a", "i", "alice")
				x.want(x.operator.RejectIntent(x.ctx, x.intentKey("a", "i"), "bob", "no"), supervisor.ErrIntentConflict, "RejectIntent after the settlement")
				x.told("a", toldSuccess("i", `1`))
			},
		},
		{
			topic: "intent-confirm", name: "rejects",
			rule: "RejectIntent settles the intent with a reason for its instance; again is nil; confirming it then is ErrIntentConflict",
			run: func(x *trial) {
				x.plan("a", x.effect("i", confirmed))
				key := x.intentKey("a", "i")
				x.check(x.operator.RejectIntent(x.ctx, key, "alice", "too much"), "RejectIntent")
				before := x.intentView("a", "i")
				x.check(x.operator.RejectIntent(x.ctx, key, "alice", "too much"), "RejectIntent again")
				x.check(x.operator.RejectIntent(x.ctx, key, "bob", "for another reason"), "RejectIntent again")
				x.want(x.operator.ConfirmIntent(x.ctx, key, "bob"), supervisor.ErrIntentConflict, "ConfirmIntent after the rejection")
				x.sameIntent("a", "i", before, "repeated answers")
				result := toldWithdrawn("i", 0, supervisor.CauseDenied)
				result.Reason = "too much"
				x.told("a", result)
				x.noIntent("it was rejected")
				x.idle("it was told once")
				x.stands("a", "i", func(r *supervisor.IntentRecord) {
					if r.Intent.Confirmation == nil || r.Intent.Confirmation.By != "alice" {
						x.Errorf("Confirmation is %+v, want the decision of alice", r.Intent.Confirmation)
					}
				})
			},
		},
		{
			topic: "intent-confirm", name: "never-awaited",
			rule: "an answer for an intent that never awaited one is ErrIntentConflict",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				before := x.intentView("a", "i")
				x.want(x.operator.ConfirmIntent(x.ctx, x.intentKey("a", "i"), "alice"), supervisor.ErrIntentConflict, "ConfirmIntent of a prepared intent")
				x.want(x.operator.RejectIntent(x.ctx, x.intentKey("a", "i"), "alice", "no"), supervisor.ErrIntentConflict, "RejectIntent of a prepared intent")
				x.sameIntent("a", "i", before, "answers that nobody waits for")
				x.handOff()
			},
		},
		{
			topic: "intent-confirm", name: "deadline",
			rule: "the deadline of an intent that awaits confirmation settles it; confirming it then is ErrIntentConflict",
			run: func(x *trial) {
				deadline := x.soon()
				x.plan("a", x.effect("i", confirmed, until(deadline)))
				x.passes(deadline)
				x.noIntent("its deadline has passed")
				x.told("a", toldWithdrawn("i", 0, supervisor.CauseDeadline))
				x.want(x.operator.ConfirmIntent(x.ctx, x.intentKey("a", "i"), "alice"), supervisor.ErrIntentConflict, "ConfirmIntent after the deadline")
			},
		},
		{
			topic: "intent-confirm", name: "paused", needs: instances,
			rule: "an intent that awaits confirmation goes stale by a pause like any other that waits for a hand-off",
			run: func(x *trial) {
				x.plan("a", x.effect("i1", confirmed))
				x.plan("b", x.effect("i2", confirmed))
				tenant := supervisor.Scope{TenantID: x.tenant}
				x.pause(tenant)
				x.confirm("b", "i2", "alice")
				x.noIntent("the tenant is paused")
				x.resume(tenant)
				x.noIntent("the pause came after the intents")
				x.told("a", toldWithdrawn("i1", 0, supervisor.CauseStaleEpoch))
				x.told("b", toldWithdrawn("i2", 0, supervisor.CauseStaleEpoch))
				x.want(x.operator.ConfirmIntent(x.ctx, x.intentKey("a", "i1"), "alice"), supervisor.ErrIntentConflict, "ConfirmIntent of what was settled")
			},
		},
		{
			topic: "intent-confirm", name: "unknown",
			rule: "an unknown intent, also one of another tenant, is ErrNotFound; a blank name is refused",
			run: func(x *trial) {
				x.plan("a", x.effect("i", confirmed))
				before := x.intentView("a", "i")
				for _, key := range []supervisor.IntentKey{
					x.intentKey("a", "unknown"), x.intentKey("unknown", "i"), {TenantID: x.tenant + " other", InstanceID: "a", IntentID: "i"},
				} {
					x.want(x.operator.ConfirmIntent(x.ctx, key, "alice"), supervisor.ErrNotFound, "ConfirmIntent of %+v", key)
					x.want(x.operator.RejectIntent(x.ctx, key, "alice", "no"), supervisor.ErrNotFound, "RejectIntent of %+v", key)
				}
				for _, by := range []string{"", " ", "a\x00", "\xff"} {
					x.wantErr(x.operator.ConfirmIntent(x.ctx, x.intentKey("a", "i"), by), "ConfirmIntent by %q", by)
					x.wantErr(x.operator.RejectIntent(x.ctx, x.intentKey("a", "i"), by, "no"), "RejectIntent by %q", by)
				}
				x.sameIntent("a", "i", before, "refused answers")
			},
		},
	})
}

func (x *trial) confirm(instance, intent, by string) {
	x.Helper()
	x.check(x.operator.ConfirmIntent(x.ctx, x.intentKey(instance, intent), by), "ConfirmIntent of %q", intent)
}

// lose plans an intent whose outcome becomes unknown.
func (x *trial) lose(id string) supervisor.IntentWork {
	x.Helper()
	x.plan(id, x.effect("i"))
	work := x.handOff()
	x.settle(work, ambiguous())
	x.told(id, toldUnknown("i", 1))
	return work
}

func intentResolveCases() []testCase {
	type resolution = supervisor.IntentResolution
	succeeded := resolution{Kind: supervisor.ResolveSucceeded, Output: json.RawMessage(`{"found":1}`)}
	failed := resolution{Kind: supervisor.ResolveFailed, Reason: "never arrived"}
	repeat := resolution{Kind: supervisor.ResolveRepeat}
	return needing(intentOperator, []testCase{
		{
			topic: "intent-resolve", name: "succeeded",
			rule: "an operator may say that it succeeded: it is reconciled, and a second wakeup tells the instance",
			run: func(x *trial) {
				x.lose("a")
				x.check(x.operator.ResolveIntent(x.ctx, x.intentKey("a", "i"), "alice", succeeded), "ResolveIntent")
				x.told("a", supervisor.ActionResult{
					IntentID: "i", State: supervisor.ActionReconciled, Outcome: supervisor.OutcomeSucceeded, Cause: supervisor.CauseResolved,
					Attempt: 1, Output: succeeded.Output,
				})
				x.stands("a", "i", func(r *supervisor.IntentRecord) {
					if r.Resolved == nil || r.Resolved.By != "alice" || r.Resolved.Kind != supervisor.ResolveSucceeded {
						x.Errorf("Resolved is %+v, want the answer of alice", r.Resolved)
					}
				})
			},
		},
		{
			topic: "intent-resolve", name: "failed",
			rule: "an operator may say that it failed, with a reason for the instance",
			run: func(x *trial) {
				x.lose("a")
				x.check(x.operator.ResolveIntent(x.ctx, x.intentKey("a", "i"), "alice", failed), "ResolveIntent")
				x.told("a", supervisor.ActionResult{
					IntentID: "i", State: supervisor.ActionReconciled, Outcome: supervisor.OutcomeFailed, Cause: supervisor.CauseResolved,
					Attempt: 1, Reason: "never arrived",
				})
				x.noIntent("it is settled")
			},
		},
		{
			topic: "intent-resolve", name: "repeat",
			rule: "an operator may allow a repeat: the intent is due for another attempt",
			run: func(x *trial) {
				x.lose("a")
				x.check(x.operator.ResolveIntent(x.ctx, x.intentKey("a", "i"), "alice", repeat), "ResolveIntent")
				x.idle("a repeat is no outcome")
				work := x.handOff()
				equal(x, "Attempt", work.Attempt, 2)
				x.settle(work, ambiguous())
				x.told("a", toldUnknown("i", 2)) // another wakeup than that of the first attempt
				x.check(x.operator.ResolveIntent(x.ctx, x.intentKey("a", "i"), "alice", failed), "ResolveIntent of the second attempt")
			},
		},
		{
			topic: "intent-resolve", name: "repeated",
			rule: "the same answer again is nil and changes nothing; another one is ErrIntentConflict",
			run: func(x *trial) {
				for n, answers := range [][3]resolution{
					{succeeded, failed, {Kind: supervisor.ResolveSucceeded, Output: json.RawMessage(`2`)}},
					{failed, succeeded, {Kind: supervisor.ResolveFailed, Reason: "another"}},
					{repeat, succeeded, failed},
				} {
					id := fmt.Sprint("a", n)
					x.lose(id)
					key := x.intentKey(id, "i")
					x.check(x.operator.ResolveIntent(x.ctx, key, "alice", answers[0]), "ResolveIntent")
					before := x.intentView(id, "i")
					x.check(x.operator.ResolveIntent(x.ctx, key, "alice", answers[0]), "ResolveIntent again")
					x.check(x.operator.ResolveIntent(x.ctx, key, "bob", answers[0]), "ResolveIntent again by another")
					for _, other := range answers[1:] {
						x.want(x.operator.ResolveIntent(x.ctx, key, "alice", other), supervisor.ErrIntentConflict, "ResolveIntent as %s after %s", other.Kind, answers[0].Kind)
					}
					x.sameIntent(id, "i", before, "repeated answers")
				}
			},
		},
		{
			topic: "intent-resolve", name: "attempt",
			rule: "an answer that is about another attempt than the latest is ErrIntentConflict",
			run: func(x *trial) {
				x.lose("a")
				key := x.intentKey("a", "i")
				for _, attempt := range []int{2, -1, 7} {
					wrong := failed
					wrong.Attempt = attempt
					x.want(x.operator.ResolveIntent(x.ctx, key, "alice", wrong), supervisor.ErrIntentConflict, "ResolveIntent of attempt %d", attempt)
				}
				right := repeat
				right.Attempt = 1
				x.check(x.operator.ResolveIntent(x.ctx, key, "alice", right), "ResolveIntent of attempt 1")
				work := x.handOff()
				x.check(x.operator.ResolveIntent(x.ctx, key, "alice", right), "ResolveIntent of attempt 1 again, after the next mark")
				x.settle(work, ambiguous())
				x.check(x.operator.ResolveIntent(x.ctx, key, "alice", right), "ResolveIntent of attempt 1 again, when the second is unknown")
				x.noIntent("the answer for the first attempt allows no third one")
			},
		},
		{
			topic: "intent-resolve", name: "not-unknown",
			rule: "resolving an intent that is not unknown is ErrIntentConflict",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				key := x.intentKey("a", "i")
				refused := func(state supervisor.ActionState) {
					before := x.intentView("a", "i")
					for _, answer := range []resolution{succeeded, failed, repeat} {
						x.want(x.operator.ResolveIntent(x.ctx, key, "alice", answer), supervisor.ErrIntentConflict, "ResolveIntent as %s in state %s", answer.Kind, state)
					}
					x.sameIntent("a", "i", before, "answers for state %s", state)
				}
				refused(supervisor.ActionPrepared)
				work := x.handOff()
				refused(supervisor.ActionDispatchCommitted)
				x.accept(work, running(0))
				refused(supervisor.ActionExecuting)
				x.settle(x.takeOne(), success(`1`))
				refused(supervisor.ActionSucceeded)
				x.told("a", toldSuccess("i", `1`))
			},
		},
		{
			topic: "intent-resolve", name: "contradicted-by-a-receipt",
			rule: "a receipt that contradicts an operator's answer is kept as evidence; the answer stays",
			run: func(x *trial) {
				work := x.lose("a")
				x.check(x.operator.ResolveIntent(x.ctx, x.intentKey("a", "i"), "alice", failed), "ResolveIntent")
				x.want(x.intents.RecordReceipt(x.ctx, &work, ended(supervisor.ProviderSucceeded, `1`)), supervisor.ErrReceiptConflict, "RecordReceipt after the answer")
				x.stands("a", "i", func(r *supervisor.IntentRecord) {
					equal(x, "Outcome", r.Outcome, supervisor.OutcomeFailed)
					equal(x, "the number of contradictions", len(r.Evidence), 1)
				})
			},
		},
		{
			topic: "intent-resolve", name: "unknown-intent",
			rule: "an unknown intent, also one of another tenant, is ErrNotFound; an invalid answer is refused",
			run: func(x *trial) {
				x.lose("a")
				before := x.intentView("a", "i")
				for _, key := range []supervisor.IntentKey{
					x.intentKey("a", "unknown"), x.intentKey("unknown", "i"), {TenantID: x.tenant + " other", InstanceID: "a", IntentID: "i"},
				} {
					x.want(x.operator.ResolveIntent(x.ctx, key, "alice", failed), supervisor.ErrNotFound, "ResolveIntent of %+v", key)
				}
				for what, answer := range map[string]resolution{
					"no kind": {}, "an unknown kind": {Kind: "perhaps"},
					"a failure with output": {Kind: supervisor.ResolveFailed, Output: json.RawMessage(`1`)},
					"broken output":         {Kind: supervisor.ResolveSucceeded, Output: json.RawMessage(`{`)},
				} {
					x.wantErr(x.operator.ResolveIntent(x.ctx, x.intentKey("a", "i"), "alice", answer), "ResolveIntent with %s", what)
				}
				x.wantErr(x.operator.ResolveIntent(x.ctx, x.intentKey("a", "i"), "", failed), "ResolveIntent by nobody")
				x.sameIntent("a", "i", before, "refused answers")
			},
		},
	})
}

func intentListCases() []testCase {
	return needing(intentOperator, []testCase{
		{
			topic: "intent-list", name: "filters",
			rule: "ListIntents yields what the filter selects, in order of tenant, instance and id",
			run: func(x *trial) {
				x.plan("b", x.effect("i2"), x.effect("i1", confirmed))
				x.plan("a", x.effect("i3", of(x.capability("b"))), x.effect("i9", of(x.capability("b"))), x.effect("i10", of(x.capability("a version"))))
				other := x.actor("a")
				other.TenantID += " other"
				x.planBy(other, supervisor.Continue{Delay: far}, x.effect("i1"))
				for _, list := range []struct {
					filter supervisor.IntentFilter
					want   []string
				}{
					{supervisor.IntentFilter{TenantID: x.tenant}, []string{"a/i10", "a/i3", "a/i9", "b/i1", "b/i2"}},
					{supervisor.IntentFilter{TenantID: other.TenantID}, []string{"a/i1"}},
					{supervisor.IntentFilter{TenantID: x.tenant, InstanceID: "b"}, []string{"b/i1", "b/i2"}},
					{supervisor.IntentFilter{CapabilityID: x.capability("b").ID}, []string{"a/i3", "a/i9"}},
					{supervisor.IntentFilter{CapabilityID: x.capability("a").ID}, []string{"a/i10", "b/i1", "b/i2", "a/i1"}},
					{supervisor.IntentFilter{TenantID: x.tenant, State: supervisor.ActionAwaitingConfirmation}, []string{"b/i1"}},
					{supervisor.IntentFilter{TenantID: x.tenant, State: supervisor.ActionPrepared, InstanceID: "b"}, []string{"b/i2"}},
					{supervisor.IntentFilter{TenantID: x.tenant, InstanceID: "unknown"}, nil},
					{supervisor.IntentFilter{TenantID: x.tenant, State: supervisor.ActionSucceeded}, nil},
				} {
					var got []string
					for _, r := range x.listed(list.filter) {
						got = append(got, r.Intent.InstanceID+"/"+r.Intent.ID)
					}
					equalList(x, fmt.Sprintf("the list for %+v", list.filter), got, list.want)
				}
			},
		},
		{
			topic: "intent-list", name: "state-follows",
			rule: "the state by which ListIntents selects is the present one",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				listed := func(state supervisor.ActionState) {
					x.Helper()
					list := x.listed(supervisor.IntentFilter{TenantID: x.tenant, State: state})
					if len(list) != 1 || list[0].Intent.State != state {
						x.Errorf("the list of intents that are %s is %+v, want the one", state, list)
					}
				}
				listed(supervisor.ActionPrepared)
				work := x.handOff()
				listed(supervisor.ActionDispatchCommitted)
				x.accept(work, running(0))
				listed(supervisor.ActionExecuting)
				again := retryIn(0)
				again.Proof = supervisor.ProofReported // it was accepted, so it was sent
				x.settle(x.takeOne(), again)
				listed(supervisor.ActionRetryable)
				work = x.handOff()
				x.settle(work, ambiguous())
				listed(supervisor.ActionUnknown)
				x.accept(work, ended(supervisor.ProviderSucceeded, `1`))
				listed(supervisor.ActionReconciled)
			},
		},
		{
			topic: "intent-list", name: "pages",
			rule: "ListIntents yields every intent once, however many there are",
			run: func(x *trial) {
				const count = 330
				for n := range 3 {
					var intents []supervisor.ActionIntent
					for i := range count / 3 {
						intents = append(intents, x.effect(fmt.Sprintf("i%03d", i)))
					}
					x.plan(fmt.Sprint("a", n), intents...)
				}
				list := x.listed(supervisor.IntentFilter{TenantID: x.tenant})
				equal(x, "the number of listed intents", len(list), count)
				for n := range list {
					want := fmt.Sprintf("a%d/i%03d", n/(count/3), n%(count/3))
					if got := list[n].Intent.InstanceID + "/" + list[n].Intent.ID; got != want {
						x.Fatalf("intent %d of the list is %s, want %s", n, got, want)
					}
				}
			},
		},
		{
			topic: "intent-list", name: "stops-early",
			rule: "a caller may stop reading, and may call the queue while it reads",
			run: func(x *trial) {
				x.plan("a", x.effect("i1"), x.effect("i2"))
				for _, err := range x.operator.ListIntents(x.ctx, supervisor.IntentFilter{TenantID: x.tenant}) {
					x.check(err, "ListIntents")
					x.handOff()
					break
				}
				x.handOff()
			},
		},
		{
			topic: "intent-list", name: "invalid",
			rule: "ListIntents yields the error of a filter with a state that no intent has",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				var failed error
				for _, err := range x.operator.ListIntents(x.ctx, supervisor.IntentFilter{TenantID: x.tenant, State: "perhaps"}) {
					failed = errors.Join(failed, err)
				}
				x.wantErr(failed, "ListIntents of an unknown state")
			},
		},
		{
			topic: "intent-list", name: "context",
			rule: "ListIntents stops with the error of its context",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				ctx, cancel := contextEnded(x)
				defer cancel()
				var failed error
				for _, err := range x.operator.ListIntents(ctx, supervisor.IntentFilter{TenantID: x.tenant}) {
					failed = err
				}
				x.want(failed, ctx.Err(), "ListIntents after the end of its context")
			},
		},
		{
			topic: "intent-list", name: "results-belong-to-caller",
			rule: "records belong to the caller",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				for _, r := range x.listed(supervisor.IntentFilter{TenantID: x.tenant}) {
					for n := range r.Intent.Input {
						r.Intent.Input[n] = 'x'
					}
				}
				x.equalJSON("Input", x.takeOne().Intent.Input, `{"amount":1}`)
			},
		},
	})
}

func intentPruneCases() []testCase {
	cases := needing(instances, []testCase{
		{
			topic: "intent-prune", name: "keeps-what-is-in-flight",
			rule: "Prune keeps finished instances with intents whose effect may have happened and that are not settled, and removes them with their intents afterwards",
			run: func(x *trial) {
				x.now()
				works := map[string]supervisor.IntentWork{}
				for _, id := range []string{"marked", "executing", "unknown"} {
					x.planBy(x.actor(id), supervisor.Complete{}, x.effect("i"))
					works[id] = x.handOff()
				}
				x.accept(works["executing"], running(0))
				x.settle(works["unknown"], ambiguous())
				x.planBy(x.actor("repeating"), supervisor.Complete{}, x.effect("i", native))
				works["repeating"] = x.handOff()
				repeat := unproven()
				repeat.Delay = far
				x.settle(works["repeating"], repeat) // nobody knows what became of the first attempt
				equal(x, "the number of removed instances", x.pruneAll(), 0)
				for id := range works {
					equal(x, "Status of "+id, x.get(id).Status, supervisor.StatusCompleted)
				}
				x.settle(works["marked"], success(`1`))
				x.settle(x.takeTask(supervisor.IntentTaskObserve), success(`2`))
				x.accept(works["unknown"], ended(supervisor.ProviderSucceeded, `3`))
				x.accept(works["repeating"], ended(supervisor.ProviderSucceeded, `4`))
				x.settle(x.takeTask(supervisor.IntentTaskObserve), success(`4`))
				equal(x, "the number of removed instances", x.pruneAll(), 4)
				if x.operator != nil {
					equal(x, "the number of intents that are left", len(x.listed(supervisor.IntentFilter{TenantID: x.tenant})), 0)
				}
				for id, work := range works {
					x.want(x.intents.RecordReceipt(x.ctx, &work, running(0)), supervisor.ErrNotFound, "RecordReceipt for the pruned instance %s", id)
				}
			},
		},
		{
			topic: "intent-prune", name: "active",
			rule: "Prune leaves the intents of active instances",
			run: func(x *trial) {
				x.plan("a", x.effect("i1"), x.effect("i2"))
				x.settle(x.handOff(), success(`1`))
				equal(x, "the number of removed instances", x.prune(x.now().Add(far)), 0)
				x.handOff()
				if x.operator != nil {
					equal(x, "the number of intents", len(x.listed(supervisor.IntentFilter{TenantID: x.tenant})), 2)
				}
			},
		},
	})
	for n := range cases {
		cases[n].alone = true // Prune goes over all tenants
	}
	return cases
}
