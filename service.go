package supervisor

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// crew is what all passes of one call or one long loop share, whatever it is
// that they serve.
type crew struct {
	settings Settings
	// commits outlives the cancellation of the caller's context.
	commits context.Context
	keeper  keeper
	// items joins batches being opened and items being served; background joins
	// timers and renewals, which end with the items.
	items, background sync.WaitGroup
	// loop is the long loop that the batches belong to; nil for a single pass.
	loop *loop

	mu sync.Mutex
	// live are the batches of a long loop that are being served.
	live map[*batch]struct{}
}

// begin prepares the crew for batches under ctx.
func (c *crew) begin(ctx context.Context, loop *loop) {
	c.commits = context.WithoutCancel(ctx)
	c.keeper.begin(c.commits, &c.settings, &c.background)
	if c.loop = loop; loop != nil {
		c.live = make(map[*batch]struct{})
	}
}

// join waits for all that the crew started.
func (c *crew) join() {
	c.items.Wait()
	c.keeper.close()
	c.background.Wait()
}

// interrupted tells every live batch that its context has ended.
func (c *crew) interrupted() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for batch := range c.live {
		batch.interrupted()
	}
}

// batch is the life of the items of one claim: their slots, their leases and
// their end.
type batch struct {
	crew  *crew
	owner batchOwner
	// ctx ends what is done for the items, and with the batch.
	ctx   lazyContext
	ended chan struct{} // closed when the last item is settled

	mu sync.Mutex
	// served holds the service of each item, or the latest one of a claim that
	// was kept; nil once it has left its slot.
	served []*service
	next   int // the first item that is not begun
	slots  int // items served at one time
	// unfinished counts two halves of each item: its slot and its settlement,
	// which end in either order.
	unfinished int
}

// batchOwner is told when the last item of a batch is settled.
type batchOwner interface{ batchEnded() }

// begin makes the batch ready for a number of items under a context.
func (b *batch) begin(crew *crew, owner batchOwner, base context.Context, items, slots int) {
	b.crew, b.owner = crew, owner
	b.ctx.parent = base
	b.ended = make(chan struct{})
	b.served = make([]*service, 0, items)
	b.slots = slots
	b.unfinished = 2 * items
}

// take takes the next item of the claim into care: from here on its lease is
// renewed. All are taken before the first is served.
func (b *batch) take(s *service, job job, sentAt time.Time) {
	s.batch, s.job, s.place = b, job, len(b.served)
	s.ctx.parent = &b.ctx
	b.served = append(b.served, s)
	b.crew.keeper.hold(&s.lease, s, sentAt)
}

// serve begins to serve the items, without blocking.
func (b *batch) serve() {
	if b.crew.loop != nil {
		b.crew.mu.Lock()
		b.crew.live[b] = struct{}{}
		b.crew.mu.Unlock()
	}
	for range min(b.slots, len(b.served)) {
		b.serveNext()
	}
}

// serveNext serves the next item, if there is one, in a goroutine that ends when
// the item is settled or the foreign code in it, long abandoned, returns.
func (b *batch) serveNext() bool {
	b.mu.Lock()
	if b.next == len(b.served) {
		b.mu.Unlock()
		return false
	}
	s := b.served[b.next]
	b.next++
	s.inside = true
	b.mu.Unlock()
	b.crew.items.Add(1)
	go s.run()
	return true
}

// replace puts the service of a kept claim in the place of the one before.
func (b *batch) replace(s, next *service, job job, sentAt time.Time) {
	next.batch, next.job, next.place = b, job, s.place
	next.ctx.parent = &b.ctx
	next.inside = true
	b.crew.keeper.hold(&next.lease, next, sentAt)
	b.mu.Lock()
	b.served[s.place] = next
	b.mu.Unlock()
}

// leave gives up the slot of an item, which goes to the next one or back to the
// loop.
func (b *batch) leave(place int) {
	defer b.crew.items.Done()
	b.mu.Lock()
	b.served[place] = nil
	b.mu.Unlock()
	if !b.serveNext() && b.crew.loop != nil {
		b.crew.loop.freeSlots(1)
	}
	b.finishHalf()
}

