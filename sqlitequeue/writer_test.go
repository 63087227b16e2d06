package sqlitequeue

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/workflow-supervisor/supervisor"
)

// hold keeps the file locked for writing, as another process would, until the
// returned function is called.
func hold(t *testing.T, q *Queue) (release func()) {
	t.Helper()
	conn, err := q.DB().Conn(t.Context())
	require.NoError(t, err)
	_, err = conn.ExecContext(t.Context(), `BEGIN IMMEDIATE`)
	require.NoError(t, err)
	return func() {
		_, err := conn.ExecContext(context.WithoutCancel(t.Context()), `ROLLBACK`)
		require.NoError(t, err)
		require.NoError(t, conn.Close())
	}
}

func claimAll(t *testing.T, q *Queue, limit int) []supervisor.WorkItem {
	t.Helper()
	items, err := q.ClaimDue(t.Context(), supervisor.ClaimRequest{WorkerID: "worker", LeaseDuration: time.Minute, Limit: limit})
	require.NoError(t, err)
	return items
}

func step(t testing.TB, item *supervisor.WorkItem, state string, d supervisor.Disposition) *supervisor.TransitionCommand {
	t.Helper()
	command, err := supervisor.NewCommand(item, "stepped", nil, json.RawMessage(state), d)
	require.NoError(t, err)
	return &command
}

// queued waits until the writer has a number of operations before it.
func queued(t *testing.T, q *Queue, count int) {
	t.Helper()
	require.Eventually(t, func() bool { return q.writer.queued() == count }, 10*time.Second, time.Millisecond)
}

// Calls that queue up share a transaction, and one that is refused takes none
// of the others along.
func TestCommitsShareATransaction(t *testing.T) {
	q, store := openFaulty(t, filepath.Join(t.TempDir(), "queue.db"))
	const count = 20
	for n := range count {
		startDue(t, q, fmt.Sprintf("i%02d", n))
	}
	items := claimAll(t, q, count)
	require.Len(t, items, count)
	release := hold(t, q)
	failures := make([]error, count)
	var callers sync.WaitGroup
	for n := range items {
		callers.Go(func() {
			item := items[n]
			switch n % 4 {
			case 1:
				item.LeaseVersion--
			case 2:
				failures[n] = q.Renew(t.Context(), supervisor.Lease{
					TenantID: item.TenantID, InstanceID: item.ID, WorkerID: "worker", Version: item.LeaseVersion, Duration: time.Minute,
				})
				return
			case 3:
				item.StateVersion++
			}
			failures[n] = q.CommitCommand(t.Context(), &item, step(t, &item, `1`, supervisor.Complete{}))
		})
	}
	queued(t, q, count)
	before := store.committed()
	release()
	callers.Wait()
	require.Equal(t, 1, store.committed()-before, "transactions")
	for n, err := range failures {
		switch n % 4 {
		case 0, 2:
			require.NoError(t, err)
		case 1:
			require.ErrorIs(t, err, supervisor.ErrLeaseLost)
		case 3:
			require.ErrorIs(t, err, supervisor.ErrStateConflict)
		}
		snapshot, err := q.Get(t.Context(), items[n].TenantID, items[n].ID)
		require.NoError(t, err)
		require.Equal(t, n%4 == 0, snapshot.Status == supervisor.StatusCompleted)
	}
}

