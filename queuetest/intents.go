package queuetest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

// dispatcher is the name by which cases claim intents.
const dispatcher = "dispatcher-1"

// intentCases lists the cases of intents. All of them need an IntentQueue.
func intentCases() []testCase {
	return needing(intentQueue, slices.Concat(
		intentClaimCases(),
		intentRepeatableCases(),
		intentLeaseCases(),
		intentMarkCases(),
		intentPauseCases(),
		intentReceiptCases(),
		intentEvidenceCases(),
		intentSettleCases(),
		intentToldCases(),
		intentProofCases(),
		intentAmbiguousCases(),
		intentReleaseCases(),
		intentCancelCases(),
		intentConfirmCases(),
		intentResolveCases(),
		intentListCases(),
		intentLimitCases(),
		intentWaitCases(),
		intentHostileCases(),
		intentFidelityCases(),
		intentPruneCases(),
		intentAtomicityCases(),
		intentConcurrencyCases(),
	))
}

// capability is a pin of the case's own, by a letter: a and b are two
// capabilities; "a version" and "a digest" are a with another contract version
// and with another content.
func (x *trial) capability(name string) supervisor.CapabilityPin {
	letter, other, _ := strings.Cut(name, " ")
	pin := supervisor.CapabilityPin{ID: "capability " + letter + " of " + x.tenant, ContractVersion: "1", ContentDigest: "digest"}
	switch other {
	case "version":
		pin.ContractVersion = "2"
	case "digest":
		pin.ContentDigest = "other digest"
	}
	return pin
}

func (x *trial) capabilities() []supervisor.CapabilityPin {
	return []supervisor.CapabilityPin{x.capability("a"), x.capability("b"), x.capability("a version"), x.capability("a digest")}
}

// effect is an intent of capability a that may not be repeated without proof;
// the commit that makes it fills in the rest.
func (x *trial) effect(id string, changes ...func(*supervisor.ActionIntent)) supervisor.ActionIntent {
	intent := supervisor.ActionIntent{
		ID: id, Capability: x.capability("a"), IdempotencyKey: "key of " + id, State: supervisor.ActionPrepared,
		Input: json.RawMessage(`{"amount":1}`), Effect: supervisor.EffectExternalWrite, RetryClass: supervisor.IdempotencyNone,
	}
	for _, change := range changes {
		change(&intent)
	}
	return intent
}

// Changes of an effect.

func confirmed(i *supervisor.ActionIntent) { i.RequiresConfirmation = true }
func native(i *supervisor.ActionIntent)    { i.RetryClass = supervisor.IdempotencyNative }
func reading(i *supervisor.ActionIntent)   { i.Effect = supervisor.EffectRead }

func until(at time.Time) func(*supervisor.ActionIntent) {
	return func(i *supervisor.ActionIntent) { i.Deadline = at }
}

func of(pin supervisor.CapabilityPin) func(*supervisor.ActionIntent) {
	return func(i *supervisor.ActionIntent) { i.Capability = pin }
}

func scoped(resource string) func(*supervisor.ActionIntent) {
	return func(i *supervisor.ActionIntent) { i.ResourceScopeID = resource }
}

// actor is an instance that may use the case's capabilities.
func (x *trial) actor(id string) supervisor.Instance {
	instance := x.instance(id)
	instance.CapabilityPins = x.capabilities()
	return instance
}

// plan starts an instance, has it commit intents and leaves it waiting.
func (x *trial) plan(id string, intents ...supervisor.ActionIntent) {
	x.Helper()
	x.planBy(x.actor(id), supervisor.Continue{Delay: far}, intents...)
}

func (x *trial) planBy(instance supervisor.Instance, d supervisor.Disposition, intents ...supervisor.ActionIntent) {
	x.Helper()
	x.add(instance, time.Time{})
	item := x.woken(instance.ID)
	x.commitIntents(&item, d, intents...)
}

// commitIntents commits intents that it makes the item's own.
func (x *trial) commitIntents(item *supervisor.WorkItem, d supervisor.Disposition, intents ...supervisor.ActionIntent) {
	x.Helper()
	command := x.command(item, `{"planned":true}`, d)
	for _, intent := range intents {
		intent.TenantID, intent.InstanceID, intent.RunID = item.TenantID, item.ID, item.RunID
		intent.ControlEpochs, intent.LeaseEpoch, intent.ActionEpoch = item.ControlEpochs, item.LeaseVersion, item.StateVersion
		command.ActionIntents = append(command.ActionIntents, intent)
	}
	x.commit(item, command)
}

