package sqlitequeue

import (
	"database/sql"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/workflow-supervisor/supervisor"
)

// begin begins a transaction of the caller's own, with a table beside the queue's.
func begin(t *testing.T, q *Queue) *sql.Tx {
	t.Helper()
	_, err := q.DB().ExecContext(t.Context(), `CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY)`)
	require.NoError(t, err)
	tx, err := q.DB().BeginTx(t.Context(), nil)
	require.NoError(t, err)
	return tx
}

func TestStartTxWithTheCallersRows(t *testing.T) {
	q := open(t, Options{PollInterval: 10 * time.Millisecond})
	tx := begin(t, q)
	_, err := tx.ExecContext(t.Context(), `INSERT INTO orders VALUES ('rolled back')`)
	require.NoError(t, err)
	started, err := q.StartTx(t.Context(), tx, testInstance(t, "rolled back"), time.Time{})
	require.NoError(t, err)
	require.True(t, started)
	require.NoError(t, tx.Rollback())
	_, err = q.Get(t.Context(), supervisor.DefaultTenantID, "rolled back")
	require.ErrorIs(t, err, supervisor.ErrNotFound)
	require.Empty(t, claimAll(t, q, 1))

	tx = begin(t, q)
	_, err = tx.ExecContext(t.Context(), `INSERT INTO orders VALUES ('a')`)
	require.NoError(t, err)
	for _, first := range []bool{true, false} {
		started, err = q.StartTx(t.Context(), tx, testInstance(t, "a"), time.Time{})
		require.NoError(t, err)
		require.Equal(t, first, started)
	}
	require.NoError(t, tx.Commit())
	require.NoError(t, q.WaitDue(t.Context(), []string{"spec"}))
	items := claimAll(t, q, 2)
	require.Len(t, items, 1)

	// A delivery reaches an instance that this process holds and remembers.
	tx = begin(t, q)
	wakeup := supervisor.Wakeup{ID: "w", Kind: "note"}
	require.NoError(t, q.DeliverTx(t.Context(), tx, items[0].TenantID, "a", wakeup, time.Time{}))
	require.NoError(t, q.DeliverTx(t.Context(), tx, items[0].TenantID, "a", wakeup, time.Time{}))
	require.ErrorIs(t, q.DeliverTx(t.Context(), tx, items[0].TenantID, "b", wakeup, time.Time{}), supervisor.ErrNotFound)
	require.NoError(t, tx.Commit())
	require.NoError(t, q.CommitCommand(t.Context(), &items[0], step(t, &items[0], `1`, supervisor.Continue{Delay: time.Hour})))
	again := claimAll(t, q, 2)
	require.Len(t, again, 1)
	require.Equal(t, []supervisor.Wakeup{wakeup}, again[0].Wakeups)
}

func TestStartTxRefusals(t *testing.T) {
	q := open(t, Options{})
	tx := begin(t, q)
	_, err := q.StartTx(t.Context(), tx, supervisor.Instance{}, time.Time{})
	require.ErrorContains(t, err, "SpecID")
	_, err = q.StartTx(t.Context(), tx, testInstance(t, "a"), time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC))
	require.ErrorContains(t, err, "dueAt")
	require.Error(t, q.DeliverTx(t.Context(), tx, "t", "a", supervisor.Wakeup{}, time.Time{}))
	require.NoError(t, tx.Rollback())
	_, err = q.StartTx(t.Context(), tx, testInstance(t, "a"), time.Time{})
	require.ErrorIs(t, err, supervisor.ErrUnavailable)
	require.ErrorIs(t, err, sql.ErrTxDone)
}

// A transaction that has read and was overtaken cannot write any more: it is
// told so, and the caller begins again.
func TestStartTxInOvertakenTransaction(t *testing.T) {
	q := openStore(t, &faultyStore{path: filepath.Join(t.TempDir(), "queue.db"), deferred: true}, Options{})
	startDue(t, q, "a")
	tx, err := q.DB().BeginTx(t.Context(), nil)
	require.NoError(t, err)
	var count int
	require.NoError(t, tx.QueryRowContext(t.Context(), `SELECT count(*) FROM supervisor_instances`).Scan(&count))
	startDue(t, q, "b")
	_, err = q.StartTx(t.Context(), tx, testInstance(t, "c"), time.Time{})
	require.ErrorIs(t, err, supervisor.ErrUnavailable)
	require.NoError(t, tx.Rollback())
}

func TestWriterWaitsForTheCallersTransaction(t *testing.T) {
	q := open(t, Options{})
	tx := begin(t, q)
	_, err := q.StartTx(t.Context(), tx, testInstance(t, "a"), time.Time{})
	require.NoError(t, err)
	second := testInstance(t, "b")
	done := make(chan error, 1)
	go func() { // ends with the queue's answer, which is waited for below
		_, err := q.Start(t.Context(), second, time.Time{})
		done <- err
	}()
	queued(t, q, 1)
	require.NoError(t, tx.Commit())
	require.NoError(t, <-done)
	require.Len(t, claimAll(t, q, 3), 2)
}
