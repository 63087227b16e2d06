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

// Whatever happens to one item of a batch, the others go on undisturbed.
func TestTroubleOfOneItemLeavesItsSiblingsAlone(t *testing.T) {
	lost := errors.New("connection reset")
	quick := func(ctx context.Context, item *WorkItem) (TransitionCommand, error) {
		time.Sleep(100 * time.Millisecond)
		return completed(item)
	}
	for name, test := range map[string]struct {
		lease    time.Duration
		troubled evaluateFunc // of inst-1
		commit   error        // of inst-1
		renewal  error        // of inst-1
	}{
		"its commit errs": {
			lease: time.Minute, troubled: quick, commit: lost,
		},
		"it panics": {
			lease: time.Minute,
			troubled: func(context.Context, *WorkItem) (TransitionCommand, error) {
				time.Sleep(100 * time.Millisecond)
				panic("boom")
			},
		},
		"its renewal fails": {
			lease: time.Second, renewal: lost,
			troubled: func(ctx context.Context, _ *WorkItem) (TransitionCommand, error) {
				<-ctx.Done()
				return TransitionCommand{}, ctx.Err()
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				of := func(id string, err error) error {
					if id == "inst-1" {
						return err
					}
					return nil
				}
				queue := &scriptQueue{
					items:   testItems(4),
					onRenew: func(_ context.Context, lease Lease) error { return of(lease.InstanceID, test.renewal) },
					onCommit: func(_ context.Context, item *WorkItem, _ *TransitionCommand) error {
						return of(item.ID, test.commit)
					},
				}
				settings := testSettings()
				settings.LeaseDuration, settings.Concurrency = test.lease, 4
				stats, err := RunDuePass(t.Context(), queue, testRegistry(func(ctx context.Context, item *WorkItem) (TransitionCommand, error) {
					if item.ID == "inst-1" {
						return test.troubled(ctx, item)
					}
					for range 10 {
						time.Sleep(100 * time.Millisecond)
						if ctx.Err() != nil {
							t.Errorf("%s is cancelled: %v", item.ID, context.Cause(ctx))
						}
					}
					return completed(item)
				}), settings, noContext)
				require.Equal(t, Stats{Claimed: 4, Failed: 1, Completed: 3}, stats)
				if test.commit == nil {
					require.NoError(t, err)
					queue.failureOf(t, "inst-1")
					return
				}
				require.ErrorIs(t, err, lost)
				require.ErrorContains(t, err, "inst-1")
				require.NotContains(t, err.Error(), "inst-2")
			})
		})
	}
}

func TestSlowCommitHoldsNobodyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		startedAt := time.Now()
		queue := &scriptQueue{items: testItems(3), onCommit: func(_ context.Context, item *WorkItem, _ *TransitionCommand) error {
			if item.ID == "inst-1" {
				time.Sleep(20 * time.Second)
			}
			return nil
		}}
		settings := testSettings()
		settings.LeaseDuration = 3 * time.Second
		works := map[string]time.Duration{"inst-2": 500 * time.Millisecond, "inst-3": time.Second}
		stats, err := RunDuePass(t.Context(), queue, testRegistry(func(_ context.Context, item *WorkItem) (TransitionCommand, error) {
			time.Sleep(works[item.ID])
			return completed(item)
		}), settings, noContext)
		require.NoError(t, err)
		require.Equal(t, Stats{Claimed: 3, Completed: 3}, stats)
		for id, after := range works {
			require.Equal(t, after, queue.commitsOf(id)[0].startAt.Sub(startedAt), id)
		}
		require.Equal(t, 20*time.Second, time.Since(startedAt))
	})
}

func TestSlowEvaluationHoldsNobodyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		startedAt := time.Now()
		queue := &scriptQueue{onClaim: func(context.Context, ClaimRequest) ([]WorkItem, error) { return testItems(7), nil }}
		stats, err := RunDuePass(t.Context(), queue, testRegistry(func(_ context.Context, item *WorkItem) (TransitionCommand, error) {
			if item.ID == "inst-1" {
				time.Sleep(time.Hour)
			} else {
				time.Sleep(time.Second)
			}
			return completed(item)
		}), testSettings(), noContext)
		require.NoError(t, err)
		require.Equal(t, Stats{Claimed: 7, Completed: 7}, stats)
		for _, commit := range queue.commits[:6] {
			require.NotEqual(t, "inst-1", commit.item.ID)
			require.LessOrEqual(t, commit.startAt.Sub(startedAt), 3*time.Second)
		}
	})
}

// A slow renewal of one lease must not keep the timer from another's.
func TestSlowRenewalDelaysNoOtherRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		beginAt := time.Now()
		queue := &scriptQueue{items: testItems(3), onRenew: func(ctx context.Context, lease Lease) error {
			if lease.InstanceID == "inst-1" {
				time.Sleep(1400 * time.Millisecond)
			}
			return nil
		}}
		settings := testSettings()
		settings.LeaseDuration = 3 * time.Second
		stats, err := RunDuePass(t.Context(), queue, testRegistry(func(_ context.Context, item *WorkItem) (TransitionCommand, error) {
			time.Sleep(9500 * time.Millisecond)
			return completed(item)
		}), settings, noContext)
		require.NoError(t, err)
		require.Equal(t, Stats{Claimed: 3, Completed: 3}, stats)
		startedAt := map[string][]time.Duration{}
		for _, call := range queue.renews {
			startedAt[call.lease.InstanceID] = append(startedAt[call.lease.InstanceID], call.startAt.Sub(beginAt))
		}
		for n := range 9 {
			require.Equal(t, time.Duration(n+1)*time.Second, startedAt["inst-2"][n])
			require.Equal(t, time.Duration(n+1)*time.Second, startedAt["inst-3"][n])
		}
		require.Len(t, startedAt["inst-2"], 9)
	})
}

// The result of an item is seen by nobody but its own commit.
func TestResultsDoNotMixUp(t *testing.T) {
	const items = 200
	queue := &scriptQueue{items: testItems(items)}
	settings := testSettings()
	settings.Concurrency, settings.ClaimBatch = items, items
	stats, err := RunDuePass(t.Context(), queue, testRegistry(func(_ context.Context, item *WorkItem) (TransitionCommand, error) {
		return NewCommand(item, "test.of."+item.ID, nil, item.RunID, Complete{})
	}), settings, noContext)
	require.NoError(t, err)
	require.Equal(t, Stats{Claimed: items, Completed: items}, stats)
	var keys sync.Map
	for _, commit := range queue.commits {
		require.Equal(t, "test.of."+commit.item.ID, commit.command.EventType)
		require.JSONEq(t, `"`+commit.item.RunID+`"`, string(commit.command.NextState))
		_, twice := keys.LoadOrStore(commit.command.DeliveryKey, true)
		require.False(t, twice)
	}
	require.Len(t, queue.commits, items)
}
