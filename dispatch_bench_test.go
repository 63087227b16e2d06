package supervisor

import (
	"context"
	"fmt"
	"testing"
	"time"
)

// BenchmarkDispatch hands no-op intents off from the queue in memory, claim and
// settlement included.
func BenchmarkDispatch(b *testing.B) {
	for _, class := range []IdempotencyMode{IdempotencyNative, IdempotencyNone} {
		for _, concurrency := range []int{16, 256} {
			b.Run(fmt.Sprintf("class=%s/concurrency=%d", class, concurrency), func(b *testing.B) {
				registry := NewProviderRegistry()
				provider := &quickProvider{}
				if err := registry.Register(testPin, provider, ProviderOptions{}); err != nil {
					b.Fatal(err)
				}
				settings := Settings{Concurrency: concurrency, ClaimBatch: concurrency}
				b.ReportAllocs()
				left := 0
				var q *MemoryWorkQueue
				for b.Loop() {
					if left == 0 {
						b.StopTimer()
						q, left = benchIntents(b, class, 64*concurrency), 64
						b.StartTimer()
					}
					left--
					stats, err := RunDispatchPass(b.Context(), q, registry, settings)
					if err != nil || stats.Succeeded != concurrency {
						b.Fatal(stats, err)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*concurrency), "ns/intent")
			})
		}
	}
}

// quickProvider succeeds at once.
type quickProvider struct{}

func (*quickProvider) Dispatch(context.Context, *Handoff) (Receipt, error) {
	return Receipt{Report: Report{Status: ProviderSucceeded}}, nil
}

func benchIntents(b *testing.B, class IdempotencyMode, n int) *MemoryWorkQueue {
	b.Helper()
	const perInstance = 16
	q := new(MemoryWorkQueue)
	for at := 0; at < n; at += perInstance {
		item := memItem(fmt.Sprint(at))
		item.CapabilityPins = []CapabilityPin{testPin}
		q.Push(item)
	}
	items, err := q.ClaimDue(b.Context(), ClaimRequest{WorkerID: "w", LeaseDuration: time.Hour, Limit: n})
	if err != nil {
		b.Fatal(err)
	}
	for n := range items {
		item := &items[n]
		command, err := NewCommand(item, "asked", nil, nil, Reschedule{At: time.Now().Add(time.Hour)})
		if err != nil {
			b.Fatal(err)
		}
		for n := range perInstance {
			command.ActionIntents = append(command.ActionIntents, testIntent(item, fmt.Sprint(n), class))
		}
		if err := q.CommitCommand(b.Context(), item, &command); err != nil {
			b.Fatal(err)
		}
	}
	return q
}
