package supervisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/stretchr/testify/require"
)

func TestMemoryPushKeepsWhatItIsGiven(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now().UTC()
		pushed := WorkItem{
			Instance:        memInstance("a"),
			ScheduledAt:     now.Add(-time.Minute),
			CreatedAt:       now.Add(-time.Hour),
			State:           json.RawMessage(`{"at":7}`),
			StateVersion:    7,
			ControlEpochs:   ControlEpochs{Tenant: 2, Instance: 3, Resource: 4},
			CancelRequested: true,
			LeaseVersion:    5,
			Attempt:         6,
			Wakeups:         []Wakeup{{ID: "w1", Kind: "timer"}, {ID: "w2", Kind: "signal", Payload: json.RawMessage(`1.0`)}},
		}
		q := NewMemoryWorkQueue(pushed)
		want := pushed
		want.ClaimedAt = now
		want.LeaseVersion = 6
		item := memClaimOne(t, q)
		require.Equal(t, want, item)
		memCommit(t, q, &item, Continue{})
		item = memClaimOne(t, q)
		require.Equal(t, int64(8), item.StateVersion)
		require.Equal(t, int64(7), item.LeaseVersion)
		require.Equal(t, pushed.ControlEpochs, item.ControlEpochs)
		require.Zero(t, item.Attempt)

		later := memItem("later")
		later.ScheduledAt = now.Add(time.Second)
		q.Push(later)
		require.Empty(t, memClaim(t, q, 1))
		time.Sleep(time.Second)
		require.Equal(t, []string{"later"}, memIDs(memClaim(t, q, 1)))
	})
}

func TestMemoryPushReplaces(t *testing.T) {
	q := NewMemoryWorkQueue(memItem("a"))
	old := memClaimOne(t, q)
	replacement := memItem("a")
	replacement.SpecID, replacement.LeaseVersion = "other", 10
	q.Push(replacement)
	command := memCommand(t, &old, Complete{})
	require.ErrorIs(t, q.CommitCommand(t.Context(), &old, &command), ErrLeaseLost)
	require.ErrorIs(t, q.Renew(t.Context(), memLeaseOf(&old)), ErrLeaseLost)
	require.Empty(t, memClaim(t, q, 9, "spec"))
	items := memClaim(t, q, 9)
	require.Len(t, items, 1)
	require.Equal(t, "other", items[0].SpecID)
	require.Equal(t, int64(11), items[0].LeaseVersion)
	require.Zero(t, items[0].StateVersion)
}

// Items that no evaluation may see are handed out, so that a pass can fail
// them; their failure can be stored.
func TestMemoryPushTakesInvalidItems(t *testing.T) {
	for name, change := range map[string]func(*WorkItem){
		"no pins":         func(w *WorkItem) { w.Instance = Instance{ID: w.ID, TenantID: w.TenantID, SpecID: w.SpecID} },
		"blank digest":    func(w *WorkItem) { w.WorkflowRevisionDigest = "" },
		"run id":          func(w *WorkItem) { w.RunID = "not-a-uuid" },
		"state version":   func(w *WorkItem) { w.StateVersion = -3 },
		"lease version":   func(w *WorkItem) { w.LeaseVersion = -3 },
		"tenant epoch":    func(w *WorkItem) { w.ControlEpochs.Tenant = -1 },
		"instance epoch":  func(w *WorkItem) { w.ControlEpochs.Instance = -1 },
		"repeated wakeup": func(w *WorkItem) { w.RunID = ""; w.Wakeups = []Wakeup{{ID: "w"}, {ID: "w"}} },
		"broken config":   func(w *WorkItem) { w.RunID = ""; w.Config = json.RawMessage(`{`); w.State = json.RawMessage(`1`) },
	} {
		item := memItem("a")
		change(&item)
		q := NewMemoryWorkQueue(item)
		claimed := memClaimOne(t, q)
		err := claimed.ValidatePins()
		require.Error(t, err, name)
		failure := FailureCommand(&claimed, err.Error(), time.Now().Add(time.Hour))
		require.NoError(t, q.CommitCommand(t.Context(), &claimed, &failure), name)
		require.Empty(t, memClaim(t, q, 1), name)
		require.Equal(t, claimed, q.Committed()[0].Item, name)
	}
}

func TestMemoryRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewMemoryWorkQueue()
		require.Empty(t, q.Committed())
		require.Empty(t, q.Renewals())
		const n = 2*largestJournalChunk + 100
		var wantItems []WorkItem
		var wantCommands []TransitionCommand
		for i := range n {
			item := memPinned(fmt.Sprint(i % 7))
			item.Wakeups = []Wakeup{{ID: "w", Kind: "signal", Payload: json.RawMessage(`{"a":1}`)}}
			q.Push(item)
			item = memClaimOne(t, q)
			require.NoError(t, q.Renew(t.Context(), memLeaseOf(&item)))
			command := memCommand(t, &item, []Disposition{Continue{Delay: time.Hour}, Failed{Reason: "no"}, Complete{}}[i%3])
			if i%3 == 0 {
				command.ConsumedWakeups = []string{"w"}
				command.ActionIntents = []ActionIntent{memIntent(&item, "i")}
				command.ActionIntents[0].Effect = EffectFunds
				command.ActionIntents[0].Reservation = &ResourceReservationRef{ID: "r", FencingToken: 3}
			}
			if i%11 == 0 {
				command.NextState = json.RawMessage(`"` + strings.Repeat("x", largestSharedCommand) + `"`)
			}
			require.NoError(t, q.CommitCommand(t.Context(), &item, &command))
			wantItems, wantCommands = append(wantItems, item), append(wantCommands, command)
		}
		committed, renewals := q.Committed(), q.Renewals()
		require.Len(t, committed, n)
		require.Len(t, renewals, n)
		for i := range committed {
			require.Equal(t, wantItems[i], committed[i].Item)
			require.Equal(t, wantCommands[i], committed[i].Command)
			require.Equal(t, Renewal{TenantID: "t1", InstanceID: wantItems[i].ID, WorkerID: "w", LeaseVersion: 1}, renewals[i])
		}
		before := memGet(t, q, "3")
		q.ClearHistory()
		require.Empty(t, q.Committed())
		require.Empty(t, q.Renewals())
		require.Equal(t, before, memGet(t, q, "3"))
		require.Len(t, memEvents(t, q, "t1", "3"), 1)
		q.Push(memItem("a"))
		item := memClaimOne(t, q)
		memCommit(t, q, &item, Complete{})
		require.Len(t, q.Committed(), 1)
	})
}

func TestMemoryAdmit(t *testing.T) {
	q := NewMemoryWorkQueue(memItem("a"))
	item := memClaimOne(t, q)
	require.NoError(t, q.AdmitEvaluation(t.Context(), &item), "admits everything unless told otherwise")
	var answer error
	q.Admit = func(asked *WorkItem) error {
		require.Equal(t, item.ID, asked.ID)
		return answer
	}
	require.NoError(t, q.AdmitEvaluation(t.Context(), &item))
	answer = errors.New("over its budget")
	err := q.AdmitEvaluation(t.Context(), &item)
	require.ErrorIs(t, err, ErrNotAdmitted)
	require.ErrorIs(t, err, answer)
	answer = fmt.Errorf("%w: over its budget", ErrNotAdmitted)
	require.Equal(t, answer, q.AdmitEvaluation(t.Context(), &item))
	answer = fmt.Errorf("%w: no authority answers", ErrUnavailable)
	require.NotErrorIs(t, q.AdmitEvaluation(t.Context(), &item), ErrNotAdmitted)
}

