package supervisor

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/stretchr/testify/require"
)

func TestCanonicalJSON(t *testing.T) {
	tests := map[string]struct {
		want  string
		texts []string
	}{
		"white space":    {`{"a":[1e0,2e0]}`, []string{`{"a":[1,2]}`, " {\n\t\"a\" : [ 1 ,\r2 ] } "}},
		"key order":      {`{"a":1e0,"b":{"c":2e0,"d":3e0}}`, []string{`{"a":1,"b":{"c":2,"d":3}}`, `{"b":{"d":3,"c":2},"a":1}`}},
		"last key wins":  {`{"a":2e0}`, []string{`{"a":2}`, `{"a":1,"a":2}`, `{"a":1,"\u0061":2}`}},
		"element order":  {`[2e0,1e0]`, []string{`[2,1]`}},
		"escapes":        {`"é/\n😀"`, []string{`"é/\n😀"`, `"\u00e9\/\u000A\ud83d\uDE00"`}},
		"escaped key":    {`{"é":null}`, []string{`{"é":null}`, `{"\u00e9":null}`}},
		"scalars":        {`[true,false,null,""]`, []string{`[true,false,null,""]`}},
		"empty":          {`[{},[]]`, []string{`[{},[]]`, `[ { } , [ ] ]`}},
		"zero":           {`0`, []string{`0`, `-0`, `0.0`, `-0.00`, `0e5`, `0E-99999999999999999999`, `-0e+1`}},
		"whole":          {`1e2`, []string{`100`, `1E2`, `1e+2`, `1e02`, `1.0e2`, `10e1`, `0.1e3`, `100.00`, `1000e-1`}},
		"negative":       {`-15e-1`, []string{`-1.5`, `-15e-1`, `-0.15E+1`, `-1.50`, `-150e-2`}},
		"above 2^53":     {`9007199254740993e0`, []string{`9007199254740993`, `9007199254740993.0`, `9.007199254740993e15`}},
		"above 2^53 too": {`9007199254740992e0`, []string{`9007199254740992`}},
		"beyond float64": {`1e400`, []string{`1e400`, `10e399`, `0.001e403`, `1` + strings.Repeat("0", 400)}},
		"below float64":  {`1e-400`, []string{`1e-400`, `10e-401`, `0.` + strings.Repeat("0", 399) + `1`}},
		"huge exponent": {`1e99999999999999999999999999`, []string{
			`1e99999999999999999999999999`, `1E+0099999999999999999999999999`, `100e99999999999999999999999997`,
		}},
		"carry through a huge exponent":  {`1e10000000000000000000000000`, []string{`1e10000000000000000000000000`, `10e9999999999999999999999999`}},
		"borrow through a huge exponent": {`1e9999999999999999999999999`, []string{`1e9999999999999999999999999`, `0.1e10000000000000000000000000`}},
		"huge negative exponent":         {`-25e-99999999999999999999999999`, []string{`-25e-99999999999999999999999999`, `-2.5e-99999999999999999999999998`}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			for _, text := range test.texts {
				got, err := canonicalJSON(json.RawMessage(text))
				require.NoError(t, err, text)
				require.Equal(t, test.want, string(got), text)
			}
			again, err := canonicalJSON(json.RawMessage(test.want))
			require.NoError(t, err)
			require.Equal(t, test.want, string(again), "the canonical form is its own")
		})
	}
}

func TestCanonicalJSONRefusesWhatIsNotOneValue(t *testing.T) {
	for _, text := range []string{``, ` `, `{`, `1 2`, `{} []`, `nul`, `01`, `1e`, `.5`, `"\x"`, `[1,]`, `null,`} {
		_, err := canonicalJSON(json.RawMessage(text))
		require.Error(t, err, text)
	}
}

// A number as long as a hostile spec may hold is read in linear time: what takes
// milliseconds took half a minute with big.Int.
func TestCanonicalNumberOfMillionsOfDigits(t *testing.T) {
	const size = 4_000_000
	nines := strings.Repeat("9", size)
	got, err := canonicalJSON(json.RawMessage(`10e` + nines))
	require.NoError(t, err)
	require.Equal(t, `1e1`+strings.Repeat("0", size), string(got))

	got, err = canonicalJSON(json.RawMessage(`0.` + nines))
	require.NoError(t, err)
	require.Equal(t, nines+`e-`+strconv.Itoa(size), string(got))
}

func TestAppendSumEqualsBigInt(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	pick := func(from string) string { return string(from[random.IntN(len(from))]) }
	for range 20_000 {
		integer := pick("+-") // the JSON grammar allows a sign and zeros in front
		for range 1 + random.IntN(24) {
			integer += pick("0001599999")
		}
		n := random.IntN(2_000_001) - 1_000_000
		if random.IntN(2) == 0 {
			n = random.IntN(21) - 10
		}
		want, ok := new(big.Int).SetString(strings.TrimPrefix(integer, "+"), 10)
		require.True(t, ok, integer)
		want.Add(want, big.NewInt(int64(n)))
		require.Equal(t, want.String(), string(appendSum(nil, integer, n)), "%s + %d", integer, n)
	}
}

