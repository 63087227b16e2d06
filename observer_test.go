package supervisor

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// brokenHandler panics whatever it is asked.
type brokenHandler struct{ slog.Handler }

func (brokenHandler) Enabled(context.Context, slog.Level) bool { panic("enabled") }

// halfBrokenHandler panics only with a record.
type halfBrokenHandler struct{ slog.Handler }

func (halfBrokenHandler) Enabled(context.Context, slog.Level) bool  { return true }
func (halfBrokenHandler) Handle(context.Context, slog.Record) error { panic("handle") }

func TestPanicsOfALogHandlerAreDropped(t *testing.T) {
	for _, handler := range []slog.Handler{brokenHandler{}, halfBrokenHandler{}} {
		queue := &scriptQueue{items: testItems(2)}
		settings := testSettings()
		settings.Logger = slog.New(handler)
		stats, err := RunDuePass(t.Context(), queue, testRegistry(func(_ context.Context, item *WorkItem) (TransitionCommand, error) {
			return completed(item)
		}), settings, noContext)
		require.NoError(t, err)
		require.Equal(t, Stats{Claimed: 2, Completed: 2}, stats)
	}
}

// A check that fails in an observer, as tests have them, ends its goroutine.
func TestPassEndsAfterAGoexitInItsLastObserver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		settings := testSettings()
		settings.Observer = &Observer{PassEnd: func(PassInfo) { require.Equal(failNow{}, 1, 2) }}
		stats, err := RunDuePass(t.Context(), &scriptQueue{items: testItems(2)}, testRegistry(func(_ context.Context, item *WorkItem) (TransitionCommand, error) {
			return completed(item)
		}), settings, noContext)
		require.NoError(t, err)
		require.Equal(t, Stats{Claimed: 2, Completed: 2}, stats)
	})
}
