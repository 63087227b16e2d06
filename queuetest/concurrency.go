package queuetest

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

func concurrencyCases() []testCase {
	return []testCase{
		{
			topic: "concurrency", name: "every-item-once",
			rule: "methods may be called by many goroutines at once: no instance is claimed twice, none is forgotten",
			run: func(x *trial) {
				x.manyWorkers([]supervisor.WorkQueue{x.WorkQueue})
			},
		},
		{
			topic: "concurrency", name: "several-handles", needs: reopen,
			rule: "many workers of several processes on one store claim no instance twice and forget none",
			run: func(x *trial) {
				x.manyWorkers([]supervisor.WorkQueue{x.WorkQueue, x.reopen(), x.reopen()})
			},
		},
		{
			topic: "concurrency", name: "one-claim",
			rule: "one due instance goes to one of many claimers",
			run: func(x *trial) {
				for n := range 10 {
					x.due(fmt.Sprint("i", n))
					var claims atomic.Int32
					x.together(8, func(int) error {
						items, err := x.ClaimDue(x.ctx, x.request(4))
						claims.Add(int32(len(items)))
						return err
					})
					if got := claims.Load(); got > 1 {
						x.Errorf("one due instance was claimed %d times at once", got)
					}
					if claims.Load() == 0 {
						x.claimOne() // claimers that met may leave it to the next one
					}
				}
			},
		},
		{
			topic: "concurrency", name: "one-command-many-times",
			rule: "the same command committed many times at once is applied once and is success to all",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				command := x.command(&item, `1`, supervisor.Continue{})
				x.together(8, func(int) error { return x.CommitCommand(x.ctx, &item, &command) })
				again := x.claimOne()
				equal(x, "StateVersion", again.StateVersion, 1)
				if x.Instances != nil {
					equal(x, "the number of events", len(x.history("a")), 1)
				}
			},
		},
		{
			topic: "concurrency", name: "many-commands-at-once",
			rule: "of several commands for one claim exactly one is applied",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				var applied, refused atomic.Int32
				x.together(8, func(n int) error {
					command := x.command(&item, fmt.Sprint(n), supervisor.Continue{})
					command.DeliveryKey = fmt.Sprint("key ", n)
					switch err := x.CommitCommand(x.ctx, &item, &command); {
					case err == nil:
						applied.Add(1)
						return nil
					case errors.Is(err, supervisor.ErrStateConflict):
						refused.Add(1)
						return nil
					default:
						return err
					}
				})
				equal(x, "the number of applied commands", applied.Load(), 1)
				equal(x, "the number of commands refused as ErrStateConflict", refused.Load(), 7)
				again := x.claimOne()
				equal(x, "StateVersion", again.StateVersion, 1)
			},
		},
		{
			topic: "concurrency", name: "one-start", needs: instances,
			rule: "an instance started many times at once is started once",
			run: func(x *trial) {
				instance := x.instance("a")
				var started atomic.Int32
				x.together(8, func(int) error {
					ok, err := x.Instances.Start(x.ctx, instance, time.Time{})
					if ok {
						started.Add(1)
					}
					return err
				})
				equal(x, "the number of Starts that say true", started.Load(), 1)
				x.claimOne()
				x.idle("there is one instance")
			},
		},
		{
			topic: "concurrency", name: "one-delivery", needs: instances,
			rule: "a wakeup delivered many times at once is delivered once",
			run: func(x *trial) {
				x.add(x.instance("a"), x.now().Add(far))
				x.together(8, func(int) error { return x.Instances.Deliver(x.ctx, x.tenant, "a", note("w"), time.Time{}) })
				item := x.claimOne()
				equalList(x, "the ids of the wakeups", wakeupIDs(&item), []string{"w"})
			},
		},
		{
			topic: "concurrency", name: "deliveries-beside-evaluations", needs: instances,
			rule: "wakeups that arrive while workers claim and commit are each consumed exactly once",
			run:  concurrencyDeliveries,
		},
		{
			topic: "concurrency", name: "control-beside-work", needs: instances,
			rule: "pauses, cancellations and renewals beside claims and commits neither block one another for ever nor fail",
			run:  concurrencyControl,
		},
	}
}

// together calls f from n goroutines at once and reports their errors.
func (x *trial) together(n int, f func(n int) error) {
	x.Helper()
	errs := make([]error, n)
	gate := make(chan struct{})
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() {
			<-gate
			errs[i] = f(i)
		})
	}
	close(gate)
	group.Wait()
	for _, err := range errs {
		x.check(err, "one of %d calls at once", n)
	}
}

