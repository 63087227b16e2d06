package queuetest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
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
	patience = 20 * time.Second
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
	// early are items that were claimed while looking for others.
	early map[string]supervisor.WorkItem
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
	return preparedIntent(item, id)
}

func preparedIntent(item *supervisor.WorkItem, id string) supervisor.ActionIntent {
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

// view is all that can be seen of an instance, by field.
type view map[string]string

// look returns a view, for comparing what must not change. It is empty for a
// queue without Instances.
func (x *trial) look(item *supervisor.WorkItem) view {
	x.Helper()
	if x.Instances == nil {
		return nil
	}
	snapshot, err := x.Instances.Get(x.ctx, item.TenantID, item.ID)
	if errors.Is(err, errors.ErrUnsupported) {
		return nil
	}
	x.check(err, "Get %q", item.ID)
	text, err := json.Marshal(snapshot)
	x.check(err, "encoding a snapshot")
	var fields map[string]json.RawMessage
	x.check(json.Unmarshal(text, &fields), "decoding a snapshot")
	seen := view{}
	for field, value := range fields {
		seen[field] = string(value)
	}
	events := 0
	for event, err := range x.Instances.History(x.ctx, item.TenantID, item.ID) {
		if errors.Is(err, errors.ErrUnsupported) {
			break
		}
		x.check(err, "History of %q", item.ID)
		events++
		seen[fmt.Sprint("event ", events)] = fmt.Sprintf("%+v", event)
	}
	return seen
}

// same reports what changed though it must not.
func (x *trial) same(item *supervisor.WorkItem, before view, after string, args ...any) {
	x.Helper()
	now := x.look(item)
	fields := slices.Collect(maps.Keys(before))
	for field := range now {
		if _, known := before[field]; !known {
			fields = append(fields, field)
		}
	}
	slices.Sort(fields)
	for _, field := range fields {
		if before[field] != now[field] {
			x.Errorf("after %s %s of %q changed from %s to %s", fmt.Sprintf(after, args...), field, item.ID,
				clip(cmp.Or(before[field], "nothing")), clip(cmp.Or(now[field], "nothing")))
		}
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
	const most = 400
	if len(s) > most {
		return fmt.Sprintf("%q… (%d bytes)", s[:most], len(s))
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
		x.Errorf("%s is %s, want %s", what, clip(fmt.Sprint(got)), clip(fmt.Sprint(want)))
	}
}

// now is the store's clock, read through a claim: nothing else of a bare
// WorkQueue tells it.
func (x *trial) now() time.Time {
	x.Helper()
	x.offsetOnce.Do(x.measureOffset)
	return time.Now().Add(x.offset).UTC().Truncate(time.Microsecond)
}

// measureOffset compares the clocks by the quickest of some claims, for the
// store reads its clock at some moment of the call.
func (x *trial) measureOffset() {
	x.Helper()
	instance := x.instance("clock")
	instance.TenantID, instance.SpecID = x.tenant+" (clock)", x.spec+" (clock)"
	x.add(instance, time.Time{})
	req := x.request(1)
	req.SpecIDs = []string{instance.SpecID}
	const tries, good = 5, 2 * time.Millisecond
	best := time.Duration(math.MaxInt64)
	for range tries {
		var begun time.Time
		var took time.Duration
		items := x.collect(1, func(int) supervisor.ClaimRequest {
			begun = time.Now()
			return req
		})
		if took = time.Since(begun); took < best {
			best, x.slack = took, took/2+poll
			x.offset = items[0].ClaimedAt.Sub(begun.Add(took / 2))
		}
		if best < good {
			break
		}
		x.step(&items[0], `1`, supervisor.Continue{})
	}
}

// soon is an instant of the store's clock that is near. On a busy machine it may
// have passed by the time it is used.
func (x *trial) soon() time.Time {
	x.Helper()
	return x.now().Add(x.Lease)
}

// timely calls prepare with an instant that is still ahead when it returns,
// repeating it with a later one, in a tenant and for a spec of its own, as long
// as the machine is too slow.
func (x *trial) timely(prepare func(at time.Time)) {
	x.Helper()
	for lead := x.Lease; ; lead *= 2 {
		at := x.now().Add(lead)
		prepare(at)
		if x.now().Add(x.slack).Before(at) || lead > patience {
			return
		}
		x.tenant += " again"
		x.spec += " again"
	}
}

// unhurried repeats a try with ever longer times, in a tenant and for a spec of
// its own, until the machine was quick enough for it to tell something.
func (x *trial) unhurried(try func(unit time.Duration) (conclusive bool)) {
	x.Helper()
	for unit := x.Lease; !try(unit); unit *= 2 {
		if unit > patience {
			x.Fatalf("queuetest: this machine is too slow to tell: a few calls took longer than %v", unit)
		}
		x.tenant += " again"
		x.spec += " again"
	}
}

// passes waits until an instant of the store's clock has surely passed.
func (x *trial) passes(at time.Time) {
	x.Helper()
	x.sleep(max(at.Add(x.slack).Sub(x.now()), 0) + poll)
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
