package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// stepRevision is a valid published revision of a step program, with its digest.
func stepRevision(t testing.TB, specID, spec string) *Revision {
	t.Helper()
	revision := &Revision{
		DefinitionID:     "definition of " + specID,
		Revision:         1,
		SpecID:           specID,
		Spec:             json.RawMessage(spec),
		KernelABIVersion: DefaultKernelABIVersion,
	}
	require.NoError(t, setDigest(revision))
	return revision
}

// claimOf is a claim of an instance that is pinned to the revision.
func claimOf(t testing.TB, revision *Revision) *WorkItem {
	t.Helper()
	instance, err := NewInstance(revision.SpecID, revision.Revision, nil)
	require.NoError(t, err)
	instance.DefinitionID = revision.DefinitionID
	instance.WorkflowRevisionDigest = revision.ContentDigest
	instance.KernelABIVersion = revision.KernelABIVersion
	instance.CapabilityPins = slices.Clone(revision.Capabilities)
	return &WorkItem{Instance: instance, State: instance.Config, LeaseVersion: 1}
}

// revisionQueue has one published revision and counts how often it is asked.
type revisionQueue struct {
	WorkQueue
	revision *Revision
	err      error
	loads    atomic.Int64
}

func (q *revisionQueue) LoadRevision(context.Context, *WorkItem) (*Revision, error) {
	q.loads.Add(1)
	if q.revision == nil {
		return nil, q.err
	}
	return q.revision.clone(), q.err
}

func TestACompiledRevisionIsExecuted(t *testing.T) {
	registry, _ := newStepRegistry(t)
	revision := stepRevision(t, "sum", `{"start": 2, "steps": [{"op": "add", "by": 3}, {"op": "multiply", "by": 4}, {"op": "send", "capability": "mail"}]}`)
	revision.Capabilities = []CapabilityPin{{ID: "mail", ContractVersion: "1", ContentDigest: "m1"}}
	revision.ExpressionVersions = map[string]string{"add": "1"}
	require.NoError(t, setDigest(revision))
	item := claimOf(t, revision)
	queue := &revisionQueue{revision: revision}

	var values []int64
	for {
		driver, err := registry.resolve(t.Context(), queue, item)
		require.NoError(t, err)
		command, err := driver.Evaluate(t.Context(), 0, item)
		require.NoError(t, err)
		require.NoError(t, command.ValidateFor(item))
		var state stepState
		require.NoError(t, json.Unmarshal(command.NextState, &state))
		values = append(values, state.Value)
		item.State = command.NextState
		item.StateVersion++
		if command.Disposition == (Complete{}) {
			require.Len(t, command.ActionIntents, 1)
			require.Equal(t, "20", string(command.ActionIntents[0].Input))
			break
		}
	}
	require.Equal(t, []int64{5, 20, 20}, values)
	require.EqualValues(t, 1, queue.loads.Load())
}

func TestTheCompilerRefusesWhatItDoesNotKnow(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*Revision)
		want   string
	}{
		"operation":  {func(r *Revision) { r.Spec = json.RawMessage(`{"steps": [{"op": "divide"}]}`) }, `unknown operation "divide"`},
		"capability": {func(r *Revision) { r.Spec = json.RawMessage(`{"steps": [{"op": "send", "capability": "fax"}]}`) }, `"fax", which is not pinned`},
		"expression": {func(r *Revision) { r.ExpressionVersions = map[string]string{"add": "2"} }, `expression "add" has version "2"`},
		"shape":      {func(r *Revision) { r.Spec = json.RawMessage(`[]`) }, "spec: json"},
	} {
		t.Run(name, func(t *testing.T) {
			registry, _ := newStepRegistry(t)
			revision := stepRevision(t, "spec", addSpec)
			test.change(revision)
			require.NoError(t, setDigest(revision))
			_, err := registry.resolve(t.Context(), &revisionQueue{revision: revision}, claimOf(t, revision))
			require.ErrorContains(t, err, test.want)
			require.NotErrorIs(t, err, errNoDriver)
		})
	}
}

