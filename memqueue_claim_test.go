package supervisor

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// memPush pushes an item of a tenant and spec.
func memPush(q *MemoryWorkQueue, tenantID, specID, id string, dueAt time.Time) {
	item := memItem(id)
	item.TenantID, item.SpecID, item.ScheduledAt = tenantID, specID, dueAt
	q.Push(item)
}

func TestMemoryClaimRefusesBadRequests(t *testing.T) {
	q := NewMemoryWorkQueue(memItem("a"))
	for _, test := range []struct {
		field string
		req   ClaimRequest
	}{
		{"WorkerID", ClaimRequest{LeaseDuration: time.Second, Limit: 1}},
		{"LeaseDuration", ClaimRequest{WorkerID: "w", Limit: 1}},
		{"LeaseDuration", ClaimRequest{WorkerID: "w", LeaseDuration: -1, Limit: 1}},
		{"Limit", ClaimRequest{WorkerID: "w", LeaseDuration: time.Second}},
	} {
		_, err := q.ClaimDue(t.Context(), test.req)
		require.ErrorContains(t, err, test.field)
	}
	require.Len(t, memClaim(t, q, 1), 1, "a refused claim leased the item")
}

func TestMemoryClaimsInOrderOfDueTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewMemoryWorkQueue()
		now := time.Now()
		memPush(q, "t1", "x", "third", now.Add(-time.Minute))
		memPush(q, "t1", "y", "first", now.Add(-3*time.Minute))
		memPush(q, "t1", "x", "fourth", time.Time{})
		memPush(q, "t1", "x", "fifth", now)
		memPush(q, "t1", "y", "second", now.Add(-2*time.Minute))
		memPush(q, "t1", "x", "later", now.Add(time.Nanosecond))
		items := memClaim(t, q, 4)
		require.Equal(t, []string{"first", "second", "third", "fourth"}, memIDs(items))
		require.Equal(t, now.Add(-3*time.Minute).UTC(), items[0].ScheduledAt)
		memCommit(t, q, &items[0], Continue{})
		require.Equal(t, []string{"fifth", "first"}, memIDs(memClaim(t, q, 9)),
			"an item that is due again at once goes behind those already due")
		time.Sleep(time.Nanosecond)
		require.Equal(t, []string{"later"}, memIDs(memClaim(t, q, 9)))
	})
}

func TestMemoryClaimsOnlyWantedSpecs(t *testing.T) {
	q := NewMemoryWorkQueue()
	for _, spec := range []string{"x", "y", "z"} {
		memPush(q, "t1", spec, spec, time.Time{})
	}
	require.Empty(t, memClaim(t, q, 9, "unknown"))
	require.Equal(t, []string{"y"}, memIDs(memClaim(t, q, 9, "y", "y", "unknown")))
	require.Equal(t, []string{"x", "z"}, memIDs(memClaim(t, q, 9)), "no specs mean all")
}

func TestMemoryTenantsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		fill := func() *MemoryWorkQueue {
			q := NewMemoryWorkQueue()
			for n := range 4 {
				memPush(q, "t1", "x", fmt.Sprintf("a%d", n), now.Add(-time.Hour))
				memPush(q, "t2", "x", fmt.Sprintf("b%d", n), now.Add(-time.Minute))
				memPush(q, "t2", "y", fmt.Sprintf("c%d", n), now.Add(-2*time.Minute))
			}
			return q
		}
		q := fill()
		require.Equal(t, []string{"a0", "c0", "a1"}, memIDs(memClaim(t, q, 3)))
		require.Equal(t, []string{"c1", "a2", "c2", "a3", "c3", "b0", "b1", "b2", "b3"}, memIDs(memClaim(t, q, 20)),
			"round after round over claims, then what is left")

		q = fill()
		require.Equal(t, []string{"a0"}, memIDs(memClaim(t, q, 1, "x")))
		require.Equal(t, []string{"c0", "c1"}, memIDs(memClaim(t, q, 2, "y")), "a tenant without wanted work was served")
		require.Equal(t, []string{"a1", "b0", "a2"}, memIDs(memClaim(t, q, 3, "x")), "t1 was served less recently, for whatever spec")
		memPush(q, "t3", "x", "d0", time.Time{})
		require.Equal(t, []string{"d0", "b1"}, memIDs(memClaim(t, q, 2, "x")), "a tenant that was never served comes first")
		memPush(q, "t4", "z", "e0", time.Time{})
		memPush(q, "t4", "x", "e1", now.Add(time.Hour))
		require.Equal(t, []string{"a3", "b2", "b3"}, memIDs(memClaim(t, q, 9, "x")))
		require.Equal(t, []string{"e0", "c2"}, memIDs(memClaim(t, q, 2)), "a tenant without due work keeps its turn")
	})
}

