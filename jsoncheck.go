package supervisor

import (
	"encoding/json"
	"fmt"
	"unicode/utf8"
)

// maxJSONDepth is the nesting that encoding/json still decodes.
const maxJSONDepth = 10_000

// jsonFault is why a JSON text is refused.
type jsonFault uint8

const (
	jsonFine jsonFault = iota
	jsonMalformed
	jsonTooDeep
	jsonInvalidUTF8
	jsonNUL
	jsonLoneSurrogate
)

func (f jsonFault) String() string {
	return [...]string{
		"is fine", "is not valid JSON", "is nested deeper than 10000", "is not valid UTF-8",
		"escapes a NUL character", "escapes a lone surrogate",
	}[f]
}

// checkJSON refuses JSON that does not parse or that some store cannot hold:
// PostgreSQL has no text with NUL or a lone surrogate, escaped or not.
//
// Every command passes through here at least twice, in the pass and in the
// queue, so that this one walk over the bytes replaces [json.Valid] and two
// scans after it. It takes exactly the texts that json.Valid takes, less those.
func checkJSON(field string, raw json.RawMessage) error {
	at, fault := scanJSON(raw, skipSpace(raw, 0), 0)
	if fault == jsonFine {
		if at = skipSpace(raw, at); at < len(raw) {
			fault = jsonMalformed
		}
	}
	if fault != jsonFine {
		return fmt.Errorf("%s %s (at byte %d of %d)", field, fault, at, len(raw))
	}
	return nil
}

// scanJSON reads the value that begins at an index and returns the index after
// it, or that of a fault. depth is the number of arrays and objects around it.
func scanJSON(text []byte, at, depth int) (int, jsonFault) {
	if at >= len(text) {
		return at, jsonMalformed
	}
	switch c := text[at]; c {
	case '"':
		return scanString(text, at+1)
	case '{', '[':
		if depth == maxJSONDepth {
			return at, jsonTooDeep
		}
		return scanComposite(text, at+1, depth+1, c == '{')
	case 't':
		return scanLiteral(text, at, "true")
	case 'f':
		return scanLiteral(text, at, "false")
	case 'n':
		return scanLiteral(text, at, "null")
	}
	return scanNumber(text, at)
}

// scanComposite reads the rest of an object or array after its first bracket.
func scanComposite(text []byte, at, depth int, object bool) (int, jsonFault) {
	end := byte(']')
	if object {
		end = '}'
	}
	at = skipSpace(text, at)
	if at < len(text) && text[at] == end {
		return at + 1, jsonFine
	}
	for {
		var fault jsonFault
		if object {
			if at >= len(text) || text[at] != '"' {
				return at, jsonMalformed
			}
			if at, fault = scanString(text, at+1); fault != jsonFine {
				return at, fault
			}
			at = skipSpace(text, at)
			if at >= len(text) || text[at] != ':' {
				return at, jsonMalformed
			}
			at = skipSpace(text, at+1)
		}
		if at, fault = scanJSON(text, at, depth); fault != jsonFine {
			return at, fault
		}
		at = skipSpace(text, at)
		switch {
		case at >= len(text):
			return at, jsonMalformed
		case text[at] == end:
			return at + 1, jsonFine
		case text[at] != ',':
			return at, jsonMalformed
		}
		at = skipSpace(text, at+1)
	}
}

// scanString reads the rest of a string after its opening quote.
func scanString(text []byte, at int) (int, jsonFault) {
	for at < len(text) {
		switch c := text[at]; {
		case c >= ' ' && c < utf8.RuneSelf && c != '"' && c != '\\':
			at++
		case c == '"':
			return at + 1, jsonFine
		case c == '\\':
			var fault jsonFault
			if at, fault = scanEscape(text, at); fault != jsonFine {
				return at, fault
			}
		case c < ' ':
			return at, jsonMalformed
		default:
			r, size := utf8.DecodeRune(text[at:])
			if r == utf8.RuneError && size == 1 {
				return at, jsonInvalidUTF8
			}
			at += size
		}
	}
	return at, jsonMalformed
}

// scanEscape reads the escape that begins at an index, both halves of a
// surrogate pair.
func scanEscape(text []byte, at int) (int, jsonFault) {
	if at+1 >= len(text) {
		return at, jsonMalformed
	}
	switch text[at+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return at + 2, jsonFine
	case 'u':
	default:
		return at, jsonMalformed
	}
	const length = len(`\u0000`)
	switch unit := hexUnit(text, at); {
	case unit < 0:
		return at, jsonMalformed
	case unit == 0:
		return at, jsonNUL
	case unit < 0xD800 || unit > 0xDFFF:
		return at + length, jsonFine
	case unit < 0xDC00:
		if low := hexUnit(text, at+length); low >= 0xDC00 && low <= 0xDFFF {
			return at + 2*length, jsonFine
		}
	}
	return at, jsonLoneSurrogate
}

// hexUnit returns the code unit of the \uXXXX that begins at an index, or -1.
func hexUnit(text []byte, at int) (unit rune) {
	if at+6 > len(text) || text[at] != '\\' || text[at+1] != 'u' {
		return -1
	}
	for _, c := range text[at+2 : at+6] {
		unit <<= 4
		switch {
		case '0' <= c && c <= '9':
			unit |= rune(c - '0')
		case 'a' <= c && c <= 'f':
			unit |= rune(c-'a') + 10
		case 'A' <= c && c <= 'F':
			unit |= rune(c-'A') + 10
		default:
			return -1
		}
	}
	return unit
}

// scanNumber reads a number: an integer without leading zeros, then perhaps a
// fraction and an exponent.
func scanNumber(text []byte, at int) (int, jsonFault) {
	if at < len(text) && text[at] == '-' {
		at++
	}
	whole := skipDigits(text, at)
	if whole == at || (text[at] == '0' && whole > at+1) {
		return at, jsonMalformed
	}
	at = whole
	if at < len(text) && text[at] == '.' {
		fraction := skipDigits(text, at+1)
		if fraction == at+1 {
			return fraction, jsonMalformed
		}
		at = fraction
	}
	if at < len(text) && (text[at] == 'e' || text[at] == 'E') {
		at++
		if at < len(text) && (text[at] == '+' || text[at] == '-') {
			at++
		}
		exponent := skipDigits(text, at)
		if exponent == at {
			return at, jsonMalformed
		}
		at = exponent
	}
	return at, jsonFine
}

func scanLiteral(text []byte, at int, literal string) (int, jsonFault) {
	end := at + len(literal)
	if end > len(text) || string(text[at:end]) != literal {
		return at, jsonMalformed
	}
	return end, jsonFine
}

func skipDigits(text []byte, at int) int {
	for at < len(text) && '0' <= text[at] && text[at] <= '9' {
		at++
	}
	return at
}

func skipSpace(text []byte, at int) int {
	for at < len(text) && text[at] <= ' ' && (text[at] == ' ' || text[at] == '\n' || text[at] == '\t' || text[at] == '\r') {
		at++
	}
	return at
}
