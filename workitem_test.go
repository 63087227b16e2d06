package supervisor

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// pinnedItem returns a claim that is valid in every way, with one capability.
func pinnedItem() *WorkItem {
	claimedAt := time.Date(2026, time.June, 1, 12, 0, 0, 0, time.UTC)
	return &WorkItem{
		Instance: Instance{
			ID: "inst-1", RunID: "0197a3c2-5b7e-7c11-9d2a-3f4e5a6b7c8d", TenantID: "t1", SubjectID: "s1", SpecID: "spec",
			DefinitionID: "def", WorkflowRevision: 1, WorkflowRevisionDigest: "wd",
			ExecutionProfileID: "p", ExecutionProfileRevision: 1, ExecutionProfileDigest: "pd", KernelABIVersion: "1",
			CapabilityPins: []CapabilityPin{{ID: "mail", ContractVersion: "v1", ContentDigest: "md"}},
			Config:         json.RawMessage(`{"n":1}`),
		},
		ScheduledAt: claimedAt.Add(-time.Second), CreatedAt: claimedAt.Add(-time.Minute), ClaimedAt: claimedAt,
		State:         json.RawMessage(`{"n":2}`),
		StateVersion:  3,
		ControlEpochs: ControlEpochs{Tenant: 4, Instance: 5, Resource: 6},
		LeaseVersion:  7,
	}
}

// blanks are texts of nothing but white space, of several scripts.
var blanks = []string{"", " ", "\t\r\n\v\f", "\u0085", "\u00a0", "\u1680", "\u2003", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000", " \u00a0\u3000"}

func TestIsBlank(t *testing.T) {
	for _, text := range blanks {
		require.True(t, isBlank(text), "%q", text)
	}
	for _, text := range []string{"a", " a ", "\u3000x", "\u200b", "\x00", "\xff"} {
		require.False(t, isBlank(text), "%q", text)
	}
}

func TestValidatePins(t *testing.T) {
	tests := []struct {
		name   string
		change func(*WorkItem)
		want   string
	}{
		{"as claimed", func(*WorkItem) {}, ""},
		{"workflow revision 0", func(w *WorkItem) { w.WorkflowRevision = 0 }, "WorkflowRevision is 0"},
		{"workflow revision 1", func(w *WorkItem) { w.WorkflowRevision = 1 }, ""},
		{"largest workflow revision", func(w *WorkItem) { w.WorkflowRevision = math.MaxUint64 }, ""},
		{"profile revision 0", func(w *WorkItem) { w.ExecutionProfileRevision = 0 }, "ExecutionProfileRevision is 0"},
		{"state version 0", func(w *WorkItem) { w.StateVersion = 0 }, ""},
		{"state version -1", func(w *WorkItem) { w.StateVersion = -1 }, "StateVersion is -1"},
		{"tenant epoch 0", func(w *WorkItem) { w.ControlEpochs.Tenant = 0 }, ""},
		{"tenant epoch -1", func(w *WorkItem) { w.ControlEpochs.Tenant = -1 }, "ControlEpochs.Tenant is -1"},
		{"instance epoch 0", func(w *WorkItem) { w.ControlEpochs.Instance = 0 }, ""},
		{"instance epoch -1", func(w *WorkItem) { w.ControlEpochs.Instance = -1 }, "ControlEpochs.Instance is -1"},
		{"least instance epoch", func(w *WorkItem) { w.ControlEpochs.Instance = math.MinInt64 }, "ControlEpochs.Instance is -9223372036854775808"},
		{"lease version 1", func(w *WorkItem) { w.LeaseVersion = 1 }, ""},
		{"lease version 0", func(w *WorkItem) { w.LeaseVersion = 0 }, "LeaseVersion is 0"},
		{"lease version -1", func(w *WorkItem) { w.LeaseVersion = -1 }, "LeaseVersion is -1"},
		{"run id in capitals", func(w *WorkItem) { w.RunID = strings.ToUpper(w.RunID) }, ""},
		{"nil run id", func(w *WorkItem) { w.RunID = uuid.Nil.String() }, ""},
		{"empty run id", func(w *WorkItem) { w.RunID = "" }, `RunID ""`},
		{"braced run id", func(w *WorkItem) { w.RunID = "{" + w.RunID + "}" }, "36-character form"},
		{"URN run id", func(w *WorkItem) { w.RunID = "urn:uuid:" + w.RunID }, "36-character form"},
		{"run id without dashes", func(w *WorkItem) { w.RunID = strings.ReplaceAll(w.RunID, "-", "") }, "36-character form"},
		{"run id with space", func(w *WorkItem) { w.RunID += " " }, "36-character form"},
		{"run id of 36 other characters", func(w *WorkItem) { w.RunID = strings.Repeat("z", 36) }, "RunID"},
		{"run id with a wrong digit", func(w *WorkItem) { w.RunID = w.RunID[:35] + "g" }, "RunID"},
		{"run id with a moved dash", func(w *WorkItem) { w.RunID = strings.Replace(w.RunID, "2-5", "-25", 1) }, "RunID"},
		{"long run id", func(w *WorkItem) { w.RunID = strings.Repeat("a", 1<<20) }, "36-character form"},
		// What other types prove is no pin.
		{"blank instance id", func(w *WorkItem) { w.ID = "" }, ""},
		{"negative resource epoch", func(w *WorkItem) { w.ControlEpochs.Resource = -1 }, ""},
	}
	for _, blank := range blanks {
		for field, set := range map[string]func(*WorkItem){
			"DefinitionID":           func(w *WorkItem) { w.DefinitionID = blank },
			"WorkflowRevisionDigest": func(w *WorkItem) { w.WorkflowRevisionDigest = blank },
			"ExecutionProfileID":     func(w *WorkItem) { w.ExecutionProfileID = blank },
			"ExecutionProfileDigest": func(w *WorkItem) { w.ExecutionProfileDigest = blank },
			"KernelABIVersion":       func(w *WorkItem) { w.KernelABIVersion = blank },
		} {
			tests = append(tests, struct {
				name   string
				change func(*WorkItem)
				want   string
			}{fmt.Sprintf("%s %q", field, blank), set, field + " is blank"})
		}
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			item := pinnedItem()
			test.change(item)
			err := item.ValidatePins()
			if test.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, test.want)
			require.Less(t, len(err.Error()), 300, "messages do not repeat long values")
		})
	}
}

