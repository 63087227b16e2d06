package queuetest

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

func wakeupCases() []testCase {
	return []testCase{
		{
			topic: "wakeups", name: "whole",
			rule: "a claim hands out wakeups as they were delivered: id, kind, branch and payload",
			run: func(x *trial) {
				want := supervisor.Wakeup{ID: "w", Kind: "action", BranchID: "branch 1", Payload: json.RawMessage(`{"n":9007199254740993}`)}
				x.due("a", want)
				item := x.claimOne()
				if len(item.Wakeups) != 1 {
					x.Fatalf("the wakeups are %v, want one", item.Wakeups)
				}
				got := item.Wakeups[0]
				x.equalJSON("Payload", got.Payload, string(want.Payload))
				equal(x, "ID, Kind and BranchID", got.ID+"/"+got.Kind+"/"+got.BranchID, "w/action/branch 1")
			},
		},
		{
			topic: "wakeups", name: "arrival-order",
			rule: "wakeups that are due come oldest first",
			run: func(x *trial) {
				x.due("a", note("c"), note("a"), note("d"), note("b"))
				item := x.claimOne()
				equalList(x, "the ids of the wakeups", wakeupIDs(&item), []string{"c", "a", "d", "b"})
			},
		},
		{
			topic: "wakeups", name: "due-order", needs: instances,
			rule: "a claim holds the wakeups that are due first: in order of due time, then of arrival",
			run: func(x *trial) {
				var last time.Time
				x.timely(func(due time.Time) {
					last = due.Add(3*time.Millisecond + poll)
					x.add(x.instance("a"), x.now().Add(far))
					x.deliver("a", note("third"), due.Add(2*time.Millisecond))
					x.deliver("a", note("z-first"), due)
					x.deliver("a", note("second"), due.Add(time.Millisecond))
					x.deliver("a", note("a-first"), due)
				})
				x.passes(last)
				item := x.claimOne()
				equalList(x, "the ids of the wakeups", wakeupIDs(&item), []string{"z-first", "a-first", "second", "third"})
			},
		},
		{
			topic: "wakeups", name: "due-only", needs: instances,
			rule: "a claim holds wakeups that are due, no others",
			run: func(x *trial) {
				x.due("a", note("now"))
				x.deliver("a", note("later"), x.now().Add(far))
				item := x.claimOne()
				equalList(x, "the ids of the wakeups", wakeupIDs(&item), []string{"now"})
			},
		},
		{
			topic: "wakeups", name: "consumed-once",
			rule: "consumed wakeups never come again, the others do",
			run: func(x *trial) {
				x.due("a", note("w1"), note("w2"), note("w3"))
				item := x.claimOne()
				x.consume(&item, supervisor.Continue{}, "w2")
				again := x.claimOne()
				equalList(x, "the wakeups after one was consumed", wakeupIDs(&again), []string{"w1", "w3"})
				x.consume(&again, supervisor.Continue{}, "w3", "w1")
				last := x.claimOne()
				equalList(x, "the wakeups after all were consumed", wakeupIDs(&last), []string{})
			},
		},
		{
			topic: "wakeups", name: "kept-on-failure",
			rule: "a failed evaluation consumes nothing: its wakeups come again with the retry",
			run: func(x *trial) {
				x.due("a", note("w1"), note("w2"))
				item := x.claimOne()
				x.fail(&item, "failed", x.soon())
				again := x.claimOne()
				equalList(x, "the wakeups of the retry", wakeupIDs(&again), []string{"w1", "w2"})
			},
		},
		{
			topic: "wakeups", name: "triggered-failure-consumes",
			rule: "a Failed command consumes wakeups when its outcome is triggered",
			run: func(x *trial) {
				x.due("a", note("w1"), note("w2"))
				item := x.claimOne()
				command := x.command(&item, `1`, supervisor.Failed{Reason: "poison", RetryAt: item.ClaimedAt})
				command.Outcome.Triggered = true
				command.ConsumedWakeups = []string{"w1"}
				x.commit(&item, command)
				again := x.claimOne()
				equalList(x, "the wakeups of the retry", wakeupIDs(&again), []string{"w2"})
				equal(x, "Attempt", again.Attempt, 1)
			},
		},
		{
			topic: "wakeups", name: "of-a-refused-commit",
			rule: "a refused commit consumes nothing",
			run: func(x *trial) {
				x.due("a", note("w"))
				stale := x.claimShort()
				x.outlast()
				item := x.claimOne()
				command := x.command(&stale, `1`, supervisor.Complete{})
				command.ConsumedWakeups = []string{"w"}
				x.want(x.CommitCommand(x.ctx, &stale, &command), supervisor.ErrLeaseLost, "CommitCommand by a former holder")
				x.step(&item, `2`, supervisor.Continue{})
				again := x.claimOne()
				equalList(x, "the ids of the wakeups", wakeupIDs(&again), []string{"w"})
			},
		},
		{
			topic: "wakeups", name: "during-evaluation", needs: instances,
			rule: "a wakeup that this claim did not contain counts in the next due time: none that arrives during an evaluation is lost",
			run: func(x *trial) {
				x.due("a", note("w1"))
				item := x.claimOne()
				x.deliver("a", note("w2"), time.Time{})
				x.consume(&item, supervisor.Continue{Delay: far}, "w1")
				again := x.claimOne()
				equalList(x, "the ids of the wakeups", wakeupIDs(&again), []string{"w2"})
			},
		},
		{
			topic: "wakeups", name: "due-during-evaluation", needs: instances,
			rule: "a wakeup that falls due after the commit counts in the next due time",
			run: func(x *trial) {
				x.due("a")
				item := x.claimOne()
				due := x.soon()
				x.deliver("a", note("w"), due)
				x.step(&item, `1`, supervisor.Continue{Delay: far})
				again := x.claimOne()
				equalList(x, "the ids of the wakeups", wakeupIDs(&again), []string{"w"})
				if again.ClaimedAt.Before(due) {
					x.Errorf("claimed at %v, before the wakeup was due at %v", again.ClaimedAt, due)
				}
			},
		},
		{
			topic: "wakeups", name: "contained-does-not-pull",
			rule: "a wakeup that this claim contained does not count in the next due time: a driver may leave it for later",
			run: func(x *trial) {
				x.due("a", note("w"))
				item := x.claimOne()
				x.step(&item, `1`, supervisor.Continue{Delay: far})
				x.idle("the driver saw the wakeup and asked for an hour")
			},
		},
		{
			topic: "wakeups", name: "left-for-later-comes-again", needs: instances,
			rule: "a wakeup that was left comes with every later claim until it is consumed",
			run: func(x *trial) {
				x.due("a", note("old"))
				item := x.claimOne()
				x.step(&item, `1`, supervisor.Continue{Delay: far})
				x.deliver("a", note("new"), time.Time{})
				again := x.claimOne()
				equalList(x, "the ids of the wakeups", wakeupIDs(&again), []string{"old", "new"})
			},
		},
		{
			topic: "wakeups", name: "bounded", needs: instances,
			rule: "a claim holds at most 1,000 wakeups; where there are more, kinds action, child, gate and timer come before others, and those left over pull the next due time",
			run:  wakeupsBounded,
		},
		{
			topic: "wakeups", name: "bounded-payload", needs: instances,
			rule: "a claim holds at most 4 MiB of wakeup payload; those left over pull the next due time",
			run: func(x *trial) {
				x.add(x.instance("a"), x.now().Add(far))
				const size = supervisor.MaxClaimWakeupBytes / 4
				for n := range 5 {
					w := note(fmt.Sprint("w", n))
					w.Payload = json.RawMessage(`"` + strings.Repeat("x", size-2) + `"`)
					x.deliver("a", w, time.Time{})
				}
				item := x.claimOne()
				equalList(x, "the wakeups of the first claim", wakeupIDs(&item), []string{"w0", "w1", "w2", "w3"})
				x.consume(&item, supervisor.Continue{Delay: far}, wakeupIDs(&item)...)
				again := x.claimOne()
				equalList(x, "the wakeups of the second claim", wakeupIDs(&again), []string{"w4"})
			},
		},
		{
			topic: "wakeups", name: "two-days-of-timers", needs: instances,
			rule: "a backlog of due wakeups comes in one claim, oldest first, survives a failure and is consumed by one command",
			run:  wakeupsBacklog,
		},
		{
			topic: "wakeups", name: "of-others", needs: instances,
			rule: "wakeups belong to one instance of one tenant, whatever ids others use",
			run: func(x *trial) {
				x.due("a")
				x.due("b")
				other := x.instance("a")
				other.TenantID += " other"
				x.add(other, time.Time{})
				w := note("w")
				x.deliver("a", w, time.Time{})
				w.Payload = json.RawMessage(`"for b"`)
				x.deliver("b", w, time.Time{})
				for _, item := range x.claimN(3) {
					switch {
					case item.TenantID != x.tenant:
						equalList(x, "the wakeups in the other tenant", wakeupIDs(&item), []string{})
					case len(item.Wakeups) != 1:
						x.Errorf("the wakeups of %q are %v, want one", item.ID, wakeupIDs(&item))
					case item.ID == "b":
						x.equalJSON("the payload for b", item.Wakeups[0].Payload, `"for b"`)
						x.consume(&item, supervisor.Complete{}, "w")
					default:
						x.consume(&item, supervisor.Continue{}, "w")
					}
				}
			},
		},
	}
}

