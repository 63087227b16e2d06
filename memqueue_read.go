package supervisor

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"
)

// memPage is how many rows or events are read while the queue is locked.
const memPage = 64

// Get implements [Instances].
func (q *MemoryWorkQueue) Get(ctx context.Context, tenantID, instanceID string) (Snapshot, error) {
	if err := ctx.Err(); err != nil {
		return Snapshot{}, err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	row := q.row(tenantID, instanceID)
	if row == nil {
		return Snapshot{}, notFound(tenantID, instanceID)
	}
	return row.snapshot(q.now()), nil
}

// snapshot copies what is known of a row.
func (r *memRow) snapshot(now time.Time) Snapshot {
	instance := r.instance()
	snapshot := Snapshot{
		Instance:        *copyInstance(&instance),
		State:           bytes.Clone(r.state),
		StateVersion:    r.stateVersion,
		LeaseVersion:    r.leaseVersion,
		Status:          r.record.Status,
		CreatedAt:       r.record.CreatedAt,
		NextDueAt:       r.due,
		FinishedAt:      r.record.FinishedAt,
		LastError:       r.lastError,
		Attempt:         r.record.Attempt,
		CancelRequested: r.record.CancelRequested,
		PausedBy:        r.pausedBy(),
		ControlEpochs:   r.controlEpochs(),
	}
	if r.lease != nil && r.lease.end.After(now) {
		snapshot.LeaseEndsAt, snapshot.LeaseOwner = r.lease.end, r.lease.worker
	}
	if r.mail != nil {
		snapshot.PendingWakeups = len(r.mail.pending)
	}
	return snapshot
}

// Explain implements [Instances].
func (q *MemoryWorkQueue) Explain(ctx context.Context, tenantID, instanceID string) (Explanation, error) {
	if err := ctx.Err(); err != nil {
		return Explanation{}, err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	row := q.row(tenantID, instanceID)
	if row == nil {
		return Explanation{}, notFound(tenantID, instanceID)
	}
	now := q.now()
	return Explain(&ExplainFacts{
		Snapshot:      row.snapshot(now),
		Now:           now,
		FailureClass:  row.failureClass,
		ReleaseReason: row.releaseReason,
	}), nil
}

// List implements [Instances]. The ids of a tenant are collected when the
// iteration comes to it, so that it costs memory for them.
func (q *MemoryWorkQueue) List(ctx context.Context, filter Filter) iter.Seq2[Snapshot, error] {
	return func(yield func(Snapshot, error) bool) {
		switch filter.Status {
		case "", StatusActive, StatusCompleted, StatusFailed, StatusCancelled:
		default:
			yield(Snapshot{}, fmt.Errorf("supervisor: filter: Status %q is not known", shorten(string(filter.Status))))
			return
		}
		for _, tenantID := range q.tenantIDs(filter.TenantID) {
			ids, err := q.instanceIDs(ctx, tenantID)
			if err != nil {
				yield(Snapshot{}, err)
				return
			}
			for page := range slices.Chunk(ids, memPage) {
				if err := ctx.Err(); err != nil {
					yield(Snapshot{}, err)
					return
				}
				for _, snapshot := range q.page(tenantID, page, &filter) {
					if !yield(snapshot, nil) {
						return
					}
				}
			}
		}
	}
}

// tenantIDs returns one tenant, or all in order.
func (q *MemoryWorkQueue) tenantIDs(only string) []string {
	if only != "" {
		return []string{only}
	}
	q.mu.Lock()
	ids := slices.Collect(maps.Keys(q.tenants))
	q.mu.Unlock()
	slices.Sort(ids)
	return ids
}

// instanceIDs returns the ids of a tenant in order.
func (q *MemoryWorkQueue) instanceIDs(ctx context.Context, tenantID string) ([]string, error) {
	var ids []string
	err := q.walk(ctx, tenantID, func(row *memRow) { ids = append(ids, row.id) })
	slices.Sort(ids)
	return ids, err
}

// walk calls visit for each row of a tenant, in no order, with the queue
// locked. It lets others have the lock again and again: what they add or remove
// meanwhile is visited or not.
func (q *MemoryWorkQueue) walk(ctx context.Context, tenantID string, visit func(*memRow)) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	tenant := q.tenants[tenantID]
	if tenant == nil {
		return ctx.Err()
	}
	visited := 0
	for _, row := range tenant.rows {
		visit(row)
		// The lock is given up between two rows, never with one in hand.
		if visited++; visited%memPage == 0 {
			q.mu.Unlock()
			err := ctx.Err()
			q.mu.Lock()
			if err != nil {
				return err
			}
		}
	}
	return ctx.Err()
}

// page returns those of the instances that are still there and match.
func (q *MemoryWorkQueue) page(tenantID string, ids []string, filter *Filter) []Snapshot {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.now()
	snapshots := make([]Snapshot, 0, len(ids))
	for _, id := range ids {
		if row := q.row(tenantID, id); row != nil && row.matches(filter) {
			snapshots = append(snapshots, row.snapshot(now))
		}
	}
	return snapshots
}

func (r *memRow) matches(filter *Filter) bool {
	return (filter.SpecID == "" || filter.SpecID == r.pins.SpecID) &&
		(filter.Status == "" || filter.Status == r.record.Status) &&
		(filter.DueBefore.IsZero() || (r.record.Status == StatusActive && r.due.Before(filter.DueBefore)))
}

// History implements [Instances].
func (q *MemoryWorkQueue) History(ctx context.Context, tenantID, instanceID string) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		var last *memEvent
		for {
			if err := ctx.Err(); err != nil {
				yield(Event{}, err)
				return
			}
			events, err := q.eventsAfter(tenantID, instanceID, last)
			if err != nil {
				yield(Event{}, err)
				return
			}
			if len(events) == 0 {
				return
			}
			for _, event := range events {
				if !yield(event.copy(tenantID, instanceID), nil) {
					return
				}
			}
			last = events[len(events)-1]
		}
	}
}

