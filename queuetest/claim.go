package queuetest

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

func claimCases() []testCase {
	return []testCase{
		{
			topic: "claim", name: "whole-item",
			rule: "a claim captures the pins, epochs, wakeups and timestamps of a due instance",
			run:  claimWholeItem,
		},
		{
			topic: "claim", name: "nothing-due",
			rule: "ClaimDue returns at once with no items where nothing is due",
			run: func(x *trial) {
				begun := time.Now()
				x.idle("there is no instance of this spec")
				if took := time.Since(begun); took > patience {
					x.Errorf("the claim took %v", took)
				}
			},
		},
		{
			topic: "claim", name: "limit",
			rule: "ClaimDue acquires never more than req.Limit items",
			run: func(x *trial) {
				for n := range 5 {
					x.due(fmt.Sprint("i", n))
				}
				seen := map[string]bool{}
				for range 5 {
					for _, item := range x.claim(x.request(2)) {
						if seen[item.ID] {
							x.Errorf("%q was claimed twice under one lease", item.ID)
						}
						seen[item.ID] = true
					}
				}
				equal(x, "the number of claimed items", len(seen), 5)
			},
		},
		{
			topic: "claim", name: "limit-is-what-is-leased",
			rule: "a claim leases no more instances than it returns, whatever the store expected to find",
			run:  claimLeasesWhatItReturns,
		},
		{
			topic: "claim", name: "wanted-specs",
			rule: "ClaimDue acquires due instances of the wanted specs only",
			run:  claimWantedSpecs,
		},
		{
			topic: "claim", name: "all-specs", alone: true,
			rule: "no SpecIDs in a claim request mean all specs",
			run: func(x *trial) {
				for n := range 3 {
					instance := x.instance(fmt.Sprint("i", n))
					instance.SpecID = fmt.Sprint("spec", n)
					x.add(instance, time.Time{})
				}
				items := x.collect(3, func(left int) supervisor.ClaimRequest {
					req := x.request(left)
					req.SpecIDs = nil
					return req
				})
				got := ids(items)
				slices.Sort(got)
				equalList(x, "the claimed ids", got, []string{"i0", "i1", "i2"})
			},
		},
		{
			topic: "claim", name: "held-is-not-due",
			rule: "an instance is not due while a lease on it lasts",
			run: func(x *trial) {
				x.due("a")
				first := x.claimOne()
				x.idle("the lease of the first claim lasts")
				x.step(&first, `"done"`, supervisor.Complete{})
			},
		},
		{
			topic: "claim", name: "lapsed-is-due-again",
			rule: "an instance whose lease has ended is due again as it was",
			run:  claimLapsed,
		},
		{
			topic: "claim", name: "raises-lease-version",
			rule: "every acquisition raises the lease version",
			run: func(x *trial) {
				x.due("a")
				last := int64(0)
				for range 3 {
					item := x.claimOne()
					if item.LeaseVersion <= last {
						x.Errorf("lease version %d follows %d", item.LeaseVersion, last)
					}
					last = item.LeaseVersion
					x.step(&item, `1`, supervisor.Continue{})
				}
			},
		},
		{
			topic: "claim", name: "not-before-due",
			rule: "an instance is claimed once its due time has come by the store's clock, not before",
			run: func(x *trial) {
				x.add(x.instance("later"), x.now().Add(far))
				due := x.soon()
				x.add(x.instance("soon"), due)
				item := x.claimOne()
				equal(x, "the claimed id", item.ID, "soon")
				if item.ClaimedAt.Before(due) {
					x.Errorf("claimed at %v, before its due time %v", item.ClaimedAt, due)
				}
				if !item.ScheduledAt.Equal(due) {
					x.Errorf("ScheduledAt is %v, want the due time %v", item.ScheduledAt, due)
				}
			},
		},
		{
			topic: "claim", name: "invalid-request",
			rule: "every queue applies ClaimRequest.Validate in ClaimDue",
			run:  claimInvalidRequest,
		},
		{
			topic: "claim", name: "enormous-request",
			rule: "every valid request is served: any limit, any lease, any number of specs",
			run: func(x *trial) {
				x.due("a")
				x.due("b")
				req := x.request(math.MaxInt)
				req.LeaseDuration = math.MaxInt64
				for n := range 3000 {
					req.SpecIDs = append(req.SpecIDs, fmt.Sprint(x.spec, n), x.spec) // that one again and again
				}
				items := x.claim(req)
				equalList(x, "the claimed ids", sorted(ids(items)), []string{"a", "b"})
				x.idle("both are held for centuries")
				for n := range items {
					x.check(x.Renew(x.ctx, lease(&items[n], math.MaxInt64)), "Renew for centuries")
				}
				x.idle("both are held for centuries")
				for n := range items {
					x.step(&items[n], `1`, supervisor.Complete{})
				}
			},
		},
		{
			topic: "claim", name: "ended-context",
			rule: "a context that ends never leaves half a change behind",
			run: func(x *trial) {
				x.due("a")
				ctx, cancel := context.WithCancel(x.ctx)
				cancel()
				req := x.request(1)
				req.LeaseDuration = x.Lease
				items, err := x.ClaimDue(ctx, req)
				if err == nil && len(items) == 1 {
					x.step(&items[0], `1`, supervisor.Complete{})
					return
				}
				item := x.claimOne()
				x.step(&item, `1`, supervisor.Complete{})
			},
		},
		{
			topic: "claim", name: "results-belong-to-caller",
			rule: "results belong to the caller: changing them changes nothing in the queue",
			run:  claimResultsBelongToCaller,
		},
		{
			topic: "claim", name: "arguments-belong-to-caller",
			rule: "arguments belong to the caller: they are neither changed nor kept",
			run:  claimArgumentsBelongToCaller,
		},
		{
			topic: "claim", name: "broken-row", needs: corrupt, alone: true,
			rule: "a row that cannot be decoded is set aside with a recorded reason and a delay; it fails nothing else",
			run:  claimBrokenRow,
		},
	}
}

