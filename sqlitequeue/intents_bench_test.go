package sqlitequeue

import (
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/workflow-supervisor/supervisor"
)

// benchConcurrency is how many transitions or dispatches are under way at once.
const benchConcurrency = 64

// drive has work done: claim returns at most as many pieces as it is asked for,
// which run at once.
func drive(b *testing.B, pieces int, claim func(limit int) []func() error) {
	b.Helper()
	var workers sync.WaitGroup
	work := make(chan func() error, benchConcurrency)
	ended := make(chan error, benchConcurrency)
	for range benchConcurrency {
		workers.Go(func() {
			for do := range work {
				ended <- do()
			}
		})
	}
	for claimed, running := 0, 0; claimed < pieces || running > 0; {
		if claimed < pieces && running < benchConcurrency {
			found := claim(min(benchConcurrency-running, pieces-claimed))
			claimed += len(found)
			running += len(found)
			for _, do := range found {
				work <- do
			}
			if running == 0 {
				b.Fatal("nothing is due")
			}
		}
		// All that have ended make room for one claim.
		if err := <-ended; err != nil {
			b.Fatal(err)
		}
		for running--; ; running-- {
			select {
			case err := <-ended:
				if err != nil {
					b.Fatal(err)
				}
				continue
			default:
			}
			break
		}
	}
	close(work)
	workers.Wait()
}

// transitions commits, each with as many durable writes as asked for.
func transitions(b *testing.B, q *Queue, pieces, writes int) {
	b.Helper()
	drive(b, pieces, func(limit int) []func() error {
		items, err := q.ClaimDue(b.Context(), supervisor.ClaimRequest{WorkerID: "bench", LeaseDuration: time.Minute, Limit: limit})
		if err != nil {
			b.Fatal(err)
		}
		var found []func() error
		for n := range items {
			item := &items[n]
			found = append(found, func() error {
				if writes == 3 {
					lease := supervisor.Lease{TenantID: item.TenantID, InstanceID: item.ID, WorkerID: "bench", Version: item.LeaseVersion, Duration: time.Minute}
					if err := q.Renew(b.Context(), lease); err != nil {
						return err
					}
				}
				command, err := supervisor.NewCommand(item, "stepped", json.RawMessage(handPayload), json.RawMessage(handState), supervisor.Continue{})
				if err != nil {
					return err
				}
				return q.CommitCommand(b.Context(), item, &command)
			})
		}
		return found
	})
}

// dispatches hands intents off to nobody and settles them, as a dispatcher does.
func dispatches(b *testing.B, q *Queue, pieces int) {
	b.Helper()
	drive(b, pieces, func(limit int) []func() error {
		works, err := q.ClaimIntents(b.Context(), supervisor.IntentClaimRequest{
			Capabilities: []supervisor.CapabilityPin{payPin}, WorkerID: "bench", LeaseDuration: time.Minute, Limit: limit, MarkRepeatable: true,
		})
		if err != nil {
			b.Fatal(err)
		}
		var found []func() error
		for n := range works {
			work := &works[n]
			found = append(found, func() error {
				if work.Intent.State != supervisor.ActionDispatchCommitted {
					marked, err := q.MarkIntent(b.Context(), work)
					if err != nil {
						return err
					}
					work = &marked
				}
				return q.SettleIntent(b.Context(), work, succeeded())
			})
		}
		return found
	})
}

// prepareIntents starts instances that commit one intent each and then wait.
func prepareIntents(b *testing.B, q *Queue, first, pieces int, class supervisor.IdempotencyMode) {
	b.Helper()
	// Those that were told of an intent before are due, too.
	spec := fmt.Sprintf("bench-%d", first)
	tx, err := q.DB().BeginTx(b.Context(), nil)
	require.NoError(b, err)
	for n := range pieces {
		instance, err := supervisor.NewInstance(spec, 1, json.RawMessage(handState))
		require.NoError(b, err)
		instance.ID = fmt.Sprintf("instance-%d", first+n)
		instance.CapabilityPins = []supervisor.CapabilityPin{payPin}
		_, err = q.StartTx(b.Context(), tx, instance, time.Time{})
		require.NoError(b, err)
	}
	require.NoError(b, tx.Commit())
	drive(b, pieces, func(limit int) []func() error {
		items, err := q.ClaimDue(b.Context(), supervisor.ClaimRequest{SpecIDs: []string{spec}, WorkerID: "bench", LeaseDuration: time.Minute, Limit: limit})
		require.NoError(b, err)
		var found []func() error
		for n := range items {
			item := &items[n]
			found = append(found, func() error {
				command, err := supervisor.NewCommand(item, "stepped", json.RawMessage(handPayload), json.RawMessage(handState), supervisor.Continue{Delay: time.Hour})
				if err != nil {
					return err
				}
				intent := write("intent", payPin)
				intent.RetryClass = class
				command.ActionIntents = []supervisor.ActionIntent{own(item, intent)}
				return q.CommitCommand(b.Context(), item, &command)
			})
		}
		return found
	})
}

// BenchmarkDispatch measures intents that are claimed, handed off to nobody and
// settled, in turns with transitions of another file that take as many durable
// writes, and reports their ratio.
func BenchmarkDispatch(b *testing.B) {
	for _, class := range []supervisor.IdempotencyMode{supervisor.IdempotencyNative, supervisor.IdempotencyNone} {
		writes := 3
		if class == supervisor.IdempotencyNative {
			writes = 2
		}
		b.Run(fmt.Sprintf("%s/writes=%d", class, writes), func(b *testing.B) {
			const chunk = 2_000
			committing, dispatching := openDefault(b), openDefault(b)
			fill(b, committing, benchInstances)
			var commits, settles time.Duration
			done := 0
			for b.Loop() {
				began := time.Now()
				transitions(b, committing, chunk, writes)
				commits += time.Since(began)
				prepareIntents(b, dispatching, done, chunk, class)
				began = time.Now()
				dispatches(b, dispatching, chunk)
				settles += time.Since(began)
				done += chunk
			}
			b.ReportMetric(float64(done)/commits.Seconds(), "transitions/s")
			b.ReportMetric(float64(done)/settles.Seconds(), "intents/s")
			b.ReportMetric(commits.Seconds()/settles.Seconds(), "ratio")
			b.ReportMetric(0, "ns/op")
		})
	}
}