// manyWorkers drives instances through several steps each by workers that share
// nothing but the store, and counts what every step was evaluated.
func (x *trial) manyWorkers(queues []supervisor.WorkQueue) {
	x.Helper()
	const count, steps, workers = 60, 3, 4
	for n := range count {
		instance := x.instance(fmt.Sprintf("i%02d", n))
		instance.TenantID = fmt.Sprint(x.tenant, n%3)
		x.add(instance, time.Time{})
	}
	var mu sync.Mutex
	evaluated := map[string]int{}
	finished := 0
	x.together(workers*len(queues), func(n int) error {
		queue := queues[n%len(queues)]
		req := x.request(5)
		req.WorkerID = fmt.Sprint("worker-", n)
		for end := time.Now().Add(patience); time.Now().Before(end); {
			items, err := queue.ClaimDue(x.ctx, req)
			if err != nil {
				return err
			}
			for i := range items {
				item := &items[i]
				var d supervisor.Disposition = supervisor.Continue{}
				if item.StateVersion == steps-1 {
					d = supervisor.Complete{}
				}
				command, err := supervisor.NewCommand(item, "queuetest.stepped", nil, item.StateVersion+1, d)
				if err != nil {
					return err
				}
				if err := queue.CommitCommand(x.ctx, item, &command); err != nil {
					return fmt.Errorf("commit of %q at state version %d under lease version %d: %w", item.ID, item.StateVersion, item.LeaseVersion, err)
				}
				mu.Lock()
				evaluated[fmt.Sprint(item.TenantID, item.ID, item.StateVersion)]++
				if item.StateVersion == steps-1 {
					finished++
				}
				mu.Unlock()
			}
			mu.Lock()
			done := finished == count
			mu.Unlock()
			if done {
				return nil
			}
			if len(items) == 0 {
				x.sleep(poll / 10)
			}
		}
		mu.Lock()
		defer mu.Unlock()
		return fmt.Errorf("only %d of %d instances were finished", finished, count)
	})
	equal(x, "the number of evaluated steps", len(evaluated), count*steps)
	for step, times := range evaluated {
		if times != 1 {
			x.Errorf("step %s was evaluated and committed %d times", step, times)
		}
	}
}

func concurrencyDeliveries(x *trial) {
	const targets, each, producers, workers = 4, 12, 3, 3
	for n := range targets {
		x.add(x.instance(fmt.Sprint("i", n)), x.now().Add(far))
	}
	var mu sync.Mutex
	consumed := map[string]int{}
	total := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(consumed)
	}
	x.together(producers+workers, func(n int) error {
		if n < producers {
			for i := range targets * each {
				w := note(fmt.Sprintf("w%d-%d", n, i))
				if err := x.Instances.Deliver(x.ctx, x.tenant, fmt.Sprint("i", (i+n)%targets), w, time.Time{}); err != nil {
					return err
				}
			}
			return nil
		}
		for end := time.Now().Add(patience); total() < producers*targets*each && time.Now().Before(end); {
			items, err := x.ClaimDue(x.ctx, x.request(2))
			if err != nil {
				return err
			}
			for i := range items {
				item := &items[i]
				command, err := supervisor.NewCommand(item, "queuetest.consumed", nil, i, supervisor.Continue{Delay: far})
				if err != nil {
					return err
				}
				command.ConsumedWakeups = wakeupIDs(item)
				if err := x.CommitCommand(x.ctx, item, &command); err != nil {
					return err
				}
				mu.Lock()
				for _, id := range command.ConsumedWakeups {
					consumed[id]++
				}
				mu.Unlock()
			}
			if len(items) == 0 {
				x.sleep(poll / 10)
			}
		}
		return nil
	})
	if total() != producers*targets*each {
		x.Errorf("of %d wakeups only %d were consumed", producers*targets*each, total())
	}
	for id, times := range consumed {
		if times != 1 {
			x.Errorf("wakeup %q was consumed %d times", id, times)
		}
	}
}

func concurrencyControl(x *trial) {
	const count = 6
	names := make([]string, count)
	for n := range names {
		names[n] = fmt.Sprint("i", n)
		x.due(names[n])
	}
	// A lease may end before its holder commits; the next holder's command has
	// the same key, then.
	allowed := []error{supervisor.ErrEpochStale, supervisor.ErrLeaseLost, supervisor.ErrDeliveryConflict}
	x.together(5, func(n int) error {
		for i := range 20 {
			id := names[i%count]
			var err error
			switch n {
			case 0:
				scope := supervisor.Scope{TenantID: x.tenant}
				if err = x.Instances.Pause(x.ctx, scope); err == nil {
					err = x.Instances.Resume(x.ctx, scope)
				}
			case 1:
				scope := supervisor.Scope{TenantID: x.tenant, InstanceID: id}
				if err = x.Instances.Pause(x.ctx, scope); err == nil {
					err = x.Instances.Resume(x.ctx, scope)
				}
			case 2:
				err = x.Instances.Cancel(x.ctx, x.tenant, id)
			default:
				req := x.request(3)
				req.LeaseDuration = x.Lease
				var items []supervisor.WorkItem
				items, err = x.ClaimDue(x.ctx, req)
				for k := range items {
					item := &items[k]
					renewed := x.Renew(x.ctx, lease(item, x.Lease))
					command, _ := supervisor.NewCommand(item, "queuetest.stepped", nil, i, supervisor.Continue{})
					committed := x.CommitCommand(x.ctx, item, &command)
					for _, got := range []error{renewed, committed} {
						if got != nil && !slices.ContainsFunc(allowed, func(want error) bool { return errors.Is(got, want) }) {
							return got
						}
					}
				}
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	// Nothing is left locked: what is active can be claimed and ended.
	for range count {
		item := x.claimOne()
		equal(x, "CancelRequested of "+item.ID, item.CancelRequested, true)
		x.step(&item, `"end"`, supervisor.Complete{})
		equal(x, "Status of "+item.ID, x.get(item.ID).Status, supervisor.StatusCancelled)
	}
}
