package pgqueue

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/workflow-supervisor/supervisor"
)

func TestIntentGoesThroughItsLife(t *testing.T) {
	q := newQueue(t, Options{})
	ctx := context.Background()
	item := prepare(t, q, testTenant, "i", made("a"))
	work := claimIntent(t, q)
	require.Equal(t, supervisor.IntentTaskDispatch, work.Task)
	require.EqualValues(t, 1, work.LeaseVersion)
	require.Equal(t, "dispatcher", work.LeaseOwner)
	require.JSONEq(t, `{"n":1}`, string(work.Intent.Input))
	require.WithinDuration(t, work.ClaimedAt.Add(testLease), work.LeaseEndsAt, 0)
	require.Empty(t, claimIntents(t, q, intentRequest(1)), "it is leased")
	marked := mark(t, q, work)
	require.Equal(t, supervisor.ActionDispatchCommitted, marked.Intent.State)
	require.Equal(t, 1, marked.Attempt)
	require.EqualValues(t, 1, marked.MarkedUnder)
	require.JSONEq(t, `{"n":1}`, string(marked.Intent.Input))
	again := mark(t, q, work)
	require.Equal(t, marked, again, "the same mark again")
	require.NoError(t, q.RenewIntent(ctx, marked.Lease(2*testLease)))
	require.NoError(t, q.RecordReceipt(ctx, &marked, supervisor.Receipt{Reference: "r", Report: supervisor.Report{After: time.Nanosecond}}))
	work = claimIntent(t, q)
	require.Equal(t, supervisor.IntentTaskObserve, work.Task)
	require.Equal(t, "r", work.Receipt.Reference)
	require.NoError(t, q.SettleIntent(ctx, &work, succeeded()))
	require.NoError(t, q.SettleIntent(ctx, &work, succeeded()), "an agreeing repeat")
	failed := supervisor.Settlement{State: supervisor.ActionRejected, Outcome: supervisor.OutcomeFailed, Proof: supervisor.ProofReported}
	require.ErrorIs(t, q.SettleIntent(ctx, &work, failed), supervisor.ErrReceiptConflict)
	require.ErrorIs(t, q.RenewIntent(ctx, work.Lease(testLease)), supervisor.ErrLeaseLost)
	require.Empty(t, claimIntents(t, q, intentRequest(1)))

	r := record(t, q, work.Key())
	require.Equal(t, supervisor.ActionSucceeded, r.Intent.State)
	require.Equal(t, string(succeeded().Output), string(r.Output))
	require.Len(t, r.Evidence, 1)
	require.False(t, r.SettledAt.IsZero())
	require.Zero(t, r.DueAt)
	told := results(t, q, &item)
	require.Len(t, told, 1)
	require.Equal(t, supervisor.OutcomeSucceeded, told[0].Outcome)
	require.Equal(t, string(succeeded().Output), string(told[0].Output))
	snapshot := getOf(t, q, testTenant, "i")
	require.Equal(t, 1, snapshot.PendingWakeups)
	require.WithinDuration(t, time.Now(), snapshot.NextDueAt, time.Minute, "the instance is due")
}

func TestRepeatableIntentsAreMarkedByTheClaim(t *testing.T) {
	q := newQueue(t, Options{})
	prepare(t, q, testTenant, "i", made("native", native), made("none"),
		made("read", func(i *supervisor.ActionIntent) { i.Effect = supervisor.EffectRead }))
	req := intentRequest(10)
	req.MarkRepeatable = true
	for _, work := range claimIntents(t, q, req) {
		want := supervisor.ActionDispatchCommitted
		if work.Intent.ID == "none" {
			want = supervisor.ActionPrepared
		}
		require.Equal(t, want, work.Intent.State, work.Intent.ID)
		stored := record(t, q, work.Key())
		require.Equal(t, work.IntentRecord, stored)
	}
}

