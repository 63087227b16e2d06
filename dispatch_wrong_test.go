package supervisor

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// wrongIntents is a queue whose answers a test can falsify.
type wrongIntents struct {
	*MemoryWorkQueue
	onClaim   func(works []IntentWork) []IntentWork
	onMarked  func(work *IntentWork)
	onRelease func() error
	claims    atomic.Int32
}

func (q *wrongIntents) ClaimIntents(ctx context.Context, req IntentClaimRequest) ([]IntentWork, error) {
	q.claims.Add(1)
	works, err := q.MemoryWorkQueue.ClaimIntents(ctx, req)
	if q.onClaim != nil {
		works = q.onClaim(works)
	}
	return works, err
}

func (q *wrongIntents) MarkIntent(ctx context.Context, work *IntentWork) (IntentWork, error) {
	marked, err := q.MemoryWorkQueue.MarkIntent(ctx, work)
	if q.onMarked != nil {
		q.onMarked(&marked)
	}
	return marked, err
}

func (q *wrongIntents) ReleaseIntent(ctx context.Context, work *IntentWork, release IntentRelease) error {
	if q.onRelease != nil {
		return q.onRelease()
	}
	return q.MemoryWorkQueue.ReleaseIntent(ctx, work, release)
}

// TestWhatDoesNotFitIsNotServed: whatever a queue gives out against its contract
// is neither sent nor claimed in a hot loop.
func TestWhatDoesNotFitIsNotServed(t *testing.T) {
	for name, test := range map[string]struct {
		change func(work *IntentWork)
		says   string
	}{
		"no ids":                         {func(w *IntentWork) { *w = IntentWork{Task: IntentTaskDispatch} }, "TenantID is blank"},
		"a capability of nobody":         {func(w *IntentWork) { w.Intent.Capability.ID = "other" }, `no provider of capability "other"`},
		"no task":                        {func(w *IntentWork) { w.Task = "" }, `task "" does not fit state "prepared"`},
		"nothing to observe":             {func(w *IntentWork) { w.Task = IntentTaskObserve }, `task "observe" does not fit`},
		"nothing to recover":             {func(w *IntentWork) { w.Task = IntentTaskRecover }, `task "recover" does not fit`},
		"a hand-off of what is accepted": {func(w *IntentWork) { w.Intent.State = ActionExecuting }, `task "dispatch" does not fit`},
		"a hand-off that another lease marked": {func(w *IntentWork) {
			w.Intent.State, w.Attempt, w.MarkedUnder = ActionDispatchCommitted, 1, w.LeaseVersion-1
		}, `task "dispatch" does not fit`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := &wrongIntents{MemoryWorkQueue: queueWithIntents(t, of("i", IdempotencyNone))}
				var given []IntentWork
				q.onClaim = func(works []IntentWork) []IntentWork {
					if given == nil {
						given = works
						test.change(&given[0])
					}
					if q.claims.Load() > 100_000 {
						return nil
					}
					again := make([]IntentWork, 0, 32) // more than asked for, and all the same
					for range cap(again) {
						again = append(again, given[0])
					}
					return again
				}
				provider := &testProvider{}
				registry := providers(t, provider, ProviderOptions{})
				_, stop := runDispatcher(t, q, registry, Settings{})
				time.Sleep(10 * time.Minute)
				stop()
				require.Less(t, q.claims.Load(), int32(1000), "a hot loop")
				require.Empty(t, provider.handedOff())
				_, err := dispatchOnce(t, q, registry)
				require.ErrorContains(t, err, test.says)
				var queueError *QueueError
				require.ErrorAs(t, err, &queueError)
			})
		})
	}
}

