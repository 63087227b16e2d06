package supervisor

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
)

// scriptQueue is a queue that hands out what it was given, records every call
// with its time and the state of its context, and does what its functions say.
type scriptQueue struct {
	items    []WorkItem
	onClaim  func(ctx context.Context, req ClaimRequest) ([]WorkItem, error) // nil: hand out items
	onLoad   func(ctx context.Context, item *WorkItem) (*Revision, error)
	onAdmit  func(ctx context.Context, item *WorkItem) error
	onRenew  func(ctx context.Context, lease Lease) error
	onCommit func(ctx context.Context, item *WorkItem, command *TransitionCommand) error

	mu      sync.Mutex
	claims  []claimCall
	renews  []renewCall
	commits []commitCall
}

type claimCall struct {
	at  time.Time
	req ClaimRequest
}

type renewCall struct {
	startAt, endAt time.Time
	lease          Lease
	err            error
}

type commitCall struct {
	startAt, endAt time.Time
	item           WorkItem
	command        TransitionCommand
	ctxErr         error
	hasDeadline    bool
	err            error
}

func (q *scriptQueue) ClaimDue(ctx context.Context, req ClaimRequest) ([]WorkItem, error) {
	q.mu.Lock()
	q.claims = append(q.claims, claimCall{time.Now(), req})
	if q.onClaim != nil {
		q.mu.Unlock()
		return q.onClaim(ctx, req)
	}
	defer q.mu.Unlock()
	n := min(req.Limit, len(q.items))
	claimed := q.items[:n:n]
	q.items = q.items[n:]
	return slices.Clone(claimed), nil
}

func (q *scriptQueue) LoadRevision(ctx context.Context, item *WorkItem) (*Revision, error) {
	if q.onLoad != nil {
		return q.onLoad(ctx, item)
	}
	return nil, ErrRevisionUnavailable
}

func (q *scriptQueue) AdmitEvaluation(ctx context.Context, item *WorkItem) error {
	if q.onAdmit != nil {
		return q.onAdmit(ctx, item)
	}
	return nil
}

func (q *scriptQueue) Renew(ctx context.Context, lease Lease) (err error) {
	q.mu.Lock()
	n := len(q.renews)
	q.renews = append(q.renews, renewCall{startAt: time.Now(), lease: lease})
	q.mu.Unlock()
	defer func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.renews[n].endAt, q.renews[n].err = time.Now(), err
	}()
	if q.onRenew != nil {
		return q.onRenew(ctx, lease)
	}
	return nil
}

func (q *scriptQueue) CommitCommand(ctx context.Context, item *WorkItem, command *TransitionCommand) (err error) {
	_, hasDeadline := ctx.Deadline()
	q.mu.Lock()
	n := len(q.commits)
	q.commits = append(q.commits, commitCall{
		startAt: time.Now(), item: item.Clone(), command: command.Clone(), ctxErr: ctx.Err(), hasDeadline: hasDeadline,
	})
	q.mu.Unlock()
	defer func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.commits[n].endAt, q.commits[n].err = time.Now(), err
	}()
	if q.onCommit != nil {
		return q.onCommit(ctx, item, command)
	}
	return nil
}

// commitsOf returns the commits for an instance, in order.
func (q *scriptQueue) commitsOf(id string) []commitCall {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(q.commits), func(c commitCall) bool { return c.item.ID != id })
}

// testItem is a valid claimed item.
func testItem(id string) WorkItem {
	return WorkItem{
		Instance: Instance{
			ID: id, RunID: uuid.NewString(), TenantID: "t1", SubjectID: "s1", SpecID: "spec", DefinitionID: "def",
			WorkflowRevision: 1, WorkflowRevisionDigest: "wd",
			ExecutionProfileID: "p", ExecutionProfileRevision: 1, ExecutionProfileDigest: "pd",
			KernelABIVersion: "1", Config: []byte(`{}`),
		},
		ScheduledAt: time.Now().UTC(), CreatedAt: time.Now().UTC(), ClaimedAt: time.Now().UTC(),
		State: []byte(`{}`), LeaseVersion: 1,
	}
}

func testItems(n int) []WorkItem {
	items := make([]WorkItem, n)
	for i := range items {
		items[i] = testItem(fmt.Sprintf("inst-%d", i+1))
	}
	return items
}

// testDriver serves one spec at every revision.
type testDriver struct {
	spec     string
	evaluate func(ctx context.Context, item *WorkItem) (TransitionCommand, error)
	supports func(item *WorkItem) bool // nil: all
}

func (d *testDriver) Name() string         { return "driver of " + d.spec }
func (d *testDriver) SpecIDs() []string    { return []string{d.spec} }
func (d *testDriver) ValidateSpecs() error { return nil }
func (d *testDriver) SupportsRevision(item *WorkItem) bool {
	return d.supports == nil || d.supports(item)
}
func (d *testDriver) Evaluate(ctx context.Context, _ struct{}, item *WorkItem) (TransitionCommand, error) {
	return d.evaluate(ctx, item)
}

// testRegistry serves "spec" with a function.
func testRegistry(evaluate func(ctx context.Context, item *WorkItem) (TransitionCommand, error)) *DriverRegistry[struct{}] {
	registry := NewDriverRegistry[struct{}]()
	if err := registry.Register(&testDriver{spec: "spec", evaluate: evaluate}); err != nil {
		panic(err)
	}
	return registry
}

func noContext(context.Context) (struct{}, error) { return struct{}{}, nil }

// completed is a valid command that ends the item.
func completed(item *WorkItem) (TransitionCommand, error) {
	return NewCommand(item, "test.done", nil, map[string]bool{"done": true}, Complete{})
}
