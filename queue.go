package supervisor

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// WorkQueue is what the supervisor needs of a store of workflow instances.
//
// All methods may be called by many goroutines at once, each for another item
// or the same. Arguments belong to the caller and are not kept after the call
// returns; results belong to the caller. Methods block until the store has
// answered or ctx ends; a context that ends never leaves half a change behind.
// Everything is keyed by tenant and id, every instant is judged and computed by
// the store's own clock, never by the host's.
//
// Errors are sentinels of this package, wrapped with the store's own:
// [ErrUnavailable] for a passing fault after which nothing is known to have
// changed, else those that each method names.
//
// Package queuetest proves an implementation sentence by sentence.
type WorkQueue interface {
	// ClaimDue acquires due instances of the wanted specs for one worker, never
	// more than req.Limit, and returns at once with none where nothing is due.
	//
	// Within a tenant they come in order of due time. Across tenants that have
	// due work of the wanted specs one item per tenant is taken in turn, round
	// after round, the least recently served first (for whatever spec) and one
	// never served before all others; tenants without such work keep their
	// turn. Concurrent claimers may see turns slightly apart.
	//
	// One transaction raises each lease version, sets the lease end and captures
	// pins, epochs, wakeups and timestamps. An instance whose lease has ended is
	// due again as it was. A paused instance, or one of a paused tenant, is not
	// due. A claim holds the wakeups that are due first (due time, then
	// arrival), at most [MaxClaimWakeups] and [MaxClaimWakeupBytes] of payload;
	// where there are more, kinds action, child, gate and timer come before
	// others.
	//
	// A row that cannot be decoded is set aside with a recorded reason and a
	// delay; it fails nothing else. Items beside an error are served. The cost
	// does not grow with the number of instances that wait.
	ClaimDue(ctx context.Context, req ClaimRequest) ([]WorkItem, error)

	// LoadRevision returns the published revision that a claimed item is pinned
	// to, found by the item's tenant, definition, revision number and digest.
	// [ErrRevisionUnavailable] where there is none.
	LoadRevision(ctx context.Context, item *WorkItem) (*Revision, error)

	// AdmitEvaluation returns nil when the owner of a claimed item may have it
	// evaluated now, else an error that is [ErrNotAdmitted]. It is not asked
	// for items that converge.
	AdmitEvaluation(ctx context.Context, item *WorkItem) error

	// Renew extends a lease by lease.Duration from the store's now; the new end
	// is in the future when the call returns. Only the worker that holds exactly
	// this lease version, of a lease that has not ended, may: everything else,
	// an unknown instance and a finished one included, is [ErrLeaseLost].
	// Where the tenant or instance epoch has moved since the claim it is
	// [ErrEpochStale] and nothing is extended. Repeating it is harmless.
	Renew(ctx context.Context, lease Lease) error

	// CommitCommand applies a command in one transaction, all or nothing: the
	// state, its version plus one, the event, the intents, the consumed
	// wakeups, the counters and the disposition are written and the lease is
	// released. It is checked in this order:
	//
	//  1. content: [TransitionCommand.ValidateContent] fails: [ErrCommandRejected]
	//  2. existence: [ErrNotFound]
	//  3. the latest delivery key of the instance: the same key with the same
	//     digest, at the state version that it was stored with, is success and
	//     changes nothing, also when the instance is finished or held by
	//     another; the key otherwise is [ErrDeliveryConflict]
	//  4. lease version: [ErrLeaseLost]. A lease that ended but that nobody else
	//     has taken still commits: the version decides, not the clock
	//  5. state version and status: [ErrStateConflict]
	//  6. tenant and instance epochs, and the resource epoch of each intent:
	//     [ErrEpochStale]
	//  7. intents after the lifecycle expired: [ErrCommandRejected]; an intent
	//     id that the instance already has: [ErrCommandRejected]
	//
	// After [ErrCommandRejected], [ErrUnavailable] and the errors above nothing
	// was applied. [ErrCommitUnknown] says that the outcome is not known.
	CommitCommand(ctx context.Context, item *WorkItem, command *TransitionCommand) error
}

// Bounds of the wakeups in one claim.
const (
	MaxClaimWakeups     = 1000
	MaxClaimWakeupBytes = 4 << 20
)

// ClaimRequest asks for due instances.
type ClaimRequest struct {
	// SpecIDs are the wanted specs; none means all.
	SpecIDs []string `json:"spec_ids,omitempty"`
	// WorkerID names the holder of the leases for people; the lease version, not
	// the name, is the fence.
	WorkerID string `json:"worker_id"`
	// LeaseDuration is how long the claim lasts without renewal; positive.
	LeaseDuration time.Duration `json:"lease_duration"`
	// Limit bounds the number of items; positive.
	Limit int `json:"limit"`
}

// Validate reports what keeps the request from being served. Every queue
// applies it in ClaimDue.
func (r *ClaimRequest) Validate() error {
	errs := []error{checkID("WorkerID", r.WorkerID)}
	if r.LeaseDuration <= 0 {
		errs = append(errs, fmt.Errorf("LeaseDuration is %v, must be positive", r.LeaseDuration))
	}
	if r.Limit <= 0 {
		errs = append(errs, fmt.Errorf("Limit is %d, must be positive", r.Limit))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("supervisor: claim request: %w", err)
	}
	return nil
}

