package supervisor

import (
	"container/list"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/stretchr/testify/require"
)

const addSpec = `{"start": 2, "steps": [{"op": "add", "by": 3}]}`

// opaqueRevision is a revision with everything and a digest that is not ours to verify.
func opaqueRevision() *Revision {
	return &Revision{
		DefinitionID:        "def",
		Revision:            1,
		SpecID:              "spec",
		Spec:                json.RawMessage(addSpec),
		ContentDigest:       "wd",
		KernelABIVersion:    "1",
		Capabilities:        []CapabilityPin{{ID: "mail", ContractVersion: "1", ContentDigest: "m1"}},
		ExpressionVersions:  map[string]string{"add": "1", "multiply": "1"},
		DependencySetDigest: "deps",
	}
}

func newStepRegistry(t testing.TB) (*DriverRegistry[int], *stepCompiler[int]) {
	t.Helper()
	registry, compiler := NewDriverRegistry[int](), &stepCompiler[int]{}
	registry.UseCompiler(compiler)
	return registry, compiler
}

func TestOneDigestNamesOneContent(t *testing.T) {
	changes := map[string]func(*Revision){
		"spec":               func(r *Revision) { r.Spec = json.RawMessage(`{"start": 2, "steps": [{"op": "add", "by": 4}]}`) },
		"ABI":                func(r *Revision) { r.KernelABIVersion = "kernel-abi-1" },
		"expression version": func(r *Revision) { r.ExpressionVersions["add"] = "2" },
		"expression gone":    func(r *Revision) { delete(r.ExpressionVersions, "add") },
		"pin version":        func(r *Revision) { r.Capabilities[0].ContractVersion = "2" },
		"pin digest":         func(r *Revision) { r.Capabilities[0].ContentDigest = "m2" },
		"pin gone":           func(r *Revision) { r.Capabilities = nil },
		"dependencies":       func(r *Revision) { r.DependencySetDigest = "other" },
		"spec and number": func(r *Revision) {
			r.Revision, r.Spec = 2, json.RawMessage(`{"start": 3, "steps": [{"op": "add", "by": 3}]}`)
		},
	}
	for name, change := range changes {
		t.Run(name, func(t *testing.T) {
			registry, compiler := newStepRegistry(t)
			revision := opaqueRevision()
			first, err := registry.ResolveRevision(t.Context(), claimOf(t, revision), revision)
			require.NoError(t, err)

			other := opaqueRevision()
			change(other)
			_, err = registry.ResolveRevision(t.Context(), claimOf(t, other), other)
			require.ErrorIs(t, err, errOtherContent)
			require.ErrorContains(t, err, `"wd"`)

			again, err := registry.ResolveRevision(t.Context(), claimOf(t, revision), revision)
			require.NoError(t, err)
			require.Same(t, first, again)
			require.EqualValues(t, 1, compiler.compiles.Load())

			// The same content under a digest of ours cannot lie at all.
			require.NoError(t, setDigest(revision))
			other.ContentDigest = revision.ContentDigest
			_, err = registry.ResolveRevision(t.Context(), claimOf(t, other), other)
			require.ErrorContains(t, err, "ContentDigest is")
		})
	}
}

func setDigest(r *Revision) (err error) {
	r.ContentDigest, err = r.ComputeDigest()
	return err
}

func TestTheCacheKeepsNoMemoryOfItsCallers(t *testing.T) {
	registry, compiler := newStepRegistry(t)
	item := claimOf(t, opaqueRevision())
	changes := map[string]func(*Revision){
		"spec":       func(r *Revision) { copy(r.Spec, "[]                                              ") },
		"pins":       func(r *Revision) { r.Capabilities[0].ContentDigest = "m2" },
		"expression": func(r *Revision) { r.ExpressionVersions["new"] = "1" },
	}
	for name, change := range changes {
		t.Run(name, func(t *testing.T) {
			revision := opaqueRevision()
			registry.UseCompiler(compiler)
			first, err := registry.ResolveRevision(t.Context(), item, revision)
			require.NoError(t, err)
			change(revision)
			_, err = registry.ResolveRevision(t.Context(), item, revision)
			require.Error(t, err)
			again, err := registry.ResolveRevision(t.Context(), item, opaqueRevision())
			require.NoError(t, err)
			require.Same(t, first, again)
		})
	}
	require.EqualValues(t, len(changes), compiler.compiles.Load())
}