// An operation at which the database fails fails alone, whichever of its writes
// it is.
func TestFailedWriteFailsAlone(t *testing.T) {
	for write := 1; ; write++ {
		q, store := openFaulty(t, filepath.Join(t.TempDir(), "queue.db"))
		const count = 5
		for n := range count {
			startDue(t, q, fmt.Sprint("i", n))
		}
		items := claimAll(t, q, count)
		release := hold(t, q)
		failures := make([]error, count)
		var callers sync.WaitGroup
		for n := range items {
			callers.Go(func() {
				failures[n] = q.CommitCommand(t.Context(), &items[n], step(t, &items[n], `"done"`, supervisor.Continue{Delay: time.Hour}))
			})
		}
		queued(t, q, count)
		disarm := store.failWrite(write)
		release()
		callers.Wait()
		reached := disarm()
		for n := range items {
			snapshot, err := q.Get(t.Context(), items[n].TenantID, items[n].ID)
			require.NoError(t, err)
			if failures[n] != nil {
				// Only a failed COMMIT concerns all, and then nobody knows.
				require.ErrorIs(t, failures[n], supervisor.ErrCommitUnknown)
				require.ErrorIs(t, failures[n], errDiskFull)
				require.Zero(t, snapshot.StateVersion)
				require.NoError(t, q.CommitCommand(t.Context(), &items[n], step(t, &items[n], `"done"`, supervisor.Continue{Delay: time.Hour})))
				continue
			}
			require.Equal(t, int64(1), snapshot.StateVersion)
			require.JSONEq(t, `"done"`, string(snapshot.State))
		}
		if !reached {
			require.Greater(t, write, 2*count)
			return
		}
	}
}

func TestFailedWriteOfOne(t *testing.T) {
	q, store := openFaulty(t, filepath.Join(t.TempDir(), "queue.db"))
	startDue(t, q, "a")
	item := claimAll(t, q, 1)[0]
	disarm := store.failWrite(2)
	err := q.CommitCommand(t.Context(), &item, step(t, &item, `1`, supervisor.Complete{}))
	require.True(t, disarm())
	require.ErrorIs(t, err, supervisor.ErrUnavailable)
	require.ErrorIs(t, err, errDiskFull)
	require.NoError(t, q.CommitCommand(t.Context(), &item, step(t, &item, `1`, supervisor.Complete{})))
}

