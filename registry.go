package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
)

// Driver evaluates the instances of the specs that it owns. C is what drivers
// share during one pass; a factory makes it once per pass.
//
// All methods may be called by many goroutines at once.
type Driver[C any] interface {
	// Name is stable and names the driver for people.
	Name() string
	// SpecIDs are the specs that the driver owns. It is asked once, at
	// registration.
	SpecIDs() []string
	// ValidateSpecs reports why the driver cannot serve its specs. It is asked
	// by [DriverRegistry.ValidateAll] alone.
	ValidateSpecs() error
	// SupportsRevision reports whether the driver implements exactly the
	// revision and ABI that the item is pinned to. It is asked before every
	// evaluation by a registered driver; false fails the item. The item must not
	// be changed.
	SupportsRevision(item *WorkItem) bool
	// Evaluate returns the one command that carries the instance on. It has no
	// external effects: those are the command's intents. ctx ends when the
	// evaluation is no longer wanted, its cause says why. The item is the
	// driver's own copy, the command belongs to the caller. An error, a panic
	// and runtime.Goexit fail the item, which is tried again later; see
	// [Permanent] and [RetryAfter].
	Evaluate(ctx context.Context, c C, item *WorkItem) (TransitionCommand, error)
}

// Compiler makes drivers of published revisions.
type Compiler[C any] interface {
	// Compile returns a driver that evaluates instances of exactly this content,
	// or an error where the compiler does not know an expression version, a
	// capability or anything else in it. It may be called by many goroutines at
	// once, for different revisions. ctx ends when nobody waits for the driver
	// any more. The revision is the compiler's own copy. The driver is shared by
	// all instances of the revision in one tenant. Its Name is for an [Observer]
	// or a logger; SpecIDs, ValidateSpecs and SupportsRevision are not asked.
	Compile(ctx context.Context, revision *Revision) (Driver[C], error)
}

// NewDriver returns a driver in one function: it owns one spec and supports
// exactly the code revision that [NewInstance] pins for specID and revision.
// Its name is the spec id. Arguments that cannot be served (a blank spec id,
// revision 0, no function) are reported by ValidateSpecs.
func NewDriver[C any](specID string, revision uint64, evaluate func(context.Context, C, *WorkItem) (TransitionCommand, error)) Driver[C] {
	return &funcDriver[C]{
		specID:   specID,
		revision: revision,
		digest:   codeDigest(specID, revision),
		evaluate: evaluate,
	}
}

type funcDriver[C any] struct {
	specID   string
	revision uint64
	digest   string
	evaluate func(context.Context, C, *WorkItem) (TransitionCommand, error)
}

func (d *funcDriver[C]) Name() string      { return d.specID }
func (d *funcDriver[C]) SpecIDs() []string { return []string{d.specID} }

func (d *funcDriver[C]) ValidateSpecs() error {
	errs := []error{checkID("spec id", d.specID)}
	if d.revision == 0 {
		errs = append(errs, errors.New("revision is 0, must be positive"))
	}
	if d.evaluate == nil {
		errs = append(errs, errNoFunction)
	}
	return errors.Join(errs...)
}

func (d *funcDriver[C]) SupportsRevision(item *WorkItem) bool {
	return item.SpecID == d.specID &&
		item.WorkflowRevision == d.revision &&
		item.WorkflowRevisionDigest == d.digest &&
		supportsABI(item.KernelABIVersion)
}

func (d *funcDriver[C]) Evaluate(ctx context.Context, c C, item *WorkItem) (TransitionCommand, error) {
	if d.evaluate == nil {
		return TransitionCommand{}, &DriverError{Driver: d.specID, Reason: errNoFunction.Error(), Err: errNoFunction}
	}
	return d.evaluate(ctx, c, item)
}

var errNoFunction = errors.New("evaluate function is nil")

// supportsABI reports whether this library implements a kernel ABI, which has
// two names.
func supportsABI(version string) bool {
	return version == DefaultKernelABIVersion || version == "kernel-abi-1"
}

// DriverError tells which driver cannot be used and why.
type DriverError struct {
	// Driver is the driver's name, or its type where it gives no name.
	Driver string
	Reason string
	// Err is the cause, nil where the reason is all there is.
	Err error
}

func (e *DriverError) Error() string {
	return fmt.Sprintf("supervisor: driver %q: %s", shorten(e.Driver), e.Reason)
}

