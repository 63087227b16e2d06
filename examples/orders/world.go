package main

import (
	"context"
	"errors"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

const (
	watchInterval = 200 * time.Millisecond
	// quietTime is how long nothing may be heard of an order before the queue is
	// asked. Mostly it backs off or waits; but another process may have
	// finished it, or the outcome of a commit may be unknown.
	quietTime = 3 * time.Second
	// lookUps bounds the orders that are asked after in one interval: most quiet
	// orders only wait for their turn, and asking must not slow that down.
	lookUps = 100
	// restockTime is how long the warehouse takes.
	restockTime = time.Second
)

// watch is the world outside: it answers orders that wait and asks after quiet
// ones, until ctx ends.
func (d *desk) watch(ctx context.Context) {
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		for _, o := range d.book.unanswered() {
			err := d.answer(ctx, &o)
			switch {
			case err == nil || errors.Is(err, supervisor.ErrFinished) || errors.Is(err, supervisor.ErrNotFound):
				d.book.answered(o.ID)
			case ctx.Err() == nil:
				d.report.problemf("order %q waits: %v", o.ID, err) // and is answered next time
			}
		}
		for _, id := range d.book.quiet(quietTime, lookUps) {
			snapshot, err := d.queue.Get(ctx, supervisor.DefaultTenantID, id)
			switch {
			case err == nil:
				d.book.found(&snapshot)
			case errors.Is(err, supervisor.ErrNotFound):
				d.book.missing(id)
			case ctx.Err() == nil:
				d.report.problemf("order %q: %v", id, err)
			}
		}
	}
}

// answer does what the world does about an order that waits: either the
// warehouse delivers the goods or the customer cancels. Both may be said again
// and again; the queue remembers.
func (d *desk) answer(ctx context.Context, o *order) error {
	if o.Stock == stockNever {
		return d.queue.Cancel(ctx, supervisor.DefaultTenantID, o.ID)
	}
	delivery := supervisor.Wakeup{ID: "goods", Kind: wakeupRestocked}
	return d.queue.Deliver(ctx, supervisor.DefaultTenantID, o.ID, delivery, time.Now().Add(restockTime))
}
