package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// Each item goes through pins, admission, resolution, evaluation, validation
// and commit; what fails keeps the later stages from being asked.
func TestStagesOfAnItem(t *testing.T) {
	refused := errors.New("refused")
	cancelling := func(item *WorkItem) { item.CancelRequested = true }
	for name, test := range map[string]struct {
		prepare func(item *WorkItem)
		fail    string // the stage that fails
		want    []string
		says    string // in the failure; blank for none
	}{
		"all is well": {want: []string{"admit", "supports", "evaluate"}},
		"invalid pins": {
			prepare: func(item *WorkItem) { item.WorkflowRevisionDigest = "\u2003" },
			says:    "WorkflowRevisionDigest is blank",
		},
		"a lease version that cannot be": {
			prepare: func(item *WorkItem) { item.LeaseVersion = 0 },
			says:    "LeaseVersion is 0",
		},
		"not admitted":     {fail: "admit", want: []string{"admit"}, says: "admission: refused"},
		"not supported":    {fail: "supports", want: []string{"admit", "supports"}, says: "does not support the claimed revision"},
		"driver refuses":   {fail: "evaluate", want: []string{"admit", "supports", "evaluate"}, says: "refused"},
		"nobody's spec":    {prepare: func(item *WorkItem) { item.SpecID = "other" }, want: []string{"admit"}, says: `spec "other"`},
		"cancelled":        {prepare: cancelling, want: []string{"supports", "evaluate"}},
		"cancelled, fails": {prepare: cancelling, fail: "evaluate", want: []string{"supports", "evaluate"}, says: "refused"},
		"terminal timer": {
			prepare: func(item *WorkItem) {
				item.Wakeups = []Wakeup{{ID: "w", Kind: WakeupKindTimer, Payload: json.RawMessage(`{"kind":"terminal_action"}`)}}
			},
			want: []string{"supports", "evaluate"},
		},
		"a timer that is none": {
			prepare: func(item *WorkItem) {
				item.Wakeups = []Wakeup{{ID: "w", Kind: WakeupKindTimer, Payload: json.RawMessage(`["terminal_action"]`)}}
			},
			want: []string{"admit", "supports", "evaluate"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var stages []string
			asked := func(stage string) error {
				stages = append(stages, stage)
				if stage == test.fail {
					return refused
				}
				return nil
			}
			item := testItem("inst-1")
			if test.prepare != nil {
				test.prepare(&item)
			}
			queue := &scriptQueue{
				items:   []WorkItem{item},
				onAdmit: func(context.Context, *WorkItem) error { return asked("admit") },
			}
			registry := NewDriverRegistry[struct{}]()
			require.NoError(t, registry.Register(&testDriver{
				spec:     "spec",
				supports: func(*WorkItem) bool { return asked("supports") == nil },
				evaluate: func(_ context.Context, item *WorkItem) (TransitionCommand, error) {
					if err := asked("evaluate"); err != nil {
						return TransitionCommand{}, err
					}
					return completed(item)
				},
			}))
			stats, err := RunDuePass(t.Context(), queue, registry, testSettings(), noContext)
			require.NoError(t, err)
			require.Equal(t, test.want, stages)
			if test.says == "" {
				require.Equal(t, Stats{Claimed: 1, Completed: 1}, stats)
				return
			}
			require.Equal(t, Stats{Claimed: 1, Failed: 1}, stats)
			failure := queue.failureOf(t, "inst-1")
			require.Contains(t, failure.Reason, test.says)
			require.False(t, failure.RetryAt.IsZero())
		})
	}
}

// What no evaluation can help is recorded before it is tried, with a delay: it
// does not come back hot and does not push healthy work aside.
func TestItemsWithInvalidPinsBackOffWithoutAnEvaluation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := testItem("x"), testItem("y")
		x.WorkflowRevisionDigest = " "
		y.RunID = "not-a-uuid"
		queue := &scriptQueue{items: []WorkItem{x, y, testItem("z")}}
		settings := testSettings()
		settings.RequeueDelay = 30 * time.Second
		var mu sync.Mutex
		var evaluated []string
		stats, err := RunDuePass(t.Context(), queue, testRegistry(func(_ context.Context, item *WorkItem) (TransitionCommand, error) {
			mu.Lock()
			defer mu.Unlock()
			evaluated = append(evaluated, item.ID)
			return completed(item)
		}), settings, noContext)
		require.NoError(t, err)
		require.Equal(t, Stats{Claimed: 3, Failed: 2, Completed: 1}, stats)
		require.Equal(t, []string{"z"}, evaluated)
		for id, field := range map[string]string{"x": "WorkflowRevisionDigest", "y": "RunID"} {
			failure := queue.failureOf(t, id)
			require.Contains(t, failure.Reason, field)
			require.Equal(t, x.ClaimedAt.Add(30*time.Second), failure.RetryAt)
		}
	})
}

