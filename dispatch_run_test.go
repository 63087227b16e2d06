package supervisor

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// runDispatcher runs a dispatcher until the returned function is called.
func runDispatcher(t *testing.T, q IntentQueue, registry *ProviderRegistry, settings Settings) (dispatcher *Dispatcher, stop func()) {
	t.Helper()
	dispatcher, err := NewDispatcher(q, registry, settings)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- dispatcher.Run(ctx) }()
	return dispatcher, func() {
		cancel()
		require.NoError(t, <-done)
	}
}

// TestSupervisorAndDispatcherTogether: an instance asks for an effect and goes
// on by its result, without anybody's polling.
func TestSupervisorAndDispatcherTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		item := memItem("a")
		item.CapabilityPins = []CapabilityPin{testPin}
		q := NewMemoryWorkQueue(item)
		var results []ActionResult
		registry := testRegistry(func(_ context.Context, item *WorkItem) (TransitionCommand, error) {
			if len(item.Wakeups) == 0 {
				command, err := NewCommand(item, "asked", nil, nil, Reschedule{At: time.Now().Add(1000 * time.Hour)})
				command.ActionIntents = []ActionIntent{testIntent(item, "i", IdempotencyNone)}
				return command, err
			}
			result, err := ParseActionResult(&item.Wakeups[0])
			if err != nil {
				return TransitionCommand{}, err
			}
			results = append(results, result)
			command, err := NewCommand(item, "told", nil, nil, Complete{})
			command.ConsumedWakeups = []string{item.Wakeups[0].ID}
			return command, err
		})
		supervisor, err := New(q, registry, Settings{PollInterval: time.Hour}, noContext)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- supervisor.Run(ctx) }()
		_, stop := runDispatcher(t, q, providers(t, &testProvider{}, ProviderOptions{}), Settings{PollInterval: time.Hour})
		time.Sleep(time.Second)
		stop()
		cancel()
		require.NoError(t, <-done)
		require.Len(t, results, 1)
		require.Equal(t, OutcomeSucceeded, results[0].Outcome)
		snapshot, err := q.Get(t.Context(), "t1", "a")
		require.NoError(t, err)
		require.Equal(t, StatusCompleted, snapshot.Status)
	})
}

func TestShutdownOfADispatcher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := queueWithIntents(t, of("heeds", IdempotencyNone), of("ends", IdempotencyNone), of("native", IdempotencyNative))
		provider := &testProvider{onDispatch: func(ctx context.Context, handoff *Handoff) (Receipt, error) {
			if handoff.Intent.ID == "ends" {
				time.Sleep(20 * time.Second) // within the drain
				return succeeded(`1`), nil
			}
			<-ctx.Done()
			require.ErrorIs(t, context.Cause(ctx), ErrShutdown)
			return Receipt{}, ctx.Err()
		}}
		dispatcher, stop := runDispatcher(t, q, providers(t, provider, ProviderOptions{Timeout: time.Hour}), Settings{DrainTimeout: 30 * time.Second})
		time.Sleep(time.Second)
		began := time.Now()
		require.Error(t, dispatcher.Run(t.Context()), "one at a time")
		stop()
		require.Equal(t, 30*time.Second, time.Since(began))
		records := intentsOf(t, q)
		require.Equal(t, ActionSucceeded, records["ends"].Intent.State)
		require.Equal(t, ActionUnknown, records["heeds"].Intent.State, "as after a crash")
		require.Equal(t, ActionRetryable, records["native"].Intent.State, "it may be repeated")
		require.Equal(t, CategoryShutdown, records["native"].Diagnostic.Category)
	})
}

func TestWhatIsClaimedAtTheEndIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := queueWithIntents(t, of("i", IdempotencyNative), of("j", IdempotencyNone))
		provider := &testProvider{}
		registry := providers(t, provider, ProviderOptions{})
		ctx, cancel := context.WithCancel(t.Context())
		_, err := RunDispatchPass(ctx, claimThen{q, cancel}, registry, Settings{})
		require.NoError(t, err)
		require.Empty(t, provider.handedOff())
		for id, record := range intentsOf(t, q) {
			require.Zero(t, record.Attempt, id)
			require.False(t, record.Leased(time.Now()), id)
		}
		dispatchUntil(t, q, registry)
		require.Len(t, provider.handedOff(), 2)
	})
}

// claimThen does something after each claim.
type claimThen struct {
	IntentQueue
	do func()
}

func (q claimThen) ClaimIntents(ctx context.Context, req IntentClaimRequest) ([]IntentWork, error) {
	defer q.do()
	return q.IntentQueue.ClaimIntents(ctx, req)
}

