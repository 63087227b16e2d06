package supervisor

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// scriptedDriver answers as a test wants it to.
type scriptedDriver struct {
	name     func() string
	specIDs  func() []string
	validate func() error
	supports func(*WorkItem) bool
}

func (d *scriptedDriver) Name() string {
	if d.name == nil {
		return "scripted"
	}
	return d.name()
}

func (d *scriptedDriver) SpecIDs() []string {
	if d.specIDs == nil {
		return nil
	}
	return d.specIDs()
}

func (d *scriptedDriver) ValidateSpecs() error {
	if d.validate == nil {
		return nil
	}
	return d.validate()
}

func (d *scriptedDriver) SupportsRevision(item *WorkItem) bool {
	return d.supports == nil || d.supports(item)
}

func (d *scriptedDriver) Evaluate(context.Context, int, *WorkItem) (TransitionCommand, error) {
	return TransitionCommand{}, nil
}

// owning is a driver that owns specs.
func owning(name string, specIDs ...string) *scriptedDriver {
	return &scriptedDriver{
		name:    func() string { return name },
		specIDs: func() []string { return specIDs },
	}
}

func TestRegister(t *testing.T) {
	var registry DriverRegistry[int] // the zero value is an empty registry
	require.True(t, registry.IsEmpty())
	require.Empty(t, registry.SpecIDs())
	require.Empty(t, registry.Names())
	require.NoError(t, registry.ValidateAll())
	_, known := registry.ForSpec("b")
	require.False(t, known)

	first, second := owning("first", "c", "a"), owning("second", "b")
	require.NoError(t, registry.Register(first))
	require.NoError(t, registry.Register(second))
	require.False(t, registry.IsEmpty())
	require.Equal(t, []string{"a", "b", "c"}, registry.SpecIDs())
	require.Equal(t, []string{"first", "second"}, registry.Names())
	driver, known := registry.ForSpec("a")
	require.True(t, known)
	require.Same(t, first, driver)
	driver, known = registry.ForSpec("b")
	require.True(t, known)
	require.Same(t, second, driver)

	registry.SpecIDs()[0] = "changed"
	registry.Names()[0] = "changed"
	require.Equal(t, []string{"a", "b", "c"}, registry.SpecIDs())
	require.Equal(t, []string{"first", "second"}, registry.Names())
}

func TestRegisterKeepsNoMemoryOfTheDriver(t *testing.T) {
	specIDs := []string{"a", "b"}
	registry := NewDriverRegistry[int]()
	require.NoError(t, registry.Register(owning("driver", specIDs...)))
	specIDs[0] = "z"
	require.Equal(t, []string{"a", "b"}, registry.SpecIDs())
}

func TestRegisterIsAllOrNothing(t *testing.T) {
	cause := errors.New("lost the file")
	tests := map[string]struct {
		driver     Driver[int]
		name, want string
	}{
		"nil":             {nil, "<nil>", "is nil"},
		"typed nil":       {(*scriptedDriver)(nil), "*supervisor.scriptedDriver", "is nil"},
		"blank spec":      {owning("new", "x", " \u2003"), "new", "SpecIDs()[1] is blank"},
		"empty spec":      {owning("new", ""), "new", "SpecIDs()[0] is blank"},
		"oversized spec":  {owning("new", "x", strings.Repeat("s", MaxIDBytes+1)), "new", "SpecIDs()[1] has 513 bytes"},
		"spec with NUL":   {owning("new", "x", "a\x00"), "new", "SpecIDs()[1] holds a NUL"},
		"spec not UTF-8":  {owning("new", "x", "a\xff"), "new", "SpecIDs()[1] is not valid UTF-8"},
		"repeated spec":   {owning("new", "x", "y", "x"), "new", `SpecIDs()[2] repeats "x"`},
		"owned spec":      {owning("new", "x", "y", "owned"), "new", `spec "owned" is already owned by driver "owner"`},
		"panicking name":  {&scriptedDriver{name: func() string { panic(cause) }}, "*supervisor.scriptedDriver", "Name panicked: lost the file"},
		"panicking specs": {&scriptedDriver{specIDs: func() []string { panic(unprintable{}) }}, "scripted", "SpecIDs panicked: a supervisor.unprintable that cannot be printed"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			registry := NewDriverRegistry[int]()
			require.NoError(t, registry.Register(owning("owner", "owned")))
			err := registry.Register(test.driver)
			var refused *DriverError
			require.ErrorAs(t, err, &refused)
			require.Equal(t, test.name, refused.Driver)
			require.Contains(t, refused.Reason, test.want)
			require.ErrorContains(t, err, test.want)

			require.Equal(t, []string{"owned"}, registry.SpecIDs())
			require.Equal(t, []string{"owner"}, registry.Names())
			require.NoError(t, registry.Register(owning("x", "x", "y")), "what was refused owns nothing")
		})
	}
}