func TestPassingFaultBeforeTheEvaluationIsAFailureLikeAnyOther(t *testing.T) {
	unavailable := fmt.Errorf("%w: connection refused", ErrUnavailable)
	t.Run("admission", func(t *testing.T) {
		queue := &scriptQueue{items: testItems(1), onAdmit: func(context.Context, *WorkItem) error { return unavailable }}
		stats, err := RunDuePass(t.Context(), queue, testRegistry(complete), testSettings(), noContext)
		require.NoError(t, err)
		require.Equal(t, Stats{Claimed: 1, Failed: 1}, stats)
		require.Contains(t, queue.failureOf(t, "inst-1").Reason, "connection refused")
	})
	t.Run("loading", func(t *testing.T) {
		registry := NewDriverRegistry[struct{}]()
		registry.UseCompiler(&stepCompiler[struct{}]{})
		queue := &scriptQueue{items: testItems(1), onLoad: func(context.Context, *WorkItem) (*Revision, error) { return nil, unavailable }}
		stats, err := RunDuePass(t.Context(), queue, registry, testSettings(), noContext)
		require.NoError(t, err)
		require.Equal(t, Stats{Claimed: 1, Failed: 1}, stats)
		require.Contains(t, queue.failureOf(t, "inst-1").Reason, "connection refused")
	})
}

// Explain tells these two from other failures by the class that their commits carry.
func TestFailuresToFindADriverCarryTheirClass(t *testing.T) {
	compiling := NewDriverRegistry[struct{}]()
	compiling.UseCompiler(&stepCompiler[struct{}]{})
	refusing := NewDriverRegistry[struct{}]()
	require.NoError(t, refusing.Register(&testDriver{spec: "spec", supports: func(*WorkItem) bool { return false }}))
	for name, test := range map[string]struct {
		registry *DriverRegistry[struct{}]
		spec     string
		want     FailureClass
	}{
		"nobody's spec":        {testRegistry(complete), "other", FailureNoDriver},
		"refused by its owner": {refusing, "spec", FailureNoDriver},
		"unpublished":          {compiling, "spec", FailureRevisionUnpublished},
		"any other": {testRegistry(func(context.Context, *WorkItem) (TransitionCommand, error) {
			return TransitionCommand{}, errors.New("planned")
		}), "spec", ""},
	} {
		t.Run(name, func(t *testing.T) {
			item := testItem("inst-1")
			item.SpecID = test.spec
			queue := &scriptQueue{items: []WorkItem{item}}
			_, err := RunDuePass(t.Context(), queue, test.registry, testSettings(), noContext)
			require.NoError(t, err)
			require.Len(t, queue.commits, 1)
			require.Equal(t, test.want, FailureClassOf(&queue.commits[0].command))
		})
	}
}

