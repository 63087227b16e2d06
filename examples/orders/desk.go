package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

// desk is the client side of the shop: it starts an instance for each order,
// plays the world outside, and follows every order until it has ended.
type desk struct {
	queue  supervisor.Instances
	book   *book
	report *report
	// forget lets the queue drop what has ended; nil where it shall remember.
	forget    func(context.Context) error
	startedAt time.Time
}

const (
	// starters is how many orders are started at one time, so that a durable
	// queue can write several in one transaction.
	starters = 8
	// forgetEvery is how many lines are read between two prunings.
	forgetEvery = 1000
)

// serve takes in the orders of the input and returns when all of them, and all
// that were adopted, have ended. The world outside runs beside.
func (d *desk) serve(ctx context.Context, in io.Reader) error {
	outside, leave := context.WithCancel(ctx)
	var world sync.WaitGroup
	world.Go(func() { d.watch(outside) }) // ends with outside
	defer world.Wait()
	defer leave()

	if err := d.takeIn(ctx, in); err != nil {
		return err
	}
	return d.book.awaitEnd(ctx)
}

// adopt enters the orders that an earlier run has left on the way. It comes
// before the supervisor, which would end some of them unseen.
func (d *desk) adopt(ctx context.Context) error {
	var left []order
	filter := supervisor.Filter{SpecID: specID, Status: supervisor.StatusActive}
	for snapshot, err := range d.queue.List(ctx, filter) {
		if err != nil {
			return fmt.Errorf("list orders: %w", err)
		}
		var o order
		if err := json.Unmarshal(snapshot.Config, &o); err != nil {
			return fmt.Errorf("order %q of an earlier run: %w", snapshot.ID, err)
		}
		left = append(left, o)
	}
	d.book.adopt(left)
	return nil
}

// takeIn starts the orders of the input, as fast as the book has room for them.
func (d *desk) takeIn(ctx context.Context, in io.Reader) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	type line struct {
		number int
		order  order
	}
	lines := make(chan line)
	var group sync.WaitGroup
	for range starters {
		// Ends when lines is closed.
		group.Go(func() {
			for line := range lines {
				if err := d.start(ctx, line.order, line.number); err != nil {
					fail(err)
				}
			}
		})
	}
	reader := newOrderReader(in)
	for ctx.Err() == nil {
		o, err := reader.next()
		if errors.Is(err, io.EOF) {
			break
		}
		var refused *lineError
		if err != nil && !errors.As(err, &refused) {
			fail(fmt.Errorf("read orders: %w", err))
			continue
		}
		d.book.count(func(c *counts) { c.Read++ })
		if refused != nil {
			d.refuse(refused)
			continue
		}
		select {
		case lines <- line{reader.line, o}:
		case <-ctx.Done():
		}
		if d.forget != nil && reader.line%forgetEvery == 0 {
			if err := d.forget(ctx); err != nil {
				fail(fmt.Errorf("forget what has ended: %w", err))
			}
		}
	}
	close(lines)
	group.Wait()
	return context.Cause(ctx)
}

// refuse reports a line that is not taken in.
func (d *desk) refuse(err *lineError) {
	d.book.count(func(c *counts) { c.Refused++ })
	d.report.problemf("%v", err)
}

// start starts the instance of an order. The order's id is the instance's, so
// that starting it again, in this run or after a crash, changes nothing.
func (d *desk) start(ctx context.Context, o order, line int) error {
	instance, err := supervisor.NewInstance(specID, revision, o)
	if err == nil {
		instance.ID, instance.SubjectID = o.ID, o.Customer
		instance.CapabilityPins = []supervisor.CapabilityPin{chargeCard}
		err = instance.Validate()
	}
	if err != nil {
		d.refuse(&lineError{line, err})
		return nil // the line is to blame, and it is reported
	}
	// The entry comes first: the order may have ended before Start returns.
	known, err := d.book.enter(ctx, o, line)
	switch {
	case err != nil:
		return err
	case known != nil && known.order != o:
		d.refuse(&lineError{line, fmt.Errorf("order %q is on its way with other content", o.ID)})
		return nil
	case known != nil && known.line > 0:
		d.book.count(func(c *counts) { c.Repeated++ })
		return nil
	case known != nil:
		return nil // adopted
	}
	started, err := d.queue.Start(ctx, instance, time.Time{})
	if err != nil {
		d.book.drop(o.ID)
		return fmt.Errorf("start order %q: %w", o.ID, err)
	}
	if !started {
		return d.meetAgain(ctx, instance, line)
	}
	return nil
}

// meetAgain finds out about an order that the queue had before its line was
// read: from an earlier run, from a process beside this one, or from another
// line.
func (d *desk) meetAgain(ctx context.Context, instance supervisor.Instance, line int) error {
	snapshot, err := d.queue.Get(ctx, instance.TenantID, instance.ID)
	ended := errors.Is(err, supervisor.ErrNotFound) // and was forgotten since
	switch {
	case err != nil && !ended:
		d.book.drop(instance.ID)
		return fmt.Errorf("look up order %q: %w", instance.ID, err)
	case !ended && !bytes.Equal(snapshot.Config, instance.Config):
		d.book.drop(instance.ID)
		d.refuse(&lineError{line, fmt.Errorf("order %q is stored with other content: %.200s", instance.ID, snapshot.Config)})
		return nil
	case ended, !snapshot.FinishedAt.Before(d.startedAt): // zero: not finished
		d.book.drop(instance.ID)
		d.book.repeat(instance.ID)
		return nil
	}
	d.book.count(func(c *counts) {
		c.Resumed++
		if snapshot.Status != supervisor.StatusActive {
			c.Before++
		}
	})
	d.book.found(&snapshot)
	return nil
}