func TestIsConverging(t *testing.T) {
	timer := func(payload string) []Wakeup {
		return []Wakeup{{ID: "w", Kind: WakeupKindTimer, Payload: json.RawMessage(payload)}}
	}
	tests := []struct {
		name    string
		cancel  bool
		wakeups []Wakeup
		want    bool
	}{
		{"nothing", false, nil, false},
		{"cancellation", true, nil, true},
		{"cancellation and a delivery", true, []Wakeup{{ID: "w", Kind: "mail"}}, true},
		{"terminal action", false, timer(`{"kind":"terminal_action"}`), true},
		{"terminal action with more", false, timer(` { "reason" : "x" , "kind" : "terminal_action" , "n" : [1] } `), true},
		{"terminal action in escapes", false, timer(`{"\u006bind":"terminal\u005faction"}`), true},
		{"second wakeup", false, []Wakeup{{ID: "a", Kind: "mail"}, {ID: "b", Kind: WakeupKindTimer, Payload: json.RawMessage(`{"kind":"terminal_action"}`)}}, true},
		{"last of equal keys", false, timer(`{"kind":"other","kind":"terminal_action"}`), true},
		{"first of equal keys", false, timer(`{"kind":"terminal_action","kind":"other"}`), false},
		{"other kind of wakeup", false, []Wakeup{{ID: "w", Kind: "mail", Payload: json.RawMessage(`{"kind":"terminal_action"}`)}}, false},
		{"wakeup kind in capitals", false, []Wakeup{{ID: "w", Kind: "Timer", Payload: json.RawMessage(`{"kind":"terminal_action"}`)}}, false},
		{"other kind of timer", false, timer(`{"kind":"tick"}`), false},
		{"longer kind", false, timer(`{"kind":"terminal_action "}`), false},
		{"key in capitals", false, timer(`{"Kind":"terminal_action"}`), false},
		{"key further in", false, timer(`{"timer":{"kind":"terminal_action"}}`), false},
		{"no kind", false, timer(`{}`), false},
		{"kind null", false, timer(`{"kind":null}`), false},
		{"kind is a number", false, timer(`{"kind":1}`), false},
		{"kind is an array", false, timer(`{"kind":["terminal_action"]}`), false},
		{"kind is an object", false, timer(`{"kind":{"terminal_action":true}}`), false},
		{"array", false, timer(`["kind","terminal_action"]`), false},
		{"array of objects", false, timer(`[{"kind":"terminal_action"}]`), false},
		{"string", false, timer(`"terminal_action"`), false},
		{"string of JSON", false, timer(`"{\"kind\":\"terminal_action\"}"`), false},
		{"number", false, timer(`1`), false},
		{"boolean", false, timer(`true`), false},
		{"null", false, timer(`null`), false},
		{"nil", false, []Wakeup{{ID: "w", Kind: WakeupKindTimer}}, false},
		{"not JSON", false, timer(`{"kind":"terminal_action"`), false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			item := &WorkItem{CancelRequested: test.cancel, Wakeups: test.wakeups}
			require.Equal(t, test.want, item.IsConverging())
		})
	}
}

