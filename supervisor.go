package supervisor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Stats counts what a pass, or a supervisor since its beginning, has done.
type Stats struct {
	// Claimed items, kept claims included.
	Claimed int
	// Failed counts failures made by the supervisor and commits that erred.
	Failed int
	// Continued, Rescheduled and Completed count committed commands by the
	// disposition that the driver gave, whatever the store made of it.
	Continued, Rescheduled, Completed int
	// LeasesLost counts items whose renewal failed because the lease was gone.
	LeasesLost int
	// Revoked counts claims that a pause or cancel took away.
	Revoked int
	// Abandoned counts drivers that ignored the end of their context.
	Abandoned int
}

func (s *Stats) add(more Stats) {
	s.Claimed += more.Claimed
	s.Failed += more.Failed
	s.Continued += more.Continued
	s.Rescheduled += more.Rescheduled
	s.Completed += more.Completed
	s.LeasesLost += more.LeasesLost
	s.Revoked += more.Revoked
	s.Abandoned += more.Abandoned
}

// RunDuePass claims due instances once, evaluates them concurrently and commits
// every result. It blocks until each item is settled and every goroutine that it
// started has ended, save drivers that were abandoned, renewals that were left
// behind and cancelled compiles that nobody waits for.
//
// newContext makes what drivers share for the pass; it is called once, and only
// when something was claimed. The context that it gets ends with the pass.
//
// When ctx ends midway, evaluations are cancelled and their failures committed;
// commits outlive it. The stats are valid beside an error, which joins
//
//   - an invalid setting, or ctx's error before anything was claimed,
//   - a [*QueueError] of the claim; items beside it are served,
//   - a [*ContextError] when newContext failed,
//   - a [*CommitError] that names each item whose commit erred.
//
// The failure of one item is no error of the pass: it is recorded with the
// item and counted. Call it from one process or many, as often as you like.
func RunDuePass[C any](ctx context.Context, queue WorkQueue, registry *DriverRegistry[C], settings Settings,
	newContext func(context.Context) (C, error)) (Stats, error) {
	engine, err := newEngine(queue, registry, settings, newContext)
	if err != nil {
		return Stats{}, err
	}
	if err := ctx.Err(); err != nil {
		return Stats{}, fmt.Errorf("supervisor: nothing was claimed: %w", err)
	}
	specIDs, idle := registry.claimSpecs()
	if idle {
		return Stats{}, nil
	}
	engine.begin(ctx, nil)
	claimed := engine.claim(ctx, specIDs, engine.settings.ClaimBatch)
	if len(claimed.items) == 0 {
		return Stats{}, claimed.err
	}
	pass := engine.newPass(ctx, claimed, engine.settings.Concurrency)
	pass.start()
	select {
	case <-pass.ended:
	case <-ctx.Done():
		pass.interrupted()
	}
	engine.join()
	return pass.stats, pass.err()
}

// engine is what RunDuePass and Supervisor.Run are made of.
type engine[C any] struct {
	crew
	queue      WorkQueue
	releaser   Releaser     // nil: the queue has no such ability
	keeping    CommitKeeper // nil: none, or not wanted
	registry   *DriverRegistry[C]
	newContext func(context.Context) (C, error)
	notify     notifier
	record     func(Stats) // for the totals of a long loop; nil: none
}

func newEngine[C any](queue WorkQueue, registry *DriverRegistry[C], settings Settings,
	newContext func(context.Context) (C, error)) (*engine[C], error) {
	var missing []error
	for _, argument := range [...]struct {
		name string
		nil  bool
	}{
		{"queue", queue == nil}, {"registry", registry == nil}, {"newContext", newContext == nil},
	} {
		if argument.nil {
			missing = append(missing, fmt.Errorf("supervisor: %s is nil", argument.name))
		}
	}
	resolved, err := settings.resolved()
	if err = errors.Join(append(missing, err)...); err != nil {
		return nil, err
	}
	e := &engine[C]{queue: queue, registry: registry, newContext: newContext}
	e.settings = resolved
	e.releaser, _ = queue.(Releaser)
	e.notify = newNotifier(&e.settings)
	return e, nil
}

// claimResult is what a claim gave.
type claimResult struct {
	items  []WorkItem
	sentAt time.Time
	err    error
}

