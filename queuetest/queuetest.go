package queuetest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

// Queue is one queue under test. Only WorkQueue is required, with either Add or
// [supervisor.Instances]; every other field lets more cases run. The optional
// abilities [supervisor.Instances], [supervisor.Releaser], [supervisor.Waiter]
// and [supervisor.CommitKeeper] are found by a type assertion on WorkQueue, and so
// are those of intents, [supervisor.IntentQueue], [supervisor.IntentWaiter] and
// [supervisor.IntentOperator].
//
// A method that returns an error that is [errors.ErrUnsupported] skips the case
// that needed it.
type Queue struct {
	supervisor.WorkQueue

	// Instances is the client side where it is another value than WorkQueue. A
	// queue with some of its methods embeds [NoInstances] for the others.
	Instances supervisor.Instances

	// Add stores a new instance, item.Instance, due at item.ScheduledAt (zero:
	// now) with item.Wakeups pending and due, the first being the oldest. Nil:
	// Instances does it.
	Add func(ctx context.Context, item supervisor.WorkItem) error

	// Lease is the shortest lease that the queue serves dependably. Cases wait
	// for leases of about this length to end. Zero means 300 ms.
	Lease time.Duration

	// Reopen returns another handle on the same store, as another process would
	// have it. Nil skips the cases of several processes.
	Reopen func(t *testing.T) supervisor.WorkQueue

	// FailWrite makes the n-th write to the store from now on fail, the first
	// being 1, in the place where a full disk or a lost connection would. The
	// returned function disarms it and reports whether that write was reached.
	// Nil skips the cases of a failing store.
	FailWrite func(n int) (disarm func() (reached bool))

	// ShiftHost moves what the queue takes for the time of its host, leaving
	// the store's clock alone. Nil skips the case of a wrong host clock.
	ShiftHost func(d time.Duration)

	// Corrupt makes the stored row of an instance undecodable. Nil skips the
	// cases of a broken row.
	Corrupt func(ctx context.Context, tenantID, instanceID string) error

	// Analyze refreshes the statistics by which the store plans its statements,
	// so that what a case adds afterwards is a surprise to it. Nil where there
	// are none.
	Analyze func(ctx context.Context) error

	// Intents reads the intents of an instance, in any order, that commits have
	// stored. Nil skips the case that compares them.
	Intents func(ctx context.Context, tenantID, instanceID string) ([]supervisor.ActionIntent, error)

	// Seed repeats the random cases of a run that reported it. Zero: another seed
	// each time.
	Seed uint64

	// Deny makes AdmitEvaluation refuse all items of a tenant from now on. Nil
	// skips the case of a refusal.
	Deny func(tenantID string)
}

// defaultLease is short enough for a suite that waits for it dozens of times,
// and long against a round trip to a store on the same machine.
const defaultLease = 300 * time.Millisecond

// NoInstances is a [supervisor.Instances] without any ability: every method
// returns an error that is [errors.ErrUnsupported]. Embed it to provide some of
// them.
type NoInstances struct{}

func unsupported(method string) error {
	return fmt.Errorf("queuetest: %s: %w", method, errors.ErrUnsupported)
}

// Start is not supported.
func (NoInstances) Start(context.Context, supervisor.Instance, time.Time) (bool, error) {
	return false, unsupported("Start")
}

// Deliver is not supported.
func (NoInstances) Deliver(context.Context, string, string, supervisor.Wakeup, time.Time) error {
	return unsupported("Deliver")
}

// Cancel is not supported.
func (NoInstances) Cancel(context.Context, string, string) error { return unsupported("Cancel") }

// Pause is not supported.
func (NoInstances) Pause(context.Context, supervisor.Scope) error { return unsupported("Pause") }

// Resume is not supported.
func (NoInstances) Resume(context.Context, supervisor.Scope) error { return unsupported("Resume") }

// Retry is not supported.
func (NoInstances) Retry(context.Context, string, string) error { return unsupported("Retry") }

// PublishRevision is not supported.
func (NoInstances) PublishRevision(context.Context, string, *supervisor.Revision) error {
	return unsupported("PublishRevision")
}

// Get is not supported.
func (NoInstances) Get(context.Context, string, string) (supervisor.Snapshot, error) {
	return supervisor.Snapshot{}, unsupported("Get")
}

// List is not supported.
func (NoInstances) List(context.Context, supervisor.Filter) iter.Seq2[supervisor.Snapshot, error] {
	return func(yield func(supervisor.Snapshot, error) bool) {
		yield(supervisor.Snapshot{}, unsupported("List"))
	}
}

// History is not supported.
func (NoInstances) History(context.Context, string, string) iter.Seq2[supervisor.Event, error] {
	return func(yield func(supervisor.Event, error) bool) {
		yield(supervisor.Event{}, unsupported("History"))
	}
}

// Explain is not supported.
func (NoInstances) Explain(context.Context, string, string) (supervisor.Explanation, error) {
	return supervisor.Explanation{}, unsupported("Explain")
}

// Prune is not supported.
func (NoInstances) Prune(context.Context, time.Time) (int, error) { return 0, unsupported("Prune") }

// casesAtOnce bounds the cases that run side by side. Most of their time is
// spent waiting for due times and lease ends, so that it is well above the
// number of processors.
const casesAtOnce = 16

// Run proves a queue: every rule of the interface comments is a sub-test, named
// topic/case. open returns an empty queue each time and leaves cleaning up to
// t.Cleanup. It is called once for the many cases that keep apart by tenants
// and specs and run side by side on one queue, and once more for each of those
// that need a queue for themselves; the calls may overlap.
func Run(t *testing.T, open func(t *testing.T) Queue) {
	t.Helper()
	shared := newSubject(t, open)
	slots := make(chan struct{}, casesAtOnce)
	// Sub-tests are started from goroutines of our own, for t.Parallel would
	// bound them by the number of processors. Each ends with its sub-test, and
	// all are waited for.
	var topics sync.WaitGroup
	for topic, cases := range byTopic(allCases()) {
		topics.Go(func() {
			t.Run(topic, func(t *testing.T) {
				var group sync.WaitGroup
				for _, c := range cases {
					group.Go(func() {
						slots <- struct{}{}
						defer func() { <-slots }()
						t.Run(c.name, func(t *testing.T) {
							s := shared
							if c.alone {
								s = newSubject(t, open)
							}
							c.try(t.Context(), t, s)
						})
					})
				}
				group.Wait()
			})
		})
	}
	topics.Wait()
}

// RunInBubbles is [Run] for queues in memory that go by [time.Now]: each case
// runs in a [synctest] bubble on a queue of its own, so that waiting takes no
// time, and cases that wait for days run too. open is called inside the bubble.
func RunInBubbles(t *testing.T, open func(t *testing.T) Queue) {
	t.Helper()
	for topic, cases := range byTopic(allCases()) {
		t.Run(topic, func(t *testing.T) {
			for _, c := range cases {
				t.Run(c.name, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						s := newSubject(t, open)
						s.abilities |= fastClock
						c.try(t.Context(), t, s)
					})
				})
			}
		})
	}
}
