package dispatchtrial

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

// bank is the world outside. It outlives every dispatcher, keeps a ledger of what
// it did, takes repeats of class native under one key as one, and can promise to
// refuse an identity that it has not seen.
type bank struct {
	mu      sync.Mutex
	random  *rand.Rand
	works   map[string]*work // by identity, or by key where it deduplicates
	byRef   map[string]*work
	refused map[string]bool // by identity
	effects map[string]int  // by key
	calls   map[string]int  // by identity: how often it arrived
}

// work is what the bank accepted.
type work struct {
	key, reference string
	// ended is what became of it; empty: not ended.
	ended    supervisor.ProviderStatus
	canceled bool
	looks    int
}

func newBank(seed uint64) *bank {
	return &bank{
		random: rand.New(rand.NewPCG(seed, 1)),
		works:  map[string]*work{}, byRef: map[string]*work{},
		refused: map[string]bool{}, effects: map[string]int{}, calls: map[string]int{},
	}
}

var (
	errPlanned = errors.New("planned")
	output     = json.RawMessage(`"done"`)
)

func (b *bank) chance(one int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.random.IntN(one) == 0
}

func (b *bank) below(d time.Duration) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return time.Duration(b.random.Int64N(int64(d)))
}

func workName(handoff *supervisor.Handoff) string {
	if handoff.Intent.RetryClass == supervisor.IdempotencyNative {
		return "key " + handoff.Intent.IdempotencyKey
	}
	return handoff.Identity()
}

// take accepts a hand-off, at once or for later.
func (b *bank) take(handoff *supervisor.Handoff, later bool) (supervisor.Receipt, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls[handoff.Identity()]++
	if b.refused[handoff.Identity()] {
		return supervisor.Receipt{}, supervisor.NotSent(errPlanned)
	}
	name := workName(handoff)
	w := b.works[name]
	if w == nil {
		w = &work{key: handoff.Intent.IdempotencyKey, reference: "ref " + name}
		b.works[name], b.byRef[w.reference] = w, w
		if !later {
			b.end(w)
		}
	} else if handoff.Intent.RetryClass != supervisor.IdempotencyNative {
		// It takes no care of repeats, which must not come.
		b.effects[w.key]++
	}
	return b.receipt(w), nil
}

// end decides what becomes of work.
func (b *bank) end(w *work) {
	switch n := b.random.IntN(10); {
	case w.canceled && n < 5:
		w.ended = supervisor.ProviderCancelled
	case n == 9:
		w.ended = supervisor.ProviderFailed
	default:
		w.ended = supervisor.ProviderSucceeded
		b.effects[w.key]++
	}
}

func (b *bank) receipt(w *work) supervisor.Receipt {
	return supervisor.Receipt{Reference: w.reference, Report: b.report(w)}
}

func (b *bank) report(w *work) supervisor.Report {
	switch w.ended {
	case "":
		return supervisor.Report{Status: supervisor.ProviderRunning, After: time.Duration(1 + b.random.Int64N(int64(50*time.Millisecond)))}
	case supervisor.ProviderSucceeded:
		return supervisor.Report{Status: w.ended, Output: output}
	}
	return supervisor.Report{Status: w.ended, Reason: "planned"}
}

// reconcile says whether a hand-off arrived, and promises to refuse it from now
// on where it did not.
func (b *bank) reconcile(handoff *supervisor.Handoff) supervisor.Reconciliation {
	b.mu.Lock()
	defer b.mu.Unlock()
	if w := b.works[workName(handoff)]; w != nil {
		return supervisor.Accepted{Receipt: b.receipt(w)}
	}
	b.refused[handoff.Identity()] = true
	return supervisor.NotAccepted{Final: true}
}

func (b *bank) observe(reference string) (supervisor.Report, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	w := b.byRef[reference]
	if w == nil {
		return supervisor.Report{}, errPlanned
	}
	// Not after many looks, lest an error makes the next one a minute later.
	if w.looks++; w.ended == "" && (w.looks > 1 || b.random.IntN(2) == 0) {
		b.end(w)
	}
	return b.report(w), nil
}

// answer is that of an operator who has asked the bank about the latest hand-off
// of an intent, and about those before it where the bank goes by keys. ok is
// false where it has not ended.
func (b *bank) answer(r *supervisor.IntentRecord) (resolution supervisor.IntentResolution, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	resolution.Attempt = r.Attempt
	handoff := supervisor.Handoff{Intent: r.Intent, Attempt: r.Attempt}
	w := b.works[workName(&handoff)]
	switch {
	case w == nil:
		for attempt := 1; attempt <= r.Attempt; attempt++ {
			handoff.Attempt = attempt
			b.refused[handoff.Identity()] = true
		}
		resolution.Kind = supervisor.ResolveFailed
		if b.random.IntN(2) == 0 {
			resolution.Kind = supervisor.ResolveRepeat
		}
		return resolution, true
	case w.ended == "":
		b.end(w)
	}
	resolution.Kind = supervisor.ResolveFailed
	if w.ended == supervisor.ProviderSucceeded {
		resolution.Kind, resolution.Output = supervisor.ResolveSucceeded, output
	}
	return resolution, true
}

// provider is the bank as a dispatcher sees it, with faults. It also answers
// what comes late, after the dispatcher has died.
type provider struct {
	*bank
	later bool
}

func (p *provider) Dispatch(ctx context.Context, handoff *supervisor.Handoff) (supervisor.Receipt, error) {
	switch {
	case p.chance(10):
		return supervisor.Receipt{}, supervisor.NotSent(errPlanned)
	case p.chance(60):
		return supervisor.Receipt{}, supervisor.Refused(errPlanned)
	case p.chance(12):
		return supervisor.Receipt{}, errPlanned // before any effect, but who knows
	case p.chance(6):
		p.stall(ctx)
	}
	receipt, err := p.take(handoff, p.later)
	if err != nil {
		return receipt, err
	}
	switch {
	case p.chance(8):
		return supervisor.Receipt{}, errPlanned
	case p.chance(16):
		panic("after the effect")
	case p.chance(6):
		p.stall(ctx)
	}
	return receipt, nil
}

// stall takes its time, sometimes longer than a lease and whatever ctx says.
func (p *provider) stall(ctx context.Context) {
	if p.chance(2) {
		ctx = context.Background()
	}
	timer := time.NewTimer(p.below(1500 * time.Millisecond))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func (p *provider) Observe(_ context.Context, _ *supervisor.Handoff, receipt supervisor.Receipt) (supervisor.Report, error) {
	if p.chance(8) {
		return supervisor.Report{}, errPlanned
	}
	return p.observe(receipt.Reference)
}

func (p *provider) Cancel(_ context.Context, _ *supervisor.Handoff, receipt supervisor.Receipt) error {
	if p.chance(4) {
		return errPlanned
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if w := p.byRef[receipt.Reference]; w != nil && w.ended == "" {
		w.canceled = true
	}
	return nil
}

// reconcilingProvider also says what became of a hand-off.
type reconcilingProvider struct{ provider }

func (p *reconcilingProvider) Reconcile(_ context.Context, handoff *supervisor.Handoff) (supervisor.Reconciliation, error) {
	switch {
	case p.chance(5):
		return nil, errPlanned
	case p.chance(4):
		return supervisor.CannotTell{}, nil
	}
	return p.reconcile(handoff), nil
}