// Unwrap returns the cause.
func (e *DriverError) Unwrap() error { return e.Err }

// DriverRegistry knows the driver of every spec: registered ones by the specs
// that they own, and where a [Compiler] is set those compiled from published
// revisions, of which it keeps the [CompiledRevisionLimit] most recently used.
//
// All methods may be called at any time by many goroutines, also beside running
// passes, which see each registration whole or not at all. The zero value is an
// empty registry. A registry must not be copied after first use.
type DriverRegistry[C any] struct {
	// writing serialises those that replace state; readers only load it.
	writing sync.Mutex
	state   atomic.Pointer[registrations[C]]
}

// registrations is one immutable state of a registry: every change makes a new one.
type registrations[C any] struct {
	names   []string // in the order of registration, as are drivers
	drivers []Driver[C]
	owners  map[string]owner[C] // by spec id
	// compiled serves what no registered driver owns. It belongs to one
	// compiler and is replaced with it; nil where there is none.
	compiled  *revisionCache[C]
	prewarmed []string // spec ids
	specIDs   []string // sorted: of owners and prewarmed
}

type owner[C any] struct {
	driver Driver[C]
	name   string
}

// NewDriverRegistry returns an empty registry.
func NewDriverRegistry[C any]() *DriverRegistry[C] {
	return new(DriverRegistry[C])
}

func (r *DriverRegistry[C]) load() *registrations[C] {
	if state := r.state.Load(); state != nil {
		return state
	}
	return new(registrations[C])
}

// Register adds a driver for the specs that it owns, all of them or, beside an
// error, none: a [*DriverError] for a nil driver, a blank, oversized or
// repeated spec id, a spec that has an owner already (dispatch must not depend
// on the order of registration), and a driver that panics when asked for its
// name or specs. A driver may own no spec; it is then never asked to evaluate.
func (r *DriverRegistry[C]) Register(driver Driver[C]) error {
	if isNil(driver) {
		return &DriverError{Driver: fmt.Sprintf("%T", driver), Reason: "is nil"}
	}
	// The driver's own code runs before the lock is taken: whatever it does, the
	// registry is not harmed.
	name, specIDs, err := introduce(driver)
	if err != nil {
		return err
	}
	for n, specID := range specIDs {
		if err := checkID(fmt.Sprintf("SpecIDs()[%d]", n), specID); err != nil {
			return &DriverError{Driver: name, Reason: err.Error(), Err: err}
		}
		if slices.Contains(specIDs[:n], specID) {
			return &DriverError{Driver: name, Reason: fmt.Sprintf("SpecIDs()[%d] repeats %q", n, shorten(specID))}
		}
	}

	r.writing.Lock()
	defer r.writing.Unlock()
	next := *r.load()
	owners := make(map[string]owner[C], len(next.owners)+len(specIDs))
	maps.Copy(owners, next.owners)
	for _, specID := range specIDs {
		if other, taken := owners[specID]; taken {
			return &DriverError{Driver: name, Reason: fmt.Sprintf("spec %q is already owned by driver %q", shorten(specID), shorten(other.name))}
		}
		owners[specID] = owner[C]{driver: driver, name: name}
	}
	next.owners = owners
	next.drivers = append(slices.Clip(next.drivers), driver)
	next.names = append(slices.Clip(next.names), name)
	r.replace(next)
	return nil
}

// introduce asks a driver who it is.
func introduce[C any](driver Driver[C]) (name string, specIDs []string, err error) {
	err = guard("Name", func() error {
		name = driver.Name()
		return nil
	})
	if err != nil {
		return "", nil, &DriverError{Driver: fmt.Sprintf("%T", driver), Reason: err.Error(), Err: err}
	}
	err = guard("SpecIDs", func() error {
		specIDs = driver.SpecIDs()
		return nil
	})
	if err != nil {
		return "", nil, &DriverError{Driver: name, Reason: err.Error(), Err: err}
	}
	return name, specIDs, nil
}

// replace makes next the registry's state. The caller holds writing.
func (r *DriverRegistry[C]) replace(next registrations[C]) {
	specIDs := slices.AppendSeq(slices.Clone(next.prewarmed), maps.Keys(next.owners))
	slices.Sort(specIDs)
	next.specIDs = slices.Clip(slices.Compact(specIDs))
	r.state.Store(&next)
}

