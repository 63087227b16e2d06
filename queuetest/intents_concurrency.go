package queuetest

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

func intentConcurrencyCases() []testCase {
	return []testCase{
		{
			topic: "intent-concurrency", name: "every-intent-once",
			rule: "methods may be called by many goroutines at once: no intent is handed off twice, none is forgotten, each tells its instance once",
			run: func(x *trial) {
				x.manyDispatchers([]supervisor.IntentQueue{x.intents}, 0)
			},
		},
		{
			topic: "intent-concurrency", name: "several-handles", needs: reopen,
			rule: "dispatchers of several processes on one store hand no intent off twice and forget none",
			run: func(x *trial) {
				x.manyDispatchers(x.handles(), 0)
			},
		},
		{
			topic: "intent-concurrency", name: "limit", needs: intentOperator,
			rule: "a limit is never exceeded, however many dispatchers mark at once, and everything gets its turn",
			run: func(x *trial) {
				x.limit("", "a", 2)
				x.manyDispatchers([]supervisor.IntentQueue{x.intents}, 2)
			},
		},
		{
			topic: "intent-concurrency", name: "limit-of-several-handles", needs: intentOperator | reopen,
			rule: "a limit is never exceeded over all processes",
			run: func(x *trial) {
				x.limit("", "a", 2)
				x.manyDispatchers(x.handles(), 2)
			},
		},
		{
			topic: "intent-concurrency", name: "one-claim",
			rule: "one due intent goes to one of many claimers",
			run: func(x *trial) {
				for n := range 10 {
					x.plan(fmt.Sprint("a", n), x.effect("i"))
					var claims atomic.Int32
					x.together(8, func(int) error {
						works, err := x.intents.ClaimIntents(x.ctx, x.wanted(4))
						claims.Add(int32(len(works)))
						return err
					})
					if got := claims.Load(); got > 1 {
						x.Errorf("one due intent was claimed %d times at once", got)
					}
					if claims.Load() == 0 {
						x.takeOne() // claimers that met may leave it to the next one
					}
				}
			},
		},
		{
			topic: "intent-concurrency", name: "one-mark",
			rule: "the same mark many times at once counts one attempt and is success to all",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				work := x.takeOne()
				x.together(8, func(int) error {
					marked, err := x.intents.MarkIntent(x.ctx, &work)
					if err == nil && marked.Attempt != 1 {
						return fmt.Errorf("Attempt is %d", marked.Attempt)
					}
					return err
				})
				equal(x, "Attempt", x.mark(work).Attempt, 1)
			},
		},
		{
			topic: "intent-concurrency", name: "one-settlement",
			rule: "the same settlement many times at once is stored once and is success to all; of different ones exactly one stands",
			run: func(x *trial) {
				x.plan("a", x.effect("i"))
				work := x.handOff()
				x.together(8, func(int) error { return x.intents.SettleIntent(x.ctx, &work, success(`1`)) })
				x.told("a", toldSuccess("i", `1`))

				x.plan("b", x.effect("i"))
				work = x.handOff()
				var stored, refused atomic.Int32
				x.together(8, func(n int) error {
					switch err := x.intents.SettleIntent(x.ctx, &work, success(fmt.Sprint(n))); {
					case err == nil:
						stored.Add(1)
						return nil
					case errors.Is(err, supervisor.ErrReceiptConflict):
						refused.Add(1)
						return nil
					default:
						return err
					}
				})
				equal(x, "the number of stored settlements", stored.Load(), 1)
				equal(x, "the number of settlements refused as ErrReceiptConflict", refused.Load(), 7)
				item := x.woken("b")
				equal(x, "the number of wakeups", len(item.Wakeups), 1)
			},
		},
		{
			topic: "intent-concurrency", name: "cancel-beside-marks", needs: instances,
			rule: "of a mark and a Cancel at once either the intent is withdrawn and the mark fails, or it is marked and asked to be cancelled",
			run:  intentCancelBesideMarks,
		},
		{
			topic: "intent-concurrency", name: "control-beside-dispatch", needs: instances | intentOperator,
			rule: "pauses, cancellations, commits, limits and listings beside dispatchers neither block one another for ever nor fail",
			run:  intentControlBesideDispatch,
		},
	}
}

// handles are this queue and two more on the same store.
func (x *trial) handles() []supervisor.IntentQueue {
	x.Helper()
	queues := []supervisor.IntentQueue{x.intents}
	for range 2 {
		other, ok := x.reopen().(supervisor.IntentQueue)
		if !ok {
			x.Skipf("the other handle is no supervisor.IntentQueue")
		}
		queues = append(queues, other)
	}
	return queues
}

// dispatch is what dispatchers share to count what they do.
type dispatch struct {
	mu       sync.Mutex
	handed   map[string]int
	inFlight int
	most     int
	settled  int
}

