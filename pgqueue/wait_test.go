package pgqueue

import (
	"context"
	"net"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/workflow-supervisor/supervisor"
)

// soon is well below idleLook, so that what came within it was told and not
// found by looking.
const soon = 15 * time.Second

// waitFor starts to wait for instances of a spec, of which none is due, and
// returns what ends it.
func waitFor(t *testing.T, q *Queue, specID string) (woken func() error) {
	t.Helper()
	require.Empty(t, claimSpec(t, q, specID))
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	t.Cleanup(cancel)
	result := make(chan error, 1)
	go func() { result <- q.WaitDue(ctx, []string{specID}) }()
	require.Eventually(t, func() bool {
		q.waits.mu.Lock()
		defer q.waits.mu.Unlock()
		return len(q.waits.waiting) > 0
	}, soon, time.Millisecond)
	return func() error { return <-result }
}

// claimSpec claims all that is due of a spec.
func claimSpec(t *testing.T, q *Queue, specID string) []supervisor.WorkItem {
	t.Helper()
	req := request(10)
	req.SpecIDs = []string{specID}
	items, err := q.ClaimDue(context.Background(), req)
	require.NoError(t, err)
	return items
}

// listens waits until a queue that was waited on listens, or no longer does.
func listens(t *testing.T, q *Queue, wanted bool) {
	t.Helper()
	require.Eventually(t, func() bool {
		q.waits.mu.Lock()
		defer q.waits.mu.Unlock()
		return q.waits.listening == wanted
	}, soon, time.Millisecond)
}

// TestAnotherProcessWakes waits for what another process does.
func TestAnotherProcessWakes(t *testing.T) {
	q := newQueue(t, Options{})
	woken := waitFor(t, q, testSpec)
	listens(t, q, true)
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), workerVariable+"=start", dsnVariable+"="+testDSN(t), workerSchemaVariable+"="+q.options.Schema)
	command.Stderr = os.Stderr
	require.NoError(t, command.Run())
	require.NoError(t, woken())
	claimOne(t, q)
}

// TestWhatWakesAcrossQueues goes through everything that makes an instance due.
func TestWhatWakesAcrossQueues(t *testing.T) {
	ctx := context.Background()
	q := newQueue(t, Options{})
	other := open(t, testDSN(t), q.options.Schema, Options{})
	spec := func(name string, dueAt time.Time) {
		i := instance(t, name)
		i.SpecID = name
		_, err := other.Start(ctx, i, dueAt)
		require.NoError(t, err)
	}
	far := time.Now().Add(time.Hour)
	for _, test := range []struct {
		name    string
		prepare func(name string)
		act     func(name string) error
	}{
		{"start", func(string) {}, func(name string) error { spec(name, zero); return nil }},
		{"deliver", func(name string) { spec(name, far) }, func(name string) error {
			return other.Deliver(ctx, testTenant, name, note("w"), zero)
		}},
		{"cancel", func(name string) { spec(name, far) }, func(name string) error { return other.Cancel(ctx, testTenant, name) }},
		{"resume", func(name string) {
			spec(name, zero)
			require.NoError(t, other.Pause(ctx, supervisor.Scope{TenantID: testTenant, InstanceID: name}))
		}, func(name string) error {
			return other.Resume(ctx, supervisor.Scope{TenantID: testTenant, InstanceID: name})
		}},
		{"retry", func(name string) {
			spec(name, zero)
			item := claimOf(t, other, name)
			c := supervisor.FailureCommand(&item, "failed", far)
			require.NoError(t, other.CommitCommand(ctx, &item, &c))
		}, func(name string) error { return other.Retry(ctx, testTenant, name) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.prepare(test.name)
			woken := waitFor(t, q, test.name)
			listens(t, q, true)
			require.NoError(t, test.act(test.name))
			require.NoError(t, woken())
			claimOf(t, q, test.name)
		})
	}
	t.Run("commit and release", func(t *testing.T) {
		spec("held", zero)
		item := claimOf(t, other, "held")
		woken := waitFor(t, q, "held")
		require.NoError(t, commit(t, other, &item, again))
		require.NoError(t, woken())
		item = claimOf(t, other, "held")
		woken = waitFor(t, q, "held")
		require.NoError(t, other.Release(ctx, &item, "given back"))
		require.NoError(t, woken())
		claimOf(t, q, "held")
	})
}

