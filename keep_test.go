package supervisor

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// onAtOnce is a command after which the instance is due again.
func onAtOnce(item *WorkItem) (TransitionCommand, error) {
	return NewCommand(item, "test.on", nil, item.StateVersion, Continue{})
}

// until carries an instance on until a state version, then ends it.
func until(version int64) evaluateFunc {
	return func(_ context.Context, item *WorkItem) (TransitionCommand, error) {
		if item.StateVersion == version {
			return completed(item)
		}
		return onAtOnce(item)
	}
}

func TestClaimIsKeptWhileItsInstanceIsDueAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := newKeepingQueue(testItem("inst-1"))
		settings := testSettings()
		var mu sync.Mutex
		var kept []bool
		settings.Observer = &Observer{Claim: func(info ClaimInfo) {
			mu.Lock()
			defer mu.Unlock()
			kept = append(kept, info.Kept)
		}}
		loop := startLoop(t, queue, until(5), settings)
		time.Sleep(500 * time.Millisecond)
		synctest.Wait()
		require.Equal(t, Stats{Claimed: 6, Continued: 5, Completed: 1}, loop.Stats())
		require.Equal(t, []bool{false, true, true, true, true, true}, kept)
		require.Len(t, queue.keepCalls(), 5, "what ends is not kept")
		for n, commit := range queue.commits {
			require.EqualValues(t, n, commit.item.StateVersion)
			require.EqualValues(t, n+1, commit.item.LeaseVersion)
		}
		loop.stop(t)
	})
}

func TestClaimIsKeptForSixteenTransitionsInARow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := newKeepingQueue(testItem("inst-1"))
		loop := startLoop(t, queue, until(1000), testSettings())
		time.Sleep(500 * time.Millisecond)
		synctest.Wait()
		require.Equal(t, Stats{Claimed: 16, Continued: 16}, loop.Stats())
		require.Len(t, queue.keepCalls(), 15)
		require.Len(t, queue.commitCalls(), 16, "the last one gives the claim up")
		loop.stop(t)
	})
}

func TestClaimIsKeptForHalfTheLease(t *testing.T) {
	for _, test := range []struct {
		work time.Duration
		want int
	}{
		{10*time.Second - 1, 4}, // the fourth ends at 40 s less a little
		{10 * time.Second, 3},   // the third ends at 30 s
		{29 * time.Second, 2},
		{30*time.Second - 1, 2},
		{30 * time.Second, 1},
		{5 * time.Minute, 1},
	} {
		t.Run(test.work.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				queue := newKeepingQueue(testItem("inst-1"))
				loop := startLoop(t, queue, func(_ context.Context, item *WorkItem) (TransitionCommand, error) {
					time.Sleep(test.work)
					return onAtOnce(item)
				}, testSettings())
				time.Sleep(10 * time.Minute)
				synctest.Wait()
				require.Equal(t, test.want, loop.Stats().Claimed)
				loop.stop(t)
			})
		})
	}
}

func TestOnlyCommandsThatDidNotFailKeepTheClaim(t *testing.T) {
	later := time.Now().Add(time.Hour)
	for name, test := range map[string]struct {
		disposition Disposition
		asks        bool
	}{
		"continue":            {Continue{}, true},
		"continue later":      {Continue{Delay: time.Hour}, true}, // a wakeup may make it due
		"reschedule":          {Reschedule{At: later}, true},
		"complete":            {Complete{}, false},
		"failed by a driver":  {Failed{Reason: "refused", RetryAt: later}, false},
		"failed for good":     {Failed{Reason: "refused"}, false},
		"failed by a driver'": {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				queue := newKeepingQueue(testItem("inst-1"))
				queue.onKeep = func(ctx context.Context, item *WorkItem, command *TransitionCommand, lease time.Duration) (*WorkItem, error) {
					if lease != time.Minute {
						t.Errorf("the lease is %v", lease)
					}
					return nil, queue.CommitCommand(ctx, item, command) // it is not due at once
				}
				loop := startLoop(t, queue, func(_ context.Context, item *WorkItem) (TransitionCommand, error) {
					if test.disposition == nil {
						return TransitionCommand{}, errPlanned
					}
					return NewCommand(item, "test.on", nil, nil, test.disposition)
				}, testSettings())
				time.Sleep(500 * time.Millisecond)
				synctest.Wait()
				require.Equal(t, test.asks, len(queue.keepCalls()) == 1)
				require.Len(t, queue.commitCalls(), 1)
				require.Equal(t, 1, loop.Stats().Claimed)
				loop.stop(t)
			})
		})
	}
}

