package supervisor

import (
	"context"
	"sync"
	"time"
)

// lazyContext is a context that is cancelled with a cause or at a deadline,
// like one of the context package, but pays for its channel, its timer and its
// place among the children of its parent only once somebody asks for Done: most
// evaluations and commits end without. It lives inside what it belongs to, so
// that it needs no allocation of its own either.
//
// The first three fields are set before anybody uses it, then it may be used by
// many goroutines at once. It is never used a second time.
type lazyContext struct {
	parent   context.Context
	deadline time.Time // zero: the parent's
	cause    error     // of the deadline

	mu     sync.Mutex
	ended  bool
	real   context.Context // nil until asked for
	cancel context.CancelCauseFunc
	stop   context.CancelFunc // frees the deadline's timer; nil for none
}

// interrupt cancels the context with a cause.
func (c *lazyContext) interrupt(cause error) {
	c.materialize()
	c.cancel(cause)
}

// end frees the context: whoever still holds it finds it cancelled.
func (c *lazyContext) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	if c.real != nil {
		c.release()
	}
}

func (c *lazyContext) release() {
	c.cancel(context.Canceled)
	if c.stop != nil {
		c.stop()
	}
}

// materialize makes the real context.
func (c *lazyContext) materialize() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.real == nil {
		parent := c.parent
		if !c.deadline.IsZero() {
			parent, c.stop = context.WithDeadlineCause(parent, c.deadline, c.cause)
		}
		c.real, c.cancel = context.WithCancelCause(parent)
		if c.ended {
			c.release()
		}
	}
	return c.real
}

func (c *lazyContext) Done() <-chan struct{} { return c.materialize().Done() }

func (c *lazyContext) Err() error {
	c.mu.Lock()
	ctx, ended := c.real, c.ended
	c.mu.Unlock()
	if ctx == nil && (ended || (!c.deadline.IsZero() && !time.Now().Before(c.deadline))) {
		ctx = c.materialize()
	}
	if ctx != nil {
		return ctx.Err()
	}
	return c.parent.Err()
}

func (c *lazyContext) Deadline() (time.Time, bool) {
	parent, ok := c.parent.Deadline()
	if c.deadline.IsZero() || (ok && parent.Before(c.deadline)) {
		return parent, ok
	}
	return c.deadline, true
}

// Value also answers the context package's own question for the nearest
// cancellable context, so that [context.Cause] and children find the real one.
func (c *lazyContext) Value(key any) any {
	c.mu.Lock()
	ctx := c.real
	c.mu.Unlock()
	if ctx != nil {
		return ctx.Value(key)
	}
	return c.parent.Value(key)
}
