package providerkit

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/workflow-supervisor/supervisor"
)

func handoff() *supervisor.Handoff {
	return &supervisor.Handoff{Attempt: 3, Intent: supervisor.ActionIntent{TenantID: "t", InstanceID: "i/1", ID: "a", IdempotencyKey: "k"}}
}

func TestTemplates(t *testing.T) {
	for text, want := range map[string]string{
		"":                                "",
		"plain":                           "plain",
		"{{":                              "{",
		"}}":                              "}",
		"{{key}}":                         "{key}",
		"{{{key}}}":                       "{<k>}",
		"{tenant}{instance}":              "<t><i/1>",
		"a{intent}b{attempt}c{identity}d": "a<a>b<3>c<t/i%2F1/a/3>d",
	} {
		template, err := ParseTemplate(text)
		require.NoError(t, err, text)
		got, err := template.Expand(handoff(), func(s string) (string, error) { return "<" + s + ">", nil })
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for _, text := range []string{"{", "}", "{key", "key}", "{}", "{KEY}", "{ key }", "{key}}", "{key}{"} {
		_, err := ParseTemplate(text)
		require.Error(t, err, text)
	}
}

func TestOutputFits(t *testing.T) {
	for _, body := range []string{
		strings.Repeat("\x01", supervisor.MaxOutputBytes), // each is \u0001
		strings.Repeat("\xff", supervisor.MaxOutputBytes),
		strings.Repeat("é", supervisor.MaxOutputBytes/2),
		`"` + strings.Repeat("x", supervisor.MaxOutputBytes) + `"`,
	} {
		output := Output([]byte(body), true, strings.Repeat("t", 10_000), false)
		require.LessOrEqual(t, len(output), supervisor.MaxOutputBytes)
		var wrapped Wrapped
		require.NoError(t, json.Unmarshal(output, &wrapped))
		require.True(t, wrapped.Truncated)
		require.Greater(t, len(wrapped.Text)+len(wrapped.Base64), supervisor.MaxOutputBytes/16)
	}
}

func FuzzOutput(f *testing.F) {
	f.Add([]byte(`{"a":1}`), true, "text/plain", false)
	f.Add([]byte("\xc3"), false, "\xff\x00", true)
	f.Fuzz(func(t *testing.T, body []byte, isJSON bool, contentType string, truncated bool) {
		output := Output(body, isJSON, contentType, truncated)
		report := supervisor.Report{Status: supervisor.ProviderSucceeded, Output: output}
		require.NoError(t, report.Validate())
		if truncated {
			require.Contains(t, string(output), `"truncated":true`)
		}
	})
}

func FuzzTemplate(f *testing.F) {
	f.Add("a{key}{{")
	f.Fuzz(func(t *testing.T, text string) {
		template, err := ParseTemplate(text)
		if err != nil {
			return
		}
		got, err := template.Expand(handoff(), func(s string) (string, error) { return s, nil })
		require.NoError(t, err)
		require.True(t, strings.HasPrefix(got, template.Prefix()))
	})
}
