package supervisor

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// epoch is the clock's reading in the tests of pure rules.
var epoch = time.Date(2026, time.June, 1, 12, 0, 0, 0, time.UTC)

func TestLifecycleValidate(t *testing.T) {
	year := func(year int) time.Time { return time.Date(year, time.June, 1, 0, 0, 0, 0, time.UTC) }
	tests := []struct {
		name   string
		policy LifecyclePolicy
		want   string
	}{
		{"zero value", LifecyclePolicy{}, ""},
		{"run once", RunOnce(), ""},
		{"names of the zero values", LifecyclePolicy{OnExpiry: ExpiryDrain, Completion: CompletionPolicy{Kind: CompleteExplicitStop}}, ""},
		{"everything", LifecyclePolicy{
			StartsAt: epoch, ExpiresAt: epoch.Add(1), DrainDeadline: epoch.Add(2), OnExpiry: ExpiryCancel,
			EventIdleTimeout: 1, ProgressTimeout: math.MaxInt64, Completion: CompletionPolicy{Kind: CompleteAfterSuccessfulRuns, N: 1},
		}, ""},
		{"expires at its start", LifecyclePolicy{StartsAt: epoch, ExpiresAt: epoch}, "Lifecycle.ExpiresAt is 2026-06-01 12:00:00 +0000 UTC, must be after StartsAt"},
		{"expires before its start", LifecyclePolicy{StartsAt: epoch, ExpiresAt: epoch.Add(-1)}, "must be after StartsAt"},
		{"drain ends at expiry", LifecyclePolicy{ExpiresAt: epoch, DrainDeadline: epoch}, ""},
		{"drain ends before expiry", LifecyclePolicy{ExpiresAt: epoch, DrainDeadline: epoch.Add(-1)}, "Lifecycle.DrainDeadline is 2026-06-01 11:59:59.999999999 +0000 UTC, must not be before ExpiresAt"},
		{"drain deadline alone", LifecyclePolicy{DrainDeadline: epoch}, ""},
		{"drain ends at the start", LifecyclePolicy{StartsAt: epoch, DrainDeadline: epoch}, "Lifecycle.DrainDeadline is 2026-06-01 12:00:00 +0000 UTC, must be after StartsAt"},
		{"negative idle timeout", LifecyclePolicy{EventIdleTimeout: -1}, "Lifecycle.EventIdleTimeout is -1ns, must not be negative"},
		{"negative progress timeout", LifecyclePolicy{ProgressTimeout: -time.Hour}, "Lifecycle.ProgressTimeout is -1h0m0s, must not be negative"},
		{"expiry that is not known", LifecyclePolicy{OnExpiry: "explode"}, `Lifecycle.OnExpiry "explode" is not known`},
		{"completion that is not known", LifecyclePolicy{Completion: CompletionPolicy{Kind: "never"}}, `Lifecycle.Completion.Kind "never" is not known`},
		{"starts in the year 10000", LifecyclePolicy{StartsAt: year(10000)}, "Lifecycle.StartsAt is in the year 10000"},
		{"expires in the year 0", LifecyclePolicy{ExpiresAt: year(0)}, "Lifecycle.ExpiresAt is in the year 0"},
		{"drains until the year 10000", LifecyclePolicy{DrainDeadline: year(10000)}, "Lifecycle.DrainDeadline is in the year 10000"},
		{"year 9999", LifecyclePolicy{ExpiresAt: year(9999)}, ""},
	}
	for _, kind := range []CompletionKind{"", CompleteExplicitStop, CompleteFirstTrigger, CompleteFirstMatch, CompleteFirstActionTerminal, CompleteFirstSuccess} {
		tests = append(tests, struct {
			name   string
			policy LifecyclePolicy
			want   string
		}{"count of " + string(kind), LifecyclePolicy{Completion: CompletionPolicy{Kind: kind, N: 1}}, "Lifecycle.Completion.N is 1, "})
	}
	for _, kind := range []CompletionKind{CompleteAfterMatchedEvaluations, CompleteAfterSuccessfulRuns} {
		for count, want := range map[int]string{-1: "Lifecycle.Completion.N is -1, ", 0: "Lifecycle.Completion.N is 0, ", 1: "", math.MaxInt: ""} {
			tests = append(tests, struct {
				name   string
				policy LifecyclePolicy
				want   string
			}{string(kind), LifecyclePolicy{Completion: CompletionPolicy{Kind: kind, N: count}}, want})
		}
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			err := test.policy.Validate()
			if test.want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, test.want)
			}
		})
	}
	t.Run("everything at once", func(t *testing.T) {
		policy := LifecyclePolicy{StartsAt: year(0), EventIdleTimeout: -1, OnExpiry: "x", Completion: CompletionPolicy{Kind: "y"}}
		err := policy.Validate()
		for _, want := range []string{"StartsAt", "EventIdleTimeout", "OnExpiry", "Completion.Kind"} {
			require.ErrorContains(t, err, want)
		}
	})
}

