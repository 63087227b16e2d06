package supervisor

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// preparedIntent returns an intent that is valid for the item's first pin.
func preparedIntent(item *WorkItem) *ActionIntent {
	return &ActionIntent{
		ID: "i", TenantID: item.TenantID, InstanceID: item.ID, RunID: item.RunID, Capability: item.CapabilityPins[0],
		IdempotencyKey: "key", State: ActionPrepared, Effect: EffectExternalWrite, RetryClass: IdempotencyNative,
		ControlEpochs: item.ControlEpochs, LeaseEpoch: item.LeaseVersion, ActionEpoch: item.StateVersion,
	}
}

var actionStates = []ActionState{
	ActionPrepared, ActionAwaitingConfirmation, ActionAuthorized, ActionDispatchCommitted, ActionExecuting,
	ActionSucceeded, ActionRejected, ActionRetryable, ActionUnknown, ActionReconciled,
}

// Every one of the hundred pairs of states, as a matrix: the rows and columns
// are in the order of actionStates.
func TestActionStateMoves(t *testing.T) {
	matrix := []string{
		//             p a a d e s r r u r
		/* prepared   */ ". x x . . . x . . .",
		/* awaiting   */ ". . x . . . x . . .",
		/* authorized */ ". . . x . . x . . .",
		/* committed  */ ". . . . x x x x x .",
		/* executing  */ ". . . . . x x x x .",
		/* succeeded  */ ". . . . . . . . . .",
		/* rejected   */ ". . . . . . . . . .",
		/* retryable  */ ". . . x . . x . . .",
		/* unknown    */ ". . . . . . . x . x",
		/* reconciled */ ". . . . . . . . . .",
	}
	require.Len(t, actionStates, 10)
	for row, from := range actionStates {
		marks := strings.Fields(matrix[row])
		require.Len(t, marks, 10)
		for column, to := range actionStates {
			require.Equal(t, marks[column] == "x", from.CanTransitionTo(to), "%s → %s", from, to)
		}
		for _, stranger := range []ActionState{"", "other", "Prepared"} {
			require.False(t, from.CanTransitionTo(stranger), "%s → %q", from, stranger)
			require.False(t, stranger.CanTransitionTo(from), "%q → %s", stranger, from)
		}
	}
}

func TestActionStateProperties(t *testing.T) {
	committed := map[ActionState]bool{
		ActionDispatchCommitted: true, ActionExecuting: true, ActionSucceeded: true, ActionUnknown: true, ActionReconciled: true,
	}
	terminal := map[ActionState]bool{ActionSucceeded: true, ActionRejected: true, ActionReconciled: true}
	for _, state := range append(actionStates, "", "other") {
		require.Equal(t, committed[state], state.DispatchCommitted(), "%q", state)
		require.Equal(t, terminal[state], state.Terminal(), "%q", state)
	}
	// A terminal state is one that nothing leads out of.
	for _, from := range actionStates {
		moves := false
		for _, to := range actionStates {
			moves = moves || from.CanTransitionTo(to)
		}
		require.Equal(t, !moves, from.Terminal(), "%q", from)
	}
}

