package queuetest

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

// contextEnded is a context that has ended.
func contextEnded(x *trial) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(x.ctx)
	cancel()
	return ctx, cancel
}

func intentHostileCases() []testCase {
	return []testCase{
		{
			topic: "intent-hostile", name: "settlements",
			rule: "every queue applies Settlement.Validate in SettleIntent: what no store could hold is ErrCommandRejected, and nothing is settled",
			run:  intentHostileSettlements,
		},
		{
			topic: "intent-hostile", name: "receipts",
			rule: "a receipt that no store could hold is ErrCommandRejected, and nothing is stored",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				work := x.handOff()
				before := x.intentView("a", "i")
				for what, spoil := range map[string]func(*supervisor.Receipt){
					"an unknown status":        func(r *supervisor.Receipt) { r.Status = "perhaps" },
					"a reference with NUL":     func(r *supervisor.Receipt) { r.Reference = "a\x00" },
					"a reference not in UTF-8": func(r *supervisor.Receipt) { r.Reference = "\xff" },
					"a reference too long":     func(r *supervisor.Receipt) { r.Reference = strings.Repeat("r", supervisor.MaxReferenceBytes+1) },
					"output of running work":   func(r *supervisor.Receipt) { r.Output = json.RawMessage(`1`) },
					"broken output":            func(r *supervisor.Receipt) { r.Status, r.Output = supervisor.ProviderSucceeded, json.RawMessage(`{`) },
					"output with NUL": func(r *supervisor.Receipt) {
						r.Status, r.Output = supervisor.ProviderSucceeded, json.RawMessage(`"\u0000"`)
					},
					"output of more than 1 MiB": func(r *supervisor.Receipt) { r.Status, r.Output = supervisor.ProviderSucceeded, tooLong() },
					"a negative delay":          func(r *supervisor.Receipt) { r.After = -1 },
				} {
					receipt := running(0)
					spoil(&receipt)
					err := x.intents.RecordReceipt(x.ctx, &work, receipt)
					x.refusedInput(err, "RecordReceipt with "+what)
				}
				x.sameIntent("a", "i", before, "receipts that no store could hold")
				receipt := running(far)
				receipt.Reference, receipt.Reason = strings.Repeat("r", supervisor.MaxReferenceBytes), "b\xffd\x00"
				x.accept(work, receipt)
			},
		},
		{
			topic: "intent-hostile", name: "releases",
			rule: "an invalid release is ErrCommandRejected, and the lease lasts",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				work := x.takeOne()
				before := x.intentView("a", "i")
				for what, release := range map[string]supervisor.IntentRelease{
					"a negative delay":    {After: -1},
					"an unknown phase":    {Diagnostic: &supervisor.Diagnostic{Phase: "x", Category: supervisor.CategoryError}},
					"an unknown category": {Diagnostic: &supervisor.Diagnostic{Phase: supervisor.PhaseDispatch, Category: "what it said"}},
				} {
					x.refusedInput(x.intents.ReleaseIntent(x.ctx, &work, release), "ReleaseIntent with "+what)
				}
				x.sameIntent("a", "i", before, "invalid releases")
				x.mark(work)
			},
		},
		{
			topic: "intent-hostile", name: "unknown-intents",
			rule: "an intent that is not there is nobody's, also one of another tenant or instance: RecordReceipt is ErrNotFound for it, all other methods are ErrLeaseLost",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				x.plan("b")
				work := x.handOff()
				before := x.intentView("a", "i")
				for _, change := range []func(*supervisor.ActionIntent){
					func(i *supervisor.ActionIntent) { i.ID = "unknown" },
					func(i *supervisor.ActionIntent) { i.ID = "I" },
					func(i *supervisor.ActionIntent) { i.InstanceID = "b" },
					func(i *supervisor.ActionIntent) { i.InstanceID = "unknown" },
					func(i *supervisor.ActionIntent) { i.TenantID += " other" },
				} {
					wrong := work
					change(&wrong.Intent)
					what := fmt.Sprintf("%+v", wrong.Key())
					_, err := x.intents.MarkIntent(x.ctx, &wrong)
					x.want(err, supervisor.ErrLeaseLost, "MarkIntent of %s", what)
					x.want(x.intents.RecordReceipt(x.ctx, &wrong, running(0)), supervisor.ErrNotFound, "RecordReceipt of %s", what)
					x.want(x.intents.SettleIntent(x.ctx, &wrong, success(`1`)), supervisor.ErrLeaseLost, "SettleIntent of %s", what)
					x.want(x.intents.ReleaseIntent(x.ctx, &wrong, supervisor.IntentRelease{}), supervisor.ErrLeaseLost, "ReleaseIntent of %s", what)
				}
				x.sameIntent("a", "i", before, "calls for unknown intents")
				x.settle(work, success(`1`))
			},
		},
		{
			topic: "intent-hostile", name: "lookups", needs: intentOperator,
			rule: "ids that no store could hold are errors, never found and never a fault of the store",
			run: func(x *trial) {
				x.plan("a", x.effect("i", confirmed))
				for _, id := range []string{"i\x00", "\xff", "", strings.Repeat("i", supervisor.MaxIDBytes+1)} {
					for _, key := range []supervisor.IntentKey{
						x.intentKey("a", id), x.intentKey(id, "i"), {TenantID: id, InstanceID: "a", IntentID: "i"},
					} {
						x.lookupFails(x.operator.ConfirmIntent(x.ctx, key, "alice"), "ConfirmIntent", id)
						x.lookupFails(x.operator.RejectIntent(x.ctx, key, "alice", "no"), "RejectIntent", id)
						x.lookupFails(x.operator.ResolveIntent(x.ctx, key, "alice", supervisor.IntentResolution{Kind: supervisor.ResolveFailed}), "ResolveIntent", id)
					}
				}
				x.inState("a", "i", supervisor.ActionAwaitingConfirmation)
			},
		},
		{
			topic: "intent-hostile", name: "delays",
			rule: "a delay too long for the calendar means its end: it is stored, and nothing is due before",
			run: func(x *trial) {
				const longest = time.Duration(1<<63 - 1)
				x.plan("a", x.effect("i1"), x.effect("i2"), x.effect("i3"), x.effect("i4"))
				x.settle(x.handOff(), retryIn(longest))
				x.accept(x.handOff(), running(longest))
				x.giveIntentBack(x.handOff(), supervisor.IntentRelease{After: longest})
				work := x.takeOne()
				x.check(x.intents.RenewIntent(x.ctx, work.Lease(longest)), "RenewIntent for 292 years")
				x.noIntent("all are centuries away")
			},
		},
		{
			topic: "intent-hostile", name: "ended-contexts",
			rule: "a call whose context has ended fails with its error and changes nothing",
			run: func(x *trial) {
				x.plan("a", x.effect("i"), x.effect("j", confirmed))
				ctx, cancel := contextEnded(x)
				defer cancel()
				works, err := x.intents.ClaimIntents(ctx, x.wanted(1))
				x.want(err, context.Canceled, "ClaimIntents")
				equal(x, "the number of intents beside the error", len(works), 0)
				work := x.takeOne()
				before := x.intentView("a", "i")
				_, err = x.intents.MarkIntent(ctx, &work)
				x.want(err, context.Canceled, "MarkIntent")
				x.want(x.intents.RenewIntent(ctx, work.Lease(9*held)), context.Canceled, "RenewIntent")
				x.want(x.intents.RecordReceipt(ctx, &work, running(0)), context.Canceled, "RecordReceipt")
				x.want(x.intents.ReleaseIntent(ctx, &work, supervisor.IntentRelease{}), context.Canceled, "ReleaseIntent")
				x.want(x.intents.SettleIntent(ctx, &work, failure("no")), context.Canceled, "SettleIntent")
				if x.operator != nil {
					x.want(x.operator.ConfirmIntent(ctx, x.intentKey("a", "j"), "alice"), context.Canceled, "ConfirmIntent")
					x.inState("a", "j", supervisor.ActionAwaitingConfirmation)
				}
				x.sameIntent("a", "i", before, "calls whose context had ended")
				x.mark(work)
			},
		},
	}
}

