package sqlitequeue

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/workflow-supervisor/supervisor"
)

// Pins that the instances of these tests have.
var (
	payPin  = supervisor.CapabilityPin{ID: "pay", ContractVersion: "1", ContentDigest: "d"}
	payPin2 = supervisor.CapabilityPin{ID: "pay", ContractVersion: "2", ContentDigest: "d"}
	mailPin = supervisor.CapabilityPin{ID: "mail", ContractVersion: "1", ContentDigest: "d"}
)

// write is an intent that may not be repeated without proof.
func write(id string, pin supervisor.CapabilityPin) supervisor.ActionIntent {
	return supervisor.ActionIntent{
		ID: id, Capability: pin, IdempotencyKey: "key " + id, State: supervisor.ActionPrepared,
		Effect: supervisor.EffectExternalWrite, RetryClass: supervisor.IdempotencyNone,
	}
}

// plan starts an instance that commits intents and then waits for an hour.
func plan(t testing.TB, q *Queue, id string, intents ...supervisor.ActionIntent) {
	t.Helper()
	instance := testInstance(t, id)
	instance.CapabilityPins = []supervisor.CapabilityPin{payPin, payPin2, mailPin}
	_, err := q.Start(t.Context(), instance, time.Time{})
	require.NoError(t, err)
	planAgain(t, q, intents...)
}

// planAgain has the instance that is due commit intents.
func planAgain(t testing.TB, q *Queue, intents ...supervisor.ActionIntent) {
	t.Helper()
	items, err := q.ClaimDue(t.Context(), supervisor.ClaimRequest{WorkerID: "w", LeaseDuration: time.Minute, Limit: 1})
	require.NoError(t, err)
	require.Len(t, items, 1)
	command, err := supervisor.NewCommand(&items[0], "planned", nil, json.RawMessage(`{}`), supervisor.Continue{Delay: time.Hour})
	require.NoError(t, err)
	for _, intent := range intents {
		command.ActionIntents = append(command.ActionIntents, own(&items[0], intent))
	}
	require.NoError(t, q.CommitCommand(t.Context(), &items[0], &command))
}

// own makes an intent that of an item.
func own(item *supervisor.WorkItem, intent supervisor.ActionIntent) supervisor.ActionIntent {
	intent.TenantID, intent.InstanceID, intent.RunID = item.TenantID, item.ID, item.RunID
	intent.ControlEpochs, intent.LeaseEpoch, intent.ActionEpoch = item.ControlEpochs, item.LeaseVersion, item.StateVersion
	return intent
}

func claimIntents(t testing.TB, q *Queue, limit int, pins ...supervisor.CapabilityPin) []supervisor.IntentWork {
	t.Helper()
	works, err := q.ClaimIntents(t.Context(), supervisor.IntentClaimRequest{
		Capabilities: pins, WorkerID: "d", LeaseDuration: time.Minute, Limit: limit,
	})
	require.NoError(t, err)
	return works
}

func workIDs(works []supervisor.IntentWork) []string {
	ids := make([]string, len(works))
	for n := range works {
		ids[n] = works[n].Intent.ID
	}
	return ids
}

func succeeded() supervisor.Settlement {
	return supervisor.Settlement{
		State: supervisor.ActionSucceeded, Cause: supervisor.CauseReported, Proof: supervisor.ProofReported, Output: json.RawMessage(`{"ok":true}`),
	}
}

// handOff marks and settles an intent.
func handOff(t testing.TB, q *Queue, work supervisor.IntentWork) {
	t.Helper()
	marked, err := q.MarkIntent(t.Context(), &work)
	require.NoError(t, err)
	require.NoError(t, q.SettleIntent(t.Context(), &marked, succeeded()))
}

func listIntentStates(t testing.TB, q *Queue, filter supervisor.IntentFilter) map[string]supervisor.ActionState {
	t.Helper()
	states := make(map[string]supervisor.ActionState)
	for record, err := range q.ListIntents(t.Context(), filter) {
		require.NoError(t, err)
		states[record.Intent.ID] = record.Intent.State
	}
	return states
}

