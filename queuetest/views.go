package queuetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

func getCases() []testCase {
	return needing(instances, []testCase{
		{
			topic: "get", name: "whole",
			rule: "Get returns what the queue knows of an instance",
			run:  getWhole,
		},
		{
			topic: "get", name: "unknown",
			rule: "an unknown instance is ErrNotFound",
			run: func(x *trial) {
				x.due("a")
				for _, unknown := range [][2]string{{x.tenant, "unknown"}, {x.tenant + " unknown", "a"}} {
					_, err := x.Instances.Get(x.ctx, unknown[0], unknown[1])
					x.want(err, supervisor.ErrNotFound, "Get of %q in %q", unknown[1], unknown[0])
					_, err = x.Instances.Explain(x.ctx, unknown[0], unknown[1])
					x.want(err, supervisor.ErrNotFound, "Explain of %q in %q", unknown[1], unknown[0])
				}
			},
		},
		{
			topic: "get", name: "last-error",
			rule: "LastError is the reason of the last commit where that failed",
			run: func(x *trial) {
				x.due("a")
				for _, reason := range []string{"one", "two"} {
					item := x.claimOne()
					x.fail(&item, reason, item.ClaimedAt)
					equal(x, "LastError", x.get("a").LastError, reason)
				}
				item := x.claimOne()
				x.step(&item, `1`, supervisor.Continue{})
				equal(x, "LastError after a success", x.get("a").LastError, "")
			},
		},
		{
			topic: "get", name: "ended-lease",
			rule: "an instance whose lease has ended is not leased: LeaseEndsAt is zero",
			run: func(x *trial) {
				x.due("a")
				x.claimShort()
				x.outlast()
				if s := x.get("a"); !s.LeaseEndsAt.IsZero() || s.LeaseOwner != "" {
					x.Errorf("LeaseEndsAt is %v and LeaseOwner %q after the lease has ended", s.LeaseEndsAt, s.LeaseOwner)
				}
			},
		},
		{
			topic: "get", name: "memory",
			rule: "results share no memory with the queue",
			run: func(x *trial) {
				x.due("a")
				s := x.get("a")
				spoil(s.Config)
				spoil(s.State)
				s.CapabilityPins[0].ID = "spoiled"
				for range 2 {
					s = x.get("a")
					x.equalJSON("Config", s.Config, `{"config":1}`)
					x.equalJSON("State", s.State, `{"config":1}`)
					equal(x, "the id of the capability", s.CapabilityPins[0].ID, pin().ID)
				}
				item := x.claimOne()
				x.step(&item, `{"step":1}`, supervisor.Continue{})
				for event, err := range x.Instances.History(x.ctx, x.tenant, "a") {
					x.check(err, "History")
					spoil(event.Payload)
				}
				for _, event := range x.history("a") {
					x.equalJSON("the payload of an event", event.Payload, `{"to":{"step":1}}`)
				}
				item = x.claimOne()
				x.equalJSON("State", item.State, `{"step":1}`)
			},
		},
	})
}

func getWhole(x *trial) {
	instance := x.instance("a")
	due := x.now().Add(far)
	x.add(instance, due)
	s := x.get("a")
	sameInstance(x, &s.Instance, &instance)
	x.equalJSON("State", s.State, string(instance.Config))
	equal(x, "Status", s.Status, supervisor.StatusActive)
	if !s.NextDueAt.Equal(due) {
		x.Errorf("NextDueAt is %v, want %v", s.NextDueAt, due)
	}
	if age := x.now().Sub(s.CreatedAt); age < -patience || age > 2*patience || s.CreatedAt.Location() != time.UTC {
		x.Errorf("CreatedAt is %v, want the time of the start, %v ago, in UTC", s.CreatedAt, age)
	}
	equal(x, "StateVersion", s.StateVersion, 0)
	equal(x, "PendingWakeups", s.PendingWakeups, 0)
	equal(x, "LeaseOwner", s.LeaseOwner, "")
	if !s.LeaseEndsAt.IsZero() || !s.FinishedAt.IsZero() {
		x.Errorf("LeaseEndsAt is %v and FinishedAt %v, want neither", s.LeaseEndsAt, s.FinishedAt)
	}

	x.deliver("a", note("w1"), time.Time{})
	x.deliver("a", note("w2"), x.now().Add(2*far))
	equal(x, "PendingWakeups", x.get("a").PendingWakeups, 2)
	item := x.claimOne()
	s = x.get("a")
	equal(x, "LeaseOwner", s.LeaseOwner, worker)
	equal(x, "LeaseVersion", s.LeaseVersion, item.LeaseVersion)
	if !s.LeaseEndsAt.After(item.ClaimedAt) {
		x.Errorf("LeaseEndsAt is %v, want an instant after the claim at %v", s.LeaseEndsAt, item.ClaimedAt)
	}

	retryAt := x.now().Add(far)
	x.fail(&item, "the error", retryAt)
	s = x.get("a")
	equal(x, "StateVersion", s.StateVersion, 1)
	equal(x, "Attempt", s.Attempt, 1)
	equal(x, "LastError", s.LastError, "the error")
	equal(x, "PendingWakeups", s.PendingWakeups, 2)
	equal(x, "LeaseOwner", s.LeaseOwner, "")
	if !s.NextDueAt.Equal(retryAt) || !s.LeaseEndsAt.IsZero() {
		x.Errorf("NextDueAt is %v and LeaseEndsAt %v, want the retry time %v and none", s.NextDueAt, s.LeaseEndsAt, retryAt)
	}
	x.check(x.Instances.Cancel(x.ctx, x.tenant, "a"), "Cancel")
	equal(x, "CancelRequested", x.get("a").CancelRequested, true)
}