func TestTheSameDriverIsRegisteredOnce(t *testing.T) {
	registry := NewDriverRegistry[int]()
	driver := owning("driver", "a")
	require.NoError(t, registry.Register(driver))
	require.ErrorContains(t, registry.Register(driver), `spec "a" is already owned by driver "driver"`)
	require.Equal(t, []string{"driver"}, registry.Names())
}

func TestADriverThatEndsItsGoroutineHarmsNoRegistry(t *testing.T) {
	registry := NewDriverRegistry[int]()
	done := make(chan struct{})
	go func() { // ended by the driver
		defer close(done)
		_ = registry.Register(&scriptedDriver{specIDs: func() []string { runtime.Goexit(); return nil }})
	}()
	<-done
	require.True(t, registry.IsEmpty())
	require.NoError(t, registry.Register(owning("driver", "a")))
}

// A driver may register others when it is asked for its specs.
func TestRegisterHoldsNoLockWhileADriverIsAsked(t *testing.T) {
	registry := NewDriverRegistry[int]()
	require.NoError(t, registry.Register(&scriptedDriver{specIDs: func() []string {
		if registry.Register(owning("inner", "a")) != nil {
			return nil
		}
		return []string{"b"}
	}}))
	require.Equal(t, []string{"a", "b"}, registry.SpecIDs())
}

func TestValidateAllTellsEverything(t *testing.T) {
	cause := errors.New("lost the file")
	registry := NewDriverRegistry[int]()
	for name, validate := range map[string]func() error{
		"good":        nil,
		"refuses":     func() error { return cause },
		"panics":      func() error { panic("at the disco") },
		"unprintable": func() error { return unprintable{} },
	} {
		require.NoError(t, registry.Register(&scriptedDriver{name: func() string { return name }, validate: validate}))
	}
	err := registry.ValidateAll()
	require.ErrorIs(t, err, cause)
	require.ErrorContains(t, err, `driver "refuses": lost the file`)
	require.ErrorContains(t, err, `driver "panics": ValidateSpecs panicked: at the disco`)
	require.ErrorContains(t, err, `driver "unprintable": supervisor.unprintable, whose Error method panicked`)
	require.NotContains(t, err.Error(), "good")
	var refused *DriverError
	require.ErrorAs(t, err, &refused)
}

func TestDriverError(t *testing.T) {
	cause := errors.New("cause")
	err := error(&DriverError{Driver: "name", Reason: "reason", Err: cause})
	require.EqualError(t, err, `supervisor: driver "name": reason`)
	require.ErrorIs(t, err, cause)
	require.NoError(t, errors.Unwrap(&DriverError{Driver: "name", Reason: "reason"}))
}

func TestClaimSpecs(t *testing.T) {
	registry := NewDriverRegistry[int]()
	requireClaim := func(wantIdle bool, want ...string) {
		t.Helper()
		specIDs, idle := registry.claimSpecs()
		require.Equal(t, want, specIDs)
		require.Equal(t, wantIdle, idle)
	}
	_, idle := registry.claimSpecs()
	require.True(t, idle, "nothing is registered")
	require.NoError(t, registry.Register(owning("owns nothing")))
	_, idle = registry.claimSpecs()
	require.True(t, idle, "a driver that owns no spec is nothing to claim for")
	require.False(t, registry.IsEmpty())

	require.NoError(t, registry.Register(owning("driver", "b", "a")))
	requireClaim(false, "a", "b")
	registry.UseCompiler(&stepCompiler[int]{})
	requireClaim(false)
	registry.UseCompiler(nil)
	requireClaim(false, "a", "b")
	registry.UseCompiler((*stepCompiler[int])(nil))
	requireClaim(false, "a", "b")

	require.Zero(t, testing.AllocsPerRun(100, func() { registry.claimSpecs() }))
}

