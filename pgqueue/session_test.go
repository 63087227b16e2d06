package pgqueue

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/workflow-supervisor/supervisor"
)

// forgetful makes a pool forget everything about a session between calls, as a
// pooler in transaction mode does.
func forgetful(config *pgxpool.Config) {
	config.AfterRelease = func(conn *pgx.Conn) bool {
		_, err := conn.PgConn().Exec(context.Background(), "DISCARD ALL").ReadAll()
		return err == nil
	}
}

// TestSessionsThatForget works over connections that lose prepared statements,
// settings, locks and listeners after every call.
func TestSessionsThatForget(t *testing.T) {
	dsn := testDSN(t)
	q := open(t, dsn, newSchema(t, dsn), Options{DisableListen: true}, forgetful)
	exerciseSessions(t, q)
	require.True(t, q.store.unnamed.Load(), "prepared statements were given up")
}

// TestPgBouncer works behind a real pooler in transaction mode.
func TestPgBouncer(t *testing.T) {
	exerciseSessions(t, open(t, startPgBouncer(t), newSchema(t, testDSN(t)), Options{DisableListen: true}))
}

// startPgBouncer starts a pooler in transaction mode before the server of the tests
// and returns its address.
func startPgBouncer(t *testing.T) (dsn string) {
	t.Helper()
	bouncer, err := exec.LookPath("pgbouncer")
	if err != nil {
		// Not everybody's path has the folder that it is installed to.
		if bouncer, err = exec.LookPath("/usr/sbin/pgbouncer"); err != nil {
			t.Skip("pgbouncer is not installed")
		}
	}
	config, err := pgx.ParseConfig(testDSN(t))
	require.NoError(t, err)
	folder := t.TempDir()
	require.NoError(t, os.Chmod(folder, 0o755))
	port, err := freePort()
	require.NoError(t, err)
	users, settings := filepath.Join(folder, "users"), filepath.Join(folder, "pgbouncer.ini")
	require.NoError(t, os.WriteFile(users, fmt.Appendf(nil, "%q %q\n", config.User, config.Password), 0o644))
	require.NoError(t, os.WriteFile(settings, fmt.Appendf(nil, `[databases]
* = host=%s port=%d
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = trust
auth_file = %s
pool_mode = transaction
default_pool_size = 4
`, config.Host, config.Port, port, users), 0o644))
	arguments := []string{settings}
	if os.Getuid() == 0 {
		arguments = []string{"-u", "postgres", settings}
	}
	process := exec.Command(bouncer, arguments...)
	require.NoError(t, process.Start())
	t.Cleanup(func() {
		_ = process.Process.Kill()
		_ = process.Wait()
	})
	dsn = fmt.Sprintf("postgres://%s@127.0.0.1:%d/%s?sslmode=disable", config.User, port, config.Database)
	require.Eventually(t, func() bool {
		conn, err := pgx.Connect(context.Background(), dsn+"&default_query_exec_mode=exec")
		if err != nil {
			return false
		}
		return conn.Close(context.Background()) == nil
	}, 20*time.Second, 50*time.Millisecond)
	return dsn
}

