package supervisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var allActionStates = []ActionState{
	ActionPrepared, ActionAwaitingConfirmation, ActionAuthorized, ActionDispatchCommitted, ActionExecuting,
	ActionSucceeded, ActionRejected, ActionRetryable, ActionUnknown, ActionReconciled,
}

// ruleRecord is an intent of class reconcile_before_retry in a state, as the
// rules leave it at epoch: marked ones are under lease 1 of "d" for a minute,
// others under none.
func ruleRecord(state ActionState, changes ...func(*IntentRecord)) IntentRecord {
	r := IntentRecord{
		Intent: ActionIntent{
			ID: "i1", TenantID: "t1", InstanceID: "a", Capability: memPin, State: state,
			Effect: EffectExternalWrite, RetryClass: IdempotencyReconcileBeforeRetry,
			ControlEpochs: ControlEpochs{Tenant: 3, Instance: 4, Resource: 5},
		},
		DueAt: epoch,
	}
	switch state {
	case ActionPrepared, ActionAwaitingConfirmation, ActionAuthorized:
	default:
		r.Attempt, r.LeaseVersion, r.MarkedUnder, r.MarkedAt = 1, 1, 1, epoch.Add(-time.Second)
	}
	switch state {
	case ActionDispatchCommitted:
		r.LeaseOwner, r.LeaseEndsAt, r.DueAt = "d", epoch.Add(time.Minute), epoch.Add(time.Minute)
	case ActionExecuting:
		r.Receipt = &Receipt{Reference: "r"}
	case ActionSucceeded:
		r.Outcome, r.Cause, r.Output = OutcomeSucceeded, CauseReported, json.RawMessage(`{"n":1}`)
	case ActionRejected:
		r.Outcome, r.Cause = OutcomeFailed, CauseReported
	case ActionReconciled:
		r.Outcome, r.Cause = OutcomeFailed, CauseResolved
	case ActionUnknown:
		r.Outcome, r.Cause, r.DueAt = OutcomeUnknown, CauseAmbiguous, time.Time{}
	}
	if state.Terminal() {
		r.SettledAt, r.DueAt = epoch, time.Time{}
	}
	for _, change := range changes {
		change(&r)
	}
	return r
}

// Changes of records.
func ruleNative(r *IntentRecord) { r.Intent.RetryClass = IdempotencyNative }
func ruleRead(r *IntentRecord)   { r.Intent.Effect = EffectRead }
func ruleLeased(r *IntentRecord) { r.Acquire("d", time.Minute, epoch) }
func ruleCancelled(r *IntentRecord) {
	r.CancelRequestedAt = epoch.Add(-time.Second)
}
func ruleDeadline(d time.Duration) func(*IntentRecord) {
	return func(r *IntentRecord) { r.Intent.Deadline = epoch.Add(d) }
}
func ruleReceipt(receipt Receipt) func(*IntentRecord) {
	return func(r *IntentRecord) { r.Receipt = &receipt }
}

// Changes of works.
func ruleWork(r *IntentRecord) *IntentWork { return &IntentWork{IntentRecord: r.Clone()} }

func ruleControl() *IntentControl {
	return &IntentControl{Epochs: ControlEpochs{Tenant: 3, Instance: 4, Resource: 5}}
}

func ruleSlot(free bool) func() bool { return func() bool { return free } }

// ruleUnchanged checks that an error that stores nothing left the record alone.
func ruleUnchanged(t *testing.T, before, after *IntentRecord) {
	t.Helper()
	require.Equal(t, before, after, "the record has changed")
}

func TestAdmit(t *testing.T) {
	waiting := []ActionState{ActionPrepared, ActionAwaitingConfirmation, ActionAuthorized, ActionRetryable}
	controls := []struct {
		name  string
		set   func(*IntentControl)
		cause IntentCause
	}{
		{"nothing", func(*IntentControl) {}, ""},
		{"finished", func(c *IntentControl) { c.Finished = true }, ""},
		{"paused", func(c *IntentControl) { c.Paused = true }, CausePaused},
		{"paused and stale", func(c *IntentControl) { c.Paused = true; c.Epochs.Tenant++ }, CausePaused},
		{"tenant", func(c *IntentControl) { c.Epochs.Tenant++ }, CauseStaleEpoch},
		{"instance", func(c *IntentControl) { c.Epochs.Instance++ }, CauseStaleEpoch},
		{"resource", func(c *IntentControl) { c.Epochs.Resource++ }, CauseStaleEpoch},
		{"no resource", func(c *IntentControl) { c.Epochs.Resource = 0 }, ""},
		{"resource paused before", func(c *IntentControl) { c.Epochs.Resource-- }, ""},
		{"instance of an older life", func(c *IntentControl) { c.Epochs.Instance-- }, CauseStaleEpoch},
	}
	for _, state := range waiting {
		for _, control := range controls {
			for _, free := range []bool{true, false} {
				for _, deadline := range []time.Duration{-1, 0, 1, 1 << 62} {
					r := ruleRecord(state, ruleDeadline(deadline))
					if deadline == 1<<62 {
						r.Intent.Deadline = time.Time{}
					}
					what := fmt.Sprint(state, " ", control.name, " ", free, " ", deadline)
					c := ruleControl()
					control.set(c)
					want := control.cause
					switch {
					case want != "":
					case deadline <= 0:
						want = CauseDeadline
					case !free && state != ActionAwaitingConfirmation:
						want = CauseLimit
					}
					task, told := r.Admit(c, ruleSlot(free), epoch)
					require.Equal(t, want == CauseStaleEpoch || want == CauseDeadline, told, what)
					switch want {
					case "":
						if state == ActionAwaitingConfirmation {
							require.Empty(t, task, what)
							require.Equal(t, r.Intent.Deadline, r.DueAt, what)
							require.Equal(t, state, r.Intent.State)
						} else {
							require.Equal(t, IntentTaskDispatch, task, what)
						}
						continue
					case CausePaused:
						require.Equal(t, ParkedByPause, r.Parked, what)
						require.Zero(t, r.DueAt, what)
						require.Equal(t, state, r.Intent.State, what)
					case CauseLimit:
						require.Equal(t, ParkedByLimit, r.Parked, what)
						require.Equal(t, r.Intent.Deadline, r.DueAt, what)
						require.Equal(t, state, r.Intent.State, what)
					default:
						require.Equal(t, ActionRejected, r.Intent.State, what)
						require.Equal(t, OutcomeWithdrawn, r.Outcome, what)
						require.Equal(t, want, r.Cause, what)
						require.Equal(t, epoch, r.SettledAt, what)
						require.Zero(t, r.DueAt, what)
					}
					require.Empty(t, task, what)
				}
			}
		}
	}
}

