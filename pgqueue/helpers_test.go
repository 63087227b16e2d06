package pgqueue

import (
	"context"
	"errors"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/workflow-supervisor/supervisor"
)

// longVariable makes tests that repeat chances take more of them.
const longVariable = "SUPERVISOR_TEST_LONG"

// repeats returns one of two numbers, the second where time is no matter.
func repeats(usual, long int) int {
	if os.Getenv(longVariable) != "" {
		return long
	}
	return usual
}

// zero is the instant that means now.
var zero time.Time

const (
	testTenant = supervisor.DefaultTenantID
	testSpec   = "spec"
	testLease  = time.Minute
)

func instance(t testing.TB, id string) supervisor.Instance {
	t.Helper()
	i, err := supervisor.NewInstance(testSpec, 1, map[string]int{"config": 1})
	require.NoError(t, err)
	i.ID = id
	i.CapabilityPins = []supervisor.CapabilityPin{{ID: "capability", ContractVersion: "1", ContentDigest: "digest"}}
	return i
}

// start starts an instance that is due now.
func start(t testing.TB, q *Queue, id string) supervisor.Instance {
	t.Helper()
	i := instance(t, id)
	started, err := q.Start(context.Background(), i, zero)
	require.NoError(t, err)
	require.True(t, started)
	return i
}

func request(limit int) supervisor.ClaimRequest {
	return supervisor.ClaimRequest{WorkerID: "worker", LeaseDuration: testLease, Limit: limit}
}

func claim(t testing.TB, q *Queue, limit int) []supervisor.WorkItem {
	t.Helper()
	items, err := q.ClaimDue(context.Background(), request(limit))
	require.NoError(t, err)
	return items
}

func claimOne(t testing.TB, q *Queue) supervisor.WorkItem {
	t.Helper()
	items := claim(t, q, 1)
	require.Len(t, items, 1)
	return items[0]
}

func ids(items []supervisor.WorkItem) []string {
	list := make([]string, len(items))
	for n := range items {
		list[n] = items[n].ID
	}
	return list
}

var (
	complete supervisor.Disposition = supervisor.Complete{}
	again    supervisor.Disposition = supervisor.Continue{}
	later1h  supervisor.Disposition = supervisor.Continue{Delay: time.Hour}
)

// command is a transition of an item to a state that counts its transitions.
func command(t testing.TB, item *supervisor.WorkItem, d supervisor.Disposition) supervisor.TransitionCommand {
	t.Helper()
	step := rawJSON(`{"step":` + strconv.FormatInt(item.StateVersion+1, 10) + `}`)
	c, err := supervisor.NewCommand(item, "stepped", step, step, d)
	require.NoError(t, err)
	return c
}

func commit(t testing.TB, q *Queue, item *supervisor.WorkItem, d supervisor.Disposition) error {
	t.Helper()
	c := command(t, item, d)
	return q.CommitCommand(context.Background(), item, &c)
}

func note(id string) supervisor.Wakeup {
	return supervisor.Wakeup{ID: id, Kind: "note", Payload: rawJSON(`{"note":1}`)}
}

func deliver(t testing.TB, q *Queue, instanceID, id string) {
	t.Helper()
	require.NoError(t, q.Deliver(context.Background(), testTenant, instanceID, note(id), zero))
}

func get(t testing.TB, q *Queue, id string) supervisor.Snapshot {
	t.Helper()
	snapshot, err := q.Get(context.Background(), testTenant, id)
	require.NoError(t, err)
	return snapshot
}

func getOf(t testing.TB, q *Queue, tenantID, id string) supervisor.Snapshot {
	t.Helper()
	snapshot, err := q.Get(context.Background(), tenantID, id)
	require.NoError(t, err)
	return snapshot
}

// claimOf claims the one due instance of a spec.
func claimOf(t testing.TB, q *Queue, specID string) supervisor.WorkItem {
	t.Helper()
	req := request(1)
	req.SpecIDs = []string{specID}
	items, err := q.ClaimDue(context.Background(), req)
	require.NoError(t, err)
	require.Len(t, items, 1)
	return items[0]
}

func history(t testing.TB, q *Queue, id string) []supervisor.Event {
	t.Helper()
	var events []supervisor.Event
	for event, err := range q.History(context.Background(), testTenant, id) {
		require.NoError(t, err)
		events = append(events, event)
	}
	return events
}

// execute runs a statement on the queue's schema.
func execute(t testing.TB, q *Queue, sql string, parameters ...any) {
	t.Helper()
	_, err := q.pool.Exec(context.Background(), q.store.text(sql), parameters...)
	require.NoError(t, err)
}

// number asks for one number.
func number(t testing.TB, q *Queue, sql string, parameters ...any) (n int64) {
	t.Helper()
	require.NoError(t, q.pool.QueryRow(context.Background(), q.store.text(sql), parameters...).Scan(&n))
	return n
}

// errorsIs is errors.Is, for goroutines that cannot require.
func errorsIs(err, target error) bool { return errors.Is(err, target) }