// TestListenerFails lets the listener's connection fail: waiters poll until it
// is back, and are told again afterwards.
func TestListenerFails(t *testing.T) {
	dsn := testDSN(t)
	listen, err := pgx.ParseConfig(dsn)
	require.NoError(t, err)
	p := newProxy(t, net.JoinHostPort(listen.Host, strconv.Itoa(int(listen.Port))))
	listen.DialFunc = p.dial
	failed := make(chan error, 1000)
	q := open(t, dsn, newSchema(t, dsn), Options{
		Listen: listen, PollInterval: 100 * time.Millisecond,
		Observer: &Observer{ListenFailed: func(err error) {
			select {
			case failed <- err:
			default:
			}
		}},
	})
	other := open(t, dsn, q.options.Schema, Options{})

	woken := waitFor(t, q, testSpec)
	listens(t, q, true)
	start(t, other, "told")
	require.NoError(t, woken())
	claimOne(t, q)

	p.refusing.Store(true)
	p.cutAll()
	select {
	case err := <-failed:
		require.Error(t, err)
	case <-time.After(soon):
		require.Fail(t, "the observer was not told")
	}
	listens(t, q, false)
	woken = waitFor(t, q, testSpec)
	start(t, other, "found by polling")
	require.NoError(t, woken())
	claimOne(t, q)

	p.refusing.Store(false)
	listens(t, q, true)
	woken = waitFor(t, q, testSpec)
	start(t, other, "told again")
	require.NoError(t, woken())
	claimOne(t, q)
}

// TestCallersTransactionWakes proves that a waiter hears of what a caller's
// transaction did when that commits, and of nothing where it is rolled back.
func TestCallersTransactionWakes(t *testing.T) {
	for _, kind := range txKinds() {
		t.Run(kind.name, func(t *testing.T) {
			q := newQueue(t, Options{})
			listening := waitFor(t, q, testSpec)
			listens(t, q, true)
			start(t, q, "waits")
			require.NoError(t, listening())
			item := claimOne(t, q)
			require.NoError(t, commit(t, q, &item, later1h))
			for _, commits := range []bool{false, true} {
				for _, delivers := range []bool{false, true} {
					// Late notices of what came before are no news after this.
					time.Sleep(200 * time.Millisecond)
					require.Empty(t, claimSpec(t, q, testSpec))
					patience := time.Second
					if commits {
						patience = soon
					}
					ctx, cancel := context.WithTimeout(context.Background(), patience)
					woken := make(chan error, 1)
					wanted := "new"
					kind.run(t, q, commits, func(start func(supervisor.Instance, time.Time) (bool, error),
						deliver func(string, string, supervisor.Wakeup, time.Time) error) {
						if delivers {
							wanted = "waits"
							require.NoError(t, deliver(testTenant, "waits", note("w"), zero))
						} else {
							started, err := start(instance(t, "new"), zero)
							require.NoError(t, err)
							require.True(t, started)
						}
						go func() { woken <- q.WaitDue(ctx, []string{testSpec}) }()
						time.Sleep(50 * time.Millisecond)
						require.Empty(t, woken, "nothing is told before the commit")
					})
					err := <-woken
					cancel()
					if !commits {
						require.ErrorIs(t, err, context.DeadlineExceeded)
						continue
					}
					require.NoError(t, err)
					require.Equal(t, []string{wanted}, ids(claimSpec(t, q, testSpec)))
				}
			}
		})
	}
}
