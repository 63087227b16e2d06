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

// state says when to ask again where no call may be made at now, else zero, and
// whether only a probe may be.
func (b *breaker) state(now time.Time) (again time.Time, probation bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.openUntil.IsZero():
		return time.Time{}, false
	case now.Before(b.openUntil):
		return b.openUntil, true
	case b.probing:
		return now.Add(b.policy.RestDelay), true
	}
	return time.Time{}, true
}

// breakerCall is what a breaker knows of one call.
type breakerCall int32

const (
	breakerNoCall breakerCall = iota
	breakerUsual
	breakerProbe
)

// begin asks for a call at now. Where it is refused there is none, and wait is
// how long for. Each call is given back by ended or notMade, once.
func (b *breaker) begin(now time.Time) (call breakerCall, wait time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.openUntil.IsZero():
		return breakerUsual, 0
	case now.Before(b.openUntil):
		return breakerNoCall, b.openUntil.Sub(now)
	case b.probing:
		return breakerNoCall, b.policy.RestDelay
	}
	b.probing = true
	return breakerProbe, 0
}

// ended notes how a call that began ended.
func (b *breaker) ended(call breakerCall, failed bool, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.giveBack(call)
	if !failed {
		b.failures, b.openUntil = 0, time.Time{}
		return
	}
	if b.failures++; b.failures >= b.policy.Failures {
		b.openUntil = now.Add(b.policy.RestDelay)
	}
}

// notMade takes a call back that was asked for and not made.
func (b *breaker) notMade(call breakerCall) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.giveBack(call)
}

// giveBack lets the next probe be sent. A call from before the breaker opened,
// which ends while one is under way, does not.
func (b *breaker) giveBack(call breakerCall) {
	if call == breakerProbe {
		b.probing = false
	}
}