func TestValidatePrepared(t *testing.T) {
	longest := strings.Repeat("é", MaxIDBytes/2)
	type change = func(*ActionIntent)
	tests := []struct {
		name   string
		change change
		want   string
	}{
		{"valid", func(*ActionIntent) {}, ""},
		{"every field", func(i *ActionIntent) {
			i.Input, i.ResourceScopeID = json.RawMessage(`[1.0]`), "res"
			i.Deadline = time.Date(9999, time.December, 31, 0, 0, 0, 0, time.UTC)
			i.CreatedAt = time.Date(2026, time.June, 1, 0, 0, 0, 0, time.UTC)
			i.Reservation = &ResourceReservationRef{ID: "rsv", FencingToken: -1}
		}, ""},
		{"longest ids", func(i *ActionIntent) {
			i.ID, i.TenantID, i.InstanceID, i.IdempotencyKey, i.ResourceScopeID, i.Capability.ID = longest, longest, longest, longest, longest, longest
		}, ""},
		{"long id", func(i *ActionIntent) { i.ID = longest + "x" }, "ID has 513 bytes"},
		{"long tenant", func(i *ActionIntent) { i.TenantID = longest + "x" }, "TenantID has 513 bytes"},
		{"long instance", func(i *ActionIntent) { i.InstanceID = longest + "x" }, "InstanceID has 513 bytes"},
		{"long run", func(i *ActionIntent) { i.RunID = longest + "x" }, "RunID has 513 bytes"},
		{"long key", func(i *ActionIntent) { i.IdempotencyKey = longest + "x" }, "IdempotencyKey has 513 bytes"},
		{"long resource", func(i *ActionIntent) { i.ResourceScopeID = longest + "x" }, "ResourceScopeID has 513 bytes"},
		{"long capability", func(i *ActionIntent) { i.Capability.ID = longest + "x" }, "Capability.ID has 513 bytes"},
		{"no state", func(i *ActionIntent) { i.State = "" }, `State is "", must be "prepared"`},
		{"no effect", func(i *ActionIntent) { i.Effect = "" }, `Effect "" is not known`},
		{"other effect", func(i *ActionIntent) { i.Effect = "Pure" }, `Effect "Pure" is not known`},
		{"no retry class", func(i *ActionIntent) { i.RetryClass = "" }, `RetryClass "" is not known`},
		{"other retry class", func(i *ActionIntent) { i.RetryClass = "always" }, `RetryClass "always" is not known`},
		{"epochs of 0", func(i *ActionIntent) { i.ControlEpochs, i.LeaseEpoch, i.ActionEpoch = ControlEpochs{}, 0, 0 }, ""},
		{"tenant epoch", func(i *ActionIntent) { i.ControlEpochs.Tenant = -1 }, "ControlEpochs.Tenant is -1, must not be negative"},
		{"instance epoch", func(i *ActionIntent) { i.ControlEpochs.Instance = -1 }, "ControlEpochs.Instance is -1"},
		{"resource epoch", func(i *ActionIntent) { i.ControlEpochs.Resource = math.MinInt64 }, "ControlEpochs.Resource is -9223372036854775808"},
		{"lease epoch", func(i *ActionIntent) { i.LeaseEpoch = -1 }, "LeaseEpoch is -1"},
		{"action epoch", func(i *ActionIntent) { i.ActionEpoch = -1 }, "ActionEpoch is -1"},
		{"funds without reservation", func(i *ActionIntent) { i.Effect = EffectFunds }, "Reservation is nil, funds need one"},
		{"funds with reservation", func(i *ActionIntent) { i.Effect, i.Reservation = EffectFunds, &ResourceReservationRef{ID: "rsv"} }, ""},
		{"funds with blank reservation", func(i *ActionIntent) { i.Effect, i.Reservation = EffectFunds, &ResourceReservationRef{ID: "\u3000"} }, "Reservation.ID is blank"},
		{"blank reservation", func(i *ActionIntent) { i.Reservation = &ResourceReservationRef{} }, "Reservation.ID is blank"},
		{"input is not JSON", func(i *ActionIntent) { i.Input = json.RawMessage(`{]`) }, "Input is not valid JSON"},
		{"input escapes NUL", func(i *ActionIntent) { i.Input = json.RawMessage(`{"\u0000":1}`) }, "Input escapes a NUL"},
		{"resource is not UTF-8", func(i *ActionIntent) { i.ResourceScopeID = "\xff" }, "ResourceScopeID is not valid UTF-8"},
		{"NUL in key", func(i *ActionIntent) { i.IdempotencyKey = "a\x00" }, "IdempotencyKey holds a NUL"},
		{"deadline in the year 10000", func(i *ActionIntent) { i.Deadline = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) }, "Deadline is in the year 10000"},
		{"deadline in the year 0", func(i *ActionIntent) { i.Deadline = time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC) }, "Deadline is in the year 0"},
		{"created in the year 10000", func(i *ActionIntent) { i.CreatedAt = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) }, "CreatedAt is in the year 10000"},
	}
	for field, set := range map[string]func(*ActionIntent, string){
		"ID":                         func(i *ActionIntent, s string) { i.ID = s },
		"TenantID":                   func(i *ActionIntent, s string) { i.TenantID = s },
		"InstanceID":                 func(i *ActionIntent, s string) { i.InstanceID = s },
		"RunID":                      func(i *ActionIntent, s string) { i.RunID = s },
		"IdempotencyKey":             func(i *ActionIntent, s string) { i.IdempotencyKey = s },
		"Capability.ID":              func(i *ActionIntent, s string) { i.Capability.ID = s },
		"Capability.ContractVersion": func(i *ActionIntent, s string) { i.Capability.ContractVersion = s },
		"Capability.ContentDigest":   func(i *ActionIntent, s string) { i.Capability.ContentDigest = s },
	} {
		tests = append(tests,
			struct {
				name   string
				change change
				want   string
			}{field + " empty", func(i *ActionIntent) { set(i, "") }, field + " is blank"},
			struct {
				name   string
				change change
				want   string
			}{field + " blank", func(i *ActionIntent) { set(i, "\u2003\u3000") }, field + " is blank"},
			struct {
				name   string
				change change
				want   string
			}{field + " with NUL", func(i *ActionIntent) { set(i, "a\x00") }, field + " holds a NUL"})
	}
	for _, state := range actionStates[1:] {
		tests = append(tests, struct {
			name   string
			change change
			want   string
		}{string(state), func(i *ActionIntent) { i.State = state }, `must be "prepared"`})
	}
	for _, effect := range []Effect{EffectPure, EffectRead, EffectInternalWrite, EffectExternalWrite} {
		for _, class := range []IdempotencyMode{IdempotencyNone, IdempotencyNative, IdempotencyReconcileBeforeRetry, IdempotencyNeverAutomaticRetry} {
			tests = append(tests, struct {
				name   string
				change change
				want   string
			}{string(effect) + " " + string(class), func(i *ActionIntent) { i.Effect, i.RetryClass = effect, class }, ""})
		}
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			intent := preparedIntent(pinnedItem())
			test.change(intent)
			err := intent.ValidatePrepared()
			if test.want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, test.want)
				require.ErrorContains(t, err, "supervisor: action intent")
			}
		})
	}
}

