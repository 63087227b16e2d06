package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// MemoryWorkQueue is a complete queue in memory: a [WorkQueue] with the client
// side of [Instances] and the abilities [Releaser], [Waiter] and
// [CommitKeeper]. It takes its time from [time.Now], so that it runs under
// testing/synctest, and starts no goroutines. It also records what was
// committed and renewed, for tests to look at.
//
// The zero value is an empty queue. Its methods may be called by many
// goroutines at once; they share no memory with their callers, and none but
// WaitDue blocks for longer than its own work. What it holds goes with the
// process.
type MemoryWorkQueue struct {
	// Admit decides whether a claimed item may be evaluated; nil admits all. An
	// error refuses. Set it before the queue is used: it is called by many
	// goroutines at once, without any lock of the queue.
	Admit func(*WorkItem) error

	mu       sync.Mutex
	tenants  map[string]*memTenant
	schedule memSchedule
	// leases orders leased rows by the end of their lease.
	leases  memHeap[memRow]
	waiters map[*memWaiter]struct{}

	commits  journal[committed]
	renewals journal[Renewal]
}

var (
	_ WorkQueue    = (*MemoryWorkQueue)(nil)
	_ Instances    = (*MemoryWorkQueue)(nil)
	_ Releaser     = (*MemoryWorkQueue)(nil)
	_ Waiter       = (*MemoryWorkQueue)(nil)
	_ CommitKeeper = (*MemoryWorkQueue)(nil)
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

// memTenant is everything of one tenant.
type memTenant struct {
	id   string
	rows map[string]*memRow
	// lanes are the tenant's by spec id, awake those of them that take part in
	// turns, by first due time.
	lanes map[string]*memLane
	awake memHeap[memLane]
	// served is the turn in which the tenant was served last; 0 for never.
	served uint64

	paused bool
	epoch  int64
	// resourceEpoch counts pauses of resources.
	resourceEpoch int64
	resources     map[string]memResource
	revisions     map[memRevisionKey]memRevision
}

// memResource is a resource that was paused at least once.
type memResource struct {
	epoch  int64
	paused bool
}

// memRow is one instance.
type memRow struct {
	// instance is never changed: commits that were recorded point at it, too.
	instance *Instance
	tenant   *memTenant
	lane     *memLane
	record   Record

	// epochs.Instance is the instance's own. The others are what an instance
	// was pushed with beyond its tenant's, which is nothing for any other.
	epochs ControlEpochs
	paused bool
	// state is replaced by commits, never written to.
	state        json.RawMessage
	stateVersion int64

	// due is when the row falls due, seq orders equal instants, place is where
	// it waits for it.
	due   time.Time
	seq   uint64
	place int32

	leaseVersion int64
	// lease is the latest acquisition until it is committed or given back, also
	// when it has ended; nil for none.
	lease *memLease
	// latest is what the last commit was known by.
	latest memDelivery

	lastError, releaseReason string
	failureClass             FailureClass

	firstEvent, lastEvent *memEvent
	// mail and intents are nil until there are any.
	mail    *mailbox
	intents *memIntents
}

// memLease is one acquisition of a row.
type memLease struct {
	worker         string
	end, claimedAt time.Time
	epochs         ControlEpochs
	place          int32 // in leases; outside once it has ended
}

// memDelivery is the latest delivery key of an instance.
type memDelivery struct {
	key, digest string
	// from is the state version that the command was made for.
	from int64
	// kept is the lease version under which the claim was kept, 0 for none.
	kept int64
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
// its versions, epochs, attempt and wakeups, which are due with it. The claim adds one to
// its lease version. It replaces an instance with the same tenant and id, whose
// holder has then lost its lease. Nothing is validated, so that tests can queue
// what no other queue would take.
func (q *MemoryWorkQueue) Push(item WorkItem) {
	stored := item.Clone()
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.now()
	if row := q.row(item.TenantID, item.ID); row != nil {
		q.drop(row)
	}
	tenant := q.tenant(item.TenantID)
	row := &memRow{
		instance: &stored.Instance,
		record:   NewRecord(now),
		epochs: ControlEpochs{
			Tenant:   item.ControlEpochs.Tenant - tenant.epoch,
			Instance: item.ControlEpochs.Instance,
			Resource: item.ControlEpochs.Resource - tenant.resourceEpoch,
		},
		state:        stored.State,
		stateVersion: item.StateVersion,
		leaseVersion: item.LeaseVersion,
	}
	if len(row.state) == 0 {
		row.state = stored.Config
	}
	if !item.CreatedAt.IsZero() {
		row.record.CreatedAt = instant(item.CreatedAt)
	}
	row.record.CancelRequested = item.CancelRequested
	row.record.Attempt = item.Attempt
	due := now
	if !item.ScheduledAt.IsZero() {
		due = instant(item.ScheduledAt)
	}
	for n := range stored.Wakeups {
		row.deliver(stored.Wakeups[n], stored.Wakeups[n].Digest(), due)
	}
	q.add(tenant, row, row.record.NextDue(&stored.Lifecycle, due, time.Time{}), now)
}

// now is the queue's clock: UTC, and without the monotonic reading, so that
// instants compare and encode alike wherever they come from.
func (q *MemoryWorkQueue) now() time.Time { return instant(time.Now()) }

func instant(t time.Time) time.Time { return t.UTC().Round(0) }

// tenant returns a tenant, which it adds where it is new.
func (q *MemoryWorkQueue) tenant(id string) *memTenant {
	tenant := q.tenants[id]
	if tenant == nil {
		tenant = &memTenant{id: id, rows: make(map[string]*memRow)}
		if q.tenants == nil {
			q.tenants = make(map[string]*memTenant)
		}
		q.tenants[id] = tenant
	}
	return tenant
}

// row returns an instance, nil where there is none.
func (q *MemoryWorkQueue) row(tenantID, instanceID string) *memRow {
	if tenant := q.tenants[tenantID]; tenant != nil {
		return tenant.rows[instanceID]
	}
	return nil
}

// add adds a row that is due at an instant.
func (q *MemoryWorkQueue) add(tenant *memTenant, row *memRow, due, now time.Time) {
	row.tenant = tenant
	row.lane = q.schedule.join(tenant, row.instance.SpecID)
	tenant.rows[row.instance.ID] = row
	q.reschedule(row, due, now)
}

// drop removes a row with everything that belongs to it, and its tenant with
// the last row unless there is something to remember of it.
func (q *MemoryWorkQueue) drop(row *memRow) {
	if row.lease != nil {
		q.leases.remove(&row.lease.place)
	}
	q.schedule.leave(row)
	tenant := row.tenant
	delete(tenant.rows, row.instance.ID)
	if len(tenant.rows) == 0 && tenant.epoch == 0 && tenant.resourceEpoch == 0 && len(tenant.revisions) == 0 {
		delete(q.tenants, tenant.id)
	}
}

// reschedule sets a row's due time; it goes behind those that are due at the
// same instant.
func (q *MemoryWorkQueue) reschedule(row *memRow, due, now time.Time) {
	row.due = due
	q.schedule.seq++
	row.seq = q.schedule.seq
	q.place(row, now)
}

// place lets a row wait where it may be claimed, and nowhere else. Everything
// that bears on that calls it afterwards: status, lease, pause and due time.
func (q *MemoryWorkQueue) place(row *memRow, now time.Time) {
	if row.record.Status != StatusActive || row.paused || row.leased() {
		q.schedule.remove(row)
		return
	}
	q.schedule.put(row)
	if !row.tenant.paused {
		q.announce(row.lane.spec, row.due, now)
	}
}

// leased reports whether a lease keeps the row from being claimed.
func (r *memRow) leased() bool { return r.lease != nil && r.lease.place != 0 }

// controlEpochs are the epochs that a claim captures.
func (r *memRow) controlEpochs() ControlEpochs {
	return ControlEpochs{
		Tenant:   r.tenant.epoch + r.epochs.Tenant,
		Instance: r.epochs.Instance,
		Resource: r.tenant.resourceEpoch + r.epochs.Resource,
	}
}

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

// journal is a list that only grows, in chunks, so that growing never copies
// what is there and a reader needs no lock for what it has seen.
type journal[T any] struct {
	chunks [][]T
}

// Chunks double from the first size, so that a short list takes little, up to
// the largest.
const (
	firstJournalChunk   = 8
	largestJournalChunk = 256
)

// next appends a zero entry, for the caller to fill before it unlocks.
func (j *journal[T]) next() *T {
	last := len(j.chunks) - 1
	if last < 0 || len(j.chunks[last]) == cap(j.chunks[last]) {
		size := firstJournalChunk
		if last >= 0 {
			size = min(2*cap(j.chunks[last]), largestJournalChunk)
		}
		j.chunks = append(j.chunks, make([]T, 0, size))
		last++
	}
	chunk := &j.chunks[last]
	*chunk = (*chunk)[:len(*chunk)+1]
	return &(*chunk)[len(*chunk)-1]
}

func (j *journal[T]) snapshot() [][]T { return slices.Clone(j.chunks) }

func count[T any](chunks [][]T) int {
	n := 0
	for _, chunk := range chunks {
		n += len(chunk)
	}
	return n
}
