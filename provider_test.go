package supervisor

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestHandoffIdentity(t *testing.T) {
	seen := make(map[string]bool)
	for _, parts := range [][3]string{{"t", "a", "i"}, {"t/a", "i", ""}, {"t", "a/i", ""}, {"t", "a", "i/1"}, {"t\n", "ä", "%2F"}} {
		for attempt := range 3 {
			h := Handoff{Intent: ActionIntent{TenantID: parts[0], InstanceID: parts[1], ID: parts[2]}, Attempt: attempt}
			identity := h.Identity()
			require.False(t, seen[identity], identity)
			seen[identity] = true
			require.NotContains(t, identity, "\n")
			require.Equal(t, 3, strings.Count(identity, "/"))
		}
	}
}

func TestReportValidate(t *testing.T) {
	for want, report := range map[string]Report{
		`Status "?"`:                     {Status: "?"},
		"After is -1ns":                  {After: -1},
		`Output of work that is ""`:      {Output: json.RawMessage(`1`)},
		`Output of work that is "failed`: {Status: ProviderFailed, Output: json.RawMessage(`1`)},
		"Output is not valid JSON":       {Status: ProviderSucceeded, Output: json.RawMessage(`{`)},
		"more than 1048576":              {Status: ProviderSucceeded, Output: bytes.Repeat([]byte("1"), MaxOutputBytes+1)},
	} {
		require.ErrorContains(t, report.Validate(), want)
		receipt := Receipt{Report: report}
		require.ErrorContains(t, receipt.Validate(), want)
		settlement := Settlement{State: ActionSucceeded, Receipt: &receipt}
		require.ErrorContains(t, settlement.Validate(), want)
	}
	for _, status := range []ProviderStatus{"", ProviderRunning, ProviderUnknown, ProviderSucceeded, ProviderFailed, ProviderRetryable, ProviderCancelled} {
		report := Report{Status: status}
		require.NoError(t, report.Validate())
		require.Equal(t, status != "" && status != ProviderRunning && status != ProviderUnknown, report.Terminal(), status)
	}
	report := Report{Status: ProviderSucceeded, Output: bytes.Repeat([]byte("1"), MaxOutputBytes)}
	require.NoError(t, report.Validate())
	for want, reference := range map[string]string{"has 4097 bytes": strings.Repeat("r", MaxReferenceBytes+1), "UTF-8": "\xff", "NUL": "\x00"} {
		receipt := Receipt{Reference: reference}
		require.ErrorContains(t, receipt.Validate(), want)
	}
}

func TestClaimsOfErrors(t *testing.T) {
	base := errors.New("base")
	require.NoError(t, NotSent(nil))
	require.NoError(t, Refused(nil))
	for _, err := range []error{NotSent(base), fmt.Errorf("wrapped: %w", NotSent(base))} {
		require.True(t, isNotSent(err))
		require.False(t, isRefused(err))
		require.ErrorIs(t, err, base)
	}
	require.True(t, isRefused(Refused(base)))
	require.False(t, isNotSent(Refused(base)))
	require.Equal(t, "base", NotSent(base).Error())
	require.Equal(t, "base", Refused(base).Error())
	require.False(t, isNotSent(base))
}

