package pgqueue

import (
	"context"
	"database/sql"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/workflow-supervisor/supervisor"
)

// starters and deliverers of every kind of transaction.
type txKind struct {
	name string
	// run does work in a transaction and ends it as the result says.
	run func(t *testing.T, q *Queue, commit bool, work func(start func(supervisor.Instance, time.Time) (bool, error),
		deliver func(tenantID, instanceID string, wakeup supervisor.Wakeup, dueAt time.Time) error))
}

func txKinds() []txKind {
	ctx := context.Background()
	type starter = func(supervisor.Instance, time.Time) (bool, error)
	type deliverer = func(tenantID, instanceID string, wakeup supervisor.Wakeup, dueAt time.Time) error
	onPgx := func(mode pgx.QueryExecMode) func(*testing.T, *Queue, bool, func(starter, deliverer)) {
		return func(t *testing.T, q *Queue, commit bool, work func(starter, deliverer)) {
			pool := newPool(t, testDSN(t), func(config *pgxpool.Config) { config.ConnConfig.DefaultQueryExecMode = mode })
			tx, err := pool.Begin(ctx)
			require.NoError(t, err)
			defer func() { _ = tx.Rollback(ctx) }()
			work(func(i supervisor.Instance, dueAt time.Time) (bool, error) { return q.StartTx(ctx, tx, i, dueAt) },
				func(tenantID, instanceID string, wakeup supervisor.Wakeup, dueAt time.Time) error {
					return q.DeliverTx(ctx, tx, tenantID, instanceID, wakeup, dueAt)
				})
			if commit {
				require.NoError(t, tx.Commit(ctx))
			}
		}
	}
	return []txKind{
		{"pgx", onPgx(pgx.QueryExecModeCacheStatement)},
		{"pgx, simple protocol", onPgx(pgx.QueryExecModeSimpleProtocol)},
		{"database/sql", func(t *testing.T, q *Queue, commit bool, work func(starter, deliverer)) {
			db, err := sql.Open("pgx", testDSN(t))
			require.NoError(t, err)
			defer db.Close()
			tx, err := db.BeginTx(ctx, nil)
			require.NoError(t, err)
			defer func() { _ = tx.Rollback() }()
			work(func(i supervisor.Instance, dueAt time.Time) (bool, error) { return q.StartSQL(ctx, tx, i, dueAt) },
				func(tenantID, instanceID string, wakeup supervisor.Wakeup, dueAt time.Time) error {
					return q.DeliverSQL(ctx, tx, tenantID, instanceID, wakeup, dueAt)
				})
			if commit {
				require.NoError(t, tx.Commit())
			}
		}},
	}
}

var _ = stdlib.GetDefaultDriver // registers the driver "pgx"

func TestCallersTransaction(t *testing.T) {
	for _, kind := range txKinds() {
		t.Run(kind.name, func(t *testing.T) {
			q := newQueue(t, Options{})
			start(t, q, "old")
			item := claimOne(t, q)
			require.NoError(t, commit(t, q, &item, later1h))

			kind.run(t, q, false, func(start func(supervisor.Instance, time.Time) (bool, error),
				deliver func(string, string, supervisor.Wakeup, time.Time) error) {
				started, err := start(instance(t, "undone"), zero)
				require.NoError(t, err)
				require.True(t, started)
				require.NoError(t, deliver(testTenant, "undone", note("w"), zero))
				require.NoError(t, deliver(testTenant, "old", note("undone"), zero))
				require.Empty(t, claim(t, q, 10), "nothing is visible before the commit")
			})
			require.Empty(t, claim(t, q, 10), "nothing is left of what was rolled back")
			_, err := q.Get(context.Background(), testTenant, "undone")
			require.ErrorIs(t, err, supervisor.ErrNotFound)

			living := instance(t, "living")
			living.Lifecycle = supervisor.LifecyclePolicy{ProgressTimeout: time.Hour}
			due := time.Now().Add(2 * time.Hour)
			kind.run(t, q, true, func(start func(supervisor.Instance, time.Time) (bool, error),
				deliver func(string, string, supervisor.Wakeup, time.Time) error) {
				started, err := start(instance(t, "new"), zero)
				require.NoError(t, err)
				require.True(t, started)
				started, err = start(instance(t, "new"), zero)
				require.NoError(t, err)
				require.False(t, started)
				started, err = start(living, due)
				require.NoError(t, err)
				require.True(t, started)
				_, err = start(supervisor.Instance{}, zero)
				require.Error(t, err)
				require.NoError(t, deliver(testTenant, "old", note("w"), zero))
				require.NoError(t, deliver(testTenant, "old", note("w"), zero), "the same again")
				other := note("w")
				other.Payload = rawJSON(`{"note":2}`)
				err = deliver(testTenant, "old", other, zero)
				require.ErrorIs(t, err, supervisor.ErrDeliveryConflict)
				var conflict *supervisor.DeliveryConflictError
				require.ErrorAs(t, err, &conflict)
				require.Equal(t, "w", conflict.Key)
				require.ErrorIs(t, deliver(testTenant, "nobody", note("w"), zero), supervisor.ErrNotFound)
			})
			items := claim(t, q, 10)
			require.ElementsMatch(t, []string{"old", "new"}, ids(items))
			for n := range items {
				if items[n].ID == "old" {
					require.Len(t, items[n].Wakeups, 1)
				}
				require.NoError(t, commit(t, q, &items[n], complete))
			}
			require.InDelta(t, 60, time.Until(get(t, q, "living").NextDueAt).Minutes(), 1, "lifecycle timers count")
			require.ErrorIs(t, q.Deliver(context.Background(), testTenant, "old", note("late"), zero), supervisor.ErrFinished)
			kind.run(t, q, true, func(_ func(supervisor.Instance, time.Time) (bool, error),
				deliver func(string, string, supervisor.Wakeup, time.Time) error) {
				require.ErrorIs(t, deliver(testTenant, "old", note("late"), zero), supervisor.ErrFinished)
				require.NoError(t, deliver(testTenant, "old", note("w"), zero), "a known id")
			})
		})
	}
}

