package supervisor

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// stale is what a queue says once a pause, a cancel or a tenant's stop came.
var errStale = fmt.Errorf("instance epoch is 2, claimed was 1: %w", ErrEpochStale)

func TestClaimThatIsRevokedWhileItIsRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		startedAt := time.Now()
		queue := &releasingQueue{scriptQueue: &scriptQueue{items: testItems(2), onRenew: func(_ context.Context, lease Lease) error {
			if lease.InstanceID == "inst-1" && time.Since(startedAt) > 20*time.Second {
				return errStale
			}
			return nil
		}}}
		settings := testSettings()
		var told []LostInfo
		settings.Observer = &Observer{Revoked: func(info LostInfo) { told = append(told, info) }}
		stats, err := RunDuePass(t.Context(), queue, testRegistry(func(ctx context.Context, item *WorkItem) (TransitionCommand, error) {
			if item.ID == "inst-2" {
				return work(time.Minute)(ctx, item)
			}
			<-ctx.Done()
			if since := time.Since(startedAt); since != 40*time.Second {
				t.Errorf("the cause reached the evaluation after %v", since)
			}
			if cause := context.Cause(ctx); !errors.Is(cause, ErrEpochStale) {
				t.Errorf("the cause is %v", cause)
			}
			time.Sleep(time.Second)
			return TransitionCommand{}, ctx.Err()
		}), settings, noContext)
		require.NoError(t, err)
		require.Equal(t, Stats{Claimed: 2, Completed: 1, Revoked: 1}, stats)
		require.Empty(t, queue.commitsOf("inst-1"), "no failure is recorded and no attempt counted")
		require.Len(t, queue.releases, 1)
		release := queue.releases[0]
		require.Equal(t, "inst-1", release.item.ID)
		require.EqualValues(t, 1, release.item.LeaseVersion)
		require.Contains(t, release.reason, "control epoch is stale")
		require.Equal(t, 40*time.Second, release.at.Sub(startedAt), "at once")
		require.NoError(t, release.ctxErr)
		require.Len(t, told, 1)
		require.ErrorIs(t, told[0].Err, ErrEpochStale)
	})
}

// A result that comes in spite of the revocation is void.
func TestResultOfARevokedClaimIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := &releasingQueue{scriptQueue: &scriptQueue{items: testItems(1), onRenew: func(context.Context, Lease) error { return errStale }}}
		stats, err := RunDuePass(t.Context(), queue, testRegistry(func(ctx context.Context, item *WorkItem) (TransitionCommand, error) {
			<-ctx.Done()
			return completed(item)
		}), testSettings(), noContext)
		require.NoError(t, err)
		require.Equal(t, Stats{Claimed: 1, Revoked: 1}, stats)
		require.Empty(t, queue.commits)
	})
}

func TestCommitThatMeetsAStaleEpochRevokesTheClaim(t *testing.T) {
	for name, evaluate := range map[string]evaluateFunc{
		"of a result":  complete,
		"of a failure": func(context.Context, *WorkItem) (TransitionCommand, error) { return TransitionCommand{}, errPlanned },
		"of an invalid command": func(context.Context, *WorkItem) (TransitionCommand, error) {
			return TransitionCommand{}, nil
		},
	} {
		for _, canRelease := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, Releaser %v", name, canRelease), func(t *testing.T) {
				script := &scriptQueue{items: testItems(1), onCommit: func(context.Context, *WorkItem, *TransitionCommand) error { return errStale }}
				releasing := &releasingQueue{scriptQueue: script}
				var queue WorkQueue = script
				if canRelease {
					queue = releasing
				}
				stats, err := RunDuePass(t.Context(), queue, testRegistry(evaluate), testSettings(), noContext)
				require.NoError(t, err)
				require.Equal(t, Stats{Claimed: 1, Revoked: 1}, stats)
				require.Len(t, script.commits, 1, "no other command follows")
				if canRelease {
					require.Len(t, releasing.releases, 1)
				}
			})
		}
	}
}

