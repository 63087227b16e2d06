package supervisor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// DispatchStats counts what a pass, or a dispatcher since its beginning, has done.
type DispatchStats struct {
	// Claimed intents, for whatever task.
	Claimed int
	// HandedOff counts calls of Dispatch.
	HandedOff int
	// Succeeded, Rejected, Retryable and Unknown count settlements that were
	// stored, by their state; a reconciled intent counts as one of the first two.
	Succeeded, Rejected, Retryable, Unknown int
	// Accepted counts receipts that were stored without a settlement: of work that
	// runs on, and from those who had lost their lease.
	Accepted int
	// Refused counts marks that the queue refused.
	Refused int
	// Conflicts counts receipts and outcomes that contradicted what was stored.
	Conflicts int
	// LeasesLost counts intents whose lease was gone.
	LeasesLost int
	// Abandoned counts calls of providers that ignored the end of their context.
	Abandoned int
	// Failed counts intents of which something could not be stored.
	Failed int
}

func (s *DispatchStats) add(more DispatchStats) {
	s.Claimed += more.Claimed
	s.HandedOff += more.HandedOff
	s.Succeeded += more.Succeeded
	s.Rejected += more.Rejected
	s.Retryable += more.Retryable
	s.Unknown += more.Unknown
	s.Accepted += more.Accepted
	s.Refused += more.Refused
	s.Conflicts += more.Conflicts
	s.LeasesLost += more.LeasesLost
	s.Abandoned += more.Abandoned
	s.Failed += more.Failed
}

// DispatchError names the intents of which something could not be stored or
// contradicted what was stored.
type DispatchError struct{ Intents []IntentError }

// IntentError is the failure of one intent.
type IntentError struct {
	IntentKey
	Err error
}

func (e *DispatchError) Error() string { return "supervisor: dispatch failed: " + joined(e.Intents) }

// Unwrap returns an [*IntentError] for each intent.
func (e *DispatchError) Unwrap() []error {
	errs := make([]error, len(e.Intents))
	for n := range e.Intents {
		errs[n] = &e.Intents[n]
	}
	return errs
}

func (e *IntentError) Error() string {
	return fmt.Sprintf("tenant %q instance %q intent %q: %v",
		shorten(e.TenantID), shorten(e.InstanceID), shorten(e.IntentID), e.Err)
}

// Unwrap returns the queue's error.
func (e *IntentError) Unwrap() error { return e.Err }

// RunDispatchPass claims due intents once and does for each what it needs: marks
// it and calls its provider, observes, reconciles or cancels it, and stores what
// came of it. It blocks until each is settled or released and every goroutine
// that it started has ended, save calls of providers that were abandoned and
// renewals that were left behind.
//
// Of the settings those of evaluations and their retries have no meaning here:
// providers have options of their own. When ctx ends midway, calls in flight are
// cancelled, which leaves their outcomes open as a crash would; what is known is
// stored all the same. The stats are valid beside an error, which joins
//
//   - an invalid setting, or ctx's error before anything was claimed,
//   - a [*QueueError] of the claim, also where it gave out what does not fit;
//     intents beside it are served,
//   - a [*DispatchError] that names each intent of which something could not be
//     stored, or contradicted what was stored.
//
// The failure of a provider is no error of the pass. Call it from one process or
// many, as often as you like.
func RunDispatchPass(ctx context.Context, queue IntentQueue, providers *ProviderRegistry, settings Settings) (DispatchStats, error) {
	engine, err := newDispatchEngine(queue, providers, settings)
	if err != nil {
		return DispatchStats{}, err
	}
	if err := ctx.Err(); err != nil {
		return DispatchStats{}, fmt.Errorf("supervisor: nothing was claimed: %w", err)
	}
	pins, steady, _ := providers.wanted(time.Now())
	if len(pins) == 0 {
		return DispatchStats{}, nil
	}
	engine.begin(ctx, nil)
	claimed := engine.claim(ctx, pins, steady, engine.settings.ClaimBatch)
	if len(claimed.works) == 0 {
		return DispatchStats{}, claimed.err
	}
	pass := engine.newPass(ctx, claimed, engine.settings.Concurrency)
	pass.serve()
	select {
	case <-pass.ended:
	case <-ctx.Done():
		pass.interrupted()
	}
	engine.join()
	return pass.result()
}

// Dispatcher is the long loop: it claims intents and serves them until it is
// told to end. Slots are refilled as they free.
type Dispatcher struct {
	queue     IntentQueue
	providers *ProviderRegistry
	settings  Settings     // resolved
	waiter    IntentWaiter // nil: the queue has no such ability
	running   atomic.Bool

	mu    sync.Mutex
	stats DispatchStats
}