func TestPauseAndMarkExcludeOneAnother(t *testing.T) {
	q := newQueue(t, Options{})
	ctx := context.Background()
	for _, test := range []struct {
		name  string
		scope func(tenant string) supervisor.Scope
	}{
		{"tenant", func(tenant string) supervisor.Scope { return supervisor.Scope{TenantID: tenant} }},
		{"instance", func(tenant string) supervisor.Scope {
			return supervisor.Scope{TenantID: tenant, InstanceID: "i"}
		}},
		{"resource", func(tenant string) supervisor.Scope {
			return supervisor.Scope{TenantID: tenant, ResourceID: "res"}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			tenant := t.Name()
			item := prepare(t, q, tenant, "i", made("a", on("res")), made("b", on("res")))
			works := claimIntents(t, q, intentRequest(1))
			require.Len(t, works, 1)
			require.NoError(t, q.Pause(ctx, test.scope(tenant)))
			_, err := q.MarkIntent(ctx, &works[0])
			require.ErrorIs(t, err, supervisor.ErrIntentRefused)
			refused, _ := errorsAs[*supervisor.IntentRefusedError](err)
			require.Equal(t, supervisor.CausePaused, refused.Cause)
			require.Equal(t, supervisor.ParkedByPause, record(t, q, works[0].Key()).Parked)
			require.Empty(t, claimIntents(t, q, intentRequest(10)))
			for r := range q.ListIntents(ctx, supervisor.IntentFilter{TenantID: tenant}) {
				require.Equal(t, supervisor.ParkedByPause, r.Parked)
				require.Zero(t, r.DueAt)
			}
			require.NoError(t, q.Resume(ctx, test.scope(tenant)))
			require.Empty(t, claimIntents(t, q, intentRequest(10)), "both are stale")
			told := results(t, q, &item)
			require.Len(t, told, 2)
			for _, result := range told {
				require.Equal(t, supervisor.CauseStaleEpoch, result.Cause)
				require.Equal(t, supervisor.OutcomeWithdrawn, result.Outcome)
			}
		})
	}
}

func TestCancelWithdrawsAndAsksInItsTransaction(t *testing.T) {
	q := newQueue(t, Options{})
	ctx := context.Background()
	item := prepare(t, q, testTenant, "i", made("a"), made("b", func(i *supervisor.ActionIntent) { i.RequiresConfirmation = true }),
		made("c"), made("d"))
	works := claimIntents(t, q, intentRequest(3))
	require.Equal(t, []string{"a", "c", "d"}, intentIDs(works))
	marked := mark(t, q, works[1])
	accepted := mark(t, q, works[2])
	require.NoError(t, q.RecordReceipt(ctx, &accepted, supervisor.Receipt{Reference: "r", Report: supervisor.Report{After: time.Hour}}))
	require.NoError(t, q.Cancel(ctx, testTenant, "i"))
	_, err := q.MarkIntent(ctx, &works[0])
	require.Error(t, err)
	for r := range q.ListIntents(ctx, supervisor.IntentFilter{TenantID: testTenant}) {
		switch r.Intent.ID {
		case "a", "b":
			require.Equal(t, supervisor.OutcomeWithdrawn, r.Outcome)
			require.Equal(t, supervisor.CauseCancelled, r.Cause)
		default:
			require.False(t, r.CancelRequestedAt.IsZero())
		}
	}
	cancelling := claimIntent(t, q)
	require.Equal(t, "d", cancelling.Intent.ID)
	require.Equal(t, supervisor.IntentTaskCancel, cancelling.Task)
	require.NoError(t, q.SettleIntent(ctx, &cancelling, succeeded()), "a late success is one")
	require.NoError(t, q.SettleIntent(ctx, &marked, supervisor.Settlement{State: supervisor.ActionUnknown, Cause: supervisor.CauseAmbiguous}))
	claimed := claimOf(t, q, item.SpecID)
	require.Len(t, claimed.Wakeups, 4)
	require.True(t, claimed.CancelRequested)
	snapshot := getOf(t, q, testTenant, "i")
	require.Equal(t, 4, snapshot.PendingWakeups)
	c := command(t, &claimed, complete)
	require.NoError(t, q.CommitCommand(ctx, &claimed, &c))
	key := marked.Key()
	require.NoError(t, q.ResolveIntent(ctx, key, "ops", supervisor.IntentResolution{Kind: supervisor.ResolveSucceeded}))
	require.NoError(t, q.ResolveIntent(ctx, key, "ops", supervisor.IntentResolution{Kind: supervisor.ResolveSucceeded}))
	require.ErrorIs(t, q.ResolveIntent(ctx, key, "ops", supervisor.IntentResolution{Kind: supervisor.ResolveFailed}), supervisor.ErrIntentConflict)
	require.Equal(t, 4, getOf(t, q, testTenant, "i").PendingWakeups, "a finished instance is not told")
}

