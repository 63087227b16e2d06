package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPassChecksSettingsThenContextThenRegistry(t *testing.T) {
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancelLate := context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer cancelLate()
	invalid := Settings{Concurrency: -1}
	empty := NewDriverRegistry[struct{}]()
	serving := testRegistry(complete)

	for name, test := range map[string]struct {
		ctx      context.Context
		settings Settings
		registry *DriverRegistry[struct{}]
		is       error  // of the error; nil for any
		says     string // part of the error; blank for no error
	}{
		"invalid settings win over a cancelled context": {cancelled, invalid, empty, nil, "Concurrency is -1"},
		"a cancelled context wins over an empty registry": {
			cancelled, testSettings(), empty, context.Canceled, "nothing was claimed"},
		"cancelled":              {cancelled, testSettings(), serving, context.Canceled, "nothing was claimed"},
		"its deadline is over":   {late, testSettings(), serving, context.DeadlineExceeded, "nothing was claimed"},
		"nothing to evaluate":    {t.Context(), testSettings(), empty, nil, ""},
		"settings are zero":      {t.Context(), Settings{}, empty, nil, ""},
		"registry is the zero":   {t.Context(), testSettings(), new(DriverRegistry[struct{}]), nil, ""},
		"registry and ctx is no": {t.Context(), invalid, empty, nil, "supervisor: settings: "},
	} {
		t.Run(name, func(t *testing.T) {
			queue := &scriptQueue{items: testItems(1)}
			stats, err := RunDuePass(test.ctx, queue, test.registry, test.settings, noContext)
			if test.says == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, test.says)
			}
			if test.is != nil {
				require.ErrorIs(t, err, test.is)
			}
			require.Zero(t, stats)
			require.Empty(t, queue.claims)
		})
	}
}

func TestPassNamesEachMissingArgument(t *testing.T) {
	_, err := RunDuePass[struct{}](t.Context(), nil, nil, Settings{Concurrency: -2}, nil)
	for _, part := range []string{"queue is nil", "registry is nil", "newContext is nil", "Concurrency is -2"} {
		require.ErrorContains(t, err, part)
	}
	_, err = New[struct{}](nil, nil, Settings{Concurrency: -2}, nil)
	for _, part := range []string{"queue is nil", "registry is nil", "newContext is nil", "Concurrency is -2"} {
		require.ErrorContains(t, err, part)
	}
}

// specsDriver owns any number of specs.
type specsDriver struct {
	testDriver
	specs []string
}

func (d *specsDriver) SpecIDs() []string { return d.specs }

// An empty list of wanted specs would mean all of them.
func TestDriverWithoutSpecsClaimsNothing(t *testing.T) {
	registry := NewDriverRegistry[struct{}]()
	require.NoError(t, registry.Register(&specsDriver{testDriver: testDriver{evaluate: complete}}))
	queue := &scriptQueue{items: testItems(1)}
	stats, err := RunDuePass(t.Context(), queue, registry, testSettings(), noContext)
	require.NoError(t, err)
	require.Zero(t, stats)
	require.Empty(t, queue.claims)
}

func TestPassClaimsTheSpecsOfTheRegistry(t *testing.T) {
	compiler := &stepCompiler[struct{}]{}
	for name, test := range map[string]struct {
		prepare func(*DriverRegistry[struct{}])
		want    []string
	}{
		"drivers": {func(*DriverRegistry[struct{}]) {}, []string{"a", "b", "z"}},
		"a compiler serves every spec": {
			func(r *DriverRegistry[struct{}]) { r.UseCompiler(compiler) }, nil},
		"a compiler that was taken away": {func(r *DriverRegistry[struct{}]) {
			r.UseCompiler(compiler)
			r.UseCompiler(nil)
		}, []string{"a", "b", "z"}},
	} {
		t.Run(name, func(t *testing.T) {
			registry := NewDriverRegistry[struct{}]()
			require.NoError(t, registry.Register(&specsDriver{specs: []string{"z", "a"}}))
			require.NoError(t, registry.Register(&specsDriver{specs: []string{"b"}}))
			test.prepare(registry)
			queue := &scriptQueue{}
			_, err := RunDuePass(t.Context(), queue, registry, testSettings(), noContext)
			require.NoError(t, err)
			require.Len(t, queue.claims, 1)
			require.Equal(t, test.want, queue.claims[0].req.SpecIDs)
		})
	}
	t.Run("nothing but a compiler", func(t *testing.T) {
		registry := NewDriverRegistry[struct{}]()
		registry.UseCompiler(compiler)
		queue := &scriptQueue{}
		_, err := RunDuePass(t.Context(), queue, registry, testSettings(), noContext)
		require.NoError(t, err)
		require.Len(t, queue.claims, 1)
		require.Empty(t, queue.claims[0].req.SpecIDs)
	})
}