func TestCountersAdd(t *testing.T) {
	require.Equal(t, Counters{1, 2, 3, 4}, Counters{1, 2, 3, 4}.Add(EvaluationOutcome{}))
	require.Equal(t, Counters{Triggered: 1}, Counters{}.Add(EvaluationOutcome{Triggered: true}))
	require.Equal(t, Counters{Matched: 1}, Counters{}.Add(EvaluationOutcome{Matched: true}))
	require.Equal(t, Counters{Succeeded: 1}, Counters{}.Add(EvaluationOutcome{Succeeded: true}))
	require.Equal(t, Counters{ActionTerminal: 1}, Counters{}.Add(EvaluationOutcome{ActionTerminal: true}))
	require.Equal(t, Counters{2, 3, 4, 5}, Counters{1, 2, 3, 4}.Add(EvaluationOutcome{true, true, true, true}))
}

func TestCompletionPolicyMet(t *testing.T) {
	all := Counters{9, 9, 9, 9}
	tests := []struct {
		policy CompletionPolicy
		not    Counters // the most that does not complete
		met    Counters // the least that does; zero: nothing does
	}{
		{CompletionPolicy{}, all, Counters{}},
		{CompletionPolicy{Kind: CompleteExplicitStop}, all, Counters{}},
		{CompletionPolicy{Kind: CompleteFirstTrigger}, Counters{0, 9, 9, 9}, Counters{Triggered: 1}},
		{CompletionPolicy{Kind: CompleteFirstMatch}, Counters{9, 0, 9, 9}, Counters{Matched: 1}},
		{CompletionPolicy{Kind: CompleteFirstSuccess}, Counters{9, 9, 0, 9}, Counters{Succeeded: 1}},
		{CompletionPolicy{Kind: CompleteFirstActionTerminal}, Counters{9, 9, 9, 0}, Counters{ActionTerminal: 1}},
		{CompletionPolicy{Kind: CompleteAfterMatchedEvaluations, N: 3}, Counters{9, 2, 9, 9}, Counters{Matched: 3}},
		{CompletionPolicy{Kind: CompleteAfterMatchedEvaluations, N: 1}, Counters{9, 0, 9, 9}, Counters{Matched: 1}},
		{CompletionPolicy{Kind: CompleteAfterSuccessfulRuns, N: 3}, Counters{9, 9, 2, 9}, Counters{Succeeded: 3}},
		{CompletionPolicy{Kind: "never"}, all, Counters{}},
	}
	for _, test := range tests {
		require.False(t, test.policy.Met(test.not), "%+v of %+v", test.policy, test.not)
		require.False(t, test.policy.Met(Counters{}), "%+v", test.policy)
		if test.met != (Counters{}) {
			require.True(t, test.policy.Met(test.met), "%+v of %+v", test.policy, test.met)
			require.True(t, test.policy.Met(all), "%+v", test.policy)
		}
	}
}

// raisedIDs are the ids of raised wakeups.
func raisedIDs(wakeups []RaisedWakeup) (ids []string) {
	for n := range wakeups {
		ids = append(ids, wakeups[n].Wakeup.ID)
	}
	return ids
}

