package supervisor

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// runningLoop is a supervisor whose Run is under way in a bubble.
type runningLoop struct {
	*Supervisor[struct{}]
	end  context.CancelFunc
	done chan error
}

func startLoop(t *testing.T, queue WorkQueue, evaluate evaluateFunc, settings Settings) *runningLoop {
	t.Helper()
	return startLoopWith(t, t.Context(), queue, evaluate, settings, noContext)
}

func startLoopWith(t *testing.T, ctx context.Context, queue WorkQueue, evaluate evaluateFunc, settings Settings,
	newContext func(context.Context) (struct{}, error)) *runningLoop {
	t.Helper()
	supervisor, err := New(queue, testRegistry(evaluate), settings, newContext)
	require.NoError(t, err)
	ctx, end := context.WithCancel(ctx)
	loop := &runningLoop{supervisor, end, make(chan error, 1)}
	go func() { loop.done <- supervisor.Run(ctx) }()
	return loop
}

// stop ends the loop and waits for it.
func (l *runningLoop) stop(t *testing.T) {
	t.Helper()
	l.end()
	require.NoError(t, <-l.done)
}

func TestSlowItemNeverHoldsUpTheLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		startedAt := time.Now()
		queue := &scriptQueue{items: append([]WorkItem{testItem("slow")}, testItems(20)...)}
		var running mostAtOnce
		loop := startLoop(t, queue, func(_ context.Context, item *WorkItem) (TransitionCommand, error) {
			defer running.enter()()
			if item.ID == "slow" {
				time.Sleep(time.Hour)
			} else {
				time.Sleep(time.Second)
			}
			return completed(item)
		}, testSettings())
		time.Sleep(11 * time.Second)
		synctest.Wait()
		require.Equal(t, Stats{Claimed: 21, Completed: 20}, loop.Stats(), "two slots do twenty seconds of work in ten")
		require.EqualValues(t, 3, running.most.Load())
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Equal(t, Stats{Claimed: 21, Completed: 21}, loop.Stats())
		loop.stop(t)
		require.Equal(t, time.Hour+11*time.Second, time.Since(startedAt))
	})
}

// What is claimed can start at once, so no more is asked for than slots are free.
func TestLoopClaimsForFreeSlotsOnly(t *testing.T) {
	for _, test := range []struct{ concurrency, batch int }{{1, 1}, {3, 3}, {8, 8}, {8, 2}, {100, 100}} {
		t.Run(fmt.Sprintf("%d in batches of %d", test.concurrency, test.batch), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var running mostAtOnce
				queue := &scriptQueue{items: testItems(300)}
				queue.onClaim = func(_ context.Context, req ClaimRequest) ([]WorkItem, error) {
					if free := test.concurrency - int(running.now.Load()); req.Limit > free || req.Limit > test.batch || req.Limit < 1 {
						t.Errorf("%d are asked for while %d slots are free", req.Limit, free)
					}
					queue.mu.Lock()
					defer queue.mu.Unlock()
					n := min(req.Limit, len(queue.items))
					claimed := slices.Clone(queue.items[:n])
					queue.items = queue.items[n:]
					return claimed, nil
				}
				settings := testSettings()
				settings.Concurrency, settings.ClaimBatch = test.concurrency, test.batch
				loop := startLoop(t, queue, func(_ context.Context, item *WorkItem) (TransitionCommand, error) {
					defer running.enter()()
					time.Sleep(time.Duration(len(item.ID)) * 10 * time.Millisecond)
					return completed(item)
				}, settings)
				time.Sleep(time.Minute)
				synctest.Wait()
				require.Equal(t, Stats{Claimed: 300, Completed: 300}, loop.Stats())
				require.LessOrEqual(t, running.most.Load(), int64(test.concurrency))
				loop.stop(t)
			})
		})
	}
}

func TestLoopServesMoreItemsThanItAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running mostAtOnce
		queue := &scriptQueue{}
		queue.onClaim = func(context.Context, ClaimRequest) ([]WorkItem, error) {
			if len(queue.claimCalls()) > 1 {
				return nil, nil
			}
			return testItems(10), nil
		}
		loop := startLoop(t, queue, func(_ context.Context, item *WorkItem) (TransitionCommand, error) {
			defer running.enter()()
			time.Sleep(time.Second)
			return completed(item)
		}, testSettings())
		time.Sleep(10 * time.Second)
		synctest.Wait()
		require.Equal(t, Stats{Claimed: 10, Completed: 10}, loop.Stats())
		require.EqualValues(t, 3, running.most.Load())
		calls := queue.claimCalls()
		require.Equal(t, 3, calls[len(calls)-1].req.Limit, "all slots come back")
		loop.stop(t)
	})
}

func TestOneRunAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := &scriptQueue{items: testItems(1)}
		loop := startLoop(t, queue, complete, testSettings())
		synctest.Wait()
		require.EqualError(t, loop.Run(t.Context()), "supervisor: Run is running already")
		loop.stop(t)

		queue.push(testItem("again"))
		ctx, end := context.WithTimeout(t.Context(), 10*time.Second)
		defer end()
		require.NoError(t, loop.Run(ctx), "one after it goes on")
		require.Equal(t, Stats{Claimed: 2, Completed: 2}, loop.Stats(), "and adds to the stats")
	})
}

