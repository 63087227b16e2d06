package pgqueue

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/workflow-supervisor/supervisor"
)

// TestWhatChangesBetweenClaimAndCommit proves that a commit which was decided
// from what its claim saw never overwrites what others did since. Each case
// makes a change while the claim is held, by the queue that claimed or by
// another one on the same database.
func TestWhatChangesBetweenClaimAndCommit(t *testing.T) {
	ctx := context.Background()
	dsn := testDSN(t)
	schema := newSchema(t, dsn)
	q, second := open(t, dsn, schema, Options{}), open(t, dsn, schema, Options{})
	for _, test := range []struct {
		name   string
		change func(t *testing.T, q *Queue, tenant string)
		want   error // of the commit
		check  func(t *testing.T, q *Queue, tenant string, kept *supervisor.WorkItem)
	}{
		{
			name:   "nothing",
			change: func(*testing.T, *Queue, string) {},
			check: func(t *testing.T, q *Queue, tenant string, kept *supervisor.WorkItem) {
				require.Greater(t, time.Until(getOf(t, q, tenant, "a").NextDueAt), 50*time.Minute)
			},
		},
		{
			name: "delivery",
			change: func(t *testing.T, q *Queue, tenant string) {
				require.NoError(t, q.Deliver(ctx, tenant, "a", note("w"), zero))
			},
			check: func(t *testing.T, q *Queue, tenant string, kept *supervisor.WorkItem) {
				// The delivery pulls the due time, the command's hour notwithstanding.
				if kept == nil {
					item := claimOf(t, q, tenant)
					kept = &item
				}
				require.Len(t, kept.Wakeups, 1)
				require.EqualValues(t, 1, kept.StateVersion)
			},
		},
		{
			name: "delivery in a caller's transaction",
			change: func(t *testing.T, q *Queue, tenant string) {
				tx, err := q.pool.Begin(ctx)
				require.NoError(t, err)
				require.NoError(t, q.DeliverTx(ctx, tx, tenant, "a", note("w"), zero))
				require.NoError(t, tx.Commit(ctx))
			},
			check: func(t *testing.T, q *Queue, tenant string, kept *supervisor.WorkItem) {
				require.Len(t, claimOf(t, q, tenant).Wakeups, 1)
			},
		},
		{
			name: "delivery for later",
			change: func(t *testing.T, q *Queue, tenant string) {
				require.NoError(t, q.Deliver(ctx, tenant, "a", note("w"), time.Now().Add(30*time.Minute)))
			},
			check: func(t *testing.T, q *Queue, tenant string, kept *supervisor.WorkItem) {
				require.InDelta(t, 30, time.Until(getOf(t, q, tenant, "a").NextDueAt).Minutes(), 1)
			},
		},
		{
			name:   "cancel",
			change: func(t *testing.T, q *Queue, tenant string) { require.NoError(t, q.Cancel(ctx, tenant, "a")) },
			want:   supervisor.ErrEpochStale,
			check: func(t *testing.T, q *Queue, tenant string, kept *supervisor.WorkItem) {
				require.True(t, getOf(t, q, tenant, "a").CancelRequested)
			},
		},
		{
			name: "pause of the instance",
			change: func(t *testing.T, q *Queue, tenant string) {
				require.NoError(t, q.Pause(ctx, supervisor.Scope{TenantID: tenant, InstanceID: "a"}))
			},
			want: supervisor.ErrEpochStale,
		},
		{
			name: "pause and resume of the instance",
			change: func(t *testing.T, q *Queue, tenant string) {
				scope := supervisor.Scope{TenantID: tenant, InstanceID: "a"}
				require.NoError(t, q.Pause(ctx, scope))
				require.NoError(t, q.Resume(ctx, scope))
			},
			want: supervisor.ErrEpochStale,
		},
		{
			name: "pause of the tenant",
			change: func(t *testing.T, q *Queue, tenant string) {
				require.NoError(t, q.Pause(ctx, supervisor.Scope{TenantID: tenant}))
			},
			want: supervisor.ErrEpochStale,
		},
		{
			name: "pause of a resource",
			change: func(t *testing.T, q *Queue, tenant string) {
				require.NoError(t, q.Pause(ctx, supervisor.Scope{TenantID: tenant, ResourceID: "r"}))
			},
			check: func(t *testing.T, q *Queue, tenant string, kept *supervisor.WorkItem) {
				require.EqualValues(t, 1, getOf(t, q, tenant, "a").StateVersion)
			},
		},
		{
			name: "release",
			change: func(t *testing.T, q *Queue, tenant string) {
				item := supervisor.WorkItem{Instance: supervisor.Instance{TenantID: tenant, ID: "a"}, LeaseVersion: 1}
				require.NoError(t, q.Release(ctx, &item, "handed back"))
			},
			want: supervisor.ErrLeaseLost,
		},
		{
			name: "another claim",
			change: func(t *testing.T, q *Queue, tenant string) {
				execute(t, q, sqlEndLease, tenant)
				require.EqualValues(t, 2, claimOf(t, q, tenant).LeaseVersion)
			},
			want: supervisor.ErrLeaseLost,
		},
		{
			name: "the end of the lease",
			change: func(t *testing.T, q *Queue, tenant string) {
				execute(t, q, sqlEndLease, tenant)
			},
			check: func(t *testing.T, q *Queue, tenant string, kept *supervisor.WorkItem) {
				require.EqualValues(t, 1, getOf(t, q, tenant, "a").StateVersion)
			},
		},
		{
			name: "the same commit",
			change: func(t *testing.T, q *Queue, tenant string) {
				item := supervisor.WorkItem{Instance: getOf(t, q, tenant, "a").Instance, LeaseVersion: 1}
				require.NoError(t, commit(t, q, &item, later1h))
			},
			check: func(t *testing.T, q *Queue, tenant string, kept *supervisor.WorkItem) {
				require.EqualValues(t, 1, getOf(t, q, tenant, "a").StateVersion)
			},
		},
		{
			name: "another commit",
			change: func(t *testing.T, q *Queue, tenant string) {
				item := supervisor.WorkItem{Instance: getOf(t, q, tenant, "a").Instance, LeaseVersion: 1}
				c := command(t, &item, later1h)
				c.DeliveryKey = "other"
				require.NoError(t, q.CommitCommand(ctx, &item, &c))
			},
			want: supervisor.ErrStateConflict,
		},
		{
			name: "an epoch of another tenant",
			change: func(t *testing.T, q *Queue, tenant string) {
				require.NoError(t, q.Pause(ctx, supervisor.Scope{TenantID: tenant + " other"}))
			},
			check: func(t *testing.T, q *Queue, tenant string, kept *supervisor.WorkItem) {
				require.EqualValues(t, 1, getOf(t, q, tenant, "a").StateVersion)
			},
		},
	} {
		for _, elsewhere := range []bool{false, true} {
			for _, kept := range []bool{false, true} {
				name := test.name + map[bool]string{true: ", elsewhere"}[elsewhere] + map[bool]string{true: ", kept"}[kept]
				t.Run(name, func(t *testing.T) {
					tenant := t.Name()
					other := q
					if elsewhere {
						other = second
					}
					i := instance(t, "a")
					i.TenantID, i.SpecID = tenant, tenant
					_, err := q.Start(ctx, i, zero)
					require.NoError(t, err)
					item := claimOf(t, q, tenant)
					test.change(t, other, tenant)
					before := getOf(t, q, tenant, "a")
					c := command(t, &item, later1h)
					var next *supervisor.WorkItem
					if kept {
						next, err = q.CommitAndKeep(ctx, &item, &c, testLease)
					} else {
						err = q.CommitCommand(ctx, &item, &c)
					}
					require.ErrorIs(t, err, test.want)
					if test.want != nil {
						after := getOf(t, q, tenant, "a")
						before.LeaseEndsAt, after.LeaseEndsAt = zero, zero
						require.Equal(t, before, after, "a refused commit changes nothing")
					}
					if test.check != nil {
						test.check(t, q, tenant, next)
					}
				})
			}
		}
	}
}

