package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestDispatchSettlesAndTellsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := queueWithIntents(t, of("i", IdempotencyNone))
		provider := &testProvider{onDispatch: func(ctx context.Context, handoff *Handoff) (Receipt, error) {
			require.Equal(t, "key-i", handoff.Intent.IdempotencyKey)
			require.Equal(t, "t1/a/i/1", handoff.Identity())
			require.Equal(t, time.Now().UTC(), handoff.MarkedAt)
			require.JSONEq(t, `{"amount":"1.00"}`, string(handoff.Intent.Input))
			deadline, limited := ctx.Deadline()
			require.True(t, limited)
			require.Equal(t, 30*time.Second, time.Until(deadline))
			time.Sleep(3 * time.Second)
			return succeeded(`{"receipt":17}`), nil
		}}
		registry := providers(t, provider, ProviderOptions{})
		markedAt := time.Now().UTC()
		stats, err := dispatchOnce(t, q, registry)
		require.NoError(t, err)
		require.Equal(t, DispatchStats{Claimed: 1, HandedOff: 1, Succeeded: 1}, stats)

		record := intentsOf(t, q)["i"]
		require.Equal(t, ActionSucceeded, record.Intent.State)
		require.Equal(t, markedAt, record.MarkedAt, "the hand-off began before the work ended")
		require.Equal(t, markedAt.Add(3*time.Second), record.SettledAt)
		require.Equal(t, []ActionResult{{
			IntentID: "i", Capability: testPin, State: ActionSucceeded, Outcome: OutcomeSucceeded, Cause: CauseReported,
			Attempt: 1, Output: json.RawMessage(`{"receipt":17}`),
		}}, results(t, q))

		require.Zero(t, dispatchUntil(t, q, registry))
		require.Equal(t, []string{"i#1"}, provider.handedOff())
		require.Len(t, results(t, q), 1)
	})
}