// A tenant with a backlog does not delay the only item of another.
func TestMemoryFloodOfOneTenant(t *testing.T) {
	q := NewMemoryWorkQueue()
	for n := range 1000 {
		memPush(q, "flood", "x", fmt.Sprint(n), time.Now().Add(-time.Hour))
	}
	require.Len(t, memClaim(t, q, 10), 10)
	memPush(q, "t2", "x", "single", time.Now().Add(-time.Minute))
	require.Equal(t, "single", memClaim(t, q, 10)[0].ID)
}

func TestMemoryClaimCaptures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewMemoryWorkQueue()
		created := time.Now().UTC()
		instance := memInstance("a")
		instance.CapabilityPins = []CapabilityPin{{ID: "c", ContractVersion: "1", ContentDigest: "d"}}
		instance.Lifecycle = LifecyclePolicy{EventIdleTimeout: 24 * time.Hour}
		_, err := q.Start(t.Context(), instance, created.Add(time.Hour))
		require.NoError(t, err)
		require.NoError(t, q.Pause(t.Context(), Scope{TenantID: "t1"}))
		require.NoError(t, q.Resume(t.Context(), Scope{TenantID: "t1"}))
		require.NoError(t, q.Pause(t.Context(), Scope{TenantID: "t1", ResourceID: "r"}))
		require.NoError(t, q.Pause(t.Context(), Scope{TenantID: "t1", ResourceID: "s"}))
		require.NoError(t, q.Pause(t.Context(), Scope{TenantID: "t1", InstanceID: "a"}))
		require.NoError(t, q.Resume(t.Context(), Scope{TenantID: "t1", InstanceID: "a"}))
		wakeup := Wakeup{ID: "w1", Kind: "signal", BranchID: "b", Payload: json.RawMessage(`{"x":1.50}`)}
		require.NoError(t, q.Deliver(t.Context(), "t1", "a", wakeup, created.Add(90*time.Minute)))
		time.Sleep(2 * time.Hour)
		item := memClaimOne(t, q)
		require.Equal(t, WorkItem{
			Instance:      instance,
			ScheduledAt:   created.Add(time.Hour),
			CreatedAt:     created,
			ClaimedAt:     created.Add(2 * time.Hour),
			State:         instance.Config,
			ControlEpochs: ControlEpochs{Tenant: 1, Instance: 1, Resource: 2},
			LeaseVersion:  1,
			Wakeups:       []Wakeup{wakeup},
		}, item)
	})
}

func TestMemoryLeaseEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewMemoryWorkQueue(memItem("a"), memItem("b"))
		first := memClaimOne(t, q)
		time.Sleep(time.Minute - 1)
		require.Equal(t, []string{"b"}, memIDs(memClaim(t, q, 9)))
		time.Sleep(time.Nanosecond)
		second := memClaimOne(t, q)
		require.Equal(t, first.ID, second.ID)
		require.Equal(t, first.LeaseVersion+1, second.LeaseVersion)
		require.Equal(t, first.ScheduledAt, second.ScheduledAt, "due as it was")
		require.Zero(t, second.Attempt, "a lapsed lease is no failure")
		second.LeaseVersion, second.ClaimedAt = first.LeaseVersion, first.ClaimedAt
		require.Equal(t, first, second)
	})
}

