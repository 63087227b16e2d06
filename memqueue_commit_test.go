package supervisor

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

var memPin = CapabilityPin{ID: "mail", ContractVersion: "1", ContentDigest: "d"}

// memIntent is a valid intent of a claimed item, which needs memPin.
func memIntent(item *WorkItem, id string) ActionIntent {
	return ActionIntent{
		ID:             id,
		TenantID:       item.TenantID,
		InstanceID:     item.ID,
		RunID:          item.RunID,
		Capability:     memPin,
		IdempotencyKey: "key-" + id,
		State:          ActionPrepared,
		Effect:         EffectExternalWrite,
		RetryClass:     IdempotencyNative,
		ControlEpochs:  item.ControlEpochs,
		LeaseEpoch:     item.LeaseVersion,
		ActionEpoch:    item.StateVersion,
		Input:          json.RawMessage(`{"to":9007199254740993}`),
	}
}

func memPinned(id string) WorkItem {
	item := memItem(id)
	item.CapabilityPins = []CapabilityPin{memPin}
	return item
}

func memGet(t *testing.T, q *MemoryWorkQueue, id string) Snapshot {
	t.Helper()
	snapshot, err := q.Get(t.Context(), "t1", id)
	require.NoError(t, err)
	return snapshot
}

func TestMemoryCommitWritesEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewMemoryWorkQueue(memPinned("a"))
		require.NoError(t, q.Deliver(t.Context(), "t1", "a", Wakeup{ID: "w1", Kind: "signal"}, time.Time{}))
		require.NoError(t, q.Deliver(t.Context(), "t1", "a", Wakeup{ID: "w2", Kind: "signal"}, time.Time{}))
		item := memClaimOne(t, q)
		command := memCommand(t, &item, Continue{Delay: time.Hour})
		command.ConsumedWakeups = []string{"w1"}
		command.ActionIntents = []ActionIntent{memIntent(&item, "i1"), memIntent(&item, "i2")}
		time.Sleep(time.Second)
		now := time.Now().UTC()
		require.NoError(t, q.CommitCommand(t.Context(), &item, &command))

		snapshot := memGet(t, q, "a")
		require.Equal(t, string(command.NextState), string(snapshot.State))
		require.Equal(t, int64(1), snapshot.StateVersion)
		require.Equal(t, item.LeaseVersion, snapshot.LeaseVersion)
		require.Zero(t, snapshot.LeaseEndsAt)
		require.Empty(t, snapshot.LeaseOwner)
		require.Equal(t, 1, snapshot.PendingWakeups)
		require.Equal(t, now.Add(time.Hour), snapshot.NextDueAt)
		require.Equal(t, []Event{{
			TenantID: "t1", InstanceID: "a", Type: command.EventType, Digest: command.EventDigest,
			DeliveryKey: command.DeliveryKey, WorkerID: "w", StateVersion: 1, LeaseVersion: 1,
			Payload: command.EventPayload, At: now,
		}}, memEvents(t, q, "t1", "a"))
		intents := q.row("t1", "a").intents
		require.Equal(t, command.ActionIntents, []ActionIntent{intents.inOrder[0].Intent, intents.inOrder[1].Intent})
		require.Same(t, intents.inOrder[1], intents.byID["i2"])
	})
}