// manyDispatchers has intents handed off and settled by dispatchers that share
// nothing but the store, and counts. limit is what may be in flight, 0 anything.
func (x *trial) manyDispatchers(queues []supervisor.IntentQueue, limit int) {
	x.Helper()
	const hosts, each, workers = 6, 6, 4
	for n := range hosts {
		var intents []supervisor.ActionIntent
		for i := range each {
			intents = append(intents, x.effect(fmt.Sprint("i", i)))
		}
		x.plan(fmt.Sprint("a", n), intents...)
	}
	d := dispatch{handed: map[string]int{}}
	x.together(workers*len(queues), func(n int) error {
		for end := time.Now().Add(patience); time.Now().Before(end); {
			works, err := queues[n%len(queues)].ClaimIntents(x.ctx, x.wanted(3))
			if err != nil {
				return err
			}
			for i := range works {
				if err := x.dispatchOne(queues[n%len(queues)], &works[i], &d); err != nil {
					return err
				}
			}
			d.mu.Lock()
			done := d.settled == hosts*each
			d.mu.Unlock()
			if done {
				return nil
			}
			if len(works) == 0 {
				x.sleep(poll / 10)
			}
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		return fmt.Errorf("only %d of %d intents were settled", d.settled, hosts*each)
	})
	for key, times := range d.handed {
		if times != 1 {
			x.Errorf("intent %s was marked %d times", key, times)
		}
	}
	if limit > 0 && d.most > limit {
		x.Errorf("%d intents were in flight at once, the limit is %d", d.most, limit)
	}
	for n := range hosts {
		item := x.woken(fmt.Sprint("a", n))
		equal(x, "the number of wakeups of "+item.ID, len(item.Wakeups), each)
	}
}

func (x *trial) dispatchOne(queue supervisor.IntentQueue, work *supervisor.IntentWork, d *dispatch) error {
	marked, err := queue.MarkIntent(x.ctx, work)
	if errors.Is(err, supervisor.ErrIntentRefused) && refusal(err) == supervisor.CauseLimit {
		return nil
	}
	if err != nil {
		return fmt.Errorf("MarkIntent of %+v under lease version %d: %w", work.Key(), work.LeaseVersion, err)
	}
	d.mu.Lock()
	d.handed[fmt.Sprint(marked.Key())]++
	d.inFlight++
	d.most = max(d.most, d.inFlight)
	d.mu.Unlock()
	x.sleep(poll / 10)
	d.mu.Lock()
	d.inFlight-- // before the settlement, which frees the slot for another
	d.mu.Unlock()
	if err := queue.SettleIntent(x.ctx, &marked, success(`1`)); err != nil {
		return fmt.Errorf("SettleIntent of %+v under lease version %d: %w", work.Key(), work.LeaseVersion, err)
	}
	d.mu.Lock()
	d.settled++
	d.mu.Unlock()
	return nil
}

func intentCancelBesideMarks(x *trial) {
	for n := range 12 {
		id := fmt.Sprint("a", n)
		x.plan(id, x.effect("i"))
		work := x.takeOne()
		var marked bool
		x.together(2, func(n int) error {
			if n == 0 {
				return x.Instances.Cancel(x.ctx, x.tenant, id)
			}
			after, err := x.intents.MarkIntent(x.ctx, &work)
			if marked = err == nil; marked {
				work = after
			}
			if errors.Is(err, supervisor.ErrLeaseLost) || errors.Is(err, supervisor.ErrIntentRefused) {
				return nil
			}
			return err
		})
		item := x.woken(id)
		withdrawn := len(item.Wakeups) == 1
		if withdrawn == marked {
			x.Errorf("after a mark and a Cancel at once the mark succeeded: %v, the intent was withdrawn: %v; want one of them", marked, withdrawn)
		}
		if marked {
			x.stands(id, "i", func(r *supervisor.IntentRecord) {
				equal(x, "whether a cancellation is asked for", r.CancelRequestedAt.IsZero(), false)
			})
			x.settle(work, success(`1`))
		}
	}
}

func intentControlBesideDispatch(x *trial) {
	const count = 6
	for n := range count {
		var intents []supervisor.ActionIntent
		for i := range 6 {
			intents = append(intents, x.effect(fmt.Sprint("i", i), scoped("r")))
		}
		x.plan(fmt.Sprint("a", n), intents...)
	}
	allowed := []error{supervisor.ErrLeaseLost, supervisor.ErrIntentRefused, supervisor.ErrStateConflict}
	x.together(6, func(n int) error {
		for i := range 12 {
			id := fmt.Sprint("a", i%count)
			var err error
			switch n {
			case 0:
				scope := supervisor.Scope{TenantID: x.tenant, ResourceID: "r"}
				if err = x.Instances.Pause(x.ctx, scope); err == nil {
					err = x.Instances.Resume(x.ctx, scope)
				}
			case 1:
				if i > 6 {
					err = x.Instances.Cancel(x.ctx, x.tenant, id)
				}
			case 2:
				err = x.operator.LimitIntents(x.ctx, supervisor.IntentLimit{CapabilityID: x.capability("a").ID, Max: i % 4})
			case 3:
				for _, listed := range x.operator.ListIntents(x.ctx, supervisor.IntentFilter{TenantID: x.tenant}) {
					err = errors.Join(err, listed)
				}
			default:
				req := x.wanted(3)
				req.LeaseDuration = x.Lease
				var works []supervisor.IntentWork
				works, err = x.intents.ClaimIntents(x.ctx, req)
				for k := range works {
					marked, failed := x.intents.MarkIntent(x.ctx, &works[k])
					if failed == nil {
						failed = x.intents.SettleIntent(x.ctx, &marked, success(`1`))
					}
					if failed != nil && !isOneOf(failed, allowed) {
						return failed
					}
				}
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	// Nothing is left locked: every intent can be brought to its end.
	x.limit("", "a", 0)
	x.until("every intent has come to its end", func() bool {
		for _, work := range x.claimIntents(x.wanted(10)) {
			if work.Task == supervisor.IntentTaskDispatch {
				marked, err := x.intents.MarkIntent(x.ctx, &work)
				if err != nil {
					continue
				}
				work = marked
			}
			x.settle(work, success(`1`))
		}
		for _, r := range x.listed(supervisor.IntentFilter{TenantID: x.tenant}) {
			if !r.Intent.State.Terminal() {
				return false
			}
		}
		return true
	})
}