// NewDispatcher returns a dispatcher of a queue; it claims nothing before
// [Dispatcher.Run]. The arguments are those of [RunDispatchPass]. An invalid or
// missing one is an error.
func NewDispatcher(queue IntentQueue, providers *ProviderRegistry, settings Settings) (*Dispatcher, error) {
	engine, err := newDispatchEngine(queue, providers, settings)
	if err != nil {
		return nil, err
	}
	d := &Dispatcher{queue: queue, providers: providers, settings: engine.settings}
	d.waiter, _ = queue.(IntentWaiter)
	return d, nil
}

// Stats returns what the dispatcher has done since it was made. It may be called
// at any time.
func (d *Dispatcher) Stats() DispatchStats {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.stats
}

// Run dispatches until ctx ends and returns nil when every goroutine that it
// started has ended, save calls of providers that were abandoned and renewals
// that were left behind. Errors of the queue are told to the logger and make it
// back off; they do not end it. A second Run beside a running one is an error;
// one after it goes on.
//
// When ctx ends it stops claiming and lets calls finish within DrainTimeout.
// Then it ends their contexts with [ErrShutdown]: what such a call may have done
// is as open as after a crash. Intents that were not handed off are given back.
func (d *Dispatcher) Run(ctx context.Context) error {
	if !d.running.CompareAndSwap(false, true) {
		return errors.New("supervisor: Run is running already")
	}
	defer d.running.Store(false)

	engine, err := newDispatchEngine(d.queue, d.providers, d.settings)
	if err != nil {
		return err
	}
	engine.record = d.record
	engine.run(ctx, &dispatchSource{dispatcher: d, engine: engine})
	return nil
}

func (d *Dispatcher) record(more DispatchStats) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stats.add(more)
}

// dispatchSource is what the loop of a dispatcher claims from.
type dispatchSource struct {
	dispatcher *Dispatcher
	engine     *dispatchEngine
	// pins are those of the latest claim, rested is when there may be more of
	// them; zero: never.
	pins   []CapabilityPin
	rested time.Time
}

func (s *dispatchSource) claim(base context.Context, limit int, unwanted func() bool) (items int, idle bool, err error) {
	pins, steady, rested := s.engine.providers.wanted(time.Now())
	s.pins, s.rested = pins, rested
	if len(pins) == 0 {
		return 0, rested.IsZero(), nil
	}
	claimed := s.engine.claim(base, pins, steady, limit)
	if len(claimed.works) > 0 {
		pass := s.engine.newPass(base, claimed, limit)
		if unwanted() {
			pass.ctx.interrupt(ErrShutdown)
		}
		pass.serve()
	}
	return len(claimed.works), false, claimed.err
}

func (s *dispatchSource) wait() func(context.Context) error {
	waiter, pins, rested := s.dispatcher.waiter, s.pins, s.rested
	if len(pins) > 0 && waiter == nil {
		return nil
	}
	return func(ctx context.Context) error {
		until := ctx
		if !rested.IsZero() {
			limited, cancel := context.WithDeadline(ctx, rested)
			defer cancel()
			until = limited
		}
		if len(pins) == 0 {
			<-until.Done() // no pins would mean all
		} else if err := waiter.WaitIntents(until, pins); until.Err() == nil {
			return err
		}
		return ctx.Err()
	}
}

func (s *dispatchSource) problem(message string, err error) { s.engine.notify.problem(message, err) }

// dispatchEngine is what RunDispatchPass and Dispatcher.Run are made of.
type dispatchEngine struct {
	crew
	queue     IntentQueue
	providers *ProviderRegistry
	notify    notifier
	record    func(DispatchStats) // for the totals of a long loop; nil: none
}

func newDispatchEngine(queue IntentQueue, providers *ProviderRegistry, settings Settings) (*dispatchEngine, error) {
	var missing []error
	if queue == nil {
		missing = append(missing, errors.New("supervisor: queue is nil"))
	}
	if providers == nil {
		missing = append(missing, errors.New("supervisor: providers is nil"))
	}
	resolved, err := settings.resolved()
	if err = errors.Join(append(missing, err)...); err != nil {
		return nil, err
	}
	e := &dispatchEngine{queue: queue, providers: providers}
	e.settings = resolved
	e.notify = newNotifier(&e.settings)
	return e, nil
}

// claimedIntents is what a claim gave.
type claimedIntents struct {
	works  []IntentWork
	sentAt time.Time
	err    error
}

