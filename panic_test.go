package supervisor

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// failNow is a require.TestingT, the way it is found in drivers under test.
type failNow struct{}

func (failNow) Errorf(string, ...any) {}
func (failNow) FailNow()              { runtime.Goexit() }

// A Goexit unwinds without a value to recover: it looks like neither a panic
// nor a result, and must not take the item, its slot or its renewals along.
func TestGoexitInADriverIsAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		startedAt := time.Now()
		a, b, c := testItem("a"), testItem("b"), testItem("c")
		queue := &scriptQueue{onClaim: func(context.Context, ClaimRequest) ([]WorkItem, error) { return []WorkItem{a, b, c}, nil }}
		settings := leaseOf(3 * time.Second)
		settings.Concurrency = 1
		registry := testRegistry(func(_ context.Context, item *WorkItem) (TransitionCommand, error) {
			switch item.ID {
			case "a":
				runtime.Goexit()
			case "b":
				require.Equal(failNow{}, 1, 2)
			case "c":
				time.Sleep(1500 * time.Millisecond)
			}
			return completed(item)
		})
		for pass := range 2 {
			stats, err := RunDuePass(t.Context(), queue, registry, settings, noContext)
			require.NoError(t, err)
			require.Equal(t, Stats{Claimed: 3, Failed: 2, Completed: 1}, stats)
			require.Equal(t, time.Duration(pass+1)*1500*time.Millisecond, time.Since(startedAt))
			for _, id := range []string{"a", "b"} {
				failure := queue.commitsOf(id)[pass].command.Disposition.(Failed)
				require.Equal(t, "driver called runtime.Goexit", failure.Reason)
				require.False(t, failure.RetryAt.IsZero())
			}
			require.Equal(t, Complete{}, queue.commitsOf("c")[pass].command.Disposition)
		}
		for _, call := range queue.renews {
			require.Equal(t, "c", call.lease.InstanceID)
		}
	})
}

// frailError has a method that panics on a nil pointer.
type frailError struct{ text string }

func (e *frailError) Error() string { return e.text }
func (e *frailError) Unwrap() error { return errors.New(e.text) }

// rude cannot be asked for anything.
type rude struct{}

func (rude) Error() string { panic("rude") }
func (rude) Is(error) bool { panic("rude") }
func (rude) As(any) bool   { panic("rude") }
func (rude) Unwrap() error { panic("rude") }

// unwell are the ways in which foreign code does anything but return a result.
var unwell = map[string]struct {
	act  func() error
	says string
}{
	"panics":                           {func() error { panic("boom") }, "panicked: boom"},
	"panics with nil":                  {func() error { panic(nil) }, "panicked: panic called with nil argument"},
	"panics with an error":             {func() error { panic(errors.New("boom")) }, "panicked: boom"},
	"panics with what cannot be asked": {func() error { panic(rude{}) }, "panicked: "},
	"panics with a nil error":          {func() error { panic((*frailError)(nil)) }, "panicked: "},
	"writes to a nil map":              {func() error { return writeTo(nil) }, "assignment to entry in nil map"},
	"follows a nil pointer":            {func() error { var p *frailError; return errors.New(p.text) }, "nil pointer dereference"},
	"exits its goroutine":              {func() error { runtime.Goexit(); return nil }, "called runtime.Goexit"},
	"panics in a deferred call": {func() error {
		defer func() { panic("second") }()
		panic("first")
	}, "second"},
	"returns a typed nil":         {func() error { return (*frailError)(nil) }, "a nil *supervisor.frailError was returned as an error"},
	"wraps a typed nil":           {func() error { return fmt.Errorf("while at it: %w", (*frailError)(nil)) }, "while at it: "},
	"returns what cannot be read": {func() error { return rude{} }, "rude"},
	"wraps what cannot be asked":  {func() error { return errors.Join(errors.New("while at it"), rude{}) }, "rude"},
}

// Whatever foreign code does for one item, the item fails with text, its
// sibling is committed and nothing is left running.
func TestForeignCodeIsContained(t *testing.T) {
	type parts struct {
		queue    *scriptQueue
		registry *DriverRegistry[struct{}]
		driver   *testDriver
	}
	// hit is true for the item that is in for it.
	hit := func(id string) bool { return id == "inst-1" }
	for place, prepare := range map[string]func(parts, func() error){
		"Evaluate": func(p parts, act func() error) {
			p.driver.evaluate = func(_ context.Context, item *WorkItem) (TransitionCommand, error) {
				if hit(item.ID) {
					return TransitionCommand{}, act()
				}
				return completed(item)
			}
		},
		"SupportsRevision": func(p parts, act func() error) {
			p.driver.supports = func(item *WorkItem) bool { return !hit(item.ID) || act() == nil }
		},
		"AdmitEvaluation": func(p parts, act func() error) {
			p.queue.onAdmit = func(_ context.Context, item *WorkItem) error {
				if hit(item.ID) {
					return act()
				}
				return nil
			}
		},
		"LoadRevision": func(p parts, act func() error) {
			p.registry.UseCompiler(&stepCompiler[struct{}]{})
			p.queue.items[0].SpecID = "compiled"
			p.queue.onLoad = func(context.Context, *WorkItem) (*Revision, error) { return nil, act() }
		},
		"Renew": func(p parts, act func() error) {
			p.driver.evaluate = work(1500 * time.Millisecond)
			p.queue.onRenew = func(_ context.Context, lease Lease) error {
				if hit(lease.InstanceID) {
					return act()
				}
				return nil
			}
		},
	} {
		for manner, test := range unwell {
			t.Run(place+" "+manner, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					p := parts{
						queue:    &scriptQueue{items: testItems(2)},
						registry: NewDriverRegistry[struct{}](),
						driver:   &testDriver{spec: "spec", evaluate: complete},
					}
					require.NoError(t, p.registry.Register(p.driver))
					prepare(p, test.act)
					stats, err := RunDuePass(t.Context(), p.queue, p.registry, leaseOf(3*time.Second), noContext)
					require.NoError(t, err)
					require.Equal(t, Stats{Claimed: 2, Failed: 1, Completed: 1}, stats)
					failure := p.queue.failureOf(t, "inst-1")
					require.NotEmpty(t, failure.Reason)
					if place != "SupportsRevision" || manner == "panics" {
						require.Contains(t, failure.Reason, test.says)
					}
					if place == "Renew" {
						require.Contains(t, failure.Reason, "lease renewal failed: ")
					}
					require.False(t, failure.RetryAt.IsZero())
					require.Len(t, p.queue.commitsOf("inst-2"), 1)
				})
			})
		}
	}
}

