package supervisor

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// drainSettings are those of a loop that may drain for a time.
func drainSettings(drain time.Duration) Settings {
	settings := testSettings()
	settings.DrainTimeout = drain
	return settings
}

func TestLoopLetsEvaluationsFinishWhenItEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := &releasingQueue{scriptQueue: &scriptQueue{items: testItems(2)}}
		settings := drainSettings(30 * time.Second)
		settings.LeaseDuration = 3 * time.Second
		loop := startLoop(t, queue, work(20500*time.Millisecond), settings)
		time.Sleep(5 * time.Second)
		endAt := time.Now()
		queue.push(testItem("late"))
		loop.stop(t)
		require.Equal(t, Stats{Claimed: 2, Completed: 2}, loop.Stats())
		require.Equal(t, 15500*time.Millisecond, time.Since(endAt), "it ends with its last item")
		require.Empty(t, queue.releases)
		require.Len(t, queue.renews, 40, "leases are renewed while the loop drains")
		for _, claim := range queue.claims {
			require.False(t, claim.at.After(endAt))
		}
	})
}

func TestLoopHandsBackWhatDoesNotFinishInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := &releasingQueue{scriptQueue: &scriptQueue{items: testItems(3)}}
		ended := make(chan error, 3)
		loop := startLoopWith(t, context.WithValue(t.Context(), valueKey{}, "v"), queue, func(ctx context.Context, item *WorkItem) (TransitionCommand, error) {
			<-ctx.Done()
			ended <- context.Cause(ctx)
			switch item.ID {
			case "inst-2": // a result is committed all the same
				return completed(item)
			case "inst-3":
				panic("boom")
			}
			return TransitionCommand{}, ctx.Err()
		}, drainSettings(10*time.Second), noContext)
		queue.onRelease = func(ctx context.Context, _ *WorkItem, _ string) error {
			if ctx.Value(valueKey{}) != "v" {
				t.Error("values of the caller's context are lost")
			}
			if _, ok := ctx.Deadline(); !ok {
				t.Error("the release is not bounded in time")
			}
			return nil
		}
		time.Sleep(time.Second)
		endAt := time.Now()
		loop.stop(t)
		require.Equal(t, 10*time.Second, time.Since(endAt))
		require.Equal(t, Stats{Claimed: 3, Completed: 1}, loop.Stats(), "no failure is recorded")
		for range 3 {
			require.ErrorIs(t, <-ended, ErrShutdown)
		}
		require.Len(t, queue.commits, 1)
		require.Len(t, queue.releases, 2)
		for _, release := range queue.releases {
			require.Equal(t, ErrShutdown.Error(), release.reason)
			require.NoError(t, release.ctxErr)
			require.EqualValues(t, 1, release.item.LeaseVersion)
		}
	})
}

// Without a Releaser a failure spares the item the rest of its lease.
func TestLoopWithoutAReleaserRecordsFailuresWhenItEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := &scriptQueue{items: testItems(1)}
		loop := startLoop(t, queue, work(time.Hour), drainSettings(10*time.Second))
		time.Sleep(time.Second)
		loop.stop(t)
		require.Equal(t, Stats{Claimed: 1, Failed: 1}, loop.Stats())
		failure := queue.failureOf(t, "inst-1")
		require.Contains(t, failure.Reason, "shutting down")
		require.Equal(t, queue.commits[0].item.ClaimedAt.Add(16*time.Second), failure.RetryAt)
	})
}

func TestLoopAbandonsDriversThatIgnoreItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := &releasingQueue{scriptQueue: &scriptQueue{items: testItems(1)}}
		settings := drainSettings(10 * time.Second)
		settings.AbandonAfter = 4 * time.Second
		loop := startLoop(t, queue, func(_ context.Context, item *WorkItem) (TransitionCommand, error) {
			time.Sleep(time.Hour)
			return completed(item)
		}, settings)
		time.Sleep(time.Second)
		endAt := time.Now()
		loop.stop(t)
		require.Equal(t, 14*time.Second, time.Since(endAt))
		require.Equal(t, Stats{Claimed: 1, Abandoned: 1}, loop.Stats())
		require.Len(t, queue.releases, 1)
		time.Sleep(time.Hour)
		require.Empty(t, queue.commits, "the late result is dropped")
	})
}