func listCases() []testCase {
	return needing(instances, []testCase{
		{
			topic: "list", name: "filters",
			rule: "List yields the instances that match; a zero field selects all",
			run:  listFilters,
		},
		{
			topic: "list", name: "everything", alone: true,
			rule: "List without a filter yields all instances of all tenants, ordered by tenant and id",
			run: func(x *trial) {
				var want []string
				for _, tenant := range []string{"t\u00e9", "t-2", "T1", "t10", "t1"} {
					for _, id := range []string{"b", "\u00e9", "B", "a", "a b", "10", "9", "a-b", "_"} {
						instance := x.instance(id)
						instance.TenantID = tenant
						x.add(instance, time.Time{})
						want = append(want, tenant+"\x00"+id)
					}
				}
				slices.Sort(want) // by bytes
				equalList(x, "the list", x.list(supervisor.Filter{}), want)
			},
		},
		{
			topic: "list", name: "pages",
			rule: "List reads in bounded pages: nothing is seen twice, nothing that stays is missed, what changes meanwhile is seen or not",
			run:  listPages,
		},
		{
			topic: "list", name: "stops-early",
			rule: "a caller may stop a listing at any time, and call the queue while it lists",
			run: func(x *trial) {
				for n := range 5 {
					x.due(fmt.Sprint("i", n))
				}
				x.answers("Cancel and Get within List", func() error {
					for range 10 {
						for s, err := range x.Instances.List(x.ctx, supervisor.Filter{TenantID: x.tenant}) {
							if err == nil {
								err = x.Instances.Cancel(x.ctx, x.tenant, s.ID)
							}
							if err == nil {
								_, err = x.Instances.Get(x.ctx, x.tenant, s.ID)
							}
							if err != nil {
								return err
							}
							break
						}
					}
					return nil
				})
				item := x.claimOne()
				for range 3 {
					x.step(&item, `1`, supervisor.Continue{})
					item = x.claimN(1)[0]
				}
				x.answers("Get within History", func() error {
					for _, err := range x.Instances.History(x.ctx, x.tenant, item.ID) {
						if err == nil {
							_, err = x.Instances.Get(x.ctx, x.tenant, item.ID)
						}
						return err
					}
					return nil
				})
				x.step(&item, `2`, supervisor.Complete{})
			},
		},
		{
			topic: "list", name: "ended-context",
			rule: "a listing ends after the first error",
			run: func(x *trial) {
				x.due("a")
				x.due("b")
				ctx, cancel := context.WithCancel(x.ctx)
				cancel()
				x.endsAfterError("List", errorsOf(x.Instances.List(ctx, supervisor.Filter{TenantID: x.tenant})))
				x.endsAfterError("History", errorsOf(x.Instances.History(ctx, x.tenant, "a")))
			},
		},
	})
}

// answers reports calls that block, as they would on a queue that holds a lock
// or its only connection while it yields.
func (x *trial) answers(what string, calls func() error) {
	x.Helper()
	done := make(chan error, 1)
	go func() { done <- calls() }() // ends with its calls
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case err := <-done:
		x.check(err, "%s", what)
	case <-timer.C:
		x.Fatalf("%s did not return within %v", what, patience)
	}
}