// Nothing that goes in or comes out is shared with the caller, and neither are
// the items of one claim with one another.
func TestMemorySharesNoMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		spoil := func(raw json.RawMessage) {
			for n := range raw {
				raw[n] = 'X'
			}
			// Neighbours in the same piece of memory must be out of reach.
			_ = append(raw, "XXXXXXXX"...)
		}
		spoilItem := func(item *WorkItem) {
			spoil(item.Config)
			spoil(item.State)
			_ = append(item.CapabilityPins, CapabilityPin{ID: "X"})
			for n := range item.CapabilityPins {
				item.CapabilityPins[n] = CapabilityPin{ID: "X"}
			}
			_ = append(item.Wakeups, Wakeup{ID: "X"})
			for n := range item.Wakeups {
				spoil(item.Wakeups[n].Payload)
				item.Wakeups[n].ID = "X"
			}
		}
		spoilCommand := func(command *TransitionCommand) {
			spoil(command.NextState)
			spoil(command.EventPayload)
			for n := range command.ConsumedWakeups {
				command.ConsumedWakeups[n] = "X"
			}
			for n := range command.ActionIntents {
				spoil(command.ActionIntents[n].Input)
				command.ActionIntents[n].Reservation.ID = "X"
				command.ActionIntents[n].ID = "X"
			}
		}
		for _, padding := range []int{0, largestSharedCommand, largestSharedArena} {
			pad := strings.Repeat("x", padding)
			fresh := func(id string) WorkItem {
				item := memPinned(id)
				item.Config = json.RawMessage(`{"config":"` + pad + `"}`)
				item.State = json.RawMessage(`{"state":"` + pad + `"}`)
				item.Wakeups = []Wakeup{{ID: "w1", Kind: "signal", Payload: json.RawMessage(`{"w":1}`)}, {ID: "w2", Kind: "signal"}}
				return item
			}
			freshCommand := func(item *WorkItem) TransitionCommand {
				command := memCommand(t, item, Continue{})
				command.EventPayload = json.RawMessage(`{"payload":"` + pad + `"}`)
				command.NextState = json.RawMessage(`{"next":"` + pad + `"}`)
				command.ConsumedWakeups = []string{"w1"}
				command.ActionIntents = []ActionIntent{memIntent(item, "i1")}
				command.ActionIntents[0].Reservation = &ResourceReservationRef{ID: "r"}
				return command
			}
			q := NewMemoryWorkQueue()
			for _, id := range []string{"a", "b"} {
				pushed := fresh(id)
				q.Push(pushed)
				spoilItem(&pushed)
			}
			same := func(want WorkItem, item WorkItem, why string) {
				t.Helper()
				require.Equal(t, want.Instance, item.Instance, why)
				require.Equal(t, string(want.State), string(item.State), why)
				require.Equal(t, want.Wakeups, item.Wakeups, why)
			}
			items := memClaim(t, q, 2)
			spoilItem(&items[0])
			same(fresh("b"), items[1], "two items of one claim share memory")
			require.NoError(t, q.Release(t.Context(), &items[0], ""))
			item := memClaimOne(t, q)
			same(fresh("a"), item, "the queue shares memory with whom it gave an item")

			command, want := freshCommand(&item), freshCommand(&item)
			require.NoError(t, q.CommitCommand(t.Context(), &item, &command))
			spoilCommand(&command)
			spoilItem(&item)
			for range 2 {
				committed := q.Committed()
				require.Equal(t, want, committed[0].Command)
				same(fresh("a"), committed[0].Item, "the record of a commit is shared")
				spoilCommand(&committed[0].Command)
				spoilItem(&committed[0].Item)
			}
			require.Equal(t, string(want.NextState), string(memGet(t, q, "a").State))
			require.Equal(t, string(want.EventPayload), string(memEvents(t, q, "t1", "a")[0].Payload))
			require.Equal(t, want.ActionIntents[0], q.row("t1", "a").intents.inOrder[0].Intent)

			instance := fresh("c").Instance
			_, err := q.Start(t.Context(), instance, time.Time{})
			require.NoError(t, err)
			wakeup := Wakeup{ID: "w", Kind: "signal", Payload: json.RawMessage(`{"w":1}`)}
			require.NoError(t, q.Deliver(t.Context(), "t1", "c", wakeup, time.Time{}))
			spoil(instance.Config)
			spoil(wakeup.Payload)
			instance.CapabilityPins[0].ID = "X"
			snapshot := memGet(t, q, "c")
			require.Equal(t, fresh("c").Instance, snapshot.Instance)
			snapshot.CapabilityPins[0].ID = "X"
			require.Equal(t, fresh("c").Instance, memGet(t, q, "c").Instance)
			for _, item := range memClaim(t, q, 9) {
				if item.ID == "c" {
					require.Equal(t, `{"w":1}`, string(item.Wakeups[0].Payload))
				}
			}
		}
	})
}

