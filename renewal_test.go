package supervisor

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// leaseOf returns test settings with a lease.
func leaseOf(duration time.Duration) Settings {
	settings := testSettings()
	settings.LeaseDuration = duration
	return settings
}

// work evaluates for a time, unless its context ends sooner.
func work(duration time.Duration) evaluateFunc {
	return func(ctx context.Context, item *WorkItem) (TransitionCommand, error) {
		select {
		case <-time.After(duration):
			return completed(item)
		case <-ctx.Done():
			return TransitionCommand{}, ctx.Err()
		}
	}
}

// offsets returns when renewals started, counted from an instant.
func offsets(calls []renewCall, from time.Time) []time.Duration {
	offsets := make([]time.Duration, len(calls))
	for n, call := range calls {
		offsets[n] = call.startAt.Sub(from)
	}
	return offsets
}

// requireNoRenewalBesideOrAfter checks that renewals of an item neither overlap
// nor reach into a commit or what comes after it.
func requireNoRenewalBesideOrAfter(t *testing.T, queue *scriptQueue) {
	t.Helper()
	type key struct{ tenantID, id string }
	renewals := map[key][]renewCall{}
	for _, call := range queue.renewCalls() {
		of := key{call.lease.TenantID, call.lease.InstanceID}
		if earlier := renewals[of]; len(earlier) > 0 {
			last := earlier[len(earlier)-1]
			require.False(t, last.endAt.IsZero(), "renewals of %v overlap", of)
			require.False(t, call.startAt.Before(last.endAt), "renewals of %v overlap", of)
		}
		renewals[of] = append(renewals[of], call)
	}
	for _, commit := range queue.commitCalls() {
		of := key{commit.item.TenantID, commit.item.ID}
		for _, call := range renewals[of] {
			require.False(t, call.startAt.After(commit.startAt), "a renewal of %v began after its commit", of)
			require.False(t, call.endAt.IsZero() || call.endAt.After(commit.startAt), "a renewal of %v was in flight beside its commit", of)
		}
	}
}

func TestFirstRenewalComesAfterAThirdOfTheLeaseWithinBounds(t *testing.T) {
	for _, test := range []struct{ lease, want time.Duration }{
		{0, 20 * time.Second}, // the default lease
		{time.Second, time.Second / 3},
		{3 * time.Second, time.Second},
		{time.Hour, 20 * time.Minute},
		{time.Hour + time.Second, 20 * time.Minute},
		{math.MaxInt64, 20 * time.Minute},
	} {
		t.Run(fmt.Sprint(test.lease), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				queue := &scriptQueue{items: testItems(3)}
				settings := leaseOf(test.lease)
				settings.ClaimBatch, settings.Concurrency = math.MaxInt, math.MaxInt
				startedAt := time.Now()
				stats, err := RunDuePass(t.Context(), queue, testRegistry(work(1201*time.Second)), settings, noContext)
				require.NoError(t, err)
				require.Equal(t, Stats{Claimed: 3, Completed: 3}, stats)
				require.Equal(t, test.want, queue.renews[0].startAt.Sub(startedAt))
				want := test.lease
				if want == 0 {
					want = defaultLeaseDuration
				}
				require.Equal(t, want, queue.renews[0].lease.Duration)
			})
		})
	}
}

// Renewals must not run beside a commit or after it, also where every result
// comes at the very instant of a tick.
func TestRenewalsNeverRunBesideOrAfterTheCommit(t *testing.T) {
	const items = 200
	rounds := 50
	if testing.Short() {
		rounds = 3
	}
	for range rounds {
		synctest.Test(t, func(t *testing.T) {
			queue := &scriptQueue{
				items: testItems(items),
				onCommit: func(context.Context, *WorkItem, *TransitionCommand) error {
					time.Sleep(2500 * time.Millisecond)
					return nil
				},
			}
			works := map[string]time.Duration{}
			for n, item := range queue.items {
				works[item.ID] = time.Duration(n%3+1) * time.Second
			}
			settings := leaseOf(3 * time.Second)
			settings.ClaimBatch, settings.Concurrency = items, items
			stats, err := RunDuePass(t.Context(), queue, testRegistry(func(_ context.Context, item *WorkItem) (TransitionCommand, error) {
				time.Sleep(works[item.ID])
				return completed(item)
			}), settings, noContext)
			require.NoError(t, err)
			require.Equal(t, Stats{Claimed: items, Completed: items}, stats)
			requireNoRenewalBesideOrAfter(t, queue)
		})
	}
}

