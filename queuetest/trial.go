package queuetest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/workflow-supervisor/supervisor"
)

const (
	// worker is the name by which cases claim.
	worker = "worker-1"
	// held is a lease that no case outlives.
	held = 30 * time.Minute
	// far is a delay that no case outlives.
	far = time.Hour
	// patience is how long a case waits for what has to happen at once, on a
	// machine that is busy with other things.
	patience = 15 * time.Second
	// poll is the pause between two looks.
	poll = 10 * time.Millisecond
)

// trial is one case on one queue: the helpers by which cases are written. Its
// tenant and spec belong to the case alone.
type trial struct {
	surface
	*subject
	ctx          context.Context
	rule         string
	kept         bool
	tenant, spec string
}

// Errorf reports what was seen beside the rule that it breaks.
func (x *trial) Errorf(format string, args ...any) {
	x.Helper()
	x.surface.Errorf("rule: %s\nseen: %s", x.rule, fmt.Sprintf(format, args...))
}

// Fatalf is Errorf that ends the case.
func (x *trial) Fatalf(format string, args ...any) {
	x.Helper()
	x.surface.Fatalf("rule: %s\nseen: %s", x.rule, fmt.Sprintf(format, args...))
}

// check ends the case on an error of a call that has to succeed.
func (x *trial) check(err error, call string, args ...any) {
	x.Helper()
	if err == nil {
		return
	}
	x.unsupported(err)
	x.Fatalf("%s: unexpected error: %v", fmt.Sprintf(call, args...), err)
}

// unsupported skips a case that needs a method which the queue lacks.
func (x *trial) unsupported(err error) {
	x.Helper()
	if errors.Is(err, errors.ErrUnsupported) {
		x.Skipf("the queue lacks a method: %v", err)
	}
}

// want reports an error that is not the wanted one.
func (x *trial) want(err, want error, call string, args ...any) {
	x.Helper()
	x.unsupported(err)
	if !errors.Is(err, want) {
		x.Errorf("%s: error is %s, want one that is %q", fmt.Sprintf(call, args...), describe(err), want)
	}
}

// wantErr reports a call that succeeded but must not.
func (x *trial) wantErr(err error, call string, args ...any) {
	x.Helper()
	x.unsupported(err)
	if err == nil {
		x.Errorf("%s: error is nil, want one", fmt.Sprintf(call, args...))
	}
}

func describe(err error) string {
	if err == nil {
		return "nil"
	}
	return fmt.Sprintf("%q", err)
}

// instance returns an instance of the case's tenant and spec.
func (x *trial) instance(id string) supervisor.Instance {
	return supervisor.Instance{
		ID: id, RunID: uuid.NewString(), TenantID: x.tenant, SubjectID: "subject",
		SpecID: x.spec, DefinitionID: "definition",
		WorkflowRevision: 1, WorkflowRevisionDigest: "code:1",
		ExecutionProfileID: "profile", ExecutionProfileRevision: 1, ExecutionProfileDigest: "profile:1",
		KernelABIVersion: "1",
		CapabilityPins:   []supervisor.CapabilityPin{pin()},
		Config:           json.RawMessage(`{"config":1}`),
	}
}

func pin() supervisor.CapabilityPin {
	return supervisor.CapabilityPin{ID: "capability", ContractVersion: "1", ContentDigest: "digest"}
}

// add stores an instance that is due at dueAt (zero: now), with wakeups that are
// due.
func (x *trial) add(instance supervisor.Instance, dueAt time.Time, wakeups ...supervisor.Wakeup) {
	x.Helper()
	if x.Add != nil {
		item := supervisor.WorkItem{Instance: instance, ScheduledAt: dueAt, Wakeups: wakeups}
		x.check(x.Add(x.ctx, item), "Add %q", instance.ID)
		return
	}
	started, err := x.Instances.Start(x.ctx, instance, dueAt)
	x.check(err, "Start %q", instance.ID)
	if !started {
		x.Fatalf("Start %q says false for a new instance", instance.ID)
	}
	for _, wakeup := range wakeups {
		x.deliver(instance.ID, wakeup, time.Time{})
	}
}

// due adds an instance that is due now.
func (x *trial) due(id string, wakeups ...supervisor.Wakeup) supervisor.Instance {
	x.Helper()
	instance := x.instance(id)
	x.add(instance, time.Time{}, wakeups...)
	return instance
}

// deliver delivers to an instance of the case's tenant.
func (x *trial) deliver(id string, wakeup supervisor.Wakeup, dueAt time.Time) {
	x.Helper()
	x.check(x.Instances.Deliver(x.ctx, x.tenant, id, wakeup, dueAt), "Deliver %q to %q", wakeup.ID, id)
}

// note is a wakeup without meaning.
func note(id string) supervisor.Wakeup {
	return supervisor.Wakeup{ID: id, Kind: "note", Payload: json.RawMessage(`{"note":"` + id + `"}`)}
}

