package supervisor

import (
	"encoding/json"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestMemoryStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now().UTC()
		for name, test := range map[string]struct{ startsAt, dueAt, want time.Time }{
			"now":                  {want: now},
			"due later":            {dueAt: now.Add(time.Hour), want: now.Add(time.Hour)},
			"due before":           {dueAt: now.Add(-time.Hour), want: now.Add(-time.Hour)},
			"starts later":         {startsAt: now.Add(time.Hour), want: now.Add(time.Hour)},
			"starts before due":    {startsAt: now.Add(time.Hour), dueAt: now.Add(2 * time.Hour), want: now.Add(2 * time.Hour)},
			"started in the past":  {startsAt: now.Add(-time.Hour), want: now},
			"due in another place": {dueAt: now.Add(time.Hour).In(time.FixedZone("x", 3600)), want: now.Add(time.Hour)},
		} {
			q := NewMemoryWorkQueue()
			instance := memInstance("a")
			instance.Lifecycle.StartsAt = test.startsAt
			started, err := q.Start(t.Context(), instance, test.dueAt)
			require.NoError(t, err, name)
			require.True(t, started, name)
			require.Equal(t, test.want, memGet(t, q, "a").NextDueAt, name)

			before := memGet(t, q, "a")
			instance.SpecID, instance.Config = "other", json.RawMessage(`2`)
			started, err = q.Start(t.Context(), instance, now.Add(-24*time.Hour))
			require.NoError(t, err, name)
			require.False(t, started, name)
			require.Equal(t, before, memGet(t, q, "a"), "%s: the same id again changed something", name)
		}
	})
}

func TestMemoryStartRefusesBadInput(t *testing.T) {
	q := NewMemoryWorkQueue()
	for field, change := range map[string]func(*Instance){
		"ID":         func(i *Instance) { i.ID = " " },
		"TenantID":   func(i *Instance) { i.TenantID = "\xff" },
		"RunID":      func(i *Instance) { i.RunID = "run-1" },
		"Config":     func(i *Instance) { i.Config = json.RawMessage(`{`) },
		"Completion": func(i *Instance) { i.Lifecycle.Completion.Kind = "never" },
	} {
		instance := memInstance("a")
		change(&instance)
		started, err := q.Start(t.Context(), instance, time.Time{})
		require.ErrorContains(t, err, field)
		require.False(t, started)
	}
	_, err := q.Start(t.Context(), memInstance("a"), time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC))
	require.ErrorContains(t, err, "dueAt")
	require.Empty(t, q.tenants, "something was added")
}

// Instances share the pins that they have in common, and no others: any field
// that differs comes back as it was started.
func TestMemoryInstancesShareOnlyEqualPins(t *testing.T) {
	q := NewMemoryWorkQueue()
	base := memInstance("base")
	base.CapabilityPins = []CapabilityPin{memPin}
	want := map[string]Instance{}
	start := func(instance Instance) {
		t.Helper()
		started, err := q.Start(t.Context(), instance, time.Time{})
		require.NoError(t, err)
		require.True(t, started)
		want[instance.ID] = instance
	}
	start(base)
	fields := reflect.TypeFor[Instance]()
	for n := range fields.NumField() {
		instance := base
		instance.ID = "differs in " + fields.Field(n).Name
		switch field := reflect.ValueOf(&instance).Elem().Field(n); value := field.Addr().Interface().(type) {
		case *string:
			if field := fields.Field(n).Name; field == "RunID" {
				*value = "6ba7b810-9dad-41d1-80b4-00c04fd430c9"
			} else if field != "TenantID" && field != "ID" {
				*value += "x"
			}
		case *uint64:
			*value++
		case *LifecyclePolicy:
			value.ProgressTimeout = time.Hour
		case *[]CapabilityPin:
			*value = []CapabilityPin{memPin, {ID: "other", ContractVersion: "1", ContentDigest: "d"}}
		case *json.RawMessage:
			*value = json.RawMessage(`{"n":2}`)
		default:
			t.Fatalf("the test does not know how to change %s", fields.Field(n).Name)
		}
		start(instance)
	}
	empty := base
	empty.ID, empty.CapabilityPins = "no pins", nil
	start(empty)
	again := base
	again.ID = "again"
	start(again)
	again.ID = "and again"
	start(again)
	require.Same(t, q.row("t1", "again").pins, q.row("t1", "and again").pins)
	items := memClaim(t, q, 99)
	require.Len(t, items, len(want))
	for _, item := range items {
		require.Equal(t, want[item.ID], item.Instance)
		require.Equal(t, want[item.ID], memGet(t, q, item.ID).Instance)
	}
}