// A lock that somebody else holds is waited for, not reported; where the
// context ends meanwhile nothing is changed.
func TestLockedFileIsWaitedFor(t *testing.T) {
	q := open(t, Options{})
	release := hold(t, q)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := q.Start(ctx, testInstance(t, "a"), time.Time{})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NotErrorIs(t, err, supervisor.ErrFinished)

	stop := errors.New("stop")
	cancelled, cancelNow := context.WithCancelCause(t.Context())
	cancelNow(stop)
	_, err = q.Start(cancelled, testInstance(t, "a"), time.Time{})
	require.ErrorIs(t, err, stop)

	started := make(chan error, 1)
	var caller sync.WaitGroup
	caller.Go(func() {
		_, err := q.Start(t.Context(), testInstance(t, "b"), time.Time{})
		started <- err
	})
	select {
	case err := <-started:
		t.Fatalf("started in a locked file: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	release()
	caller.Wait()
	require.NoError(t, <-started)
	_, err = q.Get(t.Context(), supervisor.DefaultTenantID, "a")
	require.ErrorIs(t, err, supervisor.ErrNotFound)
}

func TestCloseFinishesWhatIsUnderWay(t *testing.T) {
	before := runtime.NumGoroutine()
	path := filepath.Join(t.TempDir(), "queue.db")
	db := (&faultyStore{path: path}).pool()
	q, err := Open(t.Context(), "", Options{DB: db, IsBusy: testIsBusy})
	require.NoError(t, err)
	release := hold(t, q)
	var callers sync.WaitGroup
	failures := make([]error, 10)
	for n := range failures {
		callers.Go(func() {
			_, failures[n] = q.Start(t.Context(), testInstance(t, fmt.Sprint("i", n)), time.Time{})
		})
	}
	callers.Go(func() {
		require.ErrorIs(t, q.WaitDue(t.Context(), nil), ErrClosed)
	})
	queued(t, q, len(failures))
	closed := make(chan error, 1)
	callers.Go(func() { closed <- q.Close() })
	release()
	callers.Wait()
	require.NoError(t, <-closed)
	require.NoError(t, errors.Join(failures...))
	require.NoError(t, q.Close())

	_, err = q.Start(t.Context(), testInstance(t, "late"), time.Time{})
	require.ErrorIs(t, err, ErrClosed)
	require.ErrorIs(t, err, supervisor.ErrUnavailable)
	_, err = q.Get(t.Context(), supervisor.DefaultTenantID, "i0")
	require.ErrorIs(t, err, ErrClosed)
	require.ErrorIs(t, q.WaitDue(t.Context(), nil), ErrClosed)
	require.ErrorIs(t, q.Migrate(t.Context()), ErrClosed)
	require.NoError(t, db.Close())
	require.Eventually(t, func() bool { return runtime.NumGoroutine() <= before+2 }, 10*time.Second, 10*time.Millisecond)

	again := openFile(t, path, Options{})
	for n := range failures {
		_, err := again.Get(t.Context(), supervisor.DefaultTenantID, fmt.Sprint("i", n))
		require.NoError(t, err)
	}
}

// A connection that fails to roll back is replaced.
func TestBrokenConnectionIsReplaced(t *testing.T) {
	q, store := openFaulty(t, filepath.Join(t.TempDir(), "queue.db"))
	startDue(t, q, "a")
	disarm := store.failWrite(1)
	store.sticky = true
	_, err := q.Start(t.Context(), testInstance(t, "b"), time.Time{})
	require.ErrorIs(t, err, supervisor.ErrUnavailable)
	_, err = q.Start(t.Context(), testInstance(t, "b"), time.Time{})
	require.ErrorIs(t, err, supervisor.ErrUnavailable)
	store.sticky = false
	require.True(t, disarm())
	startDue(t, q, "b")
	require.Len(t, claimAll(t, q, 3), 2)
}

// What the cache remembers of rows is not trusted once others have written.
func TestSecondQueueChangesWhatTheFirstRemembers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "queue.db")
	first, second := openFile(t, path, Options{}), openFile(t, path, Options{})
	startDue(t, first, "a")
	item := claimAll(t, first, 1)[0]
	note := supervisor.Wakeup{ID: "w", Kind: "note"}
	require.NoError(t, second.Deliver(t.Context(), item.TenantID, item.ID, note, time.Time{}))
	next, err := first.CommitAndKeep(t.Context(), &item, step(t, &item, `1`, supervisor.Continue{Delay: time.Hour}), time.Minute)
	require.NoError(t, err)
	require.NotNil(t, next, "the delivery pulls the due time")
	require.Equal(t, []supervisor.Wakeup{note}, next.Wakeups)

	require.NoError(t, second.Pause(t.Context(), supervisor.Scope{TenantID: item.TenantID}))
	err = first.CommitCommand(t.Context(), next, step(t, next, `2`, supervisor.Continue{}))
	require.ErrorIs(t, err, supervisor.ErrEpochStale)
	require.NoError(t, second.Resume(t.Context(), supervisor.Scope{TenantID: item.TenantID}))
	require.NoError(t, second.Release(t.Context(), next, "handed back"))
	err = first.CommitCommand(t.Context(), next, step(t, next, `2`, supervisor.Continue{}))
	require.ErrorIs(t, err, supervisor.ErrLeaseLost)
	again := claimAll(t, second, 1)
	require.Len(t, again, 1)
	require.JSONEq(t, `1`, string(again[0].State))
}

// The cache is bounded.
func TestCacheIsBounded(t *testing.T) {
	q := open(t, Options{})
	tx := &transaction{cache: make(map[instanceID]*entry)}
	for n := range maxCache + 100 {
		instance := testInstance(t, fmt.Sprint("i", n))
		tx.remember(&entry{instance: &instance})
	}
	require.Len(t, tx.cache, maxCache)
	large := testInstance(t, "large")
	large.Config = make(json.RawMessage, maxCachedConfig+1)
	tx.remember(&entry{instance: &large})
	require.NotContains(t, tx.cache, instanceID{large.TenantID, large.ID})

	startDue(t, q, "a")
	item := claimAll(t, q, 1)[0]
	require.NoError(t, q.CommitCommand(t.Context(), &item, step(t, &item, `1`, supervisor.Complete{})))
	require.Empty(t, q.writer.tx.cache, "what is no longer held is forgotten")
}
