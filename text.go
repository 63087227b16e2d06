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
	// What is beyond the bound is never looked at: an error text of gigabytes
	// costs no more than one of the bound.
	head := clip(reason, MaxReasonBytes)
	clean := strings.ReplaceAll(strings.ToValidUTF8(head, "\uFFFD"), "\x00", "\uFFFD")
	// Replacements have three bytes and may lengthen the text.
	if len(head) == len(reason) && len(clean) <= MaxReasonBytes {
		return clean
	}
	return clip(clean, MaxReasonBytes-len(reasonCut)) + reasonCut
}

// clip returns the first bytes of s, at most limit, less a character that the
// limit would split.
func clip(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	end := limit
	// In text that is not UTF-8 any place is as good as another, so the search
	// ends after the length of a character.
	for end > max(0, limit-utf8.UTFMax) && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end]
}

// shorten cuts a value for an error message.
func shorten(s string) string {
	const limit = 64
	if len(s) <= limit {
		return s
	}
	return clip(s, limit) + "…"
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

// checkRequired refuses text that is blank or not storable.
func checkRequired(field, s string) error {
	if isBlank(s) {
		return fmt.Errorf("%s is blank", field)
	}
	return checkText(field, s)
}

// checkID refuses ids that are blank, too long or not storable.
func checkID(field, id string) error {
	if isBlank(id) {
		return fmt.Errorf("%s is blank", field)
	}
	return checkOptionalID(field, id)
}

// checkOptionalID is checkID for an id that may be left out.
func checkOptionalID(field, id string) error {
	if len(id) > MaxIDBytes {
		return fmt.Errorf("%s has %d bytes, more than %d", field, len(id), MaxIDBytes)
	}
	return checkText(field, id)
}

// isBlank reports whether s holds nothing but white space of any script.
func isBlank(s string) bool { return strings.TrimSpace(s) == "" }

// encodeJSON encodes a value given by a caller. Raw JSON stays as it is, not
// even checked: what it ends up in is validated whole.
func encodeJSON(value any) (json.RawMessage, error) {
	switch value := value.(type) {
	case nil:
		return json.RawMessage("null"), nil
	case json.RawMessage:
		switch {
		case value == nil:
			return json.RawMessage("null"), nil
		case len(value) == 0:
			return nil, errors.New("empty, not valid JSON")
		}
		return value, nil
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
