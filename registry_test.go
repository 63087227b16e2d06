package supervisor

import (
	"context"
	"encoding/json"
	"testing"

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
	digest, err := revision.ComputeDigest()
	require.NoError(t, err)
	revision.ContentDigest = digest
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
	instance.CapabilityPins = revision.Capabilities
	return &WorkItem{Instance: instance, State: instance.Config, LeaseVersion: 1}
}

func TestResolveRevisionCompilesOnceAndServesFromTheCache(t *testing.T) {
	registry := NewDriverRegistry[int]()
	compiler := &stepCompiler[int]{}
	registry.UseCompiler(compiler)
	revision := stepRevision(t, "sum", `{"start": 2, "steps": [{"op": "add", "by": 3}]}`)
	item := claimOf(t, revision)

	first, err := registry.ResolveRevision(t.Context(), item, revision)
	require.NoError(t, err)
	again, err := registry.ResolveRevision(t.Context(), item, revision)
	require.NoError(t, err)
	require.Same(t, first, again)
	require.EqualValues(t, 1, compiler.compiles.Load())

	command, err := first.Evaluate(context.Background(), 0, item)
	require.NoError(t, err)
	require.JSONEq(t, `{"next": 1, "value": 5}`, string(command.NextState))
	require.Equal(t, Complete{}, command.Disposition)
	require.NoError(t, command.ValidateFor(item))
}
