package supervisor

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func TestCleanReason(t *testing.T) {
	const limit = MaxReasonBytes
	room := limit - len(reasonCut)
	tests := []struct {
		name, reason, want string
	}{
		{"plain", "it broke", "it broke"},
		{"empty", "", ""},
		{"multi-byte", "äß漢🙂", "äß漢🙂"},
		{"NUL", "bad\x00byte", "bad\uFFFDbyte"},
		{"several NULs", "\x00\x00", "\uFFFD\uFFFD"},
		{"invalid bytes", "bad \xff\xfe end", "bad \uFFFD end"},
		{"surrogate", "\xed\xa0\x80", "\uFFFD"},
		{"character that ends too soon", "a\xf0\x9f\x99", "a\uFFFD"},
		{"replacement character", "\uFFFD", "\uFFFD"},

		{"longest", strings.Repeat("x", limit), strings.Repeat("x", limit)},
		{"longest of two bytes each", strings.Repeat("é", limit/2), strings.Repeat("é", limit/2)},
		{"one too long", strings.Repeat("x", limit+1), strings.Repeat("x", room) + reasonCut},
		{"much too long", strings.Repeat("x", 5<<20), strings.Repeat("x", room) + reasonCut},
		// The room for text is an odd number of bytes, less a multiple of 3 by 2.
		{"cut between characters of two bytes", strings.Repeat("é", limit), strings.Repeat("é", room/2) + reasonCut},
		{"cut between characters of three bytes", strings.Repeat("漢", limit), strings.Repeat("漢", room/3) + reasonCut},
		{"cut between characters of four bytes", strings.Repeat("🙂", limit), strings.Repeat("🙂", room/4) + reasonCut},
		{"cut after one byte and characters of two", "x" + strings.Repeat("é", limit), "x" + strings.Repeat("é", (room-1)/2) + reasonCut},

		{"grows beyond the limit", strings.Repeat("x", limit-1) + "\x00", strings.Repeat("x", room) + reasonCut},
		{"grows up to the limit", strings.Repeat("x", limit-3) + "\x00", strings.Repeat("x", limit-3) + "\uFFFD"},
		{"grows threefold", strings.Repeat("\x00", limit), strings.Repeat("\uFFFD", room/3) + reasonCut},
		{"shrinks below the limit", strings.Repeat("\xff", 10) + strings.Repeat("x", limit-10), "\uFFFD" + strings.Repeat("x", limit-10)},
		// What is dropped is never looked at, so the cut shows although little is left.
		{"long and invalid", strings.Repeat("\xff", 5<<20), "\uFFFD" + reasonCut},
		{"long and shrinking, no half character before the cut", strings.Repeat("\xff", 100) + strings.Repeat("漢", limit),
			"\uFFFD" + strings.Repeat("漢", (limit-100)/3) + reasonCut},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := cleanReason(test.reason)
			// Not require.Equal, whose difference of long texts takes minutes.
			require.True(t, test.want == got, "got %d bytes that begin %.80q and end %.80q", len(got), got, got[max(0, len(got)-40):])
		})
	}
}

func FuzzCleanReason(f *testing.F) {
	for _, seed := range []string{"", "plain", "bad\x00", "\xff\xfe", "\xed\xa0\x80", "é漢🙂"} {
		f.Add(seed, 1)
		f.Add(seed, MaxReasonBytes/max(len(seed), 1))
		f.Add(seed, 2*MaxReasonBytes)
	}
	f.Fuzz(func(t *testing.T, piece string, times int) {
		times = min(max(times, 0), 4*MaxReasonBytes/max(len(piece), 1))
		reason := strings.Repeat(piece, times)
		got := cleanReason(reason)
		require.LessOrEqual(t, len(got), MaxReasonBytes)
		require.True(t, utf8.ValidString(got))
		require.NotContains(t, got, "\x00")
		require.Equal(t, got, cleanReason(got), "a clean reason stays as it is")
		if utf8.ValidString(reason) && !strings.Contains(reason, "\x00") {
			if len(reason) <= MaxReasonBytes {
				require.Equal(t, reason, got)
			} else {
				kept, cut := strings.CutSuffix(got, reasonCut)
				require.True(t, cut, "a cut is visible")
				require.True(t, strings.HasPrefix(reason, kept))
				require.Greater(t, len(kept), MaxReasonBytes-len(reasonCut)-utf8.UTFMax)
			}
		}
	})
}

func TestShorten(t *testing.T) {
	require.Equal(t, "short", shorten("short"))
	require.Equal(t, strings.Repeat("x", 64), shorten(strings.Repeat("x", 64)))
	require.Equal(t, strings.Repeat("x", 64)+"…", shorten(strings.Repeat("x", 65)))
	require.Equal(t, strings.Repeat("漢", 21)+"…", shorten(strings.Repeat("漢", 40)))
	require.Less(t, len(shorten(strings.Repeat("\x80", 1000))), 70)
}

func TestCheckID(t *testing.T) {
	require.NoError(t, checkID("Field", strings.Repeat("x", MaxIDBytes)))
	require.EqualError(t, checkID("Field", strings.Repeat("x", MaxIDBytes+1)), "Field has 513 bytes, more than 512")
	require.EqualError(t, checkID("Field", "\u3000"), "Field is blank")
	require.EqualError(t, checkID("Field", "a\x00"), "Field holds a NUL character")
	require.EqualError(t, checkID("Field", "\xc3"), "Field is not valid UTF-8")
	require.NoError(t, checkOptionalID("Field", ""))
	require.EqualError(t, checkOptionalID("Field", strings.Repeat("x", MaxIDBytes+1)), "Field has 513 bytes, more than 512")
}

func TestEncodeJSON(t *testing.T) {
	var nilRaw json.RawMessage
	var nilMap map[string]int
	tests := []struct {
		name  string
		value any
		want  string
	}{
		{"nil", nil, `null`},
		{"nil raw", nilRaw, `null`},
		{"nil map", nilMap, `null`},
		{"raw with space", json.RawMessage(` {"a": 1.0} `), ` {"a": 1.0} `},
		{"raw with HTML", json.RawMessage(`"<&>"`), `"<&>"`},
		{"text with HTML", "<&>", `"<&>"`},
		{"number", uint64(18446744073709551615), `18446744073709551615`},
		{"json.Number", json.Number("1e400"), `1e400`},
		{"struct around raw", struct{ A json.RawMessage }{json.RawMessage(`1.0`)}, `{"A":1.0}`},
		{"text that ends in a line feed", "a\n", `"a\n"`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := encodeJSON(test.value)
			require.NoError(t, err)
			require.Equal(t, test.want, string(got))
		})
	}
	_, err := encodeJSON(make(chan int))
	require.ErrorContains(t, err, "json: unsupported type")
	_, err = encodeJSON(json.RawMessage{})
	require.ErrorContains(t, err, "empty, not valid JSON")
	_, err = encodeJSON(struct{ A json.RawMessage }{json.RawMessage(`{`)})
	require.ErrorContains(t, err, "json: error calling MarshalJSON")
}
