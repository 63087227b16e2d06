package supervisor

import (
	"context"
	"errors"
	"math"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestIdleQueueIsAskedOncePerPollInterval(t *testing.T) {
	for _, poll := range []time.Duration{0, 100 * time.Millisecond, time.Second, 7 * time.Second} {
		t.Run(poll.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				queue := &scriptQueue{}
				settings := testSettings()
				settings.PollInterval = poll
				if poll == 0 {
					poll = time.Second // the default
				}
				loop := startLoop(t, queue, complete, settings)
				time.Sleep(60 * poll)
				loop.stop(t)
				require.LessOrEqual(t, len(queue.claims), 61)
				require.GreaterOrEqual(t, len(queue.claims), 60*10/11)
				gaps := map[time.Duration]bool{}
				for n := range len(queue.claims) - 1 {
					gap := queue.claims[n+1].at.Sub(queue.claims[n].at)
					require.GreaterOrEqual(t, gap, poll, "jitter only lengthens")
					require.LessOrEqual(t, gap, poll+poll/10)
					gaps[gap] = true
				}
				require.Greater(t, len(gaps), 1, "processes that began together do not stay together")
				require.Empty(t, queue.renews)
				require.Empty(t, queue.commits)
			})
		})
	}
}

// An interval without end must not overflow into one without a pause.
func TestEndlessPollIntervalIsQuiet(t *testing.T) {
	for _, poll := range []time.Duration{math.MaxInt64, math.MaxInt64 / 2, math.MaxInt64/11*10 + 11, math.MaxInt64 / 10} {
		for name, wrap := range map[string]func(*scriptQueue) WorkQueue{
			"polled":  func(q *scriptQueue) WorkQueue { return q },
			"waiting": func(q *scriptQueue) WorkQueue { return &waitingQueue{scriptQueue: q, onWait: untilDone} },
		} {
			t.Run(name+" "+poll.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					queue := &scriptQueue{}
					settings := testSettings()
					settings.PollInterval = poll
					loop := startLoop(t, wrap(queue), complete, settings)
					time.Sleep(24 * time.Hour)
					loop.stop(t)
					require.Len(t, queue.claims, 1)
				})
			})
		}
	}
}

// untilDone is a wait during which nothing becomes due.
func untilDone(ctx context.Context, _ []string) error {
	<-ctx.Done()
	return ctx.Err()
}

func TestWaiterSparesClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := &waitingQueue{scriptQueue: &scriptQueue{}, onWait: func(ctx context.Context, specIDs []string) error {
			if len(specIDs) != 1 || specIDs[0] != "spec" {
				t.Errorf("waits for %q", specIDs)
			}
			return untilDone(ctx, specIDs)
		}}
		loop := startLoop(t, queue, complete, testSettings())
		time.Sleep(60 * time.Second)
		loop.stop(t)
		// A wake-up that is lost costs ten intervals at most.
		require.GreaterOrEqual(t, len(queue.claims), 6)
		require.LessOrEqual(t, len(queue.claims), 7)
	})
}

func TestWaiterWakesTheLoopAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		woken := make(chan struct{})
		queue := &waitingQueue{scriptQueue: &scriptQueue{}, onWait: func(ctx context.Context, _ []string) error {
			select {
			case <-woken:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}}
		loop := startLoop(t, queue, complete, testSettings())
		time.Sleep(3500 * time.Millisecond)
		queue.push(testItem("inst-1"))
		at := time.Now()
		woken <- struct{}{}
		synctest.Wait()
		require.Equal(t, Stats{Claimed: 1, Completed: 1}, loop.Stats())
		require.Equal(t, at, queue.commits[0].startAt)
		loop.stop(t)
	})
}

