package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

var errPlanned = errors.New("planned")

// failing fails with an error after a time.
func failing(err error, after time.Duration) evaluateFunc {
	return func(context.Context, *WorkItem) (TransitionCommand, error) {
		time.Sleep(after)
		return TransitionCommand{}, err
	}
}

// failedOnce evaluates an item once and returns what its failure says. It must
// be called in a bubble.
func failedOnce(t *testing.T, item WorkItem, settings Settings, evaluate evaluateFunc) Failed {
	t.Helper()
	queue := &scriptQueue{items: []WorkItem{item}, onCommit: func(_ context.Context, item *WorkItem, command *TransitionCommand) error {
		return command.ValidateContent(item)
	}}
	stats, err := RunDuePass(t.Context(), queue, testRegistry(evaluate), settings, noContext)
	require.NoError(t, err)
	require.Equal(t, Stats{Claimed: 1, Failed: 1}, stats)
	return queue.failureOf(t, item.ID)
}

func TestRetryDelayDoublesUpToItsMaximumWithLittleJitter(t *testing.T) {
	hour := Settings{RequeueDelay: 5 * time.Second}
	for _, test := range []struct {
		settings Settings
		attempt  int
		want     time.Duration
		jitter   bool
	}{
		{hour, 0, 5 * time.Second, false},
		{hour, 1, 10 * time.Second, true},
		{hour, 2, 20 * time.Second, true},
		{hour, 9, 2560 * time.Second, true},
		{hour, 10, time.Hour, true},
		{hour, 1000, time.Hour, true},
		{hour, math.MaxInt, time.Hour, true},
		{Settings{RequeueDelay: 5 * time.Second, MaxRetryDelay: 5 * time.Second}, 0, 5 * time.Second, false},
		{Settings{RequeueDelay: 5 * time.Second, MaxRetryDelay: 5 * time.Second}, 1, 5 * time.Second, true},
		{Settings{RequeueDelay: 5 * time.Second, MaxRetryDelay: 9 * time.Second}, 1, 9 * time.Second, true},
		{Settings{RequeueDelay: 2 * time.Hour}, 0, 2 * time.Hour, false},
		{Settings{RequeueDelay: 2 * time.Hour}, 5, 2 * time.Hour, true},
		{Settings{RequeueDelay: math.MaxInt64}, 0, math.MaxInt64, false},
		{Settings{RequeueDelay: math.MaxInt64 / 2}, 7, math.MaxInt64 / 2, true},
		{Settings{RequeueDelay: 1 << 40, MaxRetryDelay: math.MaxInt64}, 60, math.MaxInt64, true},
		{Settings{RequeueDelay: time.Nanosecond}, 0, time.Second, false},
		{Settings{RequeueDelay: 600 * time.Millisecond}, 0, time.Second, false},
		{Settings{RequeueDelay: time.Millisecond, MaxRetryDelay: time.Millisecond}, 3, time.Second, false},
		{Settings{}, 0, 5 * time.Second, false},
		// An attempt that cannot be is none.
		{hour, -1, 5 * time.Second, false},
	} {
		t.Run(fmt.Sprintf("attempt %d of %v", test.attempt, test.settings.RequeueDelay), func(t *testing.T) {
			settings, err := test.settings.resolved()
			require.NoError(t, err)
			item := testItem("inst-1")
			item.Attempt = test.attempt
			seen := map[time.Duration]bool{}
			for range 100 {
				delay, again := settings.retryDelay(&item, errPlanned)
				require.True(t, again)
				require.LessOrEqual(t, delay, test.want)
				require.GreaterOrEqual(t, delay, max(test.want-test.want/10, time.Second))
				seen[delay] = true
			}
			if test.jitter {
				require.Greater(t, len(seen), 1, "what failed together is spread")
			} else {
				require.Equal(t, map[time.Duration]bool{test.want: true}, seen)
			}
		})
	}
}

func TestJitterNeverGoesBelowASecond(t *testing.T) {
	settings, err := Settings{RequeueDelay: time.Second, MaxRetryDelay: time.Second}.resolved()
	require.NoError(t, err)
	item := testItem("inst-1")
	item.Attempt = 3
	for range 100 {
		delay, _ := settings.retryDelay(&item, errPlanned)
		require.Equal(t, time.Second, delay)
	}
}

