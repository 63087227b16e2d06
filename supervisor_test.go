package supervisor

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func testSettings() Settings {
	return Settings{WorkerID: "w", LeaseDuration: 60 * time.Second, RequeueDelay: 5 * time.Second, ClaimBatch: 10, Concurrency: 3}
}

func TestPassCommitsEachResult(t *testing.T) {
	queue := &scriptQueue{items: testItems(3)}
	stats, err := RunDuePass(t.Context(), queue, testRegistry(func(_ context.Context, item *WorkItem) (TransitionCommand, error) {
		switch item.ID {
		case "inst-1":
			return NewCommand(item, "test.on", nil, nil, Continue{Delay: time.Minute})
		case "inst-2":
			return TransitionCommand{}, errors.New("planned")
		}
		return completed(item)
	}), testSettings(), noContext)
	require.NoError(t, err)
	require.Equal(t, Stats{Claimed: 3, Failed: 1, Continued: 1, Completed: 1}, stats)
	require.Len(t, queue.commits, 3)
	require.Equal(t, "planned", queue.commitsOf("inst-2")[0].command.Disposition.(Failed).Reason)
}

func TestLongEvaluationIsRenewedEachPeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := &scriptQueue{items: testItems(1)}
		settings := testSettings()
		settings.LeaseDuration = 3 * time.Second
		stats, err := RunDuePass(t.Context(), queue, testRegistry(func(_ context.Context, item *WorkItem) (TransitionCommand, error) {
			time.Sleep(29500 * time.Millisecond)
			return completed(item)
		}), settings, noContext)
		require.NoError(t, err)
		require.Equal(t, Stats{Claimed: 1, Completed: 1}, stats)
		require.Len(t, queue.renews, 29)
		for _, call := range queue.renews {
			require.Equal(t, Lease{TenantID: "t1", InstanceID: "inst-1", WorkerID: "w", Version: 1, Duration: 3 * time.Second}, call.lease)
		}
		require.Len(t, queue.commits, 1)
	})
}

func TestRenewalThatNeverAnswersFailsTheItemBeforeItsLeaseEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		startedAt := time.Now()
		queue := &scriptQueue{items: testItems(1), onRenew: func(ctx context.Context, _ Lease) error {
			<-ctx.Done()
			return ctx.Err()
		}}
		settings := testSettings()
		settings.LeaseDuration = 3 * time.Second
		var endedAfter time.Duration
		stats, err := RunDuePass(t.Context(), queue, testRegistry(func(ctx context.Context, _ *WorkItem) (TransitionCommand, error) {
			<-ctx.Done()
			endedAfter = time.Since(startedAt)
			return TransitionCommand{}, ctx.Err()
		}), settings, noContext)
		require.NoError(t, err)
		require.Equal(t, Stats{Claimed: 1, Failed: 1}, stats)
		require.LessOrEqual(t, endedAfter, 3*time.Second)
		require.Len(t, queue.commits, 1)
		require.Contains(t, queue.commits[0].command.Disposition.(Failed).Reason, "lease renewal failed")
	})
}

func TestGoexitIsAFailure(t *testing.T) {
	queue := &scriptQueue{items: testItems(3)}
	settings := testSettings()
	settings.Concurrency = 1
	queue.onClaim = func(context.Context, ClaimRequest) ([]WorkItem, error) { return queue.items, nil }
	stats, err := RunDuePass(t.Context(), queue, testRegistry(func(_ context.Context, item *WorkItem) (TransitionCommand, error) {
		switch item.ID {
		case "inst-1":
			runtime.Goexit()
		case "inst-2":
			panic("x")
		}
		return completed(item)
	}), settings, noContext)
	require.NoError(t, err)
	require.Equal(t, Stats{Claimed: 3, Failed: 2, Completed: 1}, stats)
	require.Contains(t, queue.commitsOf("inst-1")[0].command.Disposition.(Failed).Reason, "Goexit")
	require.Contains(t, queue.commitsOf("inst-2")[0].command.Disposition.(Failed).Reason, "panicked: x")
}
