package supervisor_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"slices"
	"sync"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

// listQueue is a queue of your own: a list under a lock. Where a database has
// rows, it has listRows; where a database has a transaction, it holds the lock.
// What it decides, it decides with the library's own rules.
type listQueue struct {
	supervisor.FailClosed // it publishes no revisions

	mu     sync.Mutex
	rows   []*listRow
	served map[string]int // by tenant: the turn in which it was served last
	turn   int
}

type listRow struct {
	item    supervisor.WorkItem // as the next claim hands it out, but for its wakeups
	record  supervisor.Record
	wakeups []listWakeup
	due     time.Time

	owner     string // of the lease; empty for none
	leaseEnds time.Time
	claimed   supervisor.ControlEpochs // what the latest claim captured

	key, digest string // of the latest command, which was made for state version from
	from        int64
	intents     []string
}

type listWakeup struct {
	supervisor.Wakeup
	due     time.Time
	claimed int64 // the lease version of the latest claim that held it
}

// Add stores an instance that is due at its ScheduledAt.
func (q *listQueue) Add(_ context.Context, item supervisor.WorkItem) error {
	if err := item.Validate(); err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.find(item.TenantID, item.ID) != nil {
		return errors.New("the instance is there already")
	}
	now := time.Now().UTC()
	row := &listRow{item: item.Clone(), record: supervisor.NewRecord(now)}
	row.item.CreatedAt, row.item.State = now, row.item.Config
	if item.ScheduledAt.IsZero() {
		row.item.ScheduledAt = now
	}
	for _, wakeup := range row.item.Wakeups {
		row.wakeups = append(row.wakeups, listWakeup{Wakeup: wakeup, due: row.item.ScheduledAt})
	}
	row.due = row.record.NextDue(&row.item.Lifecycle, row.item.ScheduledAt, time.Time{})
	q.rows = append(q.rows, row)
	return nil
}

