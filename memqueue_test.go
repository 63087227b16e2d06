package supervisor

import (
	"context"
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// memItem is a valid item of tenant t1 as a test pushes it.
func memItem(id string) WorkItem {
	return WorkItem{Instance: memInstance(id)}
}

func memInstance(id string) Instance {
	return Instance{
		ID:                       id,
		RunID:                    "6ba7b810-9dad-41d1-80b4-00c04fd430c8",
		TenantID:                 "t1",
		SubjectID:                "s1",
		SpecID:                   "spec",
		DefinitionID:             "def",
		WorkflowRevision:         1,
		WorkflowRevisionDigest:   "wd",
		ExecutionProfileID:       "p",
		ExecutionProfileRevision: 1,
		ExecutionProfileDigest:   "pd",
		KernelABIVersion:         "1",
		Config:                   json.RawMessage(`{"n":1}`),
	}
}

// memClaim claims at most limit items for a minute.
func memClaim(t *testing.T, q *MemoryWorkQueue, limit int, specIDs ...string) []WorkItem {
	t.Helper()
	items, err := q.ClaimDue(t.Context(), ClaimRequest{SpecIDs: specIDs, WorkerID: "w", LeaseDuration: time.Minute, Limit: limit})
	require.NoError(t, err)
	return items
}

func memClaimOne(t *testing.T, q *MemoryWorkQueue) WorkItem {
	t.Helper()
	items := memClaim(t, q, 1)
	require.Len(t, items, 1)
	return items[0]
}

func memCommand(t *testing.T, item *WorkItem, d Disposition) TransitionCommand {
	t.Helper()
	command, err := NewCommand(item, "step", map[string]int64{"from": item.StateVersion}, map[string]int64{"at": item.StateVersion + 1}, d)
	require.NoError(t, err)
	return command
}

func memCommit(t *testing.T, q *MemoryWorkQueue, item *WorkItem, d Disposition) {
	t.Helper()
	command := memCommand(t, item, d)
	require.NoError(t, q.CommitCommand(t.Context(), item, &command))
}

func memIDs(items []WorkItem) []string {
	ids := make([]string, len(items))
	for n := range items {
		ids[n] = items[n].ID
	}
	return ids
}

func TestMemoryLifeOfAnInstance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q MemoryWorkQueue
		start := time.Now().UTC()
		started, err := q.Start(t.Context(), memInstance("a"), time.Time{})
		require.NoError(t, err)
		require.True(t, started)
		started, err = q.Start(t.Context(), memInstance("a"), time.Time{})
		require.NoError(t, err)
		require.False(t, started)

		item := memClaimOne(t, &q)
		require.NoError(t, item.ValidatePins())
		require.Equal(t, start, item.ClaimedAt)
		require.Equal(t, int64(1), item.LeaseVersion)
		require.JSONEq(t, `{"n":1}`, string(item.State))
		require.Empty(t, memClaim(t, &q, 1), "a leased item was claimed")
		memCommit(t, &q, &item, Continue{Delay: time.Hour})
		require.Empty(t, memClaim(t, &q, 1), "an item was claimed before it is due")

		go func() {
			time.Sleep(time.Minute)
			if err := q.Deliver(context.Background(), "t1", "a", Wakeup{ID: "w1", Kind: "signal"}, time.Time{}); err != nil {
				t.Error(err)
			}
		}()
		require.NoError(t, q.WaitDue(t.Context(), nil))
		require.Equal(t, start.Add(time.Minute), time.Now().UTC())
		item = memClaimOne(t, &q)
		require.Len(t, item.Wakeups, 1)
		require.Equal(t, int64(1), item.StateVersion)
		command := memCommand(t, &item, Complete{})
		command.ConsumedWakeups = []string{"w1"}
		require.NoError(t, q.CommitCommand(t.Context(), &item, &command))
		snapshot, err := q.Get(t.Context(), "t1", "a")
		require.NoError(t, err)
		require.Equal(t, StatusCompleted, snapshot.Status)
		require.Zero(t, snapshot.PendingWakeups)
		require.Len(t, q.Committed(), 2)
		require.Equal(t, command, q.Committed()[1].Command)
		require.Equal(t, item, q.Committed()[1].Item)
	})
}

// memEvents reads the whole history of an instance.
func memEvents(t *testing.T, q *MemoryWorkQueue, tenantID, instanceID string) []Event {
	t.Helper()
	var events []Event
	for event, err := range q.History(t.Context(), tenantID, instanceID) {
		require.NoError(t, err)
		events = append(events, event)
	}
	return events
}