// request asks for items of the case's spec.
func (x *trial) request(limit int) supervisor.ClaimRequest {
	return supervisor.ClaimRequest{SpecIDs: []string{x.spec}, WorkerID: worker, LeaseDuration: held, Limit: limit}
}

// claim claims once.
func (x *trial) claim(req supervisor.ClaimRequest) []supervisor.WorkItem {
	x.Helper()
	return x.claimFrom(x.WorkQueue, req)
}

func (x *trial) claimFrom(queue supervisor.WorkQueue, req supervisor.ClaimRequest) []supervisor.WorkItem {
	x.Helper()
	items, err := queue.ClaimDue(x.ctx, req)
	x.check(err, "ClaimDue")
	if len(items) > req.Limit {
		x.Fatalf("ClaimDue with Limit %d returned %d items", req.Limit, len(items))
	}
	return items
}

// claimN claims until it has n items, which have to be due or fall due soon.
func (x *trial) claimN(n int) []supervisor.WorkItem {
	x.Helper()
	return x.collect(n, func(left int) supervisor.ClaimRequest { return x.request(left) })
}

func (x *trial) collect(n int, request func(left int) supervisor.ClaimRequest) []supervisor.WorkItem {
	x.Helper()
	var items []supervisor.WorkItem
	for end := time.Now().Add(patience); ; x.sleep(poll) {
		items = append(items, x.claim(request(n-len(items)))...)
		if len(items) >= n {
			return items
		}
		if time.Now().After(end) {
			x.Fatalf("%d items are due or soon will be, but %v later only %d were claimed: %v", n, patience, len(items), ids(items))
		}
	}
}

// claimOne claims the one item that is due or falls due soon.
func (x *trial) claimOne() supervisor.WorkItem {
	x.Helper()
	return x.claimN(1)[0]
}

// claimShort is claimOne under the shortest lease.
func (x *trial) claimShort() supervisor.WorkItem {
	x.Helper()
	return x.collect(1, func(int) supervisor.ClaimRequest {
		req := x.request(1)
		req.LeaseDuration = x.Lease
		return req
	})[0]
}

// idle reports items that were claimed though none is due.
func (x *trial) idle(because string) {
	x.Helper()
	if items := x.claim(x.request(10)); len(items) > 0 {
		x.Fatalf("claimed %v, want none: %s", ids(items), because)
	}
}

func ids(items []supervisor.WorkItem) []string {
	list := make([]string, len(items))
	for n := range items {
		list[n] = items[n].ID
	}
	return list
}

func wakeupIDs(item *supervisor.WorkItem) []string {
	list := make([]string, len(item.Wakeups))
	for n := range item.Wakeups {
		list[n] = item.Wakeups[n].ID
	}
	return list
}

// sleep waits for the store's clock. In a bubble it takes no time.
func (x *trial) sleep(d time.Duration) { time.Sleep(d) }

// outlast waits until a lease of the shortest length has surely ended.
func (x *trial) outlast() { x.sleep(x.Lease + x.Lease/4 + 2*poll) }

// command returns a valid command with a key of its own.
func (x *trial) command(item *supervisor.WorkItem, state string, d supervisor.Disposition) supervisor.TransitionCommand {
	x.Helper()
	command, err := supervisor.NewCommand(item, "queuetest.stepped", json.RawMessage(`{"to":`+state+`}`), json.RawMessage(state), d)
	if err != nil {
		x.Fatalf("queuetest: NewCommand: %v", err)
	}
	return command
}

// tryCommit commits as the case asks: with CommitCommand or CommitAndKeep.
func (x *trial) tryCommit(item *supervisor.WorkItem, command *supervisor.TransitionCommand) error {
	if !x.kept {
		return x.CommitCommand(x.ctx, item, command)
	}
	next, err := x.keep.CommitAndKeep(x.ctx, item, command, held)
	if err != nil && next != nil {
		x.Errorf("CommitAndKeep returned an item beside the error %v", err)
	}
	return err
}

// commit commits a command that has to be accepted.
func (x *trial) commit(item *supervisor.WorkItem, command supervisor.TransitionCommand) {
	x.Helper()
	x.check(x.CommitCommand(x.ctx, item, &command), "CommitCommand of %q at state version %d", item.ID, item.StateVersion)
}

// step commits a new state and a disposition.
func (x *trial) step(item *supervisor.WorkItem, state string, d supervisor.Disposition) {
	x.Helper()
	x.commit(item, x.command(item, state, d))
}

// fail commits a failure that is retried at retryAt; zero fails it for good.
func (x *trial) fail(item *supervisor.WorkItem, reason string, retryAt time.Time) {
	x.Helper()
	x.commit(item, supervisor.FailureCommand(item, reason, retryAt))
}

// consume commits a command that consumes wakeups.
func (x *trial) consume(item *supervisor.WorkItem, d supervisor.Disposition, ids ...string) {
	x.Helper()
	command := x.command(item, `{"consumed":true}`, d)
	command.ConsumedWakeups = ids
	x.commit(item, command)
}

