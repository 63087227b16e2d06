package supervisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// validCommand returns a command that is valid for pinnedItem, with one intent.
func validCommand(item *WorkItem) *TransitionCommand {
	return &TransitionCommand{
		DeliveryKey: "k", DeliveryDigest: "kd", EventType: "e", EventDigest: "ed",
		EventPayload: json.RawMessage(`{"p":1}`), NextState: json.RawMessage(`{"n":3}`),
		ActionIntents: []ActionIntent{*preparedIntent(item)},
		Disposition:   Continue{Delay: time.Minute},
	}
}

// claimedWakeups gives the item wakeups w0, w1 and so on.
func claimedWakeups(item *WorkItem, count int) {
	for n := range count {
		item.Wakeups = append(item.Wakeups, Wakeup{ID: fmt.Sprintf("w%d", n), Kind: "k"})
	}
}

func TestCommandValidate(t *testing.T) {
	longest := strings.Repeat("k", MaxIDBytes)
	year := func(year int) time.Time { return time.Date(year, time.June, 1, 0, 0, 0, 0, time.UTC) }
	zone := func(hours int) *time.Location { return time.FixedZone("", hours*3600) }
	tests := []struct {
		name   string
		change func(*TransitionCommand, *WorkItem)
		want   string
	}{
		{"valid", func(*TransitionCommand, *WorkItem) {}, ""},
		{"longest key", func(c *TransitionCommand, _ *WorkItem) { c.DeliveryKey = longest }, ""},
		{"long key", func(c *TransitionCommand, _ *WorkItem) { c.DeliveryKey = longest + "k" }, "DeliveryKey has 513 bytes, more than 512"},
		{"NUL in key", func(c *TransitionCommand, _ *WorkItem) { c.DeliveryKey = "\x00" }, "DeliveryKey holds a NUL character"},
		{"key is not UTF-8", func(c *TransitionCommand, _ *WorkItem) { c.DeliveryKey = "\xff" }, "DeliveryKey is not valid UTF-8"},
		{"NUL in digest", func(c *TransitionCommand, _ *WorkItem) { c.DeliveryDigest = "d\x00" }, "DeliveryDigest holds a NUL character"},
		{"event type is not UTF-8", func(c *TransitionCommand, _ *WorkItem) { c.EventType = "e\xed\xa0\x80" }, "EventType is not valid UTF-8"},
		{"NUL in event digest", func(c *TransitionCommand, _ *WorkItem) { c.EventDigest = "d\x00" }, "EventDigest holds a NUL character"},

		{"nil payload", func(c *TransitionCommand, _ *WorkItem) { c.EventPayload = nil }, ""},
		{"payload is not JSON", func(c *TransitionCommand, _ *WorkItem) { c.EventPayload = json.RawMessage(`{`) }, "EventPayload is not valid JSON"},
		{"payload escapes NUL", func(c *TransitionCommand, _ *WorkItem) { c.EventPayload = json.RawMessage(`"\u0000"`) }, "EventPayload escapes a NUL"},
		{"nil state", func(c *TransitionCommand, _ *WorkItem) { c.NextState = nil }, "NextState is nil"},
		{"empty state", func(c *TransitionCommand, _ *WorkItem) { c.NextState = json.RawMessage{} }, "NextState is nil"},
		{"null state", func(c *TransitionCommand, _ *WorkItem) { c.NextState = json.RawMessage("null") }, ""},
		{"state is not JSON", func(c *TransitionCommand, _ *WorkItem) { c.NextState = json.RawMessage(`nil`) }, "NextState is not valid JSON"},
		{"state is not UTF-8", func(c *TransitionCommand, _ *WorkItem) { c.NextState = json.RawMessage("\"\xff\"") }, "NextState is not valid UTF-8"},
		{"state escapes a lone surrogate", func(c *TransitionCommand, _ *WorkItem) { c.NextState = json.RawMessage(`"\udead"`) }, "NextState escapes a lone surrogate"},

		{"nil disposition", func(c *TransitionCommand, _ *WorkItem) { c.Disposition = nil }, "Disposition is nil"},
		{"pointer to a disposition", func(c *TransitionCommand, _ *WorkItem) { c.Disposition = &Complete{} }, "Disposition is a *supervisor.Complete"},
		{"nil pointer to a disposition", func(c *TransitionCommand, _ *WorkItem) { c.Disposition = (*Failed)(nil) }, "Disposition is a *supervisor.Failed"},
		{"struct around a disposition", func(c *TransitionCommand, _ *WorkItem) { c.Disposition = struct{ Complete }{} }, "must be a Continue, Reschedule, Complete or Failed"},
		{"complete", func(c *TransitionCommand, _ *WorkItem) { c.Disposition = Complete{} }, ""},
		{"negative delay", func(c *TransitionCommand, _ *WorkItem) { c.Disposition = Continue{Delay: math.MinInt64} }, ""},
		{"longest delay", func(c *TransitionCommand, _ *WorkItem) { c.Disposition = Continue{Delay: math.MaxInt64} }, ""},
		{"zero instant", func(c *TransitionCommand, _ *WorkItem) { c.Disposition = Reschedule{} }, ""},
		{"year 0", func(c *TransitionCommand, _ *WorkItem) { c.Disposition = Reschedule{At: year(0)} }, "Reschedule.At is in the year 0"},
		{"negative year", func(c *TransitionCommand, _ *WorkItem) { c.Disposition = Reschedule{At: year(-4000)} }, "Reschedule.At is in the year -4000"},
		{"year 1", func(c *TransitionCommand, _ *WorkItem) { c.Disposition = Reschedule{At: year(1)} }, ""},
		{"year 9999", func(c *TransitionCommand, _ *WorkItem) { c.Disposition = Reschedule{At: year(9999)} }, ""},
		{"year 10000", func(c *TransitionCommand, _ *WorkItem) { c.Disposition = Reschedule{At: year(10000)} }, "Reschedule.At is in the year 10000"},
		{"year 9999 that is 10000 in UTC", func(c *TransitionCommand, _ *WorkItem) {
			c.Disposition = Reschedule{At: time.Date(9999, time.December, 31, 23, 0, 0, 0, zone(-2))}
		}, "Reschedule.At is in the year 10000"},
		{"year 10000 that is 9999 in UTC", func(c *TransitionCommand, _ *WorkItem) {
			c.Disposition = Reschedule{At: time.Date(10000, time.January, 1, 1, 0, 0, 0, zone(2))}
		}, ""},
		{"year 1 that is 0 in UTC", func(c *TransitionCommand, _ *WorkItem) {
			c.Disposition = Reschedule{At: time.Date(1, time.January, 1, 1, 0, 0, 0, zone(2))}
		}, "Reschedule.At is in the year 0"},
		{"year 0 that is 1 in UTC", func(c *TransitionCommand, _ *WorkItem) {
			c.Disposition = Reschedule{At: time.Date(0, time.December, 31, 23, 0, 0, 0, zone(-2))}
		}, ""},
		{"retry in the year 10000", func(c *TransitionCommand, _ *WorkItem) { c.Disposition = Failed{Reason: "r", RetryAt: year(10000)} }, "Failed.RetryAt is in the year 10000"},
		{"retry in the year 0", func(c *TransitionCommand, _ *WorkItem) { c.Disposition = Failed{Reason: "r", RetryAt: year(0)} }, "Failed.RetryAt is in the year 0"},
		{"failed for good", func(c *TransitionCommand, _ *WorkItem) { c.Disposition = Failed{Reason: "r"} }, ""},
		{"NUL in reason", func(c *TransitionCommand, _ *WorkItem) { c.Disposition = Failed{Reason: "a\x00"} }, "Failed.Reason holds a NUL character"},
		{"reason is not UTF-8", func(c *TransitionCommand, _ *WorkItem) { c.Disposition = Failed{Reason: "a\xff"} }, "Failed.Reason is not valid UTF-8"},

		{"intents of a cancelled item", func(_ *TransitionCommand, w *WorkItem) { w.CancelRequested = true }, "ActionIntents is not empty, but cancellation was requested"},
		{"cancelled item without intents", func(c *TransitionCommand, w *WorkItem) { w.CancelRequested, c.ActionIntents = true, nil }, ""},
		{"intent that is not prepared", func(c *TransitionCommand, _ *WorkItem) { c.ActionIntents[0].State = ActionAuthorized }, `ActionIntents[0] "i": State is "authorized"`},
		{"intent of another tenant", func(c *TransitionCommand, _ *WorkItem) { c.ActionIntents[0].TenantID = "t2" }, `TenantID is "t2", claimed was "t1"`},
		{"intent of another instance", func(c *TransitionCommand, _ *WorkItem) { c.ActionIntents[0].InstanceID = "inst-2" }, `InstanceID is "inst-2", claimed was "inst-1"`},
		{"intent of another run", func(c *TransitionCommand, _ *WorkItem) { c.ActionIntents[0].RunID = "r" }, `RunID is "r", claimed was`},
		{"intent under an older tenant epoch", func(c *TransitionCommand, _ *WorkItem) { c.ActionIntents[0].ControlEpochs.Tenant-- }, "ControlEpochs.Tenant is 3, claimed was 4"},
		{"intent under a newer instance epoch", func(c *TransitionCommand, _ *WorkItem) { c.ActionIntents[0].ControlEpochs.Instance++ }, "ControlEpochs.Instance is 6, claimed was 5"},
		{"intent under another resource epoch", func(c *TransitionCommand, _ *WorkItem) { c.ActionIntents[0].ControlEpochs.Resource = 0 }, ""},
		{"intent under another lease", func(c *TransitionCommand, _ *WorkItem) { c.ActionIntents[0].LeaseEpoch = 6 }, "LeaseEpoch is 6, claimed was 7"},
		{"capability that is not pinned", func(c *TransitionCommand, _ *WorkItem) { c.ActionIntents[0].Capability.ID = "fax" }, `Capability "fax" is not exactly one of the pins`},
		{"other contract of a pinned capability", func(c *TransitionCommand, _ *WorkItem) { c.ActionIntents[0].Capability.ContractVersion = "v2" }, `Capability "mail" is not exactly one of the pins`},
		{"other content of a pinned capability", func(c *TransitionCommand, _ *WorkItem) { c.ActionIntents[0].Capability.ContentDigest = "x" }, `Capability "mail" is not exactly one of the pins`},
		{"no pins", func(_ *TransitionCommand, w *WorkItem) { w.CapabilityPins = nil }, `Capability "mail" is not exactly one of the pins`},
		{"second pin", func(c *TransitionCommand, w *WorkItem) {
			w.CapabilityPins = append(w.CapabilityPins, CapabilityPin{ID: "fax", ContractVersion: "v1", ContentDigest: "fd"})
			c.ActionIntents[0].Capability = w.CapabilityPins[1]
		}, ""},
		{"second intent is wrong", func(c *TransitionCommand, w *WorkItem) {
			second := *preparedIntent(w)
			second.ID, second.TenantID = "i2", "t2"
			c.ActionIntents = append(c.ActionIntents, second)
		}, `ActionIntents[1] "i2": TenantID`},
		{"intent twice", func(c *TransitionCommand, _ *WorkItem) { c.ActionIntents = append(c.ActionIntents, c.ActionIntents[0]) }, `ActionIntents[1] repeats the ID "i"`},
		{"many intents", func(c *TransitionCommand, w *WorkItem) { c.ActionIntents = manyIntents(w, 100) }, ""},
		{"an intent twice among many", func(c *TransitionCommand, w *WorkItem) {
			c.ActionIntents = manyIntents(w, 100)
			c.ActionIntents[99].ID = c.ActionIntents[50].ID
		}, `ActionIntents[99] repeats the ID "i50"`},
	}
	for _, blank := range blanks {
		for field, set := range map[string]func(*TransitionCommand, *WorkItem){
			"DeliveryKey":    func(c *TransitionCommand, _ *WorkItem) { c.DeliveryKey = blank },
			"DeliveryDigest": func(c *TransitionCommand, _ *WorkItem) { c.DeliveryDigest = blank },
			"EventType":      func(c *TransitionCommand, _ *WorkItem) { c.EventType = blank },
			"EventDigest":    func(c *TransitionCommand, _ *WorkItem) { c.EventDigest = blank },
			"Failed.Reason":  func(c *TransitionCommand, _ *WorkItem) { c.Disposition = Failed{Reason: blank} },
		} {
			tests = append(tests, struct {
				name   string
				change func(*TransitionCommand, *WorkItem)
				want   string
			}{fmt.Sprintf("%s %q", field, blank), set, field + " is blank"})
		}
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			item := pinnedItem()
			command := validCommand(item)
			test.change(command, item)
			before := command.Clone()
			for _, err := range []error{command.ValidateFor(item), command.ValidateContent(item)} {
				if test.want == "" {
					require.NoError(t, err)
				} else {
					require.ErrorContains(t, err, test.want)
				}
			}
			require.Equal(t, before, *command, "a check changes nothing")
		})
	}
}

