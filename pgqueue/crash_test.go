package pgqueue

import (
	"context"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/workflow-supervisor/supervisor"
)

// startWorker starts another process that runs a supervisor until it is killed.
func startWorker(t *testing.T, dsn, schema string) *exec.Cmd {
	t.Helper()
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), workerVariable+"=run", dsnVariable+"="+dsn, workerSchemaVariable+"="+schema)
	command.Stderr = os.Stderr
	require.NoError(t, command.Start())
	return command
}

// TestWorkersAreKilled kills worker processes in the middle of their work, again
// and again, and starts others: nothing is lost, nothing is done twice.
func TestWorkersAreKilled(t *testing.T) {
	server := ownServer(t)
	schema := newSchema(t, server.dsn())
	q := open(t, server.dsn(), schema, Options{})
	instances := repeats(300, 5000)
	fill(t, q, instances, 5, "clock_timestamp()")
	workers := make([]*exec.Cmd, 3)
	for n := range workers {
		workers[n] = startWorker(t, server.dsn(), schema)
	}
	kill := func(worker *exec.Cmd) {
		_ = worker.Process.Kill()
		_ = worker.Wait()
	}
	defer func() {
		for _, worker := range workers {
			kill(worker)
		}
	}()
	deadline := time.Now().Add(5 * time.Minute)
	for kills := 0; ; kills++ {
		done := number(t, q, "SELECT count(*) FROM {{schema}}.run WHERE status = 'completed'")
		if done == int64(instances) {
			t.Logf("%d workers were killed", kills)
			break
		}
		require.True(t, time.Now().Before(deadline), "only %d of %d are completed", done, instances)
		time.Sleep(700 * time.Millisecond)
		if kills < repeats(6, 60) {
			victim := kills % len(workers)
			kill(workers[victim])
			workers[victim] = startWorker(t, server.dsn(), schema)
		}
	}
	requireWholeHistories(t, q, instances)
}

// TestServerCrashesMidLoad restarts the server in immediate mode while a
// supervisor works. Without synchronous commits the server forgets the latest
// ones: the work of those is done again.
func TestServerCrashesMidLoad(t *testing.T) {
	for _, setting := range []string{"synchronous_commit = on", "synchronous_commit = off"} {
		t.Run(setting, func(t *testing.T) { serverCrashesMidLoad(t, setting) })
	}
}

func serverCrashesMidLoad(t *testing.T, setting string) {
	server := ownServer(t, setting)
	q := open(t, server.dsn(), newSchema(t, server.dsn()), Options{})
	instances := repeats(200, 5000)
	fill(t, q, instances, 5, "clock_timestamp()")
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	registry := supervisor.NewDriverRegistry[int]()
	require.NoError(t, registry.Register(supervisor.NewDriver("spec", 1, stepDriver)))
	settings := supervisor.Settings{
		Concurrency: 16, LeaseDuration: 2 * time.Second, RequeueDelay: time.Second, PollInterval: 100 * time.Millisecond,
	}
	s, err := supervisor.New(q, registry, settings, func(context.Context) (int, error) { return 0, nil })
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	for range repeats(2, 20) {
		time.Sleep(300 * time.Millisecond)
		require.NoError(t, server.crash())
		require.NoError(t, server.start())
	}
	// A pool may hold connections of the server that is gone.
	completed := func() (n int64) {
		err := q.pool.QueryRow(ctx, q.store.text("SELECT count(*) FROM {{schema}}.run WHERE status = 'completed'")).Scan(&n)
		if err != nil {
			return -1
		}
		return n
	}
	for completed() != int64(instances) {
		require.NoError(t, ctx.Err(), "not done in time")
		time.Sleep(50 * time.Millisecond)
	}
	cancel()
	require.NoError(t, <-done)
	requireWholeHistories(t, q, instances)
}

// TestAnotherProcessTakesOver proves that what a killed process held is claimed
// again when its lease has ended, and that its own late commit is refused.
func TestAnotherProcessTakesOver(t *testing.T) {
	dsn := testDSN(t)
	schema := newSchema(t, dsn)
	q, other := open(t, dsn, schema, Options{}), open(t, dsn, schema, Options{})
	start(t, q, "a")
	req := request(1)
	req.LeaseDuration = 500 * time.Millisecond
	items, err := q.ClaimDue(context.Background(), req)
	require.NoError(t, err)
	require.Len(t, items, 1)
	require.Empty(t, claim(t, other, 1))
	began := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	require.NoError(t, other.WaitDue(ctx, nil), "the end of the lease wakes")
	require.Less(t, time.Since(began), 10*time.Second)
	item := claimOne(t, other)
	require.Equal(t, items[0].LeaseVersion+1, item.LeaseVersion)
	require.ErrorIs(t, commit(t, q, &items[0], complete), supervisor.ErrLeaseLost)
	lease := supervisor.Lease{
		TenantID: testTenant, InstanceID: "a", WorkerID: "worker", Version: items[0].LeaseVersion, Duration: testLease,
	}
	require.ErrorIs(t, q.Renew(context.Background(), lease), supervisor.ErrLeaseLost, "the same name, another claim")
	require.NoError(t, commit(t, other, &item, complete))
	require.Len(t, history(t, q, "a"), 1)
	require.EqualValues(t, 1, get(t, q, "a").StateVersion)
}