func TestIntentRecordBasics(t *testing.T) {
	intent := ruleRecord(ActionPrepared).Intent
	r := NewIntentRecord(intent, epoch)
	require.Equal(t, ActionPrepared, r.Intent.State)
	require.Equal(t, epoch, r.DueAt)
	intent.RequiresConfirmation = true
	r = NewIntentRecord(intent, epoch)
	require.Equal(t, ActionAwaitingConfirmation, r.Intent.State)
	require.Zero(t, r.DueAt)
	intent.Deadline = epoch.Add(time.Hour)
	r = NewIntentRecord(intent, epoch)
	require.Equal(t, intent.Deadline, r.DueAt)
	require.Equal(t, IntentKey{"t1", "a", "i1"}, r.Key())

	for _, state := range allActionStates {
		r := ruleRecord(state)
		require.Equal(t, state == ActionPrepared || state == ActionAwaitingConfirmation || state == ActionAuthorized || state == ActionRetryable, r.Waiting(), state)
		require.Equal(t, state == ActionDispatchCommitted || state == ActionExecuting, r.HoldsSlot(), state)
		require.Equal(t, r.HoldsSlot() || state == ActionUnknown, r.InFlight(), state)
		require.False(t, r.Waiting() && r.HoldsSlot())
	}
	for _, effect := range []Effect{EffectPure, EffectRead, EffectInternalWrite, EffectExternalWrite, EffectFunds} {
		for _, class := range []IdempotencyMode{IdempotencyNone, IdempotencyNative, IdempotencyReconcileBeforeRetry, IdempotencyNeverAutomaticRetry} {
			r := ruleRecord(ActionPrepared)
			r.Intent.Effect, r.Intent.RetryClass = effect, class
			require.Equal(t, effect == EffectPure || effect == EffectRead || class == IdempotencyNative, r.Repeatable(), "%s %s", effect, class)
		}
	}

	// What a queue stores as JSON comes back as it was; a clone shares nothing.
	full := ruleRecord(ActionUnknown, ruleReceipt(Receipt{Reference: "r", Report: Report{Status: ProviderSucceeded, Output: json.RawMessage(`{"a":1}`)}}), func(r *IntentRecord) {
		r.Output = json.RawMessage(`{"b":2}`)
		r.Diagnostic = &Diagnostic{Phase: PhaseCancel, Category: CategoryCrash, At: epoch}
		r.Resolved = &ResolvedIntent{IntentResolution: IntentResolution{Kind: ResolveSucceeded, Output: json.RawMessage(`{"c":3}`)}, By: "me", At: epoch}
		r.Evidence = []Evidence{{At: epoch, Attempt: 1}}
		r.Intent.Input, r.Intent.Confirmation = json.RawMessage(`{"d":4}`), &Confirmation{By: "me", At: epoch}
		r.Ambiguous = 1
	})
	text, err := json.Marshal(full)
	require.NoError(t, err)
	var back IntentRecord
	require.NoError(t, json.Unmarshal(text, &back))
	require.Equal(t, full, back)
	clone := full.Clone()
	require.Equal(t, full, clone)
	clone.Receipt.Output[1], clone.Output[1], clone.Resolved.Output[1], clone.Intent.Input[1] = 'X', 'X', 'X', 'X'
	clone.Diagnostic.Phase, clone.Evidence[0].Attempt, clone.Intent.Confirmation.By = "X", 9, "X"
	require.Equal(t, back, full)
}

func TestIntentQueueValidation(t *testing.T) {
	request := IntentClaimRequest{WorkerID: "d", LeaseDuration: 1, Limit: 1}
	require.NoError(t, request.Validate())
	bad := IntentClaimRequest{Capabilities: []CapabilityPin{{}}}
	for _, part := range []string{"WorkerID is blank", "LeaseDuration is 0s", "Limit is 0", "Capabilities[0].ID"} {
		require.ErrorContains(t, bad.Validate(), part)
	}
	for want, s := range map[string]Settlement{
		`State "prepared"`:   {State: ActionPrepared},
		`State "reconciled"`: {State: ActionReconciled},
		`Outcome "failed"`:   {State: ActionSucceeded, Outcome: OutcomeFailed},
		`Outcome ""`:         {State: ActionRejected},
		`Outcome "withdrawn`: {State: ActionRejected, Outcome: OutcomeWithdrawn},
		`Proof "?"`:          {State: ActionUnknown, Proof: "?"},
		`Cause "?"`:          {State: ActionUnknown, Cause: "?"},
		"Output of state":    {State: ActionUnknown, Output: json.RawMessage(`1`)},
		"Delay is -1ns":      {State: ActionRetryable, Delay: -1},
		"does not follow":    {State: ActionUnknown, Receipt: &Receipt{Report: Report{Status: ProviderFailed}}},
		`Phase "?"`:          {State: ActionUnknown, Diagnostic: &Diagnostic{Phase: "?", Category: CategoryError}},
		`Category "?"`:       {State: ActionUnknown, Diagnostic: &Diagnostic{Phase: PhaseObserve, Category: "?"}},
	} {
		require.ErrorContains(t, s.Validate(), want)
	}
	for want, l := range map[string]IntentLimit{"neither": {Max: 1}, "Max is -1": {TenantID: "t", Max: -1}} {
		require.ErrorContains(t, l.Validate(), want)
	}
	intent := &ActionIntent{TenantID: "t", Capability: CapabilityPin{ID: "c"}}
	for limit, covers := range map[IntentLimit]bool{
		{TenantID: "t"}: true, {CapabilityID: "c"}: true, {TenantID: "t", CapabilityID: "c"}: true,
		{TenantID: "x"}: false, {CapabilityID: "x"}: false, {TenantID: "t", CapabilityID: "x"}: false,
	} {
		require.Equal(t, covers, limit.Covers(intent), limit)
	}
	r := ruleRecord(ActionPrepared)
	for filter, matches := range map[IntentFilter]bool{
		{}: true, {TenantID: "t1", InstanceID: "a", CapabilityID: "mail", State: ActionPrepared}: true,
		{TenantID: "x"}: false, {InstanceID: "x"}: false, {CapabilityID: "x"}: false, {State: ActionUnknown}: false,
	} {
		require.NoError(t, filter.Validate())
		require.Equal(t, matches, filter.Matches(&r), filter)
	}
	resolution := IntentResolution{Kind: ResolveFailed, Output: json.RawMessage(`1`)}
	require.ErrorContains(t, resolution.Validate(), "Output of kind")
	refused := &IntentRefusedError{Cause: CauseLimit}
	require.ErrorIs(t, refused, ErrIntentRefused)
	require.ErrorContains(t, refused, "limit")
}