// claim asks the queue for intents. It blocks as long as the queue does.
func (e *dispatchEngine) claim(ctx context.Context, pins []CapabilityPin, steady bool, limit int) claimedIntents {
	result := claimedIntents{sentAt: time.Now()}
	err := guard("queue ClaimIntents", func() (err error) {
		result.works, err = e.queue.ClaimIntents(ctx, IntentClaimRequest{
			Capabilities:  pins,
			WorkerID:      e.settings.WorkerID,
			LeaseDuration: e.settings.LeaseDuration,
			Limit:         limit,
			// All that is claimed has a slot. A provider on probation gets one call,
			// not all of them.
			MarkRepeatable: steady,
		})
		return err
	})
	if err != nil {
		result.err = &QueueError{Op: "ClaimIntents", Err: err}
	}
	result.works = firstOfEach(result.works, (*IntentWork).Key)
	// What does not fit is left to the end of its lease. The error makes a loop
	// back off, for there may be more of it.
	result.works = slices.DeleteFunc(result.works, func(work IntentWork) bool {
		err := e.unfit(&work)
		if err != nil {
			result.err = errors.Join(result.err, &QueueError{Op: "ClaimIntents", Err: err})
		}
		return err != nil
	})
	if len(result.works) == 0 {
		e.notify.dispatchPassEnded(DispatchStats{}, result.err, time.Since(result.sentAt))
	}
	return result
}

// unfit says why a claimed intent cannot be served, nil where it can.
func (e *dispatchEngine) unfit(work *IntentWork) error {
	key := work.Key()
	if err := key.Validate(); err != nil {
		return err
	}
	if e.providers.find(work.Intent.Capability) == nil {
		return fmt.Errorf("intent %q of instance %q of tenant %q: no provider of capability %q",
			shorten(key.IntentID), shorten(key.InstanceID), shorten(key.TenantID), shorten(work.Intent.Capability.ID))
	}
	marked, accepted := work.Intent.State == ActionDispatchCommitted, work.Receipt != nil
	fits := false
	switch work.Task {
	case IntentTaskDispatch:
		// A mark of another lease may have been followed by a call.
		fits = work.Waiting() || marked && work.MarkedUnder == work.LeaseVersion && work.Repeatable()
	case IntentTaskRecover:
		fits = marked
	case IntentTaskObserve, IntentTaskCancel:
		fits = accepted && (work.Intent.State == ActionExecuting || work.Intent.State == ActionUnknown)
	}
	if !fits {
		return fmt.Errorf("intent %q of instance %q of tenant %q: task %q does not fit state %q",
			shorten(key.IntentID), shorten(key.InstanceID), shorten(key.TenantID), shorten(string(work.Task)), shorten(string(work.Intent.State)))
	}
	return nil
}

// dispatchPass is a batch of intents.
type dispatchPass struct {
	batch
	engine   *dispatchEngine
	sentAt   time.Time
	claimErr error // of the claim, beside its intents

	// Guarded by mu.
	stats   DispatchStats
	errored []IntentError
}

// newPass takes the claimed intents into care. base ends the calls for them.
func (e *dispatchEngine) newPass(base context.Context, claimed claimedIntents, slots int) *dispatchPass {
	p := &dispatchPass{engine: e, sentAt: claimed.sentAt, claimErr: claimed.err}
	p.begin(&e.crew, p, base, len(claimed.works), slots)
	for n := range claimed.works {
		d := newDispatch(p, &claimed.works[n])
		p.take(&d.service, d, claimed.sentAt)
	}
	p.count(DispatchStats{Claimed: len(claimed.works)})
	return p
}

// batchEnded closes the pass after its last intent.
func (p *dispatchPass) batchEnded() {
	stats, err := p.result()
	p.engine.notify.dispatchPassEnded(stats, err, time.Since(p.sentAt))
}

// count adds to the stats of the pass and of its loop.
func (p *dispatchPass) count(more DispatchStats) {
	p.mu.Lock()
	p.stats.add(more)
	p.mu.Unlock()
	if p.engine.record != nil {
		p.engine.record(more)
	}
}

// failed records what could not be stored of an intent. It reports whether that
// is the first of it: one intent fails once.
func (p *dispatchPass) failed(key IntentKey, err error) (first bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := slices.IndexFunc(p.errored, func(e IntentError) bool { return e.IntentKey == key })
	if at < 0 {
		p.errored = append(p.errored, IntentError{IntentKey: key, Err: err})
		return true
	}
	p.errored[at].Err = fmt.Errorf("%w; %w", p.errored[at].Err, err)
	return false
}

// result is what the pass returns once it has ended. A call that was abandoned
// may still add to the stats.
func (p *dispatchPass) result() (DispatchStats, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.errored) == 0 {
		return p.stats, p.claimErr
	}
	intents := slices.SortedFunc(slices.Values(p.errored), func(a, b IntentError) int {
		return cmp.Or(cmp.Compare(a.TenantID, b.TenantID), cmp.Compare(a.InstanceID, b.InstanceID), cmp.Compare(a.IntentID, b.IntentID))
	})
	return p.stats, errors.Join(p.claimErr, &DispatchError{Intents: intents})
}