// Lease names one acquisition of one instance and how long it is to last from now.
type Lease struct {
	TenantID   string        `json:"tenant_id"`
	InstanceID string        `json:"instance_id"`
	WorkerID   string        `json:"worker_id"`
	Version    int64         `json:"version"`
	Duration   time.Duration `json:"duration"`
}

// Releaser is an optional ability of a [WorkQueue]: giving a claim back.
type Releaser interface {
	// Release ends the lease of a claimed item and raises the lease version, so
	// that a late commit is [ErrLeaseLost]. State, attempt, wakeups and due time
	// stay; the reason is kept for Explain. It checks the lease version only,
	// never epochs: whoever does not hold it gets [ErrLeaseLost].
	Release(ctx context.Context, item *WorkItem, reason string) error
}

// Waiter is an optional ability of a [WorkQueue]: telling when a claim is worth
// trying.
type Waiter interface {
	// WaitDue blocks until a start, delivery, cancel, resume, retry, release or
	// commit makes an instance of the specs (none: all) due, until the next due
	// time or the next lease end comes, or until ctx ends, whose error it
	// returns. What a claim just left untouched does not wake it. It may wake
	// too often, never too late; the caller claims to find out.
	WaitDue(ctx context.Context, specIDs []string) error
}

// CommitKeeper is an optional ability of a [WorkQueue]: committing and carrying
// on with an instance that is due again at once.
type CommitKeeper interface {
	// CommitAndKeep is CommitCommand, with the same checks and errors, that
	// keeps the claim where the instance is due again at once: the same
	// transaction raises the lease version, extends the lease by the duration
	// from the store's now and captures the next item, with epochs read afresh
	// and due wakeups. next is nil where the instance is not due, finished,
	// paused or held back by its lifecycle; the lease is then released.
	//
	// A repeat of the latest command returns the kept item again while its
	// lease version is still the holder's, else nil. Its resource epoch is then
	// the present one, for nothing was evaluated under it before; its tenant and
	// instance epochs are those of the lease, for that may have been revoked.
	// After an error next is nil and the error means the same as from
	// CommitCommand.
	CommitAndKeep(ctx context.Context, item *WorkItem, command *TransitionCommand, lease time.Duration) (next *WorkItem, err error)
}

// FailClosed refuses what a queue does not provide. Embed it in a queue without
// published revisions or without an authority that admits evaluations.
type FailClosed struct{}

// LoadRevision returns [ErrRevisionUnavailable].
func (FailClosed) LoadRevision(context.Context, *WorkItem) (*Revision, error) {
	return nil, fmt.Errorf("supervisor: this queue publishes no revisions: %w", ErrRevisionUnavailable)
}

// AdmitEvaluation returns [ErrNotAdmitted].
func (FailClosed) AdmitEvaluation(context.Context, *WorkItem) error {
	return fmt.Errorf("supervisor: this queue has no authority to admit evaluations: %w", ErrNotAdmitted)
}

// Errors of queues. Match them with [errors.Is].
var (
	// ErrLeaseLost: someone else holds the instance, or the lease ended. What
	// was evaluated is void; another worker carries on.
	ErrLeaseLost = errors.New("supervisor: lease lost")
	// ErrStateConflict: the instance is not in the state that the call is for.
	ErrStateConflict = errors.New("supervisor: state conflict")
	// ErrDeliveryConflict: a known key or id came with other content.
	ErrDeliveryConflict = errors.New("supervisor: delivery conflict")
	// ErrNotFound: there is no such instance in this tenant.
	ErrNotFound = errors.New("supervisor: not found")
	// ErrFinished: the instance is completed or cancelled.
	ErrFinished = errors.New("supervisor: instance is finished")
	// ErrNotAdmitted: the owner may not have the instance evaluated now.
	ErrNotAdmitted = errors.New("supervisor: evaluation is not admitted")
	// ErrRevisionUnavailable: the pinned revision is not published in this tenant.
	ErrRevisionUnavailable = errors.New("supervisor: revision is unavailable")
	// ErrEpochStale: a pause or cancel has come since the claim.
	ErrEpochStale = errors.New("supervisor: control epoch is stale")
	// ErrCommandRejected: certainly not applied, for this content cannot be stored.
	ErrCommandRejected = errors.New("supervisor: command rejected")
	// ErrUnavailable: a passing fault; nothing is known to have changed.
	ErrUnavailable = errors.New("supervisor: queue is unavailable")
	// ErrCommitUnknown: whether the commit was applied is not known. Look the
	// instance up; never evaluate and commit again under another key.
	ErrCommitUnknown = errors.New("supervisor: commit outcome is unknown")
)

// DeliveryConflictError is an [ErrDeliveryConflict] that tells what collided.
type DeliveryConflictError struct {
	Key, StoredDigest, Digest string
}

func (e *DeliveryConflictError) Error() string {
	return fmt.Sprintf("%v: key %q is stored with digest %q, came with %q",
		ErrDeliveryConflict, shorten(e.Key), shorten(e.StoredDigest), shorten(e.Digest))
}

// Is reports that the error is [ErrDeliveryConflict].
func (e *DeliveryConflictError) Is(target error) bool { return target == ErrDeliveryConflict }