func TestAdmitInFlight(t *testing.T) {
	ended := ruleReceipt(Receipt{Report: Report{Status: ProviderFailed}})
	for name, test := range map[string]struct {
		record IntentRecord
		want   IntentTask
		cancel bool // a request to cancel is recorded
	}{
		"marked":                          {ruleRecord(ActionDispatchCommitted), IntentTaskRecover, false},
		"marked and late":                 {ruleRecord(ActionDispatchCommitted, ruleDeadline(0)), IntentTaskRecover, false},
		"accepted":                        {ruleRecord(ActionExecuting), IntentTaskObserve, false},
		"accepted in time":                {ruleRecord(ActionExecuting, ruleDeadline(1)), IntentTaskObserve, false},
		"accepted and late":               {ruleRecord(ActionExecuting, ruleDeadline(0)), IntentTaskCancel, true},
		"accepted and cancelled":          {ruleRecord(ActionExecuting, ruleCancelled), IntentTaskCancel, true},
		"cancel acknowledged":             {ruleRecord(ActionExecuting, ruleCancelled, func(r *IntentRecord) { r.CancelAcknowledgedAt = epoch }), IntentTaskObserve, true},
		"ended":                           {ruleRecord(ActionExecuting, ended), IntentTaskObserve, false},
		"ended and late":                  {ruleRecord(ActionExecuting, ended, ruleDeadline(0)), IntentTaskObserve, false},
		"ended and cancelled":             {ruleRecord(ActionExecuting, ended, ruleCancelled), IntentTaskObserve, true},
		"unknown with a receipt":          {ruleRecord(ActionUnknown, ended), IntentTaskObserve, false},
		"unknown":                         {ruleRecord(ActionUnknown), "", false},
		"succeeded":                       {ruleRecord(ActionSucceeded), "", false},
		"rejected":                        {ruleRecord(ActionRejected), "", false},
		"reconciled":                      {ruleRecord(ActionReconciled), "", false},
		"ambiguous, not to be sent again": {ruleRecord(ActionRetryable, ruleNative, ruleDeadline(0), func(r *IntentRecord) { r.Ambiguous = 1 }), IntentTaskRecover, true},
	} {
		// Control has no say in what is in flight.
		for _, control := range []*IntentControl{ruleControl(), {Paused: true}, {Finished: true}} {
			if name == "ambiguous, not to be sent again" && control.Paused {
				continue
			}
			r := test.record.Clone()
			task, told := r.Admit(control, ruleSlot(false), epoch)
			require.Equal(t, test.want, task, name)
			require.False(t, told, name)
			require.Equal(t, test.cancel, !r.CancelRequestedAt.IsZero(), name)
			if task == "" {
				require.Zero(t, r.DueAt, name)
			}
		}
	}
}

func TestMarkInEachState(t *testing.T) {
	for _, state := range allActionStates {
		r := ruleRecord(state, ruleLeased)
		work, before := ruleWork(&r), r.Clone()
		told, err := r.Mark(work, ruleControl(), ruleSlot(true), epoch)
		require.False(t, told)
		switch state {
		case ActionPrepared, ActionAuthorized, ActionRetryable:
			require.NoError(t, err)
			require.Equal(t, ActionDispatchCommitted, r.Intent.State)
			require.Equal(t, before.Attempt+1, r.Attempt)
			require.Equal(t, r.LeaseVersion, r.MarkedUnder)
			require.Equal(t, epoch, r.MarkedAt)
			marked := r.Clone()
			for range 2 {
				// A mark again changes nothing, whatever has happened since.
				_, err = r.Mark(work, &IntentControl{Paused: true}, ruleSlot(false), epoch.Add(time.Hour))
				require.NoError(t, err)
				ruleUnchanged(t, &marked, &r)
			}
			r.Acquire("other", time.Minute, epoch)
			_, err = r.Mark(ruleWork(&r), ruleControl(), ruleSlot(true), epoch)
			require.ErrorIs(t, err, ErrStateConflict, "a marked intent was marked again")
			require.Equal(t, 1, r.Attempt-before.Attempt)
		default:
			require.ErrorIs(t, err, ErrStateConflict, state)
			ruleUnchanged(t, &before, &r)
		}

		for name, change := range map[string]func(*IntentWork){
			"an older lease": func(w *IntentWork) { w.LeaseVersion-- },
			"a newer lease":  func(w *IntentWork) { w.LeaseVersion++ },
		} {
			r := ruleRecord(state, ruleLeased)
			work, before := ruleWork(&r), r.Clone()
			change(work)
			_, err := r.Mark(work, ruleControl(), ruleSlot(true), epoch)
			require.ErrorIs(t, err, ErrLeaseLost, "%s of %s", name, state)
			ruleUnchanged(t, &before, &r)
		}
	}
	r := ruleRecord(ActionPrepared, ruleLeased)
	_, err := r.Mark(ruleWork(&r), ruleControl(), ruleSlot(true), epoch.Add(time.Hour))
	require.NoError(t, err, "a lease that ended but that nobody took still marks")
}

func TestMarkRefusals(t *testing.T) {
	for cause, test := range map[IntentCause]struct {
		control  *IntentControl
		free     bool
		deadline time.Duration
	}{
		CausePaused:     {&IntentControl{Epochs: ruleControl().Epochs, Paused: true}, true, -1},
		CauseStaleEpoch: {&IntentControl{}, false, -1},
		CauseDeadline:   {ruleControl(), false, 0},
		CauseLimit:      {ruleControl(), false, 1},
	} {
		r := ruleRecord(ActionPrepared, ruleLeased, ruleDeadline(test.deadline))
		work := ruleWork(&r)
		told, err := r.Mark(work, test.control, ruleSlot(test.free), epoch)
		require.ErrorIs(t, err, ErrIntentRefused)
		var refused *IntentRefusedError
		require.ErrorAs(t, err, &refused)
		require.Equal(t, cause, refused.Cause)
		require.Equal(t, cause == CauseDeadline || cause == CauseStaleEpoch, told)
		require.Zero(t, r.Attempt)
		require.Zero(t, r.LeaseEndsAt, "the lease has ended")
		_, err = r.Mark(work, ruleControl(), ruleSlot(true), epoch)
		require.ErrorIs(t, err, ErrLeaseLost, "a refused mark was set after all")
	}
}