func TestIntentFromCommitToWakeup(t *testing.T) {
	q := open(t, Options{})
	large := write("large", payPin)
	large.Input = json.RawMessage(`"` + strings.Repeat("x", 3*inlineInput) + `"`)
	large.Deadline = time.Now().Add(time.Hour).UTC().Truncate(time.Microsecond)
	large.Reservation = &supervisor.ResourceReservationRef{ID: "r", FencingToken: 7}
	large.ResourceScopeID = "res"
	plan(t, q, "a", large)
	works := claimIntents(t, q, 5, payPin)
	require.Len(t, works, 1)
	work := works[0]
	require.Equal(t, supervisor.IntentTaskDispatch, work.Task)
	require.Equal(t, large.Input, work.Intent.Input)
	require.Equal(t, large.Deadline, work.Intent.Deadline)
	require.Equal(t, large.Reservation, work.Intent.Reservation)
	require.Equal(t, "res", work.Intent.ResourceScopeID)
	require.Empty(t, claimIntents(t, q, 5))

	marked, err := q.MarkIntent(t.Context(), &work)
	require.NoError(t, err)
	require.Equal(t, supervisor.ActionDispatchCommitted, marked.Intent.State)
	require.Equal(t, 1, marked.Attempt)
	again, err := q.MarkIntent(t.Context(), &work)
	require.NoError(t, err)
	require.Equal(t, marked, again)
	require.NoError(t, q.RenewIntent(t.Context(), marked.Lease(time.Hour)))
	require.NoError(t, q.SettleIntent(t.Context(), &marked, succeeded()))
	require.ErrorIs(t, q.RenewIntent(t.Context(), marked.Lease(time.Hour)), supervisor.ErrLeaseLost)
	require.NoError(t, q.SettleIntent(t.Context(), &marked, succeeded()))

	items, err := q.ClaimDue(t.Context(), supervisor.ClaimRequest{WorkerID: "w", LeaseDuration: time.Minute, Limit: 2})
	require.NoError(t, err)
	require.Len(t, items, 1)
	require.Len(t, items[0].Wakeups, 1)
	result, err := supervisor.ParseActionResult(&items[0].Wakeups[0])
	require.NoError(t, err)
	require.Equal(t, supervisor.OutcomeSucceeded, result.Outcome)
	require.JSONEq(t, `{"ok":true}`, string(result.Output))
}

// A slot that came free is not lost with the intent that was made due for it.
func TestIntentSlotsAreNotLost(t *testing.T) {
	q := open(t, Options{})
	require.NoError(t, q.LimitIntents(t.Context(), supervisor.IntentLimit{CapabilityID: "pay", Max: 1}))
	plan(t, q, "a", write("a", payPin))
	plan(t, q, "b", write("b", payPin2))
	plan(t, q, "c", write("c", payPin))
	plan(t, q, "d", write("d", payPin))
	works := claimIntents(t, q, 1, payPin)
	require.Equal(t, []string{"a"}, workIDs(works))
	marked, err := q.MarkIntent(t.Context(), &works[0])
	require.NoError(t, err)
	// In this order they are parked.
	require.Empty(t, claimIntents(t, q, 5, payPin2))
	require.Empty(t, claimIntents(t, q, 5, payPin))
	require.NoError(t, q.SettleIntent(t.Context(), &marked, succeeded()))

	// b was made due, but nobody claims its version.
	require.NoError(t, q.WaitIntents(t.Context(), []supervisor.CapabilityPin{payPin}))
	works = claimIntents(t, q, 5, payPin)
	require.Equal(t, []string{"c"}, workIDs(works))
	// c may take the slot yet.
	require.Empty(t, claimIntents(t, q, 5, payPin))
	// c is withdrawn before it has.
	require.NoError(t, q.Cancel(t.Context(), supervisor.DefaultTenantID, "c"))
	require.NoError(t, q.WaitIntents(t.Context(), []supervisor.CapabilityPin{payPin}))
	works = claimIntents(t, q, 5, payPin)
	require.Equal(t, []string{"d"}, workIDs(works))
	_, err = q.MarkIntent(t.Context(), &works[0])
	require.NoError(t, err)
	require.Empty(t, claimIntents(t, q, 5))
	ctx, cancel := context.WithTimeout(t.Context(), 250*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, q.WaitIntents(ctx, nil), context.DeadlineExceeded)
}

