package supervisor

import (
	"fmt"
	"log/slog"
	"math"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestZeroSettingsMeanTheDefaults(t *testing.T) {
	got, err := Settings{}.resolved()
	require.NoError(t, err)
	require.NotEmpty(t, got.WorkerID)
	got.WorkerID = ""
	require.Equal(t, Settings{
		LeaseDuration: time.Minute,
		ClaimBatch:    16,
		Concurrency:   16,
		RequeueDelay:  5 * time.Second,
		MaxRetryDelay: time.Hour,
		AbandonAfter:  time.Minute,
		CommitTimeout: 30 * time.Second,
		PollInterval:  time.Second,
		DrainTimeout:  30 * time.Second,
	}, got)
}

// Every field is given a value of its own and none is lost on the way, also not
// one that is added one day.
func TestNoSettingIsLost(t *testing.T) {
	var given Settings
	fields := reflect.ValueOf(&given).Elem()
	for n := range fields.NumField() {
		switch field := fields.Field(n); field.Type() {
		case reflect.TypeFor[string]():
			field.SetString("own")
		case reflect.TypeFor[time.Duration]():
			field.SetInt(int64(time.Hour) + int64(n)) // rising, so that the relations hold
		case reflect.TypeFor[int]():
			field.SetInt(int64(10 + n))
		case reflect.TypeFor[*slog.Logger]():
			field.Set(reflect.ValueOf(slog.New(slog.DiscardHandler)))
		case reflect.TypeFor[*Observer]():
			field.Set(reflect.ValueOf(&Observer{Claim: func(ClaimInfo) {}}))
		default:
			require.Equal(t, reflect.Func, field.Kind(), "%s: give it a value", fields.Type().Field(n).Name)
			field.Set(reflect.MakeFunc(field.Type(), func([]reflect.Value) []reflect.Value {
				return []reflect.Value{reflect.ValueOf(time.Duration(77)), reflect.ValueOf(true)}
			}))
		}
	}
	resolved, err := given.resolved()
	require.NoError(t, err)
	got := reflect.ValueOf(resolved)
	for n := range fields.NumField() {
		name := fields.Type().Field(n).Name
		require.False(t, fields.Field(n).IsZero(), "%s: the test forgot it", name)
		if fields.Field(n).Kind() == reflect.Func {
			require.Equal(t, fields.Field(n).Pointer(), got.Field(n).Pointer(), name)
			continue
		}
		if name == "Observer" {
			require.NotNil(t, resolved.Observer.Claim)
			continue
		}
		require.Equal(t, fields.Field(n).Interface(), got.Field(n).Interface(), name)
	}
}

func TestSettingsAreValidated(t *testing.T) {
	for name, test := range map[string]struct {
		settings Settings
		says     []string // nil: valid
	}{
		"shortest lease":     {Settings{LeaseDuration: time.Second}, nil},
		"too short a lease":  {Settings{LeaseDuration: time.Second - 1}, []string{"LeaseDuration is 999.999999ms, must be at least 1s"}},
		"negative lease":     {Settings{LeaseDuration: -1}, []string{"LeaseDuration is -1ns, must not be negative"}},
		"least lease":        {Settings{LeaseDuration: math.MinInt64}, []string{"LeaseDuration is -2562047h47m16.854775808s"}},
		"greatest values":    {Settings{LeaseDuration: math.MaxInt64, RequeueDelay: math.MaxInt64, Concurrency: math.MaxInt, ClaimBatch: math.MaxInt, PollInterval: math.MaxInt64, CommitTimeout: math.MaxInt64, DrainTimeout: math.MaxInt64, AbandonAfter: math.MaxInt64, EvaluationTimeout: math.MaxInt64}, nil},
		"negative batch":     {Settings{ClaimBatch: -5}, []string{"ClaimBatch is -5, must not be negative"}},
		"no concurrency":     {Settings{Concurrency: -1}, []string{"Concurrency is -1, must not be negative"}},
		"negative delay":     {Settings{RequeueDelay: -time.Second}, []string{"RequeueDelay is -1s"}},
		"negative maximum":   {Settings{MaxRetryDelay: -time.Second}, []string{"MaxRetryDelay is -1s"}},
		"negative timeout":   {Settings{EvaluationTimeout: -1}, []string{"EvaluationTimeout is -1ns"}},
		"negative patience":  {Settings{AbandonAfter: -1}, []string{"AbandonAfter is -1ns"}},
		"negative commit":    {Settings{CommitTimeout: -1}, []string{"CommitTimeout is -1ns"}},
		"negative poll":      {Settings{PollInterval: -1}, []string{"PollInterval is -1ns"}},
		"negative drain":     {Settings{DrainTimeout: -1}, []string{"DrainTimeout is -1ns"}},
		"equal delays":       {Settings{RequeueDelay: time.Minute, MaxRetryDelay: time.Minute}, nil},
		"delays in disorder": {Settings{RequeueDelay: time.Minute, MaxRetryDelay: time.Minute - 1}, []string{"MaxRetryDelay is 59.999999999s, must not be less than RequeueDelay 1m0s"}},
		"below the default":  {Settings{MaxRetryDelay: 4 * time.Second}, []string{"MaxRetryDelay is 4s, must not be less than RequeueDelay 5s"}},
		"blank worker":       {Settings{WorkerID: " \u00a0"}, []string{"WorkerID is blank"}},
		"worker with NUL":    {Settings{WorkerID: "a\x00"}, []string{"WorkerID holds a NUL character"}},
		"worker, not UTF-8":  {Settings{WorkerID: "a\xff"}, []string{"WorkerID is not valid UTF-8"}},
		"long worker":        {Settings{WorkerID: strings.Repeat("w", MaxIDBytes)}, nil},
		"too long a worker":  {Settings{WorkerID: strings.Repeat("w", MaxIDBytes+1)}, []string{"WorkerID has 513 bytes"}},
		"all that is wrong": {
			Settings{WorkerID: " ", LeaseDuration: 1, ClaimBatch: -1, Concurrency: -2, RequeueDelay: 2, MaxRetryDelay: 1, PollInterval: -3},
			[]string{"supervisor: settings: ", "WorkerID is blank", "LeaseDuration is 1ns", "ClaimBatch is -1", "Concurrency is -2", "MaxRetryDelay is 1ns", "PollInterval is -3ns"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := test.settings.resolved()
			if test.says == nil {
				require.NoError(t, err)
				return
			}
			require.Zero(t, got)
			for _, part := range test.says {
				require.ErrorContains(t, err, part)
			}
			_, newErr := New(&scriptQueue{}, testRegistry(complete), test.settings, noContext)
			require.EqualError(t, newErr, err.Error())
			queue := &scriptQueue{items: testItems(1)}
			_, passErr := RunDuePass(t.Context(), queue, testRegistry(complete), test.settings, noContext)
			require.EqualError(t, passErr, err.Error())
			require.Empty(t, queue.claims, "nothing is claimed with invalid settings")
		})
	}
}

func TestDefaultsThatFollowOtherSettings(t *testing.T) {
	got, err := Settings{LeaseDuration: 7 * time.Second, RequeueDelay: 3 * time.Hour, Concurrency: 5}.resolved()
	require.NoError(t, err)
	require.Equal(t, 7*time.Second, got.AbandonAfter)
	require.Equal(t, 3*time.Hour, got.MaxRetryDelay)
	require.Equal(t, 5, got.ClaimBatch)
	again, err := got.resolved()
	require.NoError(t, err)
	require.Equal(t, got, again, "resolved settings stay what they are")
}

func TestDefaultWorkerIDNamesHostAndProcessAndIsUnique(t *testing.T) {
	seen := map[string]bool{}
	for range 100 {
		settings, err := Settings{}.resolved()
		require.NoError(t, err)
		require.Contains(t, settings.WorkerID, fmt.Sprintf("-%d-", os.Getpid()))
		if host, err := os.Hostname(); err == nil {
			require.True(t, strings.HasPrefix(settings.WorkerID, host+"-"))
		}
		require.NoError(t, checkID("WorkerID", settings.WorkerID))
		seen[settings.WorkerID] = true
	}
	require.Len(t, seen, 100)
}

// What the caller changes afterwards, in the settings or the observer that they
// point to, changes nothing.
func TestSettingsAreCopied(t *testing.T) {
	called := 0
	observer := &Observer{PassEnd: func(PassInfo) { called++ }}
	settings := testSettings()
	settings.Observer = observer
	supervisor, err := New(&scriptQueue{}, testRegistry(complete), settings, noContext)
	require.NoError(t, err)
	observer.PassEnd = nil
	supervisor.settings.Observer.PassEnd(PassInfo{})
	require.Equal(t, 1, called)
}