func TestNewDriver(t *testing.T) {
	type shared struct{ rate int }
	driver := NewDriver("order", 3, func(_ context.Context, c shared, item *WorkItem) (TransitionCommand, error) {
		return NewCommand(item, "order.priced", c.rate, nil, Complete{})
	})
	require.Equal(t, "order", driver.Name())
	require.Equal(t, []string{"order"}, driver.SpecIDs())
	require.NoError(t, driver.ValidateSpecs())

	instance, err := NewInstance("order", 3, nil)
	require.NoError(t, err)
	item := &WorkItem{Instance: instance, LeaseVersion: 1}
	require.True(t, driver.SupportsRevision(item))
	command, err := driver.Evaluate(t.Context(), shared{rate: 7}, item)
	require.NoError(t, err)
	require.Equal(t, "7", string(command.EventPayload))

	for name, change := range map[string]struct {
		change func(*WorkItem)
		want   bool
	}{
		"spec":          {func(w *WorkItem) { w.SpecID = "other" }, false},
		"number":        {func(w *WorkItem) { w.WorkflowRevision = 4 }, false},
		"digest":        {func(w *WorkItem) { w.WorkflowRevisionDigest = "code:order@4" }, false},
		"ABI":           {func(w *WorkItem) { w.KernelABIVersion = "2" }, false},
		"ABI, its name": {func(w *WorkItem) { w.KernelABIVersion = "kernel-abi-1" }, true},
		"definition":    {func(w *WorkItem) { w.DefinitionID = "orders of 2026" }, true},
		"tenant":        {func(w *WorkItem) { w.TenantID = "other" }, true},
	} {
		t.Run(name, func(t *testing.T) {
			changed := item.Clone()
			change.change(&changed)
			require.Equal(t, change.want, driver.SupportsRevision(&changed))
		})
	}
}

func TestNewDriverThatCannotServe(t *testing.T) {
	driver := NewDriver[int](" ", 0, nil)
	err := driver.ValidateSpecs()
	require.ErrorContains(t, err, "spec id is blank")
	require.ErrorContains(t, err, "revision is 0")
	require.ErrorContains(t, err, "evaluate function is nil")
	require.ErrorContains(t, NewDriverRegistry[int]().Register(driver), "is blank")

	_, err = driver.Evaluate(t.Context(), 0, &WorkItem{})
	var refused *DriverError
	require.ErrorAs(t, err, &refused)
}

// Registrations are race-free beside each other and beside those who resolve,
// who see each of them whole or not at all.
func TestRegistrationsBesideResolution(t *testing.T) {
	registry := NewDriverRegistry[int]()
	revision := stepRevision(t, "compiled", addSpec)
	claim := claimOf(t, revision)
	queue := &revisionQueue{revision: revision}
	var group sync.WaitGroup
	for worker := range 4 {
		group.Go(func() {
			for n := range 50 {
				a, b := fmt.Sprintf("a-%d-%d", worker, n), fmt.Sprintf("b-%d-%d", worker, n)
				if err := registry.Register(owning(a, a, b)); err != nil {
					t.Error(err)
				}
				if n%10 == worker {
					registry.UseCompiler(&stepCompiler[int]{})
					// Another worker may replace the compiler meanwhile.
					_ = registry.Prewarm(context.Background(), "compiled", revision.Spec)
				}
			}
		})
		group.Go(func() {
			for n := range 200 {
				specID := fmt.Sprintf("a-%d-%d", worker, n%50)
				owner, known := registry.ForSpec(specID)
				if sibling, too := registry.ForSpec("b" + specID[1:]); known && (!too || sibling != owner) {
					t.Errorf("%s is half registered", specID)
				}
				specIDs, _ := registry.claimSpecs()
				if specIDs != nil && len(specIDs)%2 != 0 {
					t.Errorf("half a registration among %d specs", len(specIDs))
				}
				_, err := registry.resolve(context.Background(), queue, claim)
				if err != nil && !errors.Is(err, errNoDriver) {
					t.Error(err)
				}
				registry.SpecIDs()
				registry.Names()
				registry.IsEmpty()
				if err := registry.ValidateAll(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	require.Len(t, registry.Names(), 200)
	_, err := registry.resolve(t.Context(), queue, claim)
	require.NoError(t, err)
}