func manyIntents(item *WorkItem, count int) []ActionIntent {
	intents := make([]ActionIntent, count)
	for n := range intents {
		intents[n] = *preparedIntent(item)
		intents[n].ID = fmt.Sprintf("i%d", n)
	}
	return intents
}

// Pins concern only the pass: queues store the failure of an item without them.
func TestValidateContentLeavesOutPins(t *testing.T) {
	for name, change := range map[string]func(*WorkItem){
		"definition":    func(w *WorkItem) { w.DefinitionID = "" },
		"run":           func(w *WorkItem) { w.RunID = "not-a-uuid" },
		"state version": func(w *WorkItem) { w.StateVersion = -1 },
		"lease version": func(w *WorkItem) { w.LeaseVersion = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			item := pinnedItem()
			change(item)
			command := FailureCommand(item, "pins", item.ClaimedAt)
			require.NoError(t, command.ValidateContent(item))
			err := command.ValidateFor(item)
			require.Error(t, err)
			require.Equal(t, item.ValidatePins().Error(), err.Error())
		})
	}
}

func TestValidateConsumedWakeups(t *testing.T) {
	tests := []struct {
		name        string
		claimed     int
		consumed    []string
		disposition Disposition
		triggered   bool
		want        string
	}{
		{"nothing", 2, nil, Complete{}, false, ""},
		{"nothing of nothing", 0, nil, Complete{}, false, ""},
		{"one", 2, []string{"w1"}, Complete{}, false, ""},
		{"all in another order", 3, []string{"w2", "w0", "w1"}, Continue{}, false, ""},
		{"not claimed", 2, []string{"w0", "w2"}, Complete{}, false, `ConsumedWakeups[1] "w2" was not claimed`},
		{"of nothing", 0, []string{"w0"}, Complete{}, false, `ConsumedWakeups[0] "w0" was not claimed`},
		{"empty id", 1, []string{""}, Complete{}, false, `ConsumedWakeups[0] "" was not claimed`},
		{"twice", 2, []string{"w1", "w0", "w1"}, Complete{}, false, `ConsumedWakeups[2] repeats "w1"`},
		{"failed", 2, []string{"w0"}, Failed{Reason: "r"}, false, "a Failed command consumes only when Outcome.Triggered"},
		{"failed but triggered", 2, []string{"w0"}, Failed{Reason: "r"}, true, ""},
		{"failed, triggered, not claimed", 2, []string{"w2"}, Failed{Reason: "r"}, true, `"w2" was not claimed`},
		{"failed without any", 2, nil, Failed{Reason: "r"}, false, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			item := pinnedItem()
			claimedWakeups(item, test.claimed)
			command := validCommand(item)
			command.ConsumedWakeups, command.Disposition = test.consumed, test.disposition
			command.Outcome.Triggered = test.triggered
			err := command.ValidateContent(item)
			if test.want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, test.want)
			}
		})
	}
}