func TestAcceptInEachState(t *testing.T) {
	running, other := Receipt{Reference: "r"}, Receipt{Reference: "other"}
	success := Receipt{Reference: "r", Report: Report{Status: ProviderSucceeded, Output: json.RawMessage(`{"n":1}`)}}
	failure := Receipt{Reference: "r", Report: Report{Status: ProviderFailed, Reason: "no"}}
	again := Receipt{Reference: "r", Report: Report{Status: ProviderRetryable}}
	cancelled := Receipt{Reference: "r", Report: Report{Status: ProviderCancelled}}
	type want struct {
		state    ActionState
		conflict bool
		told     bool
	}
	same := func(state ActionState) want { return want{state: state} }
	evidence := func(state ActionState) want { return want{state: state, conflict: true} }
	for _, test := range []struct {
		state  ActionState
		change func(*IntentRecord)
		give   Receipt
		want   want
	}{
		{ActionDispatchCommitted, nil, running, same(ActionExecuting)},
		{ActionDispatchCommitted, nil, success, same(ActionExecuting)},
		{ActionExecuting, nil, running, same(ActionExecuting)},
		{ActionExecuting, nil, success, same(ActionExecuting)},
		{ActionExecuting, nil, other, evidence(ActionExecuting)},
		{ActionExecuting, ruleReceipt(success), success, same(ActionExecuting)},
		{ActionExecuting, ruleReceipt(success), running, same(ActionExecuting)},
		{ActionExecuting, ruleReceipt(success), failure, evidence(ActionExecuting)},
		{ActionUnknown, nil, running, same(ActionUnknown)},
		{ActionUnknown, nil, success, want{state: ActionReconciled, told: true}},
		{ActionUnknown, nil, failure, want{state: ActionReconciled, told: true}},
		{ActionUnknown, nil, cancelled, want{state: ActionReconciled, told: true}},
		{ActionUnknown, nil, again, same(ActionUnknown)},
		{ActionUnknown, ruleReceipt(running), success, want{state: ActionReconciled, told: true}},
		{ActionUnknown, ruleReceipt(running), other, evidence(ActionUnknown)},
		{ActionRetryable, nil, again, same(ActionRetryable)},
		{ActionRetryable, nil, running, evidence(ActionRetryable)},
		{ActionRetryable, nil, success, evidence(ActionRetryable)},
		{ActionRetryable, func(r *IntentRecord) { ruleNative(r); r.Ambiguous = 1 }, success, same(ActionExecuting)},
		{ActionSucceeded, nil, success, same(ActionSucceeded)},
		{ActionSucceeded, nil, Receipt{Report: Report{Status: ProviderSucceeded, Output: json.RawMessage(` { "n" : 1 } `)}}, same(ActionSucceeded)},
		{ActionSucceeded, nil, Receipt{Report: Report{Status: ProviderSucceeded}}, evidence(ActionSucceeded)},
		{ActionSucceeded, nil, running, same(ActionSucceeded)},
		{ActionSucceeded, nil, failure, evidence(ActionSucceeded)},
		{ActionSucceeded, nil, again, evidence(ActionSucceeded)},
		{ActionRejected, nil, failure, same(ActionRejected)},
		{ActionRejected, nil, again, same(ActionRejected)},
		{ActionRejected, nil, success, evidence(ActionRejected)},
		{ActionRejected, nil, running, evidence(ActionRejected)},
		{ActionRejected, ruleReceipt(failure), running, same(ActionRejected)},
		{ActionRejected, func(r *IntentRecord) { r.Outcome = OutcomeCancelled }, cancelled, same(ActionRejected)},
		{ActionRejected, func(r *IntentRecord) { r.Outcome = OutcomeCancelled }, again, same(ActionRejected)},
		{ActionRejected, func(r *IntentRecord) { r.Outcome = OutcomeCancelled }, success, evidence(ActionRejected)},
		{ActionRejected, func(r *IntentRecord) { r.Outcome = OutcomeWithdrawn }, running, evidence(ActionRejected)},
		{ActionReconciled, nil, failure, same(ActionReconciled)},
		{ActionReconciled, nil, cancelled, same(ActionReconciled)},
		{ActionReconciled, nil, success, evidence(ActionReconciled)},
		{ActionPrepared, nil, running, evidence(ActionPrepared)},
		{ActionAuthorized, nil, success, evidence(ActionAuthorized)},
		{ActionAwaitingConfirmation, nil, running, evidence(ActionAwaitingConfirmation)},
	} {
		for _, holder := range []bool{true, false} {
			r := ruleRecord(test.state)
			if test.change != nil {
				test.change(&r)
			}
			work := ruleWork(&r)
			if holder && !r.Intent.State.Terminal() {
				r.Acquire("d", time.Minute, epoch)
				work = ruleWork(&r)
			}
			before := r.Clone()
			what := fmt.Sprintf("%s of %s, by the holder %v", test.give.Status, before.Intent.State, holder)
			told, err := r.Accept(work, test.give, epoch)
			require.Equal(t, test.want.told, told, what)
			require.Equal(t, test.want.state, r.Intent.State, what)
			if test.want.conflict {
				require.ErrorIs(t, err, ErrReceiptConflict, what)
				require.Equal(t, []Evidence{{
					At: epoch, Worker: work.LeaseOwner, Attempt: work.Attempt, Status: test.give.Status,
					Reference: test.give.Reference, OutputDigest: r.Evidence[0].OutputDigest,
				}}, r.Evidence, what)
				require.Equal(t, len(test.give.Output) > 0, r.Evidence[0].OutputDigest != "", what)
				r.Evidence = nil
				ruleUnchanged(t, &before, &r)
				continue
			}
			require.NoError(t, err, what)
			require.Empty(t, r.Evidence, what)
			if before.Intent.State.Terminal() {
				ruleUnchanged(t, &before, &r)
				continue
			}
			if r.Intent.State == ActionExecuting && holder {
				require.Zero(t, r.LeaseEndsAt, "%s: the lease of its holder has ended", what)
				if r.ended() {
					require.Equal(t, epoch, r.DueAt, what)
				} else {
					require.Equal(t, epoch.Add(time.Second), r.DueAt, what)
				}
			}
			// The same receipt again changes nothing.
			after := r.Clone()
			told, err = r.Accept(work, test.give, epoch.Add(time.Hour))
			require.NoError(t, err, what)
			require.False(t, told, what)
			ruleUnchanged(t, &after, &r)
		}
	}
}