func TestARegisteredDriverIsAskedForTheRevision(t *testing.T) {
	registry, compiler := newStepRegistry(t)
	revision := stepRevision(t, "owned", addSpec)
	item := claimOf(t, revision)
	supported := false
	driver := owning("owner", "owned")
	driver.supports = func(asked *WorkItem) bool { return supported && asked == item }
	require.NoError(t, registry.Register(driver))
	queue := &revisionQueue{revision: revision}

	_, err := registry.resolve(t.Context(), queue, item)
	require.ErrorIs(t, err, errNoDriver)
	require.ErrorContains(t, err, `"owner" does not support the claimed revision 1 with digest "sha256:`)
	supported = true
	resolved, err := registry.resolve(t.Context(), queue, item)
	require.NoError(t, err)
	require.Same(t, driver, resolved)
	require.Zero(t, queue.loads.Load())
	require.Zero(t, compiler.compiles.Load())
}

func TestResolveWithoutADriver(t *testing.T) {
	revision := stepRevision(t, "spec", addSpec)
	queue := &revisionQueue{revision: revision}
	for _, registry := range []*DriverRegistry[int]{new(DriverRegistry[int]), NewDriverRegistry[int]()} {
		_, err := registry.resolve(t.Context(), queue, claimOf(t, revision))
		require.ErrorIs(t, err, errNoDriver)
		require.ErrorContains(t, err, `"spec"`)
		_, err = registry.ResolveRevision(t.Context(), claimOf(t, revision), revision)
		require.ErrorIs(t, err, errNoDriver)
	}
	require.Zero(t, queue.loads.Load())
}

func TestResolveWithoutARevision(t *testing.T) {
	registry, _ := newStepRegistry(t)
	item := claimOf(t, stepRevision(t, "spec", addSpec))
	_, err := registry.resolve(t.Context(), &revisionQueue{}, item)
	require.ErrorIs(t, err, ErrRevisionUnavailable)
	require.ErrorContains(t, err, `definition "definition of spec"`)

	_, err = FailClosed{}.LoadRevision(t.Context(), item)
	_, err = registry.resolve(t.Context(), &revisionQueue{err: err}, item)
	require.ErrorIs(t, err, ErrRevisionUnavailable)

	_, err = registry.resolve(t.Context(), &revisionQueue{err: fmt.Errorf("store: %w", ErrUnavailable)}, item)
	require.ErrorIs(t, err, ErrUnavailable)

	_, err = registry.ResolveRevision(t.Context(), item, nil)
	require.Error(t, err)
	_, err = registry.ResolveRevision(t.Context(), nil, opaqueRevision())
	require.Error(t, err)
}

func TestAVerifiedDigestNeedsNoLoad(t *testing.T) {
	registry, compiler := newStepRegistry(t)
	revision := stepRevision(t, "spec", addSpec)
	queue := &revisionQueue{revision: revision}
	item := claimOf(t, revision)
	for range 5 {
		_, err := registry.resolve(t.Context(), queue, item)
		require.NoError(t, err)
	}
	require.EqualValues(t, 1, queue.loads.Load())

	other := *item
	other.TenantID = "other"
	_, err := registry.resolve(t.Context(), queue, &other)
	require.NoError(t, err)
	require.EqualValues(t, 2, queue.loads.Load())
	require.EqualValues(t, 2, compiler.compiles.Load())
}

func TestAnOpaqueDigestIsLoadedEveryTime(t *testing.T) {
	registry, compiler := newStepRegistry(t)
	revision := opaqueRevision()
	queue := &revisionQueue{revision: revision}
	item := claimOf(t, revision)
	for range 5 {
		_, err := registry.resolve(t.Context(), queue, item)
		require.NoError(t, err)
	}
	require.EqualValues(t, 5, queue.loads.Load())
	require.EqualValues(t, 1, compiler.compiles.Load())

	queue.revision = opaqueRevision()
	queue.revision.DependencySetDigest = "other"
	_, err := registry.resolve(t.Context(), queue, item)
	require.ErrorIs(t, err, errOtherContent)
}