// A result that cannot be stored is a failure recorded in the same pass.
func TestInvalidCommandIsAFailureThatNamesWhatIsWrong(t *testing.T) {
	for name, test := range map[string]struct {
		spoil func(*TransitionCommand)
		says  string
	}{
		"zero":                  {func(c *TransitionCommand) { *c = TransitionCommand{} }, "DeliveryDigest is blank"},
		"no disposition":        {func(c *TransitionCommand) { c.Disposition = nil }, "Disposition is nil"},
		"pointer disposition":   {func(c *TransitionCommand) { c.Disposition = (*Complete)(nil) }, "Disposition is a *supervisor.Complete"},
		"foreign disposition":   {func(c *TransitionCommand) { c.Disposition = struct{ Complete }{} }, "Disposition is a struct"},
		"failure, no reason":    {func(c *TransitionCommand) { c.Disposition = Failed{} }, "Failed.Reason is blank"},
		"no state":              {func(c *TransitionCommand) { c.NextState = nil }, "NextState is nil"},
		"state is no JSON":      {func(c *TransitionCommand) { c.NextState = json.RawMessage(`{`) }, "NextState"},
		"state with NUL":        {func(c *TransitionCommand) { c.NextState = json.RawMessage(`"\u0000"`) }, "NextState"},
		"payload in Latin-1":    {func(c *TransitionCommand) { c.EventPayload = json.RawMessage("\"\xe4\"") }, "EventPayload"},
		"key with NUL":          {func(c *TransitionCommand) { c.DeliveryKey = "a\x00b" }, "DeliveryKey"},
		"beyond the calendar":   {func(c *TransitionCommand) { c.Disposition = Reschedule{At: time.Unix(1<<40, 0)} }, "Reschedule.At"},
		"wakeup of its own":     {func(c *TransitionCommand) { c.ConsumedWakeups = []string{"w"} }, `"w" was not claimed`},
		"intent of its own pin": {func(c *TransitionCommand) { c.ActionIntents = make([]ActionIntent, 1) }, "ActionIntents[0]"},
	} {
		t.Run(name, func(t *testing.T) {
			queue := &scriptQueue{items: testItems(1)}
			stats, err := RunDuePass(t.Context(), queue, testRegistry(func(_ context.Context, item *WorkItem) (TransitionCommand, error) {
				command, err := completed(item)
				test.spoil(&command)
				return command, err
			}), testSettings(), noContext)
			require.NoError(t, err)
			require.Equal(t, Stats{Claimed: 1, Failed: 1}, stats)
			failure := queue.failureOf(t, "inst-1")
			require.Contains(t, failure.Reason, "driver returned an invalid command")
			require.Contains(t, failure.Reason, test.says)
			require.False(t, failure.RetryAt.IsZero())
		})
	}
}

// A command beside an error is no result.
func TestErrorBesideACommandWins(t *testing.T) {
	queue := &scriptQueue{items: testItems(1)}
	stats, err := RunDuePass(t.Context(), queue, testRegistry(func(_ context.Context, item *WorkItem) (TransitionCommand, error) {
		command, _ := completed(item)
		return command, errors.New("planned")
	}), testSettings(), noContext)
	require.NoError(t, err)
	require.Equal(t, Stats{Claimed: 1, Failed: 1}, stats)
	require.Equal(t, "planned", queue.failureOf(t, "inst-1").Reason)
}

func TestRejectedCommandIsFollowedByAFailureThatSaysSo(t *testing.T) {
	rejects := fmt.Errorf("%w: the payload has 9 MiB", ErrCommandRejected)
	t.Run("which is stored", func(t *testing.T) {
		queue := &scriptQueue{items: testItems(1), onCommit: func(_ context.Context, _ *WorkItem, command *TransitionCommand) error {
			if command.EventType == EventEvaluationFailed {
				return nil
			}
			return rejects
		}}
		stats, err := RunDuePass(t.Context(), queue, testRegistry(complete), testSettings(), noContext)
		require.NoError(t, err)
		require.Equal(t, Stats{Claimed: 1, Failed: 1}, stats)
		require.Len(t, queue.commits, 2)
		failure, _ := queue.commits[1].command.Disposition.(Failed)
		require.Contains(t, failure.Reason, "cannot be stored")
		require.Contains(t, failure.Reason, "the payload has 9 MiB")
		require.NotEqual(t, queue.commits[0].command.DeliveryKey, queue.commits[1].command.DeliveryKey)
	})
	t.Run("which is rejected, too", func(t *testing.T) {
		queue := &scriptQueue{items: testItems(1), onCommit: func(context.Context, *WorkItem, *TransitionCommand) error { return rejects }}
		stats, err := RunDuePass(t.Context(), queue, testRegistry(complete), testSettings(), noContext)
		require.ErrorIs(t, err, ErrCommandRejected)
		require.Equal(t, Stats{Claimed: 1, Failed: 1}, stats)
		require.Len(t, queue.commits, 2)
	})
	t.Run("a failure is not followed", func(t *testing.T) {
		queue := &scriptQueue{items: testItems(1), onCommit: func(context.Context, *WorkItem, *TransitionCommand) error { return rejects }}
		_, err := RunDuePass(t.Context(), queue, testRegistry(func(context.Context, *WorkItem) (TransitionCommand, error) {
			return TransitionCommand{}, errors.New("planned")
		}), testSettings(), noContext)
		require.ErrorIs(t, err, ErrCommandRejected)
		require.Len(t, queue.commits, 1)
	})
}

