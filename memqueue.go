package supervisor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// MemoryWorkQueue is a complete queue in memory: a [WorkQueue] with the client
// side of [Instances] and the abilities [Releaser], [Waiter] and
// [CommitKeeper], and an [IntentQueue] with the abilities [IntentWaiter] and
// [IntentOperator]. It takes its time from [time.Now], so that it runs under
// testing/synctest, and starts no goroutines. It also records what was
// committed and renewed, for tests to look at.
//
// The zero value is an empty queue. Its methods may be called by many
// goroutines at once; they share no memory with their callers, and none but
// WaitDue and WaitIntents blocks for longer than its own work. What it holds goes with the
// process.
type MemoryWorkQueue struct {
	// Admit decides whether a claimed item may be evaluated; nil admits all. An
	// error refuses. Set it before the queue is used: it is called by many
	// goroutines at once, without any lock of the queue.
	Admit func(*WorkItem) error

	mu       sync.Mutex
	tenants  map[string]*memTenant
	schedule memSchedule
	intents  memIntentSchedule
	// leases orders leased rows by the end of their lease.
	leases  memHeap[memRow]
	waiters map[*memWaiter]struct{}
	// spareLeases are used again: every claim needs one for as long as it is held.
	spareLeases []*memLease

	commits  journal[committed]
	renewals journal[Renewal]
}

var (
	_ WorkQueue    = (*MemoryWorkQueue)(nil)
	_ Instances    = (*MemoryWorkQueue)(nil)
	_ Releaser     = (*MemoryWorkQueue)(nil)
	_ Waiter       = (*MemoryWorkQueue)(nil)
	_ CommitKeeper = (*MemoryWorkQueue)(nil)

	_ IntentQueue    = (*MemoryWorkQueue)(nil)
	_ IntentWaiter   = (*MemoryWorkQueue)(nil)
	_ IntentOperator = (*MemoryWorkQueue)(nil)
)

// Commit is a command that was applied and the item that it was made for.
type Commit struct {
	Item    WorkItem
	Command TransitionCommand
}

// Renewal is a lease that was extended.
type Renewal struct {
	TenantID, InstanceID, WorkerID string
	LeaseVersion                   int64
}

// NewMemoryWorkQueue returns a queue that holds the items, as if pushed one
// after the other.
func NewMemoryWorkQueue(items ...WorkItem) *MemoryWorkQueue {
	q := new(MemoryWorkQueue)
	for n := range items {
		q.Push(items[n])
	}
	return q
}

// Push adds an instance as it stands: due at its ScheduledAt (zero: now), with
// its versions, epochs, attempt and wakeups, which are due with it. The claim
// adds one to its lease version. It replaces an instance with the same tenant
// and id; whoever holds that is refused unless the versions are equal. Nothing is
// validated, so that tests can queue what no other queue would take.
func (q *MemoryWorkQueue) Push(item WorkItem) {
	item = item.Clone()
	item.Instance = *copyInstance(&item.Instance)
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.now()
	if row := q.row(item.TenantID, item.ID); row != nil {
		q.drop(row, now)
	}
	tenant := q.tenant(item.TenantID)
	row := newRow(&item.Instance, now)
	row.epochs = ControlEpochs{
		Tenant:   item.ControlEpochs.Tenant - tenant.epoch,
		Instance: item.ControlEpochs.Instance,
		Resource: item.ControlEpochs.Resource - tenant.resourceEpoch,
	}
	if len(item.State) > 0 {
		row.state = item.State
	}
	row.stateVersion = item.StateVersion
	row.leaseVersion = item.LeaseVersion
	if !item.CreatedAt.IsZero() {
		row.record.CreatedAt = instant(item.CreatedAt)
	}
	row.record.CancelRequested = item.CancelRequested
	row.record.Attempt = item.Attempt
	due := now
	if !item.ScheduledAt.IsZero() {
		due = instant(item.ScheduledAt)
	}
	for n := range item.Wakeups {
		row.deliver(item.Wakeups[n], item.Wakeups[n].Digest(), due)
	}
	q.add(tenant, row, row.record.NextDue(&item.Lifecycle, due, time.Time{}), now)
}

// now is the queue's clock: UTC, and without the monotonic reading, so that
// instants compare and encode alike wherever they come from.
func (q *MemoryWorkQueue) now() time.Time { return instant(time.Now()) }

func instant(t time.Time) time.Time { return t.UTC().Round(0) }

// Committed returns what was committed since the last [MemoryWorkQueue.ClearHistory],
// in the order of the commits. Repeats that changed nothing are not in it.
func (q *MemoryWorkQueue) Committed() []Commit {
	q.mu.Lock()
	chunks := q.commits.snapshot()
	q.mu.Unlock()
	commits := make([]Commit, 0, count(chunks))
	for _, chunk := range chunks {
		for n := range chunk {
			commits = append(commits, chunk[n].copy())
		}
	}
	return commits
}

// Renewals returns the renewals since the last [MemoryWorkQueue.ClearHistory],
// in order; those that were refused are not in it.
func (q *MemoryWorkQueue) Renewals() []Renewal {
	q.mu.Lock()
	chunks := q.renewals.snapshot()
	q.mu.Unlock()
	return slices.Concat(chunks...)
}

// ClearHistory forgets what Committed and Renewals return, and frees it. The
// instances and their events stay.
func (q *MemoryWorkQueue) ClearHistory() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.commits, q.renewals = journal[committed]{}, journal[Renewal]{}
}

// AdmitEvaluation asks Admit. Its error is [ErrNotAdmitted] whatever else it
// is, unless it is [ErrUnavailable].
func (q *MemoryWorkQueue) AdmitEvaluation(ctx context.Context, item *WorkItem) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if q.Admit == nil {
		return nil
	}
	err := q.Admit(item)
	if err == nil || errors.Is(err, ErrNotAdmitted) || errors.Is(err, ErrUnavailable) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrNotAdmitted, err)
}