// A renewal that is in flight when the result comes is cancelled and waited for.
func TestCommitWaitsForARenewalInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		startedAt := time.Now()
		queue := &scriptQueue{items: testItems(1), onRenew: func(ctx context.Context, _ Lease) error {
			<-ctx.Done()
			time.Sleep(100 * time.Millisecond) // it cleans up
			return ctx.Err()
		}}
		stats, err := RunDuePass(t.Context(), queue, testRegistry(work(1200*time.Millisecond)), leaseOf(3*time.Second), noContext)
		require.NoError(t, err)
		require.Equal(t, Stats{Claimed: 1, Completed: 1}, stats, "a late renewal says nothing any more")
		require.Equal(t, 1300*time.Millisecond, queue.commits[0].startAt.Sub(startedAt))
		requireNoRenewalBesideOrAfter(t, queue)
	})
}

func TestResultIsCommittedWhateverALateRenewalSays(t *testing.T) {
	for _, failure := range []error{ErrLeaseLost, ErrEpochStale, errors.New("no idea"), nil} {
		t.Run(fmt.Sprint(failure), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				queue := &releasingQueue{scriptQueue: &scriptQueue{items: testItems(1), onRenew: func(context.Context, Lease) error {
					time.Sleep(500 * time.Millisecond)
					return failure
				}}}
				stats, err := RunDuePass(t.Context(), queue, testRegistry(work(1200*time.Millisecond)), leaseOf(3*time.Second), noContext)
				require.NoError(t, err)
				require.Equal(t, Stats{Claimed: 1, Completed: 1}, stats)
				require.Empty(t, queue.releases)
				requireNoRenewalBesideOrAfter(t, queue.scriptQueue)
			})
		})
	}
}

// Whoever watches evaluations may be slow: the result stands all the same.
func TestResultStandsWhileItsObserverIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := &scriptQueue{items: testItems(1), onRenew: func(context.Context, Lease) error { return ErrLeaseLost }}
		settings := leaseOf(3 * time.Second)
		settings.Observer = &Observer{EvaluationEnd: func(EvaluationInfo) { time.Sleep(time.Second) }}
		stats, err := RunDuePass(t.Context(), queue, testRegistry(work(500*time.Millisecond)), settings, noContext)
		require.NoError(t, err)
		require.Equal(t, Stats{Claimed: 1, Completed: 1}, stats)
	})
}

func TestLeaseIsRenewedWhileTheContextIsMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		startedAt := time.Now()
		queue := &scriptQueue{items: testItems(2)}
		stats, err := RunDuePass(t.Context(), queue, testRegistry(complete), leaseOf(3*time.Second),
			func(context.Context) (struct{}, error) {
				time.Sleep(10500 * time.Millisecond)
				return struct{}{}, nil
			})
		require.NoError(t, err)
		require.Equal(t, Stats{Claimed: 2, Completed: 2}, stats)
		require.Len(t, queue.renews, 20)
		require.Equal(t, time.Second, queue.renews[0].startAt.Sub(startedAt))
		requireNoRenewalBesideOrAfter(t, queue)
	})
}

