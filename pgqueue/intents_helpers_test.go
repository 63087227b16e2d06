package pgqueue

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/workflow-supervisor/supervisor"
)

var testPin = supervisor.CapabilityPin{ID: "capability", ContractVersion: "1", ContentDigest: "digest"}

func pin(id string) supervisor.CapabilityPin {
	return supervisor.CapabilityPin{ID: id, ContractVersion: "1", ContentDigest: "digest"}
}

// intentOf is an intent of a claimed item.
func intentOf(item *supervisor.WorkItem, id string, change ...func(i *supervisor.ActionIntent)) supervisor.ActionIntent {
	i := supervisor.ActionIntent{
		ID: id, TenantID: item.TenantID, InstanceID: item.ID, RunID: item.RunID, Capability: testPin,
		IdempotencyKey: item.ID + " " + id, State: supervisor.ActionPrepared, Input: rawJSON(`{"n":1}`),
		Effect: supervisor.EffectExternalWrite, RetryClass: supervisor.IdempotencyNone, ControlEpochs: item.ControlEpochs,
		LeaseEpoch: item.LeaseVersion, ActionEpoch: item.StateVersion,
	}
	for _, change := range change {
		change(&i)
	}
	return i
}

func native(i *supervisor.ActionIntent) { i.RetryClass = supervisor.IdempotencyNative }

func of(id string) func(i *supervisor.ActionIntent) {
	return func(i *supervisor.ActionIntent) { i.Capability = pin(id) }
}

func on(resourceID string) func(i *supervisor.ActionIntent) {
	return func(i *supervisor.ActionIntent) { i.ResourceScopeID = resourceID }
}

// prepare starts an instance of a tenant that has committed intents and is due
// again in an hour.
func prepare(t testing.TB, q *Queue, tenantID, id string, intents ...func(item *supervisor.WorkItem) supervisor.ActionIntent) supervisor.WorkItem {
	t.Helper()
	ctx := context.Background()
	i := instance(t, id)
	i.TenantID, i.SpecID = tenantID, tenantID+" "+id
	i.CapabilityPins = []supervisor.CapabilityPin{testPin, pin("a"), pin("b"), pin("c")}
	_, err := q.Start(ctx, i, zero)
	require.NoError(t, err)
	item := claimOf(t, q, i.SpecID)
	c := command(t, &item, later1h)
	for _, intent := range intents {
		c.ActionIntents = append(c.ActionIntents, intent(&item))
	}
	require.NoError(t, q.CommitCommand(ctx, &item, &c))
	return item
}

// made returns a maker of an intent for prepare.
func made(id string, change ...func(i *supervisor.ActionIntent)) func(item *supervisor.WorkItem) supervisor.ActionIntent {
	return func(item *supervisor.WorkItem) supervisor.ActionIntent { return intentOf(item, id, change...) }
}

// madeMany returns makers of n intents.
func madeMany(n int, change ...func(i *supervisor.ActionIntent)) []func(item *supervisor.WorkItem) supervisor.ActionIntent {
	many := make([]func(item *supervisor.WorkItem) supervisor.ActionIntent, n)
	for n := range many {
		many[n] = made("intent-"+strconv.Itoa(n), change...)
	}
	return many
}

func intentRequest(limit int, capabilities ...string) supervisor.IntentClaimRequest {
	req := supervisor.IntentClaimRequest{WorkerID: "dispatcher", LeaseDuration: testLease, Limit: limit}
	for _, id := range capabilities {
		req.Capabilities = append(req.Capabilities, pin(id))
	}
	return req
}

func claimIntents(t testing.TB, q *Queue, req supervisor.IntentClaimRequest) []supervisor.IntentWork {
	t.Helper()
	works, err := q.ClaimIntents(context.Background(), req)
	require.NoError(t, err)
	return works
}

func claimIntent(t testing.TB, q *Queue) supervisor.IntentWork {
	t.Helper()
	works := claimIntents(t, q, intentRequest(1))
	require.Len(t, works, 1)
	return works[0]
}

func mark(t testing.TB, q *Queue, work supervisor.IntentWork) supervisor.IntentWork {
	t.Helper()
	marked, err := q.MarkIntent(context.Background(), &work)
	require.NoError(t, err)
	return marked
}

func intentIDs(works []supervisor.IntentWork) []string {
	list := make([]string, len(works))
	for n := range works {
		list[n] = works[n].Intent.ID
	}
	return list
}

// record reads one intent.
func record(t testing.TB, q *Queue, key supervisor.IntentKey) supervisor.IntentRecord {
	t.Helper()
	for r, err := range q.ListIntents(context.Background(), supervisor.IntentFilter{TenantID: key.TenantID, InstanceID: key.InstanceID}) {
		require.NoError(t, err)
		if r.Intent.ID == key.IntentID {
			return r
		}
	}
	require.Fail(t, "no such intent", "%v", key)
	return supervisor.IntentRecord{}
}

// results are the wakeups by which an instance was told of its intents.
func results(t testing.TB, q *Queue, item *supervisor.WorkItem) []supervisor.ActionResult {
	t.Helper()
	claimed := claimOf(t, q, item.SpecID)
	var list []supervisor.ActionResult
	for n := range claimed.Wakeups {
		result, err := supervisor.ParseActionResult(&claimed.Wakeups[n])
		require.NoError(t, err)
		list = append(list, result)
	}
	require.NoError(t, q.Release(context.Background(), &claimed, "looked"))
	return list
}

func succeeded() supervisor.Settlement {
	return supervisor.Settlement{State: supervisor.ActionSucceeded, Cause: supervisor.CauseReported, Output: rawJSON(`{"html":"<&>","n":9007199254740993}`)}
}

func withTimeout(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// errorsAs finds an error of a type.
func errorsAs[E error](err error) (found E, ok bool) {
	ok = errors.As(err, &found)
	return found, ok
}
