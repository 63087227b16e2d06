package sqlitequeue

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/workflow-supervisor/supervisor"
)

// benchInstances take turns in the benchmarks of throughput.
const benchInstances = 2000

// stepper is a driver whose instances are due again at once, until stop says so.
type stepper struct {
	steps atomic.Int64
	until int64
	stop  context.CancelFunc
}

func (s *stepper) evaluate(_ context.Context, _ struct{}, item *supervisor.WorkItem) (supervisor.TransitionCommand, error) {
	if s.steps.Add(1) == s.until {
		s.stop()
	}
	return supervisor.NewCommand(item, "stepped", json.RawMessage(handPayload), json.RawMessage(handState), supervisor.Continue{})
}

// fill starts instances that are due.
func fill(b *testing.B, q *Queue, instances int) {
	b.Helper()
	tx, err := q.DB().BeginTx(b.Context(), nil)
	require.NoError(b, err)
	for n := range instances {
		instance, err := supervisor.NewInstance("bench", 1, json.RawMessage(handState))
		require.NoError(b, err)
		instance.ID = fmt.Sprintf("instance-%d", n)
		_, err = q.StartTx(b.Context(), tx, instance, time.Time{})
		require.NoError(b, err)
	}
	require.NoError(b, tx.Commit())
}

// run runs a supervisor for a number of transitions.
func run(b *testing.B, q *Queue, concurrency, transitions int) {
	b.Helper()
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	steps := &stepper{until: int64(transitions), stop: cancel}
	registry := supervisor.NewDriverRegistry[struct{}]()
	require.NoError(b, registry.Register(supervisor.NewDriver("bench", 1, steps.evaluate)))
	s, err := supervisor.New(q, registry, supervisor.Settings{WorkerID: "bench", Concurrency: concurrency},
		func(context.Context) (struct{}, error) { return struct{}{}, nil })
	require.NoError(b, err)
	require.NoError(b, s.Run(ctx))
	stats := s.Stats()
	require.Zero(b, stats.Failed)
	require.GreaterOrEqual(b, stats.Continued, transitions)
}

// comparison takes turns between the queue and the loop by hand, a chunk of
// transitions each, so that what else the machine does meets both.
type comparison struct {
	chunk, batch    int
	byHand, byQueue time.Duration
	ratios          []float64
	allocs          uint64
}

// run makes b.N transitions on either side.
func (c *comparison) run(b *testing.B, hand *handWritten, byQueue func(transitions int)) {
	b.Helper()
	var before, after runtime.MemStats
	b.ResetTimer()
	for left := b.N; left > 0; left -= min(left, c.chunk) {
		transitions := min(left, c.chunk)
		began := time.Now()
		for done := 0; done < transitions; {
			done += hand.round(b, b.Context(), min(c.batch, transitions-done))
		}
		took := time.Since(began)
		c.byHand += took
		runtime.ReadMemStats(&before)
		began = time.Now()
		byQueue(transitions)
		tookQueue := time.Since(began)
		c.byQueue += tookQueue
		runtime.ReadMemStats(&after)
		c.allocs += after.Mallocs - before.Mallocs
		c.ratios = append(c.ratios, took.Seconds()/tookQueue.Seconds())
	}
	b.StopTimer()
	slices.Sort(c.ratios)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(c.allocs)/float64(b.N), "allocs/transition")
}

// BenchmarkTransitions measures fenced transitions (state, event and lease made
// durable) through [supervisor.Supervisor.Run], in turns with the loop that one
// would write by hand for the same driver, and reports the ratio in the median
// turn: how much of the possible throughput is left to the program.
func BenchmarkTransitions(b *testing.B) {
	for _, concurrency := range []int{16, 64, 256} {
		b.Run(fmt.Sprintf("concurrency=%d", concurrency), func(b *testing.B) {
			hand := newHandWritten(b, benchInstances)
			q := openDefault(b)
			fill(b, q, benchInstances)
			c := comparison{chunk: 5_000, batch: 100}
			c.run(b, hand, func(transitions int) { run(b, q, concurrency, transitions) })
			b.ReportMetric(float64(b.N)/c.byHand.Seconds(), "by-hand/s")
			b.ReportMetric(float64(b.N)/c.byQueue.Seconds(), "transitions/s")
			b.ReportMetric(c.ratios[len(c.ratios)/2], "ratio")
		})
	}
}

