package supervisor

import (
	"sync"
	"time"
)

// BreakerPolicy stops calls to a provider that fails again and again, so that a
// provider that is down is not kept down, and so that its intents keep their
// attempts. It counts in this process alone. A zero value means the default;
// negative values are refused.
type BreakerPolicy struct {
	// Failures in a row open the breaker: hand-offs that were not sent or whose
	// outcome is not known. Default 10.
	Failures int
	// RestDelay is how long it stays open. Then one call is let through: its
	// success closes the breaker, its failure opens it anew. Default 10 s.
	RestDelay time.Duration
}

// breaker counts a provider's failures.
type breaker struct {
	policy BreakerPolicy

	mu       sync.Mutex
	failures int
	// openUntil is when a probe may be sent; zero: closed.
	openUntil time.Time
	probing   bool
}

// state reports whether no call may be made at now, and whether only a probe may.
func (b *breaker) state(now time.Time) (open, probation bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.openUntil.IsZero() {
		return false, false
	}
	return b.probing || now.Before(b.openUntil), true
}

// begin asks for a call at now. Where it is refused wait is how long for.
func (b *breaker) begin(now time.Time) (wait time.Duration, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.openUntil.IsZero():
		return 0, true
	case now.Before(b.openUntil):
		return b.openUntil.Sub(now), false
	case b.probing:
		return b.policy.RestDelay, false
	}
	b.probing = true
	return 0, true
}

// ended notes how a call that began ended.
func (b *breaker) ended(failed bool, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.probing = false
	if !failed {
		b.failures, b.openUntil = 0, time.Time{}
		return
	}
	if b.failures++; b.failures >= b.policy.Failures {
		b.openUntil = now.Add(b.policy.RestDelay)
	}
}

// notMade takes a call back that was asked for and not made.
func (b *breaker) notMade() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.probing = false
}
