package supervisor

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// mortalQueue is what a dispatcher sees of a queue until its process dies: from
// then on nothing that it does reaches the store.
type mortalQueue struct {
	IntentQueue
	// diesAt is the call at which the process dies, the first being 1, after
	// telling whether it reached the store.
	diesAt  int
	reached bool
	die     func()

	mu    sync.Mutex
	calls int
	dead  bool
}

// through makes a call, unless the process is dead.
func (q *mortalQueue) through(call func() error) error {
	q.mu.Lock()
	q.calls++
	last := q.calls == q.diesAt
	if q.dead || last && !q.reached {
		q.kill(last)
		q.mu.Unlock()
		return ErrUnavailable
	}
	q.mu.Unlock()
	err := call()
	if last {
		q.mu.Lock()
		q.kill(true)
		q.mu.Unlock()
		return ErrUnavailable
	}
	return err
}

func (q *mortalQueue) kill(now bool) {
	if now {
		q.dead = true
		q.die()
	}
}

func (q *mortalQueue) isDead() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.dead
}

func (q *mortalQueue) crash() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.kill(true)
}

func (q *mortalQueue) ClaimIntents(ctx context.Context, req IntentClaimRequest) (works []IntentWork, err error) {
	err = q.through(func() (err error) {
		works, err = q.IntentQueue.ClaimIntents(ctx, req)
		return err
	})
	if err != nil {
		return nil, err
	}
	return works, nil
}

func (q *mortalQueue) RenewIntent(ctx context.Context, lease IntentLease) error {
	return q.through(func() error { return q.IntentQueue.RenewIntent(ctx, lease) })
}

func (q *mortalQueue) MarkIntent(ctx context.Context, work *IntentWork) (marked IntentWork, err error) {
	err = q.through(func() (err error) {
		marked, err = q.IntentQueue.MarkIntent(ctx, work)
		return err
	})
	return marked, err
}

func (q *mortalQueue) RecordReceipt(ctx context.Context, work *IntentWork, receipt Receipt) error {
	return q.through(func() error { return q.IntentQueue.RecordReceipt(ctx, work, receipt) })
}

func (q *mortalQueue) SettleIntent(ctx context.Context, work *IntentWork, settlement Settlement) error {
	return q.through(func() error { return q.IntentQueue.SettleIntent(ctx, work, settlement) })
}

func (q *mortalQueue) ReleaseIntent(ctx context.Context, work *IntentWork, release IntentRelease) error {
	return q.through(func() error { return q.IntentQueue.ReleaseIntent(ctx, work, release) })
}

// bank is the world outside: it keeps a ledger of what it did, takes repeats of
// class native under one key as one, and can promise to refuse an identity that
// it has not seen.
type bank struct {
	// asynchronous work is accepted first and ends when it is observed.
	asynchronous bool

	mu       sync.Mutex
	effects  map[string]int  // by key
	accepted map[string]bool // by identity
	refused  map[string]bool // by identity
	calls    int
}

func newBank(asynchronous bool) *bank {
	return &bank{
		asynchronous: asynchronous,
		effects:      map[string]int{}, accepted: map[string]bool{}, refused: map[string]bool{},
	}
}

func (b *bank) take(handoff *Handoff) (Receipt, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls++
	if b.refused[handoff.Identity()] {
		return Receipt{}, NotSent(errPlanned)
	}
	b.accepted[handoff.Identity()] = true
	deduplicates := handoff.Intent.RetryClass == IdempotencyNative
	if key := handoff.Intent.IdempotencyKey; !deduplicates || b.effects[key] == 0 {
		b.effects[key]++
	}
	if b.asynchronous {
		return running("work of " + handoff.Intent.IdempotencyKey), nil
	}
	return succeeded(`"charged"`), nil
}

func (b *bank) reconcile(handoff *Handoff) (Reconciliation, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.accepted[handoff.Identity()] {
		return Accepted{Receipt: succeeded(`"charged"`)}, nil
	}
	b.refused[handoff.Identity()] = true
	return NotAccepted{Final: true}, nil
}

