package supervisor

import (
	"encoding/json"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// memPrepare starts an instance, unless it is there, and commits intents of it,
// one for each id, changed by the changes. The instance is due again in a year.
func memPrepare(t *testing.T, q *MemoryWorkQueue, tenantID, instanceID string, ids []string, changes ...func(*ActionIntent)) {
	t.Helper()
	if _, err := q.Get(t.Context(), tenantID, instanceID); err != nil {
		instance := memInstance(instanceID)
		instance.TenantID = tenantID
		instance.CapabilityPins = []CapabilityPin{memPin, memPinOf("pay")}
		started, err := q.Start(t.Context(), instance, time.Time{})
		require.NoError(t, err)
		require.True(t, started)
	} else {
		require.NoError(t, q.Deliver(t.Context(), tenantID, instanceID, Wakeup{ID: "prepare " + ids[0], Kind: "go"}, time.Time{}))
	}
	for _, item := range memClaim(t, q, 1000) {
		if item.TenantID != tenantID || item.ID != instanceID {
			require.NoError(t, q.Release(t.Context(), &item, ""))
			continue
		}
		command := memCommand(t, &item, Continue{Delay: 365 * 24 * time.Hour})
		for n := range item.Wakeups {
			command.ConsumedWakeups = append(command.ConsumedWakeups, item.Wakeups[n].ID)
		}
		for _, id := range ids {
			intent := memIntent(&item, id)
			for _, change := range changes {
				change(&intent)
			}
			command.ActionIntents = append(command.ActionIntents, intent)
		}
		require.NoError(t, q.CommitCommand(t.Context(), &item, &command))
	}
}

func memPinOf(id string) CapabilityPin {
	return CapabilityPin{ID: id, ContractVersion: "1", ContentDigest: "d"}
}

func memPay(i *ActionIntent) { i.Capability = memPinOf("pay") }

// memWork claims intents for a minute.
func memWork(t *testing.T, q *MemoryWorkQueue, limit int, pins ...CapabilityPin) []IntentWork {
	t.Helper()
	works, err := q.ClaimIntents(t.Context(), IntentClaimRequest{
		Capabilities: pins, WorkerID: "d", LeaseDuration: time.Minute, Limit: limit,
	})
	require.NoError(t, err)
	memCheckIntents(t, q)
	return works
}

func memWorkOne(t *testing.T, q *MemoryWorkQueue, id string) *IntentWork {
	t.Helper()
	works := memWork(t, q, 1)
	require.Len(t, works, 1)
	require.Equal(t, id, works[0].Intent.ID)
	return &works[0]
}

func memWorkIDs(works []IntentWork) []string {
	ids := make([]string, len(works))
	for n := range works {
		ids[n] = works[n].Intent.ID
	}
	return ids
}

func memMark(t *testing.T, q *MemoryWorkQueue, work *IntentWork) {
	t.Helper()
	marked, err := q.MarkIntent(t.Context(), work)
	require.NoError(t, err)
	*work = marked
	memCheckIntents(t, q)
}

func memSettle(t *testing.T, q *MemoryWorkQueue, work *IntentWork, settlement Settlement) {
	t.Helper()
	require.NoError(t, q.SettleIntent(t.Context(), work, settlement))
	memCheckIntents(t, q)
}

var memSuccess = Settlement{State: ActionSucceeded, Cause: CauseReported, Proof: ProofReported, Output: json.RawMessage(`{"n":9007199254740993}`)}

// memRecord reads one intent of instance a of tenant t1.
func memRecord(t *testing.T, q *MemoryWorkQueue, id string) IntentRecord {
	t.Helper()
	for record, err := range q.ListIntents(t.Context(), IntentFilter{TenantID: "t1", InstanceID: "a"}) {
		require.NoError(t, err)
		if record.Intent.ID == id {
			return record
		}
	}
	require.Fail(t, "no such intent", id)
	return IntentRecord{}
}

func memKey(id string) IntentKey { return IntentKey{TenantID: "t1", InstanceID: "a", IntentID: id} }

// memCheckIntents checks everything that the queue keeps beside the records of
// intents against the records.
func memCheckIntents(t *testing.T, q *MemoryWorkQueue) {
	t.Helper()
	q.mu.Lock()
	defer q.mu.Unlock()
	type sums struct{ intents, inUse, granted, parked int }
	groups := make(map[*memIntentGroup]sums)
	open := make(map[*memTenant]int)
	due := make(map[*memIntentLane]int)
	for _, tenant := range q.tenants {
		for _, row := range tenant.rows {
			if row.intents == nil {
				continue
			}
			unsettled := 0
			for _, x := range row.intents.inOrder {
				what := fmt.Sprintf("intent %q of %q: %+v", x.Intent.ID, row.id, x.IntentRecord)
				require.Same(t, x, row.intents.byID[x.Intent.ID])
				sum := groups[x.group]
				sum.intents++
				if x.HoldsSlot() {
					sum.inUse++
				}
				if x.InFlight() {
					unsettled++
				}
				if x.granted {
					sum.granted++
					require.True(t, x.Waiting() && x.Parked == NotParked, what)
				}
				if x.Parked == ParkedByLimit {
					sum.parked++
					require.NotZero(t, x.queuePlace, what)
				} else {
					require.Zero(t, x.queuePlace, what)
				}
				if !x.Intent.State.Terminal() {
					open[tenant]++
				}
				require.Equal(t, !x.DueAt.IsZero(), x.place != 0, what)
				if x.place != 0 {
					due[x.group.lane]++
					require.Equal(t, instantKey(x.DueAt), x.group.lane.heap(x).entries[x.place-1].key, what)
				}
				groups[x.group] = sum
			}
			require.Equal(t, unsettled, row.intents.unsettled)
		}
		listed := 0
		for x := tenant.firstIntent; x != nil; x = x.next {
			listed++
		}
		require.Equal(t, open[tenant], listed)
	}
	limits := make(map[*memLimit]int)
	shares := make(map[*memLimitShare]int)
	known := 0
	for pin, lane := range q.intents.lanes {
		require.Equal(t, due[lane], lane.ready.len()+lane.waiting.len(), "intents of %v", pin)
		for tenant, group := range lane.groups {
			known++
			require.Equal(t, sums{group.intents, group.inUse, group.granted, group.parked.len()}, groups[group], "%v of %q", pin, tenant.id)
			covered := 0
			for _, scope := range limitScopes(tenant.id, pin.ID) {
				if q.intents.limits[scope] != nil {
					covered++
				}
			}
			require.Len(t, group.shares, covered)
			for _, share := range group.shares {
				limits[share.limit] += group.inUse
				shares[share] += group.granted
			}
			require.Equal(t, group.parked.len() > 0, group.waitsIn != nil)
			if group.waitsIn != nil {
				require.True(t, group.waitsIn.full(), "intents wait for a slot that is free")
			}
		}
	}
	require.Len(t, groups, known)
	for scope, limit := range q.intents.limits {
		require.Equal(t, limits[limit], limit.inUse, "limit %v", scope)
		for _, share := range limit.shares {
			require.Equal(t, shares[share], share.granted, "limit %v", scope)
			require.Positive(t, share.groups)
		}
	}
}

func TestMemoryLifeOfAnIntent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q MemoryWorkQueue
		memPrepare(t, &q, "t1", "a", []string{"i1"})
		start := time.Now().UTC()
		require.NoError(t, q.WaitIntents(t.Context(), nil))
		work := memWorkOne(t, &q, "i1")
		require.Equal(t, IntentTaskDispatch, work.Task)
		require.Equal(t, start, work.ClaimedAt)
		require.Equal(t, start.Add(time.Minute), work.LeaseEndsAt)
		require.Empty(t, memWork(t, &q, 1), "a leased intent was claimed")

		time.Sleep(time.Second)
		memMark(t, &q, work)
		require.Equal(t, 1, work.Attempt)
		require.Equal(t, start.Add(time.Second), work.MarkedAt)
		again, err := q.MarkIntent(t.Context(), work)
		require.NoError(t, err)
		require.Equal(t, *work, again)

		lease := work.Lease(2 * time.Minute)
		require.NoError(t, q.RenewIntent(t.Context(), lease))
		require.Equal(t, start.Add(121*time.Second), memRecord(t, &q, "i1").LeaseEndsAt)
		lease.WorkerID = "another"
		require.ErrorIs(t, q.RenewIntent(t.Context(), lease), ErrLeaseLost)
		lease = work.Lease(0)
		require.ErrorContains(t, q.RenewIntent(t.Context(), lease), "Duration is 0s")

		receipt := Receipt{Reference: "r"}
		require.NoError(t, q.RecordReceipt(t.Context(), work, receipt))
		require.ErrorIs(t, q.RenewIntent(t.Context(), work.Lease(time.Minute)), ErrLeaseLost)
		require.Empty(t, memWork(t, &q, 1))
		require.NoError(t, q.WaitIntents(t.Context(), []CapabilityPin{memPin}))
		require.Equal(t, start.Add(2*time.Second), time.Now().UTC())
		observed := memWorkOne(t, &q, "i1")
		require.Equal(t, IntentTaskObserve, observed.Task)
		require.NoError(t, q.ReleaseIntent(t.Context(), observed, IntentRelease{}))
		require.NoError(t, q.WaitIntents(t.Context(), nil))
		require.Equal(t, start.Add(3*time.Second), time.Now().UTC())
		observed = memWorkOne(t, &q, "i1")

		memSettle(t, &q, observed, memSuccess)
		memSettle(t, &q, observed, memSuccess)
		record := memRecord(t, &q, "i1")
		require.Equal(t, ActionSucceeded, record.Intent.State)
		require.Equal(t, OutcomeSucceeded, record.Outcome)

		item := memClaimOne(t, &q)
		require.Len(t, item.Wakeups, 1)
		require.Equal(t, "intent:i1:settled", item.Wakeups[0].ID)
		result, err := ParseActionResult(&item.Wakeups[0])
		require.NoError(t, err)
		require.Equal(t, ActionResult{
			IntentID: "i1", Capability: memPin, State: ActionSucceeded, Outcome: OutcomeSucceeded,
			Cause: CauseReported, Attempt: 1, Output: json.RawMessage(`{"n":9007199254740993}`),
		}, result)
		require.ErrorIs(t, q.SettleIntent(t.Context(), observed, Settlement{State: ActionRejected, Outcome: OutcomeFailed}), ErrReceiptConflict)
		require.Len(t, memRecord(t, &q, "i1").Evidence, 1)
	})
}

