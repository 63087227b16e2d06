package supervisor

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// faultyIntents is a queue whose calls a test can answer itself; nil functions
// leave them to the queue.
type faultyIntents struct {
	IntentQueue
	onRenew   func() error
	onMark    func(work *IntentWork) error
	onReceipt func() error
	onSettle  func() error
	writes    atomic.Int32
}

func (q *faultyIntents) answer(function func() error) error {
	q.writes.Add(1)
	if function == nil {
		return nil
	}
	return function()
}

func (q *faultyIntents) ClaimIntents(ctx context.Context, req IntentClaimRequest) ([]IntentWork, error) {
	works, err := q.IntentQueue.ClaimIntents(ctx, req)
	if len(works) > 0 {
		q.writes.Add(1)
	}
	return works, err
}

func (q *faultyIntents) RenewIntent(ctx context.Context, lease IntentLease) error {
	if err := q.answer(q.onRenew); err != nil {
		return err
	}
	return q.IntentQueue.RenewIntent(ctx, lease)
}

func (q *faultyIntents) MarkIntent(ctx context.Context, work *IntentWork) (IntentWork, error) {
	if err := q.answer(func() error {
		if q.onMark == nil {
			return nil
		}
		return q.onMark(work)
	}); err != nil {
		return IntentWork{}, err
	}
	return q.IntentQueue.MarkIntent(ctx, work)
}

func (q *faultyIntents) RecordReceipt(ctx context.Context, work *IntentWork, receipt Receipt) error {
	if err := q.answer(q.onReceipt); err != nil {
		return err
	}
	return q.IntentQueue.RecordReceipt(ctx, work, receipt)
}

func (q *faultyIntents) SettleIntent(ctx context.Context, work *IntentWork, settlement Settlement) error {
	if err := q.answer(q.onSettle); err != nil {
		return err
	}
	return q.IntentQueue.SettleIntent(ctx, work, settlement)
}

func TestDurableWritesOfAHandOff(t *testing.T) {
	for name, test := range map[string]struct {
		class  IdempotencyMode
		effect Effect
		writes int32
	}{
		"claim with mark, settlement":  {IdempotencyNative, EffectExternalWrite, 2},
		"a read likewise":              {IdempotencyNone, EffectRead, 2},
		"claim, mark, settlement":      {IdempotencyNone, EffectExternalWrite, 3},
		"the same for reconciled ones": {IdempotencyReconcileBeforeRetry, EffectInternalWrite, 3},
	} {
		t.Run(name, func(t *testing.T) {
			q := queueWithIntents(t, of("i", test.class, func(i *ActionIntent) { i.Effect = test.effect }))
			counting := &faultyIntents{IntentQueue: q}
			_, err := dispatchOnce(t, counting, providers(t, &testProvider{}, ProviderOptions{}))
			require.NoError(t, err)
			require.Equal(t, test.writes, counting.writes.Load())
			require.Equal(t, ActionSucceeded, intentsOf(t, q)["i"].Intent.State)
		})
	}
}

func TestAReceiptIsStoredAgainUntilItIsStored(t *testing.T) {
	for name, receipt := range map[string]Receipt{"terminal": succeeded(`1`), "of work that runs": running("r")} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := queueWithIntents(t, of("i", IdempotencyNone))
				began := time.Now()
				down := func() error {
					if time.Since(began) < 20*time.Minute {
						return ErrUnavailable
					}
					return nil
				}
				faulty := &faultyIntents{IntentQueue: q, onSettle: down, onReceipt: down}
				provider := &testProvider{onDispatch: func(context.Context, *Handoff) (Receipt, error) { return receipt, nil }}
				registry := providers(t, provider, ProviderOptions{})
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error)
				dispatcher, err := NewDispatcher(faulty, registry, Settings{})
				require.NoError(t, err)
				go func() { done <- dispatcher.Run(ctx) }()
				time.Sleep(30 * time.Minute)
				cancel()
				require.NoError(t, <-done)
				require.Equal(t, []string{"i#1"}, provider.handedOff(), "nobody calls again meanwhile")
				record := intentsOf(t, q)["i"]
				require.NotNil(t, record.Receipt)
				require.Contains(t, []ActionState{ActionSucceeded, ActionExecuting}, record.Intent.State)
				require.Zero(t, dispatcher.Stats().LeasesLost)
			})
		})
	}
}

func TestAPassGivesUpStoringAtLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := queueWithIntents(t, of("i", IdempotencyNone))
		faulty := &faultyIntents{IntentQueue: q, onSettle: func() error { return ErrUnavailable }}
		began := time.Now()
		stats, err := dispatchOnce(t, faulty, providers(t, &testProvider{}, ProviderOptions{}))
		require.Equal(t, DispatchStats{Claimed: 1, HandedOff: 1, Failed: 1}, stats)
		var dispatchError *DispatchError
		require.ErrorAs(t, err, &dispatchError)
		require.ErrorIs(t, err, ErrUnavailable)
		require.EqualError(t, err, `supervisor: dispatch failed: tenant "t1" instance "a" intent "i": `+ErrUnavailable.Error())
		require.Equal(t, IntentKey{"t1", "a", "i"}, dispatchError.Intents[0].IntentKey)
		require.InDelta(t, time.Minute, time.Since(began), float64(10*time.Second), "DrainTimeout bounds it")
	})
}

// TestAReceiptOutlivesItsLease: the lease of a slow call is lost, another
// dispatcher takes the intent, and the receipt is stored all the same.
func TestAReceiptOutlivesItsLease(t *testing.T) {
	for name, test := range map[string]struct {
		receipt Receipt
		state   ActionState
	}{
		"terminal":          {succeeded(`1`), ActionReconciled},
		"of work that runs": {running("r"), ActionReconciled},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := queueWithIntents(t, of("i", IdempotencyNone))
				provider := &ableProvider{
					testProvider: testProvider{onDispatch: func(ctx context.Context, _ *Handoff) (Receipt, error) {
						<-ctx.Done()
						require.ErrorIs(t, context.Cause(ctx), ErrLeaseLost)
						time.Sleep(30 * time.Second)
						return test.receipt, nil
					}},
					onObserve: func(*Handoff, Receipt) (Report, error) { return succeeded(`1`).Report, nil },
				}
				registry := providers(t, provider, ProviderOptions{Timeout: time.Hour})
				cut := &faultyIntents{IntentQueue: q, onRenew: func() error { return ErrUnavailable }}
				go func() {
					time.Sleep(70 * time.Second) // the lease of a minute is over
					_, err := dispatchOnce(t, q, registry)
					assert.NoError(t, err)
					assert.Equal(t, ActionUnknown, intentsOf(t, q)["i"].Intent.State)
				}()
				stats, err := dispatchOnce(t, cut, registry)
				require.NoError(t, err)
				require.Equal(t, 1, stats.LeasesLost)
				dispatchUntil(t, q, registry)
				record := intentsOf(t, q)["i"]
				require.Equal(t, test.state, record.Intent.State)
				require.Equal(t, OutcomeSucceeded, record.Outcome)
				require.Equal(t, []string{"i#1"}, provider.handedOff())
				told := results(t, q)
				require.Len(t, told, 2)
				require.Equal(t, OutcomeUnknown, told[0].Outcome)
				require.Equal(t, OutcomeSucceeded, told[1].Outcome)
			})
		})
	}
}

// TestTheReceiptOfAnAbandonedCallIsKept: losing it would make an ambiguity for
// good.
func TestTheReceiptOfAnAbandonedCallIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := queueWithIntents(t, of("i", IdempotencyNone))
		provider := &testProvider{onDispatch: func(context.Context, *Handoff) (Receipt, error) {
			time.Sleep(10 * time.Minute)
			return succeeded(`1`), nil
		}}
		stats, err := dispatchOnce(t, q, providers(t, provider, ProviderOptions{}))
		require.NoError(t, err)
		require.Equal(t, DispatchStats{Claimed: 1, HandedOff: 1, Abandoned: 1, Unknown: 1}, stats)
		require.Equal(t, CategoryAbandoned, intentsOf(t, q)["i"].Diagnostic.Category)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		require.Equal(t, ActionReconciled, intentsOf(t, q)["i"].Intent.State)
	})
}

// TestAStalledDispatcherDoesNotCall stops a dispatcher between mark and call
// until its lease is over.
func TestAStalledDispatcherDoesNotCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := queueWithIntents(t, of("i", IdempotencyReconcileBeforeRetry))
		world := newBank(false)
		registry := providers(t, world.provider(true, func(bool) {}), ProviderOptions{})
		stalled := true
		settings := Settings{DrainTimeout: time.Second, Observer: &Observer{DispatchStart: func(DispatchInfo) {
			if stalled {
				stalled = false
				time.Sleep(10 * time.Minute) // the whole process: no renewal is answered
			}
		}}}
		faulty := &faultyIntents{IntentQueue: q, onRenew: func() error { return ErrUnavailable }}
		done := make(chan DispatchStats)
		go func() {
			stats, _ := RunDispatchPass(t.Context(), faulty, registry, settings)
			done <- stats
		}()
		time.Sleep(2 * time.Minute)
		dispatchUntil(t, q, registry)
		stats := <-done
		require.Zero(t, stats.HandedOff, "its lease was over")
		require.Equal(t, 1, world.effects["key-i"])
		require.Equal(t, 1, world.calls)
		record := intentsOf(t, q)["i"]
		require.Equal(t, ActionSucceeded, record.Intent.State)
		require.Equal(t, 2, record.Attempt)
	})
}