// provider is the bank with the abilities that a test wants of it. crash, if
// any, is told of each call, before and after it took effect.
func (b *bank) provider(reconciles bool, crash func(after bool)) Provider {
	dispatch := func(_ context.Context, handoff *Handoff) (Receipt, error) {
		crash(false)
		receipt, err := b.take(handoff)
		crash(true)
		return receipt, err
	}
	observe := func(*Handoff, Receipt) (Report, error) { return succeeded(`"charged"`).Report, nil }
	switch {
	case reconciles && b.asynchronous:
		return &ableProvider{
			testProvider: testProvider{onDispatch: dispatch}, onObserve: observe, onReconcile: b.reconcile,
			onCancel: func(*Handoff, Receipt) error { return nil },
		}
	case reconciles:
		return &reconcilingProvider{testProvider: testProvider{onDispatch: dispatch}, onReconcile: b.reconcile}
	case b.asynchronous:
		return &observingProvider{testProvider: testProvider{onDispatch: dispatch}, onObserve: observe}
	}
	return &testProvider{onDispatch: dispatch}
}

type observingProvider struct {
	testProvider
	onObserve func(handoff *Handoff, receipt Receipt) (Report, error)
}

func (p *observingProvider) Observe(_ context.Context, handoff *Handoff, receipt Receipt) (Report, error) {
	return p.onObserve(handoff, receipt)
}

// TestCrashBetweenEveryTwoSteps kills a dispatcher before and after every call
// to the store and every effect, for each kind of intent, lets another one go
// on, and compares the calls and effects with what is allowed.
func TestCrashBetweenEveryTwoSteps(t *testing.T) {
	type allowed struct {
		calls  int  // of the provider; 0 for any number
		maybe  bool // the outcome may stay unknown
		effect int  // effects at most; 0 for any number
	}
	for name, test := range map[string]struct {
		effect     Effect
		class      IdempotencyMode
		reconciles bool
		allowed    allowed
	}{
		"a pure one":                              {EffectPure, IdempotencyNone, false, allowed{}},
		"a read":                                  {EffectRead, IdempotencyNeverAutomaticRetry, false, allowed{}},
		"a write of class native":                 {EffectExternalWrite, IdempotencyNative, false, allowed{effect: 1}},
		"an internal write of class native":       {EffectInternalWrite, IdempotencyNative, true, allowed{effect: 1}},
		"a write that is reconciled":              {EffectExternalWrite, IdempotencyReconcileBeforeRetry, true, allowed{effect: 1}},
		"a write that nobody reconciles":          {EffectExternalWrite, IdempotencyReconcileBeforeRetry, false, allowed{calls: 1, maybe: true, effect: 1}},
		"a write of class none":                   {EffectExternalWrite, IdempotencyNone, false, allowed{calls: 1, maybe: true, effect: 1}},
		"a write of class none with a reconciler": {EffectExternalWrite, IdempotencyNone, true, allowed{calls: 1, maybe: true, effect: 1}},
		"funds that are never repeated":           {EffectFunds, IdempotencyNeverAutomaticRetry, true, allowed{calls: 1, maybe: true, effect: 1}},
	} {
		for _, asynchronous := range []bool{false, true} {
			for step := 1; step <= 5; step++ {
				for _, reached := range []bool{false, true} {
					t.Run(fmt.Sprintf("%s, asynchronous %v, dies at call %d, which reached the store %v", name, asynchronous, step, reached), func(t *testing.T) {
						crashAndGoOn(t, test.effect, test.class, test.reconciles, asynchronous, step, reached, -1, test.allowed.calls, test.allowed.maybe, test.allowed.effect)
					})
				}
			}
			for at := range 2 {
				t.Run(fmt.Sprintf("%s, asynchronous %v, dies in the provider, after the effect %v", name, asynchronous, at == 1), func(t *testing.T) {
					crashAndGoOn(t, test.effect, test.class, test.reconciles, asynchronous, 0, false, at, test.allowed.calls, test.allowed.maybe, test.allowed.effect)
				})
			}
		}
	}
}