func TestClaimBatchIsClampedToConcurrency(t *testing.T) {
	for _, test := range []struct{ batch, concurrency, want int }{
		{0, 0, defaultConcurrency},
		{0, 7, 7},
		{1, 7, 1},
		{7, 7, 7},
		{8, 7, 7},
		{math.MaxInt, 7, 7},
		{3, 0, 3},
		{math.MaxInt, math.MaxInt, math.MaxInt},
		{0, math.MaxInt, math.MaxInt},
	} {
		t.Run(fmt.Sprintf("batch %d of %d", test.batch, test.concurrency), func(t *testing.T) {
			queue := &scriptQueue{items: testItems(3)}
			settings := testSettings()
			settings.ClaimBatch, settings.Concurrency = test.batch, test.concurrency
			_, err := RunDuePass(t.Context(), queue, testRegistry(complete), settings, noContext)
			require.NoError(t, err)
			require.Len(t, queue.claims, 1)
			require.Equal(t, ClaimRequest{
				SpecIDs: []string{"spec"}, WorkerID: "w", LeaseDuration: time.Minute, Limit: test.want,
			}, queue.claims[0].req)
		})
	}
}

func TestPassOverAnIdleQueueIsQuiet(t *testing.T) {
	queue := &scriptQueue{}
	stats, err := RunDuePass(t.Context(), queue, testRegistry(complete), testSettings(),
		func(context.Context) (struct{}, error) {
			t.Error("nothing was claimed, but a context is made")
			return struct{}{}, nil
		})
	require.NoError(t, err)
	require.Zero(t, stats)
	require.Len(t, queue.claims, 1)
	require.Empty(t, queue.renews)
	require.Empty(t, queue.commits)
}

func TestFirstOfAnItemThatIsTwiceInABatchWins(t *testing.T) {
	first, second, other := testItem("same"), testItem("same"), testItem("same")
	first.LeaseVersion, second.LeaseVersion = 4, 5
	other.TenantID = "t2"
	queue := &scriptQueue{items: []WorkItem{first, second, testItem("else"), other, first}}
	settings := testSettings()
	settings.Concurrency = 8
	stats, err := RunDuePass(t.Context(), queue, testRegistry(complete), settings, noContext)
	require.NoError(t, err)
	require.Equal(t, Stats{Claimed: 3, Completed: 3}, stats)
	var lease []int64
	for _, commit := range queue.commitsOf("same") {
		if commit.item.TenantID == "t1" {
			lease = append(lease, commit.item.LeaseVersion)
		}
	}
	require.Equal(t, []int64{4}, lease)
}

func TestClaimErrors(t *testing.T) {
	failure := errors.New("no route")
	for name, test := range map[string]struct {
		claim func() error
		is    error
		says  string
	}{
		"an error":     {func() error { return failure }, failure, "supervisor: queue: ClaimDue: no route"},
		"unavailable":  {func() error { return fmt.Errorf("%w: %w", ErrUnavailable, failure) }, ErrUnavailable, "no route"},
		"a typed nil":  {func() error { return (*QueueError)(nil) }, nil, "a nil *supervisor.QueueError"},
		"a panic":      {func() error { panic("boom") }, nil, "panicked: boom"},
		"panic of nil": {func() error { panic(nil) }, nil, "panicked"},
	} {
		t.Run(name, func(t *testing.T) {
			queue := &scriptQueue{onClaim: func(context.Context, ClaimRequest) ([]WorkItem, error) { return nil, test.claim() }}
			stats, err := RunDuePass(t.Context(), queue, testRegistry(complete), testSettings(), noContext)
			require.Zero(t, stats)
			require.ErrorContains(t, err, test.says)
			var queueError *QueueError
			require.ErrorAs(t, err, &queueError)
			require.Equal(t, "ClaimDue", queueError.Op)
			if test.is != nil {
				require.ErrorIs(t, err, test.is)
			}
		})
	}
}

