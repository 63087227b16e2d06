package supervisor

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func TestCheckJSON(t *testing.T) {
	const malformed, tooDeep, notUTF8, nul, surrogate = "is not valid JSON", "is nested deeper than 10000",
		"is not valid UTF-8", "escapes a NUL character", "escapes a lone surrogate"
	tests := []struct {
		name, text, want string
	}{
		{"null", `null`, ""},
		{"true", `true`, ""},
		{"false", `false`, ""},
		{"empty object", `{}`, ""},
		{"empty array", `[]`, ""},
		{"empty string", `""`, ""},
		{"space of all kinds", " \t\r\n{ \"a\" : [ 1 , 2 ] } \n", ""},
		{"duplicate keys", `{"a":1,"a":2}`, ""},
		{"integer above 2^53", `9007199254740993`, ""},
		{"largest uint64", `18446744073709551615`, ""},
		{"beyond float64", `1e400`, ""},
		{"trailing zero", `1.0`, ""},
		{"negative zero", `-0`, ""},
		{"exponents", `[1e1,1E+1,-1.5e-10]`, ""},
		{"every short escape", `"\"\\\/\b\f\n\r\t"`, ""},
		{"multi-byte text", `"äß漢🙂"`, ""},
		{"replacement character", "\"\uFFFD\\uFFFD\"", ""},

		{"nothing", ``, malformed},
		{"only space", `  `, malformed},
		{"two values", `1 2`, malformed},
		{"trailing comma in array", `[1,]`, malformed},
		{"trailing comma in object", `{"a":1,}`, malformed},
		{"no colon", `{"a" 1}`, malformed},
		{"no value", `{"a":}`, malformed},
		{"number as key", `{1:2}`, malformed},
		{"wrong bracket", `[1}`, malformed},
		{"unclosed object", `{"a":1`, malformed},
		{"unclosed array", `[1`, malformed},
		{"unclosed string", `"a`, malformed},
		{"unclosed escape", `"\`, malformed},
		{"short unicode escape", `"\u12"`, malformed},
		{"bad unicode escape", `"\u12g4"`, malformed},
		{"unknown escape", `"\x41"`, malformed},
		{"raw newline in string", "\"a\nb\"", malformed},
		{"raw NUL in string", "\"a\x00b\"", malformed},
		{"leading zero", `01`, malformed},
		{"negative leading zero", `-01`, malformed},
		{"leading plus", `+1`, malformed},
		{"bare minus", `-`, malformed},
		{"bare point", `1.`, malformed},
		{"point first", `.5`, malformed},
		{"bare exponent", `1e`, malformed},
		{"signed bare exponent", `1e+`, malformed},
		{"cut literal", `tru`, malformed},
		{"long literal", `nullx`, malformed},
		{"not a number", `NaN`, malformed},
		{"byte order mark", "\uFEFF{}", malformed},

		{"invalid byte", "\"\xff\"", notUTF8},
		{"cut character", "\"\xe6\xbc\"", notUTF8},
		{"surrogate in UTF-8", "\"\xed\xa0\x80\"", notUTF8},
		{"invalid byte in key", "{\"\xff\":1}", notUTF8},

		{"NUL", `"\u0000"`, nul},
		{"NUL in key", `{"a\u0000":1}`, nul},
		{"NUL after escaped backslash", `"\\\u0000"`, nul},
		{"escaped backslash before u0000", `"\\u0000"`, ""},
		{"two escaped backslashes before u0000", `"\\\\u0000"`, ""},
		{"first character after NUL", `"\u0001"`, ""},

		{"pair", `"\uD83D\uDE42"`, ""},
		{"pair in lower case", `"\ud83d\ude42"`, ""},
		{"outermost pairs", `"\uD800\uDC00\uDBFF\uDFFF"`, ""},
		{"neighbours of surrogates", `"\uD7FF\uE000"`, ""},
		{"lone high", `"\uD800"`, surrogate},
		{"lone high at the end of a text", `"a\uDBFF"`, surrogate},
		{"lone low", `"\uDC00"`, surrogate},
		{"last lone low", `"\uDFFF"`, surrogate},
		{"high before letter", `"\uD83Dx"`, surrogate},
		{"high before other escape", `"\uD83D\n"`, surrogate},
		{"high before high", `"\uD83D\uD83D"`, surrogate},
		{"high before escaped backslash", `"\uD83D\\uDE42"`, surrogate},
		{"halves in the wrong order", `"\uDE42\uD83D"`, surrogate},
		{"escaped backslash before surrogate", `"\\uD800"`, ""},

		{"deepest", strings.Repeat("[", maxJSONDepth) + strings.Repeat("]", maxJSONDepth), ""},
		{"too deep", strings.Repeat("[", maxJSONDepth+1) + strings.Repeat("]", maxJSONDepth+1), tooDeep},
		{"too deep in objects", strings.Repeat(`{"a":`, maxJSONDepth) + "{}" + strings.Repeat("}", maxJSONDepth), tooDeep},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			err := checkJSON("Field", json.RawMessage(test.text))
			if test.want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, "Field "+test.want+" (at byte ")
			}
			require.Equal(t, referenceAccepts([]byte(test.text)), err == nil, "the reference disagrees")
		})
	}
}

// The place in a message is that of the fault.
func TestCheckJSONNamesThePlace(t *testing.T) {
	require.EqualError(t, checkJSON("State", json.RawMessage(`{"a":[1,x]}`)), "State is not valid JSON (at byte 8 of 11)")
	require.EqualError(t, checkJSON("State", json.RawMessage(`{} {}`)), "State is not valid JSON (at byte 3 of 5)")
	require.EqualError(t, checkJSON("State", json.RawMessage(`["ab\u0000"]`)), "State escapes a NUL character (at byte 4 of 12)")
}

// referenceAccepts is a slow second implementation: the standard library's
// parser, and a look at every escape.
func referenceAccepts(text []byte) bool {
	if !json.Valid(text) || !utf8.Valid(text) {
		return false
	}
	for at := 0; at < len(text); at++ {
		if text[at] != '\\' {
			continue
		}
		at++
		if text[at] != 'u' {
			continue
		}
		var pair []byte
		var decoded string
		if pair = text[at-1:]; len(pair) > 12 {
			pair = pair[:12]
		}
		// The escape on its own, and with its right neighbour, decoded by the
		// standard library, which writes U+FFFD for a lone surrogate.
		one := fmt.Appendf(nil, `"%s"`, text[at-1:at+5])
		if json.Unmarshal(one, &decoded) != nil || decoded == "\x00" {
			return false
		}
		if decoded == "\uFFFD" && !bytes.EqualFold(text[at+1:at+5], []byte("fffd")) {
			two := fmt.Appendf(nil, `"%s"`, pair)
			if json.Unmarshal(two, &decoded) != nil || utf8.RuneCountInString(decoded) != 1 {
				return false
			}
			at += 6
		}
		at += 4
	}
	return true
}

func FuzzCheckJSON(f *testing.F) {
	for _, seed := range []string{
		`{"a":[1,-2.5e+10,true,false,null,"\u00e9\ud83d\ude42\\"]}`, `"\ud800"`, `"\\u0000"`, "\"\xed\xa0\x80\"", `[[[]]]`, ` 1 `, `-0.0`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		require.Equal(t, referenceAccepts(text), checkJSON("Field", text) == nil)
	})
}

func BenchmarkCheckJSON(b *testing.B) {
	for _, size := range []int{16, 1 << 10, 64 << 10} {
		text := benchmarkJSON(size)
		b.Run(fmt.Sprintf("bytes=%d", len(text)), func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				if err := checkJSON("Field", text); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// benchmarkJSON returns an object like the state of a small order book, of about a size.
func benchmarkJSON(size int) json.RawMessage {
	text := []byte(`{"n":1,"orders":[0`)
	for len(text) < size {
		text = append(text, `,{"id":"order-123456","amount":129.5,"tags":["a","b"],"ok":true}`...)
	}
	return append(text, `]}`...)
}
