package pgqueue

import (
	"context"
	"sort"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/workflow-supervisor/supervisor"
)

// withoutTimes is a record in which each instant is only there or not.
func withoutTimes(r supervisor.IntentRecord) supervisor.IntentRecord {
	some := time.Unix(1, 0).UTC()
	for _, at := range []*time.Time{&r.DueAt, &r.LeaseEndsAt, &r.MarkedAt, &r.CancelRequestedAt, &r.SettledAt, &r.Intent.Deadline} {
		if !at.IsZero() {
			*at = some
		}
	}
	r.Intent.RunID = ""
	return r
}

// TestStatementsAgreeWithTheRules proves that what is decided in SQL, or from what a
// claim has seen, is what the rules say of a locked intent. One queue decides in
// the short way. The other has a limit, that covers nothing, so that claims are
// decided by the rules, and what follows is done by a queue that has claimed
// nothing.
func TestStatementsAgreeWithTheRules(t *testing.T) {
	dsn := testDSN(t)
	ctx := context.Background()
	shortSchema, longSchema := newSchema(t, dsn), newSchema(t, dsn)
	short := open(t, dsn, shortSchema, Options{})
	long, far := open(t, dsn, longSchema, Options{}), open(t, dsn, longSchema, Options{})
	require.NoError(t, long.LimitIntents(ctx, supervisor.IntentLimit{CapabilityID: "nobody's", Max: 1}))
	soon := time.Now().Add(time.Hour)
	for _, q := range []*Queue{short, long} {
		for _, tenant := range []string{"plain", "paused", "resumed", "instance paused", "cancelled", "resource", "other resource"} {
			var makers []func(item *supervisor.WorkItem) supervisor.ActionIntent
			for _, class := range []supervisor.IdempotencyMode{supervisor.IdempotencyNone, supervisor.IdempotencyNative} {
				for _, effect := range []supervisor.Effect{supervisor.EffectRead, supervisor.EffectExternalWrite} {
					change := []func(i *supervisor.ActionIntent){on("res"), func(i *supervisor.ActionIntent) { i.RetryClass, i.Effect = class, effect }}
					id := string(class) + " " + string(effect)
					makers = append(makers, made(id, change...),
						made(id+" late", append(change, func(i *supervisor.ActionIntent) { i.Deadline = time.Now().Add(-time.Second) })...),
						made(id+" in time", append(change, func(i *supervisor.ActionIntent) { i.Deadline = soon })...),
						made(id+" asks", append(change, func(i *supervisor.ActionIntent) { i.RequiresConfirmation = true })...))
				}
			}
			prepare(t, q, tenant, "i", makers...)
		}
		require.NoError(t, q.Pause(ctx, supervisor.Scope{TenantID: "paused"}))
		require.NoError(t, q.Pause(ctx, supervisor.Scope{TenantID: "resumed"}))
		require.NoError(t, q.Resume(ctx, supervisor.Scope{TenantID: "resumed"}))
		require.NoError(t, q.Pause(ctx, supervisor.Scope{TenantID: "instance paused", InstanceID: "i"}))
		require.NoError(t, q.Cancel(ctx, "cancelled", "i"))
		require.NoError(t, q.Pause(ctx, supervisor.Scope{TenantID: "resource", ResourceID: "res"}))
		require.NoError(t, q.Pause(ctx, supervisor.Scope{TenantID: "other resource", ResourceID: "other"}))
	}
	list := func(q *Queue) (records []supervisor.IntentRecord) {
		for r, err := range q.ListIntents(ctx, supervisor.IntentFilter{}) {
			require.NoError(t, err)
			records = append(records, withoutTimes(r))
		}
		return records
	}
	agree := func(what string) {
		t.Helper()
		want, got := list(long), list(short)
		require.Len(t, got, len(want), what)
		for n := range want {
			require.Equal(t, want[n], got[n], what)
		}
	}
	agree("prepared")
	for _, marks := range []bool{false, true} {
		req := intentRequest(100)
		req.MarkRepeatable = marks
		byKey := func(works []supervisor.IntentWork) {
			sort.Slice(works, func(i, j int) bool {
				a, b := works[i].Key(), works[j].Key()
				return a.TenantID+"\x00"+a.IntentID < b.TenantID+"\x00"+b.IntentID
			})
		}
		want, got := claimIntents(t, long, req), claimIntents(t, short, req)
		byKey(want)
		byKey(got)
		require.Equal(t, intentIDs(want), intentIDs(got))
		require.NotEmpty(t, want)
		for n := range want {
			require.Equal(t, withoutTimes(want[n].IntentRecord), withoutTimes(got[n].IntentRecord))
			require.Equal(t, want[n].Task, got[n].Task)
			require.WithinDuration(t, got[n].ClaimedAt.Add(testLease), got[n].LeaseEndsAt, 0)
			require.Equal(t, got[n].LeaseEndsAt, got[n].DueAt)
		}
		agree("claimed")
		for n := range want {
			if want[n].Intent.State == supervisor.ActionDispatchCommitted {
				continue
			}
			held, err := short.MarkIntent(ctx, &got[n])
			require.NoError(t, err)
			looked, err := far.MarkIntent(ctx, &want[n])
			require.NoError(t, err)
			require.Equal(t, withoutTimes(looked.IntentRecord), withoutTimes(held.IntentRecord))
			want[n], got[n] = looked, held
		}
		agree("marked")
		for n := range want {
			end := func(q *Queue, work *supervisor.IntentWork) error {
				switch n % 5 {
				case 0:
					return q.RecordReceipt(ctx, work, supervisor.Receipt{Reference: "r", Report: supervisor.Report{After: time.Hour}})
				case 1:
					return q.SettleIntent(ctx, work, supervisor.Settlement{State: supervisor.ActionRetryable, Proof: supervisor.ProofReported})
				case 2:
					return q.SettleIntent(ctx, work, supervisor.Settlement{State: supervisor.ActionUnknown, Cause: supervisor.CauseAmbiguous})
				case 3:
					return q.ReleaseIntent(ctx, work, supervisor.IntentRelease{NotHandedOff: true})
				}
				return q.SettleIntent(ctx, work, succeeded())
			}
			require.NoError(t, end(short, &got[n]))
			require.NoError(t, end(far, &want[n]))
		}
		agree("ended")
		for _, tenant := range []string{"plain", "other resource"} {
			require.Equal(t, getOf(t, long, tenant, "i").PendingWakeups, getOf(t, short, tenant, "i").PendingWakeups)
		}
	}
	for _, q := range []*Queue{short, long} {
		for _, scope := range []supervisor.Scope{{TenantID: "paused"}, {TenantID: "instance paused", InstanceID: "i"}, {TenantID: "resource", ResourceID: "res"}} {
			require.NoError(t, q.Resume(ctx, scope))
		}
	}
	agree("resumed")
	require.Len(t, claimIntents(t, short, intentRequest(1000)), len(claimIntents(t, long, intentRequest(1000))))
	agree("claimed after the pauses")
}