// A due time is judged by the store's clock, so it must be computed from it.
func TestRetryTimeIsTheStoresTimePlusWhatHasPassed(t *testing.T) {
	for _, claimedAt := range []time.Time{
		time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC),
		time.Date(1990, 1, 1, 0, 0, 0, 0, time.UTC),
		time.Date(2026, 6, 1, 14, 0, 0, 0, time.FixedZone("", 7200)),
	} {
		t.Run(claimedAt.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				item := testItem("inst-1")
				item.ClaimedAt = claimedAt
				failure := failedOnce(t, item, testSettings(), failing(errPlanned, 2*time.Second))
				require.Equal(t, claimedAt.UTC().Add(7*time.Second), failure.RetryAt)
			})
		})
	}
}

func TestEnormousRetryDelayEndsWithTheCalendar(t *testing.T) {
	for _, delay := range []time.Duration{9_223_372_036 * time.Second, 1 << 62, math.MaxInt64} {
		for _, claimedAt := range []time.Time{
			time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC),
			time.Date(9999, 12, 31, 23, 59, 58, 0, time.UTC),
		} {
			t.Run(fmt.Sprintf("%d after %v", delay, claimedAt.Year()), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					item := testItem("inst-1")
					item.ClaimedAt = claimedAt
					settings := testSettings()
					settings.RequeueDelay = delay
					failure := failedOnce(t, item, settings, failing(errPlanned, 0))
					require.True(t, failure.RetryAt.After(claimedAt))
					require.LessOrEqual(t, failure.RetryAt.Year(), 9999)
					_, err := json.Marshal(failure.RetryAt)
					require.NoError(t, err)
				})
			})
		}
	}
}

func TestDriverDecidesOnItsRetry(t *testing.T) {
	for name, test := range map[string]struct {
		err     error
		attempt int
		want    time.Duration // 0: for good
		says    string
	}{
		"permanent":                {Permanent(errPlanned), 0, 0, "planned"},
		"permanent, wrapped":       {fmt.Errorf("charge: %w", Permanent(errPlanned)), 3, 0, "charge: planned"},
		"permanent among others":   {errors.Join(errors.New("first"), Permanent(errPlanned)), 0, 0, "first\nplanned"},
		"after a time":             {RetryAfter(errPlanned, 42*time.Minute), 5, 42 * time.Minute, "planned"},
		"after a time, wrapped":    {fmt.Errorf("charge: %w", RetryAfter(errPlanned, 2*time.Hour)), 0, 2 * time.Hour, "charge: planned"},
		"after exactly a second":   {RetryAfter(errPlanned, time.Second), 0, time.Second, "planned"},
		"after less than a second": {RetryAfter(errPlanned, time.Second-1), 0, time.Second, "planned"},
		"after nothing":            {RetryAfter(errPlanned, 0), 0, time.Second, "planned"},
		"after less than nothing":  {RetryAfter(errPlanned, math.MinInt64), 0, time.Second, "planned"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				item := testItem("inst-1")
				item.Attempt = test.attempt
				failure := failedOnce(t, item, testSettings(), failing(test.err, 0))
				require.Equal(t, test.says, failure.Reason)
				if test.want == 0 {
					require.True(t, failure.RetryAt.IsZero(), "it fails for good")
					return
				}
				require.Equal(t, item.ClaimedAt.Add(test.want), failure.RetryAt)
			})
		})
	}
}

func TestMarkedErrorsStayWhatTheyAre(t *testing.T) {
	require.NoError(t, Permanent(nil))
	require.NoError(t, RetryAfter(nil, time.Hour))
	for _, err := range []error{Permanent(errPlanned), RetryAfter(errPlanned, time.Hour)} {
		require.ErrorIs(t, err, errPlanned)
		require.EqualError(t, err, "planned")
	}
}

