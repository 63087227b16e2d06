package dispatchtrial

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

// mortal is what a dispatcher sees of a queue until its process dies: from then
// on nothing that it does reaches the store.
type mortal struct {
	store  Store
	dead   atomic.Bool
	claims *atomic.Int64
	// stall, if any, is how long the process stands still before a call.
	stall func() time.Duration
	mu    sync.RWMutex
}

func through(m *mortal, call func() error) error {
	if m.stall != nil {
		if d := m.stall(); d > 0 {
			m.mu.Lock()
			time.Sleep(d)
			m.mu.Unlock()
		}
	}
	m.mu.RLock() // a process stands still with all its calls
	defer m.mu.RUnlock()
	if m.dead.Load() {
		return supervisor.ErrUnavailable
	}
	err := call()
	if m.dead.Load() {
		return supervisor.ErrUnavailable
	}
	return err
}

func (m *mortal) ClaimIntents(ctx context.Context, req supervisor.IntentClaimRequest) (works []supervisor.IntentWork, err error) {
	m.claims.Add(1)
	err = through(m, func() (err error) {
		works, err = m.store.ClaimIntents(ctx, req)
		return err
	})
	if m.dead.Load() {
		return nil, err
	}
	return works, err
}

func (m *mortal) RenewIntent(ctx context.Context, lease supervisor.IntentLease) error {
	return through(m, func() error { return m.store.RenewIntent(ctx, lease) })
}

func (m *mortal) MarkIntent(ctx context.Context, work *supervisor.IntentWork) (marked supervisor.IntentWork, err error) {
	err = through(m, func() (err error) {
		marked, err = m.store.MarkIntent(ctx, work)
		return err
	})
	return marked, err
}

func (m *mortal) RecordReceipt(ctx context.Context, work *supervisor.IntentWork, receipt supervisor.Receipt) error {
	return through(m, func() error { return m.store.RecordReceipt(ctx, work, receipt) })
}

func (m *mortal) SettleIntent(ctx context.Context, work *supervisor.IntentWork, settlement supervisor.Settlement) error {
	return through(m, func() error { return m.store.SettleIntent(ctx, work, settlement) })
}

func (m *mortal) ReleaseIntent(ctx context.Context, work *supervisor.IntentWork, release supervisor.IntentRelease) error {
	return through(m, func() error { return m.store.ReleaseIntent(ctx, work, release) })
}

func (m *mortal) WaitIntents(ctx context.Context, capabilities []supervisor.CapabilityPin) error {
	return through(m, func() error { return m.store.WaitIntents(ctx, capabilities) })
}

// lives is one dispatcher after the other, each in a process of its own, until
// ctx ends.
func (r *trial) lives(ctx context.Context, n int) {
	for life := 0; ctx.Err() == nil; life++ {
		store, end, err := r.Open()
		if err != nil {
			continue // its connection was cut
		}
		m := &mortal{store: store, claims: &r.claims, stall: func() time.Duration {
			if r.below(60) > 0 {
				return 0
			}
			return time.Duration(r.below(2500)) * time.Millisecond
		}}
		own, stop := context.WithCancel(ctx)
		killed := r.below(3) > 0
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			timer := time.NewTimer(time.Duration(100+r.below(2500)) * time.Millisecond)
			defer timer.Stop()
			select {
			case <-timer.C:
			case <-ctx.Done():
			}
			if killed {
				m.dead.Store(true)
				if r.below(2) == 0 {
					end()
				}
			}
			stop()
		}()
		r.serve(own, m, fmt.Sprintf("dispatcher %d.%d", n, life), 50*time.Millisecond)
		<-ended
		end()
	}
}

// life is a dispatcher on a store until ctx ends.
func (r *trial) life(ctx context.Context, store Store, worker string, drain time.Duration) {
	r.serve(ctx, &mortal{store: store, claims: &r.claims}, worker, drain)
}