// finishHalf notes that an item has left its slot, or that it is settled.
func (b *batch) finishHalf() {
	b.mu.Lock()
	b.unfinished--
	last := b.unfinished == 0
	b.mu.Unlock()
	if !last {
		return
	}
	// Deferred, for an observer may end the goroutine, and somebody waits.
	defer func() {
		if b.crew.loop != nil {
			b.crew.mu.Lock()
			delete(b.crew.live, b)
			b.crew.mu.Unlock()
		}
		close(b.ended)
	}()
	b.ctx.end()
	b.owner.batchEnded()
}

// interrupted is called when the batch's context has ended: foreign code that
// ignores that is abandoned in time. Items that begin later find it ended.
func (b *batch) interrupted() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.served {
		if s != nil {
			s.expectReturn()
		}
	}
}

// shuttingDown reports whether the long loop has told its items to end.
func (b *batch) shuttingDown() bool {
	return b.crew.loop != nil && errors.Is(context.Cause(&b.ctx), ErrShutdown)
}

// service is the service of one claim of one item: foreign code is called for
// it in a slot while its lease is renewed, and it is settled once.
//
// Three may want to settle it: the goroutine that serves it, a renewal that
// failed, and the timer that abandons foreign code. The keeper lets exactly one.
type service struct {
	batch *batch
	job   job
	place int // in batch.served
	lease heldLease
	ctx   lazyContext
	// settling is the context of the settlement's first call.
	settling lazyContext

	// Guarded by batch.mu. inside: a goroutine is between the item's beginning
	// and the return of foreign code. limit is the cause with which a timeout
	// ends the context.
	inside    bool
	abandoned bool
	limit     error
	patience  *time.Timer // abandons; nil while nothing has ended the context
}

// job is what a service does for its item.
type job interface {
	// perform calls foreign code. contain gets what that panicked with, also
	// where it ended the goroutine by Goexit.
	perform()
	contain(panicked any)
	// performed is called after contain, unless the job was abandoned before,
	// when the result stands whatever a renewal says. It is told whether settle
	// follows, or somebody else had the right to it.
	performed(settles bool)
	// late is called after contain where the job was abandoned before. Nobody
	// waits for it any more.
	late()
	// settle, with the right to it, makes the result durable. It returns the
	// service that goes on with the claim where that was kept.
	settle() *service

	// renew asks the queue for a longer lease; renewed follows a success.
	renew(ctx context.Context) error
	renewed()
	// renewalFailed and abandon settle without a result. abandon is told
	// whether it has the right to settle.
	renewalFailed(err, cause error)
	abandon(err error, settles bool)
}

// run serves the item, and goes on with the claims that settlements keep.
func (s *service) run() {
	growStack()
	for s != nil {
		s = s.turn()
	}
}

// stackRoom is about what an evaluation and its commit need.
const stackRoom = 5 << 10

// growStack makes room on the stack of a new goroutine. Here that is cheap; a
// stack that grows in the middle of an evaluation, twice as a rule, is copied
// with all the frames on it, which costs more than all else that the goroutine
// does.
//
//go:noinline
func growStack() byte {
	var room [stackRoom]byte
	return room[len(room)-1]
}

// turn is one performance and its settlement. The deferred calls also run when
// foreign code ends the goroutine.
func (s *service) turn() (next *service) {
	abandoned, settles := false, false
	defer func() {
		s.ctx.end()
		if next != nil {
			return
		}
		if settles {
			s.batch.finishHalf()
		}
		if !abandoned {
			s.batch.leave(s.place)
		}
	}()
	defer func() {
		if settles {
			next = s.job.settle()
		}
	}()
	defer func() {
		s.job.contain(recover())
		if abandoned = !s.returned(); abandoned {
			s.job.late()
			return
		}
		settles = s.batch.crew.keeper.take(&s.lease)
		s.job.performed(settles)
	}()
	s.job.perform()
	return nil
}

