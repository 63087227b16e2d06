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

// serve takes in what an earlier run left, then the orders of the input, and
// returns when all of them have ended. The world outside runs beside.
func (d *desk) serve(ctx context.Context, in io.Reader) error {
	outside, leave := context.WithCancel(ctx)
	var world sync.WaitGroup
	world.Go(func() { d.watch(outside) }) // ends with outside
	defer world.Wait()
	defer leave()

	if err := d.adopt(ctx); err != nil {
		return err
	}
	if err := d.takeIn(ctx, in); err != nil {
		return err
	}
	return d.book.awaitEnd(ctx)
}

// adopt enters the orders that an earlier run has left on the way.
func (d *desk) adopt(ctx context.Context) error {
	filter := supervisor.Filter{SpecID: specID, Status: supervisor.StatusActive}
	for snapshot, err := range d.queue.List(ctx, filter) {
		if err != nil {
			return fmt.Errorf("list orders: %w", err)
		}
		var o order
		if err := json.Unmarshal(snapshot.Config, &o); err != nil {
			return fmt.Errorf("order %q of an earlier run: %w", snapshot.ID, err)
		}
		if _, _, err := d.book.enter(ctx, o, 0); err != nil {
			return err
		}
		d.book.count(func(c *counts) { c.Resumed++ })
		d.book.found(&snapshot)
	}
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
		switch {
		case errors.As(err, &refused):
			d.refuse(refused)
			continue
		case err != nil:
			fail(fmt.Errorf("read orders: %w", err))
			continue
		}
		d.book.count(func(c *counts) { c.Read++ })
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
	d.book.count(func(c *counts) { c.Read++; c.Refused++ })
	d.report.problem("%v", err)
}

// start starts the instance of an order. The order's id is the instance's, so
// that starting it again, in this run or after a crash, changes nothing.
func (d *desk) start(ctx context.Context, o order, line int) error {
	instance, err := supervisor.NewInstance(specID, revision, o)
	if err == nil {
		instance.ID, instance.SubjectID = o.ID, o.Customer
		err = instance.Validate()
	}
	if err != nil {
		d.refuse(&lineError{line, err})
		return nil
	}
	// The entry comes first: the order may have ended before Start returns.
	entered, firstLine, err := d.book.enter(ctx, o, line)
	switch {
	case err != nil:
		return err
	case !entered && firstLine > 0:
		d.refuse(&lineError{line, fmt.Errorf("order %q is on its way already, from line %d", o.ID, firstLine)})
		return nil
	case !entered:
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
// read: from an earlier run, or from another line that has ended meanwhile.
func (d *desk) meetAgain(ctx context.Context, instance supervisor.Instance, line int) error {
	snapshot, err := d.queue.Get(ctx, instance.TenantID, instance.ID)
	switch {
	case err != nil && !errors.Is(err, supervisor.ErrNotFound):
		d.book.drop(instance.ID)
		return fmt.Errorf("look up order %q: %w", instance.ID, err)
	case err != nil, snapshot.Status != supervisor.StatusActive && snapshot.FinishedAt.After(d.startedAt):
		d.book.drop(instance.ID)
		d.refuse(&lineError{line, fmt.Errorf("order %q has come before and ended", instance.ID)})
		return nil
	case !bytes.Equal(snapshot.Config, instance.Config):
		d.book.drop(instance.ID)
		d.refuse(&lineError{line, fmt.Errorf("order %q is stored with other content: %.200s", instance.ID, snapshot.Config)})
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