func TestAcceptByAttempt(t *testing.T) {
	for _, native := range []bool{false, true} {
		for attempt, fits := range map[int]bool{0: false, 1: native, 2: true, 3: false} {
			r := ruleRecord(ActionDispatchCommitted, func(r *IntentRecord) { r.Attempt = 2 })
			if native {
				ruleNative(&r)
			}
			work := ruleWork(&r)
			work.Attempt, work.LeaseVersion = attempt, 0
			_, err := r.Accept(work, Receipt{}, epoch)
			if !fits {
				require.ErrorIs(t, err, ErrReceiptConflict)
				require.Equal(t, ActionDispatchCommitted, r.Intent.State)
				continue
			}
			require.NoError(t, err)
			require.Equal(t, ActionExecuting, r.Intent.State)
			require.Equal(t, epoch.Add(time.Minute), r.DueAt, "the lease of another stays")
		}
	}
	r := ruleRecord(ActionDispatchCommitted)
	_, err := r.Accept(ruleWork(&r), Receipt{Report: Report{Status: "?"}}, epoch)
	require.ErrorIs(t, err, ErrCommandRejected)
	for range MaxEvidence + 3 {
		r.LeaseOwner = fmt.Sprint(len(r.Evidence))
		work := ruleWork(&r)
		work.Attempt = 7
		_, err := r.Accept(work, Receipt{}, epoch)
		require.ErrorIs(t, err, ErrReceiptConflict)
	}
	require.Len(t, r.Evidence, MaxEvidence)
	require.Equal(t, "3", r.Evidence[0].Worker, "the latest are kept")
}

func TestAcceptWhenToLook(t *testing.T) {
	for name, test := range map[string]struct {
		after, deadline, want time.Duration
	}{
		"the rule":        {0, 0, time.Second},
		"as asked for":    {time.Hour, 0, time.Hour},
		"deadline before": {time.Hour, time.Minute, time.Minute},
		"deadline passed": {time.Hour, -1, time.Hour},
	} {
		r := ruleRecord(ActionDispatchCommitted)
		if test.deadline != 0 {
			ruleDeadline(test.deadline)(&r)
		}
		_, err := r.Accept(ruleWork(&r), Receipt{Report: Report{After: test.after}}, epoch)
		require.NoError(t, err)
		require.Equal(t, epoch.Add(test.want), r.DueAt, name)
	}
}

func TestSettleInEachState(t *testing.T) {
	success := Settlement{State: ActionSucceeded, Cause: CauseReported, Output: json.RawMessage(`{"n":1}`)}
	failed := func(proof IntentProof) Settlement {
		return Settlement{State: ActionRejected, Outcome: OutcomeFailed, Cause: CauseReported, Proof: proof, Reason: "no"}
	}
	retry := func(proof IntentProof) Settlement {
		return Settlement{State: ActionRetryable, Proof: proof, Delay: time.Minute}
	}
	unknown := Settlement{State: ActionUnknown, Cause: CauseAmbiguous}
	kinds := map[string]func(*IntentRecord){"": func(*IntentRecord) {}, "native": ruleNative, "read": ruleRead}
	for _, test := range []struct {
		state ActionState
		kind  string
		s     Settlement
		want  ActionState // empty: ErrStateConflict
	}{
		{ActionDispatchCommitted, "", success, ActionSucceeded},
		{ActionExecuting, "", success, ActionSucceeded},
		{ActionUnknown, "", success, ActionReconciled},
		{ActionPrepared, "", success, ""},
		{ActionAuthorized, "", success, ""},
		{ActionAwaitingConfirmation, "", success, ""},
		{ActionRetryable, "", success, ""},

		{ActionDispatchCommitted, "", failed(ProofReported), ActionRejected},
		{ActionDispatchCommitted, "", failed(ProofNotAccepted), ActionRejected},
		{ActionDispatchCommitted, "", failed(""), ""},
		{ActionDispatchCommitted, "native", failed(""), ""},
		{ActionDispatchCommitted, "read", failed(""), ActionRejected},
		{ActionExecuting, "", failed(ProofReported), ActionRejected},
		{ActionUnknown, "", failed(ProofReported), ActionReconciled},
		{ActionUnknown, "", failed(""), ""},
		{ActionUnknown, "read", failed(""), ActionReconciled},
		{ActionPrepared, "", failed(ProofNotSent), ActionRejected},
		{ActionPrepared, "", failed(""), ""},
		{ActionRetryable, "", failed(ProofNotSent), ActionRejected},

		{ActionDispatchCommitted, "", retry(""), ""},
		{ActionDispatchCommitted, "", retry(ProofNotAccepted), ActionRetryable},
		{ActionDispatchCommitted, "", retry(ProofReported), ActionRetryable},
		{ActionDispatchCommitted, "native", retry(""), ActionRetryable},
		{ActionDispatchCommitted, "read", retry(""), ActionRetryable},
		{ActionExecuting, "", retry(""), ""},
		{ActionExecuting, "", retry(ProofReported), ActionRetryable},
		{ActionUnknown, "", retry(""), ""},
		{ActionUnknown, "native", retry(""), ""},
		{ActionUnknown, "read", retry(""), ActionRetryable},
		{ActionUnknown, "", retry(ProofNotAccepted), ActionRetryable},
		{ActionPrepared, "", retry(ProofNotSent), ""},

		{ActionDispatchCommitted, "", unknown, ActionUnknown},
		{ActionExecuting, "", unknown, ActionUnknown},
		{ActionUnknown, "", unknown, ""},
		{ActionPrepared, "", unknown, ""},
		{ActionRetryable, "", unknown, ""},
	} {
		r := ruleRecord(test.state, kinds[test.kind], ruleLeased)
		work, before := ruleWork(&r), r.Clone()
		what := fmt.Sprintf("%s with proof %q of %s %s", test.s.State, test.s.Proof, test.state, test.kind)
		told, err := r.Settle(work, &test.s, epoch)
		if test.want == "" {
			require.ErrorIs(t, err, ErrStateConflict, what)
			ruleUnchanged(t, &before, &r)
			continue
		}
		require.NoError(t, err, what)
		require.Equal(t, test.want, r.Intent.State, what)
		require.Equal(t, test.want != ActionRetryable, told, what)
		require.Zero(t, r.LeaseEndsAt, what)
		require.Equal(t, r.Intent.State.Terminal(), !r.SettledAt.IsZero(), what)
		switch test.want {
		case ActionRetryable:
			require.Equal(t, epoch.Add(time.Minute), r.DueAt, what)
			require.Nil(t, r.Receipt, what)
			require.Empty(t, r.Outcome, what)
			require.Equal(t, test.kind == "native" && test.s.Proof == "", r.Ambiguous == 1, what)
		case ActionUnknown:
			require.Equal(t, OutcomeUnknown, r.Outcome, what)
		default:
			// An agreeing repeat, from whoever it comes.
			after := r.Clone()
			work.LeaseVersion, work.LeaseOwner = 0, "other"
			told, err = r.Settle(work, &test.s, epoch.Add(time.Hour))
			require.NoError(t, err, what)
			require.False(t, told, what)
			ruleUnchanged(t, &after, &r)
			contradiction := success
			if test.s.State == ActionSucceeded {
				contradiction = failed(ProofReported)
			}
			told, err = r.Settle(work, &contradiction, epoch)
			require.ErrorIs(t, err, ErrReceiptConflict, what)
			require.False(t, told, what)
			require.Equal(t, after.Intent.State, r.Intent.State)
			require.Len(t, r.Evidence, 1)
			_, err = r.Settle(work, &unknown, epoch)
			require.ErrorIs(t, err, ErrLeaseLost, what)
		}
	}
	for _, state := range allActionStates {
		if state.Terminal() {
			continue
		}
		for name, change := range map[string]func(*IntentWork){
			"lease":   func(w *IntentWork) { w.LeaseVersion-- },
			"attempt": func(w *IntentWork) { w.Attempt++ },
		} {
			r := ruleRecord(state, ruleLeased)
			work, before := ruleWork(&r), r.Clone()
			change(work)
			_, err := r.Settle(work, &success, epoch)
			require.ErrorIs(t, err, ErrLeaseLost, "another %s of %s", name, state)
			ruleUnchanged(t, &before, &r)
		}
	}
}

