// Package dispatchtrial lets dispatchers of a store live and die by chance, with
// a control plane that interferes, and compares in the end what the store says
// with what happened outside.
package dispatchtrial

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

// Store is what a queue has to be.
type Store interface {
	supervisor.WorkQueue
	supervisor.Instances
	supervisor.IntentQueue
	supervisor.IntentWaiter
	supervisor.IntentOperator
}

// Trial says what to try.
type Trial struct {
	Seed uint64
	// Duration is how long there are faults.
	Duration time.Duration
	// Instances of two tenants in all.
	Instances int
	// Open returns a queue on the store, as a process has it, and what closes it,
	// which may come in the middle of calls.
	Open func() (Store, func(), error)
	// Disturb, if any, is called now and then: it cuts connections.
	Disturb func()
	// InFlight counts, in one statement, the intents of a capability between mark
	// and settlement.
	InFlight func(capabilityID string) (int, error)
}

// Of what a trial consists.
const (
	waves       = 2 // of intents of an instance, one after the other
	waveIntents = 4 // at one time
	dispatchers = 3 // at one time
	hardLimit   = 2 // of the capability whose limit is never lifted
	specID      = "trial"
)

var tenants = [...]string{"t1", "t2"}

// Capabilities: with one that answers at once, one whose work takes time and that
// reconciles, and one that reconciles and has a hard limit.
var (
	plainPin   = supervisor.CapabilityPin{ID: "plain", ContractVersion: "1", ContentDigest: "d"}
	ablePin    = supervisor.CapabilityPin{ID: "able", ContractVersion: "1", ContentDigest: "d"}
	limitedPin = supervisor.CapabilityPin{ID: "limited", ContractVersion: "1", ContentDigest: "d"}
	pins       = []supervisor.CapabilityPin{plainPin, ablePin, limitedPin}
)

type trial struct {
	Trial
	t    *testing.T
	bank *bank
	main Store
	// claims counts those of all dispatchers; stats what they did.
	claims atomic.Int64
	mu     sync.Mutex
	random *rand.Rand
	stats  supervisor.DispatchStats
}

func (r *trial) below(n int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.random.IntN(n)
}

// Run runs a trial and fails the test where something is lost, doubled, stuck,
// beyond its limit or never still.
func Run(t *testing.T, of Trial) {
	t.Helper()
	t.Logf("seed %d", of.Seed)
	r := &trial{Trial: of, t: t, bank: newBank(of.Seed), random: rand.New(rand.NewPCG(of.Seed, 0))}
	main, closeMain, err := of.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer closeMain()
	r.main = main
	r.start()

	var others sync.WaitGroup
	evaluating, stopEvaluating := context.WithCancel(t.Context())
	others.Go(func() { r.evaluate(evaluating) })
	faults, endFaults := context.WithTimeout(t.Context(), of.Duration)
	var faulty sync.WaitGroup
	for n := range dispatchers {
		faulty.Go(func() { r.lives(faults, n) })
	}
	faulty.Go(func() { r.interfere(faults) })
	faulty.Go(func() { r.watch(faults) })
	faulty.Wait()
	endFaults()

	r.calm()
	steady, stop := context.WithCancel(t.Context())
	others.Go(func() { r.life(steady, r.main, "steady", time.Second) })
	r.settleAll()
	r.isStill()
	stop()
	stopEvaluating()
	others.Wait()
	r.compare()
	r.mu.Lock()
	defer r.mu.Unlock()
	t.Logf("%+v", r.stats)
}

// try repeats a call on the store that faults may hit.
func (r *trial) try(what string, call func() error) {
	r.t.Helper()
	var err error
	for until := time.Now().Add(30 * time.Second); time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
		if err = call(); err == nil {
			return
		}
	}
	r.t.Errorf("%s: %v", what, err)
}

func (r *trial) start() {
	for n := range r.Instances {
		instance, err := supervisor.NewInstance(specID, 1, json.RawMessage(`{}`))
		if err != nil {
			r.t.Fatal(err)
		}
		instance.ID, instance.TenantID, instance.CapabilityPins = fmt.Sprintf("i%03d", n), tenants[n%len(tenants)], pins
		r.try("start", func() error {
			_, err := r.main.Start(r.t.Context(), instance, time.Time{})
			return err
		})
	}
	r.try("limit", func() error {
		return r.main.LimitIntents(r.t.Context(), supervisor.IntentLimit{CapabilityID: limitedPin.ID, Max: hardLimit})
	})
}

// state is that of an instance: what it was told of each intent, how often.
type state struct {
	Wave int                                 `json:"wave"`
	Open map[string]int                      `json:"open"` // intents that it waits for
	Told map[string]int                      `json:"told"` // terminal results, by intent
	Says map[string]supervisor.IntentOutcome `json:"says"`
}

