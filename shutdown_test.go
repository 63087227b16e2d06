package supervisor

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// Work that is done must not be thrown away because its context has ended
// meanwhile.
func TestResultIsCommittedAfterTheCallersEnd(t *testing.T) {
	ctx, cancel := context.WithCancel(context.WithValue(t.Context(), valueKey{}, "v"))
	queue := &scriptQueue{items: testItems(1), onCommit: func(ctx context.Context, _ *WorkItem, _ *TransitionCommand) error {
		if ctx.Value(valueKey{}) != "v" {
			t.Error("values of the caller's context are lost")
		}
		return nil
	}}
	stats, err := RunDuePass(ctx, queue, testRegistry(func(_ context.Context, item *WorkItem) (TransitionCommand, error) {
		cancel()
		return completed(item)
	}), testSettings(), noContext)
	require.NoError(t, err)
	require.Equal(t, Stats{Claimed: 1, Completed: 1}, stats)
	require.Len(t, queue.commits, 1)
	require.Equal(t, "test.done", queue.commits[0].command.EventType)
	require.NoError(t, queue.commits[0].ctxErr)
	require.True(t, queue.commits[0].hasDeadline)
}

func TestCallersEndCancelsEvaluationsAndCommitsTheirFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		startedAt := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		queue := &scriptQueue{items: testItems(3)}
		stats, err := RunDuePass(ctx, queue, testRegistry(func(ctx context.Context, _ *WorkItem) (TransitionCommand, error) {
			<-ctx.Done()
			return TransitionCommand{}, ctx.Err()
		}), testSettings(), noContext)
		require.NoError(t, err, "every item is settled")
		require.Equal(t, Stats{Claimed: 3, Failed: 3}, stats)
		require.Equal(t, time.Second, time.Since(startedAt))
		require.Len(t, queue.claims, 1)
		require.Empty(t, queue.renews)
		for _, commit := range queue.commits {
			require.NoError(t, commit.ctxErr)
			require.True(t, commit.hasDeadline)
			failure := queue.failureOf(t, commit.item.ID)
			require.Equal(t, commit.item.ClaimedAt.Add(6*time.Second), failure.RetryAt)
			require.Contains(t, failure.Reason, "context canceled")
		}
	})
}

func TestCallersCauseReachesEvaluationsAndFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		enough := errors.New("the machine goes down")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(enough) })
		queue := &scriptQueue{items: testItems(1)}
		_, err := RunDuePass(ctx, queue, testRegistry(func(ctx context.Context, _ *WorkItem) (TransitionCommand, error) {
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), enough) {
				t.Errorf("the cause is %v", context.Cause(ctx))
			}
			return TransitionCommand{}, ctx.Err()
		}), testSettings(), noContext)
		require.NoError(t, err)
		require.Equal(t, "context canceled (the machine goes down)", queue.failureOf(t, "inst-1").Reason)
	})
}

// Items that did not get a slot yet are not begun any more, but settled.
func TestItemsThatWaitAtTheCallersEndAreNotEvaluated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		startedAt := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		queue := &scriptQueue{onClaim: func(context.Context, ClaimRequest) ([]WorkItem, error) { return testItems(5), nil }}
		settings := testSettings()
		settings.Concurrency = 1
		evaluated := 0
		stats, err := RunDuePass(ctx, queue, testRegistry(func(ctx context.Context, item *WorkItem) (TransitionCommand, error) {
			evaluated++
			return work(time.Minute)(ctx, item)
		}), settings, noContext)
		require.NoError(t, err)
		require.Equal(t, Stats{Claimed: 5, Failed: 5}, stats)
		require.Equal(t, 1, evaluated)
		require.Equal(t, time.Second, time.Since(startedAt))
		require.Contains(t, queue.failureOf(t, "inst-5").Reason, "not evaluated: context deadline exceeded")
	})
}

// A claim that was in flight when the caller's context ended is settled, too.
func TestClaimBesideTheCallersEndIsSettled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	queue := &scriptQueue{onClaim: func(context.Context, ClaimRequest) ([]WorkItem, error) {
		cancel()
		return testItems(2), nil
	}}
	stats, err := RunDuePass(ctx, queue, testRegistry(func(context.Context, *WorkItem) (TransitionCommand, error) {
		t.Error("an item is evaluated after the end")
		return TransitionCommand{}, nil
	}), testSettings(), noContext)
	require.NoError(t, err)
	require.Equal(t, Stats{Claimed: 2, Failed: 2}, stats)
	require.Len(t, queue.commits, 2)
}

// RunDuePass never hands back: its caller may well go on with the next pass.
func TestPassRecordsFailuresAlsoOnAReleaser(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		queue := &releasingQueue{scriptQueue: &scriptQueue{items: testItems(1)}}
		stats, err := RunDuePass(ctx, queue, testRegistry(work(time.Minute)), testSettings(), noContext)
		require.NoError(t, err)
		require.Equal(t, Stats{Claimed: 1, Failed: 1}, stats)
		require.Empty(t, queue.releases)
	})
}

func TestContextOfAnEvaluationEndsWithIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var evaluation context.Context
		child := make(chan struct{})
		queue := &scriptQueue{items: testItems(1)}
		_, err := RunDuePass(t.Context(), queue, testRegistry(func(ctx context.Context, item *WorkItem) (TransitionCommand, error) {
			evaluation = ctx
			go func() { // a driver's own goroutine, which heeds the context
				<-ctx.Done()
				close(child)
			}()
			return completed(item)
		}), testSettings(), noContext)
		require.NoError(t, err)
		<-child
		require.ErrorIs(t, evaluation.Err(), context.Canceled)
	})
}

// What a claim in flight brings after the end of Run is handed back. That is how
// a loop ends, and no error.
func TestClaimThatTheEndOvertookIsNoErrorOfItsPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		queue := &releasingQueue{scriptQueue: new(scriptQueue)}
		queue.onClaim = func(context.Context, ClaimRequest) ([]WorkItem, error) {
			stop()
			time.Sleep(time.Second)
			return testItems(2), nil
		}
		var mu sync.Mutex
		var passes []PassInfo
		settings := testSettings()
		settings.Observer = &Observer{PassEnd: func(pass PassInfo) {
			mu.Lock()
			defer mu.Unlock()
			passes = append(passes, pass)
		}}
		loop, err := New(queue, testRegistry(nil), settings, func(context.Context) (struct{}, error) {
			t.Error("a context was made for nobody")
			return struct{}{}, nil
		})
		require.NoError(t, err)
		require.NoError(t, loop.Run(ctx))
		require.Len(t, queue.releaseCalls(), 2)
		require.Len(t, passes, 1)
		require.NoError(t, passes[0].Err)
		require.Equal(t, Stats{Claimed: 2}, passes[0].Stats)
	})
}