// A proof about the latest attempt says nothing of one before it.
func TestSettleAmbiguous(t *testing.T) {
	marked := func(ambiguous int) IntentRecord {
		r := ruleRecord(ActionRetryable, ruleNative, func(r *IntentRecord) { r.Ambiguous = ambiguous }, ruleLeased)
		_, err := r.Mark(ruleWork(&r), ruleControl(), ruleSlot(true), epoch)
		require.NoError(t, err)
		return r
	}
	for _, test := range []struct {
		ambiguous int
		other     bool // the lease is not that of the mark
		s         Settlement
		want      ActionState
		left      int
	}{
		{0, false, Settlement{State: ActionRejected, Outcome: OutcomeFailed, Proof: ProofNotSent}, ActionRejected, 0},
		{1, false, Settlement{State: ActionRejected, Outcome: OutcomeFailed, Proof: ProofNotSent}, ActionUnknown, 1},
		{1, false, Settlement{State: ActionRejected, Outcome: OutcomeFailed, Proof: ProofNotAccepted}, ActionUnknown, 1},
		{1, false, Settlement{State: ActionRejected, Outcome: OutcomeFailed, Proof: ProofReported}, ActionRejected, 0},
		{1, false, Settlement{State: ActionSucceeded}, ActionSucceeded, 0},
		{0, false, Settlement{State: ActionRetryable, Proof: ProofNotSent}, ActionRetryable, 0},
		{1, false, Settlement{State: ActionRetryable, Proof: ProofNotSent}, ActionRetryable, 1},
		{1, false, Settlement{State: ActionRetryable, Proof: ProofReported}, ActionRetryable, 0},
		{0, false, Settlement{State: ActionRetryable}, ActionRetryable, 2},
		{0, true, Settlement{State: ActionRetryable, Proof: ProofNotSent}, ActionRetryable, 2},
		{0, true, Settlement{State: ActionRejected, Outcome: OutcomeFailed, Proof: ProofNotSent}, ActionUnknown, 0},
		{0, true, Settlement{State: ActionRejected, Outcome: OutcomeFailed, Proof: ProofNotAccepted}, ActionRejected, 0},
	} {
		r := marked(test.ambiguous)
		if test.other {
			r.Acquire("other", time.Minute, epoch)
		}
		_, err := r.Settle(ruleWork(&r), &test.s, epoch)
		require.NoError(t, err)
		require.Equal(t, test.want, r.Intent.State, "%+v", test)
		require.Equal(t, test.left, r.Ambiguous, "%+v", test)
	}

	// What takes an ambiguous intent back has it found out instead.
	for name, take := range map[string]func(*IntentRecord){
		"cancel": func(r *IntentRecord) { require.False(t, r.RequestCancel(epoch)) },
		"stale": func(r *IntentRecord) {
			task, told := r.Admit(&IntentControl{}, ruleSlot(true), epoch)
			require.Equal(t, IntentTaskRecover, task)
			require.False(t, told)
		},
		"deadline at the mark": func(r *IntentRecord) {
			ruleDeadline(0)(r)
			ruleLeased(r)
			told, err := r.Mark(ruleWork(r), ruleControl(), ruleSlot(true), epoch)
			require.ErrorIs(t, err, ErrIntentRefused)
			require.False(t, told)
		},
	} {
		r := ruleRecord(ActionRetryable, ruleNative, func(r *IntentRecord) { r.Ambiguous = 1 })
		require.True(t, r.InFlight())
		take(&r)
		require.Equal(t, ActionDispatchCommitted, r.Intent.State, name)
		require.Equal(t, epoch, r.CancelRequestedAt, name)
		require.Equal(t, epoch, r.DueAt, name)
		require.Equal(t, 1, r.Attempt, name)
		ruleLeased(&r)
		again := Settlement{State: ActionRetryable}
		told, err := r.Settle(ruleWork(&r), &again, epoch)
		require.NoError(t, err)
		require.True(t, told)
		require.Equal(t, ActionUnknown, r.Intent.State, name)
		told, err = r.Resolve("me", &IntentResolution{Kind: ResolveRepeat}, epoch)
		require.NoError(t, err)
		require.True(t, told)
		require.Equal(t, ActionReconciled, r.Intent.State, name)
	}
}