// A hit is a hit for exactly the claimed number, ABI version and pins.
func TestAHitIsComparedWithTheClaim(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*WorkItem)
		want   string
	}{
		"number":      {func(w *WorkItem) { w.WorkflowRevision = 2 }, "Revision is 1, claimed was 2"},
		"ABI":         {func(w *WorkItem) { w.KernelABIVersion = "kernel-abi-1" }, `KernelABIVersion is "1", claimed was "kernel-abi-1"`},
		"pin":         {func(w *WorkItem) { w.CapabilityPins[0].ContentDigest = "m2" }, "Capabilities are [mail@1#m1], claimed were [mail@1#m2]"},
		"no pins":     {func(w *WorkItem) { w.CapabilityPins = nil }, "claimed were []"},
		"another pin": {func(w *WorkItem) { w.CapabilityPins = append(w.CapabilityPins, CapabilityPin{"a", "1", "1"}) }, "claimed were [mail@1#m1, a@1#1]"},
	} {
		t.Run(name, func(t *testing.T) {
			registry, compiler := newStepRegistry(t)
			revision := opaqueRevision()
			require.NoError(t, setDigest(revision))
			queue := &revisionQueue{revision: revision}
			item := claimOf(t, revision)
			first, err := registry.resolve(t.Context(), queue, item)
			require.NoError(t, err)

			changed := item.Clone()
			test.change(&changed)
			_, err = registry.resolve(t.Context(), queue, &changed)
			require.ErrorContains(t, err, test.want)
			_, err = registry.ResolveRevision(t.Context(), &changed, revision)
			require.ErrorContains(t, err, test.want)

			again, err := registry.resolve(t.Context(), queue, item)
			require.NoError(t, err)
			require.Same(t, first, again)
			require.EqualValues(t, 1, compiler.compiles.Load())
		})
	}
}

// A rollback publishes earlier content under a new number.
func TestEqualContentUnderTwoNumbersSharesADriver(t *testing.T) {
	registry, compiler := newStepRegistry(t)
	first := stepRevision(t, "spec", addSpec)
	third := first.clone()
	third.Revision = 3
	for _, revision := range []*Revision{first, third, third, first} {
		_, err := registry.resolve(t.Context(), &revisionQueue{revision: revision}, claimOf(t, revision))
		require.NoError(t, err)
	}
	require.EqualValues(t, 1, compiler.compiles.Load())
	queue := &revisionQueue{revision: first}
	_, err := registry.resolve(t.Context(), queue, claimOf(t, first))
	require.NoError(t, err)
	require.Zero(t, queue.loads.Load(), "the number used last is a hit")
}

// A store may write what it holds anew: the notation loaded last is compared
// as text.
func TestAHitInAnotherNotationIsCheapFromThenOn(t *testing.T) {
	registry, _ := newStepRegistry(t)
	revision := opaqueRevision()
	item := claimOf(t, revision)
	_, err := registry.ResolveRevision(t.Context(), item, revision)
	require.NoError(t, err)
	revision.Spec = json.RawMessage(`{"steps":[{"by":3,"op":"add"}],"start":2}`)
	_, err = registry.ResolveRevision(t.Context(), item, revision)
	require.NoError(t, err)
	require.Zero(t, testing.AllocsPerRun(10, func() { _, _ = registry.ResolveRevision(t.Context(), item, revision) }))
}

func TestPinsAreComparedAsSets(t *testing.T) {
	registry, compiler := newStepRegistry(t)
	revision := opaqueRevision()
	revision.Capabilities = append(revision.Capabilities, CapabilityPin{"chat", "1", "c1"}, CapabilityPin{"fax", "1", "f1"})
	require.NoError(t, setDigest(revision))
	queue := &revisionQueue{revision: revision}
	item := claimOf(t, revision)
	_, err := registry.resolve(t.Context(), queue, item)
	require.NoError(t, err)
	slices.Reverse(item.CapabilityPins)
	item.CapabilityPins = append(item.CapabilityPins, item.CapabilityPins[0])
	_, err = registry.resolve(t.Context(), queue, item)
	require.NoError(t, err)
	require.EqualValues(t, 1, queue.loads.Load())
	require.EqualValues(t, 1, compiler.compiles.Load())
}