// A holder that was frozen past its lease writes nothing once another has taken over.
func TestMemoryFrozenHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewMemoryWorkQueue(memItem("a"))
		a := memClaimOne(t, q)
		time.Sleep(time.Minute)
		require.ErrorIs(t, q.Renew(t.Context(), memLeaseOf(&a)), ErrLeaseLost, "renewed after the end")
		b := memClaimOne(t, q)
		require.ErrorIs(t, q.Renew(t.Context(), memLeaseOf(&a)), ErrLeaseLost)
		command := memCommand(t, &a, Complete{})
		require.ErrorIs(t, q.CommitCommand(t.Context(), &a, &command), ErrLeaseLost)
		require.ErrorIs(t, q.Release(t.Context(), &a, "late"), ErrLeaseLost)
		memCommit(t, q, &b, Continue{Delay: time.Minute})
		require.ErrorIs(t, q.CommitCommand(t.Context(), &a, &command), ErrDeliveryConflict, "both made the same key")
		command.DeliveryKey = "another"
		require.ErrorIs(t, q.CommitCommand(t.Context(), &a, &command), ErrLeaseLost)
		snapshot, err := q.Get(t.Context(), "t1", "a")
		require.NoError(t, err)
		require.Equal(t, int64(1), snapshot.StateVersion)
		require.Equal(t, StatusActive, snapshot.Status)
		require.Len(t, q.Committed(), 1)
	})
}

// memLeaseOf is the lease under which memClaim holds an item.
func memLeaseOf(item *WorkItem) Lease {
	return Lease{TenantID: item.TenantID, InstanceID: item.ID, WorkerID: "w", Version: item.LeaseVersion, Duration: time.Minute}
}

// A lapsed lease that nobody took still commits: the version decides.
func TestMemoryLapsedLeaseStillCommits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewMemoryWorkQueue(memItem("a"), memItem("b"))
		items := memClaim(t, q, 2)
		time.Sleep(time.Hour)
		memCommit(t, q, &items[0], Continue{Delay: time.Hour})
		require.Equal(t, []string{"b"}, memIDs(memClaim(t, q, 9)))
		require.Equal(t, "w", memEvents(t, q, "t1", "a")[0].WorkerID)
	})
}

// A restarted process with the same worker name holds nothing of its predecessor's.
func TestMemoryRestartedWorkerOfTheSameName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewMemoryWorkQueue(memItem("a"))
		old := memClaimOne(t, q)
		time.Sleep(time.Minute)
		fresh := memClaimOne(t, q)
		before, err := q.Get(t.Context(), "t1", "a")
		require.NoError(t, err)
		time.Sleep(time.Second)
		require.ErrorIs(t, q.Renew(t.Context(), memLeaseOf(&old)), ErrLeaseLost)
		after, err := q.Get(t.Context(), "t1", "a")
		require.NoError(t, err)
		require.Equal(t, before, after)
		require.NoError(t, q.Renew(t.Context(), memLeaseOf(&fresh)))
	})
}

func TestMemoryRenew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewMemoryWorkQueue(memItem("a"))
		item := memClaimOne(t, q)
		end := func() time.Time {
			snapshot, err := q.Get(t.Context(), "t1", "a")
			require.NoError(t, err)
			return snapshot.LeaseEndsAt
		}
		time.Sleep(30 * time.Second)
		require.NoError(t, q.Renew(t.Context(), memLeaseOf(&item)))
		require.Equal(t, time.Now().Add(time.Minute).UTC(), end())
		require.NoError(t, q.Renew(t.Context(), memLeaseOf(&item)), "repeating is harmless")
		time.Sleep(59 * time.Second)
		require.Empty(t, memClaim(t, q, 1), "claimed under a renewed lease")

		held := end()
		for name, change := range map[string]func(*Lease){
			"tenant":   func(l *Lease) { l.TenantID = "t2" },
			"instance": func(l *Lease) { l.InstanceID = "unknown" },
			"worker":   func(l *Lease) { l.WorkerID = "another" },
			"older":    func(l *Lease) { l.Version-- },
			"newer":    func(l *Lease) { l.Version++ },
		} {
			lease := memLeaseOf(&item)
			change(&lease)
			require.ErrorIs(t, q.Renew(t.Context(), lease), ErrLeaseLost, name)
		}
		lease := memLeaseOf(&item)
		lease.Duration = 0
		require.ErrorContains(t, q.Renew(t.Context(), lease), "Duration")
		require.Equal(t, held, end(), "a refused renewal moved the end")
		require.Len(t, q.Renewals(), 2)
		require.Equal(t, Renewal{TenantID: "t1", InstanceID: "a", WorkerID: "w", LeaseVersion: 1}, q.Renewals()[0])

		memCommit(t, q, &item, Complete{})
		require.ErrorIs(t, q.Renew(t.Context(), memLeaseOf(&item)), ErrLeaseLost, "renewed what is finished")
		lease = memLeaseOf(&item)
		lease.Duration = 1<<63 - 1
		q.Push(memItem("a"))
		memClaimOne(t, q)
		require.NoError(t, q.Renew(t.Context(), lease), "a lease of centuries")
		require.True(t, end().After(time.Now()))
	})
}