// The checks come in a fixed order, and a refused commit changes nothing.
func TestMemoryCommitChecksInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewMemoryWorkQueue(memPinned("a"))
		item := memClaimOne(t, q)
		first := memCommand(t, &item, Continue{})
		first.ActionIntents = []ActionIntent{memIntent(&item, "taken")}
		require.NoError(t, q.CommitCommand(t.Context(), &item, &first))
		item = memClaimOne(t, q)
		require.NoError(t, q.Pause(t.Context(), Scope{TenantID: "t1", InstanceID: "a"}))
		require.NoError(t, q.Pause(t.Context(), Scope{TenantID: "t1", ResourceID: "r"}))
		before, committed := memGet(t, q, "a"), q.Committed()

		// Everything is wrong at first; each row puts the foremost fault right.
		command := memCommand(t, &item, Continue{})
		command.EventType = ""
		command.DeliveryKey, command.DeliveryDigest = first.DeliveryKey, "other"
		claimed := item
		claimed.TenantID = "unknown"
		claimed.LeaseVersion++
		claimed.StateVersion++
		intent := memIntent(&item, "taken")
		intent.ResourceScopeID = "r"
		intent.LeaseEpoch++
		intent.TenantID = "unknown"
		command.ActionIntents = []ActionIntent{intent}
		for _, step := range []struct {
			want error
			fix  func()
		}{
			{ErrCommandRejected, func() { command.EventType = "step" }},
			{ErrNotFound, func() { claimed.TenantID, command.ActionIntents[0].TenantID = "t1", "t1" }},
			{ErrDeliveryConflict, func() { command.DeliveryKey = "fresh" }},
			{ErrLeaseLost, func() { claimed.LeaseVersion--; command.ActionIntents[0].LeaseEpoch-- }},
			{ErrStateConflict, func() { claimed.StateVersion-- }},
			{ErrEpochStale, func() {
				claimed.ControlEpochs.Instance++
				command.ActionIntents[0].ControlEpochs.Instance++
			}},
			{ErrEpochStale, func() { command.ActionIntents[0].ControlEpochs.Resource = 1 }},
			{ErrCommandRejected, func() { command.ActionIntents[0].ID = "free" }},
		} {
			require.ErrorIs(t, q.CommitCommand(t.Context(), &claimed, &command), step.want)
			kept, err := q.CommitAndKeep(t.Context(), &claimed, &command, time.Minute)
			require.ErrorIs(t, err, step.want)
			require.Nil(t, kept)
			require.Equal(t, before, memGet(t, q, "a"))
			require.Equal(t, committed, q.Committed())
			step.fix()
		}
		require.NoError(t, q.CommitCommand(t.Context(), &claimed, &command))
	})
}

func TestMemoryCommitIsIdempotent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewMemoryWorkQueue(memPinned("a"))
		require.NoError(t, q.Deliver(t.Context(), "t1", "a", Wakeup{ID: "w1", Kind: "signal"}, time.Time{}))
		item := memClaimOne(t, q)
		command := memCommand(t, &item, Continue{})
		command.DeliveryKey, command.DeliveryDigest = "k1", "d1"
		command.ConsumedWakeups = []string{"w1"}
		command.ActionIntents = []ActionIntent{memIntent(&item, "i1")}
		require.NoError(t, q.CommitCommand(t.Context(), &item, &command))
		before := memGet(t, q, "a")
		repeat := func(why string) {
			t.Helper()
			require.NoError(t, q.CommitCommand(t.Context(), &item, &command), why)
			require.Len(t, q.Committed(), 1)
			require.Len(t, memEvents(t, q, "t1", "a"), 1)
			require.Len(t, q.row("t1", "a").intents.inOrder, 1)
		}
		repeat("the acknowledgement was lost")
		require.Equal(t, before, memGet(t, q, "a"))

		other := command
		other.DeliveryDigest = "d2"
		err := q.CommitCommand(t.Context(), &item, &other)
		require.ErrorIs(t, err, ErrDeliveryConflict)
		require.NotErrorIs(t, err, ErrLeaseLost)
		var conflict *DeliveryConflictError
		require.ErrorAs(t, err, &conflict)
		require.Equal(t, DeliveryConflictError{Key: "k1", StoredDigest: "d1", Digest: "d2"}, *conflict)
		later := item
		later.StateVersion++
		require.ErrorIs(t, q.CommitCommand(t.Context(), &later, &command), ErrDeliveryConflict,
			"the same key and digest at another state version")
		require.Equal(t, before, memGet(t, q, "a"))

		held := memClaimOne(t, q)
		repeat("while another holds it")
		require.Equal(t, held.LeaseVersion, memGet(t, q, "a").LeaseVersion)
		last := memCommand(t, &held, Complete{})
		require.NoError(t, q.CommitCommand(t.Context(), &held, &last))
		require.NoError(t, q.CommitCommand(t.Context(), &held, &last), "when it is finished")
		require.ErrorIs(t, q.CommitCommand(t.Context(), &item, &command), ErrLeaseLost, "only the latest key is kept")
		last.DeliveryKey = "fresh"
		require.ErrorIs(t, q.CommitCommand(t.Context(), &held, &last), ErrStateConflict)
	})
}

