package providerkit

import (
	"encoding/json"
	"strings"
	"unicode/utf8"

	"github.com/workflow-supervisor/supervisor"
)

// Wrapped is the output of a success that gave something else than JSON.
type Wrapped struct {
	ContentType string `json:"content_type,omitempty"`
	// Text, or Base64 of what is not text that every store holds.
	Text   string `json:"text,omitempty"`
	Base64 []byte `json:"base64,omitempty"`
	// Truncated: it was longer.
	Truncated bool `json:"truncated,omitempty"`
}

// Output makes a provider's answer the output of a success: null where there is
// none, itself where it is said to be JSON and can be stored, and else wrapped.
// It never fails; what does not fit is cut.
func Output(body []byte, isJSON bool, contentType string, truncated bool) json.RawMessage {
	if len(body) == 0 && !truncated {
		return nil
	}
	if isJSON && !truncated {
		report := supervisor.Report{Status: supervisor.ProviderSucceeded, Output: body}
		if report.Validate() == nil {
			return body
		}
	}
	contentType = Text(contentType, maxContentType)
	for {
		wrapped := Wrapped{ContentType: contentType, Truncated: truncated}
		if storable(body, truncated) {
			wrapped.Text = string(trimPartial(body, truncated))
		} else {
			wrapped.Base64 = body
		}
		output, err := json.Marshal(wrapped)
		if err == nil && len(output) <= supervisor.MaxOutputBytes {
			return output
		}
		// Escapes may make it six times as long.
		body, truncated = body[:len(body)/2], true
	}
}

const maxContentType = 256

// storable reports whether text can be stored as such. The last character of a
// text that was cut may be incomplete.
func storable(text []byte, truncated bool) bool {
	text = trimPartial(text, truncated)
	return utf8.Valid(text) && !strings.Contains(string(text), "\x00")
}

// trimPartial drops a character that a cut has split.
func trimPartial(text []byte, truncated bool) []byte {
	if !truncated {
		return text
	}
	for n := 1; n < utf8.UTFMax && n <= len(text); n++ {
		last := text[len(text)-n:]
		if utf8.RuneStart(last[0]) {
			if !utf8.FullRune(last) {
				return text[:len(text)-n]
			}
			break
		}
	}
	return text
}

// Text makes any bytes text of at most limit bytes that every store holds.
func Text[T ~string | ~[]byte](text T, limit int) string {
	head := string(text[:min(len(text), limit)])
	clean := strings.ReplaceAll(strings.ToValidUTF8(head, "?"), "\x00", "?")
	return clean
}