// The verdict does not depend on how many wakeups a claim holds.
func TestValidateConsumedWakeupsOfAnyNumber(t *testing.T) {
	for _, count := range []int{1, 7, 8, 9, 10, 16, 17, 576, MaxClaimWakeups} {
		item := pinnedItem()
		claimedWakeups(item, count)
		command := validCommand(item)
		for n := range count {
			command.ConsumedWakeups = append(command.ConsumedWakeups, item.Wakeups[count-1-n].ID)
		}
		require.NoError(t, command.ValidateContent(item), "all of %d", count)

		last := command.ConsumedWakeups[count-1]
		command.ConsumedWakeups[count-1] = "stranger"
		require.ErrorContains(t, command.ValidateContent(item), fmt.Sprintf(`ConsumedWakeups[%d] "stranger" was not claimed`, count-1))
		command.ConsumedWakeups = append(command.ConsumedWakeups[:count-1], last, last)
		require.ErrorContains(t, command.ValidateContent(item), fmt.Sprintf(`ConsumedWakeups[%d] repeats %q`, count, last))
	}
}

func TestNewCommand(t *testing.T) {
	item := pinnedItem()
	command, err := NewCommand(item, "order.charged", map[string]any{"html": "<&>"}, json.RawMessage(` {"n":9007199254740993,"f":1.0,"e":1e400}`), Complete{})
	require.NoError(t, err)
	require.NoError(t, command.ValidateFor(item))
	require.Equal(t, "order.charged", command.EventType)
	require.Equal(t, `{"html":"<&>"}`, string(command.EventPayload))
	require.Equal(t, ` {"n":9007199254740993,"f":1.0,"e":1e400}`, string(command.NextState))
	require.Equal(t, Complete{}, command.Disposition)
	require.Regexp(t, `^transition:[0-9a-f]{32}:3$`, command.DeliveryKey)
	require.Regexp(t, `^sha256:[0-9a-f]{64}$`, command.DeliveryDigest)
	require.Regexp(t, `^sha256:[0-9a-f]{64}$`, command.EventDigest)

	nothing, err := NewCommand(item, "e", nil, nil, Complete{})
	require.NoError(t, err)
	require.NoError(t, nothing.ValidateFor(item))
	require.Equal(t, "null", string(nothing.EventPayload))
	require.Equal(t, "null", string(nothing.NextState))

	// Raw JSON is neither copied nor checked: the command is, as a whole.
	unchecked, err := NewCommand(item, "e", json.RawMessage(`{`), json.RawMessage(`{`), Complete{})
	require.NoError(t, err)
	require.ErrorContains(t, unchecked.ValidateFor(item), "NextState is not valid JSON")
}