// vandal changes the revision that it compiles.
type vandal struct{ stepCompiler[int] }

func (v *vandal) Compile(ctx context.Context, revision *Revision) (Driver[int], error) {
	driver, err := v.stepCompiler.Compile(ctx, revision)
	clear(revision.Spec)
	clear(revision.Capabilities)
	clear(revision.ExpressionVersions)
	return driver, err
}

func TestTheCacheSharesNoMemoryWithItsCompiler(t *testing.T) {
	registry, compiler := NewDriverRegistry[int](), &vandal{}
	registry.UseCompiler(compiler)
	revision := opaqueRevision()
	require.NoError(t, setDigest(revision))
	before := revision.clone()
	item := claimOf(t, revision)
	queue := &revisionQueue{revision: revision}
	for range 3 {
		_, err := registry.resolve(t.Context(), queue, item)
		require.NoError(t, err)
	}
	require.Equal(t, before, revision)
	require.EqualValues(t, 1, compiler.compiles.Load())
	require.EqualValues(t, 1, queue.loads.Load(), "what is compared with the claim is unharmed")
}

func TestAHitIsFoundInAnyNotation(t *testing.T) {
	registry, compiler := newStepRegistry(t)
	revision := opaqueRevision()
	revision.Capabilities = append(revision.Capabilities, CapabilityPin{ID: "chat", ContractVersion: "1", ContentDigest: "c1"})
	first, err := registry.ResolveRevision(t.Context(), claimOf(t, revision), revision)
	require.NoError(t, err)

	rewritten := revision.clone()
	rewritten.Spec = json.RawMessage(`{"steps":[{"by":30e-1,"op":"\u0061dd"}],"start":2.0}`)
	slices.Reverse(rewritten.Capabilities)
	again, err := registry.ResolveRevision(t.Context(), claimOf(t, revision), rewritten)
	require.NoError(t, err)
	require.Same(t, first, again)

	renumbered := revision.clone()
	renumbered.Revision = 7
	again, err = registry.ResolveRevision(t.Context(), claimOf(t, renumbered), renumbered)
	require.NoError(t, err)
	require.Same(t, first, again)
	require.EqualValues(t, 1, compiler.compiles.Load())
}

func TestTheCacheIsBounded(t *testing.T) {
	registry, compiler := newStepRegistry(t)
	const all = 300
	var drivers []weak.Pointer[stepProgram[int]]
	resolve := func(n int) {
		revision := opaqueRevision()
		revision.ContentDigest = fmt.Sprintf("wd-%d", n)
		driver, err := registry.ResolveRevision(t.Context(), claimOf(t, revision), revision)
		require.NoError(t, err)
		drivers = append(drivers, weak.Make(driver.(*stepProgram[int])))
	}
	for n := range all {
		resolve(n)
	}
	require.EqualValues(t, all, compiler.compiles.Load())
	for n := all - CompiledRevisionLimit; n < all; n++ {
		resolve(n)
	}
	require.EqualValues(t, all, compiler.compiles.Load(), "the last ones are kept")
	resolve(0)
	require.EqualValues(t, all+1, compiler.compiles.Load(), "the first one is not")

	runtime.GC()
	alive := make(map[*stepProgram[int]]bool)
	for _, driver := range drivers {
		if program := driver.Value(); program != nil {
			alive[program] = true
		}
	}
	require.LessOrEqual(t, len(alive), CompiledRevisionLimit)
	runtime.KeepAlive(registry)
}