// intent returns a valid intent of a claimed item.
func (x *trial) intent(item *supervisor.WorkItem, id string) supervisor.ActionIntent {
	return supervisor.ActionIntent{
		ID: id, TenantID: item.TenantID, InstanceID: item.ID, RunID: item.RunID,
		Capability: pin(), IdempotencyKey: "key of " + id, State: supervisor.ActionPrepared,
		Input: json.RawMessage(`{"amount":1}`), Effect: supervisor.EffectExternalWrite,
		RetryClass: supervisor.IdempotencyNative, ControlEpochs: item.ControlEpochs,
		LeaseEpoch: item.LeaseVersion, ActionEpoch: item.StateVersion,
	}
}

// lease names a claim, to be extended to d from now.
func lease(item *supervisor.WorkItem, d time.Duration) supervisor.Lease {
	return supervisor.Lease{TenantID: item.TenantID, InstanceID: item.ID, WorkerID: worker, Version: item.LeaseVersion, Duration: d}
}

// get looks an instance of the case's tenant up.
func (x *trial) get(id string) supervisor.Snapshot {
	x.Helper()
	snapshot, err := x.Instances.Get(x.ctx, x.tenant, id)
	x.check(err, "Get %q", id)
	return snapshot
}

// history reads all events of an instance of the case's tenant.
func (x *trial) history(id string) []supervisor.Event {
	x.Helper()
	var events []supervisor.Event
	for event, err := range x.Instances.History(x.ctx, x.tenant, id) {
		x.check(err, "History of %q", id)
		events = append(events, event)
	}
	return events
}

// look returns all that can be seen of an instance, for comparing what must not
// change. It is empty for a queue without Instances.
func (x *trial) look(item *supervisor.WorkItem) string {
	x.Helper()
	if x.Instances == nil {
		return ""
	}
	snapshot, err := x.Instances.Get(x.ctx, item.TenantID, item.ID)
	if errors.Is(err, errors.ErrUnsupported) {
		return ""
	}
	x.check(err, "Get %q", item.ID)
	view := struct {
		Snapshot supervisor.Snapshot
		Events   []supervisor.Event
	}{Snapshot: snapshot}
	for event, err := range x.Instances.History(x.ctx, item.TenantID, item.ID) {
		if errors.Is(err, errors.ErrUnsupported) {
			break
		}
		x.check(err, "History of %q", item.ID)
		view.Events = append(view.Events, event)
	}
	text, err := json.Marshal(view)
	x.check(err, "encoding a snapshot")
	return string(text)
}

// same reports what changed though it must not.
func (x *trial) same(item *supervisor.WorkItem, before, after string) {
	x.Helper()
	if now := x.look(item); now != before {
		x.Errorf("after %s instance %q changed\nfrom %s\n  to %s", after, item.ID, before, now)
	}
}

// equalJSON reports a value that is not byte for byte the one that went in.
func (x *trial) equalJSON(what string, got json.RawMessage, want string) {
	x.Helper()
	if !bytes.Equal(got, []byte(want)) {
		x.Errorf("%s is %s, want %s", what, clip(string(got)), clip(want))
	}
}

// clip cuts a value for a message.
func clip(s string) string {
	if len(s) > 300 {
		return fmt.Sprintf("%q… (%d bytes)", s[:300], len(s))
	}
	return s
}

// equal reports a value that differs.
func equal[V comparable](x *trial, what string, got, want V) {
	x.Helper()
	if got != want {
		x.Errorf("%s is %v, want %v", what, got, want)
	}
}

// equalList reports a list that differs.
func equalList[V comparable](x *trial, what string, got, want []V) {
	x.Helper()
	if !slices.Equal(got, want) {
		x.Errorf("%s is %v, want %v", what, got, want)
	}
}

// now is the store's clock, read through a claim: nothing else of a bare
// WorkQueue tells it.
func (x *trial) now() time.Time {
	x.Helper()
	x.offsetOnce.Do(func() {
		instance := x.instance("clock")
		instance.TenantID, instance.SpecID = x.tenant+" (clock)", x.spec+" (clock)"
		x.add(instance, time.Time{})
		req := x.request(1)
		req.SpecIDs = []string{instance.SpecID}
		before := time.Now()
		item := x.collect(1, func(int) supervisor.ClaimRequest {
			before = time.Now()
			return req
		})[0]
		x.offset = item.ClaimedAt.Sub(before.Add(time.Since(before) / 2))
	})
	return time.Now().Add(x.offset).UTC().Truncate(time.Microsecond)
}

// soon is an instant of the store's clock that is near but not past.
func (x *trial) soon() time.Time {
	x.Helper()
	return x.now().Add(x.Lease)
}

// until waits for something to become true.
func (x *trial) until(what string, holds func() bool) {
	x.Helper()
	for end := time.Now().Add(patience); !holds(); x.sleep(poll) {
		if time.Now().After(end) {
			x.Fatalf("%v later it still does not hold that %s", patience, what)
		}
	}
}
