package supervisor

import (
	"bytes"
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestDispositionJSON(t *testing.T) {
	at := time.Date(2026, time.June, 1, 12, 0, 0, 123_456_789, time.UTC)
	tests := []struct {
		name        string
		disposition Disposition
		want        string
	}{
		{"nil", nil, `null`},
		{"continue now", Continue{}, `{"kind":"continue"}`},
		{"continue", Continue{Delay: time.Minute}, `{"kind":"continue","delay":60000000000}`},
		{"continue before now", Continue{Delay: math.MinInt64}, `{"kind":"continue","delay":-9223372036854775808}`},
		{"reschedule", Reschedule{At: at}, `{"kind":"reschedule","at":"2026-06-01T12:00:00.123456789Z"}`},
		{"reschedule now", Reschedule{}, `{"kind":"reschedule"}`},
		{"complete", Complete{}, `{"kind":"complete"}`},
		{"failed", Failed{Reason: "<&>", RetryAt: at}, `{"kind":"failed","reason":"<&>","retry_at":"2026-06-01T12:00:00.123456789Z"}`},
		{"failed for good", Failed{Reason: "r"}, `{"kind":"failed","reason":"r"}`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			command := TransitionCommand{Disposition: test.disposition}
			text, err := encodeJSON(command)
			require.NoError(t, err)
			var fields struct{ Disposition json.RawMessage }
			require.NoError(t, json.Unmarshal(text, &fields))
			require.Equal(t, test.want, string(fields.Disposition))

			var decoded TransitionCommand
			require.NoError(t, json.Unmarshal(text, &decoded))
			require.Equal(t, command, decoded)
		})
	}
}

// Instants are written in UTC: in another zone a valid one may be in a year
// that JSON cannot write.
func TestDispositionJSONIsInUTC(t *testing.T) {
	at := time.Date(10000, time.January, 1, 1, 0, 0, 0, time.FixedZone("", 2*3600))
	for _, disposition := range []Disposition{Reschedule{At: at}, Failed{Reason: "r", RetryAt: at}} {
		item := pinnedItem()
		command := validCommand(item)
		command.Disposition = disposition
		require.NoError(t, command.ValidateFor(item))
		text, err := json.Marshal(command)
		require.NoError(t, err)
		require.Contains(t, string(text), `"9999-12-31T23:00:00Z"`)
	}
}

func TestDispositionJSONRefuses(t *testing.T) {
	for name, disposition := range map[string]Disposition{
		"pointer": &Complete{}, "nil pointer": (*Continue)(nil), "struct around one": struct{ Failed }{},
	} {
		_, err := json.Marshal(TransitionCommand{Disposition: disposition})
		require.ErrorContains(t, err, "must be a Continue, Reschedule, Complete or Failed", name)
	}
	for text, want := range map[string]string{
		`{"disposition":{}}`:                             `disposition kind "" is not known`,
		`{"disposition":{"kind":"explode"}}`:             `disposition kind "explode" is not known`,
		`{"disposition":"complete"}`:                     "cannot unmarshal",
		`{"disposition":{"kind":"continue","delay":""}}`: "cannot unmarshal",
		`{"next_state":{}`:                               "unexpected end",
	} {
		command := TransitionCommand{EventType: "before"}
		require.ErrorContains(t, json.Unmarshal([]byte(text), &command), want, text)
		require.Equal(t, TransitionCommand{EventType: "before"}, command, "an error changes nothing")
	}
}

// The command leaves HTML escapes to the encoder that it is given to.
func TestCommandJSONKeepsHTML(t *testing.T) {
	command := TransitionCommand{NextState: json.RawMessage(`{"html":"<&>\u003c"}`), EventType: "a<b"}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	require.NoError(t, encoder.Encode(command))
	require.Contains(t, text.String(), `{"html":"<&>\u003c"}`)
	require.Contains(t, text.String(), `"a<b"`)
}

func FuzzCommandJSON(f *testing.F) {
	for _, command := range []*TransitionCommand{validCommand(pinnedItem()), {}, {Disposition: Failed{Reason: "r"}}} {
		text, err := json.Marshal(command)
		require.NoError(f, err)
		f.Add(text)
	}
	f.Add([]byte(`{"disposition":{"kind":"reschedule","at":"9999-12-31T23:59:59-23:59"},"next_state":1e400}`))
	f.Add([]byte(`{"Disposition":{"KIND":"complete"},"outcome":null,"action_intents":[{}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var command TransitionCommand
		if json.Unmarshal(text, &command) != nil {
			require.Zero(t, command)
			return
		}
		encoded, err := encodeJSON(command)
		if err != nil {
			// An instant can be read in a zone that takes it out of the calendar.
			require.Error(t, checkDisposition(command.Disposition))
			return
		}
		var decoded TransitionCommand
		require.NoError(t, json.Unmarshal(encoded, &decoded))
		again, err := encodeJSON(decoded)
		require.NoError(t, err)
		require.Equal(t, string(encoded), string(again))
		require.Equal(t, len(command.NextState) == 0, len(decoded.NextState) == 0)
	})
}

func TestClampInstant(t *testing.T) {
	end := time.Date(9999, time.December, 31, 23, 59, 59, 999_999_000, time.UTC)
	require.Equal(t, end, endOfCalendar())
	require.Equal(t, end, clampInstant(end))
	require.Equal(t, end, clampInstant(end.Add(1)))
	require.Equal(t, end, clampInstant(end.AddDate(5000, 0, 0)))
	require.Equal(t, end.Add(-1), clampInstant(end.Add(-1)))
	elsewhere := time.Date(2026, time.June, 1, 12, 0, 0, 0, time.FixedZone("", 3600))
	require.Equal(t, time.Date(2026, time.June, 1, 11, 0, 0, 0, time.UTC), clampInstant(elsewhere))
	require.Zero(t, clampInstant(time.Time{}))
}
