package supervisor

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Revision is an immutable published content of a definition.
type Revision struct {
	DefinitionID string `json:"definition_id"`
	// Revision is positive.
	Revision uint64 `json:"revision"`
	SpecID   string `json:"spec_id"`
	// Spec is passed to the compiler unchanged.
	Spec json.RawMessage `json:"spec,omitempty"`
	// ContentDigest identifies the content. One that begins with "sha256:" is
	// verified; any other scheme is the caller's and opaque.
	ContentDigest    string `json:"content_digest"`
	KernelABIVersion string `json:"kernel_abi_version"`
	// Capabilities are the pins of the revision; as content they are a set.
	Capabilities        []CapabilityPin   `json:"capabilities,omitempty"`
	ExpressionVersions  map[string]string `json:"expression_versions,omitempty"`
	DependencySetDigest string            `json:"dependency_set_digest,omitempty"`
}

// digestPrefix marks digests that are verified against the content.
const digestPrefix = "sha256:"

// Validate reports everything that keeps the revision from being published or
// executed: blank or oversized ids, a revision of 0, text or JSON that a store
// cannot hold, a capability id that is pinned twice, and a "sha256:" digest
// that is not the content's.
func (r *Revision) Validate() error {
	errs := []error{
		checkID("DefinitionID", r.DefinitionID),
		checkID("SpecID", r.SpecID),
		checkRequired("ContentDigest", r.ContentDigest),
		checkRequired("KernelABIVersion", r.KernelABIVersion),
		checkText("DependencySetDigest", r.DependencySetDigest),
	}
	if r.Revision == 0 {
		errs = append(errs, errors.New("Revision is 0, must be positive"))
	}
	if len(r.Spec) == 0 {
		errs = append(errs, errors.New("Spec is nil"))
	} else {
		errs = append(errs, checkJSON("Spec", r.Spec))
	}
	pinned := make(map[string]bool, len(r.Capabilities))
	for n := range r.Capabilities {
		pin := &r.Capabilities[n]
		errs = append(errs, pin.validate(fmt.Sprintf("Capabilities[%d]", n)))
		if pinned[pin.ID] {
			errs = append(errs, fmt.Errorf("Capabilities[%d] pins %q again", n, shorten(pin.ID)))
		}
		pinned[pin.ID] = true
	}
	for expression, version := range r.ExpressionVersions {
		if isBlank(expression) || isBlank(version) {
			errs = append(errs, fmt.Errorf("ExpressionVersions[%q] is %q, neither may be blank", shorten(expression), shorten(version)))
		}
		errs = append(errs, checkText("ExpressionVersions", expression), checkText("ExpressionVersions", version))
	}
	err := errors.Join(errs...)
	if err == nil && strings.HasPrefix(r.ContentDigest, digestPrefix) {
		var digest string
		if digest, err = r.ComputeDigest(); err == nil && digest != r.ContentDigest {
			err = fmt.Errorf("ContentDigest is %q, the content's is %q", shorten(r.ContentDigest), digest)
		}
	}
	if err != nil {
		return fmt.Errorf("supervisor: revision: %w", err)
	}
	return nil
}

// ComputeDigest returns "sha256:<hex>" over the canonical content: spec id,
// spec, ABI version, capabilities as a set, expression versions and dependency
// digest. It does not depend on key order, white space, escapes or the notation
// of numbers, so that content read back from any store has the same digest.
func (r *Revision) ComputeDigest() (string, error) {
	content, err := r.canonicalContent()
	if err != nil {
		return "", fmt.Errorf("supervisor: revision: Spec: %w", err)
	}
	sum := sha256.Sum256(content)
	return digestPrefix + hex.EncodeToString(sum[:]), nil
}

// clone returns a deep copy.
func (r *Revision) clone() *Revision {
	revision := *r
	revision.Spec = slices.Clone(r.Spec)
	revision.Capabilities = slices.Clone(r.Capabilities)
	revision.ExpressionVersions = maps.Clone(r.ExpressionVersions)
	return &revision
}
