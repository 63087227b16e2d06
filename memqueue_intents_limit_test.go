package supervisor

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func memLimitTo(t *testing.T, q *MemoryWorkQueue, tenantID, capabilityID string, most int) {
	t.Helper()
	require.NoError(t, q.LimitIntents(t.Context(), IntentLimit{TenantID: tenantID, CapabilityID: capabilityID, Max: most}))
	memCheckIntents(t, q)
}

// memMarkAll claims what is due, oldest first, and marks what it may; it returns
// the ids of what was marked.
func memMarkAll(t *testing.T, q *MemoryWorkQueue) (marked []*IntentWork) {
	t.Helper()
	for _, work := range memWork(t, q, 1000) {
		if next, err := q.MarkIntent(t.Context(), &work); err == nil {
			marked = append(marked, &next)
		} else {
			require.ErrorIs(t, err, ErrIntentRefused)
		}
		memCheckIntents(t, q)
	}
	return marked
}

func TestMemoryLimitHandsSlotsToTheLongestParked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q MemoryWorkQueue
		memLimitTo(t, &q, "", "mail", 1)
		memPrepare(t, &q, "t1", "a", []string{"1", "2", "3"})
		marked := memMarkAll(t, &q)
		require.Len(t, marked, 1)
		var order []string
		for n := range 8 {
			// Newcomers never overtake, however long they have been due.
			memPrepare(t, &q, "t1", "a", []string{fmt.Sprint("new ", n)})
			time.Sleep(time.Second)
			order = append(order, marked[0].Intent.ID)
			memSettle(t, &q, marked[0], memSuccess)
			marked = memMarkAll(t, &q)
			require.Len(t, marked, 1)
		}
		require.Equal(t, []string{"1", "2", "3", "new 0", "new 1", "new 2", "new 3", "new 4"}, order)

		// A slot that is given back goes to the next one, not to nobody.
		memSettle(t, &q, marked[0], memSuccess)
		work := memWorkOne(t, &q, "new 6")
		require.NoError(t, q.ReleaseIntent(t.Context(), work, IntentRelease{After: time.Hour}))
		memCheckIntents(t, &q)
		memWorkOne(t, &q, "new 7")
		require.NoError(t, q.Cancel(t.Context(), "t1", "a"))
		memCheckIntents(t, &q)
	})
}

func TestMemoryLimitsOfSeveralScopes(t *testing.T) {
	var q MemoryWorkQueue
	for _, tenant := range []string{"t1", "t2"} {
		memPrepare(t, &q, tenant, "a", []string{"m1", "m2", "m3"})
		memPrepare(t, &q, tenant, "a", []string{"p1", "p2", "p3"}, memPay)
	}
	inFlight := len(memMarkAll(t, &q))
	require.Equal(t, 12, inFlight, "nothing is limited")
	// Those in flight count in limits that are set now.
	memLimitTo(t, &q, "", "mail", 7)
	memLimitTo(t, &q, "t1", "", 6)
	memLimitTo(t, &q, "t2", "pay", 4)
	for _, tenant := range []string{"t1", "t2"} {
		memPrepare(t, &q, tenant, "b", []string{"m4", "m5"})
		memPrepare(t, &q, tenant, "b", []string{"p4", "p5"}, memPay)
	}
	byTenant := func(works []*IntentWork) (list []string) {
		for _, work := range works {
			list = append(list, work.Intent.TenantID+" "+work.Intent.ID)
		}
		return list
	}
	require.ElementsMatch(t, []string{"t2 m4", "t2 p4"}, byTenant(memMarkAll(t, &q)))
	memLimitTo(t, &q, "t1", "", 7) // mail is full now
	require.Equal(t, []string{"t1 p4"}, byTenant(memMarkAll(t, &q)))
	memLimitTo(t, &q, "", "mail", 0)
	require.Equal(t, []string{"t2 m5"}, byTenant(memMarkAll(t, &q)))
	memLimitTo(t, &q, "t1", "", 0)
	require.ElementsMatch(t, []string{"t1 m4", "t1 m5", "t1 p5"}, byTenant(memMarkAll(t, &q)))
	memLimitTo(t, &q, "t1", "", 0)
	memLimitTo(t, &q, "t2", "pay", 1)
	require.Empty(t, memMarkAll(t, &q), "a limit was lowered")
	// Whoever is replaced gives its slots back.
	q.Push(WorkItem{Instance: Instance{ID: "a", TenantID: "t2", SpecID: "spec", Config: nil}})
	memCheckIntents(t, &q)
	require.Empty(t, memMarkAll(t, &q))
	q.Push(WorkItem{Instance: Instance{ID: "b", TenantID: "t2", SpecID: "spec", Config: nil}})
	memCheckIntents(t, &q)
}