// limited returns the context of the service, ended with a cause after a
// timeout (0: none), and what frees it, once or more often.
func (s *service) limited(timeout time.Duration, cause error) (ctx context.Context, free func()) {
	if timeout <= 0 {
		return &s.ctx, func() {}
	}
	s.batch.mu.Lock()
	s.limit = cause
	s.batch.mu.Unlock()
	ctx, cancel := context.WithTimeoutCause(&s.ctx, timeout, cause)
	background := &s.batch.crew.background
	background.Add(1)
	freed := false // guarded by batch.mu: a watch that comes late is of no call
	unwatch := context.AfterFunc(ctx, func() {
		defer background.Done()
		s.batch.mu.Lock()
		defer s.batch.mu.Unlock()
		if !freed {
			s.expectReturn()
		}
	})
	return ctx, func() {
		if unwatch() {
			background.Done()
		} else {
			s.batch.mu.Lock()
			freed = true
			s.batch.mu.Unlock()
		}
		cancel()
	}
}

// returned notes that foreign code is back; false if it was abandoned before.
func (s *service) returned() bool {
	s.batch.mu.Lock()
	defer s.batch.mu.Unlock()
	s.inside = false
	if s.patience != nil && s.patience.Stop() {
		s.batch.crew.background.Done()
	}
	return !s.abandoned
}

// paused notes that one of several calls of foreign code is back, its limit
// freed, and that the next one has its own time; false if the first was abandoned.
func (s *service) paused() bool {
	s.batch.mu.Lock()
	defer s.batch.mu.Unlock()
	if s.patience != nil && s.patience.Stop() {
		s.batch.crew.background.Done()
		s.patience = nil
	}
	return !s.abandoned
}

// expectReturn gives foreign code whose context has ended AbandonAfter to
// return. The caller holds batch.mu.
func (s *service) expectReturn() {
	if s.inside && s.patience == nil {
		s.batch.crew.background.Add(1)
		s.patience = time.AfterFunc(s.batch.crew.settings.AbandonAfter, s.abandon)
	}
}

// abandon runs in the timer's goroutine when foreign code did not return: its
// slot is freed and its result, should it ever come, is dropped.
func (s *service) abandon() {
	b := s.batch
	defer b.crew.background.Done()
	b.mu.Lock()
	if !s.inside {
		b.mu.Unlock()
		return
	}
	s.inside, s.abandoned = false, true
	limit := s.limit
	b.mu.Unlock()
	defer b.leave(s.place)
	cause := context.Cause(&s.ctx)
	if cause == nil {
		cause = limit // the only end that is not the whole context's
	}
	settles := b.crew.keeper.take(&s.lease)
	if settles {
		defer b.finishHalf()
	}
	s.job.abandon(fmt.Errorf("abandoned, it ignored the end of its context for %v: %w", b.crew.settings.AbandonAfter, cause), settles)
}

// renewLease and the two that follow make the service a leaseHolder; they run
// in the goroutine of a renewal.
func (s *service) renewLease(ctx context.Context) error { return s.job.renew(ctx) }

func (s *service) leaseRenewed() { s.job.renewed() }

func (s *service) leaseFailed(err error) {
	defer s.batch.finishHalf()
	cause := fmt.Errorf("lease renewal failed: %w", err)
	s.ctx.interrupt(cause)
	s.batch.mu.Lock()
	s.expectReturn()
	s.batch.mu.Unlock()
	s.job.renewalFailed(err, cause)
}

// settlementContext is a new context for a call that settles: it outlives the
// caller's and is bounded by CommitTimeout. The first one lives in the service,
// for most settle with one call. Only who has the right to settle may call it.
func (s *service) settlementContext() *lazyContext {
	ctx := &s.settling
	if ctx.parent != nil {
		ctx = new(lazyContext)
	}
	ctx.parent, ctx.cause = s.batch.crew.commits, context.DeadlineExceeded
	ctx.deadline = time.Now().Add(s.batch.crew.settings.CommitTimeout)
	return ctx
}