func TestNewCommandRefuses(t *testing.T) {
	item := pinnedItem()
	tests := []struct {
		name           string
		payload, state any
		disposition    Disposition
		want           string
	}{
		{"nil disposition", nil, nil, nil, "Disposition is nil"},
		{"payload that does not encode", math.NaN(), nil, Complete{}, "payload: "},
		{"state that does not encode", nil, func() {}, Complete{}, "next state: "},
		{"empty raw payload", json.RawMessage{}, nil, Complete{}, "payload: empty, not valid JSON"},
		{"empty raw state", nil, json.RawMessage{}, Complete{}, "next state: empty, not valid JSON"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			command, err := NewCommand(item, "e", test.payload, test.state, test.disposition)
			require.ErrorContains(t, err, test.want)
			require.Zero(t, command)
		})
	}
}

// Key and digests are the same for the same input and differ in every part.
func TestNewCommandKeysAndDigests(t *testing.T) {
	base := func() TransitionCommand {
		command, err := NewCommand(pinnedItem(), "e", 1, 2, Continue{Delay: 1})
		require.NoError(t, err)
		return command
	}
	require.Equal(t, base(), base())

	keys := map[string]string{base().DeliveryKey: "base"}
	for name, change := range map[string]func(*WorkItem){
		"tenant":           func(w *WorkItem) { w.TenantID = "t2" },
		"instance":         func(w *WorkItem) { w.ID = "inst-2" },
		"moved characters": func(w *WorkItem) { w.TenantID, w.ID = "t1i", "nst-1" },
		"state version":    func(w *WorkItem) { w.StateVersion++ },
	} {
		item := pinnedItem()
		change(item)
		command, err := NewCommand(item, "e", 1, 2, Continue{Delay: 1})
		require.NoError(t, err)
		require.Empty(t, keys[command.DeliveryKey], name)
		keys[command.DeliveryKey] = name
	}
	failure := FailureCommand(pinnedItem(), "r", time.Time{})
	require.Empty(t, keys[failure.DeliveryKey], "a failure never takes the key of a transition")

	at := time.Date(2026, time.June, 1, 0, 0, 0, 1, time.UTC)
	digests := map[string]string{base().DeliveryDigest: "base"}
	for name, build := range map[string]func() (TransitionCommand, error){
		"event type": func() (TransitionCommand, error) { return NewCommand(pinnedItem(), "e2", 1, 2, Continue{Delay: 1}) },
		"payload":    func() (TransitionCommand, error) { return NewCommand(pinnedItem(), "e", 2, 2, Continue{Delay: 1}) },
		"state":      func() (TransitionCommand, error) { return NewCommand(pinnedItem(), "e", 1, 3, Continue{Delay: 1}) },
		"swapped":    func() (TransitionCommand, error) { return NewCommand(pinnedItem(), "e", 2, 1, Continue{Delay: 1}) },
		"delay":      func() (TransitionCommand, error) { return NewCommand(pinnedItem(), "e", 1, 2, Continue{Delay: 2}) },
		"complete":   func() (TransitionCommand, error) { return NewCommand(pinnedItem(), "e", 1, 2, Complete{}) },
		"instant":    func() (TransitionCommand, error) { return NewCommand(pinnedItem(), "e", 1, 2, Reschedule{At: at}) },
		"later instant": func() (TransitionCommand, error) {
			return NewCommand(pinnedItem(), "e", 1, 2, Reschedule{At: at.Add(1)})
		},
		"failed":       func() (TransitionCommand, error) { return NewCommand(pinnedItem(), "e", 1, 2, Failed{Reason: "r"}) },
		"other reason": func() (TransitionCommand, error) { return NewCommand(pinnedItem(), "e", 1, 2, Failed{Reason: "s"}) },
		"retry": func() (TransitionCommand, error) {
			return NewCommand(pinnedItem(), "e", 1, 2, Failed{Reason: "r", RetryAt: at})
		},
	} {
		command, err := build()
		require.NoError(t, err)
		require.Empty(t, digests[command.DeliveryDigest], name)
		digests[command.DeliveryDigest] = name
		require.Equal(t, name != "event type" && name != "payload" && name != "swapped", command.EventDigest == base().EventDigest, name)
	}
	elsewhere, err := NewCommand(pinnedItem(), "e", 1, 2, Reschedule{At: at.In(time.FixedZone("", 3600))})
	require.NoError(t, err)
	require.Equal(t, "instant", digests[elsewhere.DeliveryDigest], "the zone of an instant is not content")
}

