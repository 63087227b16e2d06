package supervisor

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// asynchronous is a provider that accepts everything and whose work is observed.
func asynchronous(observe func(receipt Receipt) (Report, error)) *ableProvider {
	return &ableProvider{
		testProvider: testProvider{onDispatch: func(context.Context, *Handoff) (Receipt, error) { return running("ref"), nil }},
		onObserve:    func(_ *Handoff, receipt Receipt) (Report, error) { return observe(receipt) },
		onReconcile:  func(*Handoff) (Reconciliation, error) { return CannotTell{}, nil },
		onCancel:     func(*Handoff, Receipt) error { return nil },
	}
}

// TestRhythmOfLooks: 1 s, doubling to 1 min, unless the provider says when.
func TestRhythmOfLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := queueWithIntents(t, of("i", IdempotencyNone))
		var looks []time.Time
		provider := asynchronous(func(receipt Receipt) (Report, error) {
			require.Equal(t, "ref", receipt.Reference)
			looks = append(looks, time.Now())
			switch len(looks) {
			case 9:
				return Report{After: 5 * time.Minute}, nil
			case 10:
				return Report{Status: ProviderSucceeded}, nil
			case 4:
				return Report{}, errPlanned // says nothing about the work
			}
			return Report{Status: ProviderRunning}, nil
		})
		began := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		dispatcher, err := NewDispatcher(q, providers(t, provider, ProviderOptions{}), Settings{})
		require.NoError(t, err)
		done := make(chan error)
		go func() { done <- dispatcher.Run(ctx) }()
		time.Sleep(time.Hour)
		cancel()
		require.NoError(t, <-done)
		require.Len(t, looks, 10)
		last := began
		for n, want := range []int{1, 1, 2, 4, 8, 16, 32, 60, 60, 300} {
			require.InDelta(t, time.Duration(want)*time.Second, looks[n].Sub(last), float64(200*time.Millisecond), "look %d", n+1)
			last = looks[n]
		}
		require.Equal(t, ActionSucceeded, intentsOf(t, q)["i"].Intent.State)
		require.Equal(t, DispatchStats{Claimed: 11, HandedOff: 1, Accepted: 1, Succeeded: 1}, dispatcher.Stats())
	})
}

// TestAFailedLookDoesNotSlowDownKnownWork: the provider says when to look, fails
// once, and is asked again after a second.
func TestAFailedLookDoesNotSlowDownKnownWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := queueWithIntents(t, of("i", IdempotencyNone))
		var looks []time.Time
		provider := asynchronous(func(Receipt) (Report, error) {
			looks = append(looks, time.Now())
			switch len(looks) {
			case 11:
				return Report{}, errPlanned
			case 12:
				return Report{Status: ProviderSucceeded}, nil
			}
			return Report{After: 5 * time.Second}, nil
		})
		_, stop := runDispatcher(t, q, providers(t, provider, ProviderOptions{}), Settings{})
		time.Sleep(time.Hour)
		stop()
		require.Len(t, looks, 12)
		require.InDelta(t, time.Second, looks[11].Sub(looks[10]), float64(200*time.Millisecond))
	})
}

func TestWhatObservationsSettle(t *testing.T) {
	for name, test := range map[string]struct {
		class   IdempotencyMode
		report  Report
		state   ActionState
		outcome IntentOutcome
		calls   int
	}{
		"a success":              {IdempotencyNone, succeeded(`1`).Report, ActionSucceeded, OutcomeSucceeded, 1},
		"a failure":              {IdempotencyNone, Report{Status: ProviderFailed}, ActionRejected, OutcomeFailed, 1},
		"cancelled":              {IdempotencyNone, Report{Status: ProviderCancelled}, ActionRejected, OutcomeCancelled, 1},
		"retryable to the bound": {IdempotencyNone, Report{Status: ProviderRetryable}, ActionRejected, OutcomeFailed, 3},
		"lost track of a write":  {IdempotencyNone, Report{Status: ProviderUnknown}, ActionUnknown, OutcomeUnknown, 1},
		"lost track of a repeatable one": {
			IdempotencyNative, Report{Status: ProviderUnknown}, ActionUnknown, OutcomeUnknown, 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := queueWithIntents(t, of("i", test.class))
				provider := asynchronous(func(Receipt) (Report, error) { return test.report, nil })
				dispatchUntil(t, q, providers(t, provider, ProviderOptions{Retry: RetryPolicy{Attempts: 3}}))
				record := intentsOf(t, q)["i"]
				require.Equal(t, test.state, record.Intent.State)
				require.Equal(t, test.outcome, record.Outcome)
				require.Len(t, provider.handedOff(), test.calls)
			})
		})
	}
}

// TestWorkThatNobodyCanObserve ends by a receipt from elsewhere.
func TestWorkThatNobodyCanObserve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := queueWithIntents(t, of("i", IdempotencyNone))
		registry := providers(t, &testProvider{onDispatch: func(context.Context, *Handoff) (Receipt, error) {
			return running("ref"), nil
		}}, ProviderOptions{})
		dispatchUntil(t, q, registry)
		record := intentsOf(t, q)["i"]
		require.Equal(t, ActionExecuting, record.Intent.State)
		receipt := succeeded(`7`)
		receipt.Reference = "ref"
		require.NoError(t, q.RecordReceipt(t.Context(), &IntentWork{IntentRecord: record}, receipt))
		dispatchUntil(t, q, registry)
		require.Equal(t, ActionSucceeded, intentsOf(t, q)["i"].Intent.State)
		require.Len(t, results(t, q), 1)
	})
}