// TestNoDeadlocks lets producers deliver to many instances per transaction, in
// any order, while workers claim and commit them and somebody cancels.
func TestNoDeadlocks(t *testing.T) {
	q := newQueue(t, Options{})
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(repeats(4, 20))*time.Second)
	defer cancel()
	const instances = 200
	for n := range instances {
		start(t, q, strconv.Itoa(n))
	}
	var delivered, consumed sync.Map
	var deliveries atomic.Int64
	fail := func(what string, err error) {
		// Whoever is cut off by the end of the test is no case.
		if err != nil && ctx.Err() == nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	var workers, producers sync.WaitGroup
	stop := make(chan struct{})
	for range 8 {
		workers.Go(func() {
			for {
				items, err := q.ClaimDue(context.Background(), request(10))
				if err != nil {
					t.Errorf("claim: %v", err)
					return
				}
				if len(items) == 0 {
					select {
					case <-stop:
						return
					case <-time.After(5 * time.Millisecond):
					}
				}
				for n := range items {
					item := &items[n]
					c := command(t, item, later1h)
					for _, w := range item.Wakeups {
						c.ConsumedWakeups = append(c.ConsumedWakeups, w.ID)
					}
					err := q.CommitCommand(context.Background(), item, &c)
					if errors.Is(err, supervisor.ErrEpochStale) {
						_ = q.Release(context.Background(), item, "cancelled")
						continue
					}
					if err != nil {
						t.Errorf("commit: %v", err)
						continue
					}
					for _, w := range item.Wakeups {
						if _, twice := consumed.LoadOrStore(item.ID+"/"+w.ID, true); twice {
							t.Errorf("wakeup %s of %s was consumed twice", w.ID, item.ID)
						}
					}
				}
			}
		})
	}
	for producer := range 4 {
		producers.Go(func() {
			random := rand.New(rand.NewPCG(uint64(producer), 1))
			for ctx.Err() == nil {
				var sent []string
				err := pgx.BeginFunc(ctx, q.pool, func(tx pgx.Tx) error {
					for _, n := range random.Perm(instances)[:20] {
						id := strconv.FormatInt(deliveries.Add(1), 10)
						if err := q.DeliverTx(ctx, tx, testTenant, strconv.Itoa(n), note(id), zero); err != nil {
							return err
						}
						sent = append(sent, strconv.Itoa(n)+"/"+id)
					}
					return nil
				})
				fail("deliver many", err)
				if err == nil {
					for _, id := range sent {
						delivered.Store(id, true)
					}
				}
				id := strconv.FormatInt(deliveries.Add(1), 10)
				to := strconv.Itoa(random.IntN(instances))
				err = q.Deliver(ctx, testTenant, to, note(id), zero)
				fail("deliver", err)
				if err == nil {
					delivered.Store(to+"/"+id, true)
				}
			}
		})
	}
	producers.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			fail("cancel", q.Cancel(ctx, testTenant, strconv.Itoa(n%instances)))
			time.Sleep(10 * time.Millisecond)
		}
	})
	producers.Wait()
	require.Eventually(t, func() bool {
		return number(t, q, "SELECT count(*) FROM {{schema}}.wakeup WHERE consumed_at IS NULL") == 0
	}, time.Minute, 50*time.Millisecond)
	close(stop)
	workers.Wait()
	count := 0
	delivered.Range(func(id, _ any) bool {
		count++
		_, found := consumed.Load(id)
		require.True(t, found, "%s was never consumed", id)
		return true
	})
	t.Logf("%d wakeups", count)
	require.Positive(t, count)
}