// Each transition of a kept claim goes through everything that a claimed one does.
func TestKeptClaimIsCheckedLikeAnyOther(t *testing.T) {
	for name, test := range map[string]struct {
		spoil    func(next *WorkItem)
		admit    error
		supports bool
		command  func(*TransitionCommand)
		says     string
	}{
		"pins":       {spoil: func(next *WorkItem) { next.WorkflowRevisionDigest = "" }, supports: true, says: "WorkflowRevisionDigest is blank"},
		"admission":  {admit: ErrNotAdmitted, supports: true, says: "admission: "},
		"resolution": {supports: false, says: "does not support"},
		"validation": {supports: true, command: func(c *TransitionCommand) { c.NextState = nil }, says: "NextState is nil"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				queue := newKeepingQueue(testItem("inst-1"))
				keep := func(ctx context.Context, item *WorkItem, command *TransitionCommand) (*WorkItem, error) {
					if err := queue.CommitCommand(ctx, item, command); err != nil {
						return nil, err
					}
					next := item.Clone()
					next.StateVersion++
					next.LeaseVersion++
					if test.spoil != nil {
						test.spoil(&next)
					}
					return &next, nil
				}
				queue.onKeep = func(ctx context.Context, item *WorkItem, command *TransitionCommand, _ time.Duration) (*WorkItem, error) {
					return keep(ctx, item, command)
				}
				queue.onAdmit = func(_ context.Context, item *WorkItem) error {
					if item.StateVersion > 0 {
						return test.admit
					}
					return nil
				}
				registry := NewDriverRegistry[struct{}]()
				require.NoError(t, registry.Register(&testDriver{
					spec:     "spec",
					supports: func(item *WorkItem) bool { return item.StateVersion == 0 || test.supports },
					evaluate: func(_ context.Context, item *WorkItem) (TransitionCommand, error) {
						command, err := onAtOnce(item)
						if item.StateVersion > 0 && test.command != nil {
							test.command(&command)
						}
						return command, err
					},
				}))
				supervisor, err := New(queue, registry, testSettings(), noContext)
				require.NoError(t, err)
				ctx, end := context.WithTimeout(t.Context(), 500*time.Millisecond)
				defer end()
				require.NoError(t, supervisor.Run(ctx))
				require.Equal(t, Stats{Claimed: 2, Continued: 1, Failed: 1}, supervisor.Stats())
				require.Contains(t, queue.commits[1].command.Disposition.(Failed).Reason, test.says)
			})
		})
	}
}

// The lease of a kept claim runs from the commit that kept it.
func TestKeptClaimIsRenewedInItsOwnRhythm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		startedAt := time.Now()
		queue := newKeepingQueue(testItem("inst-1"))
		queue.onCommit = func(context.Context, *WorkItem, *TransitionCommand) error {
			time.Sleep(200 * time.Millisecond)
			return nil
		}
		loop := startLoop(t, queue, func(ctx context.Context, item *WorkItem) (TransitionCommand, error) {
			if item.StateVersion == 0 {
				time.Sleep(1300 * time.Millisecond)
				return onAtOnce(item)
			}
			return work(2500*time.Millisecond)(ctx, item)
		}, leaseOf(3*time.Second))
		time.Sleep(10 * time.Second)
		loop.stop(t)
		require.Equal(t, Stats{Claimed: 2, Continued: 1, Completed: 1}, loop.Stats())
		var versions []int64
		for _, call := range queue.renews {
			versions = append(versions, call.lease.Version)
		}
		require.Equal(t, []int64{1, 2, 2}, versions)
		s := time.Second
		require.Equal(t, []time.Duration{s, 2300 * time.Millisecond, 3300 * time.Millisecond}, offsets(queue.renews, startedAt))
	})
}

// A retry counts from the store's time of the kept claim.
func TestFailureOfAKeptClaimCountsFromItsOwnTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := newKeepingQueue(testItem("inst-1"))
		keptAt := time.Date(2031, 1, 1, 0, 0, 0, 0, time.UTC)
		queue.onKeep = func(_ context.Context, item *WorkItem, _ *TransitionCommand, _ time.Duration) (*WorkItem, error) {
			next := item.Clone()
			next.StateVersion++
			next.LeaseVersion++
			next.ClaimedAt = keptAt
			return &next, nil
		}
		loop := startLoop(t, queue, func(_ context.Context, item *WorkItem) (TransitionCommand, error) {
			time.Sleep(2 * time.Second)
			if item.StateVersion == 0 {
				return onAtOnce(item)
			}
			return TransitionCommand{}, errPlanned
		}, testSettings())
		time.Sleep(10 * time.Second)
		loop.stop(t)
		require.Equal(t, keptAt.Add(7*time.Second), queue.failureOf(t, "inst-1").RetryAt)
	})
}