func TestSettleAgainstReceipts(t *testing.T) {
	success := &Receipt{Reference: "r", Report: Report{Status: ProviderSucceeded, Output: json.RawMessage(`1`)}}
	running := &Receipt{Reference: "r"}
	for name, test := range map[string]struct {
		stored, known *Receipt
		s             Settlement
		want          error
	}{
		"one that came since":       {running, nil, Settlement{State: ActionUnknown}, ErrStateConflict},
		"success in spite of it":    {running, nil, Settlement{State: ActionSucceeded}, nil},
		"known":                     {running, running, Settlement{State: ActionUnknown}, nil},
		"another output":            {success, success, Settlement{State: ActionSucceeded, Output: json.RawMessage(`2`)}, ErrReceiptConflict},
		"another outcome":           {success, running, Settlement{State: ActionRejected, Outcome: OutcomeFailed, Proof: ProofReported}, ErrReceiptConflict},
		"the same":                  {success, success, Settlement{State: ActionSucceeded, Output: json.RawMessage(` 1`)}, nil},
		"with another reference":    {running, running, Settlement{State: ActionSucceeded, Receipt: &Receipt{Reference: "x"}}, ErrReceiptConflict},
		"with the same reference":   {running, running, Settlement{State: ActionSucceeded, Output: json.RawMessage(`1`), Receipt: success}, nil},
		"that says something else":  {nil, nil, Settlement{State: ActionUnknown, Receipt: success}, ErrCommandRejected},
		"a first one":               {nil, nil, Settlement{State: ActionSucceeded, Output: json.RawMessage(`1`), Receipt: success}, nil},
		"retryable, no more of it":  {&Receipt{Report: Report{Status: ProviderRetryable}}, &Receipt{}, Settlement{State: ActionRejected, Outcome: OutcomeFailed, Proof: ProofReported}, nil},
		"cancelled, but as failed":  {&Receipt{Report: Report{Status: ProviderCancelled}}, &Receipt{}, Settlement{State: ActionRejected, Outcome: OutcomeFailed, Proof: ProofReported}, ErrReceiptConflict},
		"failed, but not the proof": {&Receipt{Report: Report{Status: ProviderFailed}}, &Receipt{}, Settlement{State: ActionRejected, Outcome: OutcomeFailed}, ErrStateConflict},
	} {
		r := ruleRecord(ActionExecuting, ruleLeased)
		if r.Receipt = test.stored.clone(); test.stored == nil {
			r.Intent.State = ActionDispatchCommitted
		}
		work := ruleWork(&r)
		work.Receipt = test.known.clone()
		_, err := r.Settle(work, &test.s, epoch)
		require.ErrorIs(t, err, test.want, name)
		require.Equal(t, errors.Is(test.want, ErrReceiptConflict), len(r.Evidence) == 1, name)
		if test.want == nil && test.s.Receipt != nil {
			require.Equal(t, test.s.Receipt, r.Receipt, name)
			require.NotSame(t, test.s.Receipt, r.Receipt, name)
		}
	}
}

func TestRelease(t *testing.T) {
	for _, state := range allActionStates {
		r := ruleRecord(state)
		work, before := ruleWork(&r), r.Clone()
		work.LeaseVersion--
		_, err := r.Release(work, &IntentRelease{}, epoch)
		require.ErrorIs(t, err, ErrLeaseLost, state)
		ruleUnchanged(t, &before, &r)
	}
	second := time.Second
	for name, test := range map[string]struct {
		record  IntentRecord
		claimed func(*IntentWork)
		release IntentRelease
		due     time.Duration
		looks   int
	}{
		"waiting":               {ruleRecord(ActionPrepared, ruleLeased), nil, IntentRelease{}, 0, 0},
		"waiting for long":      {ruleRecord(ActionPrepared, ruleLeased), nil, IntentRelease{After: time.Hour}, time.Hour, 0},
		"waiting to a deadline": {ruleRecord(ActionPrepared, ruleLeased, ruleDeadline(second)), nil, IntentRelease{After: time.Hour}, second, 0},
		"marked":                {ruleRecord(ActionDispatchCommitted), nil, IntentRelease{}, second, 1},
		"looked at before":      {ruleRecord(ActionDispatchCommitted, func(r *IntentRecord) { r.Looks = 3 }), nil, IntentRelease{}, 8 * second, 4},
		"looked at often":       {ruleRecord(ActionDispatchCommitted, func(r *IntentRecord) { r.Looks = maxLooks }), nil, IntentRelease{}, time.Minute, maxLooks},
		"as asked for":          {ruleRecord(ActionExecuting, ruleLeased), nil, IntentRelease{After: time.Hour}, time.Hour, 0},
		"deadline ahead":        {ruleRecord(ActionExecuting, ruleLeased, ruleDeadline(2*second)), nil, IntentRelease{After: time.Hour}, 2 * second, 0},
		"a cancel came":         {ruleRecord(ActionExecuting, ruleLeased, ruleCancelled), func(w *IntentWork) { w.CancelRequestedAt = time.Time{} }, IntentRelease{After: time.Hour}, 0, 0},
		"a cancel is known":     {ruleRecord(ActionExecuting, ruleLeased, ruleCancelled), nil, IntentRelease{}, second, 1},
		"a receipt came":        {ruleRecord(ActionExecuting, ruleLeased), func(w *IntentWork) { w.Receipt = nil }, IntentRelease{}, 0, 1},
		"the end came":          {ruleRecord(ActionExecuting, ruleLeased, ruleReceipt(Receipt{Report: Report{Status: ProviderFailed}})), func(w *IntentWork) { w.Receipt = &Receipt{} }, IntentRelease{}, 0, 1},
		"unknown":               {ruleRecord(ActionUnknown, ruleReceipt(Receipt{}), ruleLeased), nil, IntentRelease{}, second, 1},
	} {
		r := test.record.Clone()
		work := ruleWork(&r)
		if test.claimed != nil {
			test.claimed(work)
		}
		told, err := r.Release(work, &test.release, epoch)
		require.NoError(t, err, name)
		require.False(t, told, name)
		require.Equal(t, epoch.Add(test.due), r.DueAt, name)
		require.Equal(t, test.looks, r.Looks, name)
		require.Equal(t, test.record.Intent.State, r.Intent.State, name)
		require.Zero(t, r.LeaseEndsAt)
		_, err = r.Release(work, &test.release, epoch)
		require.ErrorIs(t, err, ErrLeaseLost, "again")
	}

	r := ruleRecord(ActionExecuting, ruleLeased, ruleCancelled)
	_, err := r.Release(ruleWork(&r), &IntentRelease{CancelAcknowledged: true, Diagnostic: &Diagnostic{Phase: PhaseCancel, Category: CategoryError}}, epoch)
	require.NoError(t, err)
	require.Equal(t, epoch, r.CancelAcknowledgedAt)
	require.Equal(t, &Diagnostic{Phase: PhaseCancel, Category: CategoryError, At: epoch}, r.Diagnostic)
	_, err = r.Release(ruleWork(&r), &IntentRelease{After: -1}, epoch)
	require.ErrorIs(t, err, ErrCommandRejected)
}