func TestNewIntentIsReadyToCommit(t *testing.T) {
	item := testItem("a")
	item.CapabilityPins = []CapabilityPin{testPin}
	item.ControlEpochs = ControlEpochs{Tenant: 1, Instance: 2, Resource: 3}
	item.LeaseVersion, item.StateVersion = 4, 5
	input := json.RawMessage(`{"html":"<b>"}`)
	intent, err := NewIntent(&item, "i", testPin, input)
	require.NoError(t, err)
	require.Equal(t, `{"html":"<b>"}`, string(intent.Input))
	input[0] = ' '
	require.Equal(t, `{"html":"<b>"}`, string(intent.Input), "the input is copied")
	require.Equal(t, item.RunID+"/i", intent.IdempotencyKey)
	require.False(t, (&IntentRecord{Intent: intent}).Repeatable(), "nothing is repeated unless that is said to be safe")
	command, err := NewCommand(&item, "asked", nil, nil, Continue{})
	require.NoError(t, err)
	command.ActionIntents = []ActionIntent{intent}
	require.NoError(t, command.ValidateFor(&item))

	for says, try := range map[string]func() (ActionIntent, error){
		"ID is blank":            func() (ActionIntent, error) { return NewIntent(&item, " ", testPin, nil) },
		"Capability.ID is blank": func() (ActionIntent, error) { return NewIntent(&item, "i", CapabilityPin{}, nil) },
		"input: ":                func() (ActionIntent, error) { return NewIntent(&item, "i", testPin, func() {}) },
		"Input":                  func() (ActionIntent, error) { return NewIntent(&item, "i", testPin, json.RawMessage(`{`)) },
	} {
		_, err := try()
		require.ErrorContains(t, err, says)
	}
}
