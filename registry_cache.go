package supervisor

import (
	"container/list"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

// CompiledRevisionLimit bounds the compiled revisions that a registry keeps,
// prewarmed ones included; the least recently used go first. It bounds memory by
// number, for nobody knows the size of a driver, and lies above the live
// revisions that one process usually serves. Beyond it nothing fails: what is
// used least often is loaded and compiled again.
const CompiledRevisionLimit = 256

// maxAbandonedCompiles bounds the compiles that nobody waits for any more and
// that go on although their context has ended: a compiler that hangs must not
// add a goroutine with every retry.
const maxAbandonedCompiles = 64

// revisionKey is what a compiled revision is found by. Nothing is served across
// tenants or definitions.
type revisionKey struct {
	tenantID, definitionID, specID, digest string
}

func keyOf(item *WorkItem) revisionKey {
	return revisionKey{item.TenantID, item.DefinitionID, item.SpecID, item.WorkflowRevisionDigest}
}

// prewarmKey is where a prewarmed spec waits for its published revision. No
// published revision has a blank digest.
func prewarmKey(specID string) revisionKey { return revisionKey{specID: specID} }

// revisionCache holds what one compiler made. Its lock is never held while
// anything is compiled, parsed or compared.
type revisionCache[C any] struct {
	compiler Compiler[C]

	mu      sync.Mutex
	entries map[revisionKey]*list.Element // of recency, holding *compiledRevision[C]
	recency *list.List                    // most recently used first
	flights map[revisionKey]*flight[C]    // compiles that somebody waits for
	// abandoned counts the running compiles that nobody waits for.
	abandoned int
}

// compiledRevision is immutable.
type compiledRevision[C any] struct {
	key    revisionKey
	driver Driver[C]
	// content is the digest of the canonical content.
	content string
	// source is a private copy of what was compiled, in its own notation.
	source *Revision
}

// matches reports whether the revision is the one that an item with the same
// key is pinned to. Equal content may be published under several numbers.
func (c *compiledRevision[C]) matches(item *WorkItem) bool {
	return c.source.Revision == item.WorkflowRevision &&
		c.source.KernelABIVersion == item.KernelABIVersion &&
		samePins(c.source.Capabilities, item.CapabilityPins)
}

// sameText reports whether a revision is written exactly as the one that was
// compiled, which is cheaper to know than whether it means the same.
func (c *compiledRevision[C]) sameText(r *Revision) bool {
	s := c.source
	return s.DefinitionID == r.DefinitionID && s.Revision == r.Revision && s.SpecID == r.SpecID &&
		string(s.Spec) == string(r.Spec) && s.ContentDigest == r.ContentDigest &&
		s.KernelABIVersion == r.KernelABIVersion && slices.Equal(s.Capabilities, r.Capabilities) &&
		maps.Equal(s.ExpressionVersions, r.ExpressionVersions) && s.DependencySetDigest == r.DependencySetDigest
}

// flight is one compile and those who wait for it.
type flight[C any] struct {
	key     revisionKey
	content string
	source  *Revision
	cancel  context.CancelFunc
	waiters int  // guarded by the cache's lock
	left    bool // nobody waits any more; guarded by the cache's lock

	done   chan struct{} // closed after driver and err are set
	driver Driver[C]
	err    error
}

func newRevisionCache[C any](compiler Compiler[C]) *revisionCache[C] {
	return &revisionCache[C]{
		compiler: compiler,
		entries:  make(map[revisionKey]*list.Element),
		recency:  list.New(),
		flights:  make(map[revisionKey]*flight[C]),
	}
}

// get returns what is kept under a key and marks it as used, or nil.
func (c *revisionCache[C]) get(key revisionKey) *compiledRevision[C] {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lookup(key)
}

// lookup is get for callers that hold the lock.
func (c *revisionCache[C]) lookup(key revisionKey) *compiledRevision[C] {
	element := c.entries[key]
	if element == nil {
		return nil
	}
	c.recency.MoveToFront(element)
	return element.Value.(*compiledRevision[C])
}

// put keeps a compiled revision in place of the one under its key, or of the
// least recently used. The caller holds the lock.
func (c *revisionCache[C]) put(compiled *compiledRevision[C]) {
	if element := c.entries[compiled.key]; element != nil {
		element.Value = compiled
		c.recency.MoveToFront(element)
		return
	}
	if len(c.entries) >= CompiledRevisionLimit {
		c.remove(c.recency.Back().Value.(*compiledRevision[C]).key)
	}
	c.entries[compiled.key] = c.recency.PushFront(compiled)
}

// remove drops what is kept under a key. The caller holds the lock.
func (c *revisionCache[C]) remove(key revisionKey) {
	if element := c.entries[key]; element != nil {
		c.recency.Remove(element)
		delete(c.entries, key)
	}
}

// resolve returns the driver of a valid revision.
func (c *revisionCache[C]) resolve(ctx context.Context, tenantID string, revision *Revision) (Driver[C], error) {
	key := revisionKey{tenantID, revision.DefinitionID, revision.SpecID, revision.ContentDigest}
	// Validation has proved a digest of ours to be the content's.
	content := revision.ContentDigest
	if !strings.HasPrefix(content, digestPrefix) {
		var err error
		if content, err = revision.ComputeDigest(); err != nil {
			return nil, err
		}
	}
	var bare string
	if len(revision.Capabilities) == 0 && len(revision.ExpressionVersions) == 0 && revision.DependencySetDigest == "" {
		var err error
		if bare, err = bareRevision(revision.SpecID, revision.Spec).ComputeDigest(); err != nil {
			return nil, err
		}
	}
	driver, err := c.compile(ctx, key, content, bare, revision.clone())
	if err != nil {
		return nil, fmt.Errorf("supervisor: revision %d with digest %q of definition %q: %w",
			revision.Revision, shorten(revision.ContentDigest), shorten(revision.DefinitionID), err)
	}
	return driver, nil
}

// bareRevision is what a shipped spec is compiled as ahead of its publication.
func bareRevision(specID string, spec json.RawMessage) *Revision {
	return &Revision{SpecID: specID, Spec: spec, KernelABIVersion: DefaultKernelABIVersion}
}

// prewarm compiles a shipped spec unless it is there already.
func (c *revisionCache[C]) prewarm(ctx context.Context, specID string, spec json.RawMessage) error {
	if err := checkID("spec id", specID); err != nil {
		return err
	}
	if err := checkJSON("spec", spec); err != nil {
		return err
	}
	revision := bareRevision(specID, spec)
	content, err := revision.ComputeDigest()
	if err != nil {
		return err
	}
	_, err = c.compile(ctx, prewarmKey(specID), content, "", revision.clone())
	return err
}

// errOtherContent: see [DriverRegistry.ResolveRevision].
var errOtherContent = errors.New("the digest names other content than what was compiled under it")

// compile returns what is kept under the key, adopts what was prewarmed with
// the bare content (none where that is empty), joins the compile that is under
// way or starts one, and waits. The source becomes the cache's.
func (c *revisionCache[C]) compile(ctx context.Context, key revisionKey, content, bare string, source *Revision) (Driver[C], error) {
	for {
		driver, flight, err := c.enter(ctx, key, content, bare, source)
		if flight == nil {
			return driver, err
		}
		select {
		case <-flight.done:
		case <-ctx.Done():
			c.leave(flight)
			return nil, fmt.Errorf("waiting for the compile: %w", context.Cause(ctx))
		}
		if flight.content == content {
			return flight.driver, flight.err
		}
		// Another content was compiled under the same digest. It counts only if
		// it was kept, which the next round tells.
	}
}

// enter returns a driver, an error, or a flight that the caller now waits for.
func (c *revisionCache[C]) enter(ctx context.Context, key revisionKey, content, bare string, source *Revision) (Driver[C], *flight[C], error) {
	if ctx.Err() != nil {
		return nil, nil, context.Cause(ctx)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if kept := c.lookup(key); kept != nil {
		switch {
		case kept.content == content:
			// The same content in another notation or under another number, which
			// the next claim is likely to come with too.
			c.put(&compiledRevision[C]{key: key, driver: kept.driver, content: content, source: source})
			return kept.driver, nil, nil
		case key != prewarmKey(key.specID):
			return nil, nil, errOtherContent
		}
	}
	if joined := c.flights[key]; joined != nil {
		joined.waiters++
		return nil, joined, nil
	}
	if bare != "" {
		if shipped := c.entries[prewarmKey(key.specID)]; shipped != nil {
			if prewarmed := shipped.Value.(*compiledRevision[C]); prewarmed.content == bare {
				c.remove(prewarmed.key)
				c.put(&compiledRevision[C]{key: key, driver: prewarmed.driver, content: content, source: source})
				return prewarmed.driver, nil, nil
			}
		}
	}
	if c.abandoned >= maxAbandonedCompiles {
		return nil, nil, fmt.Errorf("%d compiles that ignore the end of their context are still running", c.abandoned)
	}
	// The compile serves all who wait, so that it does not end with the first of
	// them.
	compiling, cancel := context.WithCancel(context.WithoutCancel(ctx))
	started := &flight[C]{
		key: key, content: content, source: source, cancel: cancel,
		waiters: 1, done: make(chan struct{}),
	}
	c.flights[key] = started
	// The goroutine ends with the compile. Those who wait join it; when the last
	// of them gives up, its context ends and nobody is interested in it any more.
	go c.run(compiling, started)
	return nil, started, nil
}

// leave gives up waiting. The last one cancels the compile, whose result is
// dropped; who comes next starts another one at once.
func (c *revisionCache[C]) leave(f *flight[C]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f.waiters--
	if f.waiters == 0 && c.flights[f.key] == f {
		f.left = true
		c.abandoned++
		delete(c.flights, f.key)
		f.cancel()
	}
}

// run compiles and ends the flight, whatever the compiler does.
func (c *revisionCache[C]) run(ctx context.Context, f *flight[C]) {
	f.err = &PanicError{Op: "compiler"} // unless it returns or panics
	defer func() {
		f.cancel()
		c.mu.Lock()
		defer c.mu.Unlock()
		defer close(f.done)
		if f.left {
			c.abandoned--
			return
		}
		delete(c.flights, f.key)
		if f.err == nil {
			c.put(&compiledRevision[C]{key: f.key, driver: f.driver, content: f.content, source: f.source})
		}
	}()
	// The compiler may change what it is given.
	f.driver, f.err = callCompiler(ctx, c.compiler, f.source.clone())
}

// callCompiler contains panics. What it returns is a driver, or an error that
// can be printed.
func callCompiler[C any](ctx context.Context, compiler Compiler[C], revision *Revision) (driver Driver[C], err error) {
	err = guard("compiler", func() (err error) {
		if driver, err = compiler.Compile(ctx, revision); err != nil {
			// The text is made here, where a panic of its methods is contained.
			return fmt.Errorf("compile: %w", soundError(err))
		}
		return nil
	})
	switch {
	case err != nil:
		return nil, err
	case isNil(driver):
		return nil, fmt.Errorf("the compiler returned a nil driver (%T)", driver)
	}
	return driver, nil
}