func TestReleaseNotHandedOff(t *testing.T) {
	notSent := &IntentRelease{NotHandedOff: true, After: time.Minute}
	r := ruleRecord(ActionPrepared, ruleLeased)
	r.MarkNow(epoch)
	told, err := r.Release(ruleWork(&r), notSent, epoch)
	require.NoError(t, err)
	require.False(t, told)
	require.Equal(t, ActionRetryable, r.Intent.State)
	require.Zero(t, r.Attempt)
	require.Equal(t, epoch.Add(time.Minute), r.DueAt)

	r = ruleRecord(ActionDispatchCommitted)
	ruleLeased(&r)
	before := r.Clone()
	_, err = r.Release(ruleWork(&r), notSent, epoch)
	require.ErrorIs(t, err, ErrStateConflict, "a mark of another lease was taken back")
	ruleUnchanged(t, &before, &r)

	r = ruleRecord(ActionPrepared, ruleLeased, ruleCancelled)
	r.MarkNow(epoch)
	told, err = r.Release(ruleWork(&r), notSent, epoch)
	require.NoError(t, err)
	require.True(t, told)
	require.Equal(t, ActionRejected, r.Intent.State)
	require.Equal(t, OutcomeWithdrawn, r.Outcome, "it was never handed off")
	require.Equal(t, CauseCancelled, r.Cause)

	r = ruleRecord(ActionRetryable, ruleNative, func(r *IntentRecord) { r.Ambiguous = 1 }, ruleLeased, ruleCancelled)
	r.MarkNow(epoch)
	told, err = r.Release(ruleWork(&r), notSent, epoch)
	require.NoError(t, err)
	require.False(t, told)
	require.Equal(t, ActionDispatchCommitted, r.Intent.State, "the attempt before is to be found out")
	require.Equal(t, 1, r.Attempt)
}

func TestRequestCancel(t *testing.T) {
	for _, state := range allActionStates {
		for _, leased := range []bool{false, true} {
			r := ruleRecord(state)
			r.endLease()
			if leased && !state.Terminal() {
				ruleLeased(&r)
			}
			before := r.Clone()
			told := r.RequestCancel(epoch)
			switch state {
			case ActionPrepared, ActionAwaitingConfirmation, ActionAuthorized, ActionRetryable:
				require.True(t, told)
				require.Equal(t, ActionRejected, r.Intent.State)
				require.Equal(t, OutcomeWithdrawn, r.Outcome)
				require.Equal(t, CauseCancelled, r.Cause)
			case ActionDispatchCommitted, ActionExecuting:
				require.Equal(t, state, r.Intent.State)
				require.Equal(t, epoch, r.CancelRequestedAt)
				if leased {
					require.Equal(t, r.LeaseEndsAt, r.DueAt)
				} else {
					require.Equal(t, epoch, r.DueAt)
				}
			case ActionUnknown:
				require.Equal(t, epoch, r.CancelRequestedAt)
				require.Equal(t, before.DueAt, r.DueAt)
			default:
				ruleUnchanged(t, &before, &r)
			}
			after := r.Clone()
			require.False(t, r.RequestCancel(epoch.Add(time.Hour)))
			ruleUnchanged(t, &after, &r)
		}
	}
	for name, test := range map[string]struct {
		deadline time.Duration
		cause    IntentCause
	}{"cancelled": {time.Hour, CauseCancelled}, "late": {-time.Hour, CauseDeadline}} {
		r := ruleRecord(ActionDispatchCommitted, ruleDeadline(test.deadline))
		r.RequestCancel(epoch)
		told, err := r.Settle(ruleWork(&r), &Settlement{State: ActionRetryable, Proof: ProofNotSent}, epoch)
		require.NoError(t, err)
		require.True(t, told, name)
		require.Equal(t, ActionRejected, r.Intent.State)
		require.Equal(t, OutcomeCancelled, r.Outcome)
		require.Equal(t, test.cause, r.Cause, name)
	}
}

func TestUnpark(t *testing.T) {
	for _, state := range allActionStates {
		for _, parked := range []IntentParking{NotParked, ParkedByPause, ParkedByLimit} {
			r := ruleRecord(state, func(r *IntentRecord) { r.Parked, r.DueAt = parked, time.Time{} })
			before := r.Clone()
			r.Unpark(epoch)
			if !before.Waiting() {
				ruleUnchanged(t, &before, &r)
				continue
			}
			require.Equal(t, NotParked, r.Parked)
			require.Equal(t, epoch, r.DueAt)
		}
	}
	r := ruleRecord(ActionPrepared, ruleLeased)
	before := r.Clone()
	r.Unpark(epoch)
	ruleUnchanged(t, &before, &r)
}