// untouched reports whether nobody has asked the bank for anything.
func (b *bank) untouched() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.calls == 0 && len(b.refused) == 0
}

// TestALateCallOfAnIdentityThatWasRefused: a dispatcher that was past its last
// look before the other one asked is turned away by the provider.
func TestALateCallOfAnIdentityThatWasRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := queueWithIntents(t, of("i", IdempotencyReconcileBeforeRetry))
		world := newBank(false)
		late := world.provider(true, func(after bool) {
			if !after && world.untouched() {
				time.Sleep(10 * time.Minute) // the request is on its way
			}
		})
		registry := providers(t, late, ProviderOptions{Timeout: time.Hour})
		faulty := &faultyIntents{IntentQueue: q, onRenew: func() error { return ErrUnavailable }}
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = RunDispatchPass(t.Context(), faulty, registry, Settings{DrainTimeout: time.Second, AbandonAfter: time.Hour})
		}()
		time.Sleep(2 * time.Minute)
		dispatchUntil(t, q, registry)
		<-done
		require.Equal(t, 1, world.effects["key-i"], "one effect, though both calls arrived")
		require.Equal(t, 2, world.calls)
		require.Equal(t, ActionSucceeded, intentsOf(t, q)["i"].Intent.State)
	})
}

func TestAMarkThatFailsSendsNothing(t *testing.T) {
	for name, mark := range map[string]func() error{
		"unavailable":     func() error { return ErrUnavailable },
		"unknown outcome": func() error { return ErrCommitUnknown },
		"a panic":         func() error { panic("mark") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := queueWithIntents(t, of("i", IdempotencyNone))
				provider := &testProvider{}
				registry := providers(t, provider, ProviderOptions{})
				faulty := &faultyIntents{IntentQueue: q}
				faulty.onMark = func(work *IntentWork) error {
					// The store has it, and the answer is lost.
					_, err := q.MarkIntent(t.Context(), work)
					require.NoError(t, err)
					return mark()
				}
				stats, err := dispatchOnce(t, faulty, registry)
				require.Error(t, err)
				require.Equal(t, DispatchStats{Claimed: 1, Failed: 1}, stats)
				record := intentsOf(t, q)["i"]
				require.Equal(t, ActionRetryable, record.Intent.State)
				require.Zero(t, record.Attempt, "the attempt does not count")
				dispatchUntil(t, q, registry)
				require.Equal(t, []string{"i#1"}, provider.handedOff())
				require.Equal(t, ActionSucceeded, intentsOf(t, q)["i"].Intent.State)
			})
		})
	}
}

func TestContradictionsAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := queueWithIntents(t, of("i", IdempotencyNone))
		provider := &testProvider{onDispatch: func(context.Context, *Handoff) (Receipt, error) {
			time.Sleep(10 * time.Minute)
			return succeeded(`1`), nil
		}}
		registry := providers(t, provider, ProviderOptions{Timeout: time.Hour})
		cut := &faultyIntents{IntentQueue: q, onRenew: func() error { return ErrUnavailable }}
		go func() {
			time.Sleep(2 * time.Minute)
			_, err := dispatchOnce(t, q, registry)
			assert.NoError(t, err)
			assert.NoError(t, q.ResolveIntent(t.Context(), IntentKey{"t1", "a", "i"}, "ops", IntentResolution{Kind: ResolveFailed}))
		}()
		stats, err := RunDispatchPass(t.Context(), cut, registry, Settings{AbandonAfter: time.Hour})
		require.ErrorIs(t, err, ErrReceiptConflict)
		require.Equal(t, 1, stats.Conflicts)
		record := intentsOf(t, q)["i"]
		require.Equal(t, OutcomeFailed, record.Outcome, "what was told stays")
		require.Len(t, record.Evidence, 1)
		require.Equal(t, ProviderSucceeded, record.Evidence[0].Status)
	})
}

func TestOneIntentsTroubleLeavesOthersAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all []func(*WorkItem) ActionIntent
		for n := range 20 {
			all = append(all, of(fmt.Sprint(n), IdempotencyNone))
		}
		q := queueWithIntents(t, all...)
		provider := &testProvider{onDispatch: func(ctx context.Context, handoff *Handoff) (Receipt, error) {
			switch handoff.Intent.ID {
			case "3":
				panic("three")
			case "5":
				<-ctx.Done()
				return Receipt{}, ctx.Err()
			case "7":
				return Receipt{}, Refused(errors.New("seven"))
			}
			return succeeded(`1`), nil
		}}
		stats, err := RunDispatchPass(t.Context(), q, providers(t, provider, ProviderOptions{}), Settings{Concurrency: 20})
		require.NoError(t, err)
		require.Equal(t, DispatchStats{Claimed: 20, HandedOff: 20, Succeeded: 17, Rejected: 1, Unknown: 2}, stats)
	})
}