func crashAndGoOn(t *testing.T, effect Effect, class IdempotencyMode, reconciles, asynchronous bool,
	step int, reached bool, inProvider, calls int, maybe bool, effects int) {
	synctest.Test(t, func(t *testing.T) {
		q := queueWithIntents(t, of("i", class, func(intent *ActionIntent) {
			intent.Effect = effect
			if effect == EffectFunds {
				intent.Reservation = &ResourceReservationRef{ID: "r"}
			}
		}))
		world := newBank(asynchronous)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		mortal := &mortalQueue{IntentQueue: q, diesAt: step, reached: reached, die: cancel}
		told := 0
		_, _ = RunDispatchPass(ctx, mortal, providers(t, world.provider(reconciles, func(after bool) {
			if mortal.isDead() {
				// A dead process calls nobody.
				panic("dead")
			}
			if told == inProvider && (after == (inProvider == 1)) {
				mortal.crash()
				panic("dead")
			}
			if after == (inProvider == 1) {
				told++
			}
		}), ProviderOptions{}), Settings{DrainTimeout: time.Second})

		dispatchUntil(t, q, providers(t, world.provider(reconciles, func(bool) {}), ProviderOptions{}))
		record := intentsOf(t, q)["i"]
		if maybe && record.Intent.State == ActionUnknown {
			require.Equal(t, CauseAmbiguous, record.Cause)
		} else {
			require.Equal(t, ActionSucceeded, record.Intent.State)
			require.Positive(t, world.effects["key-i"])
		}
		if calls > 0 {
			require.LessOrEqual(t, world.calls, calls)
		}
		if effects > 0 {
			require.LessOrEqual(t, world.effects["key-i"], effects)
		}
		outcomes := results(t, q)
		require.Len(t, outcomes, 1, "one outcome, told once")
		require.Equal(t, record.Intent.State, outcomes[0].State)
	})
}

// TestNoWriteIsRepeatedWithoutProof lets dispatchers live and die by chance,
// with a store and a bank that fail by chance, and counts effects in the bank's
// ledger.
func TestNoWriteIsRepeatedWithoutProof(t *testing.T) {
	seed := rand.Uint64()
	for run := range uint64(60) {
		t.Run(fmt.Sprintf("seed %d", seed+run), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { livesAndDeaths(t, rand.New(rand.NewPCG(seed+run, 0))) })
		})
	}
}

// dice are thrown by many goroutines.
type dice struct {
	mu     sync.Mutex
	random *rand.Rand
}

func (d *dice) roll(n int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.random.IntN(n)
}