func TestRunUnderAnEndedContextClaimsNothing(t *testing.T) {
	queue := &scriptQueue{items: testItems(1)}
	supervisor, err := New(queue, testRegistry(complete), testSettings(), noContext)
	require.NoError(t, err)
	ctx, end := context.WithCancel(t.Context())
	end()
	require.NoError(t, supervisor.Run(ctx))
	require.Empty(t, queue.claims)
	require.Zero(t, supervisor.Stats())
}

// Errors of items and commits are told to the observer and counted; Run goes on.
func TestLoopSurvivesErrorsOfItems(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := &scriptQueue{items: testItems(4), onCommit: func(_ context.Context, item *WorkItem, _ *TransitionCommand) error {
			if item.ID == "inst-2" {
				return ErrCommitUnknown
			}
			return nil
		}}
		var mu sync.Mutex
		var told []error
		settings := testSettings()
		settings.Observer = &Observer{PassEnd: func(info PassInfo) {
			mu.Lock()
			defer mu.Unlock()
			if info.Err != nil {
				told = append(told, info.Err)
			}
		}}
		loop := startLoop(t, queue, func(_ context.Context, item *WorkItem) (TransitionCommand, error) {
			switch item.ID {
			case "inst-1":
				panic("boom")
			case "inst-3":
				runtime.Goexit()
			}
			return completed(item)
		}, settings)
		time.Sleep(10 * time.Second)
		loop.stop(t)
		require.Equal(t, Stats{Claimed: 4, Failed: 3, Completed: 1}, loop.Stats())
		require.Len(t, told, 1)
		require.ErrorIs(t, told[0], ErrCommitUnknown)
	})
}

// The context of a claim lives from its factory to the last of its items.
func TestEachClaimOfTheLoopHasItsOwnContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		startedAt := time.Now()
		queue := &scriptQueue{items: testItems(3)}
		type made struct {
			ctx     context.Context
			endedAt time.Duration
		}
		var mu sync.Mutex
		var all []*made
		loop := startLoopWith(t, t.Context(), queue, func(_ context.Context, item *WorkItem) (TransitionCommand, error) {
			switch item.ID {
			case "inst-2":
				time.Sleep(5 * time.Second)
			case "inst-4":
				time.Sleep(time.Second)
			}
			return completed(item)
		}, testSettings(), func(ctx context.Context) (struct{}, error) {
			mu.Lock()
			defer mu.Unlock()
			one := &made{ctx: ctx}
			all = append(all, one)
			context.AfterFunc(ctx, func() {
				mu.Lock()
				defer mu.Unlock()
				one.endedAt = time.Since(startedAt)
			})
			return struct{}{}, nil
		})
		synctest.Wait()
		queue.push(testItem("inst-4"))
		time.Sleep(20 * time.Second)
		loop.stop(t)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		require.Len(t, all, 2, "one for each claim that gave items")
		require.Equal(t, 5*time.Second, all[0].endedAt)
		require.Less(t, all[1].endedAt, 4*time.Second)
		require.Greater(t, all[1].endedAt, time.Second)
	})
}

// A failing factory is told to its items, and slows the loop down.
func TestLoopBacksOffFromAFailingContextFactory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := &scriptQueue{items: testItems(30)}
		failures := 4
		settings := testSettings()
		var mu sync.Mutex
		var told []error
		settings.Observer = &Observer{PassEnd: func(info PassInfo) {
			mu.Lock()
			defer mu.Unlock()
			if info.Err != nil {
				told = append(told, info.Err)
			}
		}}
		loop := startLoopWith(t, t.Context(), queue, complete, settings, func(context.Context) (struct{}, error) {
			if failures > 0 {
				failures--
				return struct{}{}, errPlanned
			}
			return struct{}{}, nil
		})
		time.Sleep(time.Minute)
		loop.stop(t)
		require.Equal(t, Stats{Claimed: 30, Failed: 12, Completed: 18}, loop.Stats())
		require.Contains(t, queue.failureOf(t, "inst-12").Reason, "context: planned")
		var gaps []time.Duration
		calls := queue.claimCalls()
		for n := range 4 {
			gaps = append(gaps, calls[n+1].at.Sub(calls[n].at))
		}
		requireGaps(t, []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second}, gaps)
		require.Len(t, told, 4)
		var contextError *ContextError
		require.ErrorAs(t, told[0], &contextError)
	})
}

// requireGaps checks waits, which may be lengthened by up to a tenth, and by the
// millisecond for which free slots are gathered.
func requireGaps(t *testing.T, want, got []time.Duration) {
	t.Helper()
	require.Len(t, got, len(want))
	for n := range want {
		require.GreaterOrEqual(t, got[n], want[n], "gap %d", n)
		require.LessOrEqual(t, got[n], want[n]+want[n]/10+2*time.Millisecond, "gap %d", n)
	}
}

