package supervisor

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func timeoutSettings(timeout, abandonAfter time.Duration) Settings {
	settings := testSettings()
	settings.EvaluationTimeout, settings.AbandonAfter = timeout, abandonAfter
	return settings
}

func TestEvaluationHasNoTimeoutByDefault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := &scriptQueue{items: testItems(1)}
		stats, err := RunDuePass(t.Context(), queue, testRegistry(func(ctx context.Context, item *WorkItem) (TransitionCommand, error) {
			if _, ok := ctx.Deadline(); ok {
				t.Error("the evaluation has a deadline")
			}
			return work(10*time.Hour)(ctx, item)
		}), testSettings(), noContext)
		require.NoError(t, err)
		require.Equal(t, Stats{Claimed: 1, Completed: 1}, stats)
	})
}

func TestEvaluationTimeoutEndsTheContextWithItsCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		startedAt := time.Now()
		queue := &scriptQueue{items: testItems(2)}
		stats, err := RunDuePass(t.Context(), queue, testRegistry(func(ctx context.Context, item *WorkItem) (TransitionCommand, error) {
			if item.ID == "inst-2" {
				return work(9*time.Second)(ctx, item)
			}
			<-ctx.Done()
			if since := time.Since(startedAt); since != 10*time.Second {
				t.Errorf("ended after %v", since)
			}
			cause := context.Cause(ctx)
			if !errors.Is(cause, ErrEvaluationTimeout) || !errors.Is(cause, context.DeadlineExceeded) || !errors.Is(ctx.Err(), context.DeadlineExceeded) {
				t.Errorf("ended with %v (%v)", cause, ctx.Err())
			}
			return TransitionCommand{}, errors.New("interrupted")
		}), timeoutSettings(10*time.Second, time.Minute), noContext)
		require.NoError(t, err)
		require.Equal(t, Stats{Claimed: 2, Failed: 1, Completed: 1}, stats)
		require.Equal(t, "interrupted (supervisor: evaluation timeout exceeded)", queue.failureOf(t, "inst-1").Reason)
	})
}

func TestResultAfterTheTimeoutIsCommitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := &scriptQueue{items: testItems(1)}
		stats, err := RunDuePass(t.Context(), queue, testRegistry(func(ctx context.Context, item *WorkItem) (TransitionCommand, error) {
			<-ctx.Done()
			time.Sleep(time.Second)
			return completed(item)
		}), timeoutSettings(10*time.Second, time.Minute), noContext)
		require.NoError(t, err)
		require.Equal(t, Stats{Claimed: 1, Completed: 1}, stats)
	})
}

// The time limit counts from when an item gets its slot, and covers all that
// is asked for the evaluation.
func TestTimeoutCoversAdmissionAndStartsWithTheSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		startedAt := time.Now()
		var endedAfter []time.Duration
		queue := &scriptQueue{
			onClaim: func(context.Context, ClaimRequest) ([]WorkItem, error) { return testItems(2), nil },
			onAdmit: func(ctx context.Context, _ *WorkItem) error {
				<-ctx.Done()
				endedAfter = append(endedAfter, time.Since(startedAt))
				return ctx.Err()
			},
		}
		settings := timeoutSettings(10*time.Second, time.Minute)
		settings.Concurrency = 1
		stats, err := RunDuePass(t.Context(), queue, testRegistry(complete), settings, noContext)
		require.NoError(t, err)
		require.Equal(t, Stats{Claimed: 2, Failed: 2}, stats)
		require.Equal(t, []time.Duration{10 * time.Second, 20 * time.Second}, endedAfter)
		require.Contains(t, queue.failureOf(t, "inst-1").Reason, "evaluation timeout exceeded")
	})
}