// TestHowADispatchEnds goes through every way in which a call can end, for each
// retry class, and through what follows from it at last.
func TestHowADispatchEnds(t *testing.T) {
	type ending struct {
		dispatch func(ctx context.Context) (Receipt, error)
		// what becomes of an intent of class none, of how many calls of it, and
		// of native ones, which may be repeated.
		state    ActionState
		cause    IntentCause
		calls    int
		native   ActionState
		category DiagnosticCategory
	}
	var typedNil *PanicError
	ambiguous := func(category DiagnosticCategory, dispatch func(context.Context) (Receipt, error)) ending {
		return ending{dispatch, ActionUnknown, CauseAmbiguous, 1, ActionUnknown, category}
	}
	for name, test := range map[string]ending{
		"a success": {func(context.Context) (Receipt, error) { return succeeded(`1`), nil },
			ActionSucceeded, CauseReported, 1, ActionSucceeded, ""},
		"a failure": {func(context.Context) (Receipt, error) {
			return Receipt{Report: Report{Status: ProviderFailed, Reason: "declined"}}, nil
		}, ActionRejected, CauseReported, 1, ActionRejected, ""},
		"cancelled": {func(context.Context) (Receipt, error) {
			return Receipt{Report: Report{Status: ProviderCancelled}}, nil
		}, ActionRejected, CauseReported, 1, ActionRejected, ""},
		"retryable": {func(context.Context) (Receipt, error) {
			return Receipt{Report: Report{Status: ProviderRetryable}}, nil
		}, ActionRejected, CauseAttempts, 3, ActionRejected, ""},
		"not sent": {func(context.Context) (Receipt, error) { return Receipt{}, NotSent(errPlanned) },
			ActionRejected, CauseAttempts, 3, ActionRejected, CategoryNotSent},
		"refused": {func(context.Context) (Receipt, error) { return Receipt{}, Refused(errPlanned) },
			ActionRejected, CauseRefused, 1, ActionRejected, CategoryRefused},
		"lost track": {func(context.Context) (Receipt, error) {
			return Receipt{Report: Report{Status: ProviderUnknown}}, nil
		}, ActionUnknown, CauseAmbiguous, 1, ActionUnknown, ""},
		"an error": ambiguous(CategoryError, func(context.Context) (Receipt, error) { return Receipt{}, errPlanned }),
		"an error beside a receipt": ambiguous(CategoryError, func(context.Context) (Receipt, error) {
			return succeeded(`1`), errPlanned
		}),
		"a nil pointer as error": ambiguous(CategoryError, func(context.Context) (Receipt, error) { return succeeded(`1`), typedNil }),
		"a panic":                ambiguous(CategoryPanic, func(context.Context) (Receipt, error) { panic("secret") }),
		"Goexit": ambiguous(CategoryPanic, func(context.Context) (Receipt, error) {
			runtime.Goexit()
			return Receipt{}, nil
		}),
		"its timeout": ambiguous(CategoryTimeout, func(ctx context.Context) (Receipt, error) {
			<-ctx.Done()
			return Receipt{}, ctx.Err()
		}),
		"a call that never ends": ambiguous(CategoryAbandoned, func(context.Context) (Receipt, error) {
			time.Sleep(30 * time.Minute)
			return Receipt{}, errPlanned
		}),
		"an invalid receipt": ambiguous(CategoryInvalid, func(context.Context) (Receipt, error) {
			return succeeded(`{`), nil
		}),
		"an unknown status": ambiguous(CategoryInvalid, func(context.Context) (Receipt, error) {
			return Receipt{Report: Report{Status: "perhaps"}}, nil
		}),
	} {
		for _, class := range []IdempotencyMode{IdempotencyNone, IdempotencyNeverAutomaticRetry, IdempotencyNative, IdempotencyReconcileBeforeRetry} {
			t.Run(name+" of class "+string(class), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					q := queueWithIntents(t, of("i", class))
					provider := &testProvider{onDispatch: func(ctx context.Context, _ *Handoff) (Receipt, error) { return test.dispatch(ctx) }}
					dispatchUntil(t, q, providers(t, provider, ProviderOptions{
						Retry: RetryPolicy{Attempts: 3}, Breaker: BreakerPolicy{Failures: 1000},
					}))
					record := intentsOf(t, q)["i"]
					state, calls := test.state, test.calls
					if class == IdempotencyNative {
						state = test.native
						if state == ActionUnknown {
							calls = 3 // under the same key
						}
					}
					require.Equal(t, state, record.Intent.State)
					require.Equal(t, test.cause, record.Cause)
					require.Len(t, provider.handedOff(), calls)
					require.Equal(t, calls, record.Attempt)
					if test.category != "" {
						require.NotNil(t, record.Diagnostic)
						require.Equal(t, PhaseDispatch, record.Diagnostic.Phase)
						require.Equal(t, test.category, record.Diagnostic.Category)
					}
					stored, err := json.Marshal(record)
					require.NoError(t, err)
					require.NotContains(t, string(stored), "secret")
					require.NotContains(t, string(stored), errPlanned.Error())
					told := results(t, q)
					require.Len(t, told, 1)
					require.Equal(t, state, told[0].State)
				})
			})
		}
	}
}

func TestRepeatsUseTheSameKeyAndTheNextIdentity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := queueWithIntents(t, of("i", IdempotencyNative))
		var keys []string
		var at []time.Time
		provider := &testProvider{}
		provider.onDispatch = func(_ context.Context, handoff *Handoff) (Receipt, error) {
			keys = append(keys, handoff.Intent.IdempotencyKey)
			at = append(at, time.Now())
			if len(keys) < 4 {
				return Receipt{}, errPlanned
			}
			return succeeded(`1`), nil
		}
		dispatchUntil(t, q, providers(t, provider, ProviderOptions{Retry: RetryPolicy{Delay: 10 * time.Second, Multiplier: 3, MaxDelay: time.Minute}}))
		require.Equal(t, []string{"key-i", "key-i", "key-i", "key-i"}, keys)
		require.Equal(t, []string{"i#1", "i#2", "i#3", "i#4"}, provider.handedOff())
		for n, delay := range []time.Duration{10 * time.Second, 30 * time.Second, time.Minute} {
			require.WithinDuration(t, at[n].Add(delay), at[n+1], time.Second, "attempt %d", n+2)
		}
		require.Equal(t, ActionSucceeded, intentsOf(t, q)["i"].Intent.State)
	})
}