// openDefault returns a queue on the default driver.
func openDefault(tb testing.TB) *Queue {
	tb.Helper()
	q, err := Open(tb.Context(), filepath.Join(tb.TempDir(), "queue.db"), Options{})
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, q.Close()) })
	return q
}

// BenchmarkLone measures one instance at a time, which shares nothing with
// others, in turns with the loop by hand; the ratio is of the times.
func BenchmarkLone(b *testing.B) {
	hand := newHandWritten(b, 1)
	q := openDefault(b)
	fill(b, q, 1)
	c := comparison{chunk: 200, batch: 1}
	c.run(b, hand, func(transitions int) { run(b, q, 1, transitions) })
	b.ReportMetric(float64(c.byHand.Microseconds())/float64(b.N), "by-hand-µs")
	b.ReportMetric(float64(c.byQueue.Microseconds())/float64(b.N), "transition-µs")
	b.ReportMetric(1/c.ratios[len(c.ratios)/2], "ratio")
}

// BenchmarkClaim measures a claim of 16 and giving them back, beside instances
// that wait: what waits must not be felt.
func BenchmarkClaim(b *testing.B) {
	for _, waiting := range []int{1_000, 10_000, 100_000, 1_000_000} {
		b.Run(fmt.Sprintf("waiting=%d", waiting), func(b *testing.B) {
			q := openDefault(b)
			fill(b, q, 64)
			wait(b, q, waiting)
			req := supervisor.ClaimRequest{SpecIDs: []string{"bench"}, WorkerID: "bench", LeaseDuration: time.Minute, Limit: 16}
			for b.Loop() {
				items, err := q.ClaimDue(b.Context(), req)
				if err != nil || len(items) != req.Limit {
					b.Fatalf("%d items, %v", len(items), err)
				}
				b.StopTimer()
				for n := range items {
					require.NoError(b, q.Release(b.Context(), &items[n], ""))
				}
				b.StartTimer()
			}
		})
	}
}

// wait adds instances that are due in an hour, without the price of starting
// them one by one.
func wait(b *testing.B, q *Queue, instances int) {
	b.Helper()
	for _, statement := range []string{
		`WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
			INSERT INTO supervisor_instances (tenant_id, id, run_id, subject_id, spec_id, definition_id, workflow_revision, workflow_digest,
				profile_id, profile_revision, profile_digest, kernel_abi, config)
			SELECT tenant_id, 'waiting-' || n.i, run_id, subject_id, spec_id, definition_id, workflow_revision, workflow_digest,
				profile_id, profile_revision, profile_digest, kernel_abi, config
			FROM n CROSS JOIN (SELECT * FROM supervisor_instances LIMIT 1)`,
		`INSERT INTO supervisor_records SELECT i.key, r.tenant, r.lane, 0, r.created_at + 3600000000 + i.key, NULL, r.created_at + 3600000000 + i.key,
				r.state_version, r.delivery_hash, r.last_progress_at, r.lease_version, r.lease_ends_at, r.lease_kept, r.lease_tenant_epoch,
				r.lease_instance_epoch, r.claimed_at, r.worker_id, r.status, r.created_at, r.finished_at, r.cancel_requested, r.paused,
				r.instance_epoch, r.attempt, r.retry_at, r.triggered, r.matched, r.succeeded, r.action_terminal, r.last_event_at, r.raised,
				r.wakeups, r.set_aside_until, r.beside, r.state
			FROM supervisor_instances i CROSS JOIN (SELECT * FROM supervisor_records LIMIT 1) r
			WHERE i.id LIKE 'waiting-%' AND ?1 > 0`,
	} {
		_, err := q.DB().ExecContext(b.Context(), statement, instances)
		require.NoError(b, err)
	}
}