// Random use is compared with a model: a list of the digests in order of use.
func TestTheLeastRecentlyUsedGoesFirst(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	registry, compiler := newStepRegistry(t)
	model := list.New()
	kept := make(map[int]*list.Element)
	var want int64
	revision := opaqueRevision()
	item := claimOf(t, revision)
	for range 5000 {
		// Some are used much more often than others.
		n := min(random.IntN(400), random.IntN(400))
		if element := kept[n]; element != nil {
			model.MoveToFront(element)
		} else {
			want++
			kept[n] = model.PushFront(n)
			if model.Len() > CompiledRevisionLimit {
				delete(kept, model.Remove(model.Back()).(int))
			}
		}
		revision.ContentDigest = fmt.Sprintf("wd-%d", n)
		item.WorkflowRevisionDigest = revision.ContentDigest
		_, err := registry.ResolveRevision(t.Context(), item, revision)
		require.NoError(t, err)
		require.Equal(t, want, compiler.compiles.Load())
	}
}

func TestNothingIsServedAcrossTenantsOrDefinitions(t *testing.T) {
	registry, compiler := newStepRegistry(t)
	drivers := make(map[Driver[int]]string)
	resolveAll := func() {
		for _, tenant := range []string{"t1", "t2"} {
			for _, definition := range []string{"def", "def2"} {
				for _, spec := range []string{"spec", "spec2"} {
					for _, digest := range []string{"wd", "wd2"} {
						revision := opaqueRevision()
						revision.DefinitionID, revision.SpecID, revision.ContentDigest = definition, spec, digest
						item := claimOf(t, revision)
						item.TenantID = tenant
						driver, err := registry.ResolveRevision(t.Context(), item, revision)
						require.NoError(t, err)
						scope := fmt.Sprint(tenant, definition, spec, digest)
						if other, known := drivers[driver]; known {
							require.Equal(t, other, scope)
						}
						drivers[driver] = scope
					}
				}
			}
		}
	}
	resolveAll()
	require.Len(t, drivers, 16)
	resolveAll()
	require.Len(t, drivers, 16)
	require.EqualValues(t, 16, compiler.compiles.Load())
}

func TestConcurrentMissesCompileOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry, compiler := newStepRegistry(t)
		release := make(chan struct{})
		compiler.before = func(context.Context, *Revision) error { <-release; return nil }
		revision := opaqueRevision()
		var mu sync.Mutex
		drivers := make(map[Driver[int]]int)
		var group sync.WaitGroup
		for range 16 {
			item, revision := claimOf(t, revision), revision.clone()
			group.Go(func() {
				driver, err := registry.ResolveRevision(context.Background(), item, revision)
				if err == nil {
					_, err = driver.Evaluate(context.Background(), 0, item)
				}
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					drivers[driver]++
				}
			})
		}
		synctest.Wait()
		close(release)
		group.Wait()
		require.Equal(t, []int{16}, slices.Collect(maps.Values(drivers)))
		require.EqualValues(t, 1, compiler.compiles.Load())
	})
}

func TestHitsAndOtherMissesDoNotWaitForACompile(t *testing.T) {
	registry, compiler := newStepRegistry(t)
	kept := opaqueRevision()
	item := claimOf(t, kept)
	hit, err := registry.ResolveRevision(t.Context(), item, kept)
	require.NoError(t, err)

	compiling, release := make(chan struct{}), make(chan struct{})
	compiler.before = func(_ context.Context, revision *Revision) error {
		if revision.ContentDigest == "slow" {
			close(compiling)
			<-release
		}
		return nil
	}
	slow := opaqueRevision()
	slow.ContentDigest = "slow"
	slowItem := claimOf(t, slow)
	var group sync.WaitGroup
	defer group.Wait()
	defer close(release)
	group.Go(func() { _, _ = registry.ResolveRevision(context.Background(), slowItem, slow) })
	<-compiling

	again, err := registry.ResolveRevision(t.Context(), item, kept)
	require.NoError(t, err)
	require.Same(t, hit, again)
	other := opaqueRevision()
	other.ContentDigest = "other"
	_, err = registry.ResolveRevision(t.Context(), claimOf(t, other), other)
	require.NoError(t, err)
}

// unprintable is a value whose own printing panics, with another such value.
type unprintable struct{}

func (unprintable) String() string { panic(unprintable{}) }
func (unprintable) Error() string  { panic(unprintable{}) }

type nilError struct{}