// ClaimDue takes the row that is due first of the tenant whose turn it is, as
// often as it may. The list is kept in order of due time.
func (q *listQueue) ClaimDue(ctx context.Context, req supervisor.ClaimRequest) ([]supervisor.WorkItem, error) {
	if err := errors.Join(ctx.Err(), req.Validate()); err != nil {
		return nil, err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now().UTC()
	slices.SortStableFunc(q.rows, func(a, b *listRow) int { return a.due.Compare(b.due) })
	var items []supervisor.WorkItem
	for len(items) < req.Limit {
		var next *listRow
		for _, row := range q.rows {
			wanted := len(req.SpecIDs) == 0 || slices.Contains(req.SpecIDs, row.item.SpecID)
			if wanted && row.dueAt(now) && (next == nil || q.served[row.item.TenantID] < q.served[next.item.TenantID]) {
				next = row
			}
		}
		if next == nil {
			break
		}
		q.turn++
		if q.served == nil {
			q.served = make(map[string]int)
		}
		q.served[next.item.TenantID] = q.turn
		items = append(items, next.claim(req, now))
	}
	return items, nil
}

func (r *listRow) dueAt(now time.Time) bool {
	return r.record.Status == supervisor.StatusActive && !r.due.After(now) && (r.owner == "" || !r.leaseEnds.After(now))
}

// claim raises the lease version, which is the fence: whoever held the row
// before can neither renew nor commit from now on.
func (r *listRow) claim(req supervisor.ClaimRequest, now time.Time) supervisor.WorkItem {
	record, raised, cancel := r.item.Lifecycle.RaiseTimers(r.record, now)
	r.record = record
	for _, timer := range raised {
		r.wakeups = append(r.wakeups, listWakeup{Wakeup: timer.Wakeup, due: timer.DueAt})
	}
	if cancel {
		r.item.ControlEpochs.Instance++
	}
	r.owner, r.leaseEnds = req.WorkerID, now.Add(req.LeaseDuration)
	r.claimed = r.item.ControlEpochs
	r.item.LeaseVersion++
	r.item.ClaimedAt, r.item.ScheduledAt = now, r.due
	r.item.Attempt, r.item.CancelRequested = r.record.Attempt, r.record.CancelRequested

	r.item.Wakeups = nil
	slices.SortStableFunc(r.wakeups, func(a, b listWakeup) int { return a.due.Compare(b.due) })
	for n := range r.wakeups {
		if wakeup := &r.wakeups[n]; !wakeup.due.After(now) && len(r.item.Wakeups) < supervisor.MaxClaimWakeups {
			wakeup.claimed = r.item.LeaseVersion
			r.item.Wakeups = append(r.item.Wakeups, wakeup.Wakeup)
		}
	}
	return r.item.Clone()
}

// AdmitEvaluation admits everything.
func (q *listQueue) AdmitEvaluation(ctx context.Context, _ *supervisor.WorkItem) error {
	return ctx.Err()
}

// Renew extends a lease that has not ended, of exactly this version.
func (q *listQueue) Renew(ctx context.Context, lease supervisor.Lease) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if lease.Duration <= 0 {
		return fmt.Errorf("renew %q: the duration is %v", lease.InstanceID, lease.Duration)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now().UTC()
	row := q.find(lease.TenantID, lease.InstanceID)
	switch {
	case row == nil, row.owner == "", row.owner != lease.WorkerID, row.item.LeaseVersion != lease.Version, !row.leaseEnds.After(now):
		return fmt.Errorf("renew %q: %w", lease.InstanceID, supervisor.ErrLeaseLost)
	case row.claimed != row.item.ControlEpochs:
		return fmt.Errorf("renew %q: %w", lease.InstanceID, supervisor.ErrEpochStale)
	}
	row.leaseEnds = now.Add(lease.Duration)
	return nil
}

// CommitCommand checks in the order of the interface's comment, then writes
// everything.
func (q *listQueue) CommitCommand(ctx context.Context, item *supervisor.WorkItem, command *supervisor.TransitionCommand) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := command.ValidateContent(item); err != nil {
		return fmt.Errorf("%w: %w", supervisor.ErrCommandRejected, err)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	row := q.find(item.TenantID, item.ID)
	switch {
	case row == nil:
		return fmt.Errorf("commit %q: %w", item.ID, supervisor.ErrNotFound)
	case row.key == command.DeliveryKey && row.digest == command.DeliveryDigest && row.from == item.StateVersion:
		return nil // it was committed before, and the answer was lost
	case row.key == command.DeliveryKey:
		return &supervisor.DeliveryConflictError{Key: row.key, StoredDigest: row.digest, Digest: command.DeliveryDigest}
	case row.item.LeaseVersion != item.LeaseVersion:
		return fmt.Errorf("commit %q: %w", item.ID, supervisor.ErrLeaseLost)
	case row.item.StateVersion != item.StateVersion || row.record.Status != supervisor.StatusActive:
		return fmt.Errorf("commit %q: %w", item.ID, supervisor.ErrStateConflict)
	case row.item.ControlEpochs != item.ControlEpochs:
		return fmt.Errorf("commit %q: %w", item.ID, supervisor.ErrEpochStale)
	case len(command.ActionIntents) > 0 && row.record.RefusesIntents():
		return fmt.Errorf("commit %q: intents after the expiry: %w", item.ID, supervisor.ErrCommandRejected)
	}
	for _, intent := range command.ActionIntents {
		if slices.Contains(row.intents, intent.ID) {
			return fmt.Errorf("commit %q: intent %q again: %w", item.ID, intent.ID, supervisor.ErrCommandRejected)
		}
	}
	row.apply(item, command.Clone(), time.Now().UTC())
	// What is due again at once goes behind what is due already.
	q.rows = append(slices.DeleteFunc(q.rows, func(r *listRow) bool { return r == row }), row)
	return nil
}

func (r *listRow) apply(item *supervisor.WorkItem, command supervisor.TransitionCommand, now time.Time) {
	policy := &r.item.Lifecycle
	record, at := r.record.AfterCommit(policy, item, &command, now)
	r.record = record
	r.key, r.digest, r.from = command.DeliveryKey, command.DeliveryDigest, item.StateVersion
	r.item.State = command.NextState
	r.item.StateVersion++
	for _, intent := range command.ActionIntents {
		r.intents = append(r.intents, intent.ID)
	}
	r.owner = ""
	var first time.Time // the first wakeup that this claim did not hold
	r.wakeups = slices.DeleteFunc(r.wakeups, func(wakeup listWakeup) bool {
		return slices.Contains(command.ConsumedWakeups, wakeup.ID)
	})
	for _, wakeup := range r.wakeups {
		if wakeup.claimed != r.item.LeaseVersion && (first.IsZero() || wakeup.due.Before(first)) {
			first = wakeup.due
		}
	}
	r.due = r.record.NextDue(policy, at, first)
}

func (q *listQueue) find(tenantID, instanceID string) *listRow {
	for _, row := range q.rows {
		if row.item.TenantID == tenantID && row.item.ID == instanceID {
			return row
		}
	}
	return nil
}

// A service brings its own queue: five methods, of which FailClosed has two for
// a queue that needs neither published revisions nor admissions. That this one
// keeps every rule of the interface is proved by package queuetest.
func ExampleWorkQueue() {
	ctx := context.Background()
	queue := new(listQueue)
	instance, err := supervisor.NewInstance("hello", 1, nil)
	if err != nil {
		log.Fatal(err)
	}
	if err := queue.Add(ctx, supervisor.WorkItem{Instance: instance}); err != nil {
		log.Fatal(err)
	}

	drivers := supervisor.NewDriverRegistry[struct{}]()
	err = drivers.Register(supervisor.NewDriver("hello", 1,
		func(_ context.Context, _ struct{}, item *supervisor.WorkItem) (supervisor.TransitionCommand, error) {
			return supervisor.NewCommand(item, "hello.said", "hello", nil, supervisor.Complete{})
		}))
	if err != nil {
		log.Fatal(err)
	}
	noContext := func(context.Context) (struct{}, error) { return struct{}{}, nil }
	for range 2 {
		stats, err := supervisor.RunDuePass(ctx, queue, drivers, supervisor.Settings{}, noContext)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("claimed %d, completed %d\n", stats.Claimed, stats.Completed)
	}
	// Output:
	// claimed 1, completed 1
	// claimed 0, completed 0
}