func TestSettingsRetryReplacesTheRule(t *testing.T) {
	for name, test := range map[string]struct {
		err   error
		rule  func(item *WorkItem, err error) (time.Duration, bool)
		want  time.Duration
		never bool
	}{
		"a delay of its own": {errPlanned, func(*WorkItem, error) (time.Duration, bool) { return 90 * time.Second, true }, 90 * time.Second, false},
		"no floor":           {errPlanned, func(*WorkItem, error) (time.Duration, bool) { return time.Millisecond, true }, time.Millisecond, false},
		"a negative delay":   {errPlanned, func(*WorkItem, error) (time.Duration, bool) { return math.MinInt64, true }, 0, false},
		"for good":           {errPlanned, func(*WorkItem, error) (time.Duration, bool) { return time.Hour, false }, 0, true},
		"over Permanent":     {Permanent(errPlanned), func(*WorkItem, error) (time.Duration, bool) { return time.Minute, true }, time.Minute, false},
		"over RetryAfter":    {RetryAfter(errPlanned, time.Hour), func(*WorkItem, error) (time.Duration, bool) { return time.Minute, true }, time.Minute, false},
		"a panic":            {errPlanned, func(*WorkItem, error) (time.Duration, bool) { panic("boom") }, 5 * time.Second, false},
		"a panic, permanent": {Permanent(errPlanned), func(*WorkItem, error) (time.Duration, bool) { panic("boom") }, 0, true},
		"Goexit":             {errPlanned, func(*WorkItem, error) (time.Duration, bool) { runtime.Goexit(); return 0, false }, 5 * time.Second, false},
		"it sees the error": {errPlanned, func(_ *WorkItem, err error) (time.Duration, bool) {
			if errors.Is(err, errPlanned) {
				return time.Minute, true
			}
			return 0, false
		}, time.Minute, false},
		"it sees the item, and owns it": {errPlanned, func(item *WorkItem, _ error) (time.Duration, bool) {
			delay := time.Duration(item.Attempt) * time.Minute
			item.ID, item.LeaseVersion, item.ClaimedAt = "other", 99, time.Time{}
			copy(item.State, "#")
			return delay, true
		}, 4 * time.Minute, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				item := testItem("inst-1")
				item.Attempt = 4
				settings := testSettings()
				settings.MaxRetryDelay = settings.RequeueDelay
				settings.Retry = test.rule
				failure := failedOnce(t, item, settings, failing(test.err, 0))
				if test.never {
					require.True(t, failure.RetryAt.IsZero())
					return
				}
				want := item.ClaimedAt.Add(test.want)
				require.False(t, failure.RetryAt.After(want))
				require.False(t, failure.RetryAt.Before(want.Add(-test.want/10)))
			})
		})
	}
}

// The rule is asked for every failure, not only those of drivers.
func TestSettingsRetryIsAskedForFailuresOfTheSupervisor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		settings := leaseOf(3 * time.Second)
		settings.Retry = func(_ *WorkItem, err error) (time.Duration, bool) { return time.Hour, errors.Is(err, errPlanned) }
		queue := &scriptQueue{items: testItems(1), onRenew: func(context.Context, Lease) error { return errPlanned }}
		_, err := RunDuePass(t.Context(), queue, testRegistry(work(time.Minute)), settings, noContext)
		require.NoError(t, err)
		require.Equal(t, queue.commits[0].item.ClaimedAt.Add(time.Second+time.Hour), queue.failureOf(t, "inst-1").RetryAt)
	})
}

// An error text may be of any size: the failure is recorded all the same.
func TestHugeErrorTextIsCutVisiblyOnACharacter(t *testing.T) {
	huge := strings.Repeat("é", 5<<19)
	for name, evaluate := range map[string]evaluateFunc{
		"returned": failing(errors.New(huge), 0),
		"panicked": func(context.Context, *WorkItem) (TransitionCommand, error) { panic(huge) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				queue := &scriptQueue{items: testItems(1)}
				stats, err := RunDuePass(t.Context(), queue, testRegistry(evaluate), testSettings(), noContext)
				require.NoError(t, err)
				require.Equal(t, Stats{Claimed: 1, Failed: 1}, stats)
				reason := queue.failureOf(t, "inst-1").Reason
				require.LessOrEqual(t, len(reason), MaxReasonBytes)
				require.Greater(t, len(reason), MaxReasonBytes-100)
				require.True(t, utf8.ValidString(reason))
				require.NotContains(t, reason, "\uFFFD")
				require.Contains(t, reason, "éééé")
				require.True(t, strings.HasSuffix(reason, reasonCut))
				var payload struct{ Error string }
				require.NoError(t, json.Unmarshal(queue.commits[0].command.EventPayload, &payload))
				require.Equal(t, reason, payload.Error)
			})
		})
	}
}