// Another capability whose dispatchers are away keeps no slot from others.
func TestMemoryLimitOfATenantWithAnIdleCapability(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q MemoryWorkQueue
		memLimitTo(t, &q, "t1", "", 1)
		memPrepare(t, &q, "t1", "a", []string{"held"})
		held := memMarkAll(t, &q)[0]
		memPrepare(t, &q, "t1", "a", []string{"idle"}, memPay)
		memPrepare(t, &q, "t1", "a", []string{"mail"})
		require.Empty(t, memMarkAll(t, &q))
		woken := make(chan error, 1)
		go func() { woken <- q.WaitIntents(t.Context(), []CapabilityPin{memPin}) }()
		synctest.Wait()
		require.Empty(t, woken)
		memSettle(t, &q, held, memSuccess)
		require.NoError(t, <-woken)
		works := memWork(t, &q, 10, memPin)
		require.Equal(t, []string{"mail"}, memWorkIDs(works))
		memMark(t, &q, &works[0])
		require.Empty(t, memMarkAll(t, &q))
		memSettle(t, &q, &works[0], memSuccess)
		require.Len(t, memMarkAll(t, &q), 1)
	})
}

func TestMemoryClaimsTakeCapabilitiesInTurn(t *testing.T) {
	var q MemoryWorkQueue
	memPrepare(t, &q, "t1", "a", []string{"m1", "m2", "m3", "m4", "m5"})
	memPrepare(t, &q, "t1", "a", []string{"p1", "p2"}, memPay)
	require.Equal(t, []string{"m1", "p1", "m2"}, memWorkIDs(memWork(t, &q, 3)))
	require.Equal(t, []string{"p2", "m3"}, memWorkIDs(memWork(t, &q, 2, memPin, memPinOf("pay"), memPin)))
	require.Empty(t, memWork(t, &q, 2, memPinOf("pay"), memPinOf("none")))
	require.Equal(t, []string{"m4", "m5"}, memWorkIDs(memWork(t, &q, 9)))
}

func TestMemoryPauseHoldsIntentsBack(t *testing.T) {
	scopes := map[string]Scope{
		"tenant":   {TenantID: "t1"},
		"instance": {TenantID: "t1", InstanceID: "a"},
		"resource": {TenantID: "t1", ResourceID: "r"},
	}
	for name, scope := range scopes {
		for _, pushed := range []int64{0, 7} {
			synctest.Test(t, func(t *testing.T) {
				var q MemoryWorkQueue
				item := memPinned("a")
				item.ControlEpochs = ControlEpochs{Tenant: pushed, Instance: pushed, Resource: pushed}
				q.Push(item)
				memPrepareDue(t, &q, "1", "2", "marked", "waits")
				for _, work := range memWork(t, &q, 1000) {
					if work.Intent.ID == "marked" {
						memMark(t, &q, &work)
						require.NoError(t, q.RecordReceipt(t.Context(), &work, Receipt{}))
					} else {
						require.NoError(t, q.ReleaseIntent(t.Context(), &work, IntentRelease{}))
					}
				}
				claimed := memWorkOne(t, &q, "1")
				require.NoError(t, q.Pause(t.Context(), scope))
				require.Empty(t, memWork(t, &q, 10), name)
				require.Equal(t, ParkedByPause, memRecord(t, &q, "2").Parked)
				_, err := q.MarkIntent(t.Context(), claimed)
				require.ErrorIs(t, err, ErrIntentRefused)
				memCheckIntents(t, &q)
				time.Sleep(time.Second)
				observed := memWorkOne(t, &q, "marked")
				memSettle(t, &q, observed, memSuccess)

				require.NoError(t, q.Resume(t.Context(), scope))
				memCheckIntents(t, &q)
				require.Empty(t, memWork(t, &q, 10))
				for _, id := range []string{"1", "2", "waits"} {
					record := memRecord(t, &q, id)
					require.Equal(t, ActionRejected, record.Intent.State, name)
					require.Equal(t, CauseStaleEpoch, record.Cause, name)
				}
				require.Equal(t, 4, memGet(t, &q, "a").PendingWakeups)
			})
		}
	}
}

// memPrepareDue commits intents of instance a, which need resource r.
func memPrepareDue(t *testing.T, q *MemoryWorkQueue, ids ...string) {
	t.Helper()
	item := memClaimOne(t, q)
	command := memCommand(t, &item, Continue{Delay: 24 * time.Hour})
	for _, id := range ids {
		intent := memIntent(&item, id)
		intent.ResourceScopeID = "r"
		command.ActionIntents = append(command.ActionIntents, intent)
	}
	require.NoError(t, q.CommitCommand(t.Context(), &item, &command))
}