func TestIntentLimits(t *testing.T) {
	q := open(t, Options{})
	for n := range 6 {
		plan(t, q, fmt.Sprint(n), write(fmt.Sprint(n), payPin))
	}
	first := claimIntents(t, q, 2)
	for n := range first {
		marked, err := q.MarkIntent(t.Context(), &first[n])
		require.NoError(t, err)
		first[n] = marked
	}
	// Those in flight count.
	for _, limit := range []supervisor.IntentLimit{
		{TenantID: supervisor.DefaultTenantID, Max: 3}, {CapabilityID: "pay", Max: 2}, {TenantID: supervisor.DefaultTenantID, CapabilityID: "mail", Max: 1},
	} {
		require.NoError(t, q.LimitIntents(t.Context(), limit))
	}
	require.Empty(t, claimIntents(t, q, 6))
	for record, err := range q.ListIntents(t.Context(), supervisor.IntentFilter{State: supervisor.ActionPrepared}) {
		require.NoError(t, err)
		require.Equal(t, supervisor.ParkedByLimit, record.Parked)
		require.Zero(t, record.DueAt)
	}
	// One more by the capability, and just as many by the tenant.
	require.NoError(t, q.LimitIntents(t.Context(), supervisor.IntentLimit{CapabilityID: "pay", Max: 5}))
	works := claimIntents(t, q, 6)
	require.NotEmpty(t, works)
	marked, err := q.MarkIntent(t.Context(), &works[0])
	require.NoError(t, err)
	for n := range works[1:] {
		_, err := q.MarkIntent(t.Context(), &works[1+n])
		var refused *supervisor.IntentRefusedError
		require.ErrorAs(t, err, &refused)
		require.Equal(t, supervisor.CauseLimit, refused.Cause)
		require.ErrorIs(t, q.RenewIntent(t.Context(), works[1+n].Lease(time.Minute)), supervisor.ErrLeaseLost)
	}
	require.Empty(t, claimIntents(t, q, 6))
	require.NoError(t, q.SettleIntent(t.Context(), &marked, succeeded()))
	parked := 0
	for record, err := range q.ListIntents(t.Context(), supervisor.IntentFilter{State: supervisor.ActionPrepared}) {
		require.NoError(t, err)
		if record.Parked == supervisor.ParkedByLimit {
			parked++
		}
	}
	require.Equal(t, 2, parked, "as many are unparked as slots came free")
	works = claimIntents(t, q, 6)
	require.Len(t, works, 1)
	handOff(t, q, works[0])
	// Without the limits they wait for nothing.
	require.NoError(t, q.LimitIntents(t.Context(), supervisor.IntentLimit{TenantID: supervisor.DefaultTenantID}))
	require.NoError(t, q.LimitIntents(t.Context(), supervisor.IntentLimit{CapabilityID: "pay"}))
	works = claimIntents(t, q, 6)
	require.Len(t, works, 2)
	for n := range works {
		handOff(t, q, works[n])
	}
	var used int
	require.NoError(t, q.DB().QueryRowContext(t.Context(), `SELECT sum(used) FROM supervisor_limits`).Scan(&used))
	require.Zero(t, used)
}

