package supervisor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// errNoDriver marks failures of instances whose spec or revision nothing in
// this registry can evaluate; another worker may.
var errNoDriver = errors.New("supervisor: no driver")

// resolve returns the driver that evaluates a claimed item whose pins are
// valid. It may load the pinned revision from the queue and compile it.
func (r *DriverRegistry[C]) resolve(ctx context.Context, queue WorkQueue, item *WorkItem) (Driver[C], error) {
	state := r.load()
	if owner, ok := state.owners[item.SpecID]; ok {
		if !owner.driver.SupportsRevision(item) {
			return nil, fmt.Errorf("%w: %q does not support the claimed revision %d with digest %q and ABI version %q of spec %q",
				errNoDriver, shorten(owner.name), item.WorkflowRevision, shorten(item.WorkflowRevisionDigest),
				shorten(item.KernelABIVersion), shorten(item.SpecID))
		}
		return owner.driver, nil
	}
	if state.compiled == nil {
		return nil, noOwner(item)
	}
	// A verified digest proves what the queue would return.
	if strings.HasPrefix(item.WorkflowRevisionDigest, digestPrefix) {
		if hit := state.compiled.get(keyOf(item)); hit != nil && hit.matches(item) {
			return hit.driver, nil
		}
	}
	revision, err := queue.LoadRevision(ctx, item)
	if err == nil && revision == nil {
		err = ErrRevisionUnavailable
	}
	if err != nil {
		return nil, fmt.Errorf("supervisor: load revision %d with digest %q of definition %q: %w",
			item.WorkflowRevision, shorten(item.WorkflowRevisionDigest), shorten(item.DefinitionID), soundError(err))
	}
	return state.resolveRevision(ctx, item, revision)
}

func noOwner(item *WorkItem) error {
	return fmt.Errorf("%w: none is registered for spec %q and no compiler is set", errNoDriver, shorten(item.SpecID))
}

// ResolveRevision returns the driver that the compiler made of a published
// revision, loaded for the claimed item from the queue of its owner: from the
// cache where it was compiled before, else compiled now. It blocks until there
// is a driver or ctx ends; others that wait for the same revision share one
// compile, which goes on for them when this call's ctx ends and is cancelled
// when nobody is left. Neither item nor revision is kept.
//
// The item's pins and the revision must be valid, the revision must equal the
// claimed definition, revision, digest, spec id, ABI version and pins, and the
// ABI must be one that this library implements. One digest names one content:
// another under the same tenant, definition, spec and digest is an error. What
// fails is not kept: the next call compiles again.
func (r *DriverRegistry[C]) ResolveRevision(ctx context.Context, item *WorkItem, revision *Revision) (Driver[C], error) {
	if item == nil || revision == nil {
		return nil, errors.New("supervisor: resolve: item or revision is nil")
	}
	return r.load().resolveRevision(ctx, item, revision)
}

func (s *registrations[C]) resolveRevision(ctx context.Context, item *WorkItem, revision *Revision) (Driver[C], error) {
	// Versions and epochs of the claim do not matter here, its pins do.
	if err := item.validatePins(); err != nil {
		return nil, fmt.Errorf("supervisor: work item: %w", err)
	}
	if s.compiled == nil {
		return nil, noOwner(item)
	}
	// What equals the text that was validated and compiled is valid and of that
	// content.
	if hit := s.compiled.get(keyOf(item)); hit != nil && hit.matches(item) && hit.sameText(revision) {
		return hit.driver, nil
	}
	if err := revision.Validate(); err != nil {
		return nil, err
	}
	if err := revision.matchClaim(item); err != nil {
		return nil, fmt.Errorf("supervisor: published revision does not match the claim: %w", err)
	}
	if !supportsABI(revision.KernelABIVersion) {
		return nil, fmt.Errorf("%w: ABI version %q of revision %d of definition %q is not supported",
			errNoDriver, shorten(revision.KernelABIVersion), revision.Revision, shorten(revision.DefinitionID))
	}
	return s.compiled.resolve(ctx, item.TenantID, revision)
}

// matchClaim compares the revision with the pins of a claim; the error names
// the first field that differs.
func (r *Revision) matchClaim(item *WorkItem) error {
	for _, pin := range [...]struct{ field, published, claimed string }{
		{"DefinitionID", r.DefinitionID, item.DefinitionID},
		{"ContentDigest", r.ContentDigest, item.WorkflowRevisionDigest},
		{"SpecID", r.SpecID, item.SpecID},
		{"KernelABIVersion", r.KernelABIVersion, item.KernelABIVersion},
	} {
		if pin.published != pin.claimed {
			return fmt.Errorf("%s is %q, claimed was %q", pin.field, shorten(pin.published), shorten(pin.claimed))
		}
	}
	if r.Revision != item.WorkflowRevision {
		return fmt.Errorf("Revision is %d, claimed was %d", r.Revision, item.WorkflowRevision)
	}
	if !samePins(r.Capabilities, item.CapabilityPins) {
		return fmt.Errorf("Capabilities are %s, claimed were %s", pinList(r.Capabilities), pinList(item.CapabilityPins))
	}
	return nil
}

// samePins compares pins as sets.
func samePins(a, b []CapabilityPin) bool {
	return slices.Equal(a, b) || slices.Equal(pinSet(a), pinSet(b))
}

// pinList writes pins for an error message.
func pinList(pins []CapabilityPin) string {
	const most = 4
	var text strings.Builder
	text.WriteByte('[')
	for n, pin := range pins {
		if n == most {
			fmt.Fprintf(&text, " and %d more", len(pins)-most)
			break
		}
		if n > 0 {
			text.WriteString(", ")
		}
		fmt.Fprintf(&text, "%s@%s#%s", shorten(pin.ID), shorten(pin.ContractVersion), shorten(pin.ContentDigest))
	}
	text.WriteByte(']')
	return text.String()
}