func TestConfirmation(t *testing.T) {
	q := newQueue(t, Options{})
	ctx := context.Background()
	ask := func(i *supervisor.ActionIntent) { i.RequiresConfirmation = true }
	item := prepare(t, q, testTenant, "i", made("a", ask), made("b", ask), made("c"))
	require.Equal(t, []string{"c"}, intentIDs(claimIntents(t, q, intentRequest(10))))
	key := supervisor.IntentKey{TenantID: testTenant, InstanceID: "i", IntentID: "a"}
	require.NoError(t, q.ConfirmIntent(ctx, key, "ann"))
	require.NoError(t, q.ConfirmIntent(ctx, key, "bob"))
	require.ErrorIs(t, q.RejectIntent(ctx, key, "bob", "no"), supervisor.ErrIntentConflict)
	work := claimIntent(t, q)
	require.Equal(t, "a", work.Intent.ID)
	require.Equal(t, "ann", work.Intent.Confirmation.By)
	require.False(t, work.Intent.Confirmation.At.IsZero())
	key.IntentID = "b"
	require.NoError(t, q.RejectIntent(ctx, key, "bob", "no"))
	require.NoError(t, q.RejectIntent(ctx, key, "bob", "no"))
	require.ErrorIs(t, q.ConfirmIntent(ctx, key, "ann"), supervisor.ErrIntentConflict)
	told := results(t, q, &item)
	require.Len(t, told, 1)
	require.Equal(t, supervisor.CauseDenied, told[0].Cause)
	require.Equal(t, "no", told[0].Reason)
	key.IntentID = "missing"
	require.ErrorIs(t, q.ConfirmIntent(ctx, key, "ann"), supervisor.ErrNotFound)
	key.IntentID = "c"
	require.ErrorIs(t, q.ConfirmIntent(ctx, key, "ann"), supervisor.ErrIntentConflict)
	require.Error(t, q.ConfirmIntent(ctx, supervisor.IntentKey{}, "ann"))
}

func TestClaimsTakeCapabilitiesInTurn(t *testing.T) {
	q := newQueue(t, Options{})
	var makers []func(item *supervisor.WorkItem) supervisor.ActionIntent
	for _, capability := range []string{"a", "b", "c"} {
		for _, n := range []string{"1", "2", "3", "4"} {
			makers = append(makers, made(capability+n, of(capability)))
		}
	}
	prepare(t, q, testTenant, "i", makers...)
	got := intentIDs(claimIntents(t, q, intentRequest(1)))
	require.Equal(t, []string{"a1"}, got)
	require.Equal(t, []string{"b1"}, intentIDs(claimIntents(t, q, intentRequest(1))))
	require.Equal(t, []string{"c1", "a2"}, intentIDs(claimIntents(t, q, intentRequest(2))))
	require.Equal(t, []string{"b2", "c2", "a3", "b3", "c3"}, intentIDs(claimIntents(t, q, intentRequest(5))))
	require.Equal(t, []string{"b4"}, intentIDs(claimIntents(t, q, intentRequest(5, "b"))))
	require.Equal(t, []string{"a4", "c4"}, intentIDs(claimIntents(t, q, intentRequest(5))))
	require.Empty(t, claimIntents(t, q, intentRequest(5, "a", "unheard of")))
}