func TestIntentsOfPausedAndCancelled(t *testing.T) {
	q := open(t, Options{})
	scoped := write("scoped", payPin)
	scoped.ResourceScopeID = "res"
	confirmed := write("confirmed", mailPin)
	confirmed.RequiresConfirmation = true
	plan(t, q, "a", scoped, write("plain", payPin), confirmed)
	key := supervisor.IntentKey{TenantID: supervisor.DefaultTenantID, InstanceID: "a", IntentID: "confirmed"}
	require.NoError(t, q.Pause(t.Context(), supervisor.Scope{TenantID: key.TenantID, ResourceID: "res"}))
	works := claimIntents(t, q, 5)
	require.Equal(t, []string{"plain"}, workIDs(works))
	require.NoError(t, q.ReleaseIntent(t.Context(), &works[0], supervisor.IntentRelease{After: time.Hour}))
	// Nothing is paused here, so that nothing is resumed.
	require.NoError(t, q.Resume(t.Context(), supervisor.Scope{TenantID: key.TenantID, InstanceID: "a"}))
	require.NoError(t, q.Resume(t.Context(), supervisor.Scope{TenantID: key.TenantID}))
	require.Empty(t, claimIntents(t, q, 5))
	require.NoError(t, q.Resume(t.Context(), supervisor.Scope{TenantID: key.TenantID, ResourceID: "res"}))
	require.Empty(t, claimIntents(t, q, 5))
	require.Equal(t, map[string]supervisor.ActionState{
		"scoped": supervisor.ActionRejected, "plain": supervisor.ActionPrepared, "confirmed": supervisor.ActionAwaitingConfirmation,
	}, listIntentStates(t, q, supervisor.IntentFilter{}))
	require.NoError(t, q.Pause(t.Context(), supervisor.Scope{TenantID: key.TenantID, InstanceID: "a"}))
	require.NoError(t, q.Resume(t.Context(), supervisor.Scope{TenantID: key.TenantID, InstanceID: "a"}))
	require.Empty(t, claimIntents(t, q, 5))
	require.Equal(t, map[string]supervisor.ActionState{
		"scoped": supervisor.ActionRejected, "plain": supervisor.ActionRejected, "confirmed": supervisor.ActionRejected,
	}, listIntentStates(t, q, supervisor.IntentFilter{TenantID: key.TenantID}))

	plan2 := []supervisor.ActionIntent{write("flying", payPin), write("waiting", payPin)}
	planAgain(t, q, plan2...)
	works = claimIntents(t, q, 1)
	marked, err := q.MarkIntent(t.Context(), &works[0])
	require.NoError(t, err)
	require.NoError(t, q.Cancel(t.Context(), key.TenantID, "a"))
	require.Equal(t, map[string]supervisor.ActionState{
		"scoped": supervisor.ActionRejected, "plain": supervisor.ActionRejected, "confirmed": supervisor.ActionRejected,
		"flying": supervisor.ActionDispatchCommitted, "waiting": supervisor.ActionRejected,
	}, listIntentStates(t, q, supervisor.IntentFilter{TenantID: key.TenantID, InstanceID: "a"}))
	require.NoError(t, q.RecordReceipt(t.Context(), &marked, supervisor.Receipt{Reference: "r"}))
	works = claimIntents(t, q, 1)
	require.Empty(t, works)

	// A finished instance is not told, and stays while something is in flight.
	items, err := q.ClaimDue(t.Context(), supervisor.ClaimRequest{WorkerID: "w", LeaseDuration: time.Minute, Limit: 1})
	require.NoError(t, err)
	require.Len(t, items, 1)
	command, err := supervisor.NewCommand(&items[0], "done", nil, nil, supervisor.Complete{})
	require.NoError(t, err)
	require.NoError(t, q.CommitCommand(t.Context(), &items[0], &command))
	removed, err := q.Prune(t.Context(), time.Now().Add(time.Hour))
	require.NoError(t, err)
	require.Zero(t, removed)
	require.Eventually(t, func() bool {
		works = claimIntents(t, q, 1)
		return len(works) == 1
	}, 10*time.Second, 10*time.Millisecond)
	require.Equal(t, supervisor.IntentTaskCancel, works[0].Task)
	require.NoError(t, q.SettleIntent(t.Context(), &works[0], succeeded()))
	removed, err = q.Prune(t.Context(), time.Now().Add(time.Hour))
	require.NoError(t, err)
	require.Equal(t, 1, removed)
	require.Empty(t, listIntentStates(t, q, supervisor.IntentFilter{}))
}

// finish completes the instance once it is due, for which it is told something.
func finish(t testing.TB, q *Queue, id string) {
	t.Helper()
	require.NoError(t, q.Deliver(t.Context(), supervisor.DefaultTenantID, id, supervisor.Wakeup{ID: "finish", Kind: "note", Payload: json.RawMessage(`{}`)}, time.Time{}))
	items, err := q.ClaimDue(t.Context(), supervisor.ClaimRequest{WorkerID: "w", LeaseDuration: time.Minute, Limit: 1})
	require.NoError(t, err)
	require.Len(t, items, 1)
	command, err := supervisor.NewCommand(&items[0], "done", nil, nil, supervisor.Complete{})
	require.NoError(t, err)
	for n := range items[0].Wakeups {
		command.ConsumedWakeups = append(command.ConsumedWakeups, items[0].Wakeups[n].ID)
	}
	require.NoError(t, q.CommitCommand(t.Context(), &items[0], &command))
}