func TestResolveRevisionChecksRevisionAndClaim(t *testing.T) {
	tests := map[string]struct {
		revision func(*Revision)
		claim    func(*WorkItem)
		want     string
		noDriver bool
	}{
		"invalid revision":     {revision: func(r *Revision) { r.Spec = nil }, want: "Spec is nil"},
		"wrong digest":         {revision: func(r *Revision) { r.Spec = json.RawMessage(`{}`) }, want: "ContentDigest is"},
		"other definition":     {revision: func(r *Revision) { r.DefinitionID = "other" }, want: `DefinitionID is "other", claimed was "definition of spec"`},
		"other number":         {revision: func(r *Revision) { r.Revision = 9 }, want: "Revision is 9, claimed was 1"},
		"other digest":         {revision: func(r *Revision) { r.ContentDigest = "mine" }, want: `ContentDigest is "mine", claimed was "sha256:`},
		"other spec id":        {claim: func(w *WorkItem) { w.SpecID = "other" }, want: `SpecID is "spec", claimed was "other"`},
		"other ABI":            {claim: func(w *WorkItem) { w.KernelABIVersion = "2" }, want: `KernelABIVersion is "1", claimed was "2"`},
		"invalid claim":        {claim: func(w *WorkItem) { w.RunID = "run" }, want: `RunID "run"`},
		"claim without digest": {claim: func(w *WorkItem) { w.WorkflowRevisionDigest = "" }, want: "WorkflowRevisionDigest is blank"},
		"revision of another spec": {revision: func(r *Revision) { r.SpecID, r.ContentDigest = "other", "mine" },
			claim: func(w *WorkItem) { w.WorkflowRevisionDigest = "mine" }, want: `SpecID is "other", claimed was "spec"`},
		"revision with another ABI": {revision: func(r *Revision) { r.KernelABIVersion, r.ContentDigest = "kernel-abi-1", "mine" },
			claim: func(w *WorkItem) { w.WorkflowRevisionDigest = "mine" }, want: `KernelABIVersion is "kernel-abi-1", claimed was "1"`},
		"revision with pins": {revision: func(r *Revision) { r.Capabilities, r.ContentDigest = []CapabilityPin{{"mail", "1", "m1"}}, "mine" },
			claim: func(w *WorkItem) { w.WorkflowRevisionDigest = "mine" }, want: "Capabilities are [mail@1#m1], claimed were []"},
		"unknown ABI": {
			revision: func(r *Revision) { r.KernelABIVersion, r.ContentDigest = "2", "mine" },
			claim:    func(w *WorkItem) { w.KernelABIVersion, w.WorkflowRevisionDigest = "2", "mine" },
			want:     `ABI version "2"`, noDriver: true,
		},
	}
	for name, test := range tests {
		for _, compiled := range []int64{0, 1} {
			t.Run(fmt.Sprintf("%s/compiled=%d", name, compiled), func(t *testing.T) {
				registry, compiler := newStepRegistry(t)
				revision := stepRevision(t, "spec", addSpec)
				item := claimOf(t, revision)
				if compiled > 0 {
					_, err := registry.ResolveRevision(t.Context(), item, revision)
					require.NoError(t, err)
				}
				if test.revision != nil {
					test.revision(revision)
				}
				if test.claim != nil {
					test.claim(item)
				}
				_, err := registry.ResolveRevision(t.Context(), item, revision)
				require.ErrorContains(t, err, test.want)
				require.Equal(t, test.noDriver, errors.Is(err, errNoDriver))
				require.Equal(t, compiled, compiler.compiles.Load())
			})
		}
	}
}