const sqlEndLease = `
UPDATE {{schema}}.run SET lease_ends_at = clock_timestamp()
WHERE tenant_no = (SELECT tenant_no FROM {{schema}}.tenant WHERE tenant_id = $1)`

func TestKeptClaimSeesWhatArrived(t *testing.T) {
	q := newQueue(t, Options{})
	ctx := context.Background()
	start(t, q, "a")
	item := claimOne(t, q)
	deliver(t, q, "a", "w")
	c := command(t, &item, again)
	next, err := q.CommitAndKeep(ctx, &item, &c, testLease)
	require.NoError(t, err)
	require.NotNil(t, next)
	require.Len(t, next.Wakeups, 1)
	require.EqualValues(t, 2, next.LeaseVersion)
	// What was not consumed comes again.
	c = command(t, next, again)
	next, err = q.CommitAndKeep(ctx, next, &c, testLease)
	require.NoError(t, err)
	require.Len(t, next.Wakeups, 1)
	c = command(t, next, again)
	c.ConsumedWakeups = []string{"w"}
	next, err = q.CommitAndKeep(ctx, next, &c, testLease)
	require.NoError(t, err)
	require.Empty(t, next.Wakeups)
	require.NoError(t, q.Pause(ctx, supervisor.Scope{TenantID: testTenant, ResourceID: "r"}))
	c = command(t, next, again)
	next, err = q.CommitAndKeep(ctx, next, &c, testLease)
	require.NoError(t, err)
	require.EqualValues(t, 1, next.ControlEpochs.Resource)
	c = command(t, next, complete)
	next, err = q.CommitAndKeep(ctx, next, &c, testLease)
	require.NoError(t, err)
	require.Nil(t, next)
	require.Equal(t, supervisor.StatusCompleted, get(t, q, "a").Status)
	require.Len(t, history(t, q, "a"), 5)
}