// UseCompiler has published revisions of specs that no registered driver owns
// compiled and executed. It replaces the compiler that was set before and drops
// everything compiled by it, prewarmed specs included. Compiles that are under
// way end as they would have. Nil, also a nil pointer, takes the compiler away.
func (r *DriverRegistry[C]) UseCompiler(compiler Compiler[C]) {
	r.writing.Lock()
	defer r.writing.Unlock()
	next := *r.load()
	next.prewarmed = nil
	next.compiled = nil
	if !isNil(compiler) {
		next.compiled = newRevisionCache(compiler)
	}
	r.replace(next)
}

// Prewarm compiles a shipped spec ahead, as a [Revision] that has spec id, spec
// and ABI "1" only, and blocks until that is done or ctx ends. It lists the
// spec in SpecIDs. Execution still needs the published revision: the first one
// that is resolved with an equal spec, in whatever notation, and without
// capabilities, expressions or dependencies takes the compiled driver over, any
// other is compiled on its own.
//
// Prewarming again what still waits to be taken over is nil at once; another
// spec under the same id takes its place. The caller keeps the memory of spec. Errors: no
// compiler is set, the compiler was replaced meanwhile, a spec id or spec that
// no revision can have, the compiler's own.
func (r *DriverRegistry[C]) Prewarm(ctx context.Context, specID string, spec json.RawMessage) error {
	cache := r.load().compiled
	if cache == nil {
		return fmt.Errorf("supervisor: prewarm spec %q: no compiler is set", shorten(specID))
	}
	if err := cache.prewarm(ctx, specID, spec); err != nil {
		return fmt.Errorf("supervisor: prewarm spec %q: %w", shorten(specID), err)
	}

	r.writing.Lock()
	defer r.writing.Unlock()
	next := *r.load()
	if next.compiled != cache {
		return fmt.Errorf("supervisor: prewarm spec %q: the compiler was replaced", shorten(specID))
	}
	if !slices.Contains(next.prewarmed, specID) {
		next.prewarmed = append(slices.Clip(next.prewarmed), specID)
		r.replace(next)
	}
	return nil
}

// ForSpec returns the registered driver that owns a spec.
func (r *DriverRegistry[C]) ForSpec(specID string) (Driver[C], bool) {
	owner, ok := r.load().owners[specID]
	return owner.driver, ok
}

// SpecIDs returns every spec that is owned by a registered driver or prewarmed,
// sorted and each once, in memory of the caller's own.
func (r *DriverRegistry[C]) SpecIDs() []string { return slices.Clone(r.load().specIDs) }

// Names returns the names of the registered drivers in the order of their
// registration, in memory of the caller's own.
func (r *DriverRegistry[C]) Names() []string { return slices.Clone(r.load().names) }

// IsEmpty reports whether no driver is registered and no spec prewarmed.
// Published revisions may be executed all the same, where a compiler is set.
func (r *DriverRegistry[C]) IsEmpty() bool {
	state := r.load()
	return len(state.drivers) == 0 && len(state.prewarmed) == 0
}

// ValidateAll asks every registered driver to validate its specs and returns
// all that is wrong: a joined [*DriverError] for each driver that refuses or
// panics.
func (r *DriverRegistry[C]) ValidateAll() error {
	state := r.load()
	var errs []error
	for n, driver := range state.drivers {
		if err := guard("ValidateSpecs", driver.ValidateSpecs); err != nil {
			errs = append(errs, &DriverError{Driver: state.names[n], Reason: errorText(err), Err: err})
		}
	}
	return errors.Join(errs...)
}

// claimSpecs returns the specs that a pass claims, nil for all where a compiler
// is set. idle says that there is nothing that the registry could evaluate: a
// claim of no specs would be one of all. The list is shared and must not be
// changed.
func (r *DriverRegistry[C]) claimSpecs() (specIDs []string, idle bool) {
	state := r.load()
	if state.compiled != nil {
		return nil, false
	}
	return state.specIDs, len(state.specIDs) == 0
}

// isNil reports whether an interface holds nothing or a nil pointer, whose
// methods would panic when they are called much later.
func isNil(value any) bool {
	if value == nil {
		return true
	}
	v := reflect.ValueOf(value)
	switch v.Kind() {
	case reflect.Pointer, reflect.Map, reflect.Func, reflect.Chan, reflect.Slice:
		return v.IsNil()
	}
	return false
}