func TestLeaseIsRenewedWhileItsItemWaitsForASlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := &scriptQueue{onClaim: func(context.Context, ClaimRequest) ([]WorkItem, error) { return testItems(3), nil }}
		settings := leaseOf(3 * time.Second)
		settings.Concurrency = 1
		stats, err := RunDuePass(t.Context(), queue, testRegistry(work(5300*time.Millisecond)), settings, noContext)
		require.NoError(t, err)
		require.Equal(t, Stats{Claimed: 3, Completed: 3}, stats)
		count := map[string]int{}
		for _, call := range queue.renews {
			count[call.lease.InstanceID]++
		}
		require.Equal(t, map[string]int{"inst-1": 5, "inst-2": 10, "inst-3": 15}, count)
		requireNoRenewalBesideOrAfter(t, queue)
	})
}

// The item is not evaluated at all once its lease is lost.
func TestItemThatLosesItsLeaseWhileItWaitsIsNotEvaluated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		startedAt := time.Now()
		queue := &scriptQueue{
			onClaim: func(context.Context, ClaimRequest) ([]WorkItem, error) { return testItems(2), nil },
			onRenew: func(_ context.Context, lease Lease) error {
				if lease.InstanceID == "inst-2" {
					return errors.New("no route")
				}
				return nil
			},
		}
		settings := leaseOf(3 * time.Second)
		settings.Concurrency = 1
		stats, err := RunDuePass(t.Context(), queue, testRegistry(func(ctx context.Context, item *WorkItem) (TransitionCommand, error) {
			if item.ID == "inst-2" {
				t.Error("inst-2 is evaluated without a lease")
			}
			return work(10*time.Second)(ctx, item)
		}), settings, noContext)
		require.NoError(t, err)
		require.Equal(t, Stats{Claimed: 2, Failed: 1, Completed: 1}, stats)
		require.Contains(t, queue.failureOf(t, "inst-2").Reason, "lease renewal failed: no route")
		require.Equal(t, time.Second, queue.commitsOf("inst-2")[0].startAt.Sub(startedAt), "at once")
	})
}

func TestFailedRenewalEndsTheEvaluationAndRecordsAFailure(t *testing.T) {
	refused := errors.New("refused")
	for name, test := range map[string]struct {
		renew func() error
		cause error // of the context's end; nil for any
		says  string
	}{
		"an error":      {func() error { return refused }, refused, "lease renewal failed: refused"},
		"lease lost":    {func() error { return fmt.Errorf("0 rows: %w", ErrLeaseLost) }, ErrLeaseLost, "lease renewal failed: 0 rows"},
		"a panic":       {func() error { panic("boom") }, nil, "lease renewal failed: queue Renew panicked: boom"},
		"a nil map":     {func() error { return writeTo(nil) }, nil, "assignment to entry in nil map"},
		"Goexit":        {func() error { runtime.Goexit(); return nil }, nil, "lease renewal failed: queue Renew called runtime.Goexit"},
		"a typed nil":   {func() error { return (*QueueError)(nil) }, nil, "lease renewal failed: a nil *supervisor.QueueError"},
		"not its owner": {func() error { return ErrNotFound }, ErrNotFound, "lease renewal failed"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				startedAt := time.Now()
				queue := &scriptQueue{items: testItems(1), onRenew: func(context.Context, Lease) error { return test.renew() }}
				stats, err := RunDuePass(t.Context(), queue, testRegistry(func(ctx context.Context, _ *WorkItem) (TransitionCommand, error) {
					<-ctx.Done()
					if since := time.Since(startedAt); since != time.Second {
						t.Errorf("the context ended after %v", since)
					}
					if cause := context.Cause(ctx); test.cause != nil && !errors.Is(cause, test.cause) {
						t.Errorf("the cause is %v", cause)
					}
					time.Sleep(time.Hour) // the failure does not wait for the driver
					return TransitionCommand{}, ctx.Err()
				}), leaseOf(3*time.Second), noContext)
				require.NoError(t, err)
				require.Equal(t, Stats{Claimed: 1, Failed: 1, Abandoned: 1}, stats)
				failure := queue.failureOf(t, "inst-1")
				require.Contains(t, failure.Reason, test.says)
				require.Equal(t, time.Second, queue.commits[0].startAt.Sub(startedAt))
				require.Equal(t, queue.commits[0].item.ClaimedAt.Add(6*time.Second), failure.RetryAt)
				require.Len(t, queue.renews, 1)
				requireNoRenewalBesideOrAfter(t, queue)
				time.Sleep(time.Hour)
			})
		})
	}
}

