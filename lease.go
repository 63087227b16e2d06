package supervisor

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// keeper renews the leases that a pass or a supervisor holds. One timer serves
// all of them, armed for the earliest renewal; a lease that is released before
// its first renewal costs two short critical sections.
//
// A lease is trusted until the moment when the last confirmed call for it was
// sent plus its duration, on the monotonic clock: the store's end is never
// earlier.
type keeper struct {
	ctx      context.Context // of renewals; outlives the caller's
	duration time.Duration
	period   time.Duration
	// work joins the timer and the renewals, except those left behind.
	work *sync.WaitGroup

	mu     sync.Mutex
	due    leaseHeap
	timer  *time.Timer
	armed  bool // the timer will fire; it then has a place in work
	closed bool
}

// heldLease is one lease in a keeper's care. All fields are guarded by the
// keeper's mutex.
type heldLease struct {
	holder leaseHolder
	// nextAt is when to renew, or to give a renewal in flight up; index is the
	// place in the heap, -1 for none.
	nextAt time.Time
	index  int
	// tickAt is the tick that the next renewal, or the one in flight, is for.
	tickAt         time.Time
	confirmedUntil time.Time
	passing        error // the latest ErrUnavailable since the lease was confirmed
	// settled: somebody has taken the right to commit or release; no renewal
	// begins any more.
	settled bool
	renewal *renewal // in flight; nil for none
}

// renewal is one call in flight.
type renewal struct {
	cancel context.CancelFunc
	ended  chan struct{}
	left   bool // nobody waits for it any more
}

// leaseHolder is what a lease is held for.
type leaseHolder interface {
	renewLease(ctx context.Context) error
	// leaseFailed is called once, after a renewal failed for good; the callee
	// has the right to settle.
	leaseFailed(err error)
	leaseRenewed()
}

// errUnconfirmed ends a lease that could not be confirmed in time.
var errUnconfirmed = fmt.Errorf("%w: not confirmed before its end", ErrLeaseLost)

// begin makes the keeper ready; its zero value is not.
func (k *keeper) begin(ctx context.Context, settings *Settings, work *sync.WaitGroup) {
	k.ctx, k.work = ctx, work
	k.duration, k.period = settings.LeaseDuration, settings.renewalPeriod()
}

// hold begins to renew a lease that was acquired by a call sent at sentAt.
func (k *keeper) hold(lease *heldLease, holder leaseHolder, sentAt time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	tickAt := sentAt.Add(k.period)
	*lease = heldLease{holder: holder, nextAt: tickAt, tickAt: tickAt, confirmedUntil: sentAt.Add(k.duration)}
	k.push(lease)
}

// take gives the right to settle a lease to the first who asks. No renewal of
// it begins afterwards, and none is in flight when take returns: one that
// ignores its context is waited for until the confirmed lease ends, then left
// behind.
func (k *keeper) take(lease *heldLease) bool {
	k.mu.Lock()
	if lease.settled {
		k.mu.Unlock()
		return false
	}
	lease.settled = true
	if lease.index >= 0 {
		heap.Remove(&k.due, lease.index)
	}
	inFlight := lease.renewal
	confirmedUntil := lease.confirmedUntil
	k.mu.Unlock()
	if inFlight == nil {
		return true
	}
	inFlight.cancel()
	patience := time.NewTimer(time.Until(confirmedUntil))
	defer patience.Stop()
	select {
	case <-inFlight.ended:
		return true
	case <-patience.C:
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.leaveBehind(lease)
	return true
}

// confirmed reports whether a lease is held for certain: nobody has settled it,
// and the latest confirmed call was sent less than its duration ago.
func (k *keeper) confirmed(lease *heldLease) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return !lease.settled && time.Now().Before(lease.confirmedUntil)
}

// leaveBehind gives a renewal in flight up: nobody waits for it any more.
func (k *keeper) leaveBehind(lease *heldLease) {
	if call := lease.renewal; call != nil && !call.left {
		call.cancel()
		call.left = true
		k.work.Done()
	}
}

// close ends the timer; no lease is held any more.
func (k *keeper) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
	if k.armed && k.timer.Stop() {
		k.armed = false
		k.work.Done()
	}
}

// push puts a lease into the heap and arms the timer for the earliest.
func (k *keeper) push(lease *heldLease) {
	heap.Push(&k.due, lease)
	if lease.index == 0 {
		k.arm()
	}
}

