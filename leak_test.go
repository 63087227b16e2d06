package supervisor

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A timer or a goroutine for each item that nobody ends shows in thousands of
// items only. This runs outside a bubble, for it is the real heap that counts.
func TestNothingGrowsWithTheNumberOfItems(t *testing.T) {
	failAtOnce := func(context.Context, *WorkItem) (TransitionCommand, error) { panic("boom") }
	untilItsEnd := func(ctx context.Context, _ *WorkItem) (TransitionCommand, error) {
		<-ctx.Done()
		return TransitionCommand{}, ctx.Err()
	}
	noRoute := errors.New("no route")
	runPasses := func(items, batch int, lease time.Duration, evaluate evaluateFunc, renew error, cancel bool) {
		settings := leaseOf(lease)
		settings.Concurrency, settings.ClaimBatch = batch, batch
		registry := testRegistry(evaluate)
		for range items / batch {
			queue := &scriptQueue{items: testItems(batch), onRenew: func(context.Context, Lease) error { return renew }}
			ctx, end := context.WithCancel(t.Context())
			if cancel {
				items := queue.items
				queue.onClaim = func(context.Context, ClaimRequest) ([]WorkItem, error) {
					time.AfterFunc(time.Millisecond, end)
					return items, nil
				}
			}
			stats, err := RunDuePass(ctx, queue, registry, settings, noContext)
			end()
			require.NoError(t, err)
			require.Equal(t, batch, stats.Completed+stats.Failed)
		}
	}
	warmUp := func() { runPasses(100, 10, time.Hour, complete, nil, false) }
	warmUp()
	before, heapBefore := runtime.NumGoroutine(), liveHeap()

	runPasses(5000, 10, time.Hour, complete, nil, false)
	runPasses(500, 10, time.Hour, failAtOnce, nil, false)
	runPasses(500, 500, time.Second, untilItsEnd, noRoute, false)
	runPasses(500, 10, time.Hour, untilItsEnd, nil, true)

	require.True(t, goroutinesSettle(before), "%d goroutines, %d before", runtime.NumGoroutine(), before)
	heap := liveHeap()
	require.Less(t, heap, heapBefore+4<<20, "the heap grew from %d bytes", heapBefore)
}

func liveHeap() uint64 {
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}