// list returns tenant and id of what a filter selects.
func (x *trial) list(filter supervisor.Filter) []string {
	x.Helper()
	var got []string
	for s, err := range x.Instances.List(x.ctx, filter) {
		x.check(err, "List")
		got = append(got, s.TenantID+"\x00"+s.ID)
	}
	return got
}

func listFilters(x *trial) {
	other := x.spec + " other"
	end := func(id string, d supervisor.Disposition) {
		x.due(id)
		item := x.claimOne()
		x.step(&item, `1`, d)
	}
	end("completed", supervisor.Complete{})
	end("failed", supervisor.Failed{Reason: "for good"})
	x.due("cancelled")
	x.check(x.Instances.Cancel(x.ctx, x.tenant, "cancelled"), "Cancel")
	item := x.claimOne()
	x.step(&item, `1`, supervisor.Complete{})
	x.due("due")
	x.add(x.instance("later"), x.now().Add(far))
	instance := x.instance("other spec")
	instance.SpecID = other
	x.add(instance, x.now().Add(3*far))
	instance.TenantID += " other"
	x.add(instance, x.now().Add(3*far))

	horizon := x.now().Add(2 * far)
	for _, filter := range []struct {
		filter supervisor.Filter
		want   []string
	}{
		{supervisor.Filter{TenantID: x.tenant}, []string{"cancelled", "completed", "due", "failed", "later", "other spec"}},
		{supervisor.Filter{SpecID: x.spec}, []string{"cancelled", "completed", "due", "failed", "later"}},
		{supervisor.Filter{SpecID: other}, []string{"other spec", "other spec"}},
		{supervisor.Filter{TenantID: x.tenant, SpecID: other}, []string{"other spec"}},
		{supervisor.Filter{TenantID: x.tenant, Status: supervisor.StatusActive}, []string{"due", "later", "other spec"}},
		{supervisor.Filter{TenantID: x.tenant, Status: supervisor.StatusCompleted}, []string{"completed"}},
		{supervisor.Filter{TenantID: x.tenant, Status: supervisor.StatusFailed}, []string{"failed"}},
		{supervisor.Filter{TenantID: x.tenant, Status: supervisor.StatusCancelled}, []string{"cancelled"}},
		{supervisor.Filter{TenantID: x.tenant, DueBefore: horizon}, []string{"due", "later"}},
		{supervisor.Filter{TenantID: x.tenant, DueBefore: x.now().Add(far / 2)}, []string{"due"}},
		{supervisor.Filter{TenantID: x.tenant, DueBefore: horizon, Status: supervisor.StatusCompleted}, nil},
		{supervisor.Filter{TenantID: x.tenant + " unknown"}, nil},
	} {
		var got []string
		for s, err := range x.Instances.List(x.ctx, filter.filter) {
			x.check(err, "List")
			got = append(got, s.ID)
		}
		equalList(x, fmt.Sprintf("the list of %+v", filter.filter), got, filter.want)
	}
}

func listPages(x *trial) {
	const count = 230
	var want []string
	for n := range count {
		instance := x.instance(fmt.Sprintf("i%03d", (n*97)%count))
		instance.TenantID = fmt.Sprint(x.tenant, n%2)
		x.add(instance, x.now().Add(far))
		want = append(want, instance.TenantID+"\x00"+instance.ID)
	}
	slices.Sort(want)
	var got []string
	for s, err := range x.Instances.List(x.ctx, supervisor.Filter{SpecID: x.spec}) {
		x.check(err, "List")
		key := s.TenantID + "\x00" + s.ID
		if slices.Contains(want, key) {
			got = append(got, key)
		}
		switch len(got) % 50 {
		case 1: // one that comes before all, one somewhere in between
			for _, id := range []string{"a", "i1"} {
				instance := x.instance(fmt.Sprint(id, " added after ", len(got)))
				instance.TenantID = x.tenant + "0"
				x.add(instance, x.now().Add(far))
			}
		case 2: // one that was seen changes its due time
			x.check(x.Instances.Deliver(x.ctx, s.TenantID, s.ID, note("w"), time.Time{}), "Deliver within List")
		}
	}
	equalList(x, "the list of what was there all the time", got, want)
}

