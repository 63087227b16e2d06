package supervisor

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// testPin is the capability of all intents in these tests.
var testPin = CapabilityPin{ID: "charge", ContractVersion: "1", ContentDigest: "sha"}

// testProvider is a provider without any ability that notes what it is asked for.
type testProvider struct {
	onDispatch func(ctx context.Context, handoff *Handoff) (Receipt, error)

	mu       sync.Mutex
	handoffs []string // id#attempt, in order
}

func (p *testProvider) Dispatch(ctx context.Context, handoff *Handoff) (Receipt, error) {
	p.mu.Lock()
	p.handoffs = append(p.handoffs, fmt.Sprintf("%s#%d", handoff.Intent.ID, handoff.Attempt))
	p.mu.Unlock()
	if p.onDispatch == nil {
		return succeeded(`"done"`), nil
	}
	return p.onDispatch(ctx, handoff)
}

func (p *testProvider) handedOff() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.handoffs...)
}

// ableProvider has all abilities.
type ableProvider struct {
	testProvider
	onObserve   func(handoff *Handoff, receipt Receipt) (Report, error)
	onReconcile func(handoff *Handoff) (Reconciliation, error)
	onCancel    func(handoff *Handoff, receipt Receipt) error
}

func (p *ableProvider) Observe(_ context.Context, handoff *Handoff, receipt Receipt) (Report, error) {
	return p.onObserve(handoff, receipt)
}

func (p *ableProvider) Reconcile(_ context.Context, handoff *Handoff) (Reconciliation, error) {
	return p.onReconcile(handoff)
}

func (p *ableProvider) Cancel(_ context.Context, handoff *Handoff, receipt Receipt) error {
	return p.onCancel(handoff, receipt)
}

// reconcilingProvider has only one ability.
type reconcilingProvider struct {
	testProvider
	onReconcile func(handoff *Handoff) (Reconciliation, error)
}

func (p *reconcilingProvider) Reconcile(_ context.Context, handoff *Handoff) (Reconciliation, error) {
	return p.onReconcile(handoff)
}

func succeeded(output string) Receipt {
	return Receipt{Report: Report{Status: ProviderSucceeded, Output: json.RawMessage(output)}}
}

func running(reference string) Receipt { return Receipt{Reference: reference} }

// testIntent is a write to the world of a retry class.
func testIntent(item *WorkItem, id string, class IdempotencyMode) ActionIntent {
	return ActionIntent{
		ID: id, TenantID: item.TenantID, InstanceID: item.ID, RunID: item.RunID, Capability: testPin,
		IdempotencyKey: "key-" + id, State: ActionPrepared, Input: json.RawMessage(`{"amount":"1.00"}`),
		Effect: EffectExternalWrite, RetryClass: class,
		ControlEpochs: item.ControlEpochs, LeaseEpoch: item.LeaseVersion, ActionEpoch: item.StateVersion,
	}
}

// queueWithIntents is a queue with one instance that waits for the results of
// the intents which its one commit stored.
func queueWithIntents(t *testing.T, intents ...func(item *WorkItem) ActionIntent) *MemoryWorkQueue {
	t.Helper()
	item := memItem("a")
	item.CapabilityPins = []CapabilityPin{testPin}
	q := NewMemoryWorkQueue(item)
	commitIntents(t, q, intents...)
	return q
}

func commitIntents(t *testing.T, q *MemoryWorkQueue, intents ...func(item *WorkItem) ActionIntent) {
	t.Helper()
	item := memClaimOne(t, q)
	command := memCommand(t, &item, Reschedule{At: time.Now().Add(1000 * time.Hour)})
	for _, intent := range intents {
		command.ActionIntents = append(command.ActionIntents, intent(&item))
	}
	require.NoError(t, q.CommitCommand(t.Context(), &item, &command))
}

// of makes intents for queueWithIntents.
func of(id string, class IdempotencyMode, change ...func(*ActionIntent)) func(*WorkItem) ActionIntent {
	return func(item *WorkItem) ActionIntent {
		intent := testIntent(item, id, class)
		for _, change := range change {
			change(&intent)
		}
		return intent
	}
}

func providers(t *testing.T, provider Provider, options ProviderOptions) *ProviderRegistry {
	t.Helper()
	registry := NewProviderRegistry()
	require.NoError(t, registry.Register(testPin, provider, options))
	return registry
}

// intentsOf returns the records of a queue's intents by id.
func intentsOf(t *testing.T, q IntentOperator) map[string]IntentRecord {
	t.Helper()
	records := map[string]IntentRecord{}
	for record, err := range q.ListIntents(t.Context(), IntentFilter{}) {
		require.NoError(t, err)
		records[record.Intent.ID] = record
	}
	return records
}

// results claims the instance and returns what its wakeups tell of intents.
func results(t *testing.T, q *MemoryWorkQueue) []ActionResult {
	t.Helper()
	var results []ActionResult
	for _, item := range memClaim(t, q, 10) {
		for n := range item.Wakeups {
			result, err := ParseActionResult(&item.Wakeups[n])
			require.NoError(t, err)
			results = append(results, result)
		}
		require.NoError(t, q.Release(t.Context(), &item, "looked"))
	}
	return results
}

func dispatchOnce(t *testing.T, q IntentQueue, registry *ProviderRegistry) (DispatchStats, error) {
	t.Helper()
	return RunDispatchPass(t.Context(), q, registry, Settings{WorkerID: "d", DrainTimeout: time.Minute})
}

// dispatchUntil runs passes, and lets time go by between them, until nothing
// was claimed for an hour.
func dispatchUntil(t *testing.T, q IntentQueue, registry *ProviderRegistry) (all DispatchStats) {
	t.Helper()
	for idle := 0; idle < 3600; idle++ {
		stats, err := dispatchOnce(t, q, registry)
		require.NoError(t, err)
		all.add(stats)
		if stats.Claimed > 0 {
			idle = 0
		}
		time.Sleep(time.Second)
	}
	return all
}