// A command that is rejected leads to a failure, which may be revoked in turn.
func TestFailureAfterARejectionMayBeRevoked(t *testing.T) {
	queue := &releasingQueue{scriptQueue: &scriptQueue{items: testItems(1), onCommit: func(_ context.Context, _ *WorkItem, command *TransitionCommand) error {
		if command.EventType == EventEvaluationFailed {
			return errStale
		}
		return ErrCommandRejected
	}}}
	stats, err := RunDuePass(t.Context(), queue, testRegistry(complete), testSettings(), noContext)
	require.NoError(t, err)
	require.Equal(t, Stats{Claimed: 1, Revoked: 1}, stats)
	require.Len(t, queue.commits, 2)
	require.Len(t, queue.releases, 1)
}

func TestReleaseIsBoundedAndItsErrorsAreNoErrorsOfThePass(t *testing.T) {
	for name, release := range map[string]func(context.Context) error{
		"the lease is lost":    func(context.Context) error { return ErrLeaseLost },
		"the store is gone":    func(context.Context) error { return ErrUnavailable },
		"it waits for its end": func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				startedAt := time.Now()
				queue := &releasingQueue{
					scriptQueue: &scriptQueue{items: testItems(1), onCommit: func(context.Context, *WorkItem, *TransitionCommand) error { return errStale }},
					onRelease:   func(ctx context.Context, _ *WorkItem, _ string) error { return release(ctx) },
				}
				settings := testSettings()
				settings.CommitTimeout = 7 * time.Second
				stats, err := RunDuePass(t.Context(), queue, testRegistry(complete), settings, noContext)
				require.NoError(t, err)
				require.Equal(t, Stats{Claimed: 1, Revoked: 1}, stats)
				require.LessOrEqual(t, time.Since(startedAt), 7*time.Second)
			})
		})
	}
}

// Without a Releaser the lease runs out; the evaluation ends all the same.
func TestRevokedRenewalWithoutAReleaser(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := &scriptQueue{items: testItems(1), onRenew: func(context.Context, Lease) error { return errStale }}
		stats, err := RunDuePass(t.Context(), queue, testRegistry(work(time.Hour)), testSettings(), noContext)
		require.NoError(t, err)
		require.Equal(t, Stats{Claimed: 1, Revoked: 1}, stats)
		require.Empty(t, queue.commits)
		require.Len(t, queue.renews, 1)
	})
}

// A pause or a cancel reaches a running evaluation within a third of its lease.
func TestPauseAndCancelReachARunningEvaluation(t *testing.T) {
	scope := Scope{TenantID: DefaultTenantID, InstanceID: "inst-1"}
	for name, act := range map[string]func(context.Context, *MemoryWorkQueue) error{
		"cancel": func(ctx context.Context, q *MemoryWorkQueue) error {
			return q.Cancel(ctx, scope.TenantID, scope.InstanceID)
		},
		"pause": func(ctx context.Context, q *MemoryWorkQueue) error { return q.Pause(ctx, scope) },
		"tenant stop": func(ctx context.Context, q *MemoryWorkQueue) error {
			return q.Pause(ctx, Scope{TenantID: scope.TenantID})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				instance, err := NewInstance("spec", 1, nil)
				require.NoError(t, err)
				instance.ID = scope.InstanceID
				queue := NewMemoryWorkQueue()
				_, err = queue.Start(t.Context(), instance, time.Time{})
				require.NoError(t, err)
				time.AfterFunc(5*time.Second, func() {
					if err := act(t.Context(), queue); err != nil {
						t.Error(err)
					}
				})
				startedAt := time.Now()
				stats, err := RunDuePass(t.Context(), queue, testRegistry(work(time.Hour)), testSettings(), noContext)
				require.NoError(t, err)
				require.Equal(t, Stats{Claimed: 1, Revoked: 1}, stats)
				require.Equal(t, 20*time.Second, time.Since(startedAt))
				snapshot, err := queue.Get(t.Context(), scope.TenantID, scope.InstanceID)
				require.NoError(t, err)
				require.Zero(t, snapshot.Attempt)
				require.Zero(t, snapshot.StateVersion)
				require.Zero(t, snapshot.LeaseEndsAt)
				require.Equal(t, name == "cancel", snapshot.CancelRequested)
			})
		})
	}
}