// claim asks the queue for items. It blocks as long as the queue does.
func (e *engine[C]) claim(ctx context.Context, specIDs []string, limit int) claimResult {
	result := claimResult{sentAt: time.Now()}
	err := guard("queue ClaimDue", func() (err error) {
		result.items, err = e.queue.ClaimDue(ctx, ClaimRequest{
			SpecIDs:       specIDs,
			WorkerID:      e.settings.WorkerID,
			LeaseDuration: e.settings.LeaseDuration,
			Limit:         limit,
		})
		return err
	})
	if err != nil {
		result.err = &QueueError{Op: "ClaimDue", Err: err}
	}
	result.items = firstOfEach(result.items, itemKeyOf)
	if len(result.items) == 0 {
		e.notify.passEnded(Stats{}, result.err, time.Since(result.sentAt))
	}
	return result
}

// firstOfEach drops what came before in the same batch.
func firstOfEach[T any, K comparable](items []T, key func(*T) K) []T {
	if len(items) < 2 {
		return items
	}
	seen := make(map[K]struct{}, len(items))
	kept := 0
	// By place, for the item of a closure would be copied to the heap.
	for n := range items {
		seen[key(&items[n])] = struct{}{}
		if len(seen) == kept {
			continue
		}
		items[kept] = items[n]
		kept++
	}
	clear(items[kept:])
	return items[:kept]
}

// itemKey names an instance.
type itemKey struct{ tenantID, id string }

func itemKeyOf(item *WorkItem) itemKey { return itemKey{item.TenantID, item.ID} }

// pass is a batch of instances and what their drivers share.
type pass[C any] struct {
	batch
	engine    *engine[C]
	startedAt time.Time
	claimErr  error // of the claim, beside its items

	// value and contextErr are what the context factory made, before any item
	// is served.
	value      C
	contextErr error

	// Guarded by mu.
	stats   Stats
	errored []ItemError
}

// newPass takes the claimed items into care. base ends their evaluations.
func (e *engine[C]) newPass(base context.Context, claimed claimResult, slots int) *pass[C] {
	p := &pass[C]{
		engine:    e,
		startedAt: claimed.sentAt,
		claimErr:  claimed.err,
		stats:     Stats{Claimed: len(claimed.items)},
	}
	p.begin(&e.crew, p, base, len(claimed.items), slots)
	for n := range claimed.items {
		// Each has memory of its own, so that a slow item does not keep that of
		// the others.
		evaluation := &evaluation[C]{
			pass:   p,
			item:   claimed.items[n],
			sentAt: claimed.sentAt, claimedAt: claimed.sentAt,
		}
		p.take(&evaluation.service, evaluation, claimed.sentAt)
		e.notify.claimed(&evaluation.item, false)
	}
	if e.record != nil {
		e.record(p.stats)
	}
	return p
}

// start builds the context and then serves the items, without blocking.
func (p *pass[C]) start() {
	p.engine.items.Add(1)
	go p.open()
}

// open ends when the context factory has returned and the first items are begun.
func (p *pass[C]) open() {
	defer p.engine.items.Done()
	err := error(&PanicError{Op: "context factory"})
	defer func() {
		p.contextErr = err
		if p.engine.loop != nil {
			p.engine.loop.contextBuilt(err)
		}
		p.serve()
	}()
	if p.shuttingDown() {
		err = nil // nothing is made, for the items find the end of their context
		return
	}
	err = guard("context factory", func() (err error) {
		p.value, err = p.engine.newContext(&p.ctx)
		return err
	})
}

// batchEnded closes the pass after its last item.
func (p *pass[C]) batchEnded() {
	p.engine.notify.passEnded(p.stats, p.err(), time.Since(p.startedAt))
}

// count adds to the stats of the pass and of its loop.
func (p *pass[C]) count(more Stats) {
	p.mu.Lock()
	p.stats.add(more)
	p.mu.Unlock()
	if p.engine.record != nil {
		p.engine.record(more)
	}
}

// commitErred records a commit that erred.
func (p *pass[C]) commitErred(item *WorkItem, err error) {
	p.count(Stats{Failed: 1})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.errored = append(p.errored, ItemError{TenantID: item.TenantID, InstanceID: item.ID, Err: err})
}

// err is the error of the pass, once it has ended.
func (p *pass[C]) err() error {
	var commits *CommitError
	if len(p.errored) > 0 {
		commits = &CommitError{Items: slices.SortedFunc(slices.Values(p.errored), func(a, b ItemError) int {
			return strings.Compare(a.TenantID+"\x00"+a.InstanceID, b.TenantID+"\x00"+b.InstanceID)
		})}
	}
	switch {
	case p.contextErr != nil:
		return errors.Join(p.claimErr, &ContextError{Err: p.contextErr, Cleanup: commits})
	case commits != nil:
		return errors.Join(p.claimErr, commits)
	}
	return p.claimErr
}
