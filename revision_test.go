package supervisor

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// fullRevision is a valid revision that has every field.
func fullRevision(t testing.TB) *Revision {
	t.Helper()
	revision := &Revision{
		DefinitionID:     "definition",
		Revision:         3,
		SpecID:           "spec",
		Spec:             json.RawMessage(`{"steps": [1, 2.50]}`),
		KernelABIVersion: "1",
		Capabilities: []CapabilityPin{
			{ID: "mail", ContractVersion: "1", ContentDigest: "sha256:aa"},
			{ID: "chat", ContractVersion: "2", ContentDigest: "sha256:bb"},
		},
		ExpressionVersions:  map[string]string{"add": "1", "multiply": "2"},
		DependencySetDigest: "sha256:cc",
	}
	digest, err := revision.ComputeDigest()
	require.NoError(t, err)
	revision.ContentDigest = digest
	return revision
}

func TestRevisionValidate(t *testing.T) {
	tests := map[string]struct {
		change func(*Revision)
		// digest is computed anew after the change.
		digest bool
		want   []string // parts of the error; none: valid
	}{
		"full":                     {change: func(*Revision) {}},
		"least":                    {change: func(r *Revision) { r.Capabilities, r.ExpressionVersions, r.DependencySetDigest = nil, nil, "" }, digest: true},
		"null spec":                {change: func(r *Revision) { r.Spec = json.RawMessage("null") }, digest: true},
		"opaque digest":            {change: func(r *Revision) { r.ContentDigest = "mine:1" }},
		"opaque digest in capital": {change: func(r *Revision) { r.ContentDigest = "SHA256:1" }},
		"longest ids":              {change: func(r *Revision) { r.DefinitionID, r.SpecID = strings.Repeat("d", 512), strings.Repeat("s", 512) }, digest: true},

		"definition blank":     {change: func(r *Revision) { r.DefinitionID = "\u2003" }, want: []string{"DefinitionID is blank"}},
		"definition too long":  {change: func(r *Revision) { r.DefinitionID = strings.Repeat("d", 513) }, want: []string{"DefinitionID has 513 bytes"}},
		"definition not UTF-8": {change: func(r *Revision) { r.DefinitionID = "\xff" }, want: []string{"DefinitionID is not valid UTF-8"}},
		"spec id blank":        {change: func(r *Revision) { r.SpecID = "" }, digest: true, want: []string{"SpecID is blank"}},
		"spec id too long":     {change: func(r *Revision) { r.SpecID = strings.Repeat("s", 513) }, digest: true, want: []string{"SpecID has 513 bytes"}},
		"number 0":             {change: func(r *Revision) { r.Revision = 0 }, want: []string{"Revision is 0"}},
		"digest blank":         {change: func(r *Revision) { r.ContentDigest = "\t" }, want: []string{"ContentDigest is blank"}},
		"digest with NUL":      {change: func(r *Revision) { r.ContentDigest = "a\x00" }, want: []string{"ContentDigest holds a NUL"}},
		"ABI blank":            {change: func(r *Revision) { r.KernelABIVersion = " " }, digest: true, want: []string{"KernelABIVersion is blank"}},
		"ABI not UTF-8":        {change: func(r *Revision) { r.KernelABIVersion = "\xff" }, digest: true, want: []string{"KernelABIVersion is not valid UTF-8"}},
		"dependencies not UTF-8": {change: func(r *Revision) { r.DependencySetDigest = "\xff" }, digest: true,
			want: []string{"DependencySetDigest is not valid UTF-8"}},

		"no spec":           {change: func(r *Revision) { r.Spec = nil }, want: []string{"Spec is nil"}},
		"spec not JSON":     {change: func(r *Revision) { r.Spec = json.RawMessage(`{`) }, want: []string{"Spec is not valid JSON"}},
		"spec not UTF-8":    {change: func(r *Revision) { r.Spec = json.RawMessage("\"\xff\"") }, want: []string{"Spec is not valid UTF-8"}},
		"spec escapes NUL":  {change: func(r *Revision) { r.Spec = json.RawMessage(`"\u0000"`) }, want: []string{"Spec escapes a NUL"}},
		"spec half a pair":  {change: func(r *Revision) { r.Spec = json.RawMessage(`"\ud800"`) }, want: []string{"Spec escapes a lone surrogate"}},
		"pin id blank":      {change: func(r *Revision) { r.Capabilities[1].ID = "" }, digest: true, want: []string{"Capabilities[1].ID is blank"}},
		"pin version blank": {change: func(r *Revision) { r.Capabilities[0].ContractVersion = "" }, digest: true, want: []string{"Capabilities[0].ContractVersion is blank"}},
		"pin digest blank":  {change: func(r *Revision) { r.Capabilities[0].ContentDigest = "" }, digest: true, want: []string{"Capabilities[0].ContentDigest is blank"}},
		"pinned twice":      {change: func(r *Revision) { r.Capabilities[1].ID = "mail" }, digest: true, want: []string{`Capabilities[1] pins "mail" again`}},
		"expression blank":  {change: func(r *Revision) { r.ExpressionVersions[""] = "1" }, digest: true, want: []string{`ExpressionVersions[""] is "1"`}},
		"version blank":     {change: func(r *Revision) { r.ExpressionVersions["add"] = " " }, digest: true, want: []string{`ExpressionVersions["add"] is " "`}},
		"expression NUL":    {change: func(r *Revision) { r.ExpressionVersions["a\x00"] = "1" }, digest: true, want: []string{"ExpressionVersions holds a NUL"}},

		"other spec":         {change: func(r *Revision) { r.Spec = json.RawMessage(`{"steps": [1, 2.51]}`) }, want: []string{"ContentDigest is", "the content's is"}},
		"digest in capitals": {change: func(r *Revision) { r.ContentDigest = digestPrefix + strings.ToUpper(r.ContentDigest[7:]) }, want: []string{"the content's is"}},
		"digest cut":         {change: func(r *Revision) { r.ContentDigest = r.ContentDigest[:70] }, want: []string{"the content's is"}},
		"everything at once": {change: func(r *Revision) { *r = Revision{Spec: json.RawMessage("x")} }, want: []string{
			"DefinitionID is blank", "SpecID is blank", "Revision is 0", "ContentDigest is blank", "KernelABIVersion is blank", "Spec is not valid JSON",
		}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			revision := fullRevision(t)
			test.change(revision)
			if test.digest {
				digest, err := revision.ComputeDigest()
				require.NoError(t, err)
				revision.ContentDigest = digest
			}
			err := revision.Validate()
			if len(test.want) == 0 {
				require.NoError(t, err)
				return
			}
			for _, want := range test.want {
				require.ErrorContains(t, err, want)
			}
		})
	}
}

