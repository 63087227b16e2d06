package supervisor

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What resolution cannot do is told to whoever asks why an instance does not run.
func TestExplainTellsWhatResolutionCouldNotDo(t *testing.T) {
	tests := map[string]struct {
		specID     string
		number     uint64
		spec       string // published; empty: nothing is
		wantReason Reason
		wantDetail string
	}{
		"registered, other revision": {"owned", 2, "", ReasonNoDriver, `"owned" does not support the claimed revision 2`},
		"not published":              {"unpublished", 1, "", ReasonRevisionUnpublished, "revision is unavailable"},
		"does not compile":           {"refused", 1, `{"steps": []}`, ReasonBackingOff, "spec has no steps"},
		"compiler panics":            {"panics", 1, addSpec, ReasonBackingOff, "compiler panicked: at the disco"},
		"compiler ends its goroutine": {
			"ends", 1, addSpec, ReasonBackingOff, "compiler called runtime.Goexit",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			registry, compiler := newStepRegistry(t)
			compiler.before = func(_ context.Context, revision *Revision) error {
				switch revision.SpecID {
				case "panics":
					panic("at the disco")
				case "ends":
					runtime.Goexit()
				}
				return nil
			}
			require.NoError(t, registry.Register(NewDriver("owned", 1, func(context.Context, int, *WorkItem) (TransitionCommand, error) {
				return TransitionCommand{}, nil
			})))
			queue := NewMemoryWorkQueue()
			instance, err := NewInstance(test.specID, test.number, nil)
			require.NoError(t, err)
			if test.spec != "" {
				revision := stepRevision(t, test.specID, test.spec)
				revision.DefinitionID = instance.DefinitionID
				instance.WorkflowRevisionDigest = revision.ContentDigest
				require.NoError(t, queue.PublishRevision(ctx, instance.TenantID, revision))
			}
			_, err = queue.Start(ctx, instance, time.Time{})
			require.NoError(t, err)
			stats, err := RunDuePass(ctx, queue, registry, Settings{}, func(context.Context) (int, error) { return 0, nil })
			require.NoError(t, err)
			require.Equal(t, Stats{Claimed: 1, Failed: 1}, stats)
			explanation, err := queue.Explain(ctx, instance.TenantID, instance.ID)
			require.NoError(t, err)
			require.Equal(t, test.wantReason, explanation.Reason)
			require.Contains(t, explanation.Detail, test.wantDetail)
		})
	}
}
