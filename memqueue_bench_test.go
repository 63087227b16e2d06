package supervisor

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"
)

// benchmarkQueue holds instances that wait for long and a batch of due ones.
func benchmarkQueue(b *testing.B, waiting, due, tenants, specs int) *MemoryWorkQueue {
	b.Helper()
	q := NewMemoryWorkQueue()
	start := func(n int, dueAt time.Time) {
		instance, err := NewInstance(fmt.Sprintf("spec-%d", n%specs), 1, json.RawMessage(`{"order":9007199254740993,"lines":[1,2,3]}`))
		if err != nil {
			b.Fatal(err)
		}
		instance.TenantID = fmt.Sprintf("tenant-%d", n/specs%tenants)
		if _, err := q.Start(b.Context(), instance, dueAt); err != nil {
			b.Fatal(err)
		}
	}
	for n := range waiting {
		start(n, time.Now().Add(time.Hour+time.Duration(n*7919%1_000_003)*time.Second))
	}
	for n := range due {
		start(n, time.Time{})
	}
	return q
}

const benchmarkBatch = 16

// benchmarkTransitions claims and commits batches, due again at once; an
// operation is one item.
func benchmarkTransitions(b *testing.B, q *MemoryWorkQueue, specIDs []string) {
	ctx := context.Background()
	req := ClaimRequest{SpecIDs: specIDs, WorkerID: "w", LeaseDuration: time.Minute, Limit: benchmarkBatch}
	command := TransitionCommand{
		DeliveryDigest: "digest",
		EventType:      "step",
		EventDigest:    "digest",
		EventPayload:   json.RawMessage(`{"step":1}`),
		Disposition:    Continue{},
	}
	keys := [2]string{"even", "odd"}
	b.ReportAllocs()
	b.ResetTimer()
	recorded := 0
	for n := 0; n < b.N; {
		items, err := q.ClaimDue(ctx, req)
		if err != nil || len(items) == 0 {
			b.Fatal(len(items), err)
		}
		for i := range items {
			command.DeliveryKey = keys[items[i].StateVersion%2]
			command.NextState = items[i].State
			if err := q.CommitCommand(ctx, &items[i], &command); err != nil {
				b.Fatal(err)
			}
		}
		n += len(items)
		// The history is recorded and measured, but not kept for ever.
		if recorded += len(items); recorded >= 1<<14 {
			recorded = 0
			b.StopTimer()
			q.ClearHistory()
			if _, err := q.Prune(ctx, time.Now()); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
		}
	}
}

func BenchmarkClaimAndCommit(b *testing.B) {
	for _, waiting := range []int{1_000, 100_000, 1_000_000} {
		b.Run(fmt.Sprintf("waiting=%d", waiting), func(b *testing.B) {
			benchmarkTransitions(b, benchmarkQueue(b, waiting, benchmarkBatch, 1, 1), nil)
		})
	}
}
