package pgqueue

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/workflow-supervisor/supervisor"
)

// transitions is how many transitions complete an instance of the benchmarks.
const transitions = 10

// walPosition returns how much the server has written to its log.
func walPosition(b *testing.B, pool *pgxpool.Pool) (bytes int64) {
	b.Helper()
	require.NoError(b, pool.QueryRow(context.Background(), "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint").Scan(&bytes))
	return bytes
}

// benchServer is the server of the benchmarks, with the settings that it comes
// with, unless a database is given. It serves nobody else, so that its processor time can be told.
var benchServer = sync.OnceValues(func() (*server, error) { return newServer() })

func benchDSN(b *testing.B) string {
	b.Helper()
	if dsn := os.Getenv(dsnVariable); dsn != "" {
		return dsn
	}
	s, err := benchServer()
	if err != nil {
		missing(b, err)
	}
	return s.dsn()
}

// cpuSeconds returns the processor time of this process and of the server.
func cpuSeconds(b *testing.B) (client, server float64) {
	b.Helper()
	var usage syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	client = float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9
	if os.Getenv(dsnVariable) != "" {
		return client, 0
	}
	s, err := benchServer()
	require.NoError(b, err)
	parent := s.process.Process.Pid
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	require.NoError(b, err)
	for _, name := range stats {
		text, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		// Behind the name of the program, in parentheses: state, parent, and, as
		// the 12th to 15th, the times of the process and of children that ended.
		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		pid := filepath.Base(filepath.Dir(name))
		if len(fields) < 15 || (pid != strconv.Itoa(parent) && fields[1] != strconv.Itoa(parent)) {
			continue
		}
		last := 13
		if pid == strconv.Itoa(parent) {
			last = 15
		}
		for _, ticks := range fields[11:last] {
			n, err := strconv.ParseFloat(ticks, 64)
			require.NoError(b, err)
			server += n / 100
		}
	}
	return client, server
}

// measure runs work for b.N transitions and reports what each has cost.
func measure(b *testing.B, pool *pgxpool.Pool, work func()) {
	ctx := context.Background()
	// Not every role may. What is measured without holds more full pages.
	if _, err := pool.Exec(ctx, "CHECKPOINT"); err != nil {
		b.Logf("no checkpoint before the run: %v", err)
	}
	wal := walPosition(b, pool)
	client, server := cpuSeconds(b)
	b.ReportAllocs()
	b.ResetTimer()
	work()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "transitions/s")
	clientEnd, serverEnd := cpuSeconds(b)
	b.ReportMetric((clientEnd-client)/float64(b.N)*1e6, "client-us/op")
	b.ReportMetric((serverEnd-server)/float64(b.N)*1e6, "server-us/op")
	b.ReportMetric(float64(walPosition(b, pool)-wal)/float64(b.N), "WAL-B/op")
}

// BenchmarkReference is the loop that a good programmer would write for this
// workload alone: it claims a hundred rows and commits state and event of a
// hundred in one statement, on four connections. It has leases and a fence, but
// no delivery keys, epochs, wakeups or fairness.
func BenchmarkReference(b *testing.B) {
	for _, test := range []struct {
		name        string
		size, conns int
		moving      string
	}{
		{"batch=100", 100, 4, "due"},
		{"batch=100,moving", 100, 4, "clock_timestamp()"},
		{"lone", 1, 1, "clock_timestamp()"},
	} {
		b.Run(test.name, func(b *testing.B) { benchmarkReference(b, test.size, test.conns, test.moving) })
	}
}