func (e *nilError) Error() string { return "never " + fmt.Sprint(*e) }

// compilerFunc is a compiler in one function.
type compilerFunc func(context.Context, *Revision) (Driver[int], error)

func (f compilerFunc) Compile(ctx context.Context, revision *Revision) (Driver[int], error) {
	return f(ctx, revision)
}

func TestFailedCompilesAreNotKept(t *testing.T) {
	refused := errors.New("refused")
	tests := map[string]struct {
		fault func() (Driver[int], error)
		want  string
	}{
		"error":                {func() (Driver[int], error) { return nil, refused }, "compile: refused"},
		"error beside driver":  {func() (Driver[int], error) { return &stepProgram[int]{}, refused }, "compile: refused"},
		"unprintable error":    {func() (Driver[int], error) { return nil, unprintable{} }, "whose Error method panicked"},
		"typed nil error":      {func() (Driver[int], error) { return nil, (*nilError)(nil) }, "a nil *supervisor.nilError was returned as an error"},
		"no driver":            {func() (Driver[int], error) { return nil, nil }, "a nil driver (<nil>)"},
		"typed nil driver":     {func() (Driver[int], error) { return (*stepProgram[int])(nil), nil }, "a nil driver (*supervisor.stepProgram[int])"},
		"panic":                {func() (Driver[int], error) { panic("at the disco") }, "compiler panicked: at the disco"},
		"panic with an error":  {func() (Driver[int], error) { panic(refused) }, "compiler panicked: refused"},
		"panic with nil":       {func() (Driver[int], error) { panic(nil) }, "compiler panicked: panic called with nil argument"},
		"runtime panic":        {func() (Driver[int], error) { return make([]Driver[int], 1)[len(os.Args)], nil }, "index out of range"},
		"unprintable panic":    {func() (Driver[int], error) { panic(unprintable{}) }, "compiler panicked: a supervisor.unprintable that cannot be printed"},
		"end of the goroutine": {func() (Driver[int], error) { runtime.Goexit(); return nil, nil }, "compiler called runtime.Goexit"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var compiles int
			registry := NewDriverRegistry[int]()
			registry.UseCompiler(compilerFunc(func(context.Context, *Revision) (Driver[int], error) {
				compiles++
				if compiles <= 2 {
					return test.fault()
				}
				return &stepProgram[int]{}, nil
			}))
			revision := opaqueRevision()
			item := claimOf(t, revision)
			for range 2 {
				driver, err := registry.ResolveRevision(t.Context(), item, revision)
				require.ErrorContains(t, err, test.want)
				require.ErrorContains(t, err, `revision 1 with digest "wd" of definition "def"`)
				require.Nil(t, driver)
				require.Equal(t, strings.Contains(test.want, "refused"), errors.Is(err, refused))
			}
			driver, err := registry.ResolveRevision(t.Context(), item, revision)
			require.NoError(t, err)
			require.NotNil(t, driver)
			require.Equal(t, 3, compiles)
		})
	}
}

func TestThoseWhoWaitShareAFailedCompile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry, compiler := newStepRegistry(t)
		release := make(chan struct{})
		compiler.before = func(context.Context, *Revision) error { <-release; return errors.New("refused") }
		revision := opaqueRevision()
		item := claimOf(t, revision)
		var group sync.WaitGroup
		errs := make([]error, 16)
		for n := range errs {
			group.Go(func() { _, errs[n] = registry.ResolveRevision(context.Background(), item, revision) })
		}
		synctest.Wait()
		close(release)
		group.Wait()
		for _, err := range errs {
			require.ErrorContains(t, err, "refused")
		}
		require.EqualValues(t, 1, compiler.compiles.Load())
	})
}

func TestACompileOutlivesTheCallerThatStartedIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry, compiler := newStepRegistry(t)
		release := make(chan struct{})
		type traceKey struct{}
		compiler.before = func(ctx context.Context, _ *Revision) error {
			if ctx.Value(traceKey{}) != "trace" {
				return errors.New("the values of the context are lost")
			}
			select {
			case <-release:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		revision := opaqueRevision()
		item := claimOf(t, revision)
		revoked := errors.New("revoked")
		ctx, cancel := context.WithCancelCause(context.WithValue(context.Background(), traceKey{}, "trace"))
		var group sync.WaitGroup
		var leaderErr, followerErr error
		var driver Driver[int]
		group.Go(func() { _, leaderErr = registry.ResolveRevision(ctx, item, revision) })
		synctest.Wait()
		group.Go(func() { driver, followerErr = registry.ResolveRevision(context.Background(), item, revision) })
		synctest.Wait()
		cancel(revoked)
		synctest.Wait()
		require.ErrorIs(t, leaderErr, revoked, "a caller does not wait beyond its context")
		close(release)
		group.Wait()
		require.NoError(t, followerErr)
		require.NotNil(t, driver)
		require.EqualValues(t, 1, compiler.compiles.Load())
	})
}

func TestAFollowerThatLeavesHurtsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry, compiler := newStepRegistry(t)
		release := make(chan struct{})
		compiler.before = func(ctx context.Context, _ *Revision) error { <-release; return ctx.Err() }
		revision := opaqueRevision()
		item := claimOf(t, revision)
		ctx, cancel := context.WithCancel(context.Background())
		var group sync.WaitGroup
		var leaderErr, followerErr error
		group.Go(func() { _, leaderErr = registry.ResolveRevision(context.Background(), item, revision) })
		synctest.Wait()
		group.Go(func() { _, followerErr = registry.ResolveRevision(ctx, item, revision) })
		synctest.Wait()
		cancel()
		synctest.Wait()
		require.ErrorIs(t, followerErr, context.Canceled)
		close(release)
		group.Wait()
		require.NoError(t, leaderErr)
	})
}

func TestAnAbandonedCompileIsCancelledAndDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry, compiler := newStepRegistry(t)
		release := make(chan struct{})
		var compiling context.Context
		compiler.before = func(ctx context.Context, _ *Revision) error {
			if compiler.compiles.Load() == 1 {
				compiling = ctx
				<-release // whatever the context says
			}
			return nil
		}
		revision := opaqueRevision()
		item := claimOf(t, revision)
		ctx, cancel := context.WithCancel(context.Background())
		var group sync.WaitGroup
		errs := make([]error, 3)
		for n := range errs {
			group.Go(func() { _, errs[n] = registry.ResolveRevision(ctx, item, revision) })
		}
		synctest.Wait()
		require.NoError(t, compiling.Err())
		cancel()
		group.Wait()
		for _, err := range errs {
			require.ErrorIs(t, err, context.Canceled)
		}
		require.Error(t, compiling.Err())

		// Who comes next does not wait for it.
		driver, err := registry.ResolveRevision(context.Background(), item, revision)
		require.NoError(t, err)
		require.EqualValues(t, 2, compiler.compiles.Load())
		close(release)
		synctest.Wait()
		again, err := registry.ResolveRevision(context.Background(), item, revision)
		require.NoError(t, err)
		require.Same(t, driver, again, "the late driver is not kept")
		require.EqualValues(t, 2, compiler.compiles.Load())
	})
}

func TestAbandonedCompilesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry, compiler := newStepRegistry(t)
		release := make(chan struct{})
		compiler.before = func(context.Context, *Revision) error { <-release; return nil }
		revision := opaqueRevision()
		item := claimOf(t, revision)
		for range maxAbandonedCompiles {
			ctx, cancel := context.WithCancel(context.Background())
			var group sync.WaitGroup
			group.Go(func() { _, _ = registry.ResolveRevision(ctx, item, revision) })
			synctest.Wait()
			cancel()
			group.Wait()
		}
		_, err := registry.ResolveRevision(context.Background(), item, revision)
		require.ErrorContains(t, err, "64 compiles")
		require.EqualValues(t, maxAbandonedCompiles, compiler.compiles.Load())

		close(release)
		synctest.Wait()
		_, err = registry.ResolveRevision(context.Background(), item, revision)
		require.NoError(t, err)
	})
}