// TestManyCommitsShareATransaction proves that commits which come together go
// together, and that those of a batch that are refused fail alone.
func TestManyCommitsShareATransaction(t *testing.T) {
	q := newQueue(t, Options{})
	ctx := context.Background()
	const instances = 100
	for n := range instances {
		start(t, q, strconv.Itoa(n))
	}
	items := claim(t, q, instances)
	require.Len(t, items, instances)
	stale := map[string]bool{}
	for n := 0; n < instances; n += 10 {
		require.NoError(t, q.Cancel(ctx, testTenant, items[n].ID))
		stale[items[n].ID] = true
	}
	before := number(t, q, "SELECT count(DISTINCT xmin::text) FROM {{schema}}.event")
	var group sync.WaitGroup
	for n := range items {
		group.Go(func() {
			err := commit(t, q, &items[n], later1h)
			if stale[items[n].ID] {
				if !errorsIs(err, supervisor.ErrEpochStale) {
					t.Errorf("commit of a cancelled instance: %v", err)
				}
			} else if err != nil {
				t.Errorf("commit: %v", err)
			}
		})
	}
	group.Wait()
	require.EqualValues(t, instances-len(stale), number(t, q, "SELECT count(*) FROM {{schema}}.event"))
	transactions := number(t, q, "SELECT count(DISTINCT xmin::text) FROM {{schema}}.event") - before
	require.Less(t, transactions, int64(instances/4))
	t.Logf("%d commits in %d transactions", instances-len(stale), transactions)
}

func TestArgumentsAreTheCallersAgainAfterACommitThatWasLeft(t *testing.T) {
	q := newQueue(t, Options{})
	start(t, q, "a")
	item := claimOne(t, q)
	// The instance is locked, so that the commit waits for it.
	tx, err := q.pool.Begin(context.Background())
	require.NoError(t, err)
	_, err = tx.Exec(context.Background(), q.store.text("SELECT 1 FROM {{schema}}.run FOR UPDATE"))
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	c := command(t, &item, complete)
	err = q.CommitCommand(ctx, &item, &c)
	require.ErrorIs(t, err, supervisor.ErrCommitUnknown)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	c.NextState[0] = 'x' // a data race, if the queue still read it
	require.NoError(t, tx.Rollback(context.Background()))
	require.Eventually(t, func() bool { return get(t, q, "a").Status == supervisor.StatusCompleted }, 20*time.Second, 10*time.Millisecond,
		"what was sent is applied")
}

func TestCommitOfAClaimThatIsNotRemembered(t *testing.T) {
	dsn := testDSN(t)
	schema := newSchema(t, dsn)
	q, other := open(t, dsn, schema, Options{}), open(t, dsn, schema, Options{})
	start(t, q, "a")
	deliver(t, q, "a", "w")
	item := claimOne(t, q)
	c := command(t, &item, again)
	c.ConsumedWakeups = []string{"w"}
	next, err := other.CommitAndKeep(context.Background(), &item, &c, testLease)
	require.NoError(t, err)
	require.NotNil(t, next)
	require.Empty(t, next.Wakeups)
	require.NoError(t, commit(t, q, next, complete))
	require.Zero(t, get(t, q, "a").PendingWakeups)
}

// TestLateCommitAfterAPauseIsRefused pauses tenants in the middle of commits:
// what a look after the pause does not show is never applied.
func TestLateCommitAfterAPauseIsRefused(t *testing.T) {
	q := newQueue(t, Options{})
	ctx := context.Background()
	const instances = 64
	for round := range repeats(5, 100) {
		tenant := "tenant-" + strconv.Itoa(round)
		for n := range instances {
			i := instance(t, strconv.Itoa(n))
			i.TenantID = tenant
			_, err := q.Start(ctx, i, zero)
			require.NoError(t, err)
		}
		items := claim(t, q, instances)
		require.Len(t, items, instances)
		var group sync.WaitGroup
		for n := range items {
			group.Go(func() {
				if err := commit(t, q, &items[n], later1h); err != nil && !errorsIs(err, supervisor.ErrEpochStale) {
					t.Errorf("commit: %v", err)
				}
			})
		}
		require.NoError(t, q.Pause(ctx, supervisor.Scope{TenantID: tenant}))
		seen := number(t, q, "SELECT count(*) FROM {{schema}}.event")
		group.Wait()
		require.Equal(t, seen, number(t, q, "SELECT count(*) FROM {{schema}}.event"), "a commit came after the pause had returned")
	}
}