func benchmarkReference(b *testing.B, size, conns int, nextDue string) {
	ctx := context.Background()
	dsn := benchDSN(b)
	schema := pgx.Identifier{newSchema(b, dsn)}.Sanitize()
	pool := newPool(b, dsn, func(config *pgxpool.Config) { config.MaxConns = int32(conns + 1) })
	instances := (b.N + transitions - 1) / transitions
	_, err := pool.Exec(ctx, fmt.Sprintf(`
		CREATE SCHEMA %[1]s;
		CREATE TABLE %[1]s.item (id bigint PRIMARY KEY, due timestamptz NOT NULL, status smallint NOT NULL, owner text,
			lease_until timestamptz, fence bigint NOT NULL DEFAULT 0, version bigint NOT NULL DEFAULT 0, state text NOT NULL);
		CREATE INDEX ON %[1]s.item (due) WHERE status = 0;
		CREATE TABLE %[1]s.event (id bigint, version bigint, at timestamptz NOT NULL, type text NOT NULL, payload text NOT NULL,
			PRIMARY KEY (id, version));
		INSERT INTO %[1]s.item (id, due, status, state) SELECT n, clock_timestamp(), 0, '{"step":0}' FROM generate_series(1, %[2]d) n;
		ANALYZE %[1]s.item`, schema, instances))
	require.NoError(b, err)
	claim := fmt.Sprintf(`
		WITH due AS MATERIALIZED (
			SELECT id FROM %[1]s.item WHERE status = 0 AND due <= clock_timestamp() ORDER BY due LIMIT $1 FOR UPDATE SKIP LOCKED)
		UPDATE %[1]s.item i SET status = 1, owner = 'worker', lease_until = clock_timestamp() + interval '60 s', fence = fence + 1
		FROM due WHERE i.id = due.id RETURNING i.id, i.fence, i.version, i.state`, schema)
	commit := fmt.Sprintf(`
		WITH u AS (
			UPDATE %[1]s.item i SET status = m.status, due = %[2]s, version = version + 1, state = m.state, owner = NULL, lease_until = NULL
			FROM unnest($1::bigint[], $2::bigint[], $3::smallint[], $4::text[], $5::text[]) m(id, fence, status, state, payload)
			WHERE i.id = m.id AND i.fence = m.fence AND i.status = 1
			RETURNING i.id, i.version, m.payload)
		INSERT INTO %[1]s.event (id, version, at, type, payload) SELECT id, version, clock_timestamp(), 'stepped', payload FROM u`,
		schema, nextDue)
	measure(b, pool, func() {
		var left atomic.Int64
		left.Store(int64(instances))
		var group sync.WaitGroup
		for range conns {
			group.Go(func() {
				for left.Load() > 0 {
					rows, err := pool.Query(ctx, claim, size)
					if err != nil {
						b.Error(err)
						return
					}
					var ids, fences []int64
					var statuses []int16
					var states, payloads []string
					for rows.Next() {
						var id, fence, version int64
						var state string
						if err := rows.Scan(&id, &fence, &version, &state); err != nil {
							b.Error(err)
						}
						ids, fences = append(ids, id), append(fences, fence)
						status := int16(0)
						if version+1 == transitions {
							status = 2
							left.Add(-1)
						}
						statuses = append(statuses, status)
						step := `{"step":` + strconv.FormatInt(version+1, 10) + `}`
						states, payloads = append(states, step), append(payloads, step)
					}
					if err := rows.Err(); err != nil {
						b.Error(err)
						return
					}
					if len(ids) == 0 {
						continue
					}
					if _, err := pool.Exec(ctx, commit, ids, fences, statuses, states, payloads); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		group.Wait()
	})
}

// fill starts instances, spread over tenants, without a round trip for each.
func fill(tb testing.TB, q *Queue, instances, tenants int, due string) {
	tb.Helper()
	ctx := context.Background()
	for n := range tenants {
		_, err := q.lane(ctx, q.pool, "tenant-"+strconv.Itoa(n), "spec")
		require.NoError(tb, err)
	}
	_, err := q.pool.Exec(ctx, q.store.text(fmt.Sprintf(`
		WITH lanes AS MATERIALIZED (
			SELECT l.lane_no, l.tenant_no, t.tenant_id, row_number() OVER (ORDER BY l.lane_no) - 1 AS n
			FROM {{schema}}.lane l JOIN {{schema}}.tenant t ON t.tenant_no = l.tenant_no
		), i AS (
			INSERT INTO {{schema}}.instance (tenant_id, id, tenant_no, lane_no, run_id, subject_id, spec_id, definition_id,
				workflow_revision, workflow_revision_digest, execution_profile_id, execution_profile_revision,
				execution_profile_digest, kernel_abi_version, config)
			SELECT lanes.tenant_id, 'instance-' || g.number, lanes.tenant_no, lanes.lane_no, gen_random_uuid()::text, 'system', 'spec', 'spec',
				1, 'code:spec@1', 'default', 1, 'profile:default@1', '1', '{"step":0}'
			FROM generate_series(1, %[1]d) AS g(number) JOIN lanes ON lanes.n = g.number %% %[2]d
			RETURNING instance_no, tenant_no, lane_no
		)
		INSERT INTO {{schema}}.run (instance_no, tenant_no, lane_no, created_at, due_at, runnable, status)
		SELECT instance_no, tenant_no, lane_no, clock_timestamp(), %[3]s, true, 'active' FROM i`, instances, tenants, due)))
	require.NoError(tb, err)
	_, err = q.pool.Exec(ctx, q.store.text(`
		INSERT INTO {{schema}}.lane_due (lane_no, due_at) SELECT lane_no, min(due_at) FROM {{schema}}.run GROUP BY lane_no`))
	require.NoError(tb, err)
	for _, table := range []string{"run", "instance", "lane", "lane_due", "tenant"} {
		_, err = q.pool.Exec(ctx, q.store.text("ANALYZE {{schema}}."+table))
		require.NoError(tb, err)
	}
}

// unkept hides the ability to keep claims.
type unkept struct{ supervisor.WorkQueue }

func BenchmarkRun(b *testing.B) {
	for _, test := range []struct {
		name    string
		tenants int
		keep    bool
	}{
		{"claim-each", 1, false},
		{"kept", 1, true},
		{"claim-each,tenants=1000", 1000, false},
		{"kept,tenants=1000", 1000, true},
	} {
		b.Run(test.name, func(b *testing.B) {
			dsn := benchDSN(b)
			q := open(b, dsn, newSchema(b, dsn), benchOptions())
			instances := (b.N + transitions - 1) / transitions
			fill(b, q, instances, min(test.tenants, instances), "clock_timestamp()")
			ctx, cancel := context.WithCancel(context.Background())
			var done atomic.Int64
			registry := supervisor.NewDriverRegistry[int]()
			require.NoError(b, registry.Register(supervisor.NewDriver("spec", 1, func(_ context.Context, _ int, item *supervisor.WorkItem) (supervisor.TransitionCommand, error) {
				step := `{"step":` + strconv.FormatInt(item.StateVersion+1, 10) + `}`
				var disposition supervisor.Disposition = supervisor.Continue{}
				if item.StateVersion+1 == transitions {
					disposition = supervisor.Complete{}
				}
				return supervisor.NewCommand(item, "stepped", rawJSON(step), rawJSON(step), disposition)
			})))
			settings := supervisor.Settings{
				Concurrency: 256,
				ClaimBatch:  256,
				Observer: &supervisor.Observer{Commit: func(info supervisor.CommitInfo) {
					if info.Err != nil {
						b.Error(info.Err)
					}
					if _, last := info.Command.Disposition.(supervisor.Complete); last && done.Add(1) == int64(instances) {
						cancel()
					}
				}},
			}
			var queue supervisor.WorkQueue = unkept{q}
			if test.keep {
				queue = q
			}
			s, err := supervisor.New(queue, registry, settings, func(context.Context) (int, error) { return 0, nil })
			require.NoError(b, err)
			measure(b, q.pool, func() { require.NoError(b, s.Run(ctx)) })
			cancel()
		})
	}
}

// BenchmarkLone is one transition after the other, each claimed and committed
// alone.
func BenchmarkLone(b *testing.B) {
	dsn := benchDSN(b)
	q := open(b, dsn, newSchema(b, dsn), benchOptions())
	fill(b, q, 1000, 1, "clock_timestamp()")
	ctx := context.Background()
	request := supervisor.ClaimRequest{WorkerID: "worker", LeaseDuration: time.Minute, Limit: 1, SpecIDs: []string{"spec"}}
	measure(b, q.pool, func() {
		for range b.N {
			items, err := q.ClaimDue(ctx, request)
			require.NoError(b, err)
			require.Len(b, items, 1)
			command, err := supervisor.NewCommand(&items[0], "stepped", rawJSON(`{"step":1}`), rawJSON(`{"step":1}`), supervisor.Continue{})
			require.NoError(b, err)
			require.NoError(b, q.CommitCommand(ctx, &items[0], &command))
		}
	})
}

func rawJSON(text string) json.RawMessage { return json.RawMessage(text) }

func stopBenchServer() {
	if os.Getenv(dsnVariable) != "" || flag.Lookup("test.bench").Value.String() == "" {
		return
	}
	if s, err := benchServer(); err == nil {
		s.stop()
	}
}

func benchOptions() Options {
	n, _ := strconv.Atoi(os.Getenv("COMMITTERS"))
	return Options{Committers: n}
}
