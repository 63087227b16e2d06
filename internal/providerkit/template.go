// Package providerkit is what the providers that come with the library share.
package providerkit

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/workflow-supervisor/supervisor"
)

// Template is a text with names in braces that stand for parts of a hand-off:
// {tenant}, {instance}, {intent}, {attempt}, {key} and {identity}. A brace of
// its own is written twice.
type Template struct {
	parts []part
}

// part is either literal text or a name.
type part struct{ text, name string }

// ParseTemplate reads a template. A name that is not known and a brace that is
// not closed are errors.
func ParseTemplate(text string) (Template, error) {
	var t Template
	var literal strings.Builder
	for rest := text; rest != ""; {
		at := strings.IndexAny(rest, "{}")
		if at < 0 {
			literal.WriteString(rest)
			break
		}
		literal.WriteString(rest[:at])
		brace := rest[at]
		rest = rest[at+1:]
		if rest != "" && rest[0] == brace {
			literal.WriteByte(brace)
			rest = rest[1:]
			continue
		}
		name, after, closed := strings.Cut(rest, "}")
		if brace == '}' || !closed {
			return Template{}, fmt.Errorf("%q has a %q without its counterpart", text, brace)
		}
		if _, known := value(name, new(supervisor.Handoff)); !known {
			return Template{}, fmt.Errorf("%q has the unknown name {%s}", text, name)
		}
		if literal.Len() > 0 {
			t.parts = append(t.parts, part{text: literal.String()})
			literal.Reset()
		}
		t.parts = append(t.parts, part{name: name})
		rest = after
	}
	if literal.Len() > 0 {
		t.parts = append(t.parts, part{text: literal.String()})
	}
	return t, nil
}

// Prefix is the literal text before the first name.
func (t *Template) Prefix() string {
	if len(t.parts) == 0 {
		return ""
	}
	return t.parts[0].text
}

// Expand puts the parts of a hand-off in, each as escape gives it. The error is
// that of escape.
func (t *Template) Expand(handoff *supervisor.Handoff, escape func(string) (string, error)) (string, error) {
	var text strings.Builder
	for _, p := range t.parts {
		if p.name == "" {
			text.WriteString(p.text)
			continue
		}
		found, _ := value(p.name, handoff)
		escaped, err := escape(found)
		if err != nil {
			return "", fmt.Errorf("{%s}: %w", p.name, err)
		}
		text.WriteString(escaped)
	}
	return text.String(), nil
}

func value(name string, handoff *supervisor.Handoff) (value string, known bool) {
	switch name {
	case "tenant":
		return handoff.Intent.TenantID, true
	case "instance":
		return handoff.Intent.InstanceID, true
	case "intent":
		return handoff.Intent.ID, true
	case "attempt":
		return strconv.Itoa(handoff.Attempt), true
	case "key":
		return handoff.Intent.IdempotencyKey, true
	case "identity":
		return handoff.Identity(), true
	}
	return "", false
}