func TestMemoryRenewMeetsPausesAndCancels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, stop := range map[string]func(*MemoryWorkQueue) error{
			"tenant":   func(q *MemoryWorkQueue) error { return q.Pause(t.Context(), Scope{TenantID: "t1"}) },
			"instance": func(q *MemoryWorkQueue) error { return q.Pause(t.Context(), Scope{TenantID: "t1", InstanceID: "a"}) },
			"cancel":   func(q *MemoryWorkQueue) error { return q.Cancel(t.Context(), "t1", "a") },
		} {
			q := NewMemoryWorkQueue(memItem("a"))
			item := memClaimOne(t, q)
			require.NoError(t, stop(q))
			time.Sleep(time.Second)
			require.ErrorIs(t, q.Renew(t.Context(), memLeaseOf(&item)), ErrEpochStale, name)
			command := memCommand(t, &item, Complete{})
			require.ErrorIs(t, q.CommitCommand(t.Context(), &item, &command), ErrEpochStale, name)
			snapshot, err := q.Get(t.Context(), "t1", "a")
			require.NoError(t, err)
			require.Equal(t, item.ClaimedAt.Add(time.Minute), snapshot.LeaseEndsAt, "%s: the renewal extended the lease", name)
			require.Empty(t, q.Renewals(), name)
			require.Empty(t, q.Committed(), name)
			require.NoError(t, q.Release(t.Context(), &item, "revoked"), "%s: a release checks no epochs", name)
		}
		q := NewMemoryWorkQueue(memItem("a"))
		item := memClaimOne(t, q)
		require.NoError(t, q.Pause(t.Context(), Scope{TenantID: "t1", ResourceID: "r"}))
		require.NoError(t, q.Renew(t.Context(), memLeaseOf(&item)), "a resource's pause stops no claim")
	})
}

func TestMemoryRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		item := memItem("a")
		item.Attempt, item.StateVersion = 3, 7
		item.Wakeups = []Wakeup{{ID: "w1", Kind: "signal"}}
		q := NewMemoryWorkQueue(item)
		item = memClaimOne(t, q)
		time.Sleep(time.Second)
		require.NoError(t, q.Release(t.Context(), &item, "bad\x00byte"))
		explanation, err := q.Explain(t.Context(), "t1", "a")
		require.NoError(t, err)
		require.Equal(t, Explanation{Reason: ReasonDue, Detail: "bad\uFFFDbyte"}, explanation)
		require.ErrorIs(t, q.Release(t.Context(), &item, "again"), ErrLeaseLost)
		command := memCommand(t, &item, Complete{})
		require.ErrorIs(t, q.CommitCommand(t.Context(), &item, &command), ErrLeaseLost, "a late commit")
		require.ErrorIs(t, q.Renew(t.Context(), memLeaseOf(&item)), ErrLeaseLost)

		again := memClaimOne(t, q)
		require.Equal(t, item.LeaseVersion+2, again.LeaseVersion)
		again.LeaseVersion, again.ClaimedAt = item.LeaseVersion, item.ClaimedAt
		require.Equal(t, item, again, "state, attempt, wakeups and due time stay")

		unknown := memItem("unknown")
		require.ErrorIs(t, q.Release(t.Context(), &unknown, ""), ErrLeaseLost)
		q = NewMemoryWorkQueue(memItem("a"))
		item = memClaimOne(t, q)
		memCommit(t, q, &item, Continue{})
		require.ErrorIs(t, q.Release(t.Context(), &item, ""), ErrLeaseLost, "the lease was committed")
		item = memClaimOne(t, q)
		time.Sleep(time.Hour)
		require.NoError(t, q.Release(t.Context(), &item, ""), "the lease lapsed, but nobody took it")
	})
}