func TestFailureThatIsRefusedBecauseTheLeaseIsGoneIsNoErrorOfThePass(t *testing.T) {
	for name, test := range map[string]struct {
		renew, commit error
		stats         Stats
		errs          bool
	}{
		"lease lost":              {ErrLeaseLost, ErrLeaseLost, Stats{Claimed: 1, LeasesLost: 1}, false},
		"any renewal error":       {errors.New("no route"), ErrLeaseLost, Stats{Claimed: 1, LeasesLost: 1}, false},
		"the lease was held":      {ErrLeaseLost, nil, Stats{Claimed: 1, Failed: 1}, false},
		"the failure is refused":  {ErrLeaseLost, ErrStateConflict, Stats{Claimed: 1, Failed: 1}, true},
		"the store is gone, too":  {ErrLeaseLost, ErrUnavailable, Stats{Claimed: 1, Failed: 1}, true},
		"revoked at the failure":  {ErrLeaseLost, ErrEpochStale, Stats{Claimed: 1, Revoked: 1}, false},
		"the failure is rejected": {ErrLeaseLost, ErrCommandRejected, Stats{Claimed: 1, Failed: 1}, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				queue := &scriptQueue{
					items:    testItems(1),
					onRenew:  func(context.Context, Lease) error { return test.renew },
					onCommit: func(context.Context, *WorkItem, *TransitionCommand) error { return test.commit },
				}
				var lost []error
				settings := leaseOf(3 * time.Second)
				settings.Observer = &Observer{LeaseLost: func(info LostInfo) { lost = append(lost, info.Err) }}
				stats, err := RunDuePass(t.Context(), queue, testRegistry(work(time.Hour)), settings, noContext)
				require.Equal(t, test.stats, stats)
				require.Len(t, lost, test.stats.LeasesLost)
				require.Len(t, queue.commits, 1)
				if !test.errs {
					require.NoError(t, err)
					return
				}
				require.ErrorIs(t, err, test.commit)
			})
		})
	}
}

// A driver's own result that is refused is an error of the pass: work was lost.
func TestLeaseLostAtTheCommitOfAResultIsACommitError(t *testing.T) {
	queue := &scriptQueue{items: testItems(1), onCommit: func(context.Context, *WorkItem, *TransitionCommand) error { return ErrLeaseLost }}
	stats, err := RunDuePass(t.Context(), queue, testRegistry(complete), testSettings(), noContext)
	require.ErrorIs(t, err, ErrLeaseLost)
	require.Equal(t, Stats{Claimed: 1, Failed: 1}, stats)
}