func TestFailureCommand(t *testing.T) {
	item := pinnedItem()
	claimedWakeups(item, 3)
	retryAt := item.ClaimedAt.Add(time.Minute)
	command := FailureCommand(item, `it broke: "<&>"`, retryAt)
	require.NoError(t, command.ValidateFor(item))
	require.Equal(t, "workflow.evaluation_failed", command.EventType)
	require.Equal(t, `{"error":"it broke: \"<&>\""}`, string(command.EventPayload))
	require.Equal(t, `{"n":2}`, string(command.NextState))
	require.Empty(t, command.ActionIntents)
	require.Empty(t, command.ConsumedWakeups)
	require.Zero(t, command.Outcome)
	require.Equal(t, Failed{Reason: `it broke: "<&>"`, RetryAt: retryAt}, command.Disposition)
	require.Regexp(t, `^failure:[0-9a-f]{32}:3$`, command.DeliveryKey)

	forGood := FailureCommand(item, "r", time.Time{})
	require.NoError(t, forGood.ValidateFor(item))
	require.Equal(t, Failed{Reason: "r"}, forGood.Disposition)

	item.State = nil
	stateless := FailureCommand(item, "r", retryAt)
	require.NoError(t, stateless.ValidateFor(item))
	require.Equal(t, "null", string(stateless.NextState))
}