// tooLong is an output of more bytes than may be.
func tooLong() json.RawMessage {
	return json.RawMessage(`"` + strings.Repeat("x", supervisor.MaxOutputBytes) + `"`)
}

// refusedInput reports bad input that was taken, or taken for another fault.
func (x *trial) refusedInput(err error, what string) {
	x.Helper()
	x.want(err, supervisor.ErrCommandRejected, "%s", what)
}

func intentHostileSettlements(x *trial) {
	x.plan("a", x.effect("i"))
	work := x.handOff()
	before := x.intentView("a", "i")
	for what, spoil := range map[string]func(*supervisor.Settlement){
		"no state":                    func(s *supervisor.Settlement) { s.State = "" },
		"state prepared":              func(s *supervisor.Settlement) { s.State = supervisor.ActionPrepared },
		"state reconciled":            func(s *supervisor.Settlement) { s.State = supervisor.ActionReconciled },
		"an outcome of a success":     func(s *supervisor.Settlement) { s.Outcome = supervisor.OutcomeSucceeded },
		"a rejection without outcome": func(s *supervisor.Settlement) { s.State = supervisor.ActionRejected },
		"a withdrawal": func(s *supervisor.Settlement) {
			s.State, s.Outcome = supervisor.ActionRejected, supervisor.OutcomeWithdrawn
		},
		"an unknown proof":             func(s *supervisor.Settlement) { s.Proof = "trust me" },
		"an unknown cause":             func(s *supervisor.Settlement) { s.Cause = "it said: secret" },
		"output of a retry":            func(s *supervisor.Settlement) { s.State, s.Output = supervisor.ActionRetryable, json.RawMessage(`1`) },
		"broken output":                func(s *supervisor.Settlement) { s.Output = json.RawMessage(`{"a":`) },
		"output with a lone surrogate": func(s *supervisor.Settlement) { s.Output = json.RawMessage(`"\ud800"`) },
		"output not in UTF-8":          func(s *supervisor.Settlement) { s.Output = json.RawMessage("\"\xff\"") },
		"output of more than 1 MiB":    func(s *supervisor.Settlement) { s.Output = tooLong() },
		"a negative delay":             func(s *supervisor.Settlement) { s.Delay = -time.Second },
		"a receipt of unknown status": func(s *supervisor.Settlement) {
			s.Receipt = &supervisor.Receipt{Report: supervisor.Report{Status: "x"}}
		},
		"a receipt with NUL":            func(s *supervisor.Settlement) { s.Receipt = &supervisor.Receipt{Reference: "\x00"} },
		"a diagnostic of unknown phase": func(s *supervisor.Settlement) { s.Diagnostic = &supervisor.Diagnostic{Phase: "secret"} },
	} {
		s := success("")
		spoil(&s)
		x.refusedInput(x.intents.SettleIntent(x.ctx, &work, s), "SettleIntent with "+what)
	}
	x.sameIntent("a", "i", before, "settlements that no store could hold")
	x.idle("nothing was settled")
	// A reason that no store could hold is made one.
	s := failure("b\xffd \x00" + strings.Repeat("long ", supervisor.MaxReasonBytes/4))
	x.settle(work, s)
	item := x.woken("a")
	if len(item.Wakeups) != 1 {
		x.Fatalf("the wakeups are %v, want one", wakeupIDs(&item))
	}
	result, err := supervisor.ParseActionResult(&item.Wakeups[0])
	x.check(err, "ParseActionResult")
	if !strings.HasPrefix(result.Reason, "b") || len(result.Reason) > supervisor.MaxReasonBytes+len("…") || strings.ContainsRune(result.Reason, 0) {
		x.Errorf("the reason that is told is %s, want the given one without NUL and cut", clip(result.Reason))
	}
}

