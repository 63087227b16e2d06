package supervisor

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"
)

// BenchmarkIntents takes no-op intents through claim, mark and settlement beside
// others that wait. An operation is one intent through all three; in the joint
// form the claim marks.
func BenchmarkIntents(b *testing.B) {
	for _, waiting := range []int{1_000, 100_000} {
		for _, joint := range []bool{false, true} {
			b.Run(fmt.Sprintf("waiting=%d/joint=%v", waiting, joint), func(b *testing.B) {
				q := NewMemoryWorkQueue()
				instance := memInstance("a")
				instance.CapabilityPins = []CapabilityPin{memPin}
				if _, err := q.Start(b.Context(), instance, time.Time{}); err != nil {
					b.Fatal(err)
				}
				items, err := q.ClaimDue(b.Context(), ClaimRequest{WorkerID: "w", LeaseDuration: time.Hour, Limit: 1})
				if err != nil {
					b.Fatal(err)
				}
				row, now := q.row("t1", "a"), time.Now()
				prepare := func(n int, due time.Time) *memIntentRow {
					intent := memIntent(&items[0], fmt.Sprint(n))
					intent.Input = json.RawMessage(`{}`)
					q.prepareIntents(row, []ActionIntent{intent}, due)
					return row.intents.inOrder[len(row.intents.inOrder)-1]
				}
				for n := range waiting {
					prepare(n, now.Add(time.Hour+time.Duration(n)*7919%(365*24*3600)*time.Second))
				}
				for n := range benchmarkBatch {
					prepare(waiting+n, now)
				}
				req := IntentClaimRequest{WorkerID: "d", LeaseDuration: time.Minute, Limit: benchmarkBatch, MarkRepeatable: joint}
				settlement := Settlement{State: ActionRetryable, Proof: ProofNotSent}
				b.ReportAllocs()
				b.ResetTimer()
				for n := 0; n < b.N; {
					works, err := q.ClaimIntents(b.Context(), req)
					if err != nil || len(works) == 0 {
						b.Fatal(len(works), err)
					}
					for i := range works {
						if !joint {
							if works[i], err = q.MarkIntent(b.Context(), &works[i]); err != nil {
								b.Fatal(err)
							}
						}
						// They are due again at once, so that their number stays.
						if err := q.SettleIntent(b.Context(), &works[i], settlement); err != nil {
							b.Fatal(err)
						}
					}
					n += len(works)
				}
			})
		}
	}
}