// An attempt that may have had an effect keeps its finished instance also while
// the intent waits for the next one, and is settled without anybody being told.
func TestPruneKeepsWhatMayHaveHadAnEffect(t *testing.T) {
	q := open(t, Options{})
	intent := write("i", payPin)
	intent.RetryClass = supervisor.IdempotencyNative
	plan(t, q, "a", intent)
	work := claimIntents(t, q, 1)[0]
	marked, err := q.MarkIntent(t.Context(), &work)
	require.NoError(t, err)
	require.NoError(t, q.SettleIntent(t.Context(), &marked, supervisor.Settlement{State: supervisor.ActionRetryable}))
	finish(t, q, "a")
	prune := func() int {
		removed, err := q.Prune(t.Context(), time.Now().Add(time.Hour))
		require.NoError(t, err)
		return removed
	}
	require.Zero(t, prune())
	// What cannot be decoded keeps no other instance.
	plan(t, q, "broken", write("j", mailPin))
	_, err = q.DB().ExecContext(t.Context(), `UPDATE supervisor_intents SET state = 'retryable', progress = '{' WHERE id = 'j'`)
	require.NoError(t, err)
	finish(t, q, "broken")
	require.Equal(t, 1, prune())
	work = claimIntents(t, q, 1)[0]
	require.Equal(t, 1, work.Ambiguous)
	require.Zero(t, prune())
	marked, err = q.MarkIntent(t.Context(), &work)
	require.NoError(t, err)
	require.Zero(t, prune())
	require.NoError(t, q.SettleIntent(t.Context(), &marked, succeeded()))
	snapshot, err := q.Get(t.Context(), supervisor.DefaultTenantID, "a")
	require.NoError(t, err)
	require.Equal(t, supervisor.StatusCompleted, snapshot.Status)
	require.Zero(t, snapshot.PendingWakeups)
	require.Equal(t, 1, prune())
	require.ErrorIs(t, q.SettleIntent(t.Context(), &marked, succeeded()), supervisor.ErrLeaseLost)
	require.ErrorIs(t, q.RecordReceipt(t.Context(), &marked, supervisor.Receipt{}), supervisor.ErrNotFound)
}

// Who lost an intent to a claim that parked it cannot mark it, neither while it
// is parked nor when it is due again.
func TestMarkOfWhatAClaimParked(t *testing.T) {
	q := open(t, Options{})
	resource := write("i", payPin)
	resource.ResourceScopeID = "res"
	plan(t, q, "a", resource, write("j", payPin))
	scope := supervisor.Scope{TenantID: supervisor.DefaultTenantID, ResourceID: "res"}
	works, err := q.ClaimIntents(t.Context(), supervisor.IntentClaimRequest{WorkerID: "first", LeaseDuration: time.Millisecond, Limit: 2})
	require.NoError(t, err)
	require.Equal(t, []string{"i", "j"}, workIDs(works))
	time.Sleep(5 * time.Millisecond)
	require.NoError(t, q.LimitIntents(t.Context(), supervisor.IntentLimit{CapabilityID: "pay", Max: 1}))
	require.NoError(t, q.Pause(t.Context(), scope))
	other := claimIntents(t, q, 2)
	require.Equal(t, []string{"j"}, workIDs(other))
	lost := func() {
		for n := range works {
			_, err := q.MarkIntent(t.Context(), &works[n])
			require.ErrorIs(t, err, supervisor.ErrLeaseLost)
			require.ErrorIs(t, q.RenewIntent(t.Context(), works[n].Lease(time.Minute)), supervisor.ErrLeaseLost)
			require.ErrorIs(t, q.ReleaseIntent(t.Context(), &works[n], supervisor.IntentRelease{NotHandedOff: true}), supervisor.ErrLeaseLost)
		}
	}
	lost()
	require.NoError(t, q.Resume(t.Context(), scope))
	lost()
	handOff(t, q, other[0])
	require.Empty(t, claimIntents(t, q, 2), "i is stale")
	lost()
}

