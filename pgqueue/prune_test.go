package pgqueue

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/workflow-supervisor/supervisor"
)

// prune removes all that may be removed.
func prune(t *testing.T, q *Queue) int {
	t.Helper()
	removed, err := q.Prune(context.Background(), time.Now().Add(time.Hour))
	require.NoError(t, err)
	return removed
}

// countDeletes records how many rows of some tables each statement removes.
func countDeletes(t *testing.T, q *Queue, tables ...string) {
	t.Helper()
	execute(t, q, `CREATE TABLE {{schema}}.gone (at xid8 DEFAULT pg_current_xact_id(), name text, rows bigint)`)
	for _, table := range tables {
		execute(t, q, fmt.Sprintf(`
			CREATE FUNCTION {{schema}}.gone_%[1]s() RETURNS trigger LANGUAGE plpgsql AS $$
			BEGIN
				EXECUTE format('INSERT INTO %%I.gone (name, rows) SELECT %%L, count(*) FROM old', TG_TABLE_SCHEMA, TG_TABLE_NAME);
				RETURN NULL;
			END $$`, table))
		execute(t, q, fmt.Sprintf(`
			CREATE TRIGGER gone AFTER DELETE ON {{schema}}.%[1]s REFERENCING OLD TABLE AS old
			FOR EACH STATEMENT EXECUTE FUNCTION {{schema}}.gone_%[1]s()`, table))
	}
}

// TestPruneRemovesInBoundedTransactions prunes many instances, one with a very
// long history and one with many deliveries.
func TestPruneRemovesInBoundedTransactions(t *testing.T) {
	q := newQueue(t, Options{})
	const instances = 2500
	fill(t, q, instances, 3, "clock_timestamp()")
	execute(t, q, `UPDATE {{schema}}.run SET status = 'completed', runnable = false, due_at = NULL, state_version = 2,
		finished_at = clock_timestamp() - interval '1 hour' WHERE instance_no <= $1`, instances-3)
	execute(t, q, `UPDATE {{schema}}.run SET state_version = 12000 WHERE instance_no IN (1, $1)`, instances)
	execute(t, q, `INSERT INTO {{schema}}.event (instance_no, state_version, lease_version, at, type, digest, delivery_key, delivery_digest)
		SELECT r.instance_no, v, v, clock_timestamp() - interval '1 hour', 'stepped', '', '', ''
		FROM {{schema}}.run r CROSS JOIN LATERAL generate_series(1, r.state_version) v`)
	execute(t, q, `INSERT INTO {{schema}}.wakeup (instance_no, id, due_at, counted, kind, branch_id, digest)
		SELECT 2, n, clock_timestamp(), true, 'note', '', '' FROM generate_series(1, 7000) n`)
	countDeletes(t, q, "event", "wakeup", "run")
	require.Equal(t, instances-3, prune(t, q))
	require.LessOrEqual(t, number(t, q, `SELECT max(rows) FROM {{schema}}.gone WHERE name = 'event'`), int64(pruneRows))
	require.LessOrEqual(t, number(t, q, `SELECT max(rows) FROM {{schema}}.gone WHERE name = 'run'`), int64(pruneBatch))
	require.EqualValues(t, 7000, number(t, q, `SELECT max(rows) FROM {{schema}}.gone WHERE name = 'wakeup'`), "one instance is removed as a whole")
	require.LessOrEqual(t, number(t, q, `SELECT max(rows) FROM (
		SELECT sum(rows) AS rows FROM {{schema}}.gone WHERE name <> 'wakeup' GROUP BY at) t`), int64(pruneBatch+pruneRows))
	require.EqualValues(t, 3, number(t, q, `SELECT count(*) FROM {{schema}}.run`))
	require.EqualValues(t, 3, number(t, q, `SELECT count(*) FROM {{schema}}.instance`))
	require.EqualValues(t, 1, number(t, q, `SELECT count(*) FROM {{schema}}.event`), "the latest of the one that has any")
	require.Zero(t, number(t, q, `SELECT count(*) FROM {{schema}}.wakeup`))
	require.Zero(t, prune(t, q))
}