// step is the driver: it asks for a wave of intents, waits for what becomes of
// them, asks for the next one and completes. One instance in six completes as soon
// as it is told anything.
func step(_ context.Context, _ struct{}, item *supervisor.WorkItem) (supervisor.TransitionCommand, error) {
	s := state{Open: map[string]int{}, Told: map[string]int{}, Says: map[string]supervisor.IntentOutcome{}}
	if err := json.Unmarshal(item.State, &s); err != nil {
		return supervisor.TransitionCommand{}, err
	}
	var consumed []string
	for n := range item.Wakeups {
		result, err := supervisor.ParseActionResult(&item.Wakeups[n])
		if err != nil {
			return supervisor.TransitionCommand{}, err
		}
		consumed = append(consumed, item.Wakeups[n].ID)
		if result.Outcome != supervisor.OutcomeUnknown {
			s.Told[result.IntentID]++
			s.Says[result.IntentID] = result.Outcome
			delete(s.Open, result.IntentID)
		}
	}
	var number int
	if _, err := fmt.Sscanf(item.ID, "i%d", &number); err != nil {
		return supervisor.TransitionCommand{}, err
	}
	var d supervisor.Disposition = supervisor.Continue{Delay: time.Hour}
	var intents []supervisor.ActionIntent
	switch {
	case number%6 == 5 && len(consumed) > 0:
		d = supervisor.Complete{}
	case len(s.Open) > 0:
	case s.Wave == waves || item.IsConverging():
		d = supervisor.Complete{}
	default:
		for n := range waveIntents {
			intent := made(item, number, s.Wave, n)
			s.Open[intent.ID] = 1
			intents = append(intents, intent)
		}
		s.Wave++
	}
	command, err := supervisor.NewCommand(item, "stepped", nil, s, d)
	command.ActionIntents, command.ConsumedWakeups = intents, consumed
	return command, err
}

// made is an intent; all effects and retry classes come in turn.
func made(item *supervisor.WorkItem, instance, wave, n int) supervisor.ActionIntent {
	kind := (instance*waves+wave)*waveIntents + n
	classes := [...]supervisor.IdempotencyMode{
		supervisor.IdempotencyNone, supervisor.IdempotencyNative, supervisor.IdempotencyReconcileBeforeRetry, supervisor.IdempotencyNeverAutomaticRetry,
	}
	effects := [...]supervisor.Effect{
		supervisor.EffectExternalWrite, supervisor.EffectFunds, supervisor.EffectExternalWrite, supervisor.EffectInternalWrite, supervisor.EffectRead,
	}
	intent := supervisor.ActionIntent{
		ID: fmt.Sprintf("w%d-%d", wave, n), TenantID: item.TenantID, InstanceID: item.ID, RunID: item.RunID,
		IdempotencyKey: fmt.Sprintf("%s %s w%d-%d", item.TenantID, item.ID, wave, n), State: supervisor.ActionPrepared,
		Capability: pins[kind%len(pins)], RetryClass: classes[kind%len(classes)], Effect: effects[kind%len(effects)],
		ControlEpochs: item.ControlEpochs, LeaseEpoch: item.LeaseVersion, ActionEpoch: item.StateVersion,
		RequiresConfirmation: kind%7 == 3,
	}
	if intent.Capability == limitedPin && intent.RetryClass == supervisor.IdempotencyNative {
		// A late receipt of one that is to be repeated takes a slot, free or not.
		intent.RetryClass = supervisor.IdempotencyReconcileBeforeRetry
	}
	if kind%3 == 0 {
		intent.ResourceScopeID = "res"
	}
	if kind%11 == 5 {
		intent.Deadline = item.ClaimedAt.Add(3 * time.Second)
	}
	if intent.Effect == supervisor.EffectFunds {
		intent.Reservation = &supervisor.ResourceReservationRef{ID: "r"}
	}
	return intent
}

// evaluate runs the instances until ctx ends.
func (r *trial) evaluate(ctx context.Context) {
	registry := supervisor.NewDriverRegistry[struct{}]()
	if err := registry.Register(supervisor.NewDriver(specID, 1, step)); err != nil {
		r.t.Error(err)
		return
	}
	s, err := supervisor.New(r.main, registry, supervisor.Settings{
		WorkerID: "evaluator", LeaseDuration: 2 * time.Second, RequeueDelay: time.Second, MaxRetryDelay: time.Second, PollInterval: 100 * time.Millisecond,
	}, func(context.Context) (struct{}, error) { return struct{}{}, nil })
	if err != nil {
		r.t.Error(err)
		return
	}
	if err := s.Run(ctx); err != nil {
		r.t.Error(err)
	}
}