func TestClaimHoldsABoundedNumberOfWakeups(t *testing.T) {
	q := newQueue(t, Options{})
	start(t, q, "a")
	item := claimOne(t, q)
	require.NoError(t, commit(t, q, &item, later1h))
	execute(t, q, `
		INSERT INTO {{schema}}.wakeup (instance_no, id, due_at, counted, kind, branch_id, digest, payload)
		SELECT instance_no, CASE WHEN n > 1200 THEN 'urgent-' ELSE 'note-' END || n, clock_timestamp() - interval '1 h' + n * interval '1 s',
			true, CASE WHEN n > 1200 THEN 'action' ELSE 'note' END, '', 'digest', '"payload"'
		FROM {{schema}}.run, generate_series(1, 1210) n`)
	execute(t, q, "UPDATE {{schema}}.run SET pending = 1210, due_at = clock_timestamp()")
	execute(t, q, "UPDATE {{schema}}.lane_due SET due_at = clock_timestamp() - interval '1 s'")
	item = claimOne(t, q)
	require.Len(t, item.Wakeups, supervisor.MaxClaimWakeups)
	require.Equal(t, "note-1", item.Wakeups[0].ID)
	require.Equal(t, "urgent-1201", item.Wakeups[990].ID)
	require.Equal(t, "urgent-1210", item.Wakeups[999].ID)
	c := command(t, &item, later1h)
	for _, w := range item.Wakeups {
		c.ConsumedWakeups = append(c.ConsumedWakeups, w.ID)
	}
	require.NoError(t, q.CommitCommand(context.Background(), &item, &c))
	item = claimOne(t, q) // those left over pull the due time
	require.Len(t, item.Wakeups, 210)
	require.Equal(t, "note-991", item.Wakeups[0].ID)
}

func TestJSONComesBackAsItWas(t *testing.T) {
	q := newQueue(t, Options{})
	ctx := context.Background()
	for n, text := range []string{
		`{"id":9007199254740993,"neg":-9223372036854775808,"u":18446744073709551615,"f":0.1,"l":[1152921504606846977]}`,
		`{"b":1,"a":1.0,"a":1e2,"c":1E+400,"z":0.10}`,
		` [ 1 , "\u00e9\/<>&\ud83d\ude00 é" ] `,
		`""`, `null`, `0`,
	} {
		i := instance(t, strconv.Itoa(n))
		i.Config = rawJSON(text)
		_, err := q.Start(ctx, i, zero)
		require.NoError(t, err)
		require.NoError(t, q.Deliver(ctx, testTenant, i.ID, supervisor.Wakeup{ID: "w", Kind: "k", Payload: rawJSON(text)}, zero))
		item := claimOne(t, q)
		require.Equal(t, text, string(item.Config))
		require.Equal(t, text, string(item.State))
		require.Equal(t, text, string(item.Wakeups[0].Payload))
		c, err := supervisor.NewCommand(&item, "stepped", rawJSON(text), rawJSON(text), again)
		require.NoError(t, err)
		c.ActionIntents = []supervisor.ActionIntent{{
			ID: "intent", TenantID: testTenant, InstanceID: i.ID, RunID: i.RunID, Capability: i.CapabilityPins[0], IdempotencyKey: "key",
			State: supervisor.ActionPrepared, Input: rawJSON(text), Effect: supervisor.EffectRead,
			RetryClass: supervisor.IdempotencyNative, ControlEpochs: item.ControlEpochs, LeaseEpoch: item.LeaseVersion,
		}}
		require.NoError(t, q.CommitCommand(ctx, &item, &c))
		require.Equal(t, text, string(get(t, q, i.ID).State))
		require.Equal(t, text, string(history(t, q, i.ID)[0].Payload))
		var input string
		require.NoError(t, q.pool.QueryRow(ctx, q.store.text("SELECT input FROM {{schema}}.intent ORDER BY arrival DESC LIMIT 1")).Scan(&input))
		require.Equal(t, text, input)
		item = claimOne(t, q)
		require.Equal(t, text, string(item.State))
		require.NoError(t, commit(t, q, &item, complete))
	}
}