func TestMemoryClaimOfManyWakeups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		deliver := func(q *MemoryWorkQueue, id, kind string, size int, dueAt time.Time) {
			payload := json.RawMessage(`"` + strings.Repeat("x", max(size-2, 0)) + `"`)
			require.NoError(t, q.Deliver(t.Context(), "t1", "a", Wakeup{ID: id, Kind: kind, Payload: payload}, dueAt))
		}
		wakeupIDs := func(item WorkItem) []string {
			var ids []string
			for _, wakeup := range item.Wakeups {
				ids = append(ids, wakeup.ID)
			}
			return ids
		}
		now := time.Now()

		q := NewMemoryWorkQueue(memItem("a"))
		deliver(q, "now", "signal", 2, time.Time{})
		deliver(q, "second", "signal", 2, now.Add(-time.Minute))
		deliver(q, "third", "signal", 2, now.Add(-time.Minute))
		deliver(q, "first", "signal", 2, now.Add(-time.Hour))
		deliver(q, "ahead", "signal", 2, now.Add(time.Nanosecond))
		require.Equal(t, []string{"first", "second", "third", "now"}, wakeupIDs(memClaimOne(t, q)), "due time, then arrival")

		q = NewMemoryWorkQueue(memItem("a"))
		for n := range MaxClaimWakeups {
			deliver(q, fmt.Sprintf("s%d", n), "signal", 2, time.Time{})
		}
		item := memClaimOne(t, q)
		require.Len(t, item.Wakeups, MaxClaimWakeups, "as many as a claim holds")
		require.NoError(t, q.Release(t.Context(), &item, ""))
		for _, kind := range []string{"action", "child", "gate", "timer"} {
			deliver(q, kind, kind, 2, time.Time{})
		}
		item = memClaimOne(t, q)
		ids := wakeupIDs(item)
		require.Len(t, ids, MaxClaimWakeups)
		require.Equal(t, "s0", ids[0])
		require.Equal(t, []string{"s995", "action", "child", "gate", "timer"}, ids[MaxClaimWakeups-5:],
			"these kinds come before others, but in order")

		command := memCommand(t, &item, Continue{Delay: time.Hour})
		command.ConsumedWakeups = ids
		require.NoError(t, q.CommitCommand(t.Context(), &item, &command))
		item = memClaimOne(t, q)
		require.Equal(t, []string{"s996", "s997", "s998", "s999"}, wakeupIDs(item), "what was left over pulls the due time")
		memCommit(t, q, &item, Continue{Delay: time.Hour})
		require.Empty(t, memClaim(t, q, 1), "what was in the claim does not")

		q = NewMemoryWorkQueue(memItem("a"))
		deliver(q, "half", "signal", MaxClaimWakeupBytes/2, time.Time{})
		deliver(q, "other half", "signal", MaxClaimWakeupBytes/2, time.Time{})
		item = memClaimOne(t, q)
		require.Equal(t, []string{"half", "other half"}, wakeupIDs(item))
		require.NoError(t, q.Release(t.Context(), &item, ""))
		deliver(q, "small", "signal", 2, time.Time{})
		deliver(q, "timer", "timer", 2, time.Time{})
		require.Equal(t, []string{"half", "timer"}, wakeupIDs(memClaimOne(t, q)), "nothing overtakes what does not fit")

		pushed := memItem("a")
		pushed.Wakeups = []Wakeup{
			{ID: "huge", Kind: "signal", Payload: json.RawMessage(`"` + strings.Repeat("x", MaxClaimWakeupBytes) + `"`)},
			{ID: "small", Kind: "signal"},
		}
		q = NewMemoryWorkQueue(pushed)
		item = memClaimOne(t, q)
		require.Equal(t, []string{"huge"}, wakeupIDs(item), "one that is larger than the bound goes alone")
		command = memCommand(t, &item, Continue{Delay: time.Hour})
		command.ConsumedWakeups = []string{"huge"}
		require.NoError(t, q.CommitCommand(t.Context(), &item, &command))
		require.Equal(t, []string{"small"}, wakeupIDs(memClaimOne(t, q)))
	})
}

