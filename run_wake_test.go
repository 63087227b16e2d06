package supervisor

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// However long the queue was idle before, and however often the loop looked in
// vain meanwhile, what falls due is served at that instant.
func TestIdleLoopServesWhatFallsDueAtOnce(t *testing.T) {
	for _, idle := range []time.Duration{
		time.Millisecond, 5 * time.Second, time.Minute, 10*time.Minute + 100*time.Millisecond, 5 * time.Hour,
	} {
		t.Run(idle.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				queue := NewMemoryWorkQueue()
				ctx, stop := context.WithCancel(t.Context())
				var servedAt time.Time
				registry := testRegistry(func(_ context.Context, item *WorkItem) (TransitionCommand, error) {
					servedAt = time.Now()
					stop()
					return completed(item)
				})
				loop, err := New(queue, registry, testSettings(), noContext)
				require.NoError(t, err)
				item := testItem("inst-1")
				item.ScheduledAt = time.Now().Add(idle)
				queue.Push(item)
				require.NoError(t, loop.Run(ctx))
				require.Equal(t, item.ScheduledAt, servedAt)
			})
		})
	}
}