func TestRaiseTimers(t *testing.T) {
	minute := time.Minute
	active := Record{Status: StatusActive, CreatedAt: epoch}
	with := func(change func(*Record)) Record {
		r := active
		change(&r)
		return r
	}
	tests := []struct {
		name   string
		policy LifecyclePolicy
		record Record
		at     time.Duration // after epoch
		want   []string
		cancel bool
	}{
		{"no policy", LifecyclePolicy{}, active, 1000 * time.Hour, nil, false},
		{"start is no timer", LifecyclePolicy{StartsAt: epoch}, active, minute, nil, false},

		{"before expiry", LifecyclePolicy{ExpiresAt: epoch.Add(minute)}, active, minute - 1, nil, false},
		{"at expiry", LifecyclePolicy{ExpiresAt: epoch.Add(minute)}, active, minute, []string{"lifecycle:expired"}, false},
		{"after expiry", LifecyclePolicy{ExpiresAt: epoch.Add(minute), OnExpiry: ExpiryDrain}, active, time.Hour, []string{"lifecycle:expired"}, false},
		{"expired before", LifecyclePolicy{ExpiresAt: epoch.Add(minute)}, with(func(r *Record) { r.Raised = RaisedExpired }), time.Hour, nil, false},
		{"before expiry with cancel", LifecyclePolicy{ExpiresAt: epoch.Add(minute), OnExpiry: ExpiryCancel}, active, minute - 1, nil, false},
		{"at expiry with cancel", LifecyclePolicy{ExpiresAt: epoch.Add(minute), OnExpiry: ExpiryCancel}, active, minute, nil, true},

		{"before the drain deadline", LifecyclePolicy{DrainDeadline: epoch.Add(minute)}, active, minute - 1, nil, false},
		{"at the drain deadline", LifecyclePolicy{DrainDeadline: epoch.Add(minute)}, active, minute, nil, true},
		{"between expiry and deadline", LifecyclePolicy{ExpiresAt: epoch, DrainDeadline: epoch.Add(minute)}, active, 1, []string{"lifecycle:expired"}, false},
		{"deadline after expiry was raised", LifecyclePolicy{ExpiresAt: epoch, DrainDeadline: epoch.Add(minute)}, with(func(r *Record) { r.Raised = RaisedExpired }), minute, nil, true},
		{"both at once", LifecyclePolicy{ExpiresAt: epoch, DrainDeadline: epoch.Add(minute)}, active, minute, []string{"lifecycle:expired"}, true},

		{"before idle", LifecyclePolicy{EventIdleTimeout: minute}, active, minute - 1, nil, false},
		{"idle since creation", LifecyclePolicy{EventIdleTimeout: minute}, active, minute, []string{"lifecycle:event_idle"}, false},
		{"before idle since an event", LifecyclePolicy{EventIdleTimeout: minute}, with(func(r *Record) { r.LastEventAt = epoch.Add(minute) }), 2*minute - 1, nil, false},
		{"idle since an event", LifecyclePolicy{EventIdleTimeout: minute}, with(func(r *Record) { r.LastEventAt = epoch.Add(minute) }), 2 * minute, []string{"lifecycle:event_idle"}, false},
		{"progress is no event", LifecyclePolicy{EventIdleTimeout: minute}, with(func(r *Record) { r.LastProgressAt = epoch.Add(minute) }), minute, []string{"lifecycle:event_idle"}, false},
		{"idle before", LifecyclePolicy{EventIdleTimeout: minute}, with(func(r *Record) { r.Raised = RaisedEventIdle }), time.Hour, nil, false},

		{"before no progress", LifecyclePolicy{ProgressTimeout: minute}, active, minute - 1, nil, false},
		{"no progress since creation", LifecyclePolicy{ProgressTimeout: minute}, active, minute, []string{"lifecycle:no_progress"}, false},
		{"no progress since a commit", LifecyclePolicy{ProgressTimeout: minute}, with(func(r *Record) { r.LastProgressAt = epoch.Add(minute) }), 2 * minute, []string{"lifecycle:no_progress"}, false},
		{"before no progress since a commit", LifecyclePolicy{ProgressTimeout: minute}, with(func(r *Record) { r.LastProgressAt = epoch.Add(minute) }), 2*minute - 1, nil, false},
		{"events are no progress", LifecyclePolicy{ProgressTimeout: minute}, with(func(r *Record) { r.LastEventAt = epoch.Add(minute) }), minute, []string{"lifecycle:no_progress"}, false},
		{"no progress before", LifecyclePolicy{ProgressTimeout: minute}, with(func(r *Record) { r.Raised = RaisedNoProgress }), time.Hour, nil, false},

		{"all", LifecyclePolicy{ExpiresAt: epoch, EventIdleTimeout: 1, ProgressTimeout: 1}, active, minute, []string{"lifecycle:expired", "lifecycle:event_idle", "lifecycle:no_progress"}, false},
		{"the others", LifecyclePolicy{ExpiresAt: epoch, EventIdleTimeout: 1, ProgressTimeout: 1}, with(func(r *Record) { r.Raised = RaisedExpired | RaisedNoProgress }), minute, []string{"lifecycle:event_idle"}, false},
		{"longest timeouts", LifecyclePolicy{EventIdleTimeout: math.MaxInt64, ProgressTimeout: math.MaxInt64}, active, 1000 * time.Hour, nil, false},

		{"being cancelled", LifecyclePolicy{ExpiresAt: epoch, DrainDeadline: epoch, EventIdleTimeout: 1, ProgressTimeout: 1}, with(func(r *Record) { r.CancelRequested = true }), minute, nil, false},
		{"failed for good", LifecyclePolicy{ExpiresAt: epoch, DrainDeadline: epoch, EventIdleTimeout: 1, ProgressTimeout: 1}, with(func(r *Record) { r.Status = StatusFailed }), minute, nil, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			now := epoch.Add(test.at)
			next, wakeups, cancel := test.policy.RaiseTimers(test.record, now)
			require.Equal(t, test.want, raisedIDs(wakeups))
			require.Equal(t, test.cancel, cancel)
			require.Equal(t, test.record.CancelRequested || test.cancel, next.CancelRequested)

			for n := range wakeups {
				raised := &wakeups[n]
				require.Equal(t, WakeupKindTimer, raised.Wakeup.Kind)
				require.True(t, raised.Wakeup.isTerminalAction())
				require.Equal(t, `{"kind":"terminal_action","reason":"`+raised.Wakeup.ID[len("lifecycle:"):]+`"}`, string(raised.Wakeup.Payload))
				require.False(t, raised.DueAt.After(now), "due when the timer was")
				require.Equal(t, time.UTC, raised.DueAt.Location())
				require.Error(t, raised.Wakeup.Validate(), "nobody else can deliver it")
			}
			// Each timer is raised once in a life.
			again, wakeups, cancel := test.policy.RaiseTimers(next, now.Add(time.Hour))
			if test.policy.DrainDeadline.IsZero() && test.policy.EventIdleTimeout < time.Hour && test.policy.ProgressTimeout < time.Hour {
				for _, id := range test.want {
					require.NotContains(t, raisedIDs(wakeups), id)
				}
			}
			require.Zero(t, test.record.Raised&^again.Raised, "nothing raised is forgotten")
			if test.cancel {
				require.False(t, cancel, "a cancellation is requested once")
			}
		})
	}
}