// Whatever a driver returns as an error, its failure can be stored.
func TestFailureCommandStoresAnyReason(t *testing.T) {
	for name, reason := range map[string]string{
		"empty": "", "blank": "\u3000\n", "NUL": "bad\x00byte", "only NUL": "\x00", "broken": "bad \xff\xfe", "surrogate": "\xed\xa0\x80",
		"huge": strings.Repeat("é", 5<<19), "line separators": "a\u2028b",
	} {
		t.Run(name, func(t *testing.T) {
			item := pinnedItem()
			command := FailureCommand(item, reason, item.ClaimedAt)
			require.NoError(t, command.ValidateFor(item))
			stored := command.Disposition.(Failed).Reason
			require.NotEmpty(t, strings.TrimSpace(stored))
			require.LessOrEqual(t, len(stored), MaxReasonBytes)
			var payload struct{ Error string }
			require.NoError(t, json.Unmarshal(command.EventPayload, &payload))
			require.Equal(t, stored, payload.Error)
		})
	}
}

func TestCommandClone(t *testing.T) {
	item := pinnedItem()
	claimedWakeups(item, 1)
	command := validCommand(item)
	command.ActionIntents[0].Input = json.RawMessage(`[1]`)
	command.ActionIntents[0].Reservation = &ResourceReservationRef{ID: "r"}
	command.ConsumedWakeups = []string{"w0"}
	clone := command.Clone()
	require.Equal(t, *command, clone)

	clone.EventPayload[1], clone.NextState[1] = 'X', 'X'
	clone.ActionIntents[0].ID = "X"
	clone.ActionIntents[0].Input[1] = 'X'
	clone.ActionIntents[0].Reservation.ID = "X"
	clone.ConsumedWakeups[0] = "X"
	_ = append(clone.EventPayload, "XXXX"...)
	require.Equal(t, `{"p":1}`, string(command.EventPayload))
	require.Equal(t, `{"n":3}`, string(command.NextState))
	require.Equal(t, `{Xn":3}`, string(clone.NextState))
	require.Equal(t, "i", command.ActionIntents[0].ID)
	require.Equal(t, `[1]`, string(command.ActionIntents[0].Input))
	require.Equal(t, "r", command.ActionIntents[0].Reservation.ID)
	require.Equal(t, []string{"w0"}, command.ConsumedWakeups)

	empty := (&TransitionCommand{}).Clone()
	require.Equal(t, TransitionCommand{}, empty, "nil stays nil")
}

