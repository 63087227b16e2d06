package supervisor

import (
	"context"
	"errors"
	"math"
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

// The longest interval means that the loop does not poll, with whatever is
// added to it or made of it.
func TestTheLongestPollIntervalNeverPolls(t *testing.T) {
	for name, wait := range map[string]func(context.Context, []string) error{
		"no waiter": nil,
		"waiter": func(ctx context.Context, _ []string) error {
			<-ctx.Done()
			return ctx.Err()
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithTimeout(t.Context(), 24*time.Hour)
				defer stop()
				script := new(scriptQueue)
				script.onClaim = func(context.Context, ClaimRequest) ([]WorkItem, error) {
					if len(script.claims) == 5 {
						stop()
					}
					return nil, nil
				}
				queue := WorkQueue(script)
				if wait != nil {
					queue = &waitingQueue{scriptQueue: script, onWait: wait}
				}
				settings := testSettings()
				settings.PollInterval = math.MaxInt64
				loop, err := New(queue, testRegistry(nil), settings, noContext)
				require.NoError(t, err)
				require.NoError(t, loop.Run(ctx))
				require.Len(t, script.claims, 1)
			})
		})
	}
}

// With a waiter the poll interval may be long. A fault that passes must not
// stop the loop for as long as that.
func TestFaultsAreRetriedWithinAMinuteHoweverLongThePollInterval(t *testing.T) {
	const most = maxBackOff + maxBackOff/10
	broken := errors.New("broken")
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		script := new(scriptQueue)
		script.onClaim = func(context.Context, ClaimRequest) ([]WorkItem, error) {
			switch len(script.claims) {
			case 1, 2:
				return nil, broken
			case 4:
				stop()
			}
			return nil, nil
		}
		settings := testSettings()
		settings.PollInterval = 5 * time.Hour
		queue := &waitingQueue{scriptQueue: script, onWait: func(context.Context, []string) error { return broken }}
		loop, err := New(queue, testRegistry(nil), settings, noContext)
		require.NoError(t, err)
		require.NoError(t, loop.Run(ctx))
		require.Len(t, script.claims, 4)
		for n := range 3 {
			pause := script.claims[n+1].at.Sub(script.claims[n].at)
			require.GreaterOrEqual(t, pause, time.Second)
			require.LessOrEqual(t, pause, most)
		}
	})
}
