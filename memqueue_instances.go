package supervisor

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"
)

// Start implements [Instances].
func (q *MemoryWorkQueue) Start(ctx context.Context, instance Instance, dueAt time.Time) (started bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	if err := instance.Validate(); err != nil {
		return false, err
	}
	if err := checkInstant("dueAt", dueAt); err != nil {
		return false, fmt.Errorf("supervisor: start: %w", err)
	}
	stored := copyInstance(&instance)
	q.mu.Lock()
	defer q.mu.Unlock()
	tenant := q.tenant(stored.TenantID)
	if tenant.rows[stored.ID] != nil {
		return false, nil
	}
	now := q.now()
	if dueAt.IsZero() {
		dueAt = now
	}
	row := newRow(stored, now)
	q.add(tenant, row, row.record.NextDue(&stored.Lifecycle, instant(dueAt), time.Time{}), now)
	return true, nil
}

func copyInstance(instance *Instance) *Instance {
	stored := *instance
	stored.Config = bytes.Clone(instance.Config)
	stored.CapabilityPins = slices.Clone(instance.CapabilityPins)
	for _, at := range [...]*time.Time{&stored.Lifecycle.StartsAt, &stored.Lifecycle.ExpiresAt, &stored.Lifecycle.DrainDeadline} {
		*at = instant(*at)
	}
	return &stored
}

// Deliver implements [Instances].
func (q *MemoryWorkQueue) Deliver(ctx context.Context, tenantID, instanceID string, wakeup Wakeup, dueAt time.Time) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := wakeup.Validate(); err != nil {
		return err
	}
	if err := checkInstant("dueAt", dueAt); err != nil {
		return fmt.Errorf("supervisor: deliver: %w", err)
	}
	digest := wakeup.Digest()
	wakeup.Payload = bytes.Clone(wakeup.Payload)
	q.mu.Lock()
	defer q.mu.Unlock()
	row := q.row(tenantID, instanceID)
	if row == nil {
		return notFound(tenantID, instanceID)
	}
	if known := row.mail.get(wakeup.ID); known != nil {
		if known.digest != digest {
			return row.errorf("delivery to", &DeliveryConflictError{Key: wakeup.ID, StoredDigest: known.digest, Digest: digest})
		}
		return nil
	}
	if row.finished() {
		return row.errorf("delivery to", ErrFinished)
	}
	now := q.now()
	if dueAt.IsZero() {
		dueAt = now
	}
	row.deliver(wakeup, digest, instant(dueAt))
	q.wakeupArrived(row, instant(dueAt), now)
	return nil
}

// wakeupArrived brings a row's due time forward to that of a new wakeup.
func (q *MemoryWorkQueue) wakeupArrived(row *memRow, dueAt, now time.Time) {
	due := row.record.WakeupDue(&row.pins.Lifecycle, dueAt, now)
	if !due.IsZero() && due.Before(row.due) {
		q.reschedule(row, due, now)
	}
}

// Cancel implements [Instances].
func (q *MemoryWorkQueue) Cancel(ctx context.Context, tenantID, instanceID string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	row := q.row(tenantID, instanceID)
	if row == nil {
		return notFound(tenantID, instanceID)
	}
	now := q.now()
	record, changed := row.record.AfterCancel(now)
	if !changed {
		return nil
	}
	row.record = record
	row.epochs.Instance++
	q.pull(row, now, now)
	q.cancelIntents(row, now)
	return nil
}

// Retry implements [Instances].
func (q *MemoryWorkQueue) Retry(ctx context.Context, tenantID, instanceID string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	row := q.row(tenantID, instanceID)
	if row == nil {
		return notFound(tenantID, instanceID)
	}
	record, ok := row.record.AfterRetry()
	if !ok {
		return row.errorf("retry of", ErrStateConflict)
	}
	now := q.now()
	row.record = record
	q.pull(row, now, now)
	return nil
}

// pull brings a row's due time forward to an instant (zero: none), as far as
// its record allows; past instants mean now. One that is no longer active is
// never due.
func (q *MemoryWorkQueue) pull(row *memRow, at, now time.Time) {
	due := row.record.NextDue(&row.pins.Lifecycle, earlier(row.due, at), time.Time{})
	if !due.IsZero() {
		due = later(due, earlier(row.due, now))
	}
	if due.Equal(row.due) {
		q.place(row, now)
		return
	}
	q.reschedule(row, due, now)
}

// Pause implements [Instances].
func (q *MemoryWorkQueue) Pause(ctx context.Context, scope Scope) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := scope.Validate(); err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if scope.InstanceID != "" {
		row := q.row(scope.TenantID, scope.InstanceID)
		if row == nil {
			return notFound(scope.TenantID, scope.InstanceID)
		}
		if !row.paused {
			row.paused = true
			row.epochs.Instance++
			q.place(row, q.now())
		}
		return nil
	}
	tenant := q.tenant(scope.TenantID)
	if scope.ResourceID != "" {
		tenant.pauseResource(scope.ResourceID)
		return nil
	}
	if !tenant.paused {
		tenant.paused = true
		tenant.epoch++
		for _, lane := range tenant.lanes {
			q.schedule.settle(lane)
		}
	}
	return nil
}

