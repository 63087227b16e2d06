package supervisor

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// goroutineName is the number of the calling goroutine.
func goroutineName() string {
	stack := make([]byte, 64)
	return strings.Fields(string(stack[:runtime.Stack(stack, false)]))[1]
}

// trace records what an observer is told, by step.
type trace struct {
	mu        sync.Mutex
	steps     []string
	goroutine map[string]string // of the latest call of a step
}

func (r *trace) step(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.goroutine == nil {
		r.goroutine = map[string]string{}
	}
	r.steps = append(r.steps, name)
	r.goroutine[name] = goroutineName()
}

func (r *trace) observer() *Observer {
	return &Observer{
		Claim:           func(ClaimInfo) { r.step("claim") },
		EvaluationStart: func(EvaluationInfo) { r.step("start") },
		EvaluationEnd:   func(EvaluationInfo) { r.step("end") },
		Renewal:         func(RenewalInfo) { r.step("renewal") },
		Commit:          func(CommitInfo) { r.step("commit") },
		LeaseLost:       func(LostInfo) { r.step("lost") },
		Revoked:         func(LostInfo) { r.step("revoked") },
		Abandoned:       func(LostInfo) { r.step("abandoned") },
		PassEnd:         func(PassInfo) { r.step("pass end") },
	}
}

func TestObserverIsToldOfEachStepInItsGoroutine(t *testing.T) {
	const caller, driver, other = "caller", "driver", "other"
	for name, test := range map[string]struct {
		queue    scriptedCalls
		evaluate evaluateFunc
		settings Settings
		steps    []string
		in       map[string]string // step: goroutine
	}{
		"a result": {
			evaluate: complete,
			settings: testSettings(),
			steps:    []string{"claim", "start", "end", "commit", "pass end"},
			in:       map[string]string{"claim": caller, "start": driver, "end": driver, "commit": driver, "pass end": driver},
		},
		"a renewal": {
			evaluate: work(1500 * time.Millisecond),
			settings: leaseOf(3 * time.Second),
			steps:    []string{"claim", "start", "renewal", "end", "commit", "pass end"},
			in:       map[string]string{"renewal": other},
		},
		"not admitted": {
			queue:    scriptedCalls{admit: ErrNotAdmitted},
			evaluate: complete,
			settings: testSettings(),
			steps:    []string{"claim", "end", "commit", "pass end"},
			in:       map[string]string{"commit": other},
		},
		"a lost lease": {
			queue: scriptedCalls{renew: ErrLeaseLost, commit: ErrLeaseLost},
			evaluate: func(ctx context.Context, _ *WorkItem) (TransitionCommand, error) {
				<-ctx.Done()
				time.Sleep(time.Second)
				return TransitionCommand{}, ctx.Err()
			},
			settings: leaseOf(3 * time.Second),
			steps:    []string{"claim", "start", "commit", "lost", "end", "pass end"},
			in:       map[string]string{"commit": other, "lost": other, "end": driver},
		},
		"revoked by a renewal": {
			queue: scriptedCalls{renew: ErrEpochStale},
			evaluate: func(ctx context.Context, _ *WorkItem) (TransitionCommand, error) {
				<-ctx.Done()
				time.Sleep(time.Second)
				return TransitionCommand{}, ctx.Err()
			},
			settings: leaseOf(3 * time.Second),
			steps:    []string{"claim", "start", "revoked", "end", "pass end"},
			in:       map[string]string{"revoked": other},
		},
		"revoked by a commit": {
			queue:    scriptedCalls{commit: ErrEpochStale},
			evaluate: complete,
			settings: testSettings(),
			steps:    []string{"claim", "start", "end", "commit", "revoked", "pass end"},
			in:       map[string]string{"revoked": driver},
		},
		"abandoned": {
			evaluate: func(context.Context, *WorkItem) (TransitionCommand, error) {
				time.Sleep(time.Hour)
				return TransitionCommand{}, nil
			},
			settings: timeoutSettings(time.Second, time.Second),
			steps:    []string{"claim", "start", "abandoned", "commit", "pass end"},
			in:       map[string]string{"abandoned": other, "commit": other, "pass end": other},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var told trace
				driverGoroutine := ""
				settings := test.settings
				settings.Observer = told.observer()
				_, _ = RunDuePass(t.Context(), test.queue.queue(), testRegistry(func(ctx context.Context, item *WorkItem) (TransitionCommand, error) {
					told.mu.Lock()
					driverGoroutine = goroutineName()
					told.mu.Unlock()
					return test.evaluate(ctx, item)
				}), settings, noContext)
				time.Sleep(time.Hour) // an abandoned driver comes back and tells nothing
				synctest.Wait()
				told.mu.Lock()
				defer told.mu.Unlock()
				require.Equal(t, test.steps, told.steps)
				for step, where := range test.in {
					switch where {
					case caller:
						require.Equal(t, goroutineName(), told.goroutine[step], step)
					case driver:
						require.Equal(t, driverGoroutine, told.goroutine[step], step)
					case other:
						require.NotEqual(t, goroutineName(), told.goroutine[step], step)
						require.NotEqual(t, driverGoroutine, told.goroutine[step], step)
					}
				}
			})
		})
	}
}