// What a queue loads for a claim is compared in full, also where the claim is a hit.
func TestAHitIsComparedWithTheLoadedRevision(t *testing.T) {
	for name, change := range map[string]func(*Revision){
		"definition":   func(r *Revision) { r.DefinitionID = "other" },
		"number":       func(r *Revision) { r.Revision = 2 },
		"spec id":      func(r *Revision) { r.SpecID = "other" },
		"spec":         func(r *Revision) { r.Spec = json.RawMessage(`{"steps": [{"op": "add"}]}`) },
		"digest":       func(r *Revision) { r.ContentDigest = "other" },
		"ABI":          func(r *Revision) { r.KernelABIVersion = "kernel-abi-1" },
		"pins":         func(r *Revision) { r.Capabilities[0].ContentDigest = "m2" },
		"expressions":  func(r *Revision) { r.ExpressionVersions["new"] = "1" },
		"dependencies": func(r *Revision) { r.DependencySetDigest = "other" },
	} {
		t.Run(name, func(t *testing.T) {
			registry, compiler := newStepRegistry(t)
			item := claimOf(t, opaqueRevision())
			queue := &revisionQueue{revision: opaqueRevision()}
			_, err := registry.resolve(t.Context(), queue, item)
			require.NoError(t, err)
			change(queue.revision)
			_, err = registry.resolve(t.Context(), queue, item)
			require.Error(t, err)
			require.EqualValues(t, 1, compiler.compiles.Load())
		})
	}
}

func TestBothNamesOfTheABI(t *testing.T) {
	registry, _ := newStepRegistry(t)
	for _, abi := range []string{"1", "kernel-abi-1"} {
		revision := stepRevision(t, "spec", addSpec)
		revision.KernelABIVersion = abi
		require.NoError(t, setDigest(revision))
		_, err := registry.ResolveRevision(t.Context(), claimOf(t, revision), revision)
		require.NoError(t, err)
	}
}

func TestPrewarm(t *testing.T) {
	registry, compiler := newStepRegistry(t)
	require.NoError(t, registry.Register(owning("owner", "owned")))
	spec := json.RawMessage(addSpec)
	require.NoError(t, registry.Prewarm(t.Context(), "shipped", spec))
	require.NoError(t, registry.Prewarm(t.Context(), "shipped", spec), "again")
	require.NoError(t, registry.Prewarm(t.Context(), "owned", spec))
	require.EqualValues(t, 2, compiler.compiles.Load())
	require.Equal(t, Revision{SpecID: "shipped", Spec: json.RawMessage(addSpec), KernelABIVersion: "1"}, compiler.seen[0])
	require.Equal(t, []string{"owned", "shipped"}, registry.SpecIDs())
	require.Equal(t, []string{"owner"}, registry.Names())
	_, known := registry.ForSpec("shipped")
	require.False(t, known, "execution needs the published revision")
	_, err := registry.resolve(t.Context(), &revisionQueue{}, claimOf(t, stepRevision(t, "shipped", addSpec)))
	require.ErrorIs(t, err, ErrRevisionUnavailable)

	registry.UseCompiler(compiler)
	require.Equal(t, []string{"owned"}, registry.SpecIDs(), "what another compiler made is dropped")
}

func TestPrewarmAloneIsNotEmpty(t *testing.T) {
	registry, _ := newStepRegistry(t)
	require.True(t, registry.IsEmpty())
	require.NoError(t, registry.Prewarm(t.Context(), "shipped", json.RawMessage(addSpec)))
	require.False(t, registry.IsEmpty())
	registry.UseCompiler(nil)
	require.True(t, registry.IsEmpty())
}