func TestAMarkThatAnswersWithAnotherIntentSendsNothing(t *testing.T) {
	for name, wrong := range map[string]func(work *IntentWork){
		"nothing":          func(w *IntentWork) { *w = IntentWork{} },
		"not marked":       func(w *IntentWork) { w.Intent.State = ActionPrepared },
		"under no lease":   func(w *IntentWork) { w.LeaseVersion++ },
		"another instance": func(w *IntentWork) { w.Intent.InstanceID = "b" },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := &wrongIntents{MemoryWorkQueue: queueWithIntents(t, of("i", IdempotencyNone)), onMarked: wrong}
				provider := &testProvider{}
				registry := providers(t, provider, ProviderOptions{})
				stats, err := dispatchOnce(t, q, registry)
				require.ErrorContains(t, err, "MarkIntent answered")
				require.Equal(t, DispatchStats{Claimed: 1, Failed: 1}, stats)
				require.Empty(t, provider.handedOff())
				q.onMarked = nil
				dispatchUntil(t, q, registry)
				require.Equal(t, []string{"i#1"}, provider.handedOff())
			})
		})
	}
}

func TestAReceiptThatIsNeverTakenEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		receipts := 0
		faulty := &faultyIntents{IntentQueue: queueWithIntents(t, of("i", IdempotencyNone)), onReceipt: func() error {
			if receipts++; receipts > 1000 {
				return ErrNotFound
			}
			return ErrLeaseLost
		}}
		provider := &testProvider{onDispatch: func(context.Context, *Handoff) (Receipt, error) { return running("r"), nil }}
		stats, err := dispatchOnce(t, faulty, providers(t, provider, ProviderOptions{}))
		require.ErrorIs(t, err, ErrLeaseLost)
		require.Equal(t, 1, receipts)
		require.Equal(t, DispatchStats{Claimed: 1, HandedOff: 1, Failed: 1}, stats)
	})
}

// TestOneLeaseIsLostOnce: a renewal and the mark both tell of it.
func TestOneLeaseIsLostOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := func() error { return ErrLeaseLost }
		faulty := &faultyIntents{IntentQueue: queueWithIntents(t, of("i", IdempotencyNone)), onRenew: gone}
		faulty.onMark = func(*IntentWork) error {
			time.Sleep(time.Minute)
			return ErrLeaseLost
		}
		told := 0
		stats, err := RunDispatchPass(t.Context(), faulty, providers(t, &testProvider{}, ProviderOptions{}), Settings{
			CommitTimeout: time.Hour, Observer: &Observer{IntentLost: func(IntentInfo) { told++ }},
		})
		require.NoError(t, err)
		require.Equal(t, DispatchStats{Claimed: 1, LeasesLost: 1}, stats)
		require.Equal(t, 1, told)
	})
}

// TestOneIntentFailsOnce: neither its mark nor its release can be stored.
func TestOneIntentFailsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &wrongIntents{MemoryWorkQueue: queueWithIntents(t, of("i", IdempotencyNone)), onRelease: func() error { return ErrCommandRejected }}
		faulty := &faultyIntents{IntentQueue: q, onMark: func(*IntentWork) error { return ErrUnavailable }}
		stats, err := dispatchOnce(t, faulty, providers(t, &testProvider{}, ProviderOptions{}))
		require.Equal(t, DispatchStats{Claimed: 1, Failed: 1}, stats)
		require.ErrorIs(t, err, ErrUnavailable)
		require.ErrorIs(t, err, ErrCommandRejected)
		var dispatchError *DispatchError
		require.ErrorAs(t, err, &dispatchError)
		require.Len(t, dispatchError.Intents, 1)
	})
}

// TestAMarkThatComesTooLate: somebody stored a receipt of an earlier attempt.
func TestAMarkThatComesTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		faulty := &faultyIntents{IntentQueue: queueWithIntents(t, of("i", IdempotencyNone)), onMark: func(*IntentWork) error { return ErrStateConflict }}
		stats, err := dispatchOnce(t, faulty, providers(t, &testProvider{}, ProviderOptions{}))
		require.NoError(t, err)
		require.Equal(t, DispatchStats{Claimed: 1, Refused: 1}, stats)
	})
}