// deliverMany delivers side by side, for a store that answers each in
// milliseconds.
func (x *trial) deliverMany(id string, wakeups []supervisor.Wakeup, dueAt func(n int) time.Time) {
	x.Helper()
	const at = 8
	errs := make(chan error, at)
	var group sync.WaitGroup
	for part := range at {
		group.Go(func() {
			for n := part; n < len(wakeups); n += at {
				if err := x.Instances.Deliver(x.ctx, x.tenant, id, wakeups[n], dueAt(n)); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	group.Wait()
	close(errs)
	for err := range errs {
		x.check(err, "Deliver to %q", id)
	}
}

func wakeupsBounded(x *trial) {
	x.add(x.instance("a"), x.now().Add(far))
	const extra = 8
	preferred := []string{"action", "child", "gate", "timer"}
	var wakeups []supervisor.Wakeup
	for n := range supervisor.MaxClaimWakeups + extra {
		w := note(fmt.Sprintf("w%04d", n))
		if n >= supervisor.MaxClaimWakeups+extra-len(preferred) {
			w.Kind = preferred[n%len(preferred)] // the youngest of all
		}
		wakeups = append(wakeups, w)
	}
	due := x.now()
	x.deliverMany("a", wakeups, func(n int) time.Time { return due.Add(time.Duration(n) * time.Microsecond) })
	x.sleep(10 * poll)
	item := x.claimOne()
	if len(item.Wakeups) != supervisor.MaxClaimWakeups {
		x.Fatalf("the claim holds %d of %d due wakeups, want %d", len(item.Wakeups), len(wakeups), supervisor.MaxClaimWakeups)
	}
	kinds := map[string]int{}
	for _, w := range item.Wakeups {
		kinds[w.Kind]++
	}
	for _, kind := range preferred {
		equal(x, "the number of wakeups of kind "+kind, kinds[kind], 1)
	}
	x.consume(&item, supervisor.Continue{Delay: far}, wakeupIDs(&item)...)
	again := x.claimOne()
	equal(x, "the number of wakeups in the next claim", len(again.Wakeups), extra)
	for _, w := range again.Wakeups {
		if slices.Contains(wakeupIDs(&item), w.ID) {
			x.Errorf("wakeup %q came again after it was consumed", w.ID)
		}
	}
}

func wakeupsBacklog(x *trial) {
	const timers = 576 // one in five minutes, for two days
	wakeups := make([]supervisor.Wakeup, timers)
	want := make([]string, timers)
	for n := range wakeups {
		// The ids do not sort like the due times.
		wakeups[n] = supervisor.Wakeup{ID: fmt.Sprintf("t%03d", (n*7)%timers), Kind: "timer"}
		want[n] = wakeups[n].ID
	}
	var last time.Time
	x.timely(func(at time.Time) {
		x.add(x.instance("a"), x.now().Add(2*far))
		due := func(n int) time.Time { return at.Add(time.Duration(n) * time.Microsecond) }
		x.deliverMany("a", wakeups, due)
		last = due(timers)
	})
	x.passes(last)
	item := x.claimOne()
	equalList(x, "the timers of the first claim", wakeupIDs(&item), want)
	x.fail(&item, "failed", item.ClaimedAt)
	again := x.claimOne()
	equalList(x, "the timers of the retry", wakeupIDs(&again), want)
	x.consume(&again, supervisor.Continue{Delay: far}, want...)
	x.idle("all timers were consumed by one command")
}