// A claim that was in flight is not evaluated any more, but handed back: it
// begins elsewhere sooner than here.
func TestClaimInFlightWhenTheLoopEndsIsHandedBack(t *testing.T) {
	for _, canRelease := range []bool{true, false} {
		t.Run(fmt.Sprintf("Releaser %v", canRelease), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				script := &scriptQueue{onClaim: func(ctx context.Context, _ ClaimRequest) ([]WorkItem, error) {
					time.Sleep(5 * time.Second)
					return testItems(2), ctx.Err()
				}}
				releasing := &releasingQueue{scriptQueue: script}
				var queue WorkQueue = script
				if canRelease {
					queue = releasing
				}
				loop := startLoopWith(t, t.Context(), queue, func(context.Context, *WorkItem) (TransitionCommand, error) {
					t.Error("an item is evaluated after the end")
					return TransitionCommand{}, nil
				}, drainSettings(10*time.Second), func(context.Context) (struct{}, error) {
					t.Error("a context is made after the end")
					return struct{}{}, nil
				})
				time.Sleep(time.Second)
				endAt := time.Now()
				loop.stop(t)
				require.Equal(t, 4*time.Second, time.Since(endAt))
				require.Len(t, script.claims, 1)
				if canRelease {
					require.Len(t, releasing.releases, 2)
					require.Empty(t, script.commits)
					require.Equal(t, Stats{Claimed: 2}, loop.Stats())
					return
				}
				require.Len(t, script.commits, 2)
				require.Equal(t, Stats{Claimed: 2, Failed: 2}, loop.Stats())
			})
		})
	}
}

func TestClaimThatWaitsForItsEndIsBoundedByTheDrainTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := &scriptQueue{onClaim: func(ctx context.Context, _ ClaimRequest) ([]WorkItem, error) {
			<-ctx.Done()
			return nil, context.Cause(ctx)
		}}
		loop := startLoop(t, queue, complete, drainSettings(10*time.Second))
		time.Sleep(time.Second)
		endAt := time.Now()
		loop.stop(t)
		require.Equal(t, 10*time.Second, time.Since(endAt))
	})
}

func TestIdleLoopEndsAtOnce(t *testing.T) {
	for name, queue := range map[string]func() WorkQueue{
		"polling": func() WorkQueue { return &scriptQueue{} },
		"waiting": func() WorkQueue { return &waitingQueue{scriptQueue: &scriptQueue{}, onWait: untilDone} },
		"memory":  func() WorkQueue { return NewMemoryWorkQueue() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				settings := testSettings()
				settings.PollInterval = time.Hour
				loop := startLoop(t, queue(), complete, settings)
				time.Sleep(time.Minute)
				endAt := time.Now()
				loop.stop(t)
				require.Equal(t, endAt, time.Now())
			})
		})
	}
}

// A context that is being made when the loop ends is drained like an evaluation.
func TestContextFactoryIsToldOfTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := &releasingQueue{scriptQueue: &scriptQueue{items: testItems(2)}}
		loop := startLoopWith(t, t.Context(), queue, func(context.Context, *WorkItem) (TransitionCommand, error) {
			t.Error("an item is evaluated without a context")
			return TransitionCommand{}, nil
		}, drainSettings(10*time.Second), func(ctx context.Context) (struct{}, error) {
			<-ctx.Done()
			return struct{}{}, context.Cause(ctx)
		})
		time.Sleep(time.Second)
		endAt := time.Now()
		loop.stop(t)
		require.Equal(t, 10*time.Second, time.Since(endAt))
		require.Equal(t, Stats{Claimed: 2}, loop.Stats())
		require.Len(t, queue.releases, 2)
		require.Empty(t, queue.commits)
	})
}

