package supervisor

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// MaxReasonBytes bounds the text of a failure.
const MaxReasonBytes = 64 << 10

// reasonCut ends a reason that was too long.
const reasonCut = "… [cut]"

// cleanReason makes any text storable: valid UTF-8 without NUL, at most
// MaxReasonBytes, cut on a character boundary and visibly.
func cleanReason(reason string) string {
	// Bytes beyond the bound are never looked at: an error text of gigabytes
	// costs no more than one of the bound. The slack keeps a character that
	// straddles the bound whole, and every replacement grows the text.
	whole := len(reason)
	if whole > MaxReasonBytes+utf8.UTFMax {
		reason = reason[:MaxReasonBytes+utf8.UTFMax]
	}
	reason = strings.ReplaceAll(strings.ToValidUTF8(reason, "\uFFFD"), "\x00", "\uFFFD")
	if whole <= MaxReasonBytes && len(reason) <= MaxReasonBytes {
		return reason
	}
	// Runs of invalid bytes shrink to one replacement, so that little may be left.
	end := min(len(reason), MaxReasonBytes-len(reasonCut))
	for end > 0 && end < len(reason) && !utf8.RuneStart(reason[end]) {
		end--
	}
	return reason[:end] + reasonCut
}

// shorten cuts a value for an error message.
func shorten(s string) string {
	const most = 64
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// checkText refuses text that some store cannot hold.
func checkText(field, s string) error {
	if !utf8.ValidString(s) {
		return fmt.Errorf("%s is not valid UTF-8", field)
	}
	if strings.IndexByte(s, 0) >= 0 {
		return fmt.Errorf("%s holds a NUL character", field)
	}
	return nil
}

// checkID refuses ids that are blank, too long or not storable.
func checkID(field, id string) error {
	if isBlank(id) {
		return fmt.Errorf("%s is blank", field)
	}
	if len(id) > MaxIDBytes {
		return fmt.Errorf("%s has %d bytes, more than %d", field, len(id), MaxIDBytes)
	}
	return checkText(field, id)
}

// checkJSON refuses JSON that does not parse or that some store cannot hold:
// PostgreSQL has no text with NUL or a lone surrogate, escaped or not.
func checkJSON(field string, raw json.RawMessage) error {
	if !json.Valid(raw) {
		return fmt.Errorf("%s is not valid JSON", field)
	}
	if !utf8.Valid(raw) {
		return fmt.Errorf("%s is not valid UTF-8", field)
	}
	// json.Valid has proved every escape complete, so that the scan can index
	// without checks of its own.
	for rest := raw; ; {
		at := bytes.IndexByte(rest, '\\')
		if at < 0 {
			return nil
		}
		rest = rest[at+1:]
		if rest[0] != 'u' {
			rest = rest[1:]
			continue
		}
		unit := hex4(rest[1:])
		rest = rest[5:]
		switch {
		case unit == 0:
			return fmt.Errorf("%s escapes a NUL character", field)
		case unit >= 0xDC00 && unit < 0xE000:
			return fmt.Errorf("%s escapes a lone surrogate", field)
		case unit >= 0xD800 && unit < 0xDC00:
			if len(rest) < 6 || rest[0] != '\\' || rest[1] != 'u' {
				return fmt.Errorf("%s escapes a lone surrogate", field)
			}
			if low := hex4(rest[2:]); low < 0xDC00 || low >= 0xE000 {
				return fmt.Errorf("%s escapes a lone surrogate", field)
			}
			rest = rest[6:]
		}
	}
}

// hex4 reads four hexadecimal digits that are known to be valid.
func hex4(digits []byte) (unit rune) {
	for _, c := range digits[:4] {
		unit <<= 4
		switch {
		case c <= '9':
			unit |= rune(c - '0')
		case c <= 'F':
			unit |= rune(c-'A') + 10
		default:
			unit |= rune(c-'a') + 10
		}
	}
	return unit
}

// encodeJSON encodes a value given by a caller; raw JSON is copied unchanged.
func encodeJSON(value any) (json.RawMessage, error) {
	if raw, ok := value.(json.RawMessage); ok && raw != nil {
		if !json.Valid(raw) {
			return nil, errors.New("not valid JSON")
		}
		return bytes.Clone(raw), nil
	}
	// HTML escapes would change the text of what callers stored.
	var buffer bytes.Buffer
	encoder := json.NewEncoder(&buffer)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(buffer.Bytes(), []byte("\n")), nil
}
