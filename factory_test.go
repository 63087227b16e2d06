package supervisor

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestFailingContextFactoryFailsEveryItem(t *testing.T) {
	for manner, test := range unwell {
		t.Run(manner, func(t *testing.T) {
			queue := &scriptQueue{items: testItems(3)}
			stats, err := RunDuePass(t.Context(), queue, testRegistry(func(context.Context, *WorkItem) (TransitionCommand, error) {
				t.Error("an item is evaluated without a context")
				return TransitionCommand{}, nil
			}), testSettings(), func(context.Context) (struct{}, error) { return struct{}{}, test.act() })
			require.Equal(t, Stats{Claimed: 3, Failed: 3}, stats)
			var contextError *ContextError
			require.ErrorAs(t, err, &contextError)
			require.Nil(t, contextError.Cleanup)
			require.Contains(t, err.Error(), test.says)
			for _, id := range []string{"inst-1", "inst-2", "inst-3"} {
				failure := queue.failureOf(t, id)
				require.Contains(t, failure.Reason, "context: ")
				require.Contains(t, failure.Reason, test.says)
				require.False(t, failure.RetryAt.IsZero())
			}
		})
	}
}

func TestContextErrorTellsOfItsCleanUp(t *testing.T) {
	queue := &scriptQueue{
		onClaim: func(context.Context, ClaimRequest) ([]WorkItem, error) { return testItems(3), ErrUnavailable },
		onCommit: func(_ context.Context, item *WorkItem, _ *TransitionCommand) error {
			if item.ID == "inst-2" {
				return ErrCommitUnknown
			}
			return nil
		},
	}
	stats, err := RunDuePass(t.Context(), queue, testRegistry(complete), testSettings(),
		func(context.Context) (struct{}, error) { return struct{}{}, errPlanned })
	require.Equal(t, Stats{Claimed: 3, Failed: 3}, stats)
	var contextError *ContextError
	require.ErrorAs(t, err, &contextError)
	require.EqualError(t, contextError, `supervisor: context: planned; clean-up: `+
		`supervisor: commit failed: tenant "t1" instance "inst-2": supervisor: commit outcome is unknown`)
	require.Len(t, contextError.Cleanup.Items, 1)
	for _, cause := range []error{errPlanned, ErrCommitUnknown, ErrUnavailable} {
		require.ErrorIs(t, err, cause)
	}
	require.Len(t, queue.commits, 3, "each item gets its failure")
}

func TestContextFactoryMarksItsErrorsLikeADriver(t *testing.T) {
	queue := &scriptQueue{items: testItems(1)}
	_, err := RunDuePass(t.Context(), queue, testRegistry(complete), testSettings(),
		func(context.Context) (struct{}, error) { return struct{}{}, RetryAfter(errPlanned, time.Hour) })
	require.ErrorIs(t, err, errPlanned)
	require.GreaterOrEqual(t, queue.failureOf(t, "inst-1").RetryAt.Sub(queue.commits[0].item.ClaimedAt), time.Hour)
}

// The items whose lease is lost meanwhile are settled already.
func TestSlowContextFactoryThatFailsAfterALeaseIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := &scriptQueue{items: testItems(2), onRenew: func(_ context.Context, lease Lease) error {
			if lease.InstanceID == "inst-1" {
				return errors.New("no route")
			}
			return nil
		}}
		stats, err := RunDuePass(t.Context(), queue, testRegistry(complete), leaseOf(3*time.Second),
			func(context.Context) (struct{}, error) {
				time.Sleep(5500 * time.Millisecond)
				return struct{}{}, errPlanned
			})
		require.ErrorIs(t, err, errPlanned)
		require.Equal(t, Stats{Claimed: 2, Failed: 2}, stats)
		require.Contains(t, queue.failureOf(t, "inst-1").Reason, "lease renewal failed: no route")
		require.Contains(t, queue.failureOf(t, "inst-2").Reason, "context: planned")
		requireNoRenewalBesideOrAfter(t, queue)
	})
}

func TestCallersEndReachesTheContextFactory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		queue := &scriptQueue{items: testItems(2)}
		stats, err := RunDuePass(ctx, queue, testRegistry(complete), testSettings(),
			func(ctx context.Context) (struct{}, error) {
				<-ctx.Done()
				return struct{}{}, ctx.Err()
			})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, Stats{Claimed: 2, Failed: 2}, stats)
		require.Len(t, queue.commits, 2)
	})
}