func TestMemoryIntentOfNobody(t *testing.T) {
	var q MemoryWorkQueue
	ctx := t.Context()
	work := &IntentWork{IntentRecord: IntentRecord{Intent: ActionIntent{TenantID: "t1", InstanceID: "a", ID: "x"}}}
	memPrepare(t, &q, "t1", "b", []string{"x"})
	for _, other := range []string{"one", "two"} {
		require.ErrorIs(t, q.RenewIntent(ctx, work.Lease(1)), ErrLeaseLost)
		_, err := q.MarkIntent(ctx, work)
		require.ErrorIs(t, err, ErrLeaseLost)
		require.ErrorIs(t, q.SettleIntent(ctx, work, memSuccess), ErrLeaseLost)
		require.ErrorIs(t, q.ReleaseIntent(ctx, work, IntentRelease{}), ErrLeaseLost)
		require.ErrorIs(t, q.RecordReceipt(ctx, work, Receipt{}), ErrNotFound)
		require.ErrorIs(t, q.ConfirmIntent(ctx, memKey("x"), "me"), ErrNotFound)
		require.ErrorIs(t, q.RejectIntent(ctx, memKey("x"), "me", ""), ErrNotFound)
		require.ErrorIs(t, q.ResolveIntent(ctx, memKey("x"), "me", IntentResolution{Kind: ResolveFailed}), ErrNotFound)
		// Once more with an instance that has no such intent.
		memPrepare(t, &q, "t1", "a", []string{other})
	}
	require.ErrorContains(t, q.ConfirmIntent(ctx, IntentKey{}, "me"), "TenantID is blank")
	_, err := q.ClaimIntents(ctx, IntentClaimRequest{WorkerID: "d", Limit: 1})
	require.ErrorContains(t, err, "LeaseDuration is 0s")
	for _, err := range q.ListIntents(ctx, IntentFilter{State: "none"}) {
		require.ErrorContains(t, err, `State "none" is not known`)
	}
	require.ErrorContains(t, q.LimitIntents(ctx, IntentLimit{Max: 1}), "neither TenantID nor CapabilityID")
}