func TestMemoryDeliver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewMemoryWorkQueue()
		now := time.Now().UTC()
		_, err := q.Start(t.Context(), memInstance("a"), now.Add(24*time.Hour))
		require.NoError(t, err)
		w1 := Wakeup{ID: "w1", Kind: "signal", BranchID: "b"}
		deliver := func(w Wakeup, dueAt time.Time) error { return q.Deliver(t.Context(), "t1", "a", w, dueAt) }

		require.ErrorIs(t, q.Deliver(t.Context(), "t1", "unknown", w1, time.Time{}), ErrNotFound)
		require.ErrorIs(t, q.Deliver(t.Context(), "t2", "a", w1, time.Time{}), ErrNotFound)
		require.ErrorContains(t, deliver(Wakeup{ID: "w0"}, time.Time{}), "Kind")
		require.ErrorContains(t, deliver(Wakeup{ID: "lifecycle:expired", Kind: "timer"}, time.Time{}), "lifecycle:")
		require.ErrorContains(t, deliver(w1, time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC)), "dueAt")
		require.Zero(t, memGet(t, q, "a").PendingWakeups)

		require.NoError(t, deliver(w1, now.Add(2*time.Hour)))
		require.Equal(t, now.Add(2*time.Hour), memGet(t, q, "a").NextDueAt)
		require.NoError(t, deliver(Wakeup{ID: "w2", Kind: "signal"}, now.Add(time.Hour)))
		require.Equal(t, now.Add(time.Hour), memGet(t, q, "a").NextDueAt)
		require.NoError(t, deliver(Wakeup{ID: "w3", Kind: "signal"}, now.Add(3*time.Hour)))
		require.Equal(t, now.Add(time.Hour), memGet(t, q, "a").NextDueAt, "a later one pushes nothing back")
		require.NoError(t, deliver(w1, time.Time{}), "a known id")
		null := w1
		null.Payload = json.RawMessage(`null`)
		require.NoError(t, deliver(null, time.Time{}), "nil means null")
		require.Equal(t, now.Add(time.Hour), memGet(t, q, "a").NextDueAt)
		require.Equal(t, 3, memGet(t, q, "a").PendingWakeups)
		for name, change := range map[string]func(*Wakeup){
			"kind":    func(w *Wakeup) { w.Kind = "other" },
			"branch":  func(w *Wakeup) { w.BranchID = "" },
			"payload": func(w *Wakeup) { w.Payload = json.RawMessage(`1`) },
		} {
			other := w1
			change(&other)
			require.ErrorIs(t, deliver(other, time.Time{}), ErrDeliveryConflict, name)
		}

		require.NoError(t, deliver(Wakeup{ID: "w4", Kind: "signal"}, time.Time{}))
		item := memClaimOne(t, q)
		command := memCommand(t, &item, Continue{Delay: time.Hour})
		command.ConsumedWakeups = []string{"w4"}
		require.NoError(t, q.CommitCommand(t.Context(), &item, &command))
		require.NoError(t, deliver(Wakeup{ID: "w4", Kind: "signal"}, time.Time{}), "a consumed id")
		require.ErrorIs(t, deliver(Wakeup{ID: "w4", Kind: "other"}, time.Time{}), ErrDeliveryConflict)
		require.Empty(t, memClaim(t, q, 1), "a consumed wakeup came again")

		time.Sleep(time.Hour)
		item = memClaimOne(t, q)
		memCommit(t, q, &item, Failed{Reason: "for good"})
		require.NoError(t, deliver(Wakeup{ID: "w5", Kind: "signal"}, time.Time{}), "kept, but it wakes nothing")
		require.Empty(t, memClaim(t, q, 1))
		require.Zero(t, memGet(t, q, "a").NextDueAt)
		require.NoError(t, q.Retry(t.Context(), "t1", "a"))
		item = memClaimOne(t, q)
		require.Equal(t, "w5", item.Wakeups[len(item.Wakeups)-1].ID)
		memCommit(t, q, &item, Complete{})
		require.ErrorIs(t, deliver(Wakeup{ID: "w6", Kind: "signal"}, time.Time{}), ErrFinished)
		require.NoError(t, deliver(Wakeup{ID: "w5", Kind: "signal"}, time.Time{}), "a repeat whose acknowledgement was lost")
	})
}

func TestMemoryBackingOffHoldsWakeupsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var item WorkItem
		begin := func() *MemoryWorkQueue {
			pushed := memItem("a")
			pushed.Wakeups = []Wakeup{{ID: "w0", Kind: "signal"}}
			q := NewMemoryWorkQueue(pushed)
			item = memClaimOne(t, q)
			failure := FailureCommand(&item, "no", time.Now().Add(time.Hour))
			require.NoError(t, q.CommitCommand(t.Context(), &item, &failure))
			require.NoError(t, q.Deliver(t.Context(), "t1", "a", Wakeup{ID: "w1", Kind: "signal"}, time.Time{}))
			require.Equal(t, time.Now().Add(time.Hour).UTC(), memGet(t, q, "a").NextDueAt)
			time.Sleep(time.Minute)
			require.Empty(t, memClaim(t, q, 1))
			return q
		}
		instance := Scope{TenantID: "t1", InstanceID: "a"}

		q := begin()
		require.NoError(t, q.Pause(t.Context(), Scope{TenantID: "t1"}))
		require.NoError(t, q.Resume(t.Context(), Scope{TenantID: "t1"}))
		require.NoError(t, q.Resume(t.Context(), Scope{TenantID: "t1", ResourceID: "r"}))
		require.Empty(t, memClaim(t, q, 1), "resuming a tenant or resource lifts nothing")
		require.NoError(t, q.Pause(t.Context(), instance))
		require.NoError(t, q.Resume(t.Context(), instance))
		item = memClaimOne(t, q)
		require.Len(t, item.Wakeups, 2)
		require.Equal(t, 1, item.Attempt, "resuming counts no attempt and forgives none")
		require.Equal(t, time.Now().UTC(), item.ScheduledAt, "past due times mean now")

		q = begin()
		require.NoError(t, q.Cancel(t.Context(), "t1", "a"))
		item = memClaimOne(t, q)
		require.Equal(t, 1, item.Attempt)
		require.True(t, item.CancelRequested)

		q = begin()
		require.NoError(t, q.Retry(t.Context(), "t1", "a"))
		item = memClaimOne(t, q)
		require.Zero(t, item.Attempt)
		require.ErrorIs(t, q.Retry(t.Context(), "t1", "a"), ErrStateConflict)

		q = begin()
		time.Sleep(59 * time.Minute)
		require.Len(t, memClaimOne(t, q).Wakeups, 2, "the retry time lets them through")

		pushed := memItem("a")
		q = NewMemoryWorkQueue(pushed)
		item = memClaimOne(t, q)
		memCommit(t, q, &item, Failed{Reason: "no", RetryAt: time.Now().Add(time.Hour)})
		require.NoError(t, q.Resume(t.Context(), instance))
		require.Empty(t, memClaim(t, q, 1), "there is no wakeup to come before the retry time")
		require.NoError(t, q.Deliver(t.Context(), "t1", "a", Wakeup{ID: "w1", Kind: "signal"}, time.Time{}))
		require.Len(t, memClaim(t, q, 1), 1)
	})
}

func TestMemoryCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewMemoryWorkQueue()
		_, err := q.Start(t.Context(), memInstance("a"), time.Now().Add(time.Hour))
		require.NoError(t, err)
		require.ErrorIs(t, q.Cancel(t.Context(), "t1", "unknown"), ErrNotFound)
		require.NoError(t, q.Cancel(t.Context(), "t1", "a"))
		before := memGet(t, q, "a")
		require.Equal(t, int64(1), before.ControlEpochs.Instance)
		require.Equal(t, time.Now().UTC(), before.NextDueAt)
		require.Equal(t, StatusActive, before.Status)
		require.NoError(t, q.Cancel(t.Context(), "t1", "a"))
		require.Equal(t, before, memGet(t, q, "a"), "again changes nothing")
		item := memClaimOne(t, q)
		require.True(t, item.IsConverging())
		memCommit(t, q, &item, Continue{})
		require.Equal(t, StatusActive, memGet(t, q, "a").Status)
		item = memClaimOne(t, q)
		memCommit(t, q, &item, Failed{Reason: "for good"})
		before = memGet(t, q, "a")
		require.Equal(t, StatusCancelled, before.Status)
		require.NoError(t, q.Cancel(t.Context(), "t1", "a"))
		require.Equal(t, before, memGet(t, q, "a"), "of a finished one changes nothing")

		q = NewMemoryWorkQueue(memItem("a"))
		item = memClaimOne(t, q)
		memCommit(t, q, &item, Failed{Reason: "for good"})
		time.Sleep(time.Minute)
		require.NoError(t, q.Cancel(t.Context(), "t1", "a"))
		require.Equal(t, StatusCancelled, memGet(t, q, "a").Status, "one that failed for good is cancelled at once")
		require.Equal(t, time.Now().UTC(), memGet(t, q, "a").FinishedAt)
		require.Empty(t, memClaim(t, q, 1))

		q = NewMemoryWorkQueue(memItem("overdue"), memItem("a"))
		time.Sleep(time.Minute)
		require.NoError(t, q.Cancel(t.Context(), "t1", "overdue"))
		require.Equal(t, []string{"overdue", "a"}, memIDs(memClaim(t, q, 2)), "cancelling moves nothing back")

		q = NewMemoryWorkQueue(memItem("a"))
		require.NoError(t, q.Pause(t.Context(), Scope{TenantID: "t1", InstanceID: "a"}))
		require.NoError(t, q.Cancel(t.Context(), "t1", "a"))
		require.Empty(t, memClaim(t, q, 1), "a paused one converges after Resume")
		require.NoError(t, q.Resume(t.Context(), Scope{TenantID: "t1", InstanceID: "a"}))
		require.True(t, memClaimOne(t, q).CancelRequested)
	})
}

func TestMemoryPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tenant, instance := Scope{TenantID: "t1"}, Scope{TenantID: "t1", InstanceID: "a"}
		q := NewMemoryWorkQueue()
		require.ErrorContains(t, q.Pause(t.Context(), Scope{}), "TenantID")
		require.ErrorContains(t, q.Resume(t.Context(), Scope{TenantID: "t1", InstanceID: "a", ResourceID: "r"}), "only one")
		require.ErrorIs(t, q.Pause(t.Context(), instance), ErrNotFound)
		require.ErrorIs(t, q.Resume(t.Context(), instance), ErrNotFound)
		require.NoError(t, q.Resume(t.Context(), tenant), "tenants need not exist yet")
		require.NoError(t, q.Resume(t.Context(), Scope{TenantID: "t1", ResourceID: "r"}))
		require.Empty(t, q.tenants)

		require.NoError(t, q.Pause(t.Context(), tenant), "tenants need not exist yet")
		require.NoError(t, q.Pause(t.Context(), tenant), "again")
		q.Push(memItem("a"))
		memPush(q, "t1", "other", "b", time.Time{})
		memPush(q, "t2", "spec", "c", time.Time{})
		require.Equal(t, []string{"c"}, memIDs(memClaim(t, q, 9)))
		require.NoError(t, q.Pause(t.Context(), instance))
		require.NoError(t, q.Pause(t.Context(), instance), "again")
		snapshot := memGet(t, q, "a")
		require.Equal(t, &tenant, snapshot.PausedBy, "the widest")
		require.Equal(t, int64(1), snapshot.ControlEpochs.Instance)
		require.NoError(t, q.Resume(t.Context(), tenant))
		require.Equal(t, &instance, memGet(t, q, "a").PausedBy, "pauses add up")
		require.Equal(t, []string{"b"}, memIDs(memClaim(t, q, 9)))

		_, err := q.Start(t.Context(), memInstance("d"), time.Time{})
		require.NoError(t, err)
		require.NoError(t, q.Deliver(t.Context(), "t1", "a", Wakeup{ID: "w", Kind: "signal"}, time.Time{}), "deliveries work on")
		require.NoError(t, q.Resume(t.Context(), instance))
		require.Nil(t, memGet(t, q, "a").PausedBy)
		require.Equal(t, int64(1), memGet(t, q, "a").ControlEpochs.Instance, "resuming raises nothing")
		require.Equal(t, []string{"a", "d"}, memIDs(memClaim(t, q, 9)))

		q.Push(memItem("e"))
		require.NoError(t, q.Pause(t.Context(), Scope{TenantID: "t1", ResourceID: "r"}))
		require.Equal(t, []string{"e"}, memIDs(memClaim(t, q, 9)), "a resource's pause stops no claims")
		require.Nil(t, memGet(t, q, "e").PausedBy)

		// A lease that ends during a pause makes nothing due until it is over.
		require.NoError(t, q.Pause(t.Context(), tenant))
		time.Sleep(time.Hour)
		require.Equal(t, []string{"c"}, memIDs(memClaim(t, q, 9)))
		require.NoError(t, q.Resume(t.Context(), tenant))
		require.Len(t, memClaim(t, q, 9), 4)
	})
}

func TestMemoryRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewMemoryWorkQueue(memItem("a"))
		require.ErrorIs(t, q.Retry(t.Context(), "t1", "unknown"), ErrNotFound)
		require.ErrorIs(t, q.Retry(t.Context(), "t1", "a"), ErrStateConflict, "it has not failed")
		item := memClaimOne(t, q)
		memCommit(t, q, &item, Failed{Reason: "for good"})
		require.Equal(t, StatusFailed, memGet(t, q, "a").Status)
		require.Equal(t, time.Now().UTC(), memGet(t, q, "a").FinishedAt)
		time.Sleep(time.Hour)
		require.NoError(t, q.Retry(t.Context(), "t1", "a"))
		snapshot := memGet(t, q, "a")
		require.Equal(t, StatusActive, snapshot.Status)
		require.Zero(t, snapshot.FinishedAt)
		require.Zero(t, snapshot.Attempt)
		require.Equal(t, time.Now().UTC(), snapshot.NextDueAt)
		item = memClaimOne(t, q)
		require.JSONEq(t, `{"at":1}`, string(item.State), "from its state")
		memCommit(t, q, &item, Complete{})
		require.ErrorIs(t, q.Retry(t.Context(), "t1", "a"), ErrStateConflict)
	})
}

func memRevisionOf(instance Instance) Revision {
	return Revision{
		DefinitionID:       instance.DefinitionID,
		Revision:           instance.WorkflowRevision,
		SpecID:             instance.SpecID,
		Spec:               json.RawMessage(`{"steps":[1,2]}`),
		ContentDigest:      instance.WorkflowRevisionDigest,
		KernelABIVersion:   "1",
		Capabilities:       []CapabilityPin{memPin},
		ExpressionVersions: map[string]string{"cel": "1"},
	}
}

func TestMemoryRevisions(t *testing.T) {
	q := NewMemoryWorkQueue(memItem("a"))
	item := memClaimOne(t, q)
	_, err := q.LoadRevision(t.Context(), &item)
	require.ErrorIs(t, err, ErrRevisionUnavailable)

	revision := memRevisionOf(item.Instance)
	require.ErrorContains(t, q.PublishRevision(t.Context(), " ", &revision), "tenantID")
	require.ErrorContains(t, q.PublishRevision(t.Context(), "t1", &Revision{}), "DefinitionID")
	require.NoError(t, q.PublishRevision(t.Context(), "t2", &revision))
	_, err = q.LoadRevision(t.Context(), &item)
	require.ErrorIs(t, err, ErrRevisionUnavailable, "published in another tenant")
	require.NoError(t, q.PublishRevision(t.Context(), "t1", &revision))
	published := *revision.clone()
	revision.Spec[2] = 'X'
	revision.Capabilities[0].ID = "changed"
	revision.ExpressionVersions["cel"] = "2"
	loaded, err := q.LoadRevision(t.Context(), &item)
	require.NoError(t, err)
	require.Equal(t, &published, loaded, "the queue shares the caller's memory")
	loaded.Spec[2] = 'X'
	loaded, err = q.LoadRevision(t.Context(), &item)
	require.NoError(t, err)
	require.Equal(t, &published, loaded, "a loader shares the queue's memory")

	same := *published.clone()
	same.Spec = json.RawMessage(`{ "steps": [1, 2.0] }`)
	require.NoError(t, q.PublishRevision(t.Context(), "t1", &same), "the same content")
	for name, change := range map[string]func(*Revision){
		"spec":       func(r *Revision) { r.Spec = json.RawMessage(`{}`) },
		"digest":     func(r *Revision) { r.ContentDigest = "other" },
		"capability": func(r *Revision) { r.Capabilities = nil },
	} {
		other := *published.clone()
		change(&other)
		require.ErrorIs(t, q.PublishRevision(t.Context(), "t1", &other), ErrStateConflict, name)
	}
	next := *published.clone()
	next.Revision++
	require.NoError(t, q.PublishRevision(t.Context(), "t1", &next))
	for name, change := range map[string]func(*WorkItem){
		"definition": func(w *WorkItem) { w.DefinitionID = "other" },
		"revision":   func(w *WorkItem) { w.WorkflowRevision = 3 },
		"digest":     func(w *WorkItem) { w.WorkflowRevisionDigest = "other" },
	} {
		other := item
		change(&other)
		_, err := q.LoadRevision(t.Context(), &other)
		require.ErrorIs(t, err, ErrRevisionUnavailable, name)
	}
}