// The claim is made in the caller's goroutine, and nothing is held before it:
// what ends that goroutine, such as a failed test, is the caller's own affair.
func TestGoexitInTheClaimEndsTheCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := &scriptQueue{onClaim: func(context.Context, ClaimRequest) ([]WorkItem, error) {
			runtime.Goexit()
			return nil, nil
		}}
		unwound, returned := false, false
		go func() {
			defer func() { unwound = true }()
			_, _ = RunDuePass(t.Context(), queue, testRegistry(complete), testSettings(), noContext)
			returned = true
		}()
		synctest.Wait()
		require.True(t, unwound)
		require.False(t, returned)
	})
}

func TestItemsBesideAClaimErrorAreServed(t *testing.T) {
	failure := errors.New("the third row is broken")
	queue := &scriptQueue{
		onClaim: func(context.Context, ClaimRequest) ([]WorkItem, error) { return testItems(2), failure },
		onCommit: func(_ context.Context, item *WorkItem, _ *TransitionCommand) error {
			if item.ID == "inst-2" {
				return ErrCommitUnknown
			}
			return nil
		},
	}
	stats, err := RunDuePass(t.Context(), queue, testRegistry(complete), testSettings(), noContext)
	require.Equal(t, Stats{Claimed: 2, Failed: 1, Completed: 1}, stats)
	require.ErrorIs(t, err, failure)
	require.ErrorIs(t, err, ErrCommitUnknown)
	var queueError *QueueError
	require.ErrorAs(t, err, &queueError)
	var commitError *CommitError
	require.ErrorAs(t, err, &commitError)
	require.Len(t, queue.commits, 2)
}

func TestMoreItemsThanAskedForAreServedWithinTheConcurrency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := &scriptQueue{onClaim: func(context.Context, ClaimRequest) ([]WorkItem, error) { return testItems(10), nil }}
		var running mostAtOnce
		startedAt := time.Now()
		stats, err := RunDuePass(t.Context(), queue, testRegistry(func(_ context.Context, item *WorkItem) (TransitionCommand, error) {
			defer running.enter()()
			time.Sleep(time.Second)
			return completed(item)
		}), testSettings(), noContext)
		require.NoError(t, err)
		require.Equal(t, Stats{Claimed: 10, Completed: 10}, stats)
		require.EqualValues(t, 3, running.most.Load())
		require.Equal(t, 4*time.Second, time.Since(startedAt))
	})
}

func TestContextIsMadeOncePerPassAndEndsWithIt(t *testing.T) {
	made := 0
	var passContext context.Context
	queue := &scriptQueue{items: testItems(3)}
	registry := NewDriverRegistry[*int]()
	shared := new(int)
	require.NoError(t, registry.Register(NewDriver("spec", 1, func(_ context.Context, c *int, item *WorkItem) (TransitionCommand, error) {
		if c != shared {
			t.Error("the driver got another context")
		}
		return completed(item)
	})))
	for n := range queue.items {
		queue.items[n].WorkflowRevisionDigest = codeDigest("spec", 1)
	}
	type key struct{}
	stats, err := RunDuePass(context.WithValue(t.Context(), key{}, "v"), queue, registry, testSettings(),
		func(ctx context.Context) (*int, error) {
			made++
			passContext = ctx
			return shared, ctx.Err()
		})
	require.NoError(t, err)
	require.Equal(t, Stats{Claimed: 3, Completed: 3}, stats)
	require.Equal(t, 1, made)
	require.Equal(t, "v", passContext.Value(key{}))
	require.ErrorIs(t, passContext.Err(), context.Canceled)
}