func TestErrorsOfKeepingMeanWhatThoseOfCommitsMean(t *testing.T) {
	for name, test := range map[string]struct {
		keep     func() error
		want     Stats
		commits  int // by CommitCommand, after the one that was to keep
		releases int
	}{
		"stale":       {func() error { return errStale }, Stats{Claimed: 1, Revoked: 1}, 0, 1},
		"rejected":    {func() error { return ErrCommandRejected }, Stats{Claimed: 1, Failed: 1}, 1, 0},
		"lost":        {func() error { return ErrLeaseLost }, Stats{Claimed: 1, Failed: 1}, 0, 0},
		"unknown":     {func() error { return ErrCommitUnknown }, Stats{Claimed: 1, Failed: 1}, 0, 0},
		"unavailable": {func() error { return ErrUnavailable }, Stats{Claimed: 1, Failed: 1}, 0, 0},
		"panics":      {func() error { panic("boom") }, Stats{Claimed: 1, Failed: 1}, 0, 0},
		"exits":       {func() error { runtime.Goexit(); return nil }, Stats{Claimed: 1, Failed: 1}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				queue := newKeepingQueue(testItem("inst-1"))
				queue.onKeep = func(_ context.Context, item *WorkItem, _ *TransitionCommand, _ time.Duration) (*WorkItem, error) {
					next := item.Clone() // what comes beside an error is nothing
					return &next, test.keep()
				}
				loop := startLoop(t, queue, until(1), testSettings())
				time.Sleep(500 * time.Millisecond)
				synctest.Wait()
				require.Equal(t, test.want, loop.Stats())
				require.Len(t, queue.commitCalls(), test.commits)
				require.Len(t, queue.releaseCalls(), test.releases)
				queue.push(testItem("inst-2"), testItem("inst-3"), testItem("inst-4"))
				time.Sleep(time.Second + 500*time.Millisecond)
				require.Equal(t, 4, loop.Stats().Claimed, "the slot is free again")
				loop.stop(t)
			})
		})
	}
}

func TestNoClaimIsKeptWhileTheLoopDrains(t *testing.T) {
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			queue := newKeepingQueue(testItem("inst-1"))
			ctx, end := context.WithCancel(t.Context())
			supervisor, err := New(queue, testRegistry(func(_ context.Context, item *WorkItem) (TransitionCommand, error) {
				if item.StateVersion == 3 {
					end() // the commit of this very evaluation must not keep any more
				}
				return onAtOnce(item)
			}), testSettings(), noContext)
			require.NoError(t, err)
			require.NoError(t, supervisor.Run(ctx))
			require.Equal(t, Stats{Claimed: 4, Continued: 4}, supervisor.Stats())
			require.Len(t, queue.keeps, 3)
			require.Len(t, queue.commits, 4)
		})
	}
}

func TestSinglePassKeepsNoClaim(t *testing.T) {
	queue := newKeepingQueue(testItems(2)...)
	stats, err := RunDuePass(t.Context(), queue, testRegistry(until(5)), testSettings(), noContext)
	require.NoError(t, err)
	require.Equal(t, Stats{Claimed: 2, Continued: 2}, stats)
	require.Empty(t, queue.keeps)
}

// A kept claim that is lost or revoked is so like any other.
func TestKeptClaimMayBeLost(t *testing.T) {
	for _, failure := range []error{ErrEpochStale, errors.New("no route")} {
		t.Run(fmt.Sprint(failure), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				queue := newKeepingQueue(testItem("inst-1"))
				queue.onRenew = func(_ context.Context, lease Lease) error {
					if lease.Version > 1 {
						return failure
					}
					return nil
				}
				loop := startLoop(t, queue, func(ctx context.Context, item *WorkItem) (TransitionCommand, error) {
					if item.StateVersion == 0 {
						return onAtOnce(item)
					}
					return work(time.Hour)(ctx, item)
				}, testSettings())
				time.Sleep(time.Minute)
				loop.stop(t)
				want := Stats{Claimed: 2, Continued: 1}
				if errors.Is(failure, ErrEpochStale) {
					want.Revoked = 1
				} else {
					want.Failed = 1
				}
				require.Equal(t, want, loop.Stats())
			})
		})
	}
}

// A queue in memory keeps claims: instances of many states need one claim each.
func TestKeptClaimsOfTheMemoryQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := NewMemoryWorkQueue(testItems(20)...)
		loop := startLoop(t, queue, until(40), testSettings())
		time.Sleep(10 * time.Second)
		loop.stop(t)
		require.Equal(t, Stats{Claimed: 820, Continued: 800, Completed: 20}, loop.Stats())
		for _, item := range testItems(20) {
			snapshot, err := queue.Get(t.Context(), item.TenantID, item.ID)
			require.NoError(t, err)
			require.Equal(t, StatusCompleted, snapshot.Status)
			require.EqualValues(t, 41, snapshot.StateVersion)
		}
	})
}