// A timer's instants are those of the policy, in UTC, and a cancellation lifts
// the retry time like any other.
func TestRaiseTimersDetails(t *testing.T) {
	policy := LifecyclePolicy{ExpiresAt: epoch.In(time.FixedZone("", 3600)), ProgressTimeout: time.Minute, DrainDeadline: epoch.Add(time.Hour)}
	record := Record{Status: StatusActive, CreatedAt: epoch.Add(-time.Second), RetryAt: epoch.Add(time.Hour), Attempt: 2}
	next, wakeups, cancel := policy.RaiseTimers(record, epoch.Add(time.Hour))
	require.Equal(t, []RaisedWakeup{
		{Wakeup: Wakeup{ID: "lifecycle:expired", Kind: "timer", Payload: json.RawMessage(`{"kind":"terminal_action","reason":"expired"}`)}, DueAt: epoch},
		{Wakeup: Wakeup{ID: "lifecycle:no_progress", Kind: "timer", Payload: json.RawMessage(`{"kind":"terminal_action","reason":"no_progress"}`)}, DueAt: epoch.Add(59 * time.Second)},
	}, wakeups)
	require.True(t, cancel)
	record.CancelRequested, record.RetryAt, record.Raised = true, time.Time{}, RaisedExpired|RaisedNoProgress
	require.Equal(t, record, next)
}

func TestEarlierAndLater(t *testing.T) {
	soon, late, none := epoch, epoch.Add(1), time.Time{}
	require.Equal(t, soon, earlier(soon, late))
	require.Equal(t, soon, earlier(late, soon))
	require.Equal(t, soon, earlier(none, soon))
	require.Equal(t, soon, earlier(soon, none))
	require.Equal(t, none, earlier(none, none))
	require.Equal(t, late, later(soon, late))
	require.Equal(t, late, later(late, soon))
	require.Equal(t, late, later(none, late))
	require.Equal(t, late, later(late, none))
}