func FuzzWakeupTerminalAction(f *testing.F) {
	for _, seed := range []string{
		`{"kind":"terminal_action"}`, `{"kind":"terminal_action","kind":1}`, `null`, `[]`, `{"kind":null}`, `{`, "\xff", `{"KIND":"terminal_action"}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		wakeup := Wakeup{ID: "w", Kind: WakeupKindTimer, Payload: payload}
		var value any
		want := false
		if json.Unmarshal(payload, &value) == nil {
			object, _ := value.(map[string]any)
			want = object["kind"] == "terminal_action"
		}
		require.Equal(t, want, wakeup.isTerminalAction())
		wakeup.Kind = "delivery"
		require.False(t, wakeup.isTerminalAction())
	})
}

func TestNewInstance(t *testing.T) {
	instance, err := NewInstance("orders", 3, map[string]any{"n": 1, "html": "<&>"})
	require.NoError(t, err)
	require.NoError(t, uuid.Validate(instance.RunID))
	require.Len(t, instance.RunID, 36)
	require.Equal(t, Instance{
		ID: instance.RunID, RunID: instance.RunID, TenantID: "default", SubjectID: "system", SpecID: "orders",
		DefinitionID: "orders", WorkflowRevision: 3, WorkflowRevisionDigest: "code:orders@3",
		ExecutionProfileID: "default", ExecutionProfileRevision: 1, ExecutionProfileDigest: "profile:default@1",
		KernelABIVersion: "1", Config: json.RawMessage(`{"html":"<&>","n":1}`),
	}, instance)

	other, err := NewInstance("orders", 3, nil)
	require.NoError(t, err)
	require.NotEqual(t, instance.RunID, other.RunID)
	require.Equal(t, "null", string(other.Config))
}

func TestNewInstanceRefuses(t *testing.T) {
	tests := []struct {
		name     string
		specID   string
		revision uint64
		config   any
		want     string
	}{
		{"blank spec", "\u3000", 1, nil, "SpecID is blank"},
		{"long spec", strings.Repeat("s", MaxIDBytes+1), 1, nil, "SpecID has 513 bytes"},
		{"revision 0", "spec", 0, nil, "WorkflowRevision is 0"},
		{"config that does not encode", "spec", 1, make(chan int), "config: "},
		{"config that is not JSON", "spec", 1, json.RawMessage(`{`), "Config is not valid JSON"},
		{"empty raw config", "spec", 1, json.RawMessage{}, "config: empty, not valid JSON"},
		{"config with NUL", "spec", 1, "a\x00b", "Config escapes a NUL character"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			instance, err := NewInstance(test.specID, test.revision, test.config)
			require.ErrorContains(t, err, test.want)
			require.Zero(t, instance)
		})
	}
}

// Raw JSON comes back byte for byte and is a copy.
func TestNewInstanceKeepsRawConfig(t *testing.T) {
	raw := json.RawMessage(` {"id": 9007199254740993, "f": 1.0, "e": 1e400, "h": "<&>"} `)
	want := string(raw)
	instance, err := NewInstance("spec", 1, raw)
	require.NoError(t, err)
	raw[1] = 'X'
	require.Equal(t, want, string(instance.Config))
}

func TestInstanceValidate(t *testing.T) {
	longest, tooLong := strings.Repeat("é", MaxIDBytes/2), strings.Repeat("é", MaxIDBytes/2)+"x"
	tests := []struct {
		name   string
		change func(*Instance)
		want   string
	}{
		{"valid", func(*Instance) {}, ""},
		{"longest ids", func(i *Instance) {
			i.ID, i.TenantID, i.SpecID, i.SubjectID, i.DefinitionID, i.ExecutionProfileID = longest, longest, longest, longest, longest, longest
		}, ""},
		{"long id", func(i *Instance) { i.ID = tooLong }, "ID has 513 bytes, more than 512"},
		{"long tenant", func(i *Instance) { i.TenantID = tooLong }, "TenantID has 513 bytes"},
		{"long spec", func(i *Instance) { i.SpecID = tooLong }, "SpecID has 513 bytes"},
		{"long subject", func(i *Instance) { i.SubjectID = tooLong }, "SubjectID has 513 bytes"},
		{"long definition", func(i *Instance) { i.DefinitionID = tooLong }, "DefinitionID has 513 bytes"},
		{"long profile", func(i *Instance) { i.ExecutionProfileID = tooLong }, "ExecutionProfileID has 513 bytes"},
		{"blank id", func(i *Instance) { i.ID = "\u00a0" }, "ID is blank"},
		{"blank tenant", func(i *Instance) { i.TenantID = "" }, "TenantID is blank"},
		{"blank spec", func(i *Instance) { i.SpecID = "\u3000" }, "SpecID is blank"},
		{"no subject", func(i *Instance) { i.SubjectID = "" }, ""},
		{"blank definition", func(i *Instance) { i.DefinitionID = " " }, "DefinitionID is blank"},
		{"NUL in id", func(i *Instance) { i.ID = "a\x00" }, "ID holds a NUL character"},
		{"id is not UTF-8", func(i *Instance) { i.ID = "a\xff" }, "ID is not valid UTF-8"},
		{"surrogate in id", func(i *Instance) { i.ID = "\xed\xa0\x80" }, "ID is not valid UTF-8"},
		{"NUL in subject", func(i *Instance) { i.SubjectID = "\x00" }, "SubjectID holds a NUL character"},
		{"NUL in digest", func(i *Instance) { i.WorkflowRevisionDigest = "a\x00" }, "WorkflowRevisionDigest holds a NUL character"},
		{"NUL in profile digest", func(i *Instance) { i.ExecutionProfileDigest = "a\x00" }, "ExecutionProfileDigest holds a NUL character"},
		{"NUL in ABI version", func(i *Instance) { i.KernelABIVersion = "1\x00" }, "KernelABIVersion holds a NUL character"},
		{"run id", func(i *Instance) { i.RunID = "run-1" }, `RunID "run-1" is not a UUID`},
		{"nil config", func(i *Instance) { i.Config = nil }, ""},
		{"config is not JSON", func(i *Instance) { i.Config = json.RawMessage(`{`) }, "Config is not valid JSON"},
		{"config escapes NUL", func(i *Instance) { i.Config = json.RawMessage(`"\u0000"`) }, "Config escapes a NUL character"},
		{"no pins", func(i *Instance) { i.CapabilityPins = nil }, ""},
		{"blank pin", func(i *Instance) {
			i.CapabilityPins = append(i.CapabilityPins, CapabilityPin{ID: "x", ContractVersion: " ", ContentDigest: "d"})
		}, "CapabilityPins[1].ContractVersion is blank"},
		{"pin without id", func(i *Instance) { i.CapabilityPins[0].ID = "" }, "CapabilityPins[0].ID is blank"},
		{"pin without digest", func(i *Instance) { i.CapabilityPins[0].ContentDigest = "" }, "CapabilityPins[0].ContentDigest is blank"},
		{"long pin", func(i *Instance) { i.CapabilityPins[0].ID = tooLong }, "CapabilityPins[0].ID has 513 bytes"},
		{"pin is not UTF-8", func(i *Instance) { i.CapabilityPins[0].ContentDigest = "\xff" }, "CapabilityPins[0].ContentDigest is not valid UTF-8"},
		{"lifecycle", func(i *Instance) { i.Lifecycle.OnExpiry = "explode" }, `Lifecycle.OnExpiry "explode" is not known`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			instance := pinnedItem().Instance
			test.change(&instance)
			err := instance.Validate()
			if test.want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, test.want)
				require.NotContains(t, err.Error(), "\n", "one fault is reported once")
			}
		})
	}
	t.Run("everything at once", func(t *testing.T) {
		instance := Instance{SubjectID: "\x00", Config: json.RawMessage(`{`), Lifecycle: LifecyclePolicy{ProgressTimeout: -1}}
		err := instance.Validate()
		for _, want := range []string{"DefinitionID", "ID is blank", "TenantID", "SpecID", "SubjectID", "Config", "Lifecycle.ProgressTimeout"} {
			require.ErrorContains(t, err, want)
		}
	})
}

func TestWakeupValidate(t *testing.T) {
	fits := json.RawMessage(`"` + strings.Repeat("x", MaxClaimWakeupBytes-2) + `"`)
	tests := []struct {
		name   string
		wakeup Wakeup
		want   string
	}{
		{"least", Wakeup{ID: "w", Kind: "k"}, ""},
		{"full", Wakeup{ID: strings.Repeat("w", MaxIDBytes), Kind: "k", BranchID: strings.Repeat("b", MaxIDBytes), Payload: json.RawMessage(`[1.0]`)}, ""},
		{"timer", Wakeup{ID: "w", Kind: WakeupKindTimer}, ""},
		{"blank id", Wakeup{ID: " ", Kind: "k"}, "ID is blank"},
		{"long id", Wakeup{ID: strings.Repeat("w", MaxIDBytes+1), Kind: "k"}, "ID has 513 bytes"},
		{"NUL in id", Wakeup{ID: "w\x00", Kind: "k"}, "ID holds a NUL character"},
		{"id of a lifecycle timer", Wakeup{ID: "lifecycle:expired", Kind: "k"}, `begins with "lifecycle:"`},
		{"id like a lifecycle timer's", Wakeup{ID: "lifecycles", Kind: "k"}, ""},
		{"blank kind", Wakeup{ID: "w", Kind: "\u2003"}, "Kind is blank"},
		{"kind is not UTF-8", Wakeup{ID: "w", Kind: "\xff"}, "Kind is not valid UTF-8"},
		{"NUL in branch", Wakeup{ID: "w", Kind: "k", BranchID: "\x00"}, "BranchID holds a NUL character"},
		{"long branch", Wakeup{ID: "w", Kind: "k", BranchID: strings.Repeat("b", MaxIDBytes+1)}, "BranchID has 513 bytes"},
		{"payload is not JSON", Wakeup{ID: "w", Kind: "k", Payload: json.RawMessage(`x`)}, "Payload is not valid JSON"},
		{"payload with a lone surrogate", Wakeup{ID: "w", Kind: "k", Payload: json.RawMessage(`"\ud800"`)}, "Payload escapes a lone surrogate"},
		{"largest payload", Wakeup{ID: "w", Kind: "k", Payload: fits}, ""},
		{"payload that no claim can hold", Wakeup{ID: "w", Kind: "k", Payload: append(slices.Clip(fits), ' ')}, "Payload has 4194305 bytes"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			err := test.wakeup.Validate()
			if test.want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, test.want)
			}
		})
	}
}

func TestWakeupDigest(t *testing.T) {
	base := Wakeup{ID: "w", Kind: "k", BranchID: "b", Payload: json.RawMessage(`{"n":1}`)}
	same := base
	same.ID = "other"
	require.Equal(t, base.Digest(), same.Digest(), "the id is the key, not the content")
	require.Regexp(t, `^sha256:[0-9a-f]{64}$`, base.Digest())

	seen := map[string]string{base.Digest(): "base"}
	for name, other := range map[string]Wakeup{
		"kind":             {Kind: "k2", BranchID: "b", Payload: base.Payload},
		"branch":           {Kind: "k", BranchID: "b2", Payload: base.Payload},
		"moved characters": {Kind: "kb", BranchID: "", Payload: base.Payload},
		"payload":          {Kind: "k", BranchID: "b", Payload: json.RawMessage(`{"n":2}`)},
		"no payload":       {Kind: "k", BranchID: "b"},
	} {
		require.Empty(t, seen[other.Digest()], name)
		seen[other.Digest()] = name
	}
	null := Wakeup{Kind: "k", BranchID: "b", Payload: json.RawMessage(`null`)}
	require.Equal(t, "no payload", seen[null.Digest()], "a nil payload means null")
}

func TestWorkItemClone(t *testing.T) {
	item := pinnedItem()
	item.Lifecycle = RunOnce()
	item.Wakeups = []Wakeup{{ID: "a", Kind: "k", Payload: json.RawMessage(`[1]`)}, {ID: "b", Kind: "k"}}
	clone := item.Clone()
	require.Equal(t, *item, clone)

	clone.Config[1], clone.State[1] = 'X', 'X'
	clone.CapabilityPins[0].ID = "X"
	clone.Wakeups[0].ID = "X"
	clone.Wakeups[0].Payload[1] = 'X'
	// Growing one value must not reach its neighbour in memory.
	_ = append(clone.Config, "XXXX"...)
	require.Equal(t, `{"n":1}`, string(item.Config))
	require.Equal(t, `{"n":2}`, string(item.State))
	require.Equal(t, "mail", item.CapabilityPins[0].ID)
	require.Equal(t, "a", item.Wakeups[0].ID)
	require.Equal(t, `[1]`, string(item.Wakeups[0].Payload))
	require.Equal(t, `{Xn":2}`, string(clone.State))

	empty := (&WorkItem{}).Clone()
	require.Equal(t, WorkItem{}, empty, "nil stays nil")
}