// serve runs a dispatcher, which has to end soon after ctx.
func (r *trial) serve(ctx context.Context, m *mortal, worker string, drain time.Duration) {
	registry := supervisor.NewProviderRegistry()
	options := supervisor.ProviderOptions{
		Timeout: time.Second, Reconciliations: 2,
		Retry:   supervisor.RetryPolicy{Attempts: 1000, Delay: 10 * time.Millisecond, MaxDelay: 100 * time.Millisecond},
		Breaker: supervisor.BreakerPolicy{Failures: 6, RestDelay: 50 * time.Millisecond},
	}
	for pin, p := range map[supervisor.CapabilityPin]supervisor.Provider{
		plainPin:   &provider{bank: r.bank},
		ablePin:    &reconcilingProvider{provider{bank: r.bank, later: true}},
		limitedPin: &reconcilingProvider{provider{bank: r.bank, later: true}},
	} {
		if err := registry.Register(pin, p, options); err != nil {
			r.t.Error(err)
			return
		}
	}
	d, err := supervisor.NewDispatcher(m, registry, supervisor.Settings{
		WorkerID: worker, LeaseDuration: time.Second, Concurrency: 1 + r.below(8), PollInterval: 200 * time.Millisecond,
		DrainTimeout: drain, AbandonAfter: 200 * time.Millisecond, CommitTimeout: 5 * time.Second,
	})
	if err != nil {
		r.t.Error(err)
		return
	}
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	select {
	case err = <-ended:
	case <-ctx.Done():
		select {
		case err = <-ended:
		case <-time.After(60 * time.Second):
			r.t.Errorf("%s does not end", worker)
			return
		}
	}
	if err != nil {
		r.t.Error(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	more := d.Stats()
	r.stats.Claimed += more.Claimed
	r.stats.HandedOff += more.HandedOff
	r.stats.Succeeded += more.Succeeded
	r.stats.Rejected += more.Rejected
	r.stats.Retryable += more.Retryable
	r.stats.Unknown += more.Unknown
	r.stats.Accepted += more.Accepted
	r.stats.Refused += more.Refused
	r.stats.Conflicts += more.Conflicts
	r.stats.LeasesLost += more.LeasesLost
	r.stats.Abandoned += more.Abandoned
	r.stats.Failed += more.Failed
}

func (r *trial) scopes() []supervisor.Scope {
	tenant := tenants[r.below(len(tenants))]
	return []supervisor.Scope{
		{TenantID: tenant, ResourceID: "res"},
		{TenantID: tenant, InstanceID: fmt.Sprintf("i%03d", r.below(r.Instances))},
		{TenantID: tenant},
	}
}

// interfere is the control plane, and operators, until ctx ends.
func (r *trial) interfere(ctx context.Context) {
	var paused []supervisor.Scope
	limits := []supervisor.IntentLimit{{TenantID: "t1", Max: 2}, {TenantID: "t2", Max: 1}, {TenantID: "t2", CapabilityID: ablePin.ID, Max: 1}, {CapabilityID: plainPin.ID, Max: 1}}
	for ctx.Err() == nil {
		// Errors are those of faults: what it was for is tried again in the end.
		switch n := r.below(40); {
		case n < 1 && len(paused) < 2:
			scope := r.scopes()[[...]int{0, 0, 0, 1, 1, 1, 1, 1, 1, 2}[r.below(10)]]
			if r.main.Pause(ctx, scope) == nil {
				paused = append(paused, scope)
			}
		case n < 16 && len(paused) > 0:
			if r.main.Resume(ctx, paused[0]) == nil {
				paused = paused[1:]
			}
		case n < 18:
			_ = r.main.LimitIntents(ctx, limits[r.below(len(limits))])
		case n < 22:
			limit := limits[r.below(len(limits))]
			limit.Max = 0
			_ = r.main.LimitIntents(ctx, limit)
		case n < 23 && r.below(4) == 0:
			scope := r.scopes()[1]
			_ = r.main.Cancel(ctx, scope.TenantID, scope.InstanceID)
		case n < 24 && r.Disturb != nil:
			r.Disturb()
		case n < 34:
			r.answer(ctx)
		}
		time.Sleep(time.Duration(r.below(40)) * time.Millisecond)
	}
}

// answer has operators answer what waits for them.
func (r *trial) answer(ctx context.Context) {
	for _, waits := range []supervisor.ActionState{supervisor.ActionAwaitingConfirmation, supervisor.ActionUnknown} {
		for record, err := range r.main.ListIntents(ctx, supervisor.IntentFilter{State: waits}) {
			if err != nil {
				break
			}
			switch {
			case waits == supervisor.ActionAwaitingConfirmation && r.below(8) == 0:
				_ = r.main.RejectIntent(ctx, record.Key(), "operator", "no")
			case waits == supervisor.ActionAwaitingConfirmation:
				_ = r.main.ConfirmIntent(ctx, record.Key(), "operator")
			default:
				if resolution, ok := r.bank.answer(&record); ok {
					_ = r.main.ResolveIntent(ctx, record.Key(), "operator", resolution)
				}
			}
		}
	}
}

// watch looks at the limit that is never lifted until ctx ends.
func (r *trial) watch(ctx context.Context) {
	for ctx.Err() == nil {
		if n, err := r.InFlight(limitedPin.ID); err == nil && n > hardLimit {
			r.t.Errorf("%d intents in flight, the limit is %d", n, hardLimit)
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}
