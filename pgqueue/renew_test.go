package pgqueue

import (
	"context"
	"database/sql"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/workflow-supervisor/supervisor"
)

func leaseOf(item *supervisor.WorkItem, d time.Duration) supervisor.Lease {
	return supervisor.Lease{TenantID: item.TenantID, InstanceID: item.ID, WorkerID: "worker", Version: item.LeaseVersion, Duration: d}
}

// TestRenewalsTouchNoIndex proves that renewals are heap-only updates, and that
// those which come together share statements.
func TestRenewalsTouchNoIndex(t *testing.T) {
	q := newQueue(t, Options{})
	const instances = 50
	for n := range instances {
		start(t, q, strconv.Itoa(n))
	}
	items := claim(t, q, instances)
	require.Len(t, items, instances)
	var statements atomic.Int64
	q.store.fault = func(string) error {
		statements.Add(1)
		return nil
	}
	var group sync.WaitGroup
	for n := range items {
		group.Go(func() {
			for range 4 {
				if err := q.Renew(context.Background(), leaseOf(&items[n], testLease)); err != nil {
					t.Errorf("renew: %v", err)
				}
			}
		})
	}
	group.Wait()
	require.Less(t, statements.Load(), int64(instances*4/4))
	// How many updates find room on their page depends on what else goes on; that
	// they look for it at all depends on the indexes alone.
	require.Zero(t, number(t, q, `
		SELECT count(*) FROM pg_index i
		JOIN pg_attribute a ON a.attrelid = i.indrelid
		WHERE i.indrelid = '{{schema}}.run'::regclass AND a.attname LIKE 'lease%'
		  AND (a.attnum = ANY (i.indkey) OR pg_get_expr(i.indpred, i.indrelid) LIKE '%lease%')`))
	require.Eventually(t, func() bool {
		return number(t, q, `SELECT n_tup_hot_upd FROM pg_stat_user_tables WHERE relid = '{{schema}}.run'::regclass`) > 0
	}, 30*time.Second, 200*time.Millisecond, "the server counts with a delay")
}

// TestWorkLongerThanTheLease lets a driver work for several leases while another
// worker claims all the time.
func TestWorkLongerThanTheLease(t *testing.T) {
	dsn := testDSN(t)
	schema := newSchema(t, dsn)
	q, other := open(t, dsn, schema, Options{}), open(t, dsn, schema, Options{})
	start(t, q, "a")
	var starts atomic.Int64
	registry := supervisor.NewDriverRegistry[int]()
	require.NoError(t, registry.Register(supervisor.NewDriver(testSpec, 1, func(_ context.Context, _ int, item *supervisor.WorkItem) (supervisor.TransitionCommand, error) {
		starts.Add(1)
		time.Sleep(7 * time.Second)
		return supervisor.NewCommand(item, "done", nil, 1, supervisor.Complete{})
	})))
	done := make(chan error, 1)
	go func() {
		_, err := supervisor.RunDuePass(context.Background(), q, registry, supervisor.Settings{LeaseDuration: 3 * time.Second},
			func(context.Context) (int, error) { return 0, nil })
		done <- err
	}()
	require.Eventually(t, func() bool { return starts.Load() == 1 }, 20*time.Second, 5*time.Millisecond)
	for {
		select {
		case err := <-done:
			require.NoError(t, err)
			require.EqualValues(t, 1, starts.Load())
			require.EqualValues(t, 1, get(t, q, "a").LeaseVersion)
			require.Equal(t, supervisor.StatusCompleted, get(t, q, "a").Status)
			return
		case <-time.After(200 * time.Millisecond):
			require.Empty(t, claim(t, other, 1))
		}
	}
}

// TestDriversThatUseUpThePool lets each driver keep a connection of the queue's
// own pool busy for longer than the lease, until none is left.
func TestDriversThatUseUpThePool(t *testing.T) {
	dsn := testDSN(t)
	schema := newSchema(t, dsn)
	q := open(t, dsn, schema, Options{}, func(config *pgxpool.Config) { config.MaxConns = 4 })
	other := open(t, dsn, schema, Options{})
	for n := range 4 {
		start(t, q, strconv.Itoa(n))
	}
	db := stdlib.OpenDBFromPool(q.pool)
	defer db.Close()
	var starts atomic.Int64
	registry := supervisor.NewDriverRegistry[*sql.DB]()
	require.NoError(t, registry.Register(supervisor.NewDriver(testSpec, 1, func(ctx context.Context, db *sql.DB, item *supervisor.WorkItem) (supervisor.TransitionCommand, error) {
		starts.Add(1)
		if _, err := db.ExecContext(ctx, "SELECT pg_sleep(7)"); err != nil {
			return supervisor.TransitionCommand{}, err
		}
		return supervisor.NewCommand(item, "done", nil, 1, supervisor.Complete{})
	})))
	done := make(chan error, 1)
	var stats supervisor.Stats
	go func() {
		var err error
		stats, err = supervisor.RunDuePass(context.Background(), q, registry, supervisor.Settings{LeaseDuration: 3 * time.Second, Concurrency: 4},
			func(context.Context) (*sql.DB, error) { return db, nil })
		done <- err
	}()
	require.Eventually(t, func() bool { return starts.Load() == 4 }, 20*time.Second, 5*time.Millisecond)
	for {
		select {
		case err := <-done:
			require.NoError(t, err)
			require.Equal(t, 4, stats.Completed)
			require.EqualValues(t, 4, starts.Load())
			return
		case <-time.After(200 * time.Millisecond):
			require.Empty(t, claim(t, other, 4), "nobody's lease ended")
		}
	}
}