func claimWholeItem(x *trial) {
	instance := x.instance("a")
	instance.SubjectID = "someone"
	instance.WorkflowRevision = 7
	instance.WorkflowRevisionDigest = "digest of the revision"
	instance.ExecutionProfileRevision = 3
	instance.CapabilityPins = append(instance.CapabilityPins,
		supervisor.CapabilityPin{ID: "second", ContractVersion: "2", ContentDigest: "other"})
	instance.Lifecycle = supervisor.LifecyclePolicy{
		Completion:       supervisor.CompletionPolicy{Kind: supervisor.CompleteAfterSuccessfulRuns, N: 9},
		EventIdleTimeout: 50 * far, ProgressTimeout: 60 * far,
	}
	x.add(instance, time.Time{})
	item := x.claimOne()
	sameInstance(x, &item.Instance, &instance)
	x.equalJSON("State before the first transition", item.State, string(instance.Config))
	equal(x, "StateVersion", item.StateVersion, 0)
	equal(x, "Attempt", item.Attempt, 0)
	equal(x, "CancelRequested", item.CancelRequested, false)
	equal(x, "ControlEpochs", item.ControlEpochs, supervisor.ControlEpochs{})
	equal(x, "the number of wakeups", len(item.Wakeups), 0)
	if item.LeaseVersion < 1 {
		x.Errorf("LeaseVersion is %d, want a positive one", item.LeaseVersion)
	}
	if err := item.ValidatePins(); err != nil {
		x.Errorf("the claimed item has invalid pins: %v", err)
	}
	for _, at := range []struct {
		field string
		value time.Time
	}{{"CreatedAt", item.CreatedAt}, {"ScheduledAt", item.ScheduledAt}, {"ClaimedAt", item.ClaimedAt}} {
		if at.value.IsZero() || at.value.Location() != time.UTC {
			x.Errorf("%s is %v, want an instant in UTC", at.field, at.value)
		}
		if at.value.After(item.ClaimedAt) {
			x.Errorf("%s %v is after ClaimedAt %v", at.field, at.value, item.ClaimedAt)
		}
	}
}