func FuzzReceipt(f *testing.F) {
	f.Add("r", "succeeded", []byte(`{"n":1}`), "no", int64(1))
	f.Add("\xff", "failed", []byte(`{`), "\x00", int64(-1))
	f.Fuzz(func(t *testing.T, reference, status string, output []byte, reason string, after int64) {
		receipt := Receipt{Reference: reference, Report: Report{Status: ProviderStatus(status), Output: output, Reason: reason, After: time.Duration(after)}}
		r := ruleRecord(ActionUnknown)
		told, err := r.Accept(ruleWork(&r), receipt, epoch)
		if receipt.Validate() != nil {
			require.ErrorIs(t, err, ErrCommandRejected)
			return
		}
		require.NoError(t, err)
		// What was taken can be stored and told.
		_, err = json.Marshal(r)
		require.NoError(t, err)
		if told {
			wakeup, err := r.Wakeup()
			require.NoError(t, err)
			_, err = ParseActionResult(&wakeup)
			require.NoError(t, err)
		}
	})
}

func FuzzSettlement(f *testing.F) {
	f.Add("succeeded", "", "reported", "reported", []byte(`1`), "", int64(0))
	f.Add("rejected", "failed", "attempts", "not_sent", []byte(nil), "no", int64(-1))
	f.Fuzz(func(t *testing.T, state, outcome, cause, proof string, output []byte, reason string, delay int64) {
		s := Settlement{
			State: ActionState(state), Outcome: IntentOutcome(outcome), Cause: IntentCause(cause), Proof: IntentProof(proof),
			Output: output, Reason: reason, Delay: time.Duration(delay),
		}
		r := ruleRecord(ActionDispatchCommitted)
		told, err := r.Settle(ruleWork(&r), &s, epoch)
		if s.Validate() != nil {
			require.ErrorIs(t, err, ErrCommandRejected)
			return
		}
		if told {
			wakeup, err := r.Wakeup()
			require.NoError(t, err)
			_, err = ParseActionResult(&wakeup)
			require.NoError(t, err)
		}
		require.False(t, r.Intent.State == ActionRetryable && s.Proof == "", "sent again without proof")
	})
}

func FuzzResolution(f *testing.F) {
	f.Add("me", "succeeded", 1, []byte(`1`), "")
	f.Fuzz(func(t *testing.T, by, kind string, attempt int, output []byte, reason string) {
		resolution := IntentResolution{Kind: IntentResolutionKind(kind), Attempt: attempt, Output: output, Reason: reason}
		r := ruleRecord(ActionUnknown)
		before := r.Clone()
		if _, err := r.Resolve(by, &resolution, epoch); err != nil {
			ruleUnchanged(t, &before, &r)
			return
		}
		require.NoError(t, resolution.Validate())
		_, err := r.Resolve(by, &resolution, epoch)
		require.NoError(t, err, "again")
	})
}

func FuzzParseActionResult(f *testing.F) {
	f.Add([]byte(`{"intent":"i","outcome":"succeeded","output":{"n":1}}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, payload []byte) {
		wakeup := Wakeup{ID: "w", Kind: WakeupKindAction, Payload: payload}
		result, err := ParseActionResult(&wakeup)
		if err != nil {
			require.Zero(t, result)
			return
		}
		require.NotEmpty(t, result.Outcome)
		wakeup.Kind = "other"
		_, err = ParseActionResult(&wakeup)
		require.ErrorContains(t, err, `is of kind "other"`)
	})
}
