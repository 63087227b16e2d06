package sqlitequeue

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/workflow-supervisor/supervisor"
)

type evaluate = func(context.Context, struct{}, *supervisor.WorkItem) (supervisor.TransitionCommand, error)

// onePass evaluates what is due with one driver for the spec of testInstance.
func onePass(ctx context.Context, t *testing.T, q *Queue, settings supervisor.Settings, f evaluate) (supervisor.Stats, error) {
	t.Helper()
	registry := supervisor.NewDriverRegistry[struct{}]()
	require.NoError(t, registry.Register(supervisor.NewDriver("spec", 1, f)))
	return supervisor.RunDuePass(ctx, q, registry, settings, func(context.Context) (struct{}, error) { return struct{}{}, nil })
}

// Work that is longer than its lease is renewed, and nobody else gets it.
func TestWorkLongerThanItsLease(t *testing.T) {
	path := filepath.Join(t.TempDir(), "queue.db")
	holder, other := openFile(t, path, Options{}), openFile(t, path, Options{})
	startDue(t, holder, "a")
	began, done := make(chan struct{}), make(chan struct{})
	var evaluations atomic.Int64
	var worker sync.WaitGroup
	worker.Go(func() {
		defer close(done)
		stats, err := onePass(t.Context(), t, holder, supervisor.Settings{LeaseDuration: 2 * time.Second},
			func(_ context.Context, _ struct{}, item *supervisor.WorkItem) (supervisor.TransitionCommand, error) {
				evaluations.Add(1)
				close(began)
				time.Sleep(5 * time.Second)
				return supervisor.NewCommand(item, "done", nil, nil, supervisor.Complete{})
			})
		if err != nil || stats.Completed != 1 || stats.Failed != 0 {
			t.Errorf("stats %+v, error %v", stats, err)
		}
	})
	<-began
	for waiting := true; waiting; {
		select {
		case <-done:
			waiting = false
		case <-time.After(200 * time.Millisecond):
			require.Empty(t, claimAll(t, other, 1))
		}
	}
	worker.Wait()
	require.Equal(t, int64(1), evaluations.Load())
	snapshot, err := other.Get(t.Context(), supervisor.DefaultTenantID, "a")
	require.NoError(t, err)
	require.Equal(t, int64(1), snapshot.LeaseVersion)
	require.Equal(t, supervisor.StatusCompleted, snapshot.Status)
}

// What a cancelled pass had in its hands is soon claimable by others.
func TestCancelledPassHandsItsWorkBack(t *testing.T) {
	q := open(t, Options{})
	startDue(t, q, "a", "b", "c")
	ctx, cancel := context.WithCancel(t.Context())
	var began atomic.Int64
	_, err := onePass(ctx, t, q, supervisor.Settings{RequeueDelay: time.Second},
		func(ctx context.Context, _ struct{}, _ *supervisor.WorkItem) (supervisor.TransitionCommand, error) {
			if began.Add(1) == 3 {
				cancel()
			}
			<-ctx.Done()
			return supervisor.TransitionCommand{}, ctx.Err()
		})
	require.NoError(t, err)
	claimed := 0
	require.Eventually(t, func() bool {
		claimed += len(claimAll(t, q, 3))
		return claimed == 3
	}, 10*time.Second, 50*time.Millisecond)
}

// Failures in different words are three events, then the success is stored.
func TestFailingInDifferentWords(t *testing.T) {
	q := open(t, Options{})
	startDue(t, q, "a")
	words := []string{"err one", "err two", "err one"}
	for _, word := range append(words, "") {
		_, err := onePass(t.Context(), t, q, supervisor.Settings{},
			func(_ context.Context, _ struct{}, item *supervisor.WorkItem) (supervisor.TransitionCommand, error) {
				if word != "" {
					return supervisor.TransitionCommand{}, errors.New(word)
				}
				return supervisor.NewCommand(item, "done", nil, nil, supervisor.Complete{})
			})
		require.NoError(t, err)
		if word != "" {
			require.NoError(t, q.Retry(t.Context(), supervisor.DefaultTenantID, "a"))
		}
	}
	var told []string
	for event, err := range q.History(t.Context(), supervisor.DefaultTenantID, "a") {
		require.NoError(t, err)
		if event.Type != supervisor.EventEvaluationFailed {
			continue
		}
		var payload struct{ Error string }
		require.NoError(t, json.Unmarshal(event.Payload, &payload))
		told = append(told, payload.Error)
	}
	require.Len(t, told, len(words))
	for n := range words {
		require.Contains(t, told[n], words[n])
	}
}

// An enormous delay ends with the calendar and never wraps into the past.
func TestEnormousRetryDelay(t *testing.T) {
	for _, delay := range []time.Duration{9_300_000 * time.Second, math.MaxInt64 / 2, math.MaxInt64} {
		q := open(t, Options{})
		startDue(t, q, "a")
		fail := func(context.Context, struct{}, *supervisor.WorkItem) (supervisor.TransitionCommand, error) {
			return supervisor.TransitionCommand{}, errors.New("failed")
		}
		_, err := onePass(t.Context(), t, q, supervisor.Settings{RequeueDelay: delay}, fail)
		require.NoError(t, err)
		snapshot, err := q.Get(t.Context(), supervisor.DefaultTenantID, "a")
		require.NoError(t, err)
		require.True(t, snapshot.NextDueAt.After(time.Now().Add(24*time.Hour)), "due at %v", snapshot.NextDueAt)
		require.LessOrEqual(t, snapshot.NextDueAt.Year(), 9999)
		_, err = json.Marshal(snapshot)
		require.NoError(t, err)
		require.Empty(t, claimAll(t, q, 1))
	}
}