// What fails before the drain time is over is a failure like any other.
func TestFailureWhileTheLoopDrainsIsRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := &releasingQueue{scriptQueue: &scriptQueue{items: testItems(1)}}
		loop := startLoop(t, queue, failing(errPlanned, 5*time.Second), drainSettings(10*time.Second))
		time.Sleep(time.Second)
		loop.stop(t)
		require.Equal(t, Stats{Claimed: 1, Failed: 1}, loop.Stats())
		require.Empty(t, queue.releases)
	})
}

// Instances in memory are claimable by others at once, with no attempt burnt.
func TestInstancesThatWereHandedBackAreDueForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := NewMemoryWorkQueue(testItems(3)...)
		first := startLoop(t, queue, work(time.Hour), drainSettings(time.Second))
		time.Sleep(time.Second)
		first.stop(t)
		require.Equal(t, Stats{Claimed: 3}, first.Stats())
		attempts := make(chan int, 3)
		stats, err := RunDuePass(t.Context(), queue, testRegistry(func(_ context.Context, item *WorkItem) (TransitionCommand, error) {
			attempts <- item.Attempt
			return completed(item)
		}), testSettings(), noContext)
		require.NoError(t, err)
		require.Equal(t, Stats{Claimed: 3, Completed: 3}, stats)
		for range 3 {
			require.Zero(t, <-attempts)
		}
	})
}

// Supervisors come and go at any moment while drivers panic, exit, fail and take
// their time: no transition is lost or done twice.
func TestManyStartsAndStops(t *testing.T) {
	const instances, transitions = 40, 12
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	synctest.Test(t, func(t *testing.T) {
		queue := NewMemoryWorkQueue(testItems(instances)...)
		var mu sync.Mutex
		random := rand.New(rand.NewPCG(seed, 0))
		roll := func(n int) int {
			mu.Lock()
			defer mu.Unlock()
			return random.IntN(n)
		}
		evaluate := func(ctx context.Context, item *WorkItem) (TransitionCommand, error) {
			switch roll(12) {
			case 0:
				panic("boom")
			case 1:
				return TransitionCommand{}, errors.New("planned")
			case 2:
				return TransitionCommand{}, nil
			}
			select {
			case <-time.After(time.Duration(roll(3000)) * time.Millisecond):
			case <-ctx.Done():
				if roll(2) == 0 {
					return TransitionCommand{}, ctx.Err()
				}
			}
			if item.StateVersion-int64(item.Attempt) >= transitions && roll(2) == 0 {
				return completed(item)
			}
			return NewCommand(item, "test.on", nil, item.StateVersion+1, Continue{Delay: time.Duration(roll(3)) * time.Second})
		}
		settings := testSettings()
		settings.LeaseDuration, settings.AbandonAfter = 3*time.Second, time.Second
		settings.RequeueDelay, settings.MaxRetryDelay = time.Second, 2*time.Second
		settings.Concurrency, settings.ClaimBatch = 8, 4
		var workers sync.WaitGroup
		var total Stats
		for worker := range 3 {
			workers.Go(func() {
				supervisor, err := New(queue, testRegistry(evaluate), settings, noContext)
				if err != nil {
					t.Error(err)
					return
				}
				for range 40 {
					ctx, end := context.WithTimeout(t.Context(), time.Duration(roll(5000))*time.Millisecond)
					if err := supervisor.Run(ctx); err != nil {
						t.Error(worker, err)
					}
					end()
				}
				ctx, end := context.WithTimeout(t.Context(), 10*time.Minute)
				defer end()
				if err := supervisor.Run(ctx); err != nil {
					t.Error(worker, err)
				}
				mu.Lock()
				defer mu.Unlock()
				total.add(supervisor.Stats())
			})
		}
		workers.Wait()
		require.Equal(t, instances, total.Completed)
		require.Zero(t, total.LeasesLost)
		require.Zero(t, total.Abandoned)
		require.Zero(t, total.Revoked)
		committed := total.Continued + total.Completed + total.Failed
		versions := 0
		for snapshot, err := range queue.List(t.Context(), Filter{}) {
			require.NoError(t, err)
			require.Equal(t, StatusCompleted, snapshot.Status, snapshot.ID)
			versions += int(snapshot.StateVersion)
		}
		require.Equal(t, committed, versions, "every commit made one state version")
		require.Len(t, queue.Committed(), versions)
	})
}