// eventsAfter returns the next events of an instance, the first ones after nil.
func (q *MemoryWorkQueue) eventsAfter(tenantID, instanceID string, last *memEvent) ([]*memEvent, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	var next *memEvent
	if last != nil {
		next = last.next
	} else {
		row := q.row(tenantID, instanceID)
		if row == nil {
			return nil, notFound(tenantID, instanceID)
		}
		next = row.firstEvent
	}
	var events []*memEvent
	for ; next != nil && len(events) < memPage; next = next.next {
		events = append(events, next)
	}
	return events, nil
}

func (e *memEvent) copy(tenantID, instanceID string) Event {
	return Event{
		TenantID:     tenantID,
		InstanceID:   instanceID,
		Type:         e.typ,
		Digest:       e.digest,
		DeliveryKey:  e.key,
		WorkerID:     e.worker,
		StateVersion: e.stateVersion,
		LeaseVersion: e.leaseVersion,
		Payload:      bytes.Clone(e.payload),
		At:           e.at,
	}
}

// Prune implements [Instances]. What [MemoryWorkQueue.Committed] returns stays
// until ClearHistory.
func (q *MemoryWorkQueue) Prune(ctx context.Context, before time.Time) (int, error) {
	removed := 0
	for _, tenantID := range q.tenantIDs("") {
		err := q.walk(ctx, tenantID, func(row *memRow) {
			if at := row.record.FinishedAt; !at.IsZero() && at.Before(before) && !row.inFlight() {
				q.drop(row, q.now())
				removed++
				return
			}
			for row.firstEvent != row.lastEvent && row.firstEvent.at.Before(before) {
				row.firstEvent = row.firstEvent.next
			}
			row.mail.forget(before, q.now().Add(-WakeupMemory))
		})
		if err != nil {
			return removed, err
		}
	}
	return removed, nil
}
