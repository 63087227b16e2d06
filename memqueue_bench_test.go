package supervisor

import (
	"encoding/json"
	"fmt"
	"runtime"
	"testing"
	"time"
)

// The queue's benchmarks claim and commit batches of this size.
const benchmarkBatch = 16

// benchmarkStart adds an instance of a tenant and spec.
func benchmarkStart(b *testing.B, q *MemoryWorkQueue, tenant, spec int, dueAt time.Time) {
	instance, err := NewInstance(fmt.Sprintf("spec-%d", spec), 1, json.RawMessage(`{"order":9007199254740993,"lines":[1,2,3]}`))
	if err != nil {
		b.Fatal(err)
	}
	instance.TenantID = fmt.Sprintf("tenant-%d", tenant)
	if _, err := q.Start(b.Context(), instance, dueAt); err != nil {
		b.Fatal(err)
	}
}

// benchmarkLater spreads the due times of waiting instances over a year, in no order.
func benchmarkLater(n int) time.Time {
	return time.Now().Add(time.Hour + time.Duration(n)*7919%(365*24*3600)*time.Second)
}

// benchmarkTransitions claims and commits batches of what is due, which is due
// again at once. An operation is one item through both; claim-ns/op is the part
// of the claim. What the queue records is measured, but not kept for ever.
func benchmarkTransitions(b *testing.B, q *MemoryWorkQueue, specIDs ...string) {
	ctx := b.Context()
	req := ClaimRequest{SpecIDs: specIDs, WorkerID: "w", LeaseDuration: time.Minute, Limit: benchmarkBatch}
	command := TransitionCommand{
		DeliveryDigest: "digest",
		EventType:      "step",
		EventDigest:    "digest",
		EventPayload:   json.RawMessage(`{"step":1}`),
		Disposition:    Continue{},
	}
	keys := [2]string{"even", "odd"}
	var claiming time.Duration
	runtime.GC()
	b.ReportAllocs()
	b.ResetTimer()
	for n := 0; n < b.N; {
		began := time.Now()
		items, err := q.ClaimDue(ctx, req)
		claiming += time.Since(began)
		if err != nil || len(items) == 0 {
			b.Fatal(len(items), err)
		}
		for i := range items {
			command.DeliveryKey = keys[items[i].StateVersion%2]
			command.NextState = items[i].State
			if err := q.CommitCommand(ctx, &items[i], &command); err != nil {
				b.Fatal(err)
			}
			if row := q.row(items[i].TenantID, items[i].ID); items[i].StateVersion%64 == 0 {
				row.firstEvent = row.lastEvent
			}
		}
		if n += len(items); n%(1<<14) < len(items) {
			q.ClearHistory()
		}
	}
	b.ReportMetric(float64(claiming.Nanoseconds())/float64(b.N), "claim-ns/op")
}

func BenchmarkClaim(b *testing.B) {
	for _, waiting := range []int{1_000, 100_000, 1_000_000} {
		b.Run(fmt.Sprintf("waiting=%d", waiting), func(b *testing.B) {
			q := NewMemoryWorkQueue()
			for n := range waiting {
				benchmarkStart(b, q, 0, 0, benchmarkLater(n))
			}
			for range benchmarkBatch {
				benchmarkStart(b, q, 0, 0, time.Time{})
			}
			benchmarkTransitions(b, q)
		})
	}
	for _, tenants := range []int{100, 10_000} {
		b.Run(fmt.Sprintf("tenants=%d", tenants), func(b *testing.B) {
			q := NewMemoryWorkQueue()
			for n := range 10 * tenants {
				benchmarkStart(b, q, n%tenants, 0, benchmarkLater(n))
				if n < tenants {
					benchmarkStart(b, q, n%tenants, 0, time.Time{})
				}
			}
			benchmarkTransitions(b, q, "spec-0")
		})
	}
	for _, specs := range []int{100, 10_000} {
		b.Run(fmt.Sprintf("specs=%d", specs), func(b *testing.B) {
			q := NewMemoryWorkQueue()
			for n := range 10 * specs {
				benchmarkStart(b, q, n%3, n%specs, benchmarkLater(n))
				if n < specs {
					benchmarkStart(b, q, n%3, n%specs, time.Time{})
				}
			}
			benchmarkTransitions(b, q)
		})
		b.Run(fmt.Sprintf("specs=%d/wanted=10", specs), func(b *testing.B) {
			q := NewMemoryWorkQueue()
			for n := range 10 * specs {
				benchmarkStart(b, q, n%3, n%specs, benchmarkLater(n))
				if n < specs {
					benchmarkStart(b, q, n%3, n%specs, time.Time{})
				}
			}
			var wanted []string
			for n := range 10 {
				wanted = append(wanted, fmt.Sprintf("spec-%d", n*specs/10))
			}
			benchmarkTransitions(b, q, wanted...)
		})
	}
	b.Run("due=1000000", func(b *testing.B) {
		q := NewMemoryWorkQueue()
		for range 1_000_000 {
			benchmarkStart(b, q, 0, 0, time.Time{})
		}
		benchmarkTransitions(b, q)
	})
}

// BenchmarkStart also reports what a waiting instance takes in memory.
func BenchmarkStart(b *testing.B) {
	q := NewMemoryWorkQueue()
	heap := func() float64 {
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return float64(stats.HeapAlloc)
	}
	before := heap()
	b.ReportAllocs()
	b.ResetTimer()
	for n := range b.N {
		benchmarkStart(b, q, 0, n%10, benchmarkLater(n))
	}
	b.StopTimer()
	b.ReportMetric((heap()-before)/float64(b.N), "B/instance")
	runtime.KeepAlive(q)
}