// exerciseSessions runs many cycles of claim, renewal and commit, with work
// that takes longer than the lease, and no error of any of them.
func exerciseSessions(t *testing.T, q *Queue) {
	ctx := context.Background()
	cycles := repeats(60, 300)
	for n := range cycles {
		start(t, q, strconv.Itoa(n))
	}
	var starts atomic.Int64
	var group sync.WaitGroup
	for worker := range 4 {
		group.Go(func() {
			req := request(1)
			req.WorkerID, req.LeaseDuration = strconv.Itoa(worker), 2*time.Second
			for cycle := 0; ; cycle++ {
				items, err := q.ClaimDue(ctx, req)
				if err != nil {
					t.Errorf("claim: %v", err)
					return
				}
				if len(items) == 0 {
					return
				}
				starts.Add(1)
				item := &items[0]
				lease := supervisor.Lease{
					TenantID: item.TenantID, InstanceID: item.ID, WorkerID: req.WorkerID, Version: item.LeaseVersion, Duration: req.LeaseDuration,
				}
				renewals := 1
				if cycle == 0 {
					renewals = 5
				}
				for range renewals {
					if renewals > 1 {
						time.Sleep(600 * time.Millisecond)
					}
					if err := q.Renew(ctx, lease); err != nil {
						t.Errorf("renew: %v", err)
					}
				}
				if err := commit(t, q, item, complete); err != nil {
					t.Errorf("commit: %v", err)
				}
			}
		})
	}
	group.Wait()
	require.EqualValues(t, cycles, starts.Load(), "nothing was claimed twice")
	start(t, q, "late")
	item := claimOne(t, q)
	require.Equal(t, "late", item.ID, "found by the next claim without any notification")
	require.NoError(t, q.Deliver(ctx, testTenant, "late", note("w"), zero))
	require.NoError(t, q.Pause(ctx, supervisor.Scope{TenantID: testTenant}))
	require.NoError(t, q.Resume(ctx, supervisor.Scope{TenantID: testTenant}))
	require.NoError(t, q.Cancel(ctx, testTenant, "late"))
	ctx, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, q.WaitDue(ctx, []string{"other"}), context.DeadlineExceeded)
}

// TestSessionSettingsDoNotMatter works with settings that change how instants
// are written, and an isolation level that makes transactions fail.
func TestSessionSettingsDoNotMatter(t *testing.T) {
	dsn := testDSN(t)
	for _, settings := range []map[string]string{
		{"timezone": "Asia/Kolkata", "datestyle": "German"},
		{"timezone": "America/St_Johns", "datestyle": "SQL, DMY", "intervalstyle": "sql_standard"},
		{"timezone": "Pacific/Kiritimati", "synchronous_commit": "off"},
		{"default_transaction_isolation": "serializable"},
		{"default_transaction_isolation": "repeatable read", "standard_conforming_strings": "on"},
	} {
		t.Run(fmt.Sprint(settings), func(t *testing.T) {
			q := open(t, dsn, newSchema(t, dsn), Options{}, func(config *pgxpool.Config) {
				maps.Copy(config.ConnConfig.RuntimeParams, settings)
			})
			ctx := context.Background()
			at := time.Date(2101, time.March, 4, 5, 6, 7, 891_234_000, time.UTC)
			i := instance(t, "later")
			i.Lifecycle = supervisor.LifecyclePolicy{ExpiresAt: at.Add(time.Hour)}
			_, err := q.Start(ctx, i, at)
			require.NoError(t, err)
			require.Equal(t, at, get(t, q, "later").NextDueAt)
			require.Equal(t, at.Add(time.Hour), get(t, q, "later").Lifecycle.ExpiresAt)
			early := time.Date(1, time.January, 2, 3, 4, 5, 0, time.UTC)
			_, err = q.Start(ctx, instance(t, "early"), early)
			require.NoError(t, err)
			item := claimOne(t, q)
			require.Equal(t, early, item.ScheduledAt)
			require.InDelta(t, 0, time.Since(item.ClaimedAt).Minutes(), 1)
			c := command(t, &item, supervisor.Reschedule{At: at})
			require.NoError(t, q.CommitCommand(ctx, &item, &c))
			require.Equal(t, at, get(t, q, "early").NextDueAt)
			require.NoError(t, q.Deliver(ctx, testTenant, "early", note("w"), at.Add(-time.Hour)))
			require.Equal(t, at.Add(-time.Hour), get(t, q, "early").NextDueAt)
			tx, err := q.pool.Begin(ctx)
			require.NoError(t, err)
			require.NoError(t, q.DeliverTx(ctx, tx, testTenant, "early", note("v"), at.Add(-2*time.Hour)))
			require.NoError(t, tx.Commit(ctx))
			require.Empty(t, claim(t, q, 1))
			require.Equal(t, at.Add(-2*time.Hour), get(t, q, "early").NextDueAt)
		})
	}
}