func TestStatsCountWhatDriversDecided(t *testing.T) {
	queue := &scriptQueue{items: testItems(6)}
	settings := testSettings()
	settings.Concurrency = 6
	stats, err := RunDuePass(t.Context(), queue, testRegistry(func(_ context.Context, item *WorkItem) (TransitionCommand, error) {
		var disposition Disposition = Complete{}
		switch item.ID {
		case "inst-1", "inst-2":
			disposition = Continue{Delay: -time.Hour}
		case "inst-3":
			disposition = Reschedule{At: time.Now().Add(time.Hour)}
		case "inst-4": // a failure of the driver's own making is none of the supervisor's
			disposition = Failed{Reason: "refused", RetryAt: time.Now().Add(time.Hour)}
		case "inst-5":
			return TransitionCommand{}, errors.New("planned")
		}
		return NewCommand(item, "test.done", nil, nil, disposition)
	}), settings, noContext)
	require.NoError(t, err)
	require.Equal(t, Stats{Claimed: 6, Failed: 1, Continued: 2, Rescheduled: 1, Completed: 1}, stats)
	require.Equal(t, "test.done", queue.commitsOf("inst-4")[0].command.EventType)
}

func TestSecondPassOnTheSameRegistryAndQueueIsNotHeldUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := &scriptQueue{items: []WorkItem{testItem("slow")}}
		registry := testRegistry(func(_ context.Context, item *WorkItem) (TransitionCommand, error) {
			if item.ID == "slow" {
				time.Sleep(time.Minute)
			}
			return completed(item)
		})
		held := make(chan Stats)
		go func() {
			stats, err := RunDuePass(t.Context(), queue, registry, testSettings(), noContext)
			if err != nil {
				t.Error(err)
			}
			held <- stats
		}()
		synctest.Wait()
		queue.push(testItems(2)...)
		startedAt := time.Now()
		stats, err := RunDuePass(t.Context(), queue, registry, testSettings(), noContext)
		require.NoError(t, err)
		require.Equal(t, Stats{Claimed: 2, Completed: 2}, stats)
		require.Zero(t, time.Since(startedAt))
		require.Equal(t, Stats{Claimed: 1, Completed: 1}, <-held)
	})
}

// A driver may do to its item what it likes: only what was claimed is renewed,
// validated and committed.
func TestDriverGetsItsOwnCopyOfTheItem(t *testing.T) {
	spoil := func(item *WorkItem) {
		item.ID, item.TenantID, item.RunID = "other", "other", "other"
		item.LeaseVersion, item.StateVersion, item.Attempt = 99, 99, 99
		item.ControlEpochs = ControlEpochs{Tenant: 9, Instance: 9, Resource: 9}
		item.CancelRequested = true
		item.ClaimedAt = time.Time{}
		copy(item.State, "#")
		copy(item.Config, "#")
		item.CapabilityPins[0].ID = "other"
		item.Wakeups[0].ID = "other"
		copy(item.Wakeups[0].Payload, "#")
	}
	claimed := testItem("inst-1")
	claimed.CapabilityPins = []CapabilityPin{{ID: "c", ContractVersion: "1", ContentDigest: "d"}}
	claimed.Wakeups = []Wakeup{{ID: "w1", Kind: "k", Payload: json.RawMessage(`{"a":1}`)}}
	want := claimed.Clone()
	for name, driver := range map[string]*testDriver{
		"in Evaluate": {spec: "spec", evaluate: func(_ context.Context, item *WorkItem) (TransitionCommand, error) {
			command, err := completed(item)
			command.ConsumedWakeups = []string{"w1"}
			spoil(item)
			return command, err
		}},
		"in SupportsRevision": {spec: "spec", evaluate: func(context.Context, *WorkItem) (TransitionCommand, error) {
			return TransitionCommand{}, errors.New("planned")
		}, supports: func(item *WorkItem) bool {
			spoil(item)
			return true
		}},
	} {
		t.Run(name, func(t *testing.T) {
			registry := NewDriverRegistry[struct{}]()
			require.NoError(t, registry.Register(driver))
			queue := &scriptQueue{items: []WorkItem{claimed.Clone()}}
			stats, err := RunDuePass(t.Context(), queue, registry, testSettings(), noContext)
			require.NoError(t, err)
			require.Equal(t, 1, stats.Claimed)
			require.Len(t, queue.commits, 1)
			require.Equal(t, want, queue.commits[0].item)
			require.NoError(t, queue.commits[0].command.ValidateFor(&want))
		})
	}
}
