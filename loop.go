package supervisor

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// loop is the pacing of a long loop over passes: its free slots and the reasons
// to claim.
type loop struct {
	slots, batch int
	poll         time.Duration
	record       func(Stats)
	drain        atomic.Bool
	// freed and poked hold one signal each: state is read again after it.
	freed, poked chan struct{}

	mu   sync.Mutex
	free int
	// contextFailures counts the context factory's failures in a row; each asks
	// for one back-off.
	contextFailures int
	backOffDue      bool
}

func newLoop(settings *Settings, record func(Stats)) *loop {
	return &loop{
		slots:  settings.Concurrency,
		batch:  settings.ClaimBatch,
		poll:   settings.PollInterval,
		record: record,
		freed:  make(chan struct{}, 1),
		poked:  make(chan struct{}, 1),
		free:   settings.Concurrency,
	}
}

func (l *loop) count(more Stats) { l.record(more) }

func (l *loop) draining() bool { return l.drain.Load() }

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

func signal(c chan struct{}) {
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

// gather is how long a few free slots wait for more to come free, so that a
// busy loop does not claim one by one; a quarter of all slots waits no longer.
const gather = time.Millisecond

// awaitSlots takes slots for a claim, as soon as there are some. It returns 0
// when ctx has ended.
func (l *loop) awaitSlots(ctx context.Context) int {
	var patience <-chan time.Time
	for ctx.Err() == nil {
		l.mu.Lock()
		if l.backOffDue {
			l.backOffDue = false
			failures := l.contextFailures
			l.mu.Unlock()
			l.sleep(ctx, l.backOff(failures), nil)
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
		case <-ctx.Done():
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
func (l *loop) sleep(ctx context.Context, delay time.Duration, woken <-chan struct{}) {
	if delay <= 0 {
		return
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-woken:
	case <-ctx.Done():
	}
}

// maxBackOff bounds the wait between calls that fail.
const maxBackOff = time.Minute

// backOff is the wait after a number of failures in a row: the poll interval,
// doubling.
func (l *loop) backOff(failures int) time.Duration {
	return lengthened(growingDelay(l.poll, max(l.poll, maxBackOff), failures-1))
}

// lengthened adds up to a tenth, so that processes that began together do not
// stay together. Jitter that shortened would break promises such as one claim
// per poll interval.
func lengthened(delay time.Duration) time.Duration { return delay + rand.N(delay/10+1) }