func TestAnEndedContextStartsNoCompile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry, compiler := newStepRegistry(t)
		revision := opaqueRevision()
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_, err := registry.ResolveRevision(ctx, claimOf(t, revision), revision)
		require.ErrorIs(t, err, context.Canceled)
		synctest.Wait()
		require.Zero(t, compiler.compiles.Load())
	})
}

// While the content of a digest is being compiled, a claim of other content
// under it waits for the verdict: only what was kept counts.
func TestOtherContentWaitsForTheCompileUnderItsDigest(t *testing.T) {
	for _, fails := range []bool{false, true} {
		t.Run(fmt.Sprintf("fails=%v", fails), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				registry, compiler := newStepRegistry(t)
				release := make(chan struct{})
				compiler.before = func(_ context.Context, revision *Revision) error {
					if revision.DependencySetDigest == "other" {
						return nil
					}
					<-release
					if fails {
						return errors.New("refused")
					}
					return nil
				}
				revision := opaqueRevision()
				other := opaqueRevision()
				other.DependencySetDigest = "other"
				item := claimOf(t, revision)
				var group sync.WaitGroup
				var firstErr, otherErr error
				group.Go(func() { _, firstErr = registry.ResolveRevision(context.Background(), item, revision) })
				synctest.Wait()
				group.Go(func() { _, otherErr = registry.ResolveRevision(context.Background(), item, other) })
				synctest.Wait()
				close(release)
				group.Wait()
				if fails {
					require.ErrorContains(t, firstErr, "refused")
					require.NoError(t, otherErr)
				} else {
					require.NoError(t, firstErr)
					require.ErrorIs(t, otherErr, errOtherContent)
				}
			})
		})
	}
}

// Many goroutines resolve few revisions with compiles that fail, panic, end
// their goroutine or are given up. Whoever waited long enough gets a driver of
// what was asked for or the compiler's fault, and nothing is left behind.
func TestTheCacheUnderStress(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	synctest.Test(t, func(t *testing.T) {
		registry, compiler := newStepRegistry(t)
		var faults atomic.Uint64
		compiler.before = func(ctx context.Context, _ *Revision) error {
			fault := rand.New(rand.NewPCG(seed, faults.Add(1)))
			wait := time.NewTimer(time.Duration(fault.IntN(20)) * time.Millisecond)
			defer wait.Stop()
			select {
			case <-wait.C:
			case <-ctx.Done():
				if fault.IntN(2) == 0 {
					return ctx.Err()
				}
				<-wait.C // ignores it
			}
			switch fault.IntN(6) {
			case 0:
				return errPlanned
			case 1:
				panic(errPlanned)
			case 2:
				runtime.Goexit()
			}
			return nil
		}
		var group sync.WaitGroup
		for worker := range 16 {
			random := rand.New(rand.NewPCG(seed, uint64(1000+worker)))
			group.Go(func() {
				for range 100 {
					n := random.IntN(300)
					revision := opaqueRevision()
					revision.SpecID = fmt.Sprintf("spec-%d", n)
					item := claimOf(t, revision)
					ctx, cancel := context.WithTimeout(context.Background(), time.Duration(random.IntN(30))*time.Millisecond)
					driver, err := registry.ResolveRevision(ctx, item, revision)
					var panicked *PanicError
					switch {
					case err == nil && driver.Name() != "steps of "+revision.SpecID:
						t.Errorf("%s got the driver %q", revision.SpecID, driver.Name())
					case err == nil, errors.Is(err, errPlanned), errors.As(err, &panicked):
					case ctx.Err() == nil || !errors.Is(err, context.DeadlineExceeded):
						t.Error(err)
					}
					cancel()
				}
			})
		}
		group.Wait()
		time.Sleep(time.Second) // until the last abandoned compile has ended
		cache := registry.load().compiled
		cache.mu.Lock()
		defer cache.mu.Unlock()
		require.Empty(t, cache.flights)
		require.Zero(t, cache.abandoned)
		require.Equal(t, len(cache.entries), cache.recency.Len())
		require.LessOrEqual(t, len(cache.entries), CompiledRevisionLimit)
		for key, element := range cache.entries {
			require.Equal(t, key, element.Value.(*compiledRevision[int]).key)
		}
	})
}