// wanted asks for intents of all the case's capabilities.
func (x *trial) wanted(limit int) supervisor.IntentClaimRequest {
	return supervisor.IntentClaimRequest{Capabilities: x.capabilities(), WorkerID: dispatcher, LeaseDuration: held, Limit: limit}
}

// claimIntents claims once.
func (x *trial) claimIntents(req supervisor.IntentClaimRequest) []supervisor.IntentWork {
	x.Helper()
	works, err := x.intents.ClaimIntents(x.ctx, req)
	x.check(err, "ClaimIntents")
	if len(works) > req.Limit {
		x.Fatalf("ClaimIntents with Limit %d returned %d intents", req.Limit, len(works))
	}
	return works
}

// take claims n intents, which are due or fall due soon.
func (x *trial) take(n int) []supervisor.IntentWork {
	x.Helper()
	return x.takeAs(n, x.wanted(n))
}

func (x *trial) takeAs(n int, req supervisor.IntentClaimRequest) []supervisor.IntentWork {
	x.Helper()
	var works []supervisor.IntentWork
	for end := time.Now().Add(patience); ; x.sleep(poll) {
		req.Limit = n - len(works)
		works = append(works, x.claimIntents(req)...)
		if len(works) >= n {
			return works
		}
		if time.Now().After(end) {
			x.Fatalf("%d intents are due or soon will be, but %v later only %d were claimed: %v", n, patience, len(works), intentIDs(works))
		}
	}
}

func (x *trial) takeOne() supervisor.IntentWork {
	x.Helper()
	return x.take(1)[0]
}

// takeTask is takeOne that checks what the intent is claimed for.
func (x *trial) takeTask(task supervisor.IntentTask) supervisor.IntentWork {
	x.Helper()
	work := x.takeOne()
	equal(x, "Task of "+work.Intent.ID, work.Task, task)
	return work
}

// takeShort is takeOne under the shortest lease.
func (x *trial) takeShort() supervisor.IntentWork {
	x.Helper()
	req := x.wanted(1)
	req.LeaseDuration = x.Lease
	return x.takeAs(1, req)[0]
}

// noIntent reports intents that were claimed though none is due.
func (x *trial) noIntent(because string, args ...any) {
	x.Helper()
	if works := x.claimIntents(x.wanted(10)); len(works) > 0 {
		x.Fatalf("claimed the intents %v, want none: %s", intentIDs(works), fmt.Sprintf(because, args...))
	}
}

func intentIDs(works []supervisor.IntentWork) []string {
	list := make([]string, len(works))
	for n := range works {
		list[n] = works[n].Intent.ID
	}
	return list
}

// mark marks an intent that has to be free to go.
func (x *trial) mark(work supervisor.IntentWork) supervisor.IntentWork {
	x.Helper()
	marked, err := x.intents.MarkIntent(x.ctx, &work)
	x.check(err, "MarkIntent of %q", work.Intent.ID)
	return marked
}

// refused reports a mark that is not refused for the cause.
func (x *trial) refused(work supervisor.IntentWork, cause supervisor.IntentCause) {
	x.Helper()
	_, err := x.intents.MarkIntent(x.ctx, &work)
	x.want(err, supervisor.ErrIntentRefused, "MarkIntent of %q", work.Intent.ID)
	if got := refusal(err); got != cause {
		x.Errorf("MarkIntent of %q: the cause is %q, want %q", work.Intent.ID, got, cause)
	}
	x.want(x.intents.RenewIntent(x.ctx, work.Lease(held)), supervisor.ErrLeaseLost, "RenewIntent after the mark was refused")
}

// handOff claims the one due intent and marks it.
func (x *trial) handOff() supervisor.IntentWork {
	x.Helper()
	return x.mark(x.takeTask(supervisor.IntentTaskDispatch))
}

// accept records a receipt that has to be taken.
func (x *trial) accept(work supervisor.IntentWork, receipt supervisor.Receipt) {
	x.Helper()
	x.check(x.intents.RecordReceipt(x.ctx, &work, receipt), "RecordReceipt for %q", work.Intent.ID)
}