func TestAPublishedRevisionAdoptsWhatWasPrewarmed(t *testing.T) {
	tests := map[string]struct {
		change func(*Revision)
		adopts bool
	}{
		"equal":          {func(*Revision) {}, true},
		"other notation": {func(r *Revision) { r.Spec = json.RawMessage(`{"steps":[{"by":3.0,"op":"add"}],"start":2e0}`) }, true},
		"opaque digest":  {func(r *Revision) { r.ContentDigest = "mine" }, true},
		"empty maps":     {func(r *Revision) { r.ExpressionVersions, r.Capabilities = map[string]string{}, []CapabilityPin{} }, true},
		"ABI's name":     {func(r *Revision) { r.KernelABIVersion = "kernel-abi-1" }, true},
		"other spec":     {func(r *Revision) { r.Spec = json.RawMessage(`{"start": 2, "steps": [{"op": "add", "by": 4}]}`) }, false},
		"other spec id":  {func(r *Revision) { r.SpecID = "other" }, false},
		"capability":     {func(r *Revision) { r.Capabilities = []CapabilityPin{{"mail", "1", "m1"}} }, false},
		"expression":     {func(r *Revision) { r.ExpressionVersions = map[string]string{"add": "1"} }, false},
		"dependencies":   {func(r *Revision) { r.DependencySetDigest = "deps" }, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			registry, compiler := newStepRegistry(t)
			require.NoError(t, registry.Prewarm(t.Context(), "shipped", json.RawMessage(addSpec)))
			revision := stepRevision(t, "shipped", addSpec)
			test.change(revision)
			if revision.ContentDigest != "mine" {
				require.NoError(t, setDigest(revision))
			}
			want := int64(2)
			if test.adopts {
				want = 1
			}
			item := claimOf(t, revision)
			for range 3 {
				driver, err := registry.ResolveRevision(t.Context(), item, revision)
				require.NoError(t, err)
				_, err = driver.Evaluate(t.Context(), 0, item)
				require.NoError(t, err)
			}
			require.Equal(t, want, compiler.compiles.Load())
			require.Contains(t, registry.SpecIDs(), "shipped")
		})
	}
}

// A prewarmed driver becomes that of one tenant and definition; the next one
// compiles its own, for nothing is served across them.
func TestOneRevisionAdoptsWhatWasPrewarmed(t *testing.T) {
	registry, compiler := newStepRegistry(t)
	require.NoError(t, registry.Prewarm(t.Context(), "shipped", json.RawMessage(addSpec)))
	revision := stepRevision(t, "shipped", addSpec)
	item, other := claimOf(t, revision), claimOf(t, revision)
	other.TenantID = "other"
	first, err := registry.ResolveRevision(t.Context(), item, revision)
	require.NoError(t, err)
	second, err := registry.ResolveRevision(t.Context(), other, revision)
	require.NoError(t, err)
	require.NotSame(t, first, second)
	require.EqualValues(t, 2, compiler.compiles.Load())
}

func TestAnotherShippedSpecTakesThePlaceOfTheFirst(t *testing.T) {
	registry, compiler := newStepRegistry(t)
	const other = `{"steps": [{"op": "multiply", "by": 2}]}`
	require.NoError(t, registry.Prewarm(t.Context(), "shipped", json.RawMessage(addSpec)))
	require.NoError(t, registry.Prewarm(t.Context(), "shipped", json.RawMessage(other)))
	require.Equal(t, []string{"shipped"}, registry.SpecIDs())
	require.EqualValues(t, 2, compiler.compiles.Load())
	revision := stepRevision(t, "shipped", other)
	_, err := registry.ResolveRevision(t.Context(), claimOf(t, revision), revision)
	require.NoError(t, err)
	require.EqualValues(t, 2, compiler.compiles.Load())
}

func TestPrewarmThatFails(t *testing.T) {
	registry := NewDriverRegistry[int]()
	require.ErrorContains(t, registry.Prewarm(t.Context(), "shipped", json.RawMessage(addSpec)), "no compiler is set")
	registry, compiler := newStepRegistry(t)
	for name, test := range map[string]struct{ specID, spec, want string }{
		"blank id":  {" ", addSpec, "spec id is blank"},
		"no spec":   {"shipped", "", "spec is not valid JSON"},
		"not JSON":  {"shipped", "{", "spec is not valid JSON"},
		"bad step":  {"shipped", `{"steps": []}`, "spec has no steps"},
		"not UTF-8": {"shipped\xff", addSpec, "spec id is not valid UTF-8"},
	} {
		t.Run(name, func(t *testing.T) {
			require.ErrorContains(t, registry.Prewarm(t.Context(), test.specID, json.RawMessage(test.spec)), test.want)
			require.True(t, registry.IsEmpty())
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, registry.Prewarm(ctx, "shipped", json.RawMessage(addSpec)), context.Canceled)
	require.True(t, registry.IsEmpty())
	require.EqualValues(t, 1, compiler.compiles.Load(), "bad input reaches no compiler")
}

func TestPrewarmBesideANewCompiler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry, compiler := newStepRegistry(t)
		release := make(chan struct{})
		compiler.before = func(context.Context, *Revision) error { <-release; return nil }
		var group sync.WaitGroup
		var err error
		group.Go(func() { err = registry.Prewarm(context.Background(), "shipped", json.RawMessage(addSpec)) })
		synctest.Wait()
		registry.UseCompiler(&stepCompiler[int]{})
		close(release)
		group.Wait()
		require.ErrorContains(t, err, "the compiler was replaced")
		require.True(t, registry.IsEmpty())
	})
}

