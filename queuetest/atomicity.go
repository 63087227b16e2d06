package queuetest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

func atomicityCases() []testCase {
	return append(withKept([]testCase{
		{
			topic: "atomicity", name: "commit", needs: failWrite, alone: true,
			rule: "a commit is one transaction: a store that fails at any of its writes leaves all or nothing",
			run: func(x *trial) {
				x.failingAt(func(n int, id string) error {
					x.due(id, note("w1"), note("w2"))
					item := x.claimOne()
					command := x.command(&item, `{"new":true}`, supervisor.Continue{Delay: far})
					command.ConsumedWakeups = []string{"w1", "w2"}
					command.ActionIntents = []supervisor.ActionIntent{x.intent(&item, "i1"), x.intent(&item, "i2")}
					before := x.look(&item)
					disarm := x.FailWrite(n)
					err := x.tryCommit(&item, &command)
					if !disarm() {
						x.check(err, "commit whose write %d was never reached", n)
						return errNotReached
					}
					x.failedCleanly(err, "commit")
					if err == nil {
						return nil
					}
					if !errors.Is(err, supervisor.ErrCommitUnknown) {
						x.same(&item, before, "a commit that failed at write %d", n)
					}
					// Repeated, it is applied once, wholly.
					x.check(x.tryCommit(&item, &command), "repeated commit")
					x.due(id + " next") // proves that the store works on
					next := x.claimOne()
					equal(x, "the claimed id", next.ID, id+" next")
					x.step(&next, `1`, supervisor.Complete{})
					if x.Instances != nil {
						s := x.get(id)
						x.equalJSON("State", s.State, `{"new":true}`)
						equal(x, "StateVersion", s.StateVersion, 1)
						equal(x, "PendingWakeups", s.PendingWakeups, 0)
						equal(x, "the number of events", len(x.history(id)), 1)
					}
					return nil
				})
			},
		},
	}), []testCase{
		{
			topic: "atomicity", name: "claim", needs: failWrite, alone: true,
			rule: "a claim that fails leaves no instance leased to nobody for longer than the lease, and hands none out twice",
			run: func(x *trial) {
				x.failingAt(func(n int, id string) error {
					x.due(id+"a", note("w"))
					x.due(id + "b")
					disarm := x.FailWrite(n)
					req := x.request(5)
					req.LeaseDuration = x.Lease
					items, err := x.ClaimDue(x.ctx, req)
					reached := disarm()
					if reached && err != nil {
						x.failedCleanly(err, "ClaimDue")
					}
					if !reached {
						x.check(err, "ClaimDue whose write %d was never reached", n)
					}
					for range 2 - len(items) {
						items = append(items, x.claimOne())
					}
					for i := range items {
						x.step(&items[i], `1`, supervisor.Complete{})
					}
					if !reached {
						return errNotReached
					}
					return nil
				})
			},
		},
		{
			topic: "atomicity", name: "client", needs: failWrite | instances, alone: true,
			rule: "Start, Deliver, Cancel and Retry are one transaction each: what failed can be repeated and is applied once",
			run:  atomicityClient,
		},
		{
			topic: "atomicity", name: "ended-contexts", needs: instances,
			rule: "a context that ends at any moment of a commit never leaves half a change behind",
			run:  atomicityContexts,
		},
	}...)
}

// errNotReached ends a series: an operation has no more writes.
var errNotReached = errors.New("queuetest: the operation has fewer writes")

// failingAt fails the first write of an operation, then the second, and so on
// until it has no more.
func (x *trial) failingAt(operation func(n int, id string) error) {
	x.Helper()
	const most = 100 // a bound against a hook that is always reached
	for n := 1; n <= most; n++ {
		if errors.Is(operation(n, fmt.Sprintf("i%02d", n)), errNotReached) {
			if n == 1 {
				x.Errorf("FailWrite(1) was not reached: nothing was written, or the hook does not work")
			}
			return
		}
	}
	x.Errorf("after %d writes the operation had not ended", most)
}

// failedCleanly reports an error of a failing store that says something wrong.
// No error is right, too: the queue may have repeated the operation.
func (x *trial) failedCleanly(err error, call string) {
	x.Helper()
	if err == nil {
		return
	}
	for _, wrong := range []error{
		supervisor.ErrLeaseLost, supervisor.ErrStateConflict, supervisor.ErrDeliveryConflict, supervisor.ErrNotFound,
		supervisor.ErrFinished, supervisor.ErrEpochStale, supervisor.ErrCommandRejected,
	} {
		if errors.Is(err, wrong) {
			x.Errorf("%s on a failing store: error %q is %q", call, err, wrong)
		}
	}
}