func (t *memTenant) pauseResource(id string) {
	if t.resources[id].paused {
		return
	}
	if t.resources == nil {
		t.resources = make(map[string]memResource)
	}
	t.resourceEpoch++
	t.resources[id] = memResource{epoch: t.resourceEpoch, paused: true}
}

// Resume implements [Instances].
func (q *MemoryWorkQueue) Resume(ctx context.Context, scope Scope) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := scope.Validate(); err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.now()
	if scope.InstanceID != "" {
		row := q.row(scope.TenantID, scope.InstanceID)
		if row == nil {
			return notFound(scope.TenantID, scope.InstanceID)
		}
		paused := row.paused
		q.resumeRow(row, now)
		if paused {
			q.resumeIntents(row.tenant, &scope, now)
		}
		return nil
	}
	tenant := q.tenants[scope.TenantID]
	if tenant == nil {
		return nil
	}
	if scope.ResourceID != "" {
		if resource := tenant.resources[scope.ResourceID]; resource.paused {
			resource.paused = false
			tenant.resources[scope.ResourceID] = resource
			q.resumeIntents(tenant, &scope, now)
		}
		return nil
	}
	if tenant.paused {
		tenant.paused = false
		for _, lane := range tenant.lanes {
			q.schedule.settle(lane)
			if first := lane.first(); first != nil {
				q.announce(lane.spec, first.value.due, now)
			}
		}
		q.resumeIntents(tenant, &scope, now)
	}
	return nil
}

// resumeRow ends the pause of an instance. One that backs off no longer holds
// its wakeups back until the retry time.
func (q *MemoryWorkQueue) resumeRow(row *memRow, now time.Time) {
	row.paused = false
	if record, lifted := row.record.AfterResume(); lifted {
		row.record = record
		q.pull(row, row.mail.firstDue(), now)
		return
	}
	q.place(row, now)
}

// pausedBy is the widest pause that covers the row; nil for none.
func (r *memRow) pausedBy() *Scope {
	switch {
	case r.tenant.paused:
		return &Scope{TenantID: r.tenant.id}
	case r.paused:
		return &Scope{TenantID: r.tenant.id, InstanceID: r.id}
	}
	return nil
}

// memRevisionKey names a revision within its tenant.
type memRevisionKey struct {
	definitionID string
	revision     uint64
}

// memRevision is a published revision and the digest of its content.
type memRevision struct {
	revision *Revision
	content  string
}

// PublishRevision implements [Instances].
func (q *MemoryWorkQueue) PublishRevision(ctx context.Context, tenantID string, revision *Revision) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := checkID("tenantID", tenantID); err != nil {
		return fmt.Errorf("supervisor: publish revision: %w", err)
	}
	if err := revision.Validate(); err != nil {
		return err
	}
	// Opaque content digests may be equal for different content.
	content, err := revision.ComputeDigest()
	if err != nil {
		return err
	}
	key := memRevisionKey{definitionID: revision.DefinitionID, revision: revision.Revision}
	q.mu.Lock()
	defer q.mu.Unlock()
	tenant := q.tenant(tenantID)
	if published, ok := tenant.revisions[key]; ok {
		if published.content != content || published.revision.ContentDigest != revision.ContentDigest {
			return fmt.Errorf("supervisor: revision %d of %q is published with other content: %w",
				revision.Revision, shorten(revision.DefinitionID), ErrStateConflict)
		}
		return nil
	}
	if tenant.revisions == nil {
		tenant.revisions = make(map[memRevisionKey]memRevision)
	}
	tenant.revisions[key] = memRevision{revision: revision.clone(), content: content}
	return nil
}

// LoadRevision implements [WorkQueue].
func (q *MemoryWorkQueue) LoadRevision(ctx context.Context, item *WorkItem) (*Revision, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if tenant := q.tenants[item.TenantID]; tenant != nil {
		published, ok := tenant.revisions[memRevisionKey{definitionID: item.DefinitionID, revision: item.WorkflowRevision}]
		if ok && published.revision.ContentDigest == item.WorkflowRevisionDigest {
			return published.revision.clone(), nil
		}
	}
	return nil, fmt.Errorf("supervisor: revision %d of %q with digest %q: %w",
		item.WorkflowRevision, shorten(item.DefinitionID), shorten(item.WorkflowRevisionDigest), ErrRevisionUnavailable)
}

func notFound(tenantID, instanceID string) error {
	return fmt.Errorf("supervisor: instance %q of tenant %q: %w", shorten(instanceID), shorten(tenantID), ErrNotFound)
}