func TestRevisionDigestDependsOnTheMeaningAlone(t *testing.T) {
	tests := map[string]struct {
		change func(*Revision)
		same   bool
	}{
		"definition":         {func(r *Revision) { r.DefinitionID = "other" }, true},
		"number":             {func(r *Revision) { r.Revision = 4 }, true},
		"digest":             {func(r *Revision) { r.ContentDigest = "" }, true},
		"notation":           {func(r *Revision) { r.Spec = json.RawMessage(`{"st\u0065ps":[1.0,25e-1]}`) }, true},
		"order of pins":      {func(r *Revision) { slices.Reverse(r.Capabilities) }, true},
		"pin repeated":       {func(r *Revision) { r.Capabilities = append(r.Capabilities, r.Capabilities[0]) }, true},
		"empty, not nil":     {func(r *Revision) { r.Capabilities = append([]CapabilityPin{}, r.Capabilities...) }, true},
		"spec id":            {func(r *Revision) { r.SpecID = "spec2" }, false},
		"spec":               {func(r *Revision) { r.Spec = json.RawMessage(`{"steps": [2.50, 1]}`) }, false},
		"ABI":                {func(r *Revision) { r.KernelABIVersion = "kernel-abi-1" }, false},
		"pin gone":           {func(r *Revision) { r.Capabilities = r.Capabilities[:1] }, false},
		"pin version":        {func(r *Revision) { r.Capabilities[0].ContractVersion = "2" }, false},
		"pin digest":         {func(r *Revision) { r.Capabilities[0].ContentDigest = "sha256:bb" }, false},
		"expression gone":    {func(r *Revision) { delete(r.ExpressionVersions, "add") }, false},
		"expression version": {func(r *Revision) { r.ExpressionVersions["add"] = "2" }, false},
		"dependencies":       {func(r *Revision) { r.DependencySetDigest = "" }, false},
		"text moved between fields": {func(r *Revision) {
			r.Capabilities[0].ID, r.Capabilities[0].ContractVersion = "mail1", ""
		}, false},
	}
	want := fullRevision(t).ContentDigest
	require.Regexp(t, "^sha256:[0-9a-f]{64}$", want)
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			revision := fullRevision(t)
			test.change(revision)
			digest, err := revision.ComputeDigest()
			require.NoError(t, err)
			if test.same {
				require.Equal(t, want, digest)
			} else {
				require.NotEqual(t, want, digest)
			}
		})
	}
}

// The digest is stored by every queue: it must not change with the library.
func TestRevisionDigestIsStable(t *testing.T) {
	require.Equal(t, "sha256:e90939a2d6a17b52d7e71dbe5f0a5ca46f26a6ebd5acf102cc20201c360ff76d", fullRevision(t).ContentDigest)
}

func TestRevisionDigestLeavesTheRevisionAsItIs(t *testing.T) {
	revision := fullRevision(t)
	before := revision.clone()
	_, err := revision.ComputeDigest()
	require.NoError(t, err)
	require.Equal(t, before, revision)
}

func TestRevisionDigestNamesAnInvalidSpec(t *testing.T) {
	for _, spec := range []string{"", "{", "1 2"} {
		_, err := (&Revision{SpecID: "spec", Spec: json.RawMessage(spec)}).ComputeDigest()
		require.ErrorContains(t, err, "Spec")
	}
}

func TestRevisionEncodesToJSONAndBack(t *testing.T) {
	revision := fullRevision(t)
	revision.Spec = json.RawMessage(`{"big":9007199254740993,"zero":1.50,"exponent":1E2}`)
	text, err := json.Marshal(revision)
	require.NoError(t, err)
	var back Revision
	require.NoError(t, json.Unmarshal(text, &back))
	require.Equal(t, *revision, back)
	for _, name := range []string{
		"definition_id", "revision", "spec_id", "spec", "content_digest", "kernel_abi_version",
		"capabilities", "expression_versions", "dependency_set_digest",
	} {
		require.Contains(t, string(text), `"`+name+`":`)
	}
}