// Keys, leases and instances of two tenants never meet.
func TestMemorySameIDInTwoTenants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := memItem("inst-1"), memItem("inst-1")
		b.TenantID = "t2"
		q := NewMemoryWorkQueue(a, b)
		items := memClaim(t, q, 2)
		require.Len(t, items, 2)
		time.Sleep(time.Second)
		require.NoError(t, q.Renew(t.Context(), memLeaseOf(&items[0])))
		other, err := q.Get(t.Context(), "t2", "inst-1")
		require.NoError(t, err)
		require.Equal(t, items[1].ClaimedAt.Add(time.Minute), other.LeaseEndsAt, "the lease of t2 moved")
		for n := range items {
			failure := FailureCommand(&items[n], "no", time.Now())
			require.NoError(t, q.CommitCommand(t.Context(), &items[n], &failure))
		}
		items = memClaim(t, q, 2)
		for n := range items {
			command := memCommand(t, &items[n], Complete{})
			command.DeliveryKey = "run-1"
			require.NoError(t, q.CommitCommand(t.Context(), &items[n], &command))
		}
		require.Len(t, q.Committed(), 4)
		require.Len(t, memEvents(t, q, "t2", "inst-1"), 2)
	})
}

func TestMemoryFailuresInDifferentWords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewMemoryWorkQueue(memItem("a"))
		reasons := []string{"err one", "err two", "err one", "bad\x00byte", "bad \xff\xfe", "\xed\xa0\x80", strings.Repeat("é", 3<<20)}
		for n, reason := range reasons {
			item := memClaimOne(t, q)
			require.Equal(t, n, item.Attempt)
			failure := FailureCommand(&item, reason, time.Now().Add(time.Second))
			require.NoError(t, q.CommitCommand(t.Context(), &item, &failure))
			require.Equal(t, cleanReason(reason), memGet(t, q, "a").LastError)
			require.Empty(t, memClaim(t, q, 1), "claimed before the retry time")
			time.Sleep(time.Second)
		}
		events := memEvents(t, q, "t1", "a")
		require.Len(t, events, len(reasons))
		for n, event := range events {
			require.Equal(t, int64(n+1), event.StateVersion)
			var payload struct{ Error string }
			require.NoError(t, json.Unmarshal(event.Payload, &payload))
			require.Equal(t, cleanReason(reasons[n]), payload.Error)
		}
		item := memClaimOne(t, q)
		memCommit(t, q, &item, Continue{})
		require.Zero(t, memGet(t, q, "a").Attempt)
		require.Empty(t, memGet(t, q, "a").LastError)
	})
}

// An enormous retry time is accepted and lies in the calendar.
func TestMemoryRetryAtTheEndOfTime(t *testing.T) {
	q := NewMemoryWorkQueue(memItem("a"))
	item := memClaimOne(t, q)
	failure := FailureCommand(&item, "no", time.Date(9999, 12, 31, 23, 59, 59, 999_999_999, time.UTC))
	require.NoError(t, q.CommitCommand(t.Context(), &item, &failure))
	require.Empty(t, memClaim(t, q, 1))
	require.Equal(t, endOfCalendar(), memGet(t, q, "a").NextDueAt)
}

func TestMemoryKeepsNumbersAsTheyAre(t *testing.T) {
	const config = `{"id":9007199254740993,"neg":-9223372036854775808,"u":18446744073709551615,"f":0.10,"e":1E2, "l":[1152921504606846977]}`
	q := NewMemoryWorkQueue()
	instance := memPinned("a").Instance
	instance.Config = json.RawMessage(config)
	_, err := q.Start(t.Context(), instance, time.Time{})
	require.NoError(t, err)
	for n := range 3 {
		wakeup := Wakeup{ID: fmt.Sprint(n), Kind: "signal", Payload: json.RawMessage(config)}
		require.NoError(t, q.Deliver(t.Context(), "t1", "a", wakeup, time.Time{}))
		item := memClaimOne(t, q)
		require.Equal(t, config, string(item.Config))
		require.Equal(t, config, string(item.State))
		require.Equal(t, config, string(item.Wakeups[0].Payload))
		command := memCommand(t, &item, Continue{})
		command.NextState, command.EventPayload = item.Config, item.Config
		command.ConsumedWakeups = []string{wakeup.ID}
		command.ActionIntents = []ActionIntent{memIntent(&item, wakeup.ID)}
		command.ActionIntents[0].Input = item.Config
		require.NoError(t, q.CommitCommand(t.Context(), &item, &command))
	}
	require.Equal(t, config, string(memGet(t, q, "a").State))
	for n, event := range memEvents(t, q, "t1", "a") {
		require.Equal(t, config, string(event.Payload))
		require.Equal(t, config, string(q.row("t1", "a").intents.inOrder[n].Intent.Input))
		require.Equal(t, config, string(q.Committed()[n].Command.NextState))
	}
}