// A commit that panics may have been applied: its item is named, and no other
// command follows.
func TestForeignCommitIsContained(t *testing.T) {
	for manner, test := range unwell {
		t.Run(manner, func(t *testing.T) {
			var told []error
			queue := &scriptQueue{items: testItems(2), onCommit: func(_ context.Context, item *WorkItem, _ *TransitionCommand) error {
				if item.ID == "inst-1" {
					return test.act()
				}
				return nil
			}}
			settings := testSettings()
			settings.Observer = &Observer{Commit: func(info CommitInfo) {
				if info.Item.ID == "inst-1" {
					told = append(told, info.Err)
				}
			}}
			stats, err := RunDuePass(t.Context(), queue, testRegistry(complete), settings, noContext)
			require.Equal(t, Stats{Claimed: 2, Failed: 1, Completed: 1}, stats)
			var commitError *CommitError
			require.ErrorAs(t, err, &commitError)
			require.Len(t, commitError.Items, 1)
			require.Equal(t, "inst-1", commitError.Items[0].InstanceID)
			require.Contains(t, err.Error(), test.says)
			require.Len(t, queue.commits, 2)
			require.Len(t, told, 1)
			require.Contains(t, errorText(told[0]), test.says)
		})
	}
}

// A release that fails leaves the lease to run out, which is no error of the pass.
func TestForeignReleaseIsContained(t *testing.T) {
	for manner, test := range unwell {
		t.Run(manner, func(t *testing.T) {
			queue := &releasingQueue{
				scriptQueue: &scriptQueue{
					items:    testItems(1),
					onCommit: func(context.Context, *WorkItem, *TransitionCommand) error { return ErrEpochStale },
				},
				onRelease: func(context.Context, *WorkItem, string) error { return test.act() },
			}
			stats, err := RunDuePass(t.Context(), queue, testRegistry(complete), testSettings(), noContext)
			require.NoError(t, err)
			require.Equal(t, Stats{Claimed: 1, Revoked: 1}, stats)
			require.Len(t, queue.releases, 1)
		})
	}
}

func TestPanicErrorTellsWhatAndWhere(t *testing.T) {
	cause := errors.New("boom")
	queue := &scriptQueue{items: testItems(1)}
	settings := testSettings()
	var told error
	settings.Observer = &Observer{EvaluationEnd: func(info EvaluationInfo) { told = info.Err }}
	_, err := RunDuePass(t.Context(), queue, testRegistry(func(context.Context, *WorkItem) (TransitionCommand, error) {
		panic(cause)
	}), settings, noContext)
	require.NoError(t, err)
	var panicked *PanicError
	require.ErrorAs(t, told, &panicked)
	require.Equal(t, "driver", panicked.Op)
	require.Equal(t, cause, panicked.Value)
	require.Contains(t, string(panicked.Stack), "TestPanicErrorTellsWhatAndWhere")
	require.ErrorIs(t, told, cause)
}

// What could not be stored would never be recorded, and the item tried for ever.
func TestHostileTextOfAnErrorIsStorable(t *testing.T) {
	for name, test := range map[string]struct{ text, want string }{
		"NUL":               {"bad\x00byte", "bad\uFFFDbyte"},
		"bytes of no UTF-8": {"bad \xff\xfe", "bad \uFFFD"},
		"a lone surrogate":  {"\xed\xa0\x80", "\uFFFD"},
		"blank":             {" \u2003\n", "evaluation failed without a reason"},
		"empty":             {"", "evaluation failed without a reason"},
	} {
		t.Run(name, func(t *testing.T) {
			queue := &scriptQueue{items: testItems(1), onCommit: func(_ context.Context, item *WorkItem, command *TransitionCommand) error {
				return command.ValidateContent(item)
			}}
			stats, err := RunDuePass(t.Context(), queue, testRegistry(func(context.Context, *WorkItem) (TransitionCommand, error) {
				return TransitionCommand{}, errors.New(test.text)
			}), testSettings(), noContext)
			require.NoError(t, err)
			require.Equal(t, Stats{Claimed: 1, Failed: 1}, stats)
			require.Equal(t, test.want, queue.failureOf(t, "inst-1").Reason)
		})
	}
}

func writeTo(m map[int]int) error {
	m[0] = 1
	return nil
}