func TestANewCompilerCompilesAgain(t *testing.T) {
	registry, first := newStepRegistry(t)
	revision := stepRevision(t, "spec", addSpec)
	item := claimOf(t, revision)
	queue := &revisionQueue{revision: revision}
	_, err := registry.resolve(t.Context(), queue, item)
	require.NoError(t, err)
	second := &stepCompiler[int]{}
	registry.UseCompiler(second)
	_, err = registry.resolve(t.Context(), queue, item)
	require.NoError(t, err)
	require.EqualValues(t, 1, first.compiles.Load())
	require.EqualValues(t, 1, second.compiles.Load())
	registry.UseCompiler(nil)
	_, err = registry.resolve(t.Context(), queue, item)
	require.ErrorIs(t, err, errNoDriver)
}

func BenchmarkRegistryHit(b *testing.B) {
	registry, _ := newStepRegistry(b)
	revision := opaqueRevision()
	require.NoError(b, setDigest(revision))
	queue := &revisionQueue{revision: revision}
	item := claimOf(b, revision)
	_, err := registry.resolve(b.Context(), queue, item)
	require.NoError(b, err)

	b.Run("resolve", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := registry.resolve(b.Context(), queue, item); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("parallel", func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if _, err := registry.resolve(context.Background(), queue, item); err != nil {
					b.Error(err)
				}
			}
		})
	})
	b.Run("loaded", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := registry.ResolveRevision(b.Context(), item, revision); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("registered", func(b *testing.B) {
		registry := NewDriverRegistry[int]()
		require.NoError(b, registry.Register(NewDriver[int]("spec", 1, nil)))
		instance, err := NewInstance("spec", 1, nil)
		require.NoError(b, err)
		item := &WorkItem{Instance: instance}
		b.ReportAllocs()
		for b.Loop() {
			if _, err := registry.resolve(b.Context(), queue, item); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkRegistryMiss compiles every time, with the cache full.
func BenchmarkRegistryMiss(b *testing.B) {
	registry, _ := newStepRegistry(b)
	revision := opaqueRevision()
	item := claimOf(b, revision)
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		revision.ContentDigest = fmt.Sprintf("wd-%d", n)
		item.WorkflowRevisionDigest = revision.ContentDigest
		if _, err := registry.ResolveRevision(b.Context(), item, revision); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkRegistryStampede has 256 goroutines ask for one new revision.
func BenchmarkRegistryStampede(b *testing.B) {
	registry, compiler := newStepRegistry(b)
	revision := opaqueRevision()
	item := claimOf(b, revision)
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		n++
		revision.ContentDigest = fmt.Sprintf("wd-%d", n)
		item.WorkflowRevisionDigest = revision.ContentDigest
		var group sync.WaitGroup
		for range 256 {
			group.Go(func() {
				if _, err := registry.ResolveRevision(context.Background(), item, revision); err != nil {
					b.Error(err)
				}
			})
		}
		group.Wait()
	}
	require.EqualValues(b, n, compiler.compiles.Load())
}

func TestAHitAllocatesNothing(t *testing.T) {
	registry, _ := newStepRegistry(t)
	revision := opaqueRevision()
	require.NoError(t, setDigest(revision))
	queue := &revisionQueue{revision: revision}
	item := claimOf(t, revision)
	ctx := context.Background()
	hit := func() { _, _ = registry.resolve(ctx, queue, item) }
	require.Zero(t, testing.AllocsPerRun(100, hit))
	loaded := func() { _, _ = registry.ResolveRevision(ctx, item, revision) }
	require.Zero(t, testing.AllocsPerRun(100, loaded))
	require.EqualValues(t, 1, queue.loads.Load())
}
