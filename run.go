package supervisor

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
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
// started has ended, save drivers that were abandoned and renewals that were
// left behind. Errors of the queue and of the context factory are told to the
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
	base, end := context.WithCancelCause(context.WithoutCancel(ctx))
	defer end(nil)
	engine.keeping = s.keeping
	engine.begin(base, newLoop(&s.settings, s.record))

	drained := make(chan struct{})
	var watch sync.WaitGroup
	// Ends when ctx has ended and then all items have.
	watch.Go(func() {
		<-ctx.Done()
		engine.loop.drain.Store(true)
		patience := time.NewTimer(s.settings.DrainTimeout)
		defer patience.Stop()
		select {
		case <-patience.C:
			end(ErrShutdown)
			engine.interrupted()
		case <-drained:
		}
	})
	s.claimUntilDone(ctx, base, engine)
	engine.items.Wait()
	close(drained)
	watch.Wait()
	engine.join()
	return nil
}

func (s *Supervisor[C]) record(more Stats) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stats.add(more)
}

// claimUntilDone claims whenever there are free slots and a reason to, until
// ctx ends. A claim in flight then is waited for, so that no item is left
// leased to nobody; base bounds it.
func (s *Supervisor[C]) claimUntilDone(ctx, base context.Context, engine *engine[C]) {
	loop := engine.loop
	failures, fruitless := 0, 0
	for {
		limit := loop.awaitSlots(ctx)
		if limit == 0 {
			return
		}
		specIDs, idle := s.registry.claimSpecs()
		var claimed claimResult
		if !idle {
			claimed = s.claim(base, engine, specIDs, limit)
		}
		loop.freeSlots(limit - min(limit, len(claimed.items)))
		if len(claimed.items) > 0 {
			fruitless = 0
			pass := engine.newPass(base, claimed, limit)
			if ctx.Err() != nil {
				// Nothing of it was begun, and what is handed back now begins
				// elsewhere sooner than here.
				pass.ctx.interrupt(ErrShutdown)
			}
			pass.start()
		} else {
			fruitless++
		}
		if claimed.err != nil {
			failures++
			loop.sleep(ctx, loop.backOff(failures), nil)
			continue
		}
		failures = 0
		switch {
		case len(claimed.items) >= limit:
			// There may be more.
		case idle || s.waiter == nil:
			loop.sleep(ctx, lengthened(loop.poll), loop.poked)
		default:
			if !s.awaitDue(ctx, engine, specIDs, fruitless) {
				fruitless = 0
			}
		}
	}
}

// claim is the engine's, in a goroutine of its own that ends with the call: a
// Goexit in the queue must not end the loop.
func (s *Supervisor[C]) claim(ctx context.Context, engine *engine[C], specIDs []string, limit int) claimResult {
	var claimed claimResult
	if err := join("queue ClaimDue", func() error {
		claimed = engine.claim(ctx, specIDs, limit)
		return nil
	}); err != nil {
		return claimResult{err: &QueueError{Op: "ClaimDue", Err: err}}
	}
	return claimed
}

// waiterFallback is how many poll intervals a Waiter is trusted for: a wake-up
// that it lost costs no more.
const waiterFallback = 10

// awaitDue blocks until the queue says that a claim is worth trying, which it
// reports, or for as long as a waiter is trusted. A waiter that wakes again and
// again for nothing, fruitless times in a row, is slowed down.
func (s *Supervisor[C]) awaitDue(ctx context.Context, engine *engine[C], specIDs []string, fruitless int) (woken bool) {
	loop := engine.loop
	startedAt := time.Now()
	limited, cancel := context.WithTimeout(ctx, lengthened(waiterFallback*loop.poll))
	defer cancel()
	err := join("queue WaitDue", func() error { return s.waiter.WaitDue(limited, specIDs) })
	switch {
	case ctx.Err() != nil || limited.Err() != nil:
		return false
	case err != nil:
		engine.notify.problem("wait failed", err)
		loop.sleep(ctx, lengthened(loop.poll), loop.poked)
		return false
	case fruitless > 1:
		gap := growingDelay(time.Millisecond, loop.poll, fruitless-2)
		loop.sleep(ctx, gap-time.Since(startedAt), nil)
	}
	return true
}
