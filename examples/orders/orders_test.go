package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
)

// readAll returns the ids of the orders and the errors, in the order of the lines.
func readAll(t *testing.T, in io.Reader) (got []string, last error) {
	t.Helper()
	reader := newOrderReader(in)
	for {
		o, err := reader.next()
		var refused *lineError
		switch {
		case errors.As(err, &refused):
			got = append(got, err.Error())
		case err != nil:
			return got, err
		default:
			got = append(got, fmt.Sprintf("line %d: %s", reader.line, o.ID))
		}
	}
}

func TestReaderGoesOnBehindWhatIsNoOrder(t *testing.T) {
	long := `{"id":"` + strings.Repeat("x", maxLine) + `"}`
	fits := `{"id":"a"` + strings.Repeat(" ", maxLine-len(`{"id":"a"}`)-1) + "}"
	for _, c := range []struct {
		name, in string
		want     []string
	}{
		{"nothing", "", nil},
		{"blank lines", "\n \r\n\t\n", nil},
		{"one line without an end", `{"id":"a"}`, []string{"line 1: a"}},
		{"line ends of Windows", "{\"id\":\"a\"}\r\n{\"id\":\"b\"}\r\n", []string{"line 1: a", "line 2: b"}},
		{"a byte order mark", "\ufeff{\"id\":\"a\"}\n", []string{"line 1: a"}},
		{"a byte order mark later", "\n\ufeff{\"id\":\"a\"}\n", []string{"line 2: invalid character 'ï' looking for beginning of value"}},
		{"a blank line between", "{\"id\":\"a\"}\n\n{\"id\":\"b\"}", []string{"line 1: a", "line 3: b"}},
		{"garbage between", "{\"id\":\"a\"}\n~~~\n{\"id\":\"b\"}", []string{"line 1: a", "line 2: invalid character '~' looking for beginning of value", "line 3: b"}},
		{"a line that ends too soon", `{"id":`, []string{"line 1: unexpected EOF"}},
		{"two values", `{"id":"a"} {"id":"b"}`, []string{"line 1: more than one value"}},
		{"another type", `["a"]`, []string{"line 1: json: cannot unmarshal array into Go value of type main.order"}},
		{"null", `null`, []string{`line 1: "id" is missing`}},
		{"a fraction of a cent", `{"id":"a","cents":1.5}`, []string{"line 1: json: cannot unmarshal number 1.5 into Go struct field order.cents of type int64"}},
		{"more cents than there are", `{"id":"a","cents":9223372036854775808}`, []string{"line 1: json: cannot unmarshal number 9223372036854775808 into Go struct field order.cents of type int64"}},
		{"a misspelt field", `{"id":"a","crad":"busy"}`, []string{`line 1: json: unknown field "crad"`}},
		{"no id", `{"cents":1}`, []string{`line 1: "id" is missing`}},
		{"an unknown card", `{"id":"a","card":"gold"}`, []string{`line 1: "card" is "gold", must be "busy", "declined" or absent`}},
		{"an unknown stock", `{"id":"a","stock":"maybe"}`, []string{`line 1: "stock" is "maybe", must be "late", "never" or absent`}},
		{"not UTF-8", "{\"id\":\"\xff\"}", []string{"line 1: not valid UTF-8"}},
		{"the longest line that fits", fits[:len(fits)-1] + "\n" + `{"id":"b"}`, []string{"line 1: unexpected EOF", "line 2: b"}},
		{"the longest line and its end", fits + "\n" + `{"id":"b"}`, []string{"line 1: a", "line 2: b"}},
		{"a line one byte too long", fits + " \n" + `{"id":"b"}`, []string{"line 1: longer than 65536 bytes", "line 2: b"}},
		{"a very long line", long + long + long + "\n" + `{"id":"b"}`, []string{"line 1: longer than 65536 bytes", "line 2: b"}},
		{"a very long line without an end", long, []string{"line 1: longer than 65536 bytes"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, last := readAll(t, strings.NewReader(c.in))
			require.Equal(t, c.want, got)
			require.Equal(t, io.EOF, last)
			// However the input is cut into reads.
			got, _ = readAll(t, iotest.OneByteReader(strings.NewReader(c.in)))
			require.Equal(t, c.want, got)
		})
	}
}

func TestReaderReturnsTheErrorOfItsInput(t *testing.T) {
	broken := errors.New("the disk is on fire")
	for name, before := range map[string]string{
		"between lines":     "{\"id\":\"a\"}\n",
		"within a line":     "{\"id\":\"a\"}\n{\"id\":",
		"within a long one": "{\"id\":\"a\"}\n" + strings.Repeat("x", 2*maxLine),
	} {
		t.Run(name, func(t *testing.T) {
			got, last := readAll(t, io.MultiReader(strings.NewReader(before), iotest.ErrReader(broken)))
			require.Equal(t, []string{"line 1: a"}, got, "half a line is no order")
			require.ErrorIs(t, last, broken)
		})
	}
}

func FuzzReader(f *testing.F) {
	f.Add(sample)
	f.Add([]byte("{\"id\":\"a\"}\n\n~\n\ufeff{}\r\n[[[[\n{\"id\":\"\\u0000\",\"cents\":-1}"))
	f.Fuzz(func(t *testing.T, in []byte) {
		reader := newOrderReader(strings.NewReader(string(in)))
		for line := 0; ; {
			o, err := reader.next()
			var refused *lineError
			switch {
			case errors.Is(err, io.EOF):
				return
			case errors.As(err, &refused):
				require.Equal(t, order{}, o)
				require.Equal(t, reader.line, refused.line)
			default:
				require.NoError(t, err)
				require.NoError(t, o.validate())
			}
			require.Greater(t, reader.line, line)
			line = reader.line
		}
	})
}