func TestMemoryResourceEpochs(t *testing.T) {
	q := NewMemoryWorkQueue(memPinned("a"))
	pause := func(resource string) {
		require.NoError(t, q.Pause(t.Context(), Scope{TenantID: "t1", ResourceID: resource}))
	}
	pause("old")
	pause("old")
	require.NoError(t, q.Resume(t.Context(), Scope{TenantID: "t1", ResourceID: "old"}))
	pause("other")
	item := memClaimOne(t, q)
	require.Equal(t, int64(2), item.ControlEpochs.Resource, "one counter per tenant; pausing again raises nothing")
	try := func(id, resource string) error {
		command := memCommand(t, &item, Continue{Delay: time.Hour})
		intent := memIntent(&item, id)
		intent.ResourceScopeID = resource
		command.ActionIntents = []ActionIntent{intent}
		return q.CommitCommand(t.Context(), &item, &command)
	}
	pause("new")
	require.ErrorIs(t, try("i1", "new"), ErrEpochStale, "paused after the claim")
	require.NoError(t, q.Resume(t.Context(), Scope{TenantID: "t1", ResourceID: "new"}))
	require.ErrorIs(t, try("i1", "new"), ErrEpochStale, "resuming lowers nothing")
	require.NoError(t, try("i1", "old"), "paused before the claim: only its dispatch waits")

	pushed := memPinned("b")
	pushed.ControlEpochs = ControlEpochs{Tenant: 4, Instance: 5, Resource: 6}
	q.Push(pushed)
	item = memClaimOne(t, q)
	require.Equal(t, pushed.ControlEpochs, item.ControlEpochs, "pushed with epochs of its own")
	pause("newer")
	require.ErrorIs(t, try("i1", "newer"), ErrEpochStale)
	require.NoError(t, try("i1", "never paused"))
}

func TestMemoryCommitAndKeep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewMemoryWorkQueue(memPinned("a"), memItem("b"))
		item := memClaimOne(t, q)
		require.NoError(t, q.Deliver(t.Context(), "t1", "a", Wakeup{ID: "w1", Kind: "signal", Payload: json.RawMessage(`{"x":1.50}`)}, time.Time{}))
		time.Sleep(time.Second)
		command := memCommand(t, &item, Continue{})
		next, err := q.CommitAndKeep(t.Context(), &item, &command, time.Hour)
		require.NoError(t, err)
		now := time.Now().UTC()
		want := item
		want.ScheduledAt, want.ClaimedAt = now, now
		want.State, want.StateVersion, want.LeaseVersion = command.NextState, 1, 2
		want.Wakeups = []Wakeup{{ID: "w1", Kind: "signal", Payload: json.RawMessage(`{"x":1.50}`)}}
		require.Equal(t, &want, next)
		require.Equal(t, now.Add(time.Hour), memGet(t, q, "a").LeaseEndsAt)
		others := memClaim(t, q, 9)
		require.Equal(t, []string{"b"}, memIDs(others), "what is kept cannot be claimed")
		memCommit(t, q, &others[0], Complete{})

		require.NoError(t, q.Deliver(t.Context(), "t1", "a", Wakeup{ID: "w2", Kind: "signal"}, time.Time{}))
		again, err := q.CommitAndKeep(t.Context(), &item, &command, time.Hour)
		require.NoError(t, err)
		require.Equal(t, next, again, "a repeat returns the kept item as it was")
		require.NoError(t, q.CommitCommand(t.Context(), &item, &command), "a repeat of the other kind")
		require.Len(t, q.Committed(), 2)
		require.NoError(t, q.Renew(t.Context(), Lease{TenantID: "t1", InstanceID: "a", WorkerID: "w", Version: 2, Duration: time.Minute}))
		time.Sleep(time.Minute)
		again, err = q.CommitAndKeep(t.Context(), &item, &command, time.Hour)
		require.NoError(t, err)
		require.Nil(t, again, "the lease of the kept item has ended")
		taken := memClaimOne(t, q)
		require.Len(t, taken.Wakeups, 2)
		again, err = q.CommitAndKeep(t.Context(), &item, &command, time.Hour)
		require.NoError(t, err)
		require.Nil(t, again, "another holds it")

		_, err = q.CommitAndKeep(t.Context(), &taken, &command, 0)
		require.ErrorContains(t, err, "lease")
	})
}

func TestMemoryCommitAndKeepLetsGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, test := range map[string]struct {
			lifecycle   LifecyclePolicy
			disposition Disposition
			outcome     EvaluationOutcome
		}{
			"not due":             {disposition: Continue{Delay: 1}},
			"backs off":           {disposition: Failed{Reason: "no", RetryAt: time.Now().Add(time.Hour)}},
			"completed":           {disposition: Complete{}},
			"failed":              {disposition: Failed{Reason: "no"}},
			"completed by policy": {disposition: Continue{}, lifecycle: RunOnce(), outcome: EvaluationOutcome{Succeeded: true}},
		} {
			pushed := memItem("a")
			pushed.Lifecycle = test.lifecycle
			q := NewMemoryWorkQueue(pushed)
			item := memClaimOne(t, q)
			command := memCommand(t, &item, test.disposition)
			command.Outcome = test.outcome
			next, err := q.CommitAndKeep(t.Context(), &item, &command, time.Hour)
			require.NoError(t, err, name)
			require.Nil(t, next, name)
			snapshot := memGet(t, q, "a")
			require.Zero(t, snapshot.LeaseEndsAt, name)
			require.Equal(t, int64(1), snapshot.LeaseVersion, name)
			require.Equal(t, int64(1), snapshot.StateVersion, name)
		}
	})
}

// A kept claim raises lifecycle timers like any other.
func TestMemoryCommitAndKeepRaisesTimers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pushed := memItem("a")
		pushed.Lifecycle = LifecyclePolicy{ExpiresAt: time.Now().Add(time.Minute)}
		q := NewMemoryWorkQueue(pushed)
		item := memClaimOne(t, q)
		time.Sleep(time.Minute)
		command := memCommand(t, &item, Continue{Delay: time.Hour})
		next, err := q.CommitAndKeep(t.Context(), &item, &command, time.Hour)
		require.NoError(t, err)
		require.NotNil(t, next, "its timer made it due")
		require.True(t, next.IsConverging())
		require.Equal(t, "lifecycle:expired", next.Wakeups[0].ID)
	})
}

func TestMemoryLifecycle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now().UTC()
		begin := func(policy LifecyclePolicy) *MemoryWorkQueue {
			q := NewMemoryWorkQueue()
			instance := memPinned("a").Instance
			instance.Lifecycle = policy
			_, err := q.Start(t.Context(), instance, time.Time{})
			require.NoError(t, err)
			return q
		}

		now := time.Now()
		q := begin(LifecyclePolicy{StartsAt: now.Add(time.Hour), ExpiresAt: now.Add(2 * time.Hour), DrainDeadline: now.Add(3 * time.Hour)})
		require.Equal(t, start.Add(time.Hour), memGet(t, q, "a").NextDueAt)
		require.NoError(t, q.Deliver(t.Context(), "t1", "a", Wakeup{ID: "early", Kind: "signal"}, time.Time{}))
		require.Empty(t, memClaim(t, q, 1), "a delivery came before StartsAt")
		time.Sleep(time.Hour)
		item := memClaimOne(t, q)
		memCommit(t, q, &item, Continue{Delay: 24 * time.Hour})
		require.Equal(t, start.Add(2*time.Hour), memGet(t, q, "a").NextDueAt)
		time.Sleep(time.Hour)
		item = memClaimOne(t, q)
		require.Equal(t, []string{"early", "lifecycle:expired"}, []string{item.Wakeups[0].ID, item.Wakeups[1].ID})
		require.Equal(t, `{"kind":"terminal_action","reason":"expired"}`, string(item.Wakeups[1].Payload))
		require.False(t, item.CancelRequested)
		command := memCommand(t, &item, Continue{Delay: 24 * time.Hour})
		command.ActionIntents = []ActionIntent{memIntent(&item, "i1")}
		require.ErrorIs(t, q.CommitCommand(t.Context(), &item, &command), ErrCommandRejected, "intents after the expiry")
		command.ActionIntents = nil
		command.ConsumedWakeups = []string{"lifecycle:expired"}
		require.NoError(t, q.CommitCommand(t.Context(), &item, &command))
		require.Equal(t, StatusActive, memGet(t, q, "a").Status, "the drain deadline is still ahead")
		time.Sleep(time.Hour)
		item = memClaimOne(t, q)
		require.True(t, item.CancelRequested, "the drain deadline does what Cancel does")
		require.Equal(t, int64(1), item.ControlEpochs.Instance)
		require.NoError(t, q.Renew(t.Context(), memLeaseOf(&item)), "the claim that found it holds the new epoch")
		memCommit(t, q, &item, Complete{})
		require.Equal(t, StatusCancelled, memGet(t, q, "a").Status)

		q = begin(LifecyclePolicy{EventIdleTimeout: time.Hour, ProgressTimeout: 2 * time.Hour})
		item = memClaimOne(t, q)
		memCommit(t, q, &item, Continue{Delay: 24 * time.Hour})
		time.Sleep(time.Hour)
		item = memClaimOne(t, q)
		require.Equal(t, "lifecycle:event_idle", item.Wakeups[0].ID)
		failure := FailureCommand(&item, "no", time.Now().Add(3*time.Hour))
		require.NoError(t, q.CommitCommand(t.Context(), &item, &failure))
		time.Sleep(2 * time.Hour)
		require.Empty(t, memClaim(t, q, 1), "the retry floor holds timers back")
		require.NoError(t, q.Resume(t.Context(), Scope{TenantID: "t1", InstanceID: "a"}))
		item = memClaimOne(t, q)
		require.Equal(t, []string{"lifecycle:event_idle", "lifecycle:no_progress"}, []string{item.Wakeups[0].ID, item.Wakeups[1].ID})
		command = memCommand(t, &item, Continue{Delay: time.Hour})
		command.ConsumedWakeups = []string{"lifecycle:no_progress"}
		require.NoError(t, q.CommitCommand(t.Context(), &item, &command))
		require.Equal(t, StatusCompleted, memGet(t, q, "a").Status, "whatever the disposition")

		q = begin(LifecyclePolicy{Completion: CompletionPolicy{Kind: CompleteAfterMatchedEvaluations, N: 2}})
		for range 2 {
			item = memClaimOne(t, q)
			command = memCommand(t, &item, Continue{})
			command.Outcome = EvaluationOutcome{Matched: true}
			require.NoError(t, q.CommitCommand(t.Context(), &item, &command))
		}
		require.Equal(t, StatusCompleted, memGet(t, q, "a").Status)
		require.Empty(t, memClaim(t, q, 1))
	})
}