// TestAReceiptBesideAnotherIsNotDropped: a settlement is too late, for somebody
// has stored a receipt meanwhile.
func TestAReceiptBesideAnotherIsNotDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := queueWithIntents(t, of("i", IdempotencyNone))
		faulty := &faultyIntents{IntentQueue: q, onSettle: func() error { return ErrStateConflict }}
		registry := providers(t, &testProvider{}, ProviderOptions{})
		_, err := dispatchOnce(t, faulty, registry)
		require.NoError(t, err)
		require.Equal(t, ProviderSucceeded, intentsOf(t, q)["i"].Receipt.Status)
		dispatchUntil(t, q, registry)
		require.Equal(t, ActionSucceeded, intentsOf(t, q)["i"].Intent.State)
	})
}

// TestALateReceiptIsStoredAgain: that of an abandoned call, too, which comes
// while the queue is down.
func TestALateReceiptIsStoredAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := queueWithIntents(t, of("i", IdempotencyNone))
		began := time.Now()
		faulty := &faultyIntents{IntentQueue: q, onReceipt: func() error {
			if time.Since(began) < 20*time.Minute {
				return ErrUnavailable
			}
			return nil
		}}
		provider := &testProvider{onDispatch: func(context.Context, *Handoff) (Receipt, error) {
			time.Sleep(10 * time.Minute)
			return succeeded(`1`), nil
		}}
		dispatcher, stop := runDispatcher(t, faulty, providers(t, provider, ProviderOptions{}), Settings{})
		time.Sleep(time.Hour)
		stop()
		require.Equal(t, 1, dispatcher.Stats().Abandoned)
		require.Equal(t, ActionReconciled, intentsOf(t, q)["i"].Intent.State)
	})
}

// TestAShortLeaseOutlivesAFault: what is known is stored again under a lease
// that is shorter than the longest wait between two attempts.
func TestAShortLeaseOutlivesAFault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := queueWithIntents(t, of("i", IdempotencyNone))
		began := time.Now()
		faulty := &faultyIntents{IntentQueue: q, onSettle: func() error {
			if time.Since(began) < 5*time.Minute {
				return ErrUnavailable
			}
			return nil
		}}
		provider := &testProvider{onDispatch: func(context.Context, *Handoff) (Receipt, error) {
			time.Sleep(1900 * time.Millisecond)
			return succeeded(`1`), nil
		}}
		registry := providers(t, provider, ProviderOptions{})
		dispatcher, stop := runDispatcher(t, faulty, registry, Settings{LeaseDuration: 3 * time.Second})
		time.Sleep(time.Second)
		_, stopOther := runDispatcher(t, q, registry, Settings{LeaseDuration: 3 * time.Second})
		time.Sleep(10 * time.Minute)
		stop()
		stopOther()
		require.Equal(t, ActionSucceeded, intentsOf(t, q)["i"].Intent.State)
		require.Zero(t, dispatcher.Stats().LeasesLost)
		require.Len(t, results(t, q), 1)
	})
}

func TestGoexitOfTheQueueLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := queueWithIntents(t, of("i", IdempotencyNone))
		settles, marks := 0, 0
		faulty := &faultyIntents{
			IntentQueue: q,
			onSettle: func() error {
				if settles++; settles == 1 {
					runtime.Goexit()
				}
				return nil
			},
			onMark: func(*IntentWork) error {
				if marks++; marks == 1 {
					runtime.Goexit()
				}
				return nil
			},
		}
		provider := &testProvider{}
		registry := providers(t, provider, ProviderOptions{})
		_, err := dispatchOnce(t, faulty, registry)
		var panicked *PanicError
		require.ErrorAs(t, err, &panicked)
		dispatchUntil(t, faulty, registry)
		require.Equal(t, []string{"i#1"}, provider.handedOff())
		require.Equal(t, ActionSucceeded, intentsOf(t, q)["i"].Intent.State)
	})
}

func TestGoexitOfAnObserverLosesNoReceipt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := queueWithIntents(t, of("i", IdempotencyNone))
		ends := 0
		_, err := RunDispatchPass(t.Context(), q, providers(t, &testProvider{}, ProviderOptions{}), Settings{
			Observer: &Observer{DispatchEnd: func(DispatchInfo) {
				ends++
				runtime.Goexit()
			}},
		})
		require.NoError(t, err)
		require.Equal(t, 1, ends)
		require.Equal(t, ActionSucceeded, intentsOf(t, q)["i"].Intent.State)
	})
}