func errorsOf[V any](list iter.Seq2[V, error]) iter.Seq[error] {
	return func(yield func(error) bool) {
		for _, err := range list {
			if !yield(err) {
				return
			}
		}
	}
}

func (x *trial) endsAfterError(what string, list iter.Seq[error]) {
	x.Helper()
	failed := false
	for err := range list {
		x.unsupported(err)
		if failed {
			x.Errorf("%s goes on after an error", what)
			return
		}
		failed = err != nil
	}
	if !failed {
		x.Errorf("%s under a context that has ended yields no error", what)
	}
}

func historyCases() []testCase {
	return needing(instances, []testCase{
		{
			topic: "history", name: "in-order",
			rule: "History yields the events of an instance in order, each as its command gave it",
			run:  historyInOrder,
		},
		{
			topic: "history", name: "pages",
			rule: "History reads in bounded pages: every event once, in order",
			run: func(x *trial) {
				const count = 230
				x.due("a")
				item := x.claimOne()
				for n := range count {
					command := x.command(&item, fmt.Sprint(n), supervisor.Continue{})
					if x.keep == nil {
						x.commit(&item, command)
						item = x.claimOne()
						continue
					}
					item = *x.mustKeep(&item, command)
				}
				var got []int64
				for _, event := range x.history("a") {
					got = append(got, event.StateVersion)
				}
				want := make([]int64, count)
				for n := range want {
					want[n] = int64(n + 1)
				}
				equalList(x, "the state versions of the events", got, want)
			},
		},
		{
			topic: "history", name: "unknown",
			rule: "the history of an unknown instance is ErrNotFound, of a new one empty",
			run: func(x *trial) {
				x.due("a")
				equal(x, "the number of events of a new instance", len(x.history("a")), 0)
				yielded := 0
				for _, err := range x.Instances.History(x.ctx, x.tenant, "unknown") {
					yielded++
					x.want(err, supervisor.ErrNotFound, "History of an unknown instance")
				}
				equal(x, "the number of elements", yielded, 1)
			},
		},
	})
}

func historyInOrder(x *trial) {
	x.due("a")
	other := x.instance("a")
	other.TenantID += " other"
	x.add(other, x.now().Add(far))
	var want []supervisor.Event
	for n := range 4 {
		item := x.claimOne()
		command := x.command(&item, fmt.Sprint(n), supervisor.Continue{})
		command.EventType, command.EventDigest = fmt.Sprint("type ", n), fmt.Sprint("digest ", n)
		command.EventPayload = json.RawMessage(fmt.Sprintf(`{"n":%d.0}`, n))
		command.DeliveryKey = fmt.Sprint("key ", 9-n)
		x.commit(&item, command)
		want = append(want, supervisor.Event{
			TenantID: x.tenant, InstanceID: "a", Type: command.EventType, Digest: command.EventDigest,
			DeliveryKey: command.DeliveryKey, WorkerID: worker, StateVersion: int64(n + 1),
			LeaseVersion: item.LeaseVersion, Payload: command.EventPayload, At: item.ClaimedAt,
		})
	}
	got := x.history("a")
	if len(got) != len(want) {
		x.Fatalf("there are %d events, want %d", len(got), len(want))
	}
	for n := range got {
		if got[n].At.Before(want[n].At) || got[n].At.Location() != time.UTC || got[n].At.After(want[n].At.Add(2*patience)) {
			x.Errorf("event %d is from %v, want soon after its claim at %v, in UTC", n+1, got[n].At, want[n].At)
		}
		if n > 0 && got[n].At.Before(got[n-1].At) {
			x.Errorf("event %d is from %v, before the one before it, %v", n+1, got[n].At, got[n-1].At)
		}
		want[n].At = got[n].At
		gotText, _ := json.Marshal(got[n])
		wantText, _ := json.Marshal(want[n])
		x.equalJSON(fmt.Sprint("event ", n+1), gotText, string(wantText))
		x.equalJSON("its payload", got[n].Payload, string(want[n].Payload))
	}
	// A listing can be read twice, and stopped and read again.
	events := x.Instances.History(x.ctx, x.tenant, "a")
	for range 2 {
		count := 0
		for _, err := range events {
			if err != nil && !errors.Is(err, context.Canceled) {
				x.check(err, "History")
			}
			count++
		}
		equal(x, "the number of events", count, len(want))
	}
}