func TestLimits(t *testing.T) {
	q := newQueue(t, Options{})
	ctx := context.Background()
	require.NoError(t, q.LimitIntents(ctx, supervisor.IntentLimit{CapabilityID: "a", Max: 2}))
	prepare(t, q, "t1", "i", madeMany(6, of("a"), native)...)
	prepare(t, q, "t2", "i", madeMany(1, of("b"), native)...)
	req := intentRequest(10)
	req.MarkRepeatable = true
	works := claimIntents(t, q, req)
	require.Len(t, works, 3, "two of a, and one that no limit covers")
	parked := func() (n int) {
		for r, err := range q.ListIntents(ctx, supervisor.IntentFilter{CapabilityID: "a"}) {
			require.NoError(t, err)
			if r.Parked == supervisor.ParkedByLimit {
				n++
			}
		}
		return n
	}
	used := func() int64 {
		return number(t, q, "SELECT used FROM {{schema}}.intent_limit WHERE capability_id = 'a'")
	}
	require.Equal(t, 4, parked())
	require.EqualValues(t, 2, used())
	require.Empty(t, claimIntents(t, q, req))
	require.NoError(t, q.SettleIntent(ctx, &works[0], succeeded()))
	require.Equal(t, 3, parked(), "a freed slot unparks one")
	require.EqualValues(t, 1, used())
	next := claimIntents(t, q, req)
	require.Equal(t, []string{"intent-2"}, intentIDs(next))
	require.Equal(t, supervisor.ActionDispatchCommitted, next[0].Intent.State)
	// One that becomes retryable frees its slot, too.
	require.NoError(t, q.SettleIntent(ctx, &next[0], supervisor.Settlement{State: supervisor.ActionRetryable, Delay: time.Hour}))
	require.Equal(t, 2, parked())
	// Whoever was to have the slot is withdrawn: the next one gets it.
	_, err := q.pool.Exec(ctx, q.store.text("UPDATE {{schema}}.intent SET due_at = NULL, state = 'rejected' WHERE id = 'intent-3'"))
	require.NoError(t, err)
	require.NoError(t, q.WaitIntents(withTimeout(t, 10*time.Second), req.Capabilities))
	require.Equal(t, []string{"intent-4"}, intentIDs(claimIntents(t, q, req)))
	require.EqualValues(t, 2, used())
	require.NoError(t, q.LimitIntents(ctx, supervisor.IntentLimit{CapabilityID: "a", Max: 3}))
	require.Equal(t, []string{"intent-5"}, intentIDs(claimIntents(t, q, req)))
	// A new limit counts what is in flight.
	require.NoError(t, q.LimitIntents(ctx, supervisor.IntentLimit{TenantID: "t1", Max: 1}))
	require.EqualValues(t, 3, number(t, q, "SELECT used FROM {{schema}}.intent_limit WHERE tenant_id = 't1'"))
	require.NoError(t, q.LimitIntents(ctx, supervisor.IntentLimit{CapabilityID: "a"}))
	require.EqualValues(t, 1, number(t, q, "SELECT count(*) FROM {{schema}}.intent_limit"))
}

func TestMarksBeyondTheLimitAreRefused(t *testing.T) {
	q := newQueue(t, Options{})
	ctx := context.Background()
	require.NoError(t, q.LimitIntents(ctx, supervisor.IntentLimit{TenantID: testTenant, CapabilityID: "a", Max: 1}))
	prepare(t, q, testTenant, "i", madeMany(3, of("a"))...)
	works := claimIntents(t, q, intentRequest(3))
	require.Len(t, works, 3)
	first := mark(t, q, works[0])
	for n := range works[1:] {
		_, err := q.MarkIntent(ctx, &works[n+1])
		require.ErrorIs(t, err, supervisor.ErrIntentRefused)
		require.Equal(t, supervisor.ParkedByLimit, record(t, q, works[n+1].Key()).Parked)
	}
	require.NoError(t, q.SettleIntent(ctx, &first, supervisor.Settlement{State: supervisor.ActionUnknown, Cause: supervisor.CauseAmbiguous}))
	require.Equal(t, []string{"intent-1"}, intentIDs(claimIntents(t, q, intentRequest(3))))
}

// TestNobodyStarvesBehindAnotherLimit: what is parked longest waits for a second
// limit, so that the slot goes to the next.
func TestNobodyStarvesBehindAnotherLimit(t *testing.T) {
	q := newQueue(t, Options{})
	ctx := context.Background()
	require.NoError(t, q.LimitIntents(ctx, supervisor.IntentLimit{CapabilityID: "a", Max: 2}))
	require.NoError(t, q.LimitIntents(ctx, supervisor.IntentLimit{TenantID: "t1", Max: 1}))
	req := intentRequest(10)
	req.MarkRepeatable = true
	prepare(t, q, "t2", "x", madeMany(1, of("a"), native)...)
	other := claimIntents(t, q, req)
	prepare(t, q, "t1", "i", madeMany(3, of("a"), native)...)
	first := claimIntents(t, q, req)
	require.Len(t, first, 1)
	prepare(t, q, "t2", "i", madeMany(2, of("a"), native)...)
	require.Empty(t, claimIntents(t, q, req))
	require.NoError(t, q.SettleIntent(ctx, &other[0], succeeded()))
	next := claimIntents(t, q, req)
	require.Len(t, next, 1)
	require.Equal(t, "t2", next[0].Intent.TenantID)
	require.NoError(t, q.SettleIntent(ctx, &first[0], succeeded()))
	next = claimIntents(t, q, req)
	require.Len(t, next, 1)
	require.Equal(t, "t1", next[0].Intent.TenantID, "parked longest")
}