// TestEachDispatchStartHasItsEnd, also where the last look forbids the call.
func TestEachDispatchStartHasItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := queueWithIntents(t, of("i", IdempotencyNone))
		var ends []error
		ctx, cancel := context.WithCancel(t.Context())
		stats, err := RunDispatchPass(ctx, q, providers(t, &testProvider{}, ProviderOptions{}), Settings{Observer: &Observer{
			DispatchStart: func(DispatchInfo) { cancel() },
			DispatchEnd:   func(i DispatchInfo) { ends = append(ends, i.Err) },
		}})
		require.NoError(t, err)
		require.Zero(t, stats.HandedOff)
		require.Len(t, ends, 1)
		require.ErrorIs(t, ends[0], context.Canceled)
		require.Zero(t, intentsOf(t, q)["i"].Attempt)
	})
}

// TestACallHasItsOwnTime: what a timeout of the call before set off does not
// abandon it.
func TestACallHasItsOwnTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all []func(*WorkItem) ActionIntent
		for n := range 200 {
			all = append(all, of(fmt.Sprint(n), IdempotencyNone))
		}
		q := queueWithIntents(t, all...)
		registry := providers(t, &slowToCancel{}, ProviderOptions{Timeout: 10 * time.Second})
		settings := Settings{Concurrency: 200, AbandonAfter: time.Second}
		_, err := RunDispatchPass(t.Context(), q, registry, settings)
		require.NoError(t, err)
		require.NoError(t, q.Cancel(t.Context(), "t1", "a"))
		stats, err := RunDispatchPass(t.Context(), q, registry, settings)
		require.NoError(t, err)
		require.Equal(t, DispatchStats{Claimed: 200, Succeeded: 200}, stats)
	})
}

// slowToCancel heeds contexts, but its Cancel uses up its time.
type slowToCancel struct{}

func (slowToCancel) Dispatch(context.Context, *Handoff) (Receipt, error) { return running("r"), nil }

func (slowToCancel) Cancel(ctx context.Context, _ *Handoff, _ Receipt) error {
	<-ctx.Done()
	return ctx.Err()
}

func (slowToCancel) Observe(ctx context.Context, _ *Handoff, _ Receipt) (Report, error) {
	select {
	case <-ctx.Done():
		return Report{}, ctx.Err()
	case <-time.After(5 * time.Second):
		return succeeded(`1`).Report, nil
	}
}

func TestAnAcknowledgementOutlivesTheLookAfterIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := queueWithIntents(t, of("i", IdempotencyNone))
		asked, looks := 0, 0
		provider := asynchronous(func(Receipt) (Report, error) {
			if looks++; looks < 5 {
				panic("look")
			}
			return succeeded(`1`).Report, nil
		})
		provider.onCancel = func(*Handoff, Receipt) error {
			asked++
			return nil
		}
		registry := providers(t, provider, ProviderOptions{})
		_, err := dispatchOnce(t, q, registry)
		require.NoError(t, err)
		require.NoError(t, q.Cancel(t.Context(), "t1", "a"))
		dispatchUntil(t, q, registry)
		require.Equal(t, ActionSucceeded, intentsOf(t, q)["i"].Intent.State)
		require.Equal(t, 1, asked)
	})
}

// TestCancelOfWhatCannotBeCancelled waits for the receipt from elsewhere and
// does not look again and again.
func TestCancelOfWhatCannotBeCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := queueWithIntents(t, of("i", IdempotencyNone))
		provider := &testProvider{onDispatch: func(context.Context, *Handoff) (Receipt, error) { return running("r"), nil }}
		dispatcher, stop := runDispatcher(t, q, providers(t, provider, ProviderOptions{}), Settings{})
		time.Sleep(time.Second)
		require.NoError(t, q.Cancel(t.Context(), "t1", "a"))
		time.Sleep(10 * time.Hour)
		stop()
		require.Equal(t, 2, dispatcher.Stats().Claimed)
		require.Equal(t, CategoryUnsupported, intentsOf(t, q)["i"].Diagnostic.Category)
	})
}