// running is a receipt of work that is looked at again after a time.
func running(after time.Duration) supervisor.Receipt {
	return supervisor.Receipt{Reference: "ref", Report: supervisor.Report{Status: supervisor.ProviderRunning, After: after}}
}

// ended is a receipt of work that has ended.
func ended(status supervisor.ProviderStatus, output string) supervisor.Receipt {
	receipt := supervisor.Receipt{Reference: "ref", Report: supervisor.Report{Status: status}}
	if output != "" {
		receipt.Output = json.RawMessage(output)
	}
	return receipt
}

// settle stores an outcome that has to be taken.
func (x *trial) settle(work supervisor.IntentWork, settlement supervisor.Settlement) {
	x.Helper()
	x.check(x.intents.SettleIntent(x.ctx, &work, settlement), "SettleIntent of %q as %s", work.Intent.ID, settlement.State)
}

// Settlements.

func success(output string) supervisor.Settlement {
	s := supervisor.Settlement{State: supervisor.ActionSucceeded, Cause: supervisor.CauseReported, Proof: supervisor.ProofReported}
	if output != "" {
		s.Output = json.RawMessage(output)
	}
	return s
}

func failure(reason string) supervisor.Settlement {
	return supervisor.Settlement{
		State: supervisor.ActionRejected, Outcome: supervisor.OutcomeFailed, Cause: supervisor.CauseRefused,
		Proof: supervisor.ProofNotSent, Reason: reason,
	}
}

func retryIn(delay time.Duration) supervisor.Settlement {
	return supervisor.Settlement{State: supervisor.ActionRetryable, Proof: supervisor.ProofNotSent, Delay: delay}
}

func ambiguous() supervisor.Settlement {
	return supervisor.Settlement{State: supervisor.ActionUnknown, Cause: supervisor.CauseAmbiguous}
}

// giveIntentBack ends a lease that has to be held.
func (x *trial) giveIntentBack(work supervisor.IntentWork, release supervisor.IntentRelease) {
	x.Helper()
	x.check(x.intents.ReleaseIntent(x.ctx, &work, release), "ReleaseIntent of %q", work.Intent.ID)
}

// intentKey names an intent of the case's tenant.
func (x *trial) intentKey(instance, intent string) supervisor.IntentKey {
	return supervisor.IntentKey{TenantID: x.tenant, InstanceID: instance, IntentID: intent}
}

// listed reads what a filter selects.
func (x *trial) listed(filter supervisor.IntentFilter) []supervisor.IntentRecord {
	x.Helper()
	var records []supervisor.IntentRecord
	for record, err := range x.operator.ListIntents(x.ctx, filter) {
		x.check(err, "ListIntents of %+v", filter)
		records = append(records, record)
	}
	return records
}

// recordOf reads what is stored of an intent. ok is false for a queue that
// shows none.
func (x *trial) recordOf(key supervisor.IntentKey) (record supervisor.IntentRecord, ok bool) {
	x.Helper()
	if x.operator == nil {
		return record, false
	}
	for _, record := range x.listed(supervisor.IntentFilter{TenantID: key.TenantID, InstanceID: key.InstanceID}) {
		if record.Intent.ID == key.IntentID {
			return record, true
		}
	}
	x.Fatalf("ListIntents does not show the intent %+v", key)
	return record, false
}

// stands checks what is stored of an intent, where the queue shows it.
func (x *trial) stands(instance, intent string, check func(r *supervisor.IntentRecord)) {
	x.Helper()
	if record, ok := x.recordOf(x.intentKey(instance, intent)); ok {
		check(&record)
	}
}

// inState checks the state alone.
func (x *trial) inState(instance, intent string, state supervisor.ActionState) {
	x.Helper()
	x.stands(instance, intent, func(r *supervisor.IntentRecord) {
		equal(x, "the state of "+intent, r.Intent.State, state)
	})
}

// intentView is all that can be seen of an intent, for comparing what must not
// change; empty where the queue shows none.
func (x *trial) intentView(instance, intent string) string {
	x.Helper()
	record, ok := x.recordOf(x.intentKey(instance, intent))
	if !ok {
		return ""
	}
	text, err := json.Marshal(record)
	x.check(err, "encoding a record")
	return string(text)
}

func (x *trial) sameIntent(instance, intent, before, after string, args ...any) {
	x.Helper()
	if now := x.intentView(instance, intent); now != before {
		x.Errorf("after %s what is stored of %q changed from %s to %s", fmt.Sprintf(after, args...), intent, clip(before), clip(now))
	}
}