func TestClaimErrorsBackOff(t *testing.T) {
	for name, claim := range map[string]func() error{
		"an error": func() error { return ErrUnavailable },
		"a panic":  func() error { panic("boom") },
		"Goexit":   func() error { runtime.Goexit(); return nil },
		"no error": func() error { return (*QueueError)(nil) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				queue := &scriptQueue{}
				queue.onClaim = func(context.Context, ClaimRequest) ([]WorkItem, error) {
					if len(queue.claimCalls()) == 10 {
						return testItems(1), nil
					}
					return nil, claim()
				}
				settings := testSettings()
				var told []error
				settings.Observer = &Observer{PassEnd: func(info PassInfo) {
					if info.Err != nil {
						told = append(told, info.Err)
					}
				}}
				loop := startLoop(t, queue, complete, settings)
				time.Sleep(6 * time.Minute)
				synctest.Wait()
				calls := queue.claimCalls()
				var gaps []time.Duration
				for n := range 9 {
					gaps = append(gaps, calls[n+1].at.Sub(calls[n].at))
				}
				s := time.Second
				requireGaps(t, []time.Duration{s, 2 * s, 4 * s, 8 * s, 16 * s, 32 * s, 60 * s, 60 * s, 60 * s}, gaps)
				require.Equal(t, Stats{Claimed: 1, Completed: 1}, loop.Stats())
				// One success, and the next error waits for no longer than the first.
				requireGaps(t, []time.Duration{s, s}, []time.Duration{calls[10].at.Sub(calls[9].at), calls[11].at.Sub(calls[10].at)})
				if name != "Goexit" { // which leaves nobody to tell it; the log knows
					require.GreaterOrEqual(t, len(told), 9, "the observer is told")
					var queueError *QueueError
					require.ErrorAs(t, told[0], &queueError)
				}
				endAt := time.Now()
				loop.stop(t)
				require.Equal(t, endAt, time.Now(), "the end does not wait for a back-off")
			})
		})
	}
}

func TestLoopServesItemsBesideAClaimErrorAndBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := &scriptQueue{}
		queue.onClaim = func(context.Context, ClaimRequest) ([]WorkItem, error) {
			if len(queue.claimCalls()) == 1 {
				return testItems(3), errors.New("the fourth row is broken")
			}
			return nil, nil
		}
		loop := startLoop(t, queue, complete, testSettings())
		time.Sleep(500 * time.Millisecond)
		synctest.Wait()
		require.Equal(t, Stats{Claimed: 3, Completed: 3}, loop.Stats())
		require.Len(t, queue.claimCalls(), 1)
		time.Sleep(time.Second)
		require.Len(t, queue.claimCalls(), 2)
		loop.stop(t)
	})
}

// Drivers may be registered at any time; until then there is nothing to claim.
func TestLoopFindsDriversThatAreRegisteredLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := &scriptQueue{items: testItems(1)}
		registry := NewDriverRegistry[struct{}]()
		supervisor, err := New(queue, registry, testSettings(), noContext)
		require.NoError(t, err)
		ctx, end := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- supervisor.Run(ctx) }()
		time.Sleep(10 * time.Second)
		require.Empty(t, queue.claimCalls())
		require.NoError(t, registry.Register(&testDriver{spec: "spec", evaluate: complete}))
		time.Sleep(1200 * time.Millisecond)
		synctest.Wait()
		require.Equal(t, Stats{Claimed: 1, Completed: 1}, supervisor.Stats())
		end()
		require.NoError(t, <-done)
	})
}

// Everything on a real queue: many instances of several states, some of which
// fail at first.
func TestLoopBringsEveryInstanceToItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const instances, transitions = 200, 5
		queue := NewMemoryWorkQueue()
		for n := range instances {
			instance, err := NewInstance("spec", 1, n)
			require.NoError(t, err)
			instance.TenantID = fmt.Sprintf("tenant-%d", n%7)
			_, err = queue.Start(t.Context(), instance, time.Time{})
			require.NoError(t, err)
		}
		settings := testSettings()
		settings.Concurrency, settings.ClaimBatch = 16, 0
		loop := startLoop(t, queue, func(_ context.Context, item *WorkItem) (TransitionCommand, error) {
			time.Sleep(time.Duration(item.StateVersion%3) * time.Millisecond)
			if item.StateVersion == 2 {
				return TransitionCommand{}, errPlanned
			}
			if item.StateVersion == transitions {
				return completed(item)
			}
			return NewCommand(item, "test.on", nil, item.StateVersion, Continue{})
		}, settings)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, Stats{
			Claimed: instances * (transitions + 1), Failed: instances,
			Continued: instances * (transitions - 1), Completed: instances,
		}, loop.Stats())
		loop.stop(t)
		for snapshot, err := range queue.List(t.Context(), Filter{}) {
			require.NoError(t, err)
			require.Equal(t, StatusCompleted, snapshot.Status)
			require.EqualValues(t, transitions+1, snapshot.StateVersion)
		}
	})
}