func TestPassChecksItsArguments(t *testing.T) {
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	registry := providers(t, &testProvider{}, ProviderOptions{})
	q := NewMemoryWorkQueue()
	for name, test := range map[string]struct {
		ctx      context.Context
		queue    IntentQueue
		registry *ProviderRegistry
		settings Settings
		says     string
	}{
		"no queue":         {t.Context(), nil, registry, Settings{}, "queue is nil"},
		"no providers":     {t.Context(), q, nil, Settings{}, "providers is nil"},
		"invalid settings": {t.Context(), q, registry, Settings{Concurrency: -1}, "Concurrency is -1"},
		"ended context":    {cancelled, q, registry, Settings{}, "nothing was claimed"},
		"nothing to do":    {t.Context(), q, NewProviderRegistry(), Settings{}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			stats, err := RunDispatchPass(test.ctx, test.queue, test.registry, test.settings)
			require.Zero(t, stats)
			if test.says == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, test.says)
		})
	}
	_, err := NewDispatcher(nil, nil, Settings{PollInterval: -1})
	for _, part := range []string{"queue is nil", "providers is nil", "PollInterval is -1ns"} {
		require.ErrorContains(t, err, part)
	}
}

func TestRegisteringProviders(t *testing.T) {
	var nobody *testProvider
	for name, test := range map[string]struct {
		pin      CapabilityPin
		provider Provider
		options  ProviderOptions
		says     string
	}{
		"blank pin":           {CapabilityPin{}, &testProvider{}, ProviderOptions{}, "pin.ID is blank"},
		"no provider":         {testPin, nil, ProviderOptions{}, "provider is nil"},
		"a nil pointer":       {testPin, nobody, ProviderOptions{}, "provider is nil"},
		"negative timeout":    {testPin, &testProvider{}, ProviderOptions{Timeout: -1}, "Timeout is -1ns"},
		"negative attempts":   {testPin, &testProvider{}, ProviderOptions{Retry: RetryPolicy{Attempts: -2}}, "Retry.Attempts is -2"},
		"cap below the delay": {testPin, &testProvider{}, ProviderOptions{Retry: RetryPolicy{Delay: 9, MaxDelay: 8}}, "Retry.MaxDelay is 8ns"},
		"negative failures":   {testPin, &testProvider{}, ProviderOptions{Breaker: BreakerPolicy{Failures: -1}}, "Breaker.Failures is -1"},
		"registered before":   {CapabilityPin{"b", "1", "d"}, &testProvider{}, ProviderOptions{}, "has a provider already"},
	} {
		t.Run(name, func(t *testing.T) {
			registry := NewProviderRegistry()
			require.NoError(t, registry.Register(CapabilityPin{"b", "1", "d"}, &testProvider{}, ProviderOptions{}))
			require.NoError(t, registry.Register(CapabilityPin{"b", "1", "c"}, &testProvider{}, ProviderOptions{}))
			require.ErrorContains(t, registry.Register(test.pin, test.provider, test.options), test.says)
			require.Equal(t, []CapabilityPin{{"b", "1", "c"}, {"b", "1", "d"}}, registry.Capabilities())
		})
	}
}

func TestRetryPolicy(t *testing.T) {
	resolved, err := ProviderOptions{}.resolved()
	require.NoError(t, err)
	for attempts, want := range []time.Duration{1: time.Second, 2: 2 * time.Second, 3: 4 * time.Second, 4: 8 * time.Second} {
		if attempts == 0 {
			continue
		}
		delay, again := resolved.Retry.next(attempts)
		require.True(t, again)
		require.Equal(t, want, delay)
	}
	_, again := resolved.Retry.next(5)
	require.False(t, again, "attempts are counted in all")
	once, err := ProviderOptions{Retry: RetryPolicy{Attempts: 1}}.resolved()
	require.NoError(t, err)
	_, again = once.Retry.next(1)
	require.False(t, again)
	flat, err := ProviderOptions{Retry: RetryPolicy{Attempts: 1 << 30, Multiplier: 1, Delay: time.Minute, MaxDelay: time.Hour}}.resolved()
	require.NoError(t, err)
	delay, _ := flat.Retry.next(1000)
	require.Equal(t, time.Minute, delay)
	steep, err := ProviderOptions{Retry: RetryPolicy{Attempts: 1 << 30, Multiplier: 1 << 40, MaxDelay: 1 << 62}}.resolved()
	require.NoError(t, err)
	delay, _ = steep.Retry.next(1 << 20)
	require.Equal(t, time.Duration(1<<62), delay, "without overflow")
}

func TestWhatProvidersSayOfErrors(t *testing.T) {
	require.NoError(t, NotSent(nil))
	require.NoError(t, Refused(nil))
	require.ErrorIs(t, NotSent(errPlanned), errPlanned)
	require.ErrorIs(t, Refused(errPlanned), errPlanned)
	require.True(t, isNotSent(errors.Join(errPlanned, NotSent(errPlanned))))
	require.False(t, isRefused(NotSent(errPlanned)))
}