// sameInstance compares what never changes, JSON by its bytes.
func sameInstance(x *trial, got, want *supervisor.Instance) {
	x.Helper()
	if !json.Valid(got.Config) && len(got.Config) > 0 {
		x.Fatalf("Config is %s, want %s", clip(string(got.Config)), clip(string(want.Config)))
	}
	gotText, err := json.Marshal(got)
	x.check(err, "encoding the instance")
	wantText, err := json.Marshal(want)
	x.check(err, "encoding the instance")
	if string(gotText) != string(wantText) {
		x.Errorf("the instance is\n%s\nwant\n%s", clip(string(gotText)), clip(string(wantText)))
	}
	x.equalJSON("Config", got.Config, string(want.Config))
}

func claimLeasesWhatItReturns(x *trial) {
	x.due("first")
	if x.Analyze != nil {
		x.check(x.Analyze(x.ctx), "Analyze")
	}
	const more = 50
	for n := range more {
		x.due(fmt.Sprintf("i%02d", n))
	}
	claimed := len(x.claim(x.request(2)))
	left := len(x.claim(x.request(2 * more)))
	if claimed+left != more+1 {
		x.Errorf("of %d due items a claim with Limit 2 returned %d and the next claim found %d: %d are leased to nobody",
			more+1, claimed, left, more+1-claimed-left)
	}
}

func claimWantedSpecs(x *trial) {
	for _, name := range []string{"a", "b", "c"} {
		instance := x.instance(name)
		instance.SpecID = x.spec + name
		x.add(instance, time.Time{})
	}
	x.idle("no instance has this spec")
	req := x.request(10)
	req.SpecIDs = []string{x.spec + "b"}
	equalList(x, "the ids claimed for one spec", ids(x.claim(req)), []string{"b"})
	req.SpecIDs = []string{x.spec + "c", x.spec + "nothing", x.spec + "a", x.spec + "b"}
	got := ids(x.claim(req))
	slices.Sort(got)
	equalList(x, "the ids claimed for several specs, of which b is held", got, []string{"a", "c"})
}

func claimLapsed(x *trial) {
	x.due("a", note("w1"), note("w2"))
	first := x.claimShort()
	second := x.claimOne()
	if second.ClaimedAt.Before(first.ClaimedAt.Add(x.Lease)) {
		x.Errorf("claimed again at %v, before the lease of %v from %v had ended", second.ClaimedAt, x.Lease, first.ClaimedAt)
	}
	if second.LeaseVersion <= first.LeaseVersion {
		x.Errorf("lease version %d follows %d", second.LeaseVersion, first.LeaseVersion)
	}
	equal(x, "Attempt after a lapsed lease", second.Attempt, first.Attempt)
	second.LeaseVersion, second.ClaimedAt = first.LeaseVersion, first.ClaimedAt
	if !reflect.DeepEqual(first, second) {
		x.Errorf("the item claimed again is\n%+v\nwant\n%+v", second, first)
	}
}

func claimInvalidRequest(x *trial) {
	x.due("a")
	for _, invalid := range []struct {
		field string
		spoil func(*supervisor.ClaimRequest)
	}{
		{"WorkerID", func(r *supervisor.ClaimRequest) { r.WorkerID = " \u2003" }},
		{"WorkerID", func(r *supervisor.ClaimRequest) { r.WorkerID = "a\x00b" }},
		{"WorkerID", func(r *supervisor.ClaimRequest) {
			r.WorkerID = strings.Repeat("w", supervisor.MaxIDBytes+1)
		}},
		{"LeaseDuration", func(r *supervisor.ClaimRequest) { r.LeaseDuration = 0 }},
		{"LeaseDuration", func(r *supervisor.ClaimRequest) { r.LeaseDuration = -time.Second }},
		{"Limit", func(r *supervisor.ClaimRequest) { r.Limit = 0 }},
		{"Limit", func(r *supervisor.ClaimRequest) { r.Limit = -3 }},
	} {
		req := x.request(1)
		invalid.spoil(&req)
		items, err := x.ClaimDue(x.ctx, req)
		if err == nil || len(items) > 0 {
			x.Errorf("ClaimDue with an invalid %s returned %d items and error %s, want an error alone", invalid.field, len(items), describe(err))
		} else if !strings.Contains(err.Error(), invalid.field) {
			x.Errorf("the error %q does not name the field %s", err, invalid.field)
		}
	}
	x.claimOne()
}