func TestCancelReachesTheProviderUntilItAcknowledges(t *testing.T) {
	for name, test := range map[string]struct {
		report  Report
		state   ActionState
		outcome IntentOutcome
	}{
		"and stops the work":          {Report{Status: ProviderCancelled}, ActionRejected, OutcomeCancelled},
		"too late: it has succeeded":  {succeeded(`1`).Report, ActionSucceeded, OutcomeSucceeded},
		"and makes it fail for now":   {Report{Status: ProviderRetryable}, ActionRejected, OutcomeCancelled},
		"and loses track of its work": {Report{Status: ProviderUnknown}, ActionUnknown, OutcomeUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := queueWithIntents(t, of("i", IdempotencyNone), of("waits", IdempotencyNone, func(i *ActionIntent) { i.RequiresConfirmation = true }))
				asked := 0
				provider := asynchronous(func(Receipt) (Report, error) {
					if asked < 3 {
						return Report{}, nil
					}
					return test.report, nil
				})
				provider.onCancel = func(*Handoff, Receipt) error {
					if asked++; asked < 3 {
						return errPlanned
					}
					return nil
				}
				registry := providers(t, provider, ProviderOptions{})
				_, err := dispatchOnce(t, q, registry)
				require.NoError(t, err)
				require.NoError(t, q.Cancel(t.Context(), "t1", "a"))
				records := intentsOf(t, q)
				require.Equal(t, ActionRejected, records["waits"].Intent.State, "in the same transaction")
				require.Equal(t, OutcomeWithdrawn, records["waits"].Outcome)
				require.Equal(t, ActionExecuting, records["i"].Intent.State)
				dispatchUntil(t, q, registry)
				require.Equal(t, 3, asked, "again after errors, never after the acknowledgement")
				record := intentsOf(t, q)["i"]
				require.Equal(t, test.state, record.Intent.State)
				require.Equal(t, test.outcome, record.Outcome)
				require.Equal(t, []string{"i#1"}, provider.handedOff())
			})
		})
	}
}

// TestCancelOfAnAmbiguousHandOff: whoever was orphaned in mid-call.
func TestCancelOfAnAmbiguousHandOff(t *testing.T) {
	for name, test := range map[string]struct {
		class   IdempotencyMode
		effect  Effect
		answer  Reconciliation // nil: no reconciler
		state   ActionState
		outcome IntentOutcome
	}{
		"a read is cancelled":                 {IdempotencyNone, EffectRead, nil, ActionRejected, OutcomeCancelled},
		"a write is unknown":                  {IdempotencyNone, EffectExternalWrite, nil, ActionUnknown, OutcomeUnknown},
		"a native write is not repeated":      {IdempotencyNative, EffectExternalWrite, nil, ActionUnknown, OutcomeUnknown},
		"a native write is asked for":         {IdempotencyNative, EffectExternalWrite, NotAccepted{Final: true}, ActionRejected, OutcomeCancelled},
		"a reconciled write was accepted":     {IdempotencyReconcileBeforeRetry, EffectExternalWrite, Accepted{succeeded(`1`)}, ActionSucceeded, OutcomeSucceeded},
		"a reconciled write was not accepted": {IdempotencyReconcileBeforeRetry, EffectExternalWrite, NotAccepted{Final: true}, ActionRejected, OutcomeCancelled},
		"a reconciler that cannot tell":       {IdempotencyReconcileBeforeRetry, EffectExternalWrite, CannotTell{}, ActionUnknown, OutcomeUnknown},
		"an answer that is not final":         {IdempotencyReconcileBeforeRetry, EffectExternalWrite, NotAccepted{}, ActionUnknown, OutcomeUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := queueWithIntents(t, of("i", test.class, func(i *ActionIntent) { i.Effect = test.effect }))
				ctx, cancel := context.WithCancel(t.Context())
				mortal := &mortalQueue{IntentQueue: q, die: cancel}
				dispatch := testProvider{onDispatch: func(context.Context, *Handoff) (Receipt, error) {
					mortal.crash()
					return Receipt{}, errPlanned
				}}
				var provider Provider = &dispatch
				if test.answer != nil {
					provider = &reconcilingProvider{testProvider{onDispatch: dispatch.onDispatch}, func(*Handoff) (Reconciliation, error) { return test.answer, nil }}
				}
				registry := providers(t, provider, ProviderOptions{})
				_, _ = RunDispatchPass(ctx, mortal, registry, Settings{DrainTimeout: time.Second})
				require.Equal(t, ActionDispatchCommitted, intentsOf(t, q)["i"].Intent.State)
				require.NoError(t, q.Cancel(t.Context(), "t1", "a"))
				dispatchUntil(t, q, registry)
				record := intentsOf(t, q)["i"]
				require.Equal(t, test.state, record.Intent.State)
				require.Equal(t, test.outcome, record.Outcome)
				require.Equal(t, 1, record.Attempt)
			})
		})
	}
}