// scriptedCalls are errors that a queue of one item answers with.
type scriptedCalls struct{ admit, renew, commit error }

func (c scriptedCalls) queue() *scriptQueue {
	return &scriptQueue{
		items:    testItems(1),
		onAdmit:  func(context.Context, *WorkItem) error { return c.admit },
		onRenew:  func(context.Context, Lease) error { return c.renew },
		onCommit: func(context.Context, *WorkItem, *TransitionCommand) error { return c.commit },
	}
}

func TestObserverIsToldOfClaimsThatGaveNothing(t *testing.T) {
	for _, failure := range []error{nil, ErrUnavailable} {
		var told []PassInfo
		settings := testSettings()
		settings.Observer = &Observer{PassEnd: func(info PassInfo) { told = append(told, info) }}
		queue := &scriptQueue{onClaim: func(context.Context, ClaimRequest) ([]WorkItem, error) { return nil, failure }}
		_, err := RunDuePass(t.Context(), queue, testRegistry(complete), settings, noContext)
		require.Len(t, told, 1)
		require.Equal(t, err, told[0].Err)
		require.Equal(t, "w", told[0].WorkerID)
		require.Zero(t, told[0].Stats)
	}
}

func TestObserverIsToldWhatThePassReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var pass PassInfo
		var end EvaluationInfo
		var commit CommitInfo
		settings := testSettings()
		settings.Observer = &Observer{
			PassEnd:       func(info PassInfo) { pass = info },
			EvaluationEnd: func(info EvaluationInfo) { end = info },
			Commit:        func(info CommitInfo) { commit = info },
		}
		queue := scriptedCalls{commit: ErrCommitUnknown}.queue()
		stats, err := RunDuePass(t.Context(), queue, testRegistry(failing(errPlanned, 2*time.Second)), settings, noContext)
		require.Equal(t, stats, pass.Stats)
		require.Equal(t, err, pass.Err)
		require.Equal(t, 2*time.Second, pass.Elapsed)
		require.Equal(t, 2*time.Second, end.Elapsed)
		require.Equal(t, "driver of spec", end.Driver)
		require.ErrorIs(t, end.Err, errPlanned)
		require.Equal(t, "inst-1", commit.Item.ID)
		require.Equal(t, EventEvaluationFailed, commit.Command.EventType)
		require.ErrorIs(t, commit.Err, ErrCommitUnknown)
	})
}

// Whoever watches must not change what is watched.
func TestPanickingObserverChangesNothing(t *testing.T) {
	for name, test := range map[string]struct {
		queue    scriptedCalls
		evaluate evaluateFunc
		want     Stats
	}{
		"result":  {scriptedCalls{}, work(1500 * time.Millisecond), Stats{Claimed: 1, Completed: 1}},
		"failure": {scriptedCalls{}, failing(errPlanned, 0), Stats{Claimed: 1, Failed: 1}},
		"lost":    {scriptedCalls{renew: ErrLeaseLost, commit: ErrLeaseLost}, work(time.Hour), Stats{Claimed: 1, LeasesLost: 1}},
		"revoked": {scriptedCalls{renew: ErrEpochStale}, work(time.Hour), Stats{Claimed: 1, Revoked: 1}},
		"abandoned": {scriptedCalls{renew: errPlanned}, failing(errPlanned, time.Hour),
			Stats{Claimed: 1, Failed: 1, Abandoned: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				observer := new(Observer)
				functions := reflect.ValueOf(observer).Elem()
				for _, function := range functions.Fields() {
					function.Set(reflect.MakeFunc(function.Type(), func([]reflect.Value) []reflect.Value { panic(rude{}) }))
				}
				settings := leaseOf(3 * time.Second)
				settings.Observer, settings.Logger = observer, slog.New(panickingHandler{})
				stats, err := RunDuePass(t.Context(), test.queue.queue(), testRegistry(test.evaluate), settings, noContext)
				require.NoError(t, err)
				require.Equal(t, test.want, stats)
				time.Sleep(time.Hour)
			})
		})
	}
}