func TestConfirmAndDeny(t *testing.T) {
	for _, state := range allActionStates {
		r := ruleRecord(state)
		before := r.Clone()
		err := r.Confirm("me", epoch)
		if state != ActionAwaitingConfirmation {
			require.ErrorIs(t, err, ErrIntentConflict, state)
			_, err = r.Deny("me", "", epoch)
			require.ErrorIs(t, err, ErrIntentConflict, state)
			ruleUnchanged(t, &before, &r)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, ActionAuthorized, r.Intent.State)
		require.Equal(t, &Confirmation{By: "me", At: epoch}, r.Intent.Confirmation)
		require.Equal(t, epoch, r.DueAt)
		after := r.Clone()
		require.NoError(t, r.Confirm("another", epoch.Add(1)))
		ruleUnchanged(t, &after, &r)
		_, err = r.Deny("another", "", epoch)
		require.ErrorIs(t, err, ErrIntentConflict)
		r.Intent.State, r.Outcome, r.Cause = ActionSucceeded, OutcomeSucceeded, CauseReported
		require.NoError(t, r.Confirm("me", epoch), "it was confirmed, also when it is settled")
	}
	r := ruleRecord(ActionAwaitingConfirmation)
	require.ErrorContains(t, r.Confirm(" ", epoch), "by is blank")
	_, err := r.Deny("", "", epoch)
	require.ErrorContains(t, err, "by is blank")
	told, err := r.Deny("me", "too dear\x00", epoch)
	require.NoError(t, err)
	require.True(t, told)
	require.Equal(t, ActionRejected, r.Intent.State)
	require.Equal(t, OutcomeWithdrawn, r.Outcome)
	require.Equal(t, CauseDenied, r.Cause)
	require.Equal(t, "too dear\uFFFD", r.Reason)
	after := r.Clone()
	told, err = r.Deny("another", "other", epoch)
	require.NoError(t, err)
	require.False(t, told)
	require.ErrorIs(t, r.Confirm("me", epoch), ErrIntentConflict)
	ruleUnchanged(t, &after, &r)
}

func TestResolve(t *testing.T) {
	answers := []IntentResolution{
		{Kind: ResolveSucceeded, Output: json.RawMessage(`{"n":1}`)},
		{Kind: ResolveFailed, Reason: "no"},
		{Kind: ResolveRepeat},
	}
	for _, state := range allActionStates {
		if state == ActionUnknown {
			continue
		}
		for n := range answers {
			r := ruleRecord(state)
			before := r.Clone()
			_, err := r.Resolve("me", &answers[n], epoch)
			require.ErrorIs(t, err, ErrIntentConflict, state)
			ruleUnchanged(t, &before, &r)
		}
	}
	for n, answer := range answers {
		r := ruleRecord(ActionUnknown)
		answer.Attempt = 2
		_, err := r.Resolve("me", &answer, epoch)
		require.ErrorIs(t, err, ErrIntentConflict, "the answer is about another attempt")
		answer.Attempt = n % 2 // also the latest
		told, err := r.Resolve("me", &answer, epoch)
		require.NoError(t, err)
		require.Equal(t, "me", r.Resolved.By)
		require.Equal(t, 1, r.Resolved.Attempt)
		require.Equal(t, answer.Kind != ResolveRepeat, told)
		switch answer.Kind {
		case ResolveRepeat:
			require.Equal(t, ActionRetryable, r.Intent.State)
			require.Equal(t, epoch, r.DueAt)
		case ResolveSucceeded:
			require.Equal(t, ActionReconciled, r.Intent.State)
			require.Equal(t, OutcomeSucceeded, r.Outcome)
			require.Equal(t, CauseResolved, r.Cause)
			require.JSONEq(t, `{"n":1}`, string(r.Output))
		case ResolveFailed:
			require.Equal(t, ActionReconciled, r.Intent.State)
			require.Equal(t, OutcomeFailed, r.Outcome)
			require.Equal(t, "no", r.Reason)
		}
		after := r.Clone()
		told, err = r.Resolve("another", &answer, epoch)
		require.NoError(t, err, "again")
		require.False(t, told)
		other := answers[(n+1)%len(answers)]
		_, err = r.Resolve("me", &other, epoch)
		require.ErrorIs(t, err, ErrIntentConflict)
		ruleUnchanged(t, &after, &r)
	}
	r := ruleRecord(ActionUnknown, ruleCancelled)
	told, err := r.Resolve("me", &IntentResolution{Kind: ResolveRepeat}, epoch)
	require.NoError(t, err)
	require.True(t, told)
	require.Equal(t, ActionReconciled, r.Intent.State)
	require.Equal(t, OutcomeFailed, r.Outcome)
	require.Equal(t, CauseCancelled, r.Cause)
	r = ruleRecord(ActionUnknown)
	_, err = r.Resolve("", &answers[0], epoch)
	require.ErrorContains(t, err, "by is blank")
	_, err = r.Resolve("me", &IntentResolution{Kind: "?"}, epoch)
	require.ErrorContains(t, err, `Kind "?"`)
}

func TestAcquireAndExtend(t *testing.T) {
	r := ruleRecord(ActionPrepared, func(r *IntentRecord) { r.Parked = ParkedByLimit })
	r.Acquire("d", time.Minute, epoch)
	require.Equal(t, int64(1), r.LeaseVersion)
	require.Equal(t, "d", r.LeaseOwner)
	require.Equal(t, NotParked, r.Parked)
	require.Equal(t, epoch.Add(time.Minute), r.DueAt)
	require.True(t, r.Leased(epoch.Add(time.Minute-1)))
	require.False(t, r.Leased(epoch.Add(time.Minute)))
	r.Extend(1<<63-1, endOfCalendar().Add(-1))
	require.False(t, r.LeaseEndsAt.After(endOfCalendar()))
	require.True(t, slices.Contains(allActionStates, r.Intent.State))
}