// TestBreaker: a provider that is down gets one call per rest, and its intents
// keep their attempts; another provider is not affected.
func TestBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		otherPin := CapabilityPin{ID: "mail", ContractVersion: "1", ContentDigest: "x"}
		item := memItem("a")
		item.CapabilityPins = []CapabilityPin{testPin, otherPin}
		q := NewMemoryWorkQueue(item)
		var all []func(*WorkItem) ActionIntent
		for n := range 40 {
			all = append(all, of(fmt.Sprint("charge", n), IdempotencyNone))
			all = append(all, of(fmt.Sprint("mail", n), IdempotencyNone, func(i *ActionIntent) { i.Capability = otherPin }))
		}
		commitIntents(t, q, all...)
		began := time.Now()
		var mu sync.Mutex
		var failedAt []time.Duration
		charge := &testProvider{onDispatch: func(context.Context, *Handoff) (Receipt, error) {
			mu.Lock()
			defer mu.Unlock()
			if since := time.Since(began); since < 10*time.Minute {
				failedAt = append(failedAt, since)
				return Receipt{}, NotSent(errPlanned)
			}
			return succeeded(`1`), nil
		}}
		mail := &testProvider{}
		registry := providers(t, charge, ProviderOptions{
			Retry: RetryPolicy{Attempts: 100}, Breaker: BreakerPolicy{Failures: 3, RestDelay: time.Minute},
		})
		require.NoError(t, registry.Register(otherPin, mail, ProviderOptions{}))
		dispatcher, stop := runDispatcher(t, q, registry, Settings{Concurrency: 2})
		time.Sleep(9 * time.Second)
		mu.Lock()
		require.LessOrEqual(t, len(failedAt), 4, "open after three, with what was in flight")
		mu.Unlock()
		require.Len(t, mail.handedOff(), 40, "the other provider goes on")
		time.Sleep(time.Hour)
		stop()
		require.LessOrEqual(t, len(failedAt), 16, "a probe a minute")
		require.GreaterOrEqual(t, len(failedAt), 10)
		require.Equal(t, 80, dispatcher.Stats().Succeeded)
	})
}

func TestPausedIntentsAreSentOrWithdrawnAfterResume(t *testing.T) {
	for name, test := range map[string]struct {
		scope Scope
		state ActionState
	}{
		"tenant":         {Scope{TenantID: "t1"}, ActionRejected},
		"instance":       {Scope{TenantID: "t1", InstanceID: "a"}, ActionRejected},
		"its resource":   {Scope{TenantID: "t1", ResourceID: "r"}, ActionRejected},
		"other resource": {Scope{TenantID: "t1", ResourceID: "other"}, ActionSucceeded},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := queueWithIntents(t, of("i", IdempotencyNone, func(i *ActionIntent) { i.ResourceScopeID = "r" }))
				provider := &testProvider{}
				registry := providers(t, provider, ProviderOptions{})
				require.NoError(t, q.Pause(t.Context(), test.scope))
				_, stop := runDispatcher(t, q, registry, Settings{})
				time.Sleep(time.Hour)
				if test.state != ActionSucceeded {
					require.Equal(t, ActionPrepared, intentsOf(t, q)["i"].Intent.State, "neither sent nor settled")
				}
				require.NoError(t, q.Resume(t.Context(), test.scope))
				time.Sleep(time.Minute)
				stop()
				record := intentsOf(t, q)["i"]
				require.Equal(t, test.state, record.Intent.State)
				if test.state == ActionRejected {
					require.Equal(t, CauseStaleEpoch, record.Cause)
					require.Empty(t, provider.handedOff())
				}
				require.Len(t, results(t, q), 1)
			})
		})
	}
}

// TestLimitsHoldOverAllDispatchers runs several dispatchers on one limit and
// counts what is in flight.
func TestLimitsHoldOverAllDispatchers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all []func(*WorkItem) ActionIntent
		for n := range 30 {
			class := IdempotencyNone
			if n%2 == 0 {
				class = IdempotencyNative
			}
			all = append(all, of(fmt.Sprint(n), class))
		}
		q := queueWithIntents(t, all...)
		require.NoError(t, q.LimitIntents(t.Context(), IntentLimit{CapabilityID: testPin.ID, Max: 3}))
		var mu sync.Mutex
		inFlight, most := 0, 0
		provider := &testProvider{onDispatch: func(context.Context, *Handoff) (Receipt, error) {
			mu.Lock()
			inFlight++
			most = max(most, inFlight)
			mu.Unlock()
			time.Sleep(time.Second)
			mu.Lock()
			inFlight--
			mu.Unlock()
			return succeeded(`1`), nil
		}}
		registry := providers(t, provider, ProviderOptions{})
		began := time.Now()
		var stops []func()
		for range 3 {
			_, stop := runDispatcher(t, q, registry, Settings{Concurrency: 8})
			stops = append(stops, stop)
		}
		time.Sleep(11 * time.Second)
		for _, stop := range stops {
			stop()
		}
		require.Equal(t, 3, most)
		for id, record := range intentsOf(t, q) {
			require.Equal(t, ActionSucceeded, record.Intent.State, id)
			require.LessOrEqual(t, record.SettledAt.Sub(began), 11*time.Second, "no capacity costs no time")
		}
	})
}

func TestObserverOfADispatcher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := queueWithIntents(t, of("i", IdempotencyNone))
		var steps []string
		observer := &Observer{
			DispatchStart: func(i DispatchInfo) { steps = append(steps, "start "+i.Work.Intent.ID) },
			DispatchEnd: func(i DispatchInfo) {
				steps = append(steps, fmt.Sprint("end ", i.Err, " after ", i.Elapsed))
			},
			IntentStored:    func(i IntentInfo) { steps = append(steps, fmt.Sprint("stored ", i.Settlement.State, " ", i.Err)) },
			DispatchPassEnd: func(i DispatchPassInfo) { steps = append(steps, fmt.Sprint("pass ", i.Stats.Claimed, " ", i.WorkerID)) },
		}
		provider := &testProvider{onDispatch: func(context.Context, *Handoff) (Receipt, error) {
			time.Sleep(time.Second)
			return Receipt{}, Refused(errPlanned)
		}}
		_, err := RunDispatchPass(t.Context(), q, providers(t, provider, ProviderOptions{}), Settings{WorkerID: "w", Observer: observer})
		require.NoError(t, err)
		require.Equal(t, []string{"start i", "end planned after 1s", "stored rejected <nil>", "pass 1 w"}, steps)
	})
}