func TestUnavailableIsRetriedWhileTheConfirmedLeaseLasts(t *testing.T) {
	for name, test := range map[string]struct {
		// fails says for how long renewals fail, from their first on.
		fails time.Duration
		want  Stats
	}{
		"a single time":           {0, Stats{Claimed: 1, Completed: 1}},
		"for a second and a half": {1500 * time.Millisecond, Stats{Claimed: 1, Completed: 1}},
		"until the lease ends":    {2 * time.Second, Stats{Claimed: 1, Failed: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				startedAt := time.Now()
				failed := false
				queue := &scriptQueue{items: testItems(1), onRenew: func(context.Context, Lease) error {
					since := time.Since(startedAt)
					if !failed || (since >= time.Second && since < time.Second+test.fails) {
						failed = true
						return fmt.Errorf("%w: connection refused", ErrUnavailable)
					}
					return nil
				}}
				stats, err := RunDuePass(t.Context(), queue, testRegistry(work(10500*time.Millisecond)), leaseOf(3*time.Second), noContext)
				require.NoError(t, err)
				require.Equal(t, test.want, stats)
				calls := offsets(queue.renews, startedAt)
				require.Equal(t, time.Second, calls[0])
				require.LessOrEqual(t, calls[1], 2*time.Second, "at the next tick or sooner")
				requireNoRenewalBesideOrAfter(t, queue)
				if test.want.Failed == 0 {
					return
				}
				require.Equal(t, 3*time.Second, queue.commits[0].startAt.Sub(startedAt), "at the end of the confirmed lease")
				reason := queue.failureOf(t, "inst-1").Reason
				require.Contains(t, reason, "lease renewal failed")
				require.Contains(t, reason, "connection refused")
				require.LessOrEqual(t, len(calls), 13, "a passing fault is no reason for a storm of calls")
			})
		})
	}
}

// The end is counted from when the last confirmed call was sent, not from its answer.
func TestLeaseIsTrustedFromWhenTheLastConfirmedCallWasSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		startedAt := time.Now()
		queue := &scriptQueue{items: testItems(1)}
		queue.onRenew = func(context.Context, Lease) error {
			if len(queue.renewCalls()) == 1 {
				time.Sleep(900 * time.Millisecond)
				return nil
			}
			return ErrUnavailable
		}
		stats, err := RunDuePass(t.Context(), queue, testRegistry(work(time.Hour)), leaseOf(3*time.Second), noContext)
		require.NoError(t, err)
		require.Equal(t, Stats{Claimed: 1, Failed: 1}, stats)
		require.Equal(t, 4*time.Second, queue.commits[0].startAt.Sub(startedAt))
	})
}

// The claim's own time counts: a lease that was granted slowly is half over.
func TestClaimThatTakesLongIsRenewedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		startedAt := time.Now()
		queue := &scriptQueue{onClaim: func(context.Context, ClaimRequest) ([]WorkItem, error) {
			time.Sleep(1700 * time.Millisecond)
			return testItems(1), nil
		}}
		stats, err := RunDuePass(t.Context(), queue, testRegistry(work(2*time.Second)), leaseOf(3*time.Second), noContext)
		require.NoError(t, err)
		require.Equal(t, Stats{Claimed: 1, Completed: 1}, stats)
		require.Equal(t, []time.Duration{1700 * time.Millisecond, 2 * time.Second, 3 * time.Second}, offsets(queue.renews, startedAt))
	})
}

// A renewal that overruns its period is made up for at once, for the lease that
// it confirmed is that much older; then the old rhythm goes on.
func TestRenewalAfterASlowOneComesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		startedAt := time.Now()
		queue := &scriptQueue{items: testItems(1)}
		queue.onRenew = func(context.Context, Lease) error {
			if len(queue.renewCalls()) == 2 {
				time.Sleep(1400 * time.Millisecond)
			}
			return nil
		}
		stats, err := RunDuePass(t.Context(), queue, testRegistry(work(5500*time.Millisecond)), leaseOf(3*time.Second), noContext)
		require.NoError(t, err)
		require.Equal(t, Stats{Claimed: 1, Completed: 1}, stats)
		require.Equal(t, []time.Duration{
			time.Second, 2 * time.Second, 3400 * time.Millisecond, 4 * time.Second, 5 * time.Second,
		}, offsets(queue.renews, startedAt))
	})
}

// deafRenewals is a queue whose renewals ignore their contexts.
func deafRenewals(answer <-chan struct{}) *scriptQueue {
	return &scriptQueue{items: testItems(1), onRenew: func(context.Context, Lease) error {
		<-answer
		return nil
	}}
}

