package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"time"
)

// Instances is the client side that every queue we ship offers: starting,
// telling, stopping and looking at workflow instances.
//
// All methods may be called by many goroutines at once. Arguments belong to the
// caller and are not kept; results share no memory with the queue. Instants
// are UTC, given by the queue's clock. An unknown instance is [ErrNotFound]
// unless a method says otherwise; input that no store could hold is an error
// that names the field. Ids have at most [MaxIDBytes] bytes.
type Instances interface {
	// Start adds an instance, due at the later of dueAt (zero: now) and its
	// lifecycle's StartsAt. The same tenant and id again is false and changes
	// nothing.
	Start(ctx context.Context, instance Instance, dueAt time.Time) (started bool, err error)

	// Deliver adds a wakeup that falls due at dueAt (zero: now) and pulls the
	// instance's due time to it, but not before the retry time of an instance
	// that backs off. A known id with the same content, also a consumed one, is
	// nil; with another kind, branch or payload it is [ErrDeliveryConflict].
	// Consumed ids are remembered for at least [WakeupMemory]. A delivery to an
	// instance that failed for good is kept and wakes nothing; a completed or
	// cancelled one is [ErrFinished].
	Deliver(ctx context.Context, tenantID, instanceID string, wakeup Wakeup, dueAt time.Time) error

	// Cancel requests cancellation: it raises the instance epoch, so that the
	// holder is refused, and makes the instance due now, so that its driver can
	// converge. One that failed for good is cancelled at once. Again, or of a
	// finished instance: nil, nothing changes.
	Cancel(ctx context.Context, tenantID, instanceID string) error

	// Pause stops claims in a scope and refuses its holders by raising the
	// scope's control epoch; of a resource it only holds back the dispatch of
	// its intents. Pauses of different scopes add up; pausing again changes
	// nothing. Tenants and resources need not exist yet.
	Pause(ctx context.Context, scope Scope) error
	// Resume ends a pause and raises nothing; what is not paused is nil. Of an
	// instance that backs off it also lets pending wakeups come before the
	// retry time; of a tenant or resource it does not.
	Resume(ctx context.Context, scope Scope) error

	// Retry makes an instance that backs off or failed for good active and due
	// now, from its state, with attempt 0; any other is [ErrStateConflict].
	Retry(ctx context.Context, tenantID, instanceID string) error

	// PublishRevision stores an immutable revision in a tenant. The same content
	// again is nil; other content under the same definition and revision
	// number is [ErrStateConflict].
	PublishRevision(ctx context.Context, tenantID string, revision *Revision) error

	// Get returns what is known of an instance at this moment.
	Get(ctx context.Context, tenantID, instanceID string) (Snapshot, error)

	// List yields the instances that match, ordered by tenant and id, reading in
	// bounded pages: what changes meanwhile is seen or not, nothing is seen
	// twice. It ends after the first error.
	List(ctx context.Context, filter Filter) iter.Seq2[Snapshot, error]

	// History yields the events of an instance in order, reading in bounded
	// pages. It ends after the first error.
	History(ctx context.Context, tenantID, instanceID string) iter.Seq2[Event, error]

	// Explain says why an instance is not running now.
	Explain(ctx context.Context, tenantID, instanceID string) (Explanation, error)

	// Prune removes what finished before an instant (failed too), with all its
	// rows; of the others, all events but the latest and the ids of consumed
	// wakeups, older than it. It returns the number of instances removed.
	Prune(ctx context.Context, before time.Time) (int, error)
}

// WakeupMemory is how long ids of consumed wakeups are remembered at least,
// unless the instance itself is pruned.
const WakeupMemory = 7 * 24 * time.Hour

// Scope is what a pause covers: a tenant, or an instance or a resource of it.
type Scope struct {
	TenantID   string `json:"tenant_id"`
	InstanceID string `json:"instance_id,omitempty"`
	ResourceID string `json:"resource_id,omitempty"`
}

// Validate reports a scope without tenant, with both an instance and a
// resource, or with an id that no store could hold.
func (s *Scope) Validate() error {
	errs := []error{checkID("TenantID", s.TenantID)}
	if s.InstanceID != "" {
		errs = append(errs, checkID("InstanceID", s.InstanceID))
	}
	if s.ResourceID != "" {
		errs = append(errs, checkID("ResourceID", s.ResourceID))
	}
	if s.InstanceID != "" && s.ResourceID != "" {
		errs = append(errs, fmt.Errorf("InstanceID is %q and ResourceID is %q, only one may be set",
			shorten(s.InstanceID), shorten(s.ResourceID)))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("supervisor: scope: %w", err)
	}
	return nil
}

// Status is where an instance stands in its life.
type Status string

// The statuses of an instance.
const (
	StatusActive    Status = "active"
	StatusCompleted Status = "completed"
	// StatusFailed: failed for good; an operator may Retry or Cancel it.
	StatusFailed    Status = "failed"
	StatusCancelled Status = "cancelled"
)

// Snapshot is what a queue knows of an instance at one moment.
type Snapshot struct {
	Instance
	State           json.RawMessage `json:"state,omitempty"`
	StateVersion    int64           `json:"state_version"`
	LeaseVersion    int64           `json:"lease_version"`
	Status          Status          `json:"status"`
	CreatedAt       time.Time       `json:"created_at"`
	NextDueAt       time.Time       `json:"next_due_at,omitzero"`   // zero: never, for it is finished
	FinishedAt      time.Time       `json:"finished_at,omitzero"`   // zero: not finished
	LeaseEndsAt     time.Time       `json:"lease_ends_at,omitzero"` // zero: not leased
	LeaseOwner      string          `json:"lease_owner,omitempty"`
	LastError       string          `json:"last_error,omitempty"`
	Attempt         int             `json:"attempt,omitempty"`
	PendingWakeups  int             `json:"pending_wakeups,omitempty"`
	CancelRequested bool            `json:"cancel_requested,omitempty"`
	// PausedBy is the widest pause that covers the instance; nil for none.
	PausedBy      *Scope        `json:"paused_by,omitempty"`
	ControlEpochs ControlEpochs `json:"control_epochs"`
}

// Filter selects instances; a zero field selects all.
type Filter struct {
	TenantID string `json:"tenant_id,omitempty"`
	SpecID   string `json:"spec_id,omitempty"`
	Status   Status `json:"status,omitempty"`
	// DueBefore selects active instances whose next due time is before it.
	DueBefore time.Time `json:"due_before,omitzero"`
}

// Event is one entry of an instance's history.
type Event struct {
	TenantID    string `json:"tenant_id"`
	InstanceID  string `json:"instance_id"`
	Type        string `json:"type"`
	Digest      string `json:"digest"`
	DeliveryKey string `json:"delivery_key"`
	WorkerID    string `json:"worker_id,omitempty"`
	// StateVersion is the version that the event made.
	StateVersion int64           `json:"state_version"`
	LeaseVersion int64           `json:"lease_version"`
	Payload      json.RawMessage `json:"payload,omitempty"`
	At           time.Time       `json:"at"`
}