// It may have been applied: another command could run the step twice.
func TestCommitThatErrsIsNeverFollowedByAnotherCommand(t *testing.T) {
	planned := errors.New("planned")
	for _, failure := range []error{
		ErrUnavailable, ErrCommitUnknown, ErrLeaseLost, ErrStateConflict, ErrNotFound, ErrFinished,
		&DeliveryConflictError{Key: "k", StoredDigest: "a", Digest: "b"}, context.DeadlineExceeded, errors.New("no idea"),
	} {
		for name, evaluate := range map[string]evaluateFunc{
			"command": complete,
			"failure": func(context.Context, *WorkItem) (TransitionCommand, error) { return TransitionCommand{}, planned },
		} {
			t.Run(fmt.Sprintf("%v for a %s", failure, name), func(t *testing.T) {
				queue := &scriptQueue{items: testItems(2), onCommit: func(_ context.Context, item *WorkItem, _ *TransitionCommand) error {
					if item.ID == "inst-1" {
						return fmt.Errorf("store: %w", failure)
					}
					return nil
				}}
				stats, err := RunDuePass(t.Context(), queue, testRegistry(evaluate), testSettings(), noContext)
				require.ErrorIs(t, err, failure)
				var commitError *CommitError
				require.ErrorAs(t, err, &commitError)
				require.Len(t, commitError.Items, 1)
				require.Equal(t, "t1", commitError.Items[0].TenantID)
				require.Equal(t, "inst-1", commitError.Items[0].InstanceID)
				require.ErrorContains(t, err, `tenant "t1" instance "inst-1"`)
				require.Len(t, queue.commits, 2)
				require.Equal(t, 2, stats.Claimed)
				require.Equal(t, 2, stats.Failed+stats.Completed, "stats are valid beside an error")
				require.Equal(t, name == "command", stats.Completed == 1)
			})
		}
	}
}

func TestCommitErrorNamesEachItemInOrder(t *testing.T) {
	items := testItems(3)
	items[0].TenantID = "t2"
	queue := &scriptQueue{items: items, onCommit: func(_ context.Context, item *WorkItem, _ *TransitionCommand) error {
		return fmt.Errorf("store of %s: %w", item.ID, ErrCommitUnknown)
	}}
	_, err := RunDuePass(t.Context(), queue, testRegistry(complete), testSettings(), noContext)
	require.EqualError(t, err, `supervisor: commit failed: `+
		`tenant "t1" instance "inst-2": store of inst-2: supervisor: commit outcome is unknown; `+
		`tenant "t1" instance "inst-3": store of inst-3: supervisor: commit outcome is unknown; `+
		`tenant "t2" instance "inst-1": store of inst-1: supervisor: commit outcome is unknown`)
	var itemError *ItemError
	require.ErrorAs(t, err, &itemError)
	require.Equal(t, "inst-2", itemError.InstanceID)
}

func TestEveryCommitIsBoundedByCommitTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		startedAt := time.Now()
		queue := &scriptQueue{items: testItems(1), onCommit: func(ctx context.Context, _ *WorkItem, _ *TransitionCommand) error {
			<-ctx.Done()
			return context.Cause(ctx)
		}}
		settings := testSettings()
		settings.CommitTimeout = 7 * time.Second
		stats, err := RunDuePass(t.Context(), queue, testRegistry(complete), settings, noContext)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, Stats{Claimed: 1, Failed: 1}, stats)
		require.Equal(t, 7*time.Second, time.Since(startedAt))
		require.Empty(t, queue.renews, "a commit is not renewed beside")
	})
}

func TestPassNeverEvaluatesAnItemTwice(t *testing.T) {
	queue := &scriptQueue{items: testItems(3), onCommit: func(_ context.Context, item *WorkItem, _ *TransitionCommand) error {
		if item.ID == "inst-2" {
			return ErrUnavailable
		}
		return nil
	}}
	var mu sync.Mutex
	var evaluated []string
	_, err := RunDuePass(t.Context(), &keepingQueue{releasingQueue: &releasingQueue{scriptQueue: queue}},
		testRegistry(func(_ context.Context, item *WorkItem) (TransitionCommand, error) {
			mu.Lock()
			defer mu.Unlock()
			evaluated = append(evaluated, item.ID)
			return NewCommand(item, "test.on", nil, nil, Continue{})
		}), testSettings(), noContext)
	require.ErrorIs(t, err, ErrUnavailable)
	slices.Sort(evaluated)
	require.Equal(t, []string{"inst-1", "inst-2", "inst-3"}, evaluated)
}