// Capabilities take turns, and the pages of a listing join.
func TestIntentTurnsAndPages(t *testing.T) {
	q := open(t, Options{})
	var intents []supervisor.ActionIntent
	for n := range pageSize + 3 {
		intents = append(intents, write(fmt.Sprintf("pay %03d", n), payPin))
	}
	intents = append(intents, write("mail", mailPin))
	plan(t, q, "a", intents...)
	plan(t, q, "b", write("x", mailPin))
	plan(t, q, "c", write("y", mailPin))
	var ids []string
	for range 3 {
		ids = append(ids, workIDs(claimIntents(t, q, 2))...)
	}
	require.Equal(t, []string{"pay 000", "mail", "pay 001", "x", "pay 002", "y"}, ids)
	for _, filter := range []supervisor.IntentFilter{{}, {TenantID: supervisor.DefaultTenantID}} {
		ids = nil
		for record, err := range q.ListIntents(t.Context(), filter) {
			require.NoError(t, err)
			ids = append(ids, record.Intent.ID)
		}
		require.Len(t, ids, pageSize+6)
		require.Equal(t, []string{"mail", "pay 000"}, ids[:2])
		require.Equal(t, []string{"pay 066", "x", "y"}, ids[pageSize+3:])
	}
	require.Len(t, listIntentStates(t, q, supervisor.IntentFilter{TenantID: supervisor.DefaultTenantID, InstanceID: "a"}), pageSize+4)
	require.Len(t, listIntentStates(t, q, supervisor.IntentFilter{InstanceID: "b"}), 1)
	require.Len(t, listIntentStates(t, q, supervisor.IntentFilter{CapabilityID: "mail"}), 3)
}

// What others do at the same time shares transactions, and who is refused takes
// no neighbor along.
func TestIntentWritesShareTransactions(t *testing.T) {
	path := filepath.Join(t.TempDir(), "queue.db")
	q, store := openFaulty(t, path)
	const count = 64
	var intents []supervisor.ActionIntent
	for n := range count {
		intents = append(intents, write(fmt.Sprint(n), payPin))
	}
	plan(t, q, "a", intents...)
	works := claimIntents(t, q, count)
	require.Len(t, works, count)
	before := store.committed()
	var callers sync.WaitGroup
	failures := make([]error, count)
	for n := range works {
		callers.Go(func() {
			work := works[n]
			if n%8 == 0 {
				work.LeaseVersion++
			}
			marked, err := q.MarkIntent(t.Context(), &work)
			if err == nil {
				err = q.SettleIntent(t.Context(), &marked, succeeded())
			}
			failures[n] = err
		})
	}
	callers.Wait()
	for n, err := range failures {
		if n%8 == 0 {
			require.ErrorIs(t, err, supervisor.ErrLeaseLost)
		} else {
			require.NoError(t, err)
		}
	}
	require.Less(t, store.committed()-before, count, "transactions of %d calls", 2*count)
	require.Len(t, listIntentStates(t, q, supervisor.IntentFilter{State: supervisor.ActionSucceeded}), count-count/8)
	snapshot, err := q.Get(t.Context(), supervisor.DefaultTenantID, "a")
	require.NoError(t, err)
	require.Equal(t, count-count/8, snapshot.PendingWakeups)
}

// Slots are counted in the transaction that takes or frees them.
func TestIntentSlotsSurviveFailedWrites(t *testing.T) {
	for n := 1; ; n++ {
		q, store := openFaulty(t, filepath.Join(t.TempDir(), "queue.db"))
		require.NoError(t, q.LimitIntents(t.Context(), supervisor.IntentLimit{CapabilityID: "pay", Max: 1}))
		plan(t, q, "a", write("a", payPin), write("b", payPin))
		works := claimIntents(t, q, 1)
		marked, err := q.MarkIntent(t.Context(), &works[0])
		require.NoError(t, err)
		require.Empty(t, claimIntents(t, q, 1))

		used := func() (used int) {
			require.NoError(t, q.DB().QueryRowContext(t.Context(), `SELECT used FROM supervisor_limits`).Scan(&used))
			return used
		}
		disarm := store.failWrite(n)
		err = q.SettleIntent(t.Context(), &marked, succeeded())
		reached := disarm()
		if err != nil {
			require.True(t, reached)
			require.Equal(t, 1, used(), "write %d", n)
			require.NoError(t, q.SettleIntent(t.Context(), &marked, succeeded()))
		}
		require.Zero(t, used(), "write %d", n)
		works = claimIntents(t, q, 1)
		require.Equal(t, []string{"b"}, workIDs(works), "write %d", n)
		handOff(t, q, works[0])
		require.Zero(t, used(), "write %d", n)
		if !reached {
			require.Greater(t, n, 5)
			return
		}
	}
}
