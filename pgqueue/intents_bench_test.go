package pgqueue

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/workflow-supervisor/supervisor"
)

// intentSlots is how many intents the benchmarks have in flight, as many as
// BenchmarkRun has instances.
const intentSlots = 256

// fillIntents gives waiting instances intents of one retry class that are due.
func fillIntents(tb testing.TB, q *Queue, intents, each int, class supervisor.IdempotencyMode) {
	tb.Helper()
	ctx := context.Background()
	instances := (intents + each - 1) / each
	fill(tb, q, instances, 1, "clock_timestamp() + interval '1 hour'")
	no, err := q.capability(ctx, testPin)
	require.NoError(tb, err)
	execute(tb, q, fmt.Sprintf(`
		INSERT INTO {{schema}}.intent (instance_no, id, tenant_no, prepared_at, capability_no, state, due_at, run_id, idempotency_key,
			effect, retry_class, tenant_epoch, instance_epoch, resource_epoch, resource_scope_id, lease_epoch, action_epoch, created_at, input)
		SELECT i.instance_no, 'intent-' || g.number, i.tenant_no, clock_timestamp(), %d, 'prepared', clock_timestamp(), i.run_id,
			i.id || '-' || g.number, 'external_write', '%s', 0, 0, 0, '', 1, 1, clock_timestamp(), '{"amount":100}'
		FROM {{schema}}.instance i CROSS JOIN generate_series(1, %d) AS g(number)
		ORDER BY i.instance_no, g.number LIMIT %d`, no, class, each, intents))
	execute(tb, q, "ANALYZE {{schema}}.intent")
}

// dispatchAll hands all intents off to nobody and settles them, as a dispatcher
// does: whatever is free is claimed for, and each intent goes on by itself.
func dispatchAll(tb testing.TB, q *Queue, intents int) {
	ctx := context.Background()
	free := make(chan struct{}, intentSlots)
	for range intentSlots {
		free <- struct{}{}
	}
	var left atomic.Int64
	left.Store(int64(intents))
	waiting, done := context.WithCancel(ctx)
	defer done()
	var group sync.WaitGroup
	for {
		select {
		case <-waiting.Done():
			group.Wait()
			return
		case <-free:
		}
		limit := 1
		for more := true; more && limit < intentSlots; {
			select {
			case <-free:
				limit++
			default:
				more = false
			}
		}
		works, err := q.ClaimIntents(ctx, supervisor.IntentClaimRequest{
			WorkerID: "dispatcher", LeaseDuration: time.Minute, Limit: limit, MarkRepeatable: true,
			Capabilities: []supervisor.CapabilityPin{testPin},
		})
		if err != nil {
			tb.Error(err)
			return
		}
		for range limit - len(works) {
			free <- struct{}{}
		}
		for n := range works {
			group.Go(func() {
				defer func() { free <- struct{}{} }()
				work := works[n]
				if work.Intent.State != supervisor.ActionDispatchCommitted {
					marked, err := q.MarkIntent(ctx, &work)
					if err != nil {
						tb.Error(err)
						return
					}
					work = marked
				}
				settlement := supervisor.Settlement{
					State: supervisor.ActionSucceeded, Cause: supervisor.CauseReported, Output: rawJSON(`{"ok":true}`),
					Receipt: &supervisor.Receipt{Reference: "reference", Report: supervisor.Report{Status: supervisor.ProviderSucceeded, Output: rawJSON(`{"ok":true}`)}},
				}
				if err := q.SettleIntent(ctx, &work, settlement); err != nil {
					tb.Error(err)
				}
				if left.Add(-1) == 0 {
					done()
				}
			})
		}
		if len(works) == 0 {
			_ = q.WaitIntents(waiting, nil)
		}
	}
}

// commitAll takes instances through their transitions.
func commitAll(tb testing.TB, q *Queue, instances int) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var done atomic.Int64
	registry := supervisor.NewDriverRegistry[int]()
	require.NoError(tb, registry.Register(supervisor.NewDriver("spec", 1, stepDriver)))
	settings := supervisor.Settings{
		Concurrency: intentSlots,
		ClaimBatch:  intentSlots,
		Observer: &supervisor.Observer{Commit: func(info supervisor.CommitInfo) {
			if info.Err != nil {
				tb.Error(info.Err)
			}
			if _, last := info.Command.Disposition.(supervisor.Complete); last && done.Add(1) == int64(instances) {
				cancel()
			}
		}},
	}
	s, err := supervisor.New(unkept{q}, registry, settings, func(context.Context) (int, error) { return 0, nil })
	require.NoError(tb, err)
	require.NoError(tb, s.Run(ctx))
}

// BenchmarkIntents compares the dispatch of intents that do nothing with commits,
// by the durable writes of each: a transition that is claimed and committed has
// two, a native intent two (claimed and marked, settled), any other three. They
// take turns, so that what else runs on a machine meets both. The ratio is that
// of durable writes per second.
func BenchmarkIntents(b *testing.B) {
	const rounds = 5
	for _, test := range []struct {
		class  supervisor.IdempotencyMode
		each   int
		writes float64
	}{
		{supervisor.IdempotencyNative, 1, 2},
		{supervisor.IdempotencyNative, 10, 2},
		{supervisor.IdempotencyNone, 1, 3},
		{supervisor.IdempotencyNone, 10, 3},
	} {
		b.Run(string(test.class)+",each="+strconv.Itoa(test.each), func(b *testing.B) {
			dsn := benchDSN(b)
			n := max(b.N/rounds/transitions, 1) * transitions
			var committing, dispatching time.Duration
			b.ResetTimer()
			for range rounds {
				b.StopTimer()
				q := open(b, dsn, newSchema(b, dsn), benchOptions())
				fill(b, q, n/transitions, 1, "clock_timestamp()")
				began := time.Now()
				commitAll(b, q, n/transitions)
				committing += time.Since(began)
				q = open(b, dsn, newSchema(b, dsn), benchOptions())
				fillIntents(b, q, n, test.each, test.class)
				b.StartTimer()
				began = time.Now()
				dispatchAll(b, q, n)
				dispatching += time.Since(began)
			}
			all := float64(rounds * n)
			b.ReportMetric(all/dispatching.Seconds(), "intents/s")
			b.ReportMetric(all/committing.Seconds(), "transitions/s")
			b.ReportMetric(test.writes/2*committing.Seconds()/dispatching.Seconds(), "ratio")
		})
	}
}