func (k *keeper) arm() {
	if k.closed || len(k.due) == 0 {
		return
	}
	if k.armed && !k.timer.Stop() {
		return // it has fired: tick is waiting for the mutex and arms anew
	}
	delay := max(time.Until(k.due[0].nextAt), 0)
	if !k.armed {
		k.armed = true
		k.work.Add(1)
	}
	if k.timer == nil {
		k.timer = time.AfterFunc(delay, k.tick)
	} else {
		k.timer.Reset(delay)
	}
}

// tick runs in the timer's goroutine and does all that is due: it begins
// renewals, each in a goroutine of its own, so that a slow one delays no other,
// and gives leases up that nobody confirmed before their end.
func (k *keeper) tick() {
	defer k.work.Done()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.armed = false
	now := time.Now()
	for len(k.due) > 0 && !k.due[0].nextAt.After(now) {
		lease := heap.Pop(&k.due).(*heldLease)
		if answerBy := k.answerBy(lease); now.Before(answerBy) {
			ctx, cancel := context.WithDeadline(k.ctx, answerBy)
			lease.renewal = &renewal{cancel: cancel, ended: make(chan struct{})}
			k.work.Add(1)
			go k.renew(ctx, lease, lease.renewal)
		} else if !now.Before(lease.confirmedUntil) {
			k.leaveBehind(lease)
			lease.settled = true
			k.work.Add(1)
			go k.expired(lease)
			continue
		}
		lease.nextAt = lease.confirmedUntil
		heap.Push(&k.due, lease)
	}
	k.arm()
}

// answerBy bounds a renewal. It is a little before the end of the lease, so
// that a renewal that heeds its context is over by then.
func (k *keeper) answerBy(lease *heldLease) time.Time {
	return lease.confirmedUntil.Add(-k.period / 16)
}

// expired ends with the holder's call.
func (k *keeper) expired(lease *heldLease) {
	defer k.work.Done()
	err := errUnconfirmed
	if lease.passing != nil {
		err = fmt.Errorf("%w: %w", errUnconfirmed, lease.passing)
	}
	lease.holder.leaseFailed(err)
}

// renew ends with the call that it makes.
func (k *keeper) renew(ctx context.Context, lease *heldLease, call *renewal) {
	sentAt := time.Now()
	err := error(&PanicError{Op: "queue Renew"})
	defer func() { k.renewed(lease, call, sentAt, err) }()
	err = guard("queue Renew", func() error { return lease.holder.renewLease(ctx) })
}

// renewed takes the result of a renewal.
func (k *keeper) renewed(lease *heldLease, call *renewal, sentAt time.Time, err error) {
	call.cancel()
	unavailable := err != nil && errors.Is(err, ErrUnavailable)
	k.mu.Lock()
	if !call.left {
		defer k.work.Done()
	}
	lease.renewal = nil
	close(call.ended)
	if lease.settled {
		k.mu.Unlock()
		return
	}
	heap.Remove(&k.due, lease.index)
	now := time.Now()
	switch {
	case err == nil:
		lease.confirmedUntil = sentAt.Add(k.duration)
		lease.passing = nil
		// The rhythm is kept. Of the ticks missed meanwhile one is made up for.
		lease.tickAt = lease.tickAt.Add(k.period)
		for next := lease.tickAt.Add(k.period); !next.After(now); next = next.Add(k.period) {
			lease.tickAt = next
		}
		lease.nextAt = lease.tickAt
		k.push(lease)
		k.mu.Unlock()
		lease.holder.leaseRenewed()
		return
	case unavailable:
		// A passing fault is tried again several times before the next tick
		// would come, for the lease may not last until then.
		lease.passing = err
		lease.nextAt = earlier(now.Add(k.period/4), lease.confirmedUntil)
		k.push(lease)
		k.mu.Unlock()
		return
	case !now.Before(lease.confirmedUntil):
		err = fmt.Errorf("%w: %w", errUnconfirmed, err)
	}
	lease.settled = true
	k.mu.Unlock()
	lease.holder.leaseFailed(err)
}

// leaseHeap orders leases by their next renewal.
type leaseHeap []*heldLease

func (h leaseHeap) Len() int           { return len(h) }
func (h leaseHeap) Less(i, j int) bool { return h[i].nextAt.Before(h[j].nextAt) }
func (h leaseHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *leaseHeap) Push(x any) {
	lease := x.(*heldLease)
	lease.index = len(*h)
	*h = append(*h, lease)
}

func (h *leaseHeap) Pop() any {
	last := len(*h) - 1
	lease := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	lease.index = -1
	return lease
}