// Two days of missed timers come together, and again after a failure.
func TestMemoryManyMissedTimers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewMemoryWorkQueue(memItem("a"))
		var want []string
		for n := range 576 {
			id := fmt.Sprintf("timer-%d", n)
			want = append(want, id)
			require.NoError(t, q.Deliver(t.Context(), "t1", "a", Wakeup{ID: id, Kind: "timer"}, time.Now().Add(time.Duration(n)*5*time.Minute)))
		}
		time.Sleep(48 * time.Hour)
		item := memClaimOne(t, q)
		failure := FailureCommand(&item, "no", time.Now().Add(5*time.Second))
		require.NoError(t, q.CommitCommand(t.Context(), &item, &failure))
		require.Empty(t, memClaim(t, q, 1), "wakeups came before the retry time")
		time.Sleep(5 * time.Second)
		item = memClaimOne(t, q)
		command := memCommand(t, &item, Continue{Delay: time.Minute})
		for n := range item.Wakeups {
			command.ConsumedWakeups = append(command.ConsumedWakeups, item.Wakeups[n].ID)
		}
		require.Equal(t, want, command.ConsumedWakeups)
		require.NoError(t, q.CommitCommand(t.Context(), &item, &command))
		require.Empty(t, memClaim(t, q, 1))
		time.Sleep(time.Minute)
		item = memClaimOne(t, q)
		require.Empty(t, item.Wakeups)
	})
}

func TestMemoryMethodsHonourAnEndedContext(t *testing.T) {
	q := NewMemoryWorkQueue(memItem("a"), memItem("b"))
	item := memClaimOne(t, q)
	command := memCommand(t, &item, Complete{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	revision := Revision{}
	for name, call := range map[string]func() error{
		"ClaimDue": func() error {
			_, err := q.ClaimDue(ctx, ClaimRequest{WorkerID: "w", LeaseDuration: 1, Limit: 1})
			return err
		},
		"LoadRevision":    func() error { _, err := q.LoadRevision(ctx, &item); return err },
		"AdmitEvaluation": func() error { return q.AdmitEvaluation(ctx, &item) },
		"Renew":           func() error { return q.Renew(ctx, memLeaseOf(&item)) },
		"CommitCommand":   func() error { return q.CommitCommand(ctx, &item, &command) },
		"CommitAndKeep":   func() error { _, err := q.CommitAndKeep(ctx, &item, &command, time.Minute); return err },
		"Release":         func() error { return q.Release(ctx, &item, "") },
		"WaitDue":         func() error { return q.WaitDue(ctx, nil) },
		"Start":           func() error { _, err := q.Start(ctx, memInstance("c"), time.Time{}); return err },
		"Deliver":         func() error { return q.Deliver(ctx, "t1", "a", Wakeup{ID: "w", Kind: "k"}, time.Time{}) },
		"Cancel":          func() error { return q.Cancel(ctx, "t1", "a") },
		"Pause":           func() error { return q.Pause(ctx, Scope{TenantID: "t1"}) },
		"Resume":          func() error { return q.Resume(ctx, Scope{TenantID: "t1"}) },
		"Retry":           func() error { return q.Retry(ctx, "t1", "a") },
		"PublishRevision": func() error { return q.PublishRevision(ctx, "t1", &revision) },
		"Get":             func() error { _, err := q.Get(ctx, "t1", "a"); return err },
		"Explain":         func() error { _, err := q.Explain(ctx, "t1", "a"); return err },
		"Prune":           func() error { _, err := q.Prune(ctx, time.Now().Add(time.Hour)); return err },
		"List": func() error {
			for _, err := range q.List(ctx, Filter{}) {
				return err
			}
			return nil
		},
		"History": func() error {
			for _, err := range q.History(ctx, "t1", "a") {
				return err
			}
			return nil
		},
	} {
		require.ErrorIs(t, call(), context.Canceled, name)
	}
	require.NoError(t, q.CommitCommand(t.Context(), &item, &command), "something had changed")
	require.Equal(t, []string{"b"}, memIDs(memClaim(t, q, 9)))
}