// intentFidelityCases prove that nothing of an intent changes on its way.
func intentFidelityCases() []testCase {
	return []testCase{
		{
			topic: "intent-fidelity", name: "input",
			rule: "the input of an intent is passed through unchanged",
			run: func(x *trial) {
				var intents []supervisor.ActionIntent
				for n, value := range exactJSON() {
					intents = append(intents, x.effect(fmt.Sprint("i", n), func(i *supervisor.ActionIntent) { i.Input = json.RawMessage(value) }))
				}
				x.plan("a", intents...)
				for range intents {
					work := x.takeOne()
					var n int
					_, err := fmt.Sscanf(work.Intent.ID, "i%d", &n)
					x.check(err, "reading %q", work.Intent.ID)
					x.equalJSON("Input", work.Intent.Input, exactJSON()[n])
					x.equalJSON("Input after the mark", x.mark(work).Intent.Input, exactJSON()[n])
				}
			},
		},
		{
			topic: "intent-fidelity", name: "nil-input",
			rule: "a nil input means null",
			run: func(x *trial) {
				x.plan("a", x.effect("i", func(i *supervisor.ActionIntent) { i.Input = nil }))
				isNull(x, "Input", x.takeOne().Intent.Input)
			},
		},
		{
			topic: "intent-fidelity", name: "output",
			rule: "the output of a success reaches the instance as it was given, but for white space",
			run: func(x *trial) {
				for n, value := range exactJSON() {
					id := fmt.Sprint("a", n)
					x.plan(id, x.effect("i"))
					x.settle(x.handOff(), success(value))
					x.told(id, toldSuccess("i", value))
				}
			},
		},
		{
			topic: "intent-fidelity", name: "receipt",
			rule: "the output and the reference of a receipt are kept as given, but for white space",
			run: func(x *trial) {
				for n, value := range exactJSON() {
					id := fmt.Sprint("a", n)
					x.plan(id, x.effect("i"))
					receipt := ended(supervisor.ProviderSucceeded, value)
					receipt.Reference = " MiXeD caf\u00e9 \U0001F600 '; -- \u0001\n"
					x.accept(x.handOff(), receipt)
					work := x.takeTask(supervisor.IntentTaskObserve)
					if work.Receipt == nil {
						x.Fatalf("the receipt was not stored")
					}
					equal(x, "Output", clip(string(compact(work.Receipt.Output))), clip(string(compact(receipt.Output))))
					equal(x, "Reference", work.Receipt.Reference, receipt.Reference)
					x.settle(work, success(value))
				}
			},
		},
		{
			topic: "intent-fidelity", name: "every-field",
			rule: "everything of an intent comes back as the commit stored it",
			run: func(x *trial) {
				deadline := x.now().Add(far).Truncate(time.Microsecond)
				for n, text := range []string{"MiXeD /%25 \u00e9", "cafe\u0301 \U0001F600 \u202e", "'; DROP TABLE intents; --", "\u0001\u007f\ufeff"} {
					instance := x.actor(fmt.Sprint("a", n))
					x.add(instance, time.Time{})
					item := x.claimOne()
					intent := x.effect("id "+text, until(deadline), scoped("resource "+text), func(i *supervisor.ActionIntent) {
						i.IdempotencyKey, i.Effect, i.RetryClass = "key "+text, supervisor.EffectFunds, supervisor.IdempotencyReconcileBeforeRetry
						i.Reservation = &supervisor.ResourceReservationRef{ID: "reservation " + text, FencingToken: 1 << 53}
					})
					x.commitIntents(&item, supervisor.Continue{Delay: far}, intent)
					got := x.takeOne().Intent
					intent.TenantID, intent.InstanceID, intent.RunID = item.TenantID, item.ID, item.RunID
					intent.ControlEpochs, intent.LeaseEpoch, intent.ActionEpoch = item.ControlEpochs, item.LeaseVersion, item.StateVersion
					got.CreatedAt, got.Deadline, intent.Deadline = time.Time{}, got.Deadline.UTC(), deadline.UTC()
					gotText, _ := json.Marshal(got)
					wantText, _ := json.Marshal(intent)
					equal(x, "the intent", string(gotText), string(wantText))
				}
			},
		},
		{
			topic: "intent-fidelity", name: "longest-ids",
			rule: "ids of MaxIDBytes are stored and told like others",
			run: func(x *trial) {
				id := strings.Repeat("i", supervisor.MaxIDBytes)
				short := func(i *supervisor.ActionIntent) { i.IdempotencyKey = "key" }
				x.plan("a", x.effect(id, short), x.effect(id[1:], short))
				for range 2 {
					work := x.handOff()
					x.settle(work, success(`1`))
					x.told("a", toldSuccess(work.Intent.ID, `1`))
				}
			},
		},
		{
			topic: "intent-fidelity", name: "look-alike-ids",
			rule: "ids are compared exactly: case, accents and white space count",
			run: func(x *trial) {
				ids := []string{"i", "I", "i ", "\u0131", "\u00ef", "i\u0308"}
				var intents []supervisor.ActionIntent
				for _, id := range ids {
					intents = append(intents, x.effect(id))
				}
				x.plan("a", intents...)
				for range ids {
					work := x.handOff()
					x.settle(work, success(`1`))
					x.told("a", toldSuccess(work.Intent.ID, `1`))
				}
			},
		},
	}
}
