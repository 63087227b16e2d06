package supervisor

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"
)

// freeQueue costs nothing: it hands out the same items again and again and
// accepts everything, so that what is measured is the pass.
type freeQueue struct{ items []WorkItem }

func (q *freeQueue) ClaimDue(_ context.Context, req ClaimRequest) ([]WorkItem, error) {
	return q.items[:min(req.Limit, len(q.items))], nil
}
func (q *freeQueue) LoadRevision(context.Context, *WorkItem) (*Revision, error) {
	return nil, ErrRevisionUnavailable
}
func (q *freeQueue) AdmitEvaluation(context.Context, *WorkItem) error { return nil }
func (q *freeQueue) Renew(context.Context, Lease) error               { return nil }
func (q *freeQueue) CommitCommand(context.Context, *WorkItem, *TransitionCommand) error {
	return nil
}

// again is a driver that does nothing and goes on at once. What NewCommand
// costs is measured on its own.
func again(_ context.Context, item *WorkItem) (TransitionCommand, error) {
	return TransitionCommand{
		DeliveryKey:    strconv.FormatInt(item.StateVersion, 10),
		DeliveryDigest: "digest",
		EventType:      "bench.again",
		EventDigest:    "digest",
		NextState:      item.State,
		Disposition:    Continue{},
	}, nil
}

func benchSettings(concurrency int) Settings {
	return Settings{WorkerID: "bench", Concurrency: concurrency}
}

func BenchmarkRunDuePassOnFreeQueue(b *testing.B) {
	for _, concurrency := range []int{1, 16, 256} {
		b.Run(fmt.Sprintf("concurrency=%d", concurrency), func(b *testing.B) {
			queue := &freeQueue{items: testItems(concurrency)}
			registry, settings := testRegistry(again), benchSettings(concurrency)
			b.ReportAllocs()
			items := 0
			for b.Loop() {
				stats, err := RunDuePass(b.Context(), queue, registry, settings, noContext)
				if err != nil || stats.Continued != concurrency {
					b.Fatal(stats, err)
				}
				items += stats.Claimed
			}
			perItem(b, items)
		})
	}
}

// perItem reports the time for one item; allocations are reported per pass, so
// the item's share is reported, too.
func perItem(b *testing.B, items int) {
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(items), "ns/item")
}

// BenchmarkRenewals holds a thousand leases for one period each: all of them
// are renewed once. The period is over when they are taken, so that what is
// measured is the work, not the wait.
func BenchmarkRenewals(b *testing.B) {
	const leases = 1000
	var work sync.WaitGroup
	settings, err := Settings{LeaseDuration: time.Hour}.resolved()
	if err != nil {
		b.Fatal(err)
	}
	holders := make([]benchHolder, leases)
	b.ReportAllocs()
	for b.Loop() {
		var keeper keeper
		keeper.begin(b.Context(), &settings, &work)
		var renewed sync.WaitGroup
		renewed.Add(leases)
		for n := range holders {
			holders[n].renewed = &renewed
			holders[n].once = sync.Once{}
			keeper.hold(&holders[n].lease, &holders[n], time.Now().Add(-keeper.period))
		}
		renewed.Wait()
		for n := range holders {
			keeper.take(&holders[n].lease)
		}
		keeper.close()
		work.Wait()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*leases), "ns/lease")
}

type benchHolder struct {
	lease   heldLease
	once    sync.Once
	renewed *sync.WaitGroup
}

func (h *benchHolder) renewLease(context.Context) error { return nil }
func (h *benchHolder) leaseFailed(error)                {}
func (h *benchHolder) leaseRenewed()                    { h.once.Do(h.renewed.Done) }

// BenchmarkRunDuePass is the pass on the queue in memory with every rule on.
func BenchmarkRunDuePass(b *testing.B) {
	for _, concurrency := range []int{1, 16, 256} {
		b.Run(fmt.Sprintf("concurrency=%d", concurrency), func(b *testing.B) {
			queue := NewMemoryWorkQueue(testItems(max(concurrency, 1000))...)
			registry, settings := testRegistry(again), benchSettings(concurrency)
			b.ReportAllocs()
			items := 0
			for b.Loop() {
				stats, err := RunDuePass(b.Context(), queue, registry, settings, noContext)
				if err != nil || stats.Continued != concurrency {
					b.Fatal(stats, err)
				}
				if items += stats.Claimed; items%(1<<16) < concurrency {
					queue.ClearHistory()
				}
			}
			perItem(b, items)
		})
	}
}