// A driver may write to its item while others read what was recorded.
func TestMemoryUseFromManyGoroutines(t *testing.T) {
	q := NewMemoryWorkQueue()
	const instances, steps = 20, 10
	for n := range instances {
		item := memItem(fmt.Sprint(n))
		item.TenantID = fmt.Sprint("t", n%3)
		q.Push(item)
	}
	stop := make(chan struct{})
	var readers, workers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				for _, commit := range q.Committed() {
					if _, err := json.Marshal(commit.Command); err != nil {
						t.Error(err)
					}
					commit.Item.State[0] = 'X'
				}
				for snapshot, err := range q.List(t.Context(), Filter{}) {
					if err != nil {
						t.Error(err)
					}
					for range q.History(t.Context(), snapshot.TenantID, snapshot.ID) {
						break
					}
				}
				if _, err := q.Prune(t.Context(), time.Now().Add(-time.Hour)); err != nil {
					t.Error(err)
				}
				runtime.Gosched()
			}
		})
	}
	for range 4 {
		workers.Go(func() {
			for {
				items, err := q.ClaimDue(t.Context(), ClaimRequest{WorkerID: "w", LeaseDuration: time.Minute, Limit: 3})
				if err != nil {
					t.Error(err)
					return
				}
				if len(items) == 0 {
					if len(q.Committed()) == instances*steps {
						return
					}
					runtime.Gosched()
					continue
				}
				for n := range items {
					item := &items[n]
					var d Disposition = Continue{}
					if item.StateVersion == steps-1 {
						d = Complete{}
					}
					command, err := NewCommand(item, "step", nil, item.StateVersion, d)
					if err == nil {
						err = q.Renew(t.Context(), memLeaseOf(item))
					}
					if err == nil {
						err = q.CommitCommand(t.Context(), item, &command)
					}
					if err != nil {
						t.Error(err)
					}
					item.Config[0], command.NextState[0] = 'X', 'X'
				}
			}
		})
	}
	workers.Wait()
	close(stop)
	readers.Wait()
	require.Len(t, q.Committed(), instances*steps)
	require.Len(t, q.Renewals(), instances*steps)
}

// Idle claims and renewals grow nothing beyond what Renewals returns, which
// ClearHistory frees; commits are freed by ClearHistory and Prune. The bound is
// less than one byte for each call.
func TestMemoryGrowsOnlyByWhatItHolds(t *testing.T) {
	const calls = 100_000
	q := NewMemoryWorkQueue(memItem("held"))
	held := memClaimOne(t, q)
	heap := func() int64 {
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return int64(stats.HeapAlloc)
	}
	grown := func(why string, by func()) {
		t.Helper()
		before := heap()
		by()
		require.Less(t, heap()-before, int64(calls), why)
	}
	claim := ClaimRequest{SpecIDs: []string{"spec", "unknown"}, WorkerID: "w", LeaseDuration: time.Minute, Limit: 16}
	grown("idle claims", func() {
		for range calls {
			items, err := q.ClaimDue(t.Context(), claim)
			if err != nil || len(items) > 0 {
				t.Fatal(items, err)
			}
		}
	})
	grown("renewals", func() {
		lease := memLeaseOf(&held)
		for range calls {
			if err := q.Renew(t.Context(), lease); err != nil {
				t.Fatal(err)
			}
		}
		require.Len(t, q.Renewals(), calls)
		q.ClearHistory()
	})
	grown("releases, wakeups and commits", func() {
		q.Push(memItem("a"))
		for n := range 5_000 {
			require.NoError(t, q.Deliver(t.Context(), "t1", "a", Wakeup{ID: "w", Kind: "signal"}, time.Time{}))
			item := memClaimOne(t, q)
			require.NoError(t, q.Release(t.Context(), &item, "again"))
			item = memClaimOne(t, q)
			d := Disposition(Continue{})
			if n%10 == 9 {
				d = Complete{}
			}
			memCommit(t, q, &item, d)
			if n%10 == 9 {
				_, err := q.Prune(t.Context(), time.Now().Add(time.Second))
				require.NoError(t, err)
				q.Push(memItem("a"))
			}
		}
		q.ClearHistory()
	})
	runtime.KeepAlive(q)
}

// One item of a claim does not keep large neighbours alive, nor an event the
// large state that was committed with it.
func TestMemoryKeepsNothingLargeForSomethingSmall(t *testing.T) {
	large := json.RawMessage(`"` + strings.Repeat("x", largestSharedArena) + `"`)
	q := NewMemoryWorkQueue(memItem("a"), memItem("b"))
	for range 2 {
		item := memClaimOne(t, q)
		command := memCommand(t, &item, Continue{})
		command.NextState = large
		require.NoError(t, q.CommitCommand(t.Context(), &item, &command))
	}
	items := memClaim(t, q, 2)
	kept := items[0]
	neighbour := weak.Make(&items[1].State[0])
	replaced := weak.Make(&q.row("t1", "a").state[0])
	for n := range items {
		memCommit(t, q, &items[n], Continue{})
	}
	clear(items)
	q.ClearHistory()
	runtime.GC()
	require.Nil(t, neighbour.Value(), "the state of an item that is gone")
	require.Nil(t, replaced.Value(), "a state that was replaced")
	require.Equal(t, string(large), string(kept.State))
	require.Len(t, memEvents(t, q, "t1", "a"), 2)
}