func TestRenewalThatIgnoresItsContext(t *testing.T) {
	t.Run("ends the evaluation when the lease ends", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			startedAt := time.Now()
			answer := make(chan struct{})
			queue := deafRenewals(answer)
			stats, err := RunDuePass(t.Context(), queue, testRegistry(work(time.Hour)), leaseOf(3*time.Second), noContext)
			require.NoError(t, err)
			require.Equal(t, Stats{Claimed: 1, Failed: 1}, stats)
			require.Equal(t, 3*time.Second, time.Since(startedAt))
			require.Contains(t, queue.failureOf(t, "inst-1").Reason, "lease renewal failed: supervisor: lease lost")
			require.Len(t, queue.renews, 1)
			close(answer)
			synctest.Wait()
			require.Len(t, queue.commits, 1, "a late answer changes nothing")
		})
	})
	t.Run("is waited for until the lease ends, then left behind", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			startedAt := time.Now()
			answer := make(chan struct{})
			queue := deafRenewals(answer)
			stats, err := RunDuePass(t.Context(), queue, testRegistry(work(1500*time.Millisecond)), leaseOf(3*time.Second), noContext)
			require.NoError(t, err)
			require.Equal(t, Stats{Claimed: 1, Completed: 1}, stats)
			require.Equal(t, 3*time.Second, queue.commits[0].startAt.Sub(startedAt))
			require.Equal(t, 3*time.Second, time.Since(startedAt))
			close(answer)
		})
	})
	t.Run("is waited for no longer than it takes", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			startedAt := time.Now()
			answer := make(chan struct{})
			time.AfterFunc(2*time.Second, func() { close(answer) })
			queue := deafRenewals(answer)
			stats, err := RunDuePass(t.Context(), queue, testRegistry(work(1500*time.Millisecond)), leaseOf(3*time.Second), noContext)
			require.NoError(t, err)
			require.Equal(t, Stats{Claimed: 1, Completed: 1}, stats)
			require.Equal(t, 2*time.Second, queue.commits[0].startAt.Sub(startedAt))
			requireNoRenewalBesideOrAfter(t, queue)
		})
	})
}

// Renewals go on under a caller's context that has ended, for commits do, too.
func TestRenewalsOutliveTheCallersCancellation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), valueKey{}, "v"))
		var ended []error
		queue := &scriptQueue{items: testItems(1), onRenew: func(ctx context.Context, _ Lease) error {
			ended = append(ended, ctx.Err())
			if ctx.Value(valueKey{}) != "v" {
				t.Error("values of the caller's context are lost")
			}
			if _, ok := ctx.Deadline(); !ok {
				t.Error("the renewal is not bounded in time")
			}
			return nil
		}}
		stats, err := RunDuePass(ctx, queue, testRegistry(func(_ context.Context, item *WorkItem) (TransitionCommand, error) {
			cancel()
			time.Sleep(2500 * time.Millisecond) // it must finish what it began
			return completed(item)
		}), leaseOf(3*time.Second), noContext)
		require.NoError(t, err)
		require.Equal(t, Stats{Claimed: 1, Completed: 1}, stats)
		require.Equal(t, []error{nil, nil}, ended)
	})
}

type valueKey struct{}

// A thousand leases are renewed in the same rhythm, each on its own.
func TestManyLeasesKeepTheirRhythm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const items = 1000
		startedAt := time.Now()
		queue := &scriptQueue{items: testItems(items)}
		settings := leaseOf(3 * time.Second)
		settings.ClaimBatch, settings.Concurrency = items, items
		stats, err := RunDuePass(t.Context(), queue, testRegistry(work(3500*time.Millisecond)), settings, noContext)
		require.NoError(t, err)
		require.Equal(t, Stats{Claimed: items, Completed: items}, stats)
		require.Len(t, queue.renews, 3*items)
		calls := offsets(queue.renews, startedAt)
		slices.Sort(calls)
		for n, offset := range calls {
			require.Equal(t, time.Duration(n/items+1)*time.Second, offset)
		}
	})
}