func atomicityClient(x *trial) {
	far := x.now().Add(far)
	for _, operation := range []struct {
		name    string
		prepare func(id string)
		call    func(id string) error
		check   func(id string)
	}{
		{
			name: "Start",
			call: func(id string) error {
				_, err := x.Instances.Start(x.ctx, x.instance(id), far)
				return err
			},
			check: func(id string) { equal(x, "Status", x.get(id).Status, supervisor.StatusActive) },
		},
		{
			name:    "Deliver",
			prepare: func(id string) { x.add(x.instance(id), far) },
			call: func(id string) error {
				return x.Instances.Deliver(x.ctx, x.tenant, id, note("w"), time.Time{})
			},
			check: func(id string) { equal(x, "PendingWakeups", x.get(id).PendingWakeups, 1) },
		},
		{
			name:    "Cancel",
			prepare: func(id string) { x.add(x.instance(id), far) },
			call:    func(id string) error { return x.Instances.Cancel(x.ctx, x.tenant, id) },
			check: func(id string) {
				equal(x, "ControlEpochs", x.get(id).ControlEpochs, supervisor.ControlEpochs{Instance: 1})
			},
		},
		{
			name: "Retry",
			prepare: func(id string) {
				x.due(id)
				item := x.claimOne()
				x.fail(&item, "for good", time.Time{})
			},
			call: func(id string) error {
				err := x.Instances.Retry(x.ctx, x.tenant, id)
				if errors.Is(err, supervisor.ErrStateConflict) && x.get(id).Status == supervisor.StatusActive {
					return nil // the first one was applied
				}
				return err
			},
			check: func(id string) { equal(x, "Attempt", x.get(id).Attempt, 0) },
		},
	} {
		x.failingAt(func(n int, id string) error {
			id += operation.name
			if operation.prepare != nil {
				operation.prepare(id)
			}
			disarm := x.FailWrite(n)
			err := operation.call(id)
			reached := disarm()
			if reached {
				x.failedCleanly(err, operation.name)
				x.check(operation.call(id), "repeated %s", operation.name)
			} else {
				x.check(err, "%s whose write %d was never reached", operation.name, n)
			}
			operation.check(id)
			for _, item := range x.claim(x.request(1)) {
				x.step(&item, `1`, supervisor.Complete{})
			}
			if !reached {
				return errNotReached
			}
			return nil
		})
	}
}

func atomicityContexts(x *trial) {
	const tries = 24
	// Deadlines from far too short to long enough, around the time that a
	// commit takes.
	x.due("measure")
	item := x.claimOne()
	begun := time.Now()
	x.step(&item, `1`, supervisor.Complete{})
	step := max(time.Since(begun)/(tries/3), time.Microsecond)
	for n := range tries {
		id := fmt.Sprint("i", n)
		x.due(id, note("w"))
		item := x.claimOne()
		command := x.command(&item, `{"new":true}`, supervisor.Continue{Delay: far})
		command.ConsumedWakeups = []string{"w"}
		command.ActionIntents = []supervisor.ActionIntent{x.intent(&item, "i")}
		ctx, cancel := context.WithTimeout(x.ctx, time.Duration(n)*step)
		err := x.CommitCommand(ctx, &item, &command)
		cancel()
		// A cancelled call may still be under way in the store, so that state
		// and events are read until nothing changed between them.
		var s supervisor.Snapshot
		var events int
		x.until("the instance stands still", func() bool {
			s, events = x.get(id), len(x.history(id))
			return x.get(id).StateVersion == s.StateVersion
		})
		whole := s.StateVersion == 1 && string(s.State) == `{"new":true}` && s.PendingWakeups == 0 && events == 1 && s.LeaseEndsAt.IsZero()
		nothing := s.StateVersion == 0 && string(s.State) == `{"config":1}` && s.PendingWakeups == 1 && events == 0 && !s.LeaseEndsAt.IsZero()
		if !whole && !nothing {
			x.Errorf("a commit whose context ended after %v left half a change: %+v with %d events", time.Duration(n)*step, s, events)
		}
		if err == nil && !whole {
			x.Errorf("a commit that returned nil was not applied")
		}
		x.check(x.CommitCommand(x.ctx, &item, &command), "repeated commit")
		s = x.get(id)
		equal(x, "StateVersion after the repeated commit", s.StateVersion, 1)
		equal(x, "the number of events after the repeated commit", len(x.history(id)), 1)
	}
}