func claimResultsBelongToCaller(x *trial) {
	wakeup := note("w")
	x.due("a", wakeup)
	item := x.claimShort()
	want := item.Clone()
	spoil(item.Config)
	spoil(item.State)
	for n := range item.CapabilityPins {
		item.CapabilityPins[n].ID = "spoiled"
	}
	for n := range item.Wakeups {
		spoil(item.Wakeups[n].Payload)
		item.Wakeups[n].ID = "spoiled"
	}
	again := x.claimOne()
	sameInstance(x, &again.Instance, &want.Instance)
	x.equalJSON("State", again.State, string(want.State))
	equalList(x, "the ids of the wakeups", wakeupIDs(&again), []string{"w"})
	if len(again.Wakeups) == 1 {
		x.equalJSON("the wakeup's payload", again.Wakeups[0].Payload, string(wakeup.Payload))
	}
}

// spoil overwrites memory that may be shared.
func spoil(raw json.RawMessage) {
	for n := range raw {
		raw[n] = '!'
	}
}

func claimArgumentsBelongToCaller(x *trial) {
	instance := x.instance("a")
	want := x.instance("a")
	want.RunID = instance.RunID
	wakeup := note("w")
	payload := string(wakeup.Payload)
	x.add(instance, time.Time{}, wakeup)
	spoil(instance.Config)
	instance.CapabilityPins[0].ID = "spoiled"
	spoil(wakeup.Payload)

	req := x.request(1)
	req.SpecIDs = []string{x.spec, x.spec + "z", x.spec + "b", x.spec + "a"}
	specs := slices.Clone(req.SpecIDs)
	item := x.collect(1, func(int) supervisor.ClaimRequest { return req })[0]
	equalList(x, "the SpecIDs of the request after the claim", req.SpecIDs, specs)
	sameInstance(x, &item.Instance, &want)
	if len(item.Wakeups) != 1 || string(item.Wakeups[0].Payload) != payload {
		x.Errorf("the wakeups are %v, want w with %s", item.Wakeups, payload)
	}

	command := x.command(&item, `{"kept":true}`, supervisor.Continue{})
	before, beforeItem := command.Clone(), item.Clone()
	x.check(x.CommitCommand(x.ctx, &item, &command), "CommitCommand")
	if !reflect.DeepEqual(command, before) {
		x.Errorf("CommitCommand changed its command from\n%+v\nto\n%+v", before, command)
	}
	if !reflect.DeepEqual(item, beforeItem) {
		x.Errorf("CommitCommand changed its item from\n%+v\nto\n%+v", beforeItem, item)
	}
	spoil(command.NextState)
	spoil(command.EventPayload)
	again := x.claimOne()
	x.equalJSON("State", again.State, `{"kept":true}`)
}

func claimBrokenRow(x *trial) {
	// The healthy instance is due later, so that the broken one is met first.
	x.due("broken")
	x.due("healthy")
	x.check(x.Corrupt(x.ctx, x.tenant, "broken"), "Corrupt")
	var claimed []string
	x.until("the healthy instance is claimed", func() bool {
		items, err := x.ClaimDue(x.ctx, x.request(10))
		if err != nil && len(items) == 0 {
			x.Errorf("a claim that met a broken row returned the error %q alone, though another instance is due", err)
		}
		claimed = append(claimed, ids(items)...)
		return slices.Contains(claimed, "healthy")
	})
	if slices.Contains(claimed, "broken") {
		x.Errorf("a row that cannot be decoded was handed out")
	}
	for range 3 {
		items, err := x.ClaimDue(x.ctx, x.request(10))
		if len(items) > 0 || err != nil {
			x.Errorf("a claim after the row was set aside returned %v and error %s, want neither", ids(items), describe(err))
		}
	}
	if x.Instances == nil {
		return
	}
	explanation, err := x.Instances.Explain(x.ctx, x.tenant, "broken")
	x.check(err, "Explain")
	equal(x, "the reason of the explanation", explanation.Reason, supervisor.ReasonSetAside)
	if explanation.Detail == "" || explanation.Until.IsZero() {
		x.Errorf("the explanation %+v lacks the recorded reason or the end of the delay", explanation)
	}
}