// A driver that ignores its context keeps its slot until it is abandoned; then
// the next item gets it, and what the driver returns one day is dropped.
func TestDriverThatIgnoresItsContextIsAbandoned(t *testing.T) {
	cancelled := errors.New("the caller has enough")
	for name, test := range map[string]struct {
		settings Settings
		lease    time.Duration
		renew    error
		cancel   time.Duration // the caller's context ends; 0: never
		endsAt   time.Duration // the evaluation's context
		stats    Stats
		says     string
	}{
		"after its timeout": {
			settings: timeoutSettings(10*time.Second, 4*time.Second),
			endsAt:   10 * time.Second, stats: Stats{Claimed: 2, Failed: 1, Completed: 1, Abandoned: 1},
			says: "evaluation was abandoned, it ignored the end of its context for 4s: supervisor: evaluation timeout exceeded",
		},
		"after a lease's length, by default": {
			settings: timeoutSettings(10*time.Second, 0), lease: 7 * time.Second,
			endsAt: 10 * time.Second, stats: Stats{Claimed: 2, Failed: 1, Completed: 1, Abandoned: 1},
			says: "ignored the end of its context for 7s",
		},
		"after the caller's end": {
			settings: timeoutSettings(0, 4*time.Second), cancel: 5 * time.Second,
			endsAt: 5 * time.Second, stats: Stats{Claimed: 2, Failed: 2, Abandoned: 1},
			says: "ignored the end of its context for 4s: the caller has enough",
		},
		"after a failed renewal": {
			settings: timeoutSettings(0, 4*time.Second), renew: errPlanned,
			endsAt: 20 * time.Second, stats: Stats{Claimed: 2, Failed: 1, Completed: 1, Abandoned: 1},
			says: "lease renewal failed: planned",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				startedAt := time.Now()
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				if test.cancel > 0 {
					time.AfterFunc(test.cancel, func() { cancel(cancelled) })
				}
				queue := &scriptQueue{
					onClaim: func(context.Context, ClaimRequest) ([]WorkItem, error) { return testItems(2), nil },
					onRenew: func(_ context.Context, lease Lease) error {
						if lease.InstanceID == "inst-1" {
							return test.renew
						}
						return nil
					},
				}
				settings := test.settings
				settings.Concurrency = 1
				if test.lease > 0 {
					settings.LeaseDuration = test.lease
				}
				var told []string
				settings.Observer = &Observer{
					Abandoned:     func(info LostInfo) { told = append(told, "abandoned "+info.Item.ID) },
					EvaluationEnd: func(info EvaluationInfo) { told = append(told, "end of "+info.Item.ID) },
				}
				back := make(chan struct{})
				var nextAt time.Duration
				stats, err := RunDuePass(ctx, queue, testRegistry(func(ctx context.Context, item *WorkItem) (TransitionCommand, error) {
					if item.ID == "inst-2" {
						nextAt = time.Since(startedAt)
						return completed(item)
					}
					<-ctx.Done()
					if since := time.Since(startedAt); since != test.endsAt {
						t.Errorf("the context ended after %v", since)
					}
					time.Sleep(time.Hour)
					close(back)
					item.State[0] = '#' // it may still touch what is its own
					return completed(item)
				}), settings, noContext)
				require.NoError(t, err)
				require.Equal(t, test.stats, stats)
				abandonedAt := test.endsAt + settings.AbandonAfter
				if settings.AbandonAfter == 0 {
					abandonedAt = test.endsAt + settings.LeaseDuration
				}
				require.Equal(t, abandonedAt, time.Since(startedAt), "the slot is kept until then")
				require.Contains(t, queue.failureOf(t, "inst-1").Reason, test.says)
				require.Len(t, queue.commitsOf("inst-2"), 1)
				if test.cancel == 0 {
					require.Equal(t, abandonedAt, nextAt)
				}
				<-back
				synctest.Wait()
				require.Len(t, queue.commits, 2, "the late result is dropped")
				require.Equal(t, []string{"abandoned inst-1", "end of inst-2"}, told)
			})
		})
	}
}

// A driver that returns in time is not abandoned, also not in the last moment.
func TestDriverThatReturnsInTimeIsNotAbandoned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := &scriptQueue{items: testItems(1)}
		stats, err := RunDuePass(t.Context(), queue, testRegistry(func(ctx context.Context, item *WorkItem) (TransitionCommand, error) {
			<-ctx.Done()
			time.Sleep(4*time.Second - 1)
			return completed(item)
		}), timeoutSettings(10*time.Second, 4*time.Second), noContext)
		require.NoError(t, err)
		require.Equal(t, Stats{Claimed: 1, Completed: 1}, stats)
	})
}

// What hangs before the driver is abandoned like the driver.
func TestAdmissionThatIgnoresItsContextIsAbandoned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := &scriptQueue{items: testItems(1), onAdmit: func(context.Context, *WorkItem) error {
			time.Sleep(time.Hour)
			return nil
		}}
		stats, err := RunDuePass(t.Context(), queue, testRegistry(complete), timeoutSettings(10*time.Second, 4*time.Second), noContext)
		require.NoError(t, err)
		require.Equal(t, Stats{Claimed: 1, Failed: 1, Abandoned: 1}, stats)
		time.Sleep(time.Hour)
		require.Len(t, queue.commits, 1)
	})
}

// The lease of an evaluation that is about to be abandoned is kept until its
// failure is committed.
func TestLeaseIsRenewedUntilTheDriverIsAbandoned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := &scriptQueue{items: testItems(1)}
		settings := timeoutSettings(10*time.Second, 5500*time.Millisecond)
		settings.LeaseDuration = 3 * time.Second
		stats, err := RunDuePass(t.Context(), queue, testRegistry(func(context.Context, *WorkItem) (TransitionCommand, error) {
			time.Sleep(time.Hour)
			return TransitionCommand{}, nil
		}), settings, noContext)
		require.NoError(t, err)
		require.Equal(t, Stats{Claimed: 1, Failed: 1, Abandoned: 1}, stats)
		require.Len(t, queue.renews, 15)
		requireNoRenewalBesideOrAfter(t, queue)
		time.Sleep(time.Hour)
		require.Len(t, queue.renews, 15)
	})
}

func TestAbandonedDriverWhoseFailureIsRefused(t *testing.T) {
	for name, test := range map[string]struct {
		commit error
		want   Stats
		errs   bool
	}{
		"as stale":   {ErrEpochStale, Stats{Claimed: 1, Revoked: 1, Abandoned: 1}, false},
		"as lost":    {ErrLeaseLost, Stats{Claimed: 1, Failed: 1, Abandoned: 1}, true},
		"as unknown": {ErrCommitUnknown, Stats{Claimed: 1, Failed: 1, Abandoned: 1}, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				queue := &scriptQueue{items: testItems(1), onCommit: func(context.Context, *WorkItem, *TransitionCommand) error { return test.commit }}
				stats, err := RunDuePass(t.Context(), queue, testRegistry(func(context.Context, *WorkItem) (TransitionCommand, error) {
					time.Sleep(time.Hour)
					return TransitionCommand{}, nil
				}), timeoutSettings(10*time.Second, 4*time.Second), noContext)
				require.Equal(t, test.want, stats)
				if test.errs {
					require.ErrorIs(t, err, test.commit)
				} else {
					require.NoError(t, err)
				}
				time.Sleep(time.Hour)
				require.Len(t, queue.commits, 1)
			})
		})
	}
}
