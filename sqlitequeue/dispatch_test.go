package sqlitequeue

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/workflow-supervisor/supervisor"
)

// countingProvider succeeds at once, and counts.
type countingProvider struct {
	mu    sync.Mutex
	calls map[string]int
}

func (p *countingProvider) Dispatch(_ context.Context, handoff *supervisor.Handoff) (supervisor.Receipt, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls[handoff.Intent.ID]++
	return supervisor.Receipt{Report: supervisor.Report{Status: supervisor.ProviderSucceeded}}, nil
}

// Two dispatchers share what one file has, within its limits, each intent once.
func TestDispatchersShareAFile(t *testing.T) {
	const count = 60
	q := open(t, Options{})
	require.NoError(t, q.LimitIntents(t.Context(), supervisor.IntentLimit{CapabilityID: "mail", Max: 2}))
	provider := &countingProvider{calls: make(map[string]int)}
	providers := supervisor.NewProviderRegistry()
	require.NoError(t, providers.Register(payPin, provider, supervisor.ProviderOptions{}))
	require.NoError(t, providers.Register(mailPin, provider, supervisor.ProviderOptions{}))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var running sync.WaitGroup
	for n := range 2 {
		d, err := supervisor.NewDispatcher(q, providers, supervisor.Settings{WorkerID: fmt.Sprint("d", n), Concurrency: 8})
		require.NoError(t, err)
		running.Go(func() {
			if err := d.Run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	var intents []supervisor.ActionIntent
	for n := range count {
		intent := write(fmt.Sprint(n), payPin)
		if n%2 == 0 {
			intent.Capability = mailPin
		}
		if n%3 == 0 {
			intent.RetryClass = supervisor.IdempotencyNative
		}
		intents = append(intents, intent)
	}
	plan(t, q, "a", intents...)
	require.Eventually(t, func() bool {
		snapshot, err := q.Get(t.Context(), supervisor.DefaultTenantID, "a")
		return err == nil && snapshot.PendingWakeups == count
	}, 50*time.Second, 5*time.Millisecond)
	cancel()
	running.Wait()
	require.Len(t, provider.calls, count)
	for id, calls := range provider.calls {
		require.Equal(t, 1, calls, "calls of %s", id)
	}
	for id, state := range listIntentStates(t, q, supervisor.IntentFilter{}) {
		require.Equal(t, supervisor.ActionSucceeded, state, id)
	}
}