// FuzzRevisionDigest writes JSON anew in another notation, as stores do, and
// expects the same digest; and another digest for another value.
func FuzzRevisionDigest(f *testing.F) {
	for _, seed := range []string{
		`{}`, `[]`, `null`, `"text"`, `{"b": [1, 2.50, -0, 1E400, 1e-7], "a": {"é\n\u0041😀": true, "": null}}`,
		`[9007199254740993, 0.1e+3, 100, 123456789012345678901234567890e-12345678901234567890]`,
		`{"a": {"a": {"a": [[[{"a": "\/\"\\\b\f\r\t"}]]]}}}`, `{"a": 1, "a": 2}`, `"<>&\u2028"`,
	} {
		f.Add([]byte(seed), uint64(1))
	}
	f.Fuzz(func(t *testing.T, raw []byte, seed uint64) {
		if checkJSON("Spec", raw) != nil {
			t.Skip()
		}
		revision := &Revision{SpecID: "spec", Spec: raw, KernelABIVersion: "1"}
		digest, err := revision.ComputeDigest()
		require.NoError(t, err)

		decoder := json.NewDecoder(bytes.NewReader(raw))
		decoder.UseNumber()
		var value any
		require.NoError(t, decoder.Decode(&value))
		writer := renotation{random: rand.New(rand.NewPCG(seed, 0))}
		writer.write(value)
		revision.Spec = writer.text.Bytes()
		require.NoError(t, checkJSON("Spec", revision.Spec), "%s", revision.Spec)
		same, err := revision.ComputeDigest()
		require.NoError(t, err)
		require.Equal(t, digest, same, "%s\nwritten as\n%s", raw, revision.Spec)

		revision.Spec = slices.Concat([]byte("["), raw, []byte("]"))
		other, err := revision.ComputeDigest()
		require.NoError(t, err)
		require.NotEqual(t, digest, other)
	})
}

// renotation writes JSON values in a notation chosen at random: white space,
// key order, escapes, and the place of the decimal point.
type renotation struct {
	random *rand.Rand
	text   bytes.Buffer
}

func (r *renotation) space() {
	for range r.random.IntN(3) {
		r.text.WriteByte(" \t\r\n"[r.random.IntN(4)])
	}
}

func (r *renotation) write(value any) {
	r.space()
	defer r.space()
	switch value := value.(type) {
	case map[string]any:
		keys := slices.Sorted(maps.Keys(value))
		r.random.Shuffle(len(keys), func(a, b int) { keys[a], keys[b] = keys[b], keys[a] })
		r.text.WriteByte('{')
		for n, key := range keys {
			if n > 0 {
				r.text.WriteByte(',')
			}
			r.write(key)
			r.text.WriteByte(':')
			r.write(value[key])
		}
		r.text.WriteByte('}')
	case []any:
		r.text.WriteByte('[')
		for n, element := range value {
			if n > 0 {
				r.text.WriteByte(',')
			}
			r.write(element)
		}
		r.text.WriteByte(']')
	case string:
		r.writeString(value)
	case json.Number:
		r.writeNumber(string(value))
	default:
		fmt.Fprint(&r.text, map[any]string{true: "true", false: "false", nil: "null"}[value])
	}
}

func (r *renotation) writeString(s string) {
	r.text.WriteByte('"')
	for _, char := range s {
		if char < ' ' || char == '"' || char == '\\' || r.random.IntN(2) == 0 {
			for _, unit := range utf16.Encode([]rune{char}) {
				fmt.Fprintf(&r.text, []string{`\u%04x`, `\u%04X`}[r.random.IntN(2)], unit)
			}
			continue
		}
		r.text.WriteRune(char)
	}
	r.text.WriteByte('"')
}

// writeNumber moves the decimal point by a few places and corrects the exponent.
func (r *renotation) writeNumber(number string) {
	mantissa, exponentText, _ := strings.Cut(strings.ToLower(number), "e")
	mantissa, negative := strings.CutPrefix(mantissa, "-")
	whole, fraction, _ := strings.Cut(mantissa, ".")
	exponent := new(big.Int)
	if exponentText != "" {
		exponent.SetString(strings.TrimPrefix(exponentText, "+"), 10)
	}
	// 0.00<digits>00 with a corrected exponent has the same value.
	left, right := r.random.IntN(3), r.random.IntN(3)
	exponent.Add(exponent, big.NewInt(int64(len(whole)+left)))
	if negative {
		r.text.WriteByte('-')
	}
	fmt.Fprintf(&r.text, "0.%s%s%s%s", strings.Repeat("0", left), whole, fraction, strings.Repeat("0", right))
	r.text.WriteString([]string{"e", "E"}[r.random.IntN(2)])
	if exponent.Sign() >= 0 && r.random.IntN(2) == 0 {
		r.text.WriteByte('+')
	}
	r.text.WriteString(exponent.String())
}
