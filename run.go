package supervisor

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
)

// Supervisor is the long loop: it claims, evaluates and commits until it is
// told to end. Slots are refilled as they free, so that one slow item never
// holds up the rest.
type Supervisor[C any] struct {
	queue      WorkQueue
	registry   *DriverRegistry[C]
	settings   Settings // resolved
	newContext func(context.Context) (C, error)
	waiter     Waiter       // nil: the queue has no such ability
	keeping    CommitKeeper // nil: the queue has no such ability
	running    atomic.Bool

	mu    sync.Mutex
	stats Stats
}

// New returns a supervisor of a queue; it claims nothing before
// [Supervisor.Run]. The arguments are those of [RunDuePass]; each claim that
// gave items counts as a pass for newContext. An invalid or missing one is an
// error.
func New[C any](queue WorkQueue, registry *DriverRegistry[C], settings Settings,
	newContext func(context.Context) (C, error)) (*Supervisor[C], error) {
	engine, err := newEngine(queue, registry, settings, newContext)
	if err != nil {
		return nil, err
	}
	s := &Supervisor[C]{queue: queue, registry: registry, settings: engine.settings, newContext: newContext}
	s.waiter, _ = queue.(Waiter)
	s.keeping, _ = queue.(CommitKeeper)
	return s, nil
}

// Stats returns what the supervisor has done since it was made. It may be
// called at any time.
func (s *Supervisor[C]) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stats
}

// Run supervises until ctx ends and returns nil when every goroutine that it
// started has ended, save drivers that were abandoned, renewals that were left
// behind and cancelled compiles that nobody waits for. Errors of the queue and of the context factory are told to the
// observer and the logger and make it back off; they do not end it. A second
// Run beside a running one is an error; one after it goes on.
//
// When ctx ends it stops claiming and lets evaluations finish within
// DrainTimeout. Then it ends their contexts with [ErrShutdown] and hands the
// claims of those that return an error back; no failure is recorded (a queue
// that is no [Releaser] gets one all the same, so that the item need not wait
// for the end of its lease).
//
// An instance that is due again at once is carried on without a new claim where
// the queue is a [CommitKeeper], for at most 16 transitions and half of
// LeaseDuration.
func (s *Supervisor[C]) Run(ctx context.Context) error {
	if !s.running.CompareAndSwap(false, true) {
		return errors.New("supervisor: Run is running already")
	}
	defer s.running.Store(false)

	engine, err := newEngine(s.queue, s.registry, s.settings, s.newContext)
	if err != nil {
		return err
	}
	engine.keeping = s.keeping
	engine.record = s.record
	engine.run(ctx, &supervisorSource[C]{supervisor: s, engine: engine})
	return nil
}

func (s *Supervisor[C]) record(more Stats) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stats.add(more)
}

// supervisorSource is what the loop of a supervisor claims from.
type supervisorSource[C any] struct {
	supervisor *Supervisor[C]
	engine     *engine[C]
	specIDs    []string // of the latest claim
}

func (s *supervisorSource[C]) claim(base context.Context, limit int, unwanted func() bool) (items int, idle bool, err error) {
	if s.specIDs, idle = s.engine.registry.claimSpecs(); idle {
		return 0, true, nil
	}
	claimed := s.engine.claim(base, s.specIDs, limit)
	if len(claimed.items) > 0 {
		pass := s.engine.newPass(base, claimed, limit)
		if unwanted() {
			pass.ctx.interrupt(ErrShutdown)
		}
		pass.start()
	}
	return len(claimed.items), false, claimed.err
}

func (s *supervisorSource[C]) wait() func(context.Context) error {
	if s.supervisor.waiter == nil {
		return nil
	}
	return func(ctx context.Context) error { return s.supervisor.waiter.WaitDue(ctx, s.specIDs) }
}

func (s *supervisorSource[C]) problem(message string, err error) {
	s.engine.notify.problem(message, err)
}