// Errors repeat what is wrong, not how much of it there is.
func TestCommandErrorsStayShort(t *testing.T) {
	huge := strings.Repeat("é", 1<<20)
	item := pinnedItem()
	for name, change := range map[string]func(*TransitionCommand){
		"key":         func(c *TransitionCommand) { c.DeliveryKey = huge },
		"consumed":    func(c *TransitionCommand) { c.ConsumedWakeups = []string{huge} },
		"intent id":   func(c *TransitionCommand) { c.ActionIntents[0].ID = huge },
		"intent run":  func(c *TransitionCommand) { c.ActionIntents[0].RunID = huge[:500] },
		"capability":  func(c *TransitionCommand) { c.ActionIntents[0].Capability.ID = huge[:500] },
		"state":       func(c *TransitionCommand) { c.NextState = json.RawMessage(huge) },
		"effect":      func(c *TransitionCommand) { c.ActionIntents[0].Effect = Effect(huge) },
		"retry class": func(c *TransitionCommand) { c.ActionIntents[0].RetryClass = IdempotencyMode(huge) },
	} {
		command := validCommand(item)
		change(command)
		err := command.ValidateFor(item)
		require.Error(t, err, name)
		require.Less(t, len(err.Error()), 600, name)
	}
}

func FuzzValidateContent(f *testing.F) {
	item := pinnedItem()
	valid, err := json.Marshal(validCommand(item))
	require.NoError(f, err)
	f.Add(valid, "w0", int64(7))
	f.Add([]byte(`{}`), "", int64(0))
	f.Add([]byte(`{"disposition":{"kind":"failed"},"consumed_wakeups":["w0"]}`), "w0", int64(-1))
	f.Fuzz(func(t *testing.T, text []byte, wakeup string, lease int64) {
		var command TransitionCommand
		if json.Unmarshal(text, &command) != nil {
			return
		}
		item := pinnedItem()
		item.LeaseVersion = lease
		item.Wakeups = []Wakeup{{ID: wakeup}}
		content := command.ValidateContent(item)
		full := command.ValidateFor(item)
		if pins := item.ValidatePins(); pins != nil {
			require.EqualError(t, full, pins.Error())
		} else {
			require.Equal(t, content == nil, full == nil)
		}
		if content != nil {
			return
		}
		// What is accepted can be stored: it encodes, and comes back as it was.
		encoded, err := json.Marshal(command)
		require.NoError(t, err)
		var decoded TransitionCommand
		require.NoError(t, json.Unmarshal(encoded, &decoded))
		require.NoError(t, decoded.ValidateContent(item))
		again, err := json.Marshal(decoded)
		require.NoError(t, err)
		require.Equal(t, string(encoded), string(again))
	})
}