// woken claims an instance that is due, by an outcome or its start. Others that
// are due, too, are kept for later.
func (x *trial) woken(id string) supervisor.WorkItem {
	x.Helper()
	for {
		if item, ok := x.early[id]; ok {
			delete(x.early, id)
			return item
		}
		item := x.claimOne()
		if x.early == nil {
			x.early = map[string]supervisor.WorkItem{}
		}
		x.early[item.ID] = item
	}
}

// told reports an instance that was not woken to be told of exactly these
// outcomes, by one wakeup each. It consumes them and leaves the instance
// waiting.
func (x *trial) told(id string, results ...supervisor.ActionResult) {
	x.Helper()
	item := x.woken(id)
	x.tells(&item, results...)
	x.consume(&item, supervisor.Continue{Delay: far}, wakeupIDs(&item)...)
}

// tells checks the wakeups of an item.
func (x *trial) tells(item *supervisor.WorkItem, results ...supervisor.ActionResult) {
	x.Helper()
	want := make([]string, len(results))
	for n := range results {
		want[n] = wakeupOf(&results[n])
	}
	equalList(x, "the ids of the wakeups of "+item.ID, wakeupIDs(item), want)
	for n := range min(len(results), len(item.Wakeups)) {
		equal(x, "Kind of the wakeup", item.Wakeups[n].Kind, supervisor.WakeupKindAction)
		got, err := supervisor.ParseActionResult(&item.Wakeups[n])
		x.check(err, "ParseActionResult of %q", item.Wakeups[n].Payload)
		wanted := results[n]
		if wanted.Capability == (supervisor.CapabilityPin{}) {
			wanted.Capability = x.capability("a")
		}
		if !sameResult(got, wanted) {
			x.Errorf("the instance is told %+v with output %s, want %+v with output %s", got, clip(string(got.Output)), wanted, clip(string(wanted.Output)))
		}
	}
}

func wakeupOf(result *supervisor.ActionResult) string {
	if result.State == supervisor.ActionUnknown {
		return fmt.Sprintf("intent:%s:unknown:%d", result.IntentID, result.Attempt)
	}
	return "intent:" + result.IntentID + ":settled"
}

func sameResult(a, b supervisor.ActionResult) bool {
	return a.IntentID == b.IntentID && a.Capability == b.Capability && a.State == b.State && a.Outcome == b.Outcome &&
		a.Cause == b.Cause && a.Attempt == b.Attempt && a.Reason == b.Reason && bytes.Equal(compact(a.Output), compact(b.Output))
}

// compact drops the white space of JSON; nothing is null.
func compact(text json.RawMessage) []byte {
	var buffer bytes.Buffer
	if len(text) == 0 || json.Compact(&buffer, text) != nil {
		return []byte("null")
	}
	return buffer.Bytes()
}

// Results that are told.

// toldSuccess is the success of a first attempt.
func toldSuccess(id, output string) supervisor.ActionResult {
	return supervisor.ActionResult{
		IntentID: id, State: supervisor.ActionSucceeded, Outcome: supervisor.OutcomeSucceeded, Cause: supervisor.CauseReported,
		Attempt: 1, Output: json.RawMessage(output),
	}
}

func toldWithdrawn(id string, attempt int, cause supervisor.IntentCause) supervisor.ActionResult {
	return supervisor.ActionResult{
		IntentID: id, State: supervisor.ActionRejected, Outcome: supervisor.OutcomeWithdrawn, Cause: cause, Attempt: attempt,
	}
}

func toldUnknown(id string, attempt int) supervisor.ActionResult {
	return supervisor.ActionResult{
		IntentID: id, State: supervisor.ActionUnknown, Outcome: supervisor.OutcomeUnknown, Cause: supervisor.CauseAmbiguous, Attempt: attempt,
	}
}

// pause pauses a scope of the case's tenant; resume ends it.
func (x *trial) pause(scope supervisor.Scope) {
	x.Helper()
	x.check(x.Instances.Pause(x.ctx, scope), "Pause of %v", scope)
}

func (x *trial) resume(scope supervisor.Scope) {
	x.Helper()
	x.check(x.Instances.Resume(x.ctx, scope), "Resume of %v", scope)
}