// The loop sleeps as long as the queue waits, so a queue that cannot wait must
// not make it spin.
func TestWaiterThatDoesNotWaitIsSlowedDown(t *testing.T) {
	for name, test := range map[string]struct {
		wait func() error
		most int // claims in a minute
	}{
		"it wakes for nothing": {func() error { return nil }, 61 + 20}, // some tries at first are quicker
		"it errs":              {func() error { return errors.New("no such channel") }, 61},
		"it is not available":  {func() error { return ErrUnavailable }, 61},
		"it lies about ctx":    {func() error { return context.Canceled }, 61},
		"it panics":            {func() error { panic("boom") }, 61},
		"it exits":             {func() error { runtime.Goexit(); return nil }, 61},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				queue := &waitingQueue{scriptQueue: &scriptQueue{}, onWait: func(context.Context, []string) error { return test.wait() }}
				loop := startLoop(t, queue, complete, testSettings())
				time.Sleep(60 * time.Second)
				require.LessOrEqual(t, len(queue.claimCalls()), test.most)
				queue.push(testItem("inst-1"))
				time.Sleep(1200 * time.Millisecond)
				synctest.Wait()
				require.Equal(t, Stats{Claimed: 1, Completed: 1}, loop.Stats(), "it still works by polling")
				loop.stop(t)
			})
		})
	}
}

// Where nobody wakes the loop, its own commits do: what it made due at once does
// not wait for the next poll.
func TestInstanceThatIsDueAgainAtOnceIsClaimedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		startedAt := time.Now()
		queue := &scriptQueue{items: testItems(1)}
		queue.onCommit = func(_ context.Context, item *WorkItem, command *TransitionCommand) error {
			if _, again := command.Disposition.(Continue); again {
				next := item.Clone()
				next.StateVersion++
				queue.push(next)
			}
			return nil
		}
		settings := testSettings()
		settings.PollInterval = time.Hour
		loop := startLoop(t, queue, func(_ context.Context, item *WorkItem) (TransitionCommand, error) {
			if item.StateVersion == 10 {
				return completed(item)
			}
			return NewCommand(item, "test.on", nil, nil, Continue{})
		}, settings)
		time.Sleep(time.Second)
		synctest.Wait()
		require.Equal(t, Stats{Claimed: 11, Continued: 10, Completed: 1}, loop.Stats())
		require.Less(t, queue.commits[10].startAt.Sub(startedAt), 50*time.Millisecond)
		loop.stop(t)
	})
}

// A full claim is followed by the next one without a pause, for there may be more.
func TestBacklogIsWorkedOffWithoutPolling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		startedAt := time.Now()
		queue := &scriptQueue{items: testItems(99)}
		settings := testSettings()
		settings.PollInterval = time.Hour
		loop := startLoop(t, queue, complete, settings)
		time.Sleep(time.Second)
		require.Equal(t, Stats{Claimed: 99, Completed: 99}, loop.Stats())
		require.Less(t, queue.commitCalls()[98].startAt.Sub(startedAt), 100*time.Millisecond)
		loop.stop(t)
	})
}

func TestLengthenedOnlyLengthensAndNeverOverflows(t *testing.T) {
	for _, delay := range []time.Duration{
		0, 1, 9, 10, time.Millisecond, time.Second, time.Hour, math.MaxInt64 / 10, math.MaxInt64/11*10 + 11, math.MaxInt64 - 1, math.MaxInt64,
	} {
		for range 1000 {
			got := lengthened(delay)
			require.GreaterOrEqual(t, got, delay)
			require.LessOrEqual(t, got-delay, delay/10)
		}
	}
}

func TestGrowingDelay(t *testing.T) {
	for _, test := range []struct {
		first, most time.Duration
		attempts    int
		want        time.Duration
	}{
		{1, 8, -1, 1},
		{1, 8, 0, 1},
		{1, 8, 1, 2},
		{1, 8, 3, 8},
		{1, 8, 4, 8},
		{1, 7, 2, 4},
		{1, 7, 3, 7},
		{3, 7, 1, 6},
		{3, 7, 2, 7},
		{9, 7, 0, 7},
		{math.MaxInt64, math.MaxInt64, 1, math.MaxInt64},
		{math.MaxInt64/2 + 1, math.MaxInt64, 1, math.MaxInt64},
		{math.MaxInt64 / 2, math.MaxInt64, 1, math.MaxInt64 - 1},
		{1, math.MaxInt64, math.MaxInt, math.MaxInt64},
	} {
		require.Equal(t, test.want, growingDelay(test.first, test.most, test.attempts), "%+v", test)
	}
}