func BenchmarkValidateFor(b *testing.B) {
	for _, bench := range []struct {
		name                   string
		state, intents, wakeup int
	}{
		{"state=16B", 16, 0, 0},
		{"state=1KiB", 1 << 10, 0, 0},
		{"state=64KiB", 64 << 10, 0, 0},
		{"intents=3", 16, 3, 0},
		{"wakeups=8", 16, 0, 8},
		{"wakeups=1000", 16, 0, MaxClaimWakeups},
	} {
		b.Run(bench.name, func(b *testing.B) {
			item := pinnedItem()
			claimedWakeups(item, bench.wakeup)
			command, err := NewCommand(item, "e", nil, benchmarkJSON(bench.state), Continue{})
			command.ActionIntents = manyIntents(item, bench.intents)
			for n := range item.Wakeups {
				command.ConsumedWakeups = append(command.ConsumedWakeups, item.Wakeups[n].ID)
			}
			err = errors.Join(err, command.ValidateFor(item))
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if command.ValidateFor(item) != nil {
					b.Fatal("refused")
				}
			}
		})
	}
}

func BenchmarkNewCommand(b *testing.B) {
	item := pinnedItem()
	state := benchmarkJSON(16)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := NewCommand(item, "e", nil, state, Continue{}); err != nil {
			b.Fatal(err)
		}
	}
}
