package supervisor

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func memList(t *testing.T, q *MemoryWorkQueue, filter Filter) []string {
	t.Helper()
	ids := []string{}
	for snapshot, err := range q.List(t.Context(), filter) {
		require.NoError(t, err)
		ids = append(ids, snapshot.TenantID+"/"+snapshot.ID)
	}
	return ids
}

func TestMemoryGet(t *testing.T) {
	q := NewMemoryWorkQueue(memItem("a"))
	_, err := q.Get(t.Context(), "t1", "unknown")
	require.ErrorIs(t, err, ErrNotFound)
	_, err = q.Get(t.Context(), "t2", "a")
	require.ErrorIs(t, err, ErrNotFound)
	item := memClaimOne(t, q)
	snapshot := memGet(t, q, "a")
	require.Equal(t, "w", snapshot.LeaseOwner)
	require.Equal(t, item.ClaimedAt.Add(time.Minute), snapshot.LeaseEndsAt)
	require.Equal(t, item.ScheduledAt, snapshot.NextDueAt)
	require.Equal(t, item.LeaseVersion, snapshot.LeaseVersion)
	snapshot.State[0], snapshot.Config[0] = 'X', 'X'
	require.JSONEq(t, `{"n":1}`, string(memGet(t, q, "a").State))
	require.JSONEq(t, `{"n":1}`, string(memGet(t, q, "a").Config))
}

func TestMemoryList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewMemoryWorkQueue()
		now := time.Now()
		memPush(q, "t2", "y", "b", now.Add(time.Hour))
		memPush(q, "t1", "x", "c", now.Add(2*time.Hour))
		memPush(q, "t1", "y", "a", now)
		memPush(q, "t1", "x", "b", now)
		all := []string{"t1/a", "t1/b", "t1/c", "t2/b"}
		require.Equal(t, all, memList(t, q, Filter{}))
		items := memClaim(t, q, 1, "x")
		memCommit(t, q, &items[0], Complete{})
		for _, test := range []struct {
			filter Filter
			want   []string
		}{
			{Filter{TenantID: "t1"}, []string{"t1/a", "t1/b", "t1/c"}},
			{Filter{TenantID: "t3"}, []string{}},
			{Filter{SpecID: "y"}, []string{"t1/a", "t2/b"}},
			{Filter{Status: StatusCompleted}, []string{"t1/b"}},
			{Filter{Status: StatusActive}, []string{"t1/a", "t1/c", "t2/b"}},
			{Filter{Status: StatusFailed}, []string{}},
			{Filter{DueBefore: now.Add(time.Hour)}, []string{"t1/a"}},
			{Filter{DueBefore: now.Add(time.Hour + 1)}, []string{"t1/a", "t2/b"}},
			{Filter{DueBefore: now.Add(9 * time.Hour), SpecID: "x"}, []string{"t1/c"}},
		} {
			require.Equal(t, test.want, memList(t, q, test.filter), "%+v", test.filter)
		}
		for _, err := range q.List(t.Context(), Filter{Status: "bogus"}) {
			require.ErrorContains(t, err, `"bogus"`)
		}
	})
}

// What changes while a list is read is seen or not, nothing is seen twice.
func TestMemoryListWhileItChanges(t *testing.T) {
	q := NewMemoryWorkQueue()
	for n := range 5 * memPage {
		memPush(q, "t1", "x", fmt.Sprintf("%04d", n), time.Now())
	}
	var seen []string
	for snapshot, err := range q.List(t.Context(), Filter{}) {
		require.NoError(t, err)
		seen = append(seen, snapshot.ID)
		switch len(seen) {
		case 10:
			items := memClaim(t, q, 2*memPage)
			for n := range items {
				memCommit(t, q, &items[n], Complete{})
			}
			removed, err := q.Prune(t.Context(), time.Now().Add(time.Second))
			require.NoError(t, err)
			require.Equal(t, 2*memPage, removed)
			memPush(q, "t1", "x", "0000", time.Now())
			memPush(q, "t1", "x", "9999", time.Now())
		case 3 * memPage:
			require.Len(t, memList(t, q, Filter{}), 3*memPage+2, "two lists at once")
		}
	}
	require.True(t, slices.IsSorted(seen))
	require.Equal(t, seen, slices.Compact(slices.Clone(seen)))
	require.Len(t, seen, 4*memPage)
	for range q.List(t.Context(), Filter{}) {
		break
	}
	require.Len(t, memClaim(t, q, 1), 1, "a list that was left keeps the queue locked")
}

func TestMemoryHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewMemoryWorkQueue(memItem("a"), memItem("b"))
		for _, err := range q.History(t.Context(), "t1", "unknown") {
			require.ErrorIs(t, err, ErrNotFound)
		}
		require.Empty(t, memEvents(t, q, "t1", "a"))
		for range 2*memPage + 1 {
			item := memClaimOne(t, q)
			memCommit(t, q, &item, Continue{})
			time.Sleep(time.Second)
		}
		events := memEvents(t, q, "t1", "a")
		require.Len(t, append(events, memEvents(t, q, "t1", "b")...), 2*memPage+1)
		for n := range events {
			require.Equal(t, int64(n+1), events[n].StateVersion)
		}
		events[0].Payload[0] = 'X'
		require.JSONEq(t, `{"from":0}`, string(memEvents(t, q, "t1", "a")[0].Payload))
		for range q.History(t.Context(), "t1", "a") {
			break
		}
		// An iteration that is under way sees its events through a Prune.
		count := 0
		for _, err := range q.History(t.Context(), "t1", "a") {
			require.NoError(t, err)
			if count++; count == 1 {
				_, err := q.Prune(t.Context(), time.Now())
				require.NoError(t, err)
			}
		}
		require.Equal(t, len(events), count)
		require.Len(t, memEvents(t, q, "t1", "a"), 1)
	})
}

func TestMemoryPrune(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewMemoryWorkQueue()
		for _, id := range []string{"completed", "failed", "cancelled", "active"} {
			memPush(q, "t1", "x", id, time.Time{})
		}
		require.NoError(t, q.Cancel(t.Context(), "t1", "cancelled"))
		items := memClaim(t, q, 9)
		memCommit(t, q, &items[0], Complete{})
		memCommit(t, q, &items[1], Failed{Reason: "for good"})
		memCommit(t, q, &items[2], Complete{})
		memCommit(t, q, &items[3], Continue{})
		finished := time.Now()
		for range 3 {
			time.Sleep(time.Hour)
			item := memClaimOne(t, q)
			memCommit(t, q, &item, Continue{})
		}
		prune := func(before time.Time) int {
			removed, err := q.Prune(t.Context(), before)
			require.NoError(t, err)
			return removed
		}
		require.Zero(t, prune(time.Time{}))
		require.Zero(t, prune(finished), "before it, not at it")
		require.Len(t, memEvents(t, q, "t1", "active"), 4)
		require.Equal(t, 3, prune(finished.Add(time.Hour)))
		require.Equal(t, []string{"t1/active"}, memList(t, q, Filter{}))
		require.Len(t, memEvents(t, q, "t1", "active"), 3, "older than it")
		require.Zero(t, prune(time.Now().Add(time.Hour)))
		require.Len(t, memEvents(t, q, "t1", "active"), 1, "all but the latest")
		require.Equal(t, int64(4), memEvents(t, q, "t1", "active")[0].StateVersion)
		item := memClaimOne(t, q)
		memCommit(t, q, &item, Continue{})
		time.Sleep(time.Hour)
		item = memClaimOne(t, q)
		memCommit(t, q, &item, Complete{})
		require.Zero(t, prune(time.Now()))
		require.Len(t, memEvents(t, q, "t1", "active"), 1, "also of one that finished later")
		command := memCommand(t, &items[0], Complete{})
		require.ErrorIs(t, q.CommitCommand(t.Context(), &items[0], &command), ErrNotFound)
		require.Len(t, q.Committed(), 9, "what was recorded stays until ClearHistory")
		started, err := q.Start(t.Context(), memInstance("completed"), time.Time{})
		require.NoError(t, err)
		require.True(t, started, "the id is free again")
	})
}

func TestMemoryPruneForgetsConsumedIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pushed := memItem("a")
		pushed.Wakeups = []Wakeup{{ID: "consumed", Kind: "signal"}, {ID: "pending", Kind: "signal"}}
		q := NewMemoryWorkQueue(pushed)
		item := memClaimOne(t, q)
		command := memCommand(t, &item, Continue{})
		command.ConsumedWakeups = []string{"consumed"}
		require.NoError(t, q.CommitCommand(t.Context(), &item, &command))
		known := func() int { return len(q.row("t1", "a").mail.known) }
		prune := func(before time.Time) {
			_, err := q.Prune(t.Context(), before)
			require.NoError(t, err)
		}
		consumed := time.Now()
		prune(consumed.Add(time.Hour))
		require.Equal(t, 2, known(), "remembered for a week at least")
		time.Sleep(WakeupMemory)
		prune(time.Now())
		require.Equal(t, 2, known())
		time.Sleep(time.Nanosecond)
		prune(consumed)
		require.Equal(t, 2, known(), "older than the instant")
		prune(time.Now())
		require.Equal(t, 1, known())
		require.NoError(t, q.Deliver(t.Context(), "t1", "a", Wakeup{ID: "pending", Kind: "signal"}, time.Time{}))
		require.Equal(t, 1, memGet(t, q, "a").PendingWakeups)
	})
}

// Tenants, lanes and specs go with their last instance, unless something is to
// be remembered of the tenant.
func TestMemoryPruneFreesEverything(t *testing.T) {
	q := NewMemoryWorkQueue()
	for n := range 100 {
		memPush(q, fmt.Sprint("tenant-", n%10), fmt.Sprint("spec-", n%20), fmt.Sprint(n), time.Time{})
	}
	require.NoError(t, q.Pause(t.Context(), Scope{TenantID: "tenant-1"}))
	require.NoError(t, q.Resume(t.Context(), Scope{TenantID: "tenant-1"}))
	items := memClaim(t, q, 100)
	require.Len(t, items, 100)
	for n := range items {
		memCommit(t, q, &items[n], Complete{})
	}
	removed, err := q.Prune(t.Context(), time.Now().Add(time.Second))
	require.NoError(t, err)
	require.Equal(t, 100, removed)
	require.Len(t, q.tenants, 1)
	require.Equal(t, int64(1), q.tenants["tenant-1"].epoch, "epochs never fall back")
	require.Empty(t, q.tenants["tenant-1"].lanes)
	require.Empty(t, q.schedule.specs)
	require.Zero(t, q.schedule.sleeping.len()+q.schedule.awake.len()+q.leases.len())
}

func TestMemoryExplain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewMemoryWorkQueue()
		_, err := q.Explain(t.Context(), "t1", "a")
		require.ErrorIs(t, err, ErrNotFound)
		explain := func(want Explanation) {
			t.Helper()
			explanation, err := q.Explain(t.Context(), "t1", "a")
			require.NoError(t, err)
			require.Equal(t, want, explanation)
		}
		now := time.Now().UTC()
		_, err = q.Start(t.Context(), memInstance("a"), now.Add(time.Hour))
		require.NoError(t, err)
		explain(Explanation{Reason: ReasonNotDue, Until: now.Add(time.Hour)})
		time.Sleep(time.Hour)
		explain(Explanation{Reason: ReasonDue})
		memClaimOne(t, q)
		explain(Explanation{Reason: ReasonRunning, By: "w", Until: now.Add(time.Hour + time.Minute)})
		require.NoError(t, q.Pause(t.Context(), Scope{TenantID: "t1", InstanceID: "a"}))
		time.Sleep(time.Minute)
		explain(Explanation{Reason: ReasonPaused, By: `tenant "t1" instance "a"`})
		require.NoError(t, q.Resume(t.Context(), Scope{TenantID: "t1", InstanceID: "a"}))
		item := memClaimOne(t, q)
		failure := FailureCommand(&item, "no such driver", time.Now().Add(time.Hour))
		failure.EventPayload = []byte(`{"error":"no such driver","class":"no_driver"}`)
		require.NoError(t, q.CommitCommand(t.Context(), &item, &failure))
		until := time.Now().Add(time.Hour).UTC()
		explain(Explanation{Reason: ReasonNoDriver, Detail: "no such driver", Until: until})
		time.Sleep(time.Hour)
		item = memClaimOne(t, q)
		require.NoError(t, q.Release(t.Context(), &item, "shutting down"))
		item = memClaimOne(t, q)
		memCommit(t, q, &item, Reschedule{At: endOfCalendar()})
		explain(Explanation{Reason: ReasonWaiting, Detail: "waits for a delivery"})
		require.NoError(t, q.Cancel(t.Context(), "t1", "a"))
		explain(Explanation{Reason: ReasonCancelling})
		item = memClaimOne(t, q)
		memCommit(t, q, &item, Complete{})
		explain(Explanation{Reason: ReasonCancelled})
	})
}