type panickingHandler struct{ slog.Handler }

func (panickingHandler) Enabled(context.Context, slog.Level) bool { return true }

func (panickingHandler) Handle(context.Context, slog.Record) error { panic("boom") }

// namelessDriver cannot say its name once it is registered.
type namelessDriver struct {
	testDriver
	registered bool
}

func (d *namelessDriver) Name() string {
	if d.registered {
		panic("boom")
	}
	return "nameless"
}

func TestDriverWithoutANameIsEvaluatedAlsoWhenWatched(t *testing.T) {
	driver := &namelessDriver{testDriver: testDriver{spec: "spec", evaluate: complete}}
	registry := NewDriverRegistry[struct{}]()
	require.NoError(t, registry.Register(driver))
	driver.registered = true
	settings := testSettings()
	settings.Observer = new(trace).observer()
	stats, err := RunDuePass(t.Context(), &scriptQueue{items: testItems(1)}, registry, settings, noContext)
	require.NoError(t, err)
	require.Equal(t, Stats{Claimed: 1, Completed: 1}, stats)
}

// Programs that read logs rely on these names.
func TestLogRecordsHaveStableAttributes(t *testing.T) {
	item := []string{"worker_id", "tenant_id", "instance_id", "spec_id", "lease_version", "state_version", "attempt"}
	of := func(more ...string) []string { return append(slices.Clone(item), more...) }
	type record struct {
		level, message string
		attributes     []string
	}
	passEnd := record{"DEBUG", "pass ended", []string{"worker_id", "claimed", "failed", "elapsed"}}
	claimed := record{"DEBUG", "claimed", of("kept")}
	for name, test := range map[string]struct {
		queue    scriptedCalls
		evaluate evaluateFunc
		want     []record
	}{
		"result": {scriptedCalls{}, complete, []record{
			claimed, {"DEBUG", "evaluated", of("driver", "elapsed")}, {"DEBUG", "committed", of("event_type")}, passEnd,
		}},
		"failure": {scriptedCalls{}, failing(errPlanned, 0), []record{
			claimed, {"WARN", "evaluated", of("driver", "elapsed", "error")}, {"DEBUG", "committed", of("event_type")}, passEnd,
		}},
		"commit that errs": {scriptedCalls{commit: ErrCommitUnknown}, complete, []record{
			claimed, {"DEBUG", "evaluated", of("driver", "elapsed")}, {"ERROR", "commit failed", of("event_type", "error")},
			{"ERROR", "pass ended", []string{"worker_id", "claimed", "failed", "elapsed", "error"}},
		}},
		"renewed": {scriptedCalls{}, work(1500 * time.Millisecond), []record{
			claimed, {"DEBUG", "lease renewed", item}, {"DEBUG", "evaluated", of("driver", "elapsed")},
			{"DEBUG", "committed", of("event_type")}, passEnd,
		}},
		"revoked": {scriptedCalls{commit: ErrEpochStale}, complete, []record{
			claimed, {"DEBUG", "evaluated", of("driver", "elapsed")}, {"ERROR", "commit failed", of("event_type", "error")},
			{"INFO", "claim revoked", of("error")}, passEnd,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var text bytes.Buffer
				settings := leaseOf(3 * time.Second)
				settings.Logger = slog.New(slog.NewJSONHandler(&text, &slog.HandlerOptions{Level: slog.LevelDebug}))
				_, _ = RunDuePass(t.Context(), test.queue.queue(), testRegistry(test.evaluate), settings, noContext)
				var got []record
				for line := range strings.Lines(text.String()) {
					one := record{attributes: []string{}}
					decoder := json.NewDecoder(strings.NewReader(line))
					_, err := decoder.Token()
					require.NoError(t, err)
					for decoder.More() {
						key, err := decoder.Token()
						require.NoError(t, err)
						var value any
						require.NoError(t, decoder.Decode(&value))
						switch key {
						case slog.TimeKey:
						case slog.LevelKey:
							one.level = value.(string)
						case slog.MessageKey:
							one.message = value.(string)
						default:
							one.attributes = append(one.attributes, key.(string))
						}
					}
					got = append(got, one)
				}
				require.Equal(t, test.want, got)
			})
		})
	}
}