// finish completes an instance, which is told something to be due.
func finish(t *testing.T, q *Queue, item *supervisor.WorkItem) {
	t.Helper()
	require.NoError(t, q.Deliver(context.Background(), item.TenantID, item.ID, note("finish"), zero))
	claimed := claimOf(t, q, item.SpecID)
	c := command(t, &claimed, complete)
	for n := range claimed.Wakeups {
		c.ConsumedWakeups = append(c.ConsumedWakeups, claimed.Wakeups[n].ID)
	}
	require.NoError(t, q.CommitCommand(context.Background(), &claimed, &c))
}

// An attempt that may have had an effect keeps its finished instance also while
// the intent waits for the next one, and is settled without anybody being told.
func TestPruneKeepsWhatMayHaveHadAnEffect(t *testing.T) {
	q := newQueue(t, Options{})
	ctx := context.Background()
	item := prepare(t, q, testTenant, "a", made("i", native))
	marked := mark(t, q, claimIntent(t, q))
	require.NoError(t, q.SettleIntent(ctx, &marked, supervisor.Settlement{State: supervisor.ActionRetryable}))
	finish(t, q, &item)
	prune := func() int {
		removed, err := q.Prune(ctx, time.Now().Add(time.Hour))
		require.NoError(t, err)
		return removed
	}
	require.Zero(t, prune())
	// What cannot be decoded keeps no other instance.
	broken := prepare(t, q, testTenant, "broken", made("j"))
	execute(t, q, `UPDATE {{schema}}.intent SET state = 'retryable', progress = '{' WHERE id = 'j'`)
	finish(t, q, &broken)
	require.Equal(t, 1, prune())
	work := claimIntent(t, q)
	require.Equal(t, 1, work.Ambiguous)
	require.Zero(t, prune())
	marked = mark(t, q, work)
	require.Zero(t, prune())
	require.NoError(t, q.SettleIntent(ctx, &marked, succeeded()))
	require.Zero(t, get(t, q, "a").PendingWakeups)
	require.Equal(t, 1, prune())
	require.ErrorIs(t, q.SettleIntent(ctx, &marked, succeeded()), supervisor.ErrLeaseLost)
	require.ErrorIs(t, q.RecordReceipt(ctx, &marked, supervisor.Receipt{}), supervisor.ErrNotFound)
}

// Who lost an intent to a claim that parked it cannot mark it, neither while it
// is parked nor when it is due again.
func TestMarkOfWhatAClaimParked(t *testing.T) {
	q := newQueue(t, Options{})
	ctx := context.Background()
	prepare(t, q, testTenant, "a", made("i", on("res")), made("j"))
	short := intentRequest(2)
	short.LeaseDuration = time.Millisecond
	works := claimIntents(t, q, short)
	require.Len(t, works, 2)
	time.Sleep(5 * time.Millisecond)
	require.NoError(t, q.LimitIntents(ctx, supervisor.IntentLimit{CapabilityID: testPin.ID, Max: 1}))
	scope := supervisor.Scope{TenantID: testTenant, ResourceID: "res"}
	require.NoError(t, q.Pause(ctx, scope))
	other := claimIntents(t, q, intentRequest(2))
	require.Equal(t, []string{"j"}, intentIDs(other))
	lost := func() {
		for n := range works {
			_, err := q.MarkIntent(ctx, &works[n])
			require.ErrorIs(t, err, supervisor.ErrLeaseLost)
			require.ErrorIs(t, q.RenewIntent(ctx, works[n].Lease(time.Minute)), supervisor.ErrLeaseLost)
			require.ErrorIs(t, q.ReleaseIntent(ctx, &works[n], supervisor.IntentRelease{NotHandedOff: true}), supervisor.ErrLeaseLost)
		}
	}
	lost()
	require.NoError(t, q.Resume(ctx, scope))
	lost()
	marked := mark(t, q, other[0])
	require.NoError(t, q.SettleIntent(ctx, &marked, succeeded()))
	require.Empty(t, claimIntents(t, q, intentRequest(2)), "i is stale")
	lost()
}

func TestPruneKeepsWhatWasHandedOff(t *testing.T) {
	q := newQueue(t, Options{})
	ctx := context.Background()
	marked := prepare(t, q, testTenant, "marked", made("a"))
	work := claimIntent(t, q)
	work = mark(t, q, work)
	waiting := prepare(t, q, testTenant, "waiting", made("a"))
	finish(t, q, &marked)
	finish(t, q, &waiting)
	n, err := q.Prune(ctx, time.Now().Add(time.Hour))
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.NoError(t, q.SettleIntent(ctx, &work, succeeded()))
	n, err = q.Prune(ctx, time.Now().Add(time.Hour))
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Zero(t, number(t, q, "SELECT count(*) FROM {{schema}}.intent"))
}