// A delivery that comes while the instance is claimed pulls its next due time,
// one that the claim contained does not.
func TestMemoryNextDueCountsWhatTheClaimDidNotContain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewMemoryWorkQueue(memItem("a"))
		deliver := func(id string, delay time.Duration) {
			require.NoError(t, q.Deliver(t.Context(), "t1", "a", Wakeup{ID: id, Kind: "signal"}, time.Now().Add(delay)))
		}
		deliver("contained", 0)
		deliver("ahead", time.Minute)
		item := memClaimOne(t, q)
		memCommit(t, q, &item, Continue{Delay: time.Hour})
		require.Equal(t, item.ClaimedAt.Add(time.Minute), memGet(t, q, "a").NextDueAt)
		time.Sleep(time.Minute)
		item = memClaimOne(t, q)
		require.Len(t, item.Wakeups, 2)
		deliver("meanwhile", -time.Second)
		memCommit(t, q, &item, Continue{Delay: time.Hour})
		require.Equal(t, time.Now().UTC(), memGet(t, q, "a").NextDueAt, "past due times mean now")
		item = memClaimOne(t, q)
		require.Len(t, item.Wakeups, 3)
		memCommit(t, q, &item, Reschedule{At: time.Now().Add(-time.Hour)})
		require.Equal(t, time.Now().UTC(), memGet(t, q, "a").NextDueAt)
	})
}

func TestMemoryCancelBetweenClaimAndCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewMemoryWorkQueue(memPinned("a"))
		item := memClaimOne(t, q)
		require.NoError(t, q.Cancel(t.Context(), "t1", "a"))
		command := memCommand(t, &item, Complete{})
		command.ActionIntents = []ActionIntent{memIntent(&item, "i1")}
		require.ErrorIs(t, q.CommitCommand(t.Context(), &item, &command), ErrEpochStale)
		require.Nil(t, q.row("t1", "a").intents)
		require.Equal(t, string(item.State), string(memGet(t, q, "a").State))
		require.NoError(t, q.Release(t.Context(), &item, "revoked"))
		item = memClaimOne(t, q)
		require.True(t, item.CancelRequested)
		command = memCommand(t, &item, Complete{})
		command.ActionIntents = []ActionIntent{memIntent(&item, "i1")}
		require.ErrorIs(t, q.CommitCommand(t.Context(), &item, &command), ErrCommandRejected, "intents of a cancelled instance")
		command.ActionIntents = nil
		require.NoError(t, q.CommitCommand(t.Context(), &item, &command))
		require.Equal(t, StatusCancelled, memGet(t, q, "a").Status)
		time.Sleep(24 * time.Hour)
		require.Empty(t, memClaim(t, q, 1))
	})
}