func livesAndDeaths(t *testing.T, random *rand.Rand) {
	const intents = 12
	classes := []IdempotencyMode{IdempotencyNone, IdempotencyNative, IdempotencyReconcileBeforeRetry, IdempotencyNeverAutomaticRetry}
	var all []func(*WorkItem) ActionIntent
	for n := range intents {
		all = append(all, of(fmt.Sprint(n), classes[n%len(classes)], func(i *ActionIntent) {
			if n%3 == 0 {
				i.ResourceScopeID = "r"
			}
			if n%5 == 0 {
				i.Deadline = time.Now().Add(time.Duration(1+n) * 3 * time.Minute)
			}
		}))
	}
	q := queueWithIntents(t, all...)
	dice := &dice{random: random}
	chance := func(one int) bool { return dice.roll(one) == 0 }
	world := newBank(chance(2))
	dispatch := func(_ context.Context, handoff *Handoff) (Receipt, error) {
		switch {
		case chance(6):
			return Receipt{}, NotSent(errPlanned)
		case chance(8):
			return Receipt{}, errPlanned // before any effect, but who knows
		}
		if _, err := world.take(handoff); err != nil {
			return Receipt{}, err
		}
		if chance(4) {
			time.Sleep(time.Duration(dice.roll(200)) * time.Second)
		}
		switch {
		case chance(6):
			return Receipt{}, errPlanned
		case chance(8):
			panic("after the effect")
		case world.asynchronous:
			return running(handoff.Intent.IdempotencyKey), nil
		}
		return succeeded(`"charged"`), nil
	}
	provider := &ableProvider{
		testProvider: testProvider{onDispatch: dispatch},
		onObserve: func(*Handoff, Receipt) (Report, error) {
			if chance(3) {
				return Report{}, errPlanned
			}
			return succeeded(`"charged"`).Report, nil
		},
		onReconcile: func(handoff *Handoff) (Reconciliation, error) {
			switch {
			case chance(4):
				return nil, errPlanned
			case chance(3):
				return CannotTell{}, nil
			}
			return world.reconcile(handoff)
		},
		onCancel: func(*Handoff, Receipt) error { return nil },
	}
	registry := providers(t, provider, ProviderOptions{Breaker: BreakerPolicy{Failures: 1000}, Retry: RetryPolicy{Attempts: 20}})
	for range 40 {
		ctx, cancel := context.WithCancel(t.Context())
		mortal := &mortalQueue{IntentQueue: q, diesAt: 1 + dice.roll(30), reached: dice.roll(2) == 0, die: cancel}
		_, _ = RunDispatchPass(ctx, mortal, registry, Settings{LeaseDuration: 30 * time.Second, DrainTimeout: time.Second, Concurrency: 1 + dice.roll(8)})
		cancel()
		scope := []Scope{{TenantID: "t1"}, {TenantID: "t1", InstanceID: "a"}, {TenantID: "t1", ResourceID: "r"}}[dice.roll(3)]
		switch dice.roll(12) {
		case 0:
			require.NoError(t, q.Pause(t.Context(), scope))
		case 1, 2:
			require.NoError(t, q.Resume(t.Context(), scope))
		case 3:
			if dice.roll(10) == 0 {
				require.NoError(t, q.Cancel(t.Context(), "t1", "a"))
			}
		}
		time.Sleep(time.Duration(dice.roll(90)) * time.Second)
	}
	for _, scope := range []Scope{{TenantID: "t1"}, {TenantID: "t1", InstanceID: "a"}, {TenantID: "t1", ResourceID: "r"}} {
		require.NoError(t, q.Resume(t.Context(), scope))
	}
	time.Sleep(time.Hour)
	_ = dispatchUntil2(t, q, registry)
	told := map[string]int{}
	for _, result := range results(t, q) {
		if result.Outcome != OutcomeUnknown {
			told[result.IntentID]++
		}
	}
	for id, record := range intentsOf(t, q) {
		effects := world.effects["key-"+id]
		require.LessOrEqual(t, effects, 1, "effects of %s, a write of class %s", id, record.Intent.RetryClass)
		switch record.Intent.State {
		case ActionSucceeded, ActionReconciled:
			require.Equal(t, 1, effects, "a success without an effect: %s", id)
		case ActionRejected:
			require.Zero(t, effects, "an effect of a rejected intent: %s", id)
		default:
			require.Equal(t, ActionUnknown, record.Intent.State, "%s of class %s has no outcome", id, record.Intent.RetryClass)
			require.NotZero(t, record.Attempt)
		}
		want := 0
		if record.Intent.State.Terminal() {
			want = 1
		}
		require.Equal(t, want, told[id], "outcomes told of %s", id)
	}
}

// dispatchUntil2 is dispatchUntil where passes may tell of contradictions.
func dispatchUntil2(t *testing.T, q IntentQueue, registry *ProviderRegistry) (all DispatchStats) {
	t.Helper()
	for idle := 0; idle < 600; idle++ {
		stats, _ := dispatchOnce(t, q, registry)
		all.add(stats)
		if stats.Claimed > 0 {
			idle = 0
		}
		time.Sleep(time.Second)
	}
	return all
}