// TestUnparkingAgreesWithTheRule compares the statement that ends a pause with the
// rule.
func TestUnparkingAgreesWithTheRule(t *testing.T) {
	q := newQueue(t, Options{})
	ctx := context.Background()
	prepare(t, q, testTenant, "i", madeMany(12)...)
	works := claimIntents(t, q, intentRequest(6))
	work := mark(t, q, works[0])
	require.NoError(t, q.SettleIntent(ctx, &work, succeeded()))
	work = mark(t, q, works[1])
	require.NoError(t, q.SettleIntent(ctx, &work, supervisor.Settlement{State: supervisor.ActionRetryable, Proof: supervisor.ProofReported, Delay: time.Hour}))
	mark(t, q, works[2])
	execute(t, q, "UPDATE {{schema}}.intent SET lease_ends_at = clock_timestamp() - interval '1 hour' WHERE id = $1", works[3].Intent.ID)
	execute(t, q, "UPDATE {{schema}}.intent SET parked = 'limit', parked_at = clock_timestamp(), due_at = NULL WHERE id = 'intent-9'")
	require.NoError(t, q.Pause(ctx, supervisor.Scope{TenantID: testTenant}))
	read := func() (records []supervisor.IntentRecord) {
		for r, err := range q.ListIntents(ctx, supervisor.IntentFilter{}) {
			require.NoError(t, err)
			records = append(records, r)
		}
		return records
	}
	want := read()
	now := time.Now()
	for n := range want {
		want[n].Unpark(now)
	}
	require.NoError(t, q.Resume(ctx, supervisor.Scope{TenantID: testTenant}))
	got := read()
	for n := range want {
		if want[n].DueAt.Equal(now) {
			require.WithinDuration(t, now, got[n].DueAt, 30*time.Second)
			want[n].DueAt = got[n].DueAt
		}
		require.Equal(t, want[n], got[n])
	}
}