func TestWaitIntents(t *testing.T) {
	dsn := testDSN(t)
	schema := newSchema(t, dsn)
	q, other := open(t, dsn, schema, Options{}), open(t, dsn, schema, Options{})
	ctx := context.Background()
	require.Empty(t, claimIntents(t, q, intentRequest(1, "a")))
	wait := func(what string, change func()) {
		t.Helper()
		done := make(chan error, 1)
		go func() { done <- q.WaitIntents(withTimeout(t, 20*time.Second), []supervisor.CapabilityPin{pin("a")}) }()
		select {
		case err := <-done:
			require.Fail(t, "woke for nothing", "%s: %v", what, err)
		case <-time.After(150 * time.Millisecond):
		}
		began := time.Now()
		change()
		require.NoError(t, <-done, what)
		require.Less(t, time.Since(began), 5*time.Second, what)
	}
	var item supervisor.WorkItem
	wait("a commit elsewhere", func() { item = prepare(t, other, testTenant, "i", made("x", of("a"))) })
	req := intentRequest(10, "a")
	work := claimIntents(t, q, req)[0]
	require.Empty(t, claimIntents(t, q, req))
	wait("a release", func() { require.NoError(t, other.ReleaseIntent(ctx, &work, supervisor.IntentRelease{})) })
	work = claimIntents(t, q, req)[0]
	require.Empty(t, claimIntents(t, q, req))
	wait("a short lease", func() {
		require.NoError(t, other.RenewIntent(ctx, work.Lease(300*time.Millisecond)))
		require.NoError(t, q.WaitIntents(withTimeout(t, 20*time.Second), []supervisor.CapabilityPin{pin("a")}), "its end")
		other.announceAnyIntent()
	})
	_ = item
}

func TestBrokenIntentIsSetAside(t *testing.T) {
	q := newQueue(t, Options{})
	prepare(t, q, testTenant, "i", made("a"), made("b"))
	execute(t, q, `UPDATE {{schema}}.intent SET progress = '{"' WHERE id = 'a'`)
	require.Equal(t, []string{"b"}, intentIDs(claimIntents(t, q, intentRequest(2))))
	require.Empty(t, claimIntents(t, q, intentRequest(2)))
}

func TestMigrateKeepsIntentsOfVersion1(t *testing.T) {
	dsn := testDSN(t)
	schema := newSchema(t, dsn)
	q, err := New(newPool(t, dsn), Options{Schema: schema})
	require.NoError(t, err)
	t.Cleanup(q.Close)
	ctx := context.Background()
	execute(t, q, "CREATE SCHEMA {{schema}}")
	execute(t, q, "CREATE TABLE {{schema}}.schema_version (version bigint PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT clock_timestamp())")
	for _, name := range migrations[0] {
		sql, err := migrationFiles.ReadFile(name)
		require.NoError(t, err)
		conn, err := q.pool.Acquire(ctx)
		require.NoError(t, err)
		_, err = conn.Conn().PgConn().Exec(ctx, q.store.text(string(sql))).ReadAll()
		conn.Release()
		require.NoError(t, err)
	}
	execute(t, q, "INSERT INTO {{schema}}.schema_version (version) VALUES (1)")
	start(t, q, "i")
	execute(t, q, `
		INSERT INTO {{schema}}.intent (instance_no, id, tenant_no, state, run_id, capability_id, contract_version, content_digest,
			idempotency_key, effect, retry_class, tenant_epoch, instance_epoch, resource_epoch, resource_scope_id, lease_epoch,
			action_epoch, prepared_at, input)
		SELECT i.instance_no, 'x', i.tenant_no, 'prepared', i.run_id, 'capability', '1', 'digest', 'key', 'read', 'none', 0, 0, 0, '', 1, 0,
			clock_timestamp(), '{"n":1}'
		FROM {{schema}}.instance i`)
	require.NoError(t, q.Migrate(ctx))
	work := claimIntent(t, q)
	require.Equal(t, "x", work.Intent.ID)
	require.Equal(t, testPin, work.Intent.Capability)
	require.NoError(t, func() error { _, err := q.MarkIntent(ctx, &work); return err }())
	fresh := newSchema(t, dsn)
	require.Equal(t, describe(t, open(t, dsn, fresh, Options{}).pool, fresh), describe(t, q.pool, schema))
}