// TestInvalidReceiptsOpenTheBreaker: their outcome is not known.
func TestInvalidReceiptsOpenTheBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := queueWithIntents(t, of("i", IdempotencyNone), of("j", IdempotencyNone))
		provider := &testProvider{onDispatch: func(context.Context, *Handoff) (Receipt, error) {
			return Receipt{Report: Report{Status: "odd"}}, nil
		}}
		var told error
		_, err := RunDispatchPass(t.Context(), q, providers(t, provider, ProviderOptions{Breaker: BreakerPolicy{Failures: 1}}), Settings{
			Concurrency: 1, ClaimBatch: 1, Observer: &Observer{DispatchEnd: func(i DispatchInfo) { told = i.Err }},
		})
		require.NoError(t, err)
		require.ErrorContains(t, told, `Status "odd" is not known`)
		registry := providers(t, provider, ProviderOptions{Breaker: BreakerPolicy{Failures: 1}})
		dispatcher, stop := runDispatcher(t, q, registry, Settings{Concurrency: 1})
		time.Sleep(time.Second)
		commitMore(t, q, "k", "l")
		time.Sleep(time.Second)
		stop()
		require.Equal(t, 1, dispatcher.Stats().HandedOff)
	})
}

// commitMore wakes the instance and commits more intents of it.
func commitMore(t *testing.T, q *MemoryWorkQueue, ids ...string) {
	t.Helper()
	var all []func(*WorkItem) ActionIntent
	for _, id := range ids {
		all = append(all, of(id, IdempotencyNone))
	}
	require.NoError(t, q.Deliver(t.Context(), "t1", "a", Wakeup{ID: "more " + ids[0], Kind: "go"}, time.Time{}))
	commitIntents(t, q, all...)
}

// TestTheRestOfABreakerIsNotSleptThrough, however long the poll interval is.
func TestTheRestOfABreakerIsNotSleptThrough(t *testing.T) {
	for _, other := range []bool{false, true} {
		t.Run(fmt.Sprint("beside another provider: ", other), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := queueWithIntents(t, of("i", IdempotencyNone))
				began := time.Now()
				provider := &testProvider{onDispatch: func(context.Context, *Handoff) (Receipt, error) {
					if time.Since(began) < 5*time.Second {
						return Receipt{}, NotSent(errors.New("down"))
					}
					return succeeded(`1`), nil
				}}
				registry := providers(t, provider, ProviderOptions{Breaker: BreakerPolicy{Failures: 1}})
				if other {
					require.NoError(t, registry.Register(memPinOf("idle"), &testProvider{}, ProviderOptions{}))
				}
				_, stop := runDispatcher(t, q, registry, Settings{PollInterval: time.Hour})
				time.Sleep(12 * time.Second)
				stop()
				require.Equal(t, ActionSucceeded, intentsOf(t, q)["i"].Intent.State)
			})
		})
	}
}

// TestOneProbeAtATime: a call from before the breaker opened ends while a probe
// is under way.
func TestOneProbeAtATime(t *testing.T) {
	b := breaker{policy: BreakerPolicy{Failures: 1, RestDelay: time.Second}}
	now := time.Now()
	slow, _ := b.begin(now)
	refused, _ := b.begin(now)
	failed, _ := b.begin(now)
	b.ended(failed, true, now)
	now = now.Add(time.Second)
	probe, _ := b.begin(now)
	require.Equal(t, breakerProbe, probe)
	b.notMade(refused)
	call, wait := b.begin(now)
	require.Equal(t, breakerNoCall, call)
	require.Equal(t, time.Second, wait)
	b.ended(slow, true, now)
	now = now.Add(time.Second)
	call, _ = b.begin(now)
	require.Equal(t, breakerNoCall, call)
	again, probation := b.state(now)
	require.Equal(t, now.Add(time.Second), again)
	require.True(t, probation)
	b.ended(probe, false, now)
	call, _ = b.begin(now)
	require.Equal(t, breakerUsual, call)
}