// Any error text is recorded, as valid text of bounded length.
func TestHostileErrorTexts(t *testing.T) {
	for _, text := range []string{"bad\x00byte", "bad \xff\xfe", "\xed\xa0\x80", strings.Repeat("ä", 5<<20/2)} {
		for _, panics := range []bool{false, true} {
			q := open(t, Options{})
			startDue(t, q, "a")
			_, err := onePass(t.Context(), t, q, supervisor.Settings{},
				func(context.Context, struct{}, *supervisor.WorkItem) (supervisor.TransitionCommand, error) {
					if panics {
						panic(text)
					}
					return supervisor.TransitionCommand{}, errors.New(text)
				})
			require.NoError(t, err)
			snapshot, err := q.Get(t.Context(), supervisor.DefaultTenantID, "a")
			require.NoError(t, err)
			require.Equal(t, 1, snapshot.Attempt)
			require.NotEmpty(t, snapshot.LastError)
			require.True(t, utf8.ValidString(snapshot.LastError))
			require.NotContains(t, snapshot.LastError, "\x00")
			require.LessOrEqual(t, len(snapshot.LastError), supervisor.MaxReasonBytes)
			if begins := text[:2]; utf8.ValidString(begins) {
				require.Contains(t, snapshot.LastError, begins)
			}
			require.Empty(t, claimAll(t, q, 1))
			for event, err := range q.History(t.Context(), supervisor.DefaultTenantID, "a") {
				require.NoError(t, err)
				var payload struct{ Error string }
				require.NoError(t, json.Unmarshal(event.Payload, &payload))
				require.Equal(t, snapshot.LastError, payload.Error)
			}
		}
	}
}

// Instances that no pass may evaluate fail with the name of the field, back off
// and keep nothing from the healthy one beside them.
func TestInvalidPinsBackOff(t *testing.T) {
	q := open(t, Options{})
	startDue(t, q, "x", "y", "z")
	for _, statement := range []string{
		`UPDATE supervisor_instances SET workflow_digest = ' ' WHERE id = 'x'`,
		`UPDATE supervisor_instances SET run_id = 'not-a-uuid' WHERE id = 'y'`,
	} {
		_, err := q.DB().ExecContext(t.Context(), statement)
		require.NoError(t, err)
	}
	before := time.Now()
	var evaluated []string
	complete := func(_ context.Context, _ struct{}, item *supervisor.WorkItem) (supervisor.TransitionCommand, error) {
		evaluated = append(evaluated, item.ID) // only one is
		return supervisor.NewCommand(item, "done", nil, nil, supervisor.Complete{})
	}
	settings := supervisor.Settings{RequeueDelay: 30 * time.Second}
	stats, err := onePass(t.Context(), t, q, settings, complete)
	require.NoError(t, err)
	require.Equal(t, supervisor.Stats{Claimed: 3, Failed: 2, Completed: 1}, stats)
	require.Equal(t, []string{"z"}, evaluated)
	for id, field := range map[string]string{"x": "WorkflowRevisionDigest", "y": "RunID"} {
		snapshot, err := q.Get(t.Context(), supervisor.DefaultTenantID, id)
		require.NoError(t, err)
		require.Equal(t, 1, snapshot.Attempt)
		require.Contains(t, snapshot.LastError, field)
		require.False(t, snapshot.NextDueAt.Before(before.Add(30*time.Second)))
	}
	stats, err = onePass(t.Context(), t, q, settings, complete)
	require.NoError(t, err)
	require.Zero(t, stats)
}

// What was cancelled between claim and commit is not overwritten: nothing of the
// command is stored, and the instance ends with the next one.
func TestCancelBetweenClaimAndCommit(t *testing.T) {
	q := open(t, Options{})
	instance := testInstance(t, "a")
	instance.CapabilityPins = []supervisor.CapabilityPin{crashPin}
	_, err := q.Start(t.Context(), instance, time.Time{})
	require.NoError(t, err)
	item := claimAll(t, q, 1)[0]
	require.NoError(t, q.Cancel(t.Context(), item.TenantID, item.ID))
	command := step(t, &item, `"late"`, supervisor.Complete{})
	command.ActionIntents = []supervisor.ActionIntent{{
		ID: "intent", TenantID: item.TenantID, InstanceID: item.ID, RunID: item.RunID, Capability: crashPin, IdempotencyKey: "k",
		State: supervisor.ActionPrepared, Effect: supervisor.EffectRead, RetryClass: supervisor.IdempotencyNative,
		ControlEpochs: item.ControlEpochs, LeaseEpoch: item.LeaseVersion, ActionEpoch: item.StateVersion,
	}}
	require.ErrorIs(t, q.CommitCommand(t.Context(), &item, command), supervisor.ErrEpochStale)
	intents, err := storedIntents(t.Context(), q, item.TenantID, item.ID)
	require.NoError(t, err)
	require.Empty(t, intents)

	require.NoError(t, q.Release(t.Context(), &item, "revoked"))
	again := claimAll(t, q, 1)
	require.Len(t, again, 1)
	require.True(t, again[0].CancelRequested)
	require.JSONEq(t, string(instance.Config), string(again[0].State))
	require.NoError(t, q.CommitCommand(t.Context(), &again[0], step(t, &again[0], `"ended"`, supervisor.Complete{})))
	snapshot, err := q.Get(t.Context(), item.TenantID, item.ID)
	require.NoError(t, err)
	require.Equal(t, supervisor.StatusCancelled, snapshot.Status)
	require.Zero(t, snapshot.NextDueAt)
	require.Empty(t, claimAll(t, q, 1))
}