// TestPruneKeepsWhatMustStay keeps what is not finished, what finished later,
// and what somebody holds.
func TestPruneKeepsWhatMustStay(t *testing.T) {
	q := newQueue(t, Options{})
	ctx := context.Background()
	for _, id := range []string{"done", "active", "retried"} {
		start(t, q, id)
		deliver(t, q, id, "w")
	}
	items := claim(t, q, 3)
	for n := range items {
		switch items[n].ID {
		case "done":
			c := command(t, &items[n], complete)
			require.NoError(t, q.CommitCommand(ctx, &items[n], &c))
		case "active":
			require.NoError(t, commit(t, q, &items[n], later1h))
		case "retried":
			c := supervisor.FailureCommand(&items[n], "for good", zero)
			require.NoError(t, q.CommitCommand(ctx, &items[n], &c))
		}
	}
	removed, err := q.Prune(ctx, time.Now().Add(-time.Hour))
	require.NoError(t, err)
	require.Zero(t, removed, "it finished later")

	// One that somebody has locked is left for the next time.
	tx, err := q.pool.Begin(ctx)
	require.NoError(t, err)
	_, err = tx.Exec(ctx, q.store.text(`SELECT FROM {{schema}}.run r JOIN {{schema}}.instance i USING (instance_no) WHERE i.id = 'retried' FOR UPDATE OF r`))
	require.NoError(t, err)
	require.Equal(t, 1, prune(t, q))
	require.NoError(t, tx.Rollback(ctx))
	require.NoError(t, q.Retry(ctx, testTenant, "retried"))
	require.Zero(t, prune(t, q))
	item := claimOne(t, q)
	require.Equal(t, "retried", item.ID)
	require.Len(t, item.Wakeups, 1)
	require.Equal(t, 1, get(t, q, "active").PendingWakeups)
	require.Len(t, history(t, q, "active"), 1)
}

// TestDeliveryToWhatIsPrunedMeanwhile leaves nothing of a delivery whose
// transaction commits after its instance was removed, and nothing that claims
// would trip over for ever.
func TestDeliveryToWhatIsPrunedMeanwhile(t *testing.T) {
	q := newQueue(t, Options{})
	ctx := context.Background()
	start(t, q, "a")
	item := claimOne(t, q)
	c := supervisor.FailureCommand(&item, "for good", zero)
	require.NoError(t, q.CommitCommand(ctx, &item, &c))
	tx, err := q.pool.Begin(ctx)
	require.NoError(t, err)
	require.NoError(t, q.DeliverTx(ctx, tx, testTenant, "a", note("w"), zero))
	require.Equal(t, 1, prune(t, q))
	require.NoError(t, tx.Commit(ctx))
	start(t, q, "b")
	require.Equal(t, []string{"b"}, ids(claim(t, q, 2)))
	require.Zero(t, number(t, q, `SELECT count(*) FROM {{schema}}.wakeup`))
	start(t, q, "a")
	item = claimOne(t, q)
	require.Empty(t, item.Wakeups, "the new one has nothing of the old one")
}

// TestSteadyState runs instances through the queue, round after round, with
// Prune and the cleaning up that autovacuum does in a living database: tables and
// indexes do not grow with what has passed through.
func TestSteadyState(t *testing.T) {
	q := newQueue(t, Options{})
	ctx := context.Background()
	const size = `SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c
		WHERE c.oid IN (
			'{{schema}}.run'::regclass, '{{schema}}.instance'::regclass, '{{schema}}.event'::regclass, '{{schema}}.wakeup'::regclass,
			'{{schema}}.lane_due'::regclass, '{{schema}}.tenant'::regclass, '{{schema}}.lane'::regclass)`
	rounds := repeats(6, 60)
	var after2 int64
	for round := range rounds {
		for n := range 300 {
			i := instance(t, fmt.Sprintf("%d of %d", n, round))
			i.TenantID = fmt.Sprint("tenant ", n%5)
			_, err := q.Start(ctx, i, zero)
			require.NoError(t, err)
		}
		for {
			items := claim(t, q, 100)
			if len(items) == 0 {
				break
			}
			errs := make(chan error, len(items))
			for n := range items {
				d := again
				if items[n].StateVersion == 4 {
					d = complete
				}
				c := command(t, &items[n], d)
				go func() { errs <- q.CommitCommand(ctx, &items[n], &c) }()
			}
			for range items {
				require.NoError(t, <-errs)
			}
		}
		require.Equal(t, 300, prune(t, q))
		for _, table := range []string{"run", "instance", "event", "wakeup", "lane_due", "tenant", "lane"} {
			execute(t, q, "VACUUM {{schema}}."+table)
		}
		if round == 1 {
			after2 = number(t, q, size)
		}
	}
	require.Zero(t, number(t, q, "SELECT count(*) FROM {{schema}}.event"))
	require.LessOrEqual(t, number(t, q, "SELECT count(*) FROM {{schema}}.lane_due"), int64(5))
	require.Less(t, number(t, q, size), 3*after2/2)
}