func TestMemoryCancelOfIntents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q MemoryWorkQueue
		memPrepare(t, &q, "t1", "a", []string{"marked", "waiting", "claimed"})
		works := memWork(t, &q, 1)
		memMark(t, &q, &works[0])
		require.NoError(t, q.RecordReceipt(t.Context(), &works[0], Receipt{Reference: "r"}))
		claimed := memWork(t, &q, 2)
		require.NoError(t, q.ReleaseIntent(t.Context(), &claimed[0], IntentRelease{}))
		require.NoError(t, q.Cancel(t.Context(), "t1", "a"))
		memCheckIntents(t, &q)
		_, err := q.MarkIntent(t.Context(), &claimed[1])
		require.ErrorIs(t, err, ErrLeaseLost)
		observed := memWorkOne(t, &q, "marked")
		require.Equal(t, IntentTaskCancel, observed.Task)

		item := memClaimOne(t, &q)
		require.True(t, item.CancelRequested)
		require.Equal(t, "intent:waiting:settled", item.Wakeups[0].ID)
		require.Equal(t, "intent:claimed:settled", item.Wakeups[1].ID)
		result, err := ParseActionResult(&item.Wakeups[0])
		require.NoError(t, err)
		require.Equal(t, OutcomeWithdrawn, result.Outcome)
		require.Equal(t, CauseCancelled, result.Cause)
		memCommit(t, &q, &item, Complete{})

		// The end of a finished instance's intent is stored and told to nobody;
		// the instance stays until then.
		time.Sleep(time.Hour)
		removed, err := q.Prune(t.Context(), time.Now())
		require.NoError(t, err)
		require.Zero(t, removed)
		observed = memWorkOne(t, &q, "marked")
		memSettle(t, &q, observed, memSuccess)
		require.Equal(t, ActionSucceeded, memRecord(t, &q, "marked").Intent.State)
		require.Equal(t, StatusCancelled, memGet(t, &q, "a").Status)
		removed, err = q.Prune(t.Context(), time.Now())
		require.NoError(t, err)
		require.Equal(t, 1, removed)
		memCheckIntents(t, &q)
	})
}

func TestMemoryExpiryCancelsIntents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q MemoryWorkQueue
		item := memPinned("a")
		item.Lifecycle = LifecyclePolicy{ExpiresAt: time.Now().Add(time.Hour), OnExpiry: ExpiryCancel}
		q.Push(item)
		memPrepareDue(t, &q, "1")
		time.Sleep(time.Hour)
		item = memClaimOne(t, &q)
		require.True(t, item.CancelRequested)
		require.Len(t, item.Wakeups, 1)
		require.Equal(t, "intent:1:settled", item.Wakeups[0].ID)
		memCheckIntents(t, &q)
	})
}

func TestMemoryConfirmationOfIntents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q MemoryWorkQueue
		deadline := time.Now().Add(time.Hour)
		memPrepare(t, &q, "t1", "a", []string{"yes", "no", "late"}, func(i *ActionIntent) {
			i.RequiresConfirmation, i.Deadline = true, deadline
		})
		require.Empty(t, memWork(t, &q, 9))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.ErrorIs(t, q.WaitIntents(ctx, nil), context.DeadlineExceeded)
		require.NoError(t, q.ConfirmIntent(t.Context(), memKey("yes"), "me"))
		require.NoError(t, q.RejectIntent(t.Context(), memKey("no"), "me", "too dear"))
		require.ErrorIs(t, q.ConfirmIntent(t.Context(), memKey("no"), "me"), ErrIntentConflict)
		require.NoError(t, q.WaitIntents(t.Context(), nil))
		work := memWorkOne(t, &q, "yes")
		require.Equal(t, "me", work.Intent.Confirmation.By)
		memMark(t, &q, work)
		memSettle(t, &q, work, Settlement{State: ActionUnknown, Cause: CauseAmbiguous})
		require.NoError(t, q.ResolveIntent(t.Context(), memKey("yes"), "me", IntentResolution{Kind: ResolveRepeat}))
		work = memWorkOne(t, &q, "yes")
		memMark(t, &q, work)
		require.Equal(t, 2, work.Attempt)
		time.Sleep(time.Hour)
		memWork(t, &q, 9)
		require.Equal(t, CauseDeadline, memRecord(t, &q, "late").Cause)
		item := memClaimOne(t, &q)
		var told []string
		for n := range item.Wakeups {
			told = append(told, item.Wakeups[n].ID)
		}
		require.Equal(t, []string{"intent:no:settled", "intent:yes:unknown:1", "intent:late:settled"}, told)
	})
}

func TestMemoryListsIntents(t *testing.T) {
	var q MemoryWorkQueue
	var ids []string
	for n := range 150 {
		ids = append(ids, fmt.Sprintf("%03d", n))
	}
	memPrepare(t, &q, "t2", "a", ids)
	memPrepare(t, &q, "t1", "b", []string{"x"}, memPay)
	memPrepare(t, &q, "t1", "a", []string{"y"})
	var all []string
	for record, err := range q.ListIntents(t.Context(), IntentFilter{}) {
		require.NoError(t, err)
		all = append(all, record.Intent.TenantID+record.Intent.InstanceID+record.Intent.ID)
		record.Intent.Input[0] = 'X' // the caller's
	}
	require.Len(t, all, 152)
	require.Equal(t, []string{"t1ay", "t1bx", "t2a000", "t2a001"}, all[:4])
	for record, err := range q.ListIntents(t.Context(), IntentFilter{CapabilityID: "pay", State: ActionPrepared}) {
		require.NoError(t, err)
		require.Equal(t, "x", record.Intent.ID)
		require.Equal(t, byte('{'), record.Intent.Input[0])
	}
}
