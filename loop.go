package supervisor

import (
	"context"
	"math"
	"math/rand/v2"
	"sync"
	"time"
)

// loop is the pacing of a long loop over batches: its free slots and the reasons
// to claim.
type loop struct {
	ctx          context.Context // whose end begins the drain
	slots, batch int
	poll         time.Duration
	// freed and poked hold one signal each: state is read again after it.
	freed, poked chan struct{}

	mu   sync.Mutex
	free int
	// contextFailures counts the context factory's failures in a row; each asks
	// for one back-off.
	contextFailures int
	backOffDue      bool
}

func newLoop(ctx context.Context, settings *Settings) *loop {
	return &loop{
		ctx:   ctx,
		slots: settings.Concurrency,
		batch: settings.ClaimBatch,
		poll:  settings.PollInterval,
		freed: make(chan struct{}, 1),
		poked: make(chan struct{}, 1),
		free:  settings.Concurrency,
	}
}

func (l *loop) draining() bool { return l.ctx.Err() != nil }

// poke says that one of the loop's own commits made an instance due at once.
func (l *loop) poke() { signal(l.poked) }

func (l *loop) freeSlots(n int) {
	if n == 0 {
		return
	}
	l.mu.Lock()
	l.free += n
	l.mu.Unlock()
	signal(l.freed)
}

// signal sends unless a signal is there already.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// contextBuilt notes what became of a context factory.
func (l *loop) contextBuilt(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		l.contextFailures = 0
		return
	}
	l.contextFailures++
	l.backOffDue = true
}

// claimSource is what a long loop claims from.
type claimSource interface {
	// claim claims at most limit items and begins to serve them, in batches whose
	// context base ends; what is unwanted by then is handed back instead. idle
	// says that there is nothing to claim for. A Goexit in it is contained.
	claim(base context.Context, limit int, unwanted func() bool) (items int, idle bool, err error)
	// wait returns what blocks until a claim is worth trying after the latest
	// one, nil where nothing can tell.
	wait() func(context.Context) error
	// problem reports what concerns no item.
	problem(message string, err error)
}

// run serves what a source gives until ctx ends, then lets items finish within
// DrainTimeout and ends the contexts of the rest with ErrShutdown. It returns
// when all that it started has ended.
func (c *crew) run(ctx context.Context, source claimSource) {
	base, end := context.WithCancelCause(context.WithoutCancel(ctx))
	defer end(nil)
	c.begin(base, newLoop(ctx, &c.settings))

	drained := make(chan struct{})
	var watch sync.WaitGroup
	// Ends when ctx has ended and then all items have.
	watch.Go(func() {
		<-ctx.Done()
		patience := time.NewTimer(c.settings.DrainTimeout)
		defer patience.Stop()
		select {
		case <-patience.C:
			end(ErrShutdown)
			c.interrupted()
		case <-drained:
		}
	})
	c.loop.claimUntilDone(base, source)
	c.items.Wait()
	close(drained)
	watch.Wait()
	c.join()
}

// claimUntilDone claims whenever there are free slots and a reason to, until
// ctx ends. A claim in flight then is waited for, so that no item is left
// leased to nobody; base bounds it. What it brings is handed back: nothing of it
// was begun, and it begins elsewhere sooner than here.
func (l *loop) claimUntilDone(base context.Context, source claimSource) {
	failures, fruitless := 0, 0
	for {
		limit := l.awaitSlots()
		if limit == 0 {
			return
		}
		items, idle, returned := 0, false, false
		// In a goroutine of its own, which ends with the call: a Goexit in the
		// queue must not end the loop.
		err := join("queue claim", func() (err error) {
			items, idle, err = source.claim(base, limit, l.draining)
			returned = true
			return err
		})
		if !returned {
			source.problem("claim failed", err)
		}
		l.freeSlots(limit - min(limit, items))
		if items > 0 {
			fruitless = 0
		} else {
			fruitless++
		}
		if err != nil {
			failures++
			l.sleep(l.backOff(failures), nil)
			continue
		}
		failures = 0
		wait := source.wait()
		switch {
		case items >= limit:
			// There may be more.
		case idle || wait == nil:
			l.sleep(lengthened(l.poll), l.poked)
		default:
			if !l.awaitDue(source, wait, fruitless) {
				fruitless = 0
			}
		}
	}
}

// waiterFallback is how many poll intervals a waiter is trusted for: a wake-up
// that it lost costs no more.
const waiterFallback = 10

// awaitDue blocks until the queue says that a claim is worth trying, which it
// reports, or for as long as a waiter is trusted. A waiter that wakes again and
// again for nothing, fruitless times in a row, is slowed down.
func (l *loop) awaitDue(source claimSource, wait func(context.Context) error, fruitless int) (woken bool) {
	startedAt := time.Now()
	limited, cancel := context.WithTimeout(l.ctx, lengthened(min(l.poll, math.MaxInt64/waiterFallback)*waiterFallback))
	defer cancel()
	err := join("queue wait", func() error { return wait(limited) })
	switch {
	case limited.Err() != nil:
		return false
	case err != nil:
		source.problem("wait failed", err)
		l.sleep(l.backOff(1), l.poked)
		return false
	case fruitless > 1:
		gap := growingDelay(time.Millisecond, l.poll, fruitless-2)
		l.sleep(gap-time.Since(startedAt), nil)
	}
	return true
}

// gather is how long a few free slots wait for more to come free, so that a
// busy loop does not claim one by one; a quarter of all slots waits no longer.
const gather = time.Millisecond

// awaitSlots takes slots for a claim, as soon as there are some. It returns 0
// when ctx has ended.
func (l *loop) awaitSlots() int {
	var patience <-chan time.Time
	for !l.draining() {
		l.mu.Lock()
		if l.backOffDue {
			l.backOffDue = false
			failures := l.contextFailures
			l.mu.Unlock()
			l.sleep(l.backOff(failures), nil)
			continue
		}
		wanted := max(1, min(l.batch, l.slots/4))
		if l.free >= wanted {
			n := l.take()
			l.mu.Unlock()
			return n
		}
		few := l.free > 0
		l.mu.Unlock()
		if few && patience == nil {
			timer := time.NewTimer(gather)
			defer timer.Stop()
			patience = timer.C
		}
		select {
		case <-l.ctx.Done():
		case <-l.freed:
		case <-patience:
			l.mu.Lock()
			n := l.take()
			l.mu.Unlock()
			if n > 0 {
				return n
			}
			patience = nil
		}
	}
	return 0
}

func (l *loop) take() int {
	n := min(l.free, l.batch)
	l.free -= n
	return n
}

// sleep waits for a time, or less if woken or ctx ends.
func (l *loop) sleep(delay time.Duration, woken <-chan struct{}) {
	if delay <= 0 {
		return
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-woken:
	case <-l.ctx.Done():
	}
}

// maxBackOff bounds the wait between calls that fail.
const maxBackOff = time.Minute

// backOff is the wait after a number of failures in a row: the poll interval,
// doubling. A long interval, as a waiter allows, does not prolong a fault.
func (l *loop) backOff(failures int) time.Duration {
	return lengthened(growingDelay(l.poll, maxBackOff, failures-1))
}

// lengthened adds up to a tenth, so that processes that began together do not
// stay together. Jitter that shortened would break promises such as one claim
// per poll interval.
func lengthened(delay time.Duration) time.Duration {
	return delay + min(rand.N(delay/10+1), math.MaxInt64-delay)
}
