package supervisor

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"
)

// ProviderRegistry finds the provider of a capability: the one that was
// registered for exactly its pin. Its methods may be called by many goroutines
// at once; a registration counts for the claims that follow.
type ProviderRegistry struct {
	mu        sync.RWMutex
	providers map[CapabilityPin]*registeredProvider
}

// NewProviderRegistry returns an empty registry.
func NewProviderRegistry() *ProviderRegistry {
	return &ProviderRegistry{providers: make(map[CapabilityPin]*registeredProvider)}
}

// ProviderOptions say how a provider is called. A zero value means the default;
// negative values are refused.
type ProviderOptions struct {
	// Timeout bounds each call. Default 30 s.
	Timeout time.Duration
	// Retry bounds the attempts.
	Retry RetryPolicy
	// Reconciliations is how often in a row a [Reconciler] that cannot tell is
	// asked before the outcome counts as unknown. Default 10, which with the
	// rhythm of looks is about five minutes.
	Reconciliations int
	// Breaker stops calls to a provider that fails again and again.
	Breaker BreakerPolicy
}

// RetryPolicy bounds how often an intent is handed off. It is a pure function of
// the number of attempts. A zero value means the default; negative values are
// refused.
type RetryPolicy struct {
	// Attempts is the number in all, the first included. Default 5.
	Attempts int
	// Delay comes before the second attempt and is multiplied before each
	// further one, up to MaxDelay. Defaults 1 s, 2, and 1 min or Delay if that is
	// longer.
	Delay      time.Duration
	Multiplier int
	MaxDelay   time.Duration
}

// next returns the delay after a number of attempts, and whether there is
// another attempt at all. The policy is one with its defaults.
func (p RetryPolicy) next(attempts int) (delay time.Duration, again bool) {
	if attempts >= p.Attempts {
		return 0, false
	}
	delay = p.Delay
	for range attempts - 1 {
		if delay > p.MaxDelay/time.Duration(p.Multiplier) {
			return p.MaxDelay, true
		}
		delay *= time.Duration(p.Multiplier)
	}
	return min(delay, p.MaxDelay), true
}

const (
	defaultProviderTimeout  = 30 * time.Second
	defaultAttempts         = 5
	defaultAttemptDelay     = time.Second
	defaultMultiplier       = 2
	defaultMaxAttemptDelay  = time.Minute
	defaultReconciliations  = 10
	defaultBreakerFailures  = 10
	defaultBreakerRestDelay = 10 * time.Second
)

// resolved returns the options with their defaults, or everything that is wrong
// with them.
func (o ProviderOptions) resolved() (ProviderOptions, error) {
	var errs []error
	for _, duration := range [...]struct {
		field    string
		value    *time.Duration
		fallback time.Duration
	}{
		{"Timeout", &o.Timeout, defaultProviderTimeout},
		{"Retry.Delay", &o.Retry.Delay, defaultAttemptDelay},
		{"Retry.MaxDelay", &o.Retry.MaxDelay, max(defaultMaxAttemptDelay, o.Retry.Delay)},
		{"Breaker.RestDelay", &o.Breaker.RestDelay, defaultBreakerRestDelay},
	} {
		if *duration.value < 0 {
			errs = append(errs, fmt.Errorf("%s is %v, must not be negative", duration.field, *duration.value))
		} else if *duration.value == 0 {
			*duration.value = duration.fallback
		}
	}
	for _, count := range [...]struct {
		field    string
		value    *int
		fallback int
	}{
		{"Retry.Attempts", &o.Retry.Attempts, defaultAttempts},
		{"Retry.Multiplier", &o.Retry.Multiplier, defaultMultiplier},
		{"Reconciliations", &o.Reconciliations, defaultReconciliations},
		{"Breaker.Failures", &o.Breaker.Failures, defaultBreakerFailures},
	} {
		if *count.value < 0 {
			errs = append(errs, fmt.Errorf("%s is %d, must not be negative", count.field, *count.value))
		} else if *count.value == 0 {
			*count.value = count.fallback
		}
	}
	if o.Retry.MaxDelay > 0 && o.Retry.MaxDelay < o.Retry.Delay {
		errs = append(errs, fmt.Errorf("Retry.MaxDelay is %v, must not be less than Retry.Delay %v", o.Retry.MaxDelay, o.Retry.Delay))
	}
	return o, errors.Join(errs...)
}

// registeredProvider is a provider with its abilities and its breaker.
type registeredProvider struct {
	Provider
	observer   ReceiptObserver // nil: none, and so below
	reconciler Reconciler
	canceller  Canceller
	options    ProviderOptions
	breaker    breaker
}

// Register adds the provider of a pin. A pin that has one already, an invalid
// one, a nil provider and invalid options are errors; nothing is registered then.
func (r *ProviderRegistry) Register(pin CapabilityPin, provider Provider, options ProviderOptions) error {
	options, err := options.resolved()
	errs := []error{pin.validate("pin"), err}
	if value := reflect.ValueOf(provider); provider == nil || value.Kind() == reflect.Pointer && value.IsNil() {
		errs = append(errs, errors.New("provider is nil"))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("supervisor: register provider of capability %q: %w", shorten(pin.ID), err)
	}
	entry := &registeredProvider{Provider: provider, options: options}
	entry.observer, _ = provider.(ReceiptObserver)
	entry.reconciler, _ = provider.(Reconciler)
	entry.canceller, _ = provider.(Canceller)
	entry.breaker.policy = options.Breaker
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.providers[pin] != nil {
		return fmt.Errorf("supervisor: capability %q %q %q has a provider already",
			shorten(pin.ID), shorten(pin.ContractVersion), shorten(pin.ContentDigest))
	}
	r.providers[pin] = entry
	return nil
}

// Capabilities returns the pins that have a provider, in order.
func (r *ProviderRegistry) Capabilities() []CapabilityPin {
	r.mu.RLock()
	defer r.mu.RUnlock()
	pins := make([]CapabilityPin, 0, len(r.providers))
	for pin := range r.providers {
		pins = append(pins, pin)
	}
	slices.SortFunc(pins, comparePins)
	return pins
}

func comparePins(a, b CapabilityPin) int {
	if c := strings.Compare(a.ID, b.ID); c != 0 {
		return c
	}
	if c := strings.Compare(a.ContractVersion, b.ContractVersion); c != 0 {
		return c
	}
	return strings.Compare(a.ContentDigest, b.ContentDigest)
}

// wanted returns the pins to claim for: those whose breaker lets calls through.
// steady says that none of them is on probation, rested when the next breaker
// may let one through; zero: all do.
func (r *ProviderRegistry) wanted(now time.Time) (pins []CapabilityPin, steady bool, rested time.Time) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	steady = true
	pins = make([]CapabilityPin, 0, len(r.providers))
	for pin, entry := range r.providers {
		again, probation := entry.breaker.state(now)
		if !again.IsZero() {
			rested = earlier(again, rested)
			continue
		}
		pins = append(pins, pin)
		steady = steady && !probation
	}
	slices.SortFunc(pins, comparePins)
	return pins, steady, rested
}

func (r *ProviderRegistry) find(pin CapabilityPin) *registeredProvider {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.providers[pin]
}
