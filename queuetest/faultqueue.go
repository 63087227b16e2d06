package queuetest

import (
	"context"
	"iter"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

// Wrap returns a queue that meets the plan's faults before, or instead of, the
// given one. It is a [supervisor.Releaser], [supervisor.Waiter],
// [supervisor.CommitKeeper] and [supervisor.Instances] where, and only where,
// the given queue is one. The abilities of a queue of intents are not among them:
// see WrapIntents.
func (f *Faults) Wrap(queue supervisor.WorkQueue) supervisor.WorkQueue {
	q := faultQueue{f, queue}
	var has ability
	r, ok := queue.(supervisor.Releaser)
	if ok {
		has |= releaser
	}
	w, ok := queue.(supervisor.Waiter)
	if ok {
		has |= waiter
	}
	k, ok := queue.(supervisor.CommitKeeper)
	if ok {
		has |= keeper
	}
	i, ok := queue.(supervisor.Instances)
	if ok {
		has |= instances
	}
	releases, waits, keeps, client := faultReleaser{f, r}, faultWaiter{f, w}, faultKeeper{f, k}, faultInstances{f, i}
	// Abilities are found by type assertions, so that each set of them is a
	// type of its own.
	switch has {
	case releaser:
		return struct {
			faultQueue
			faultReleaser
		}{q, releases}
	case waiter:
		return struct {
			faultQueue
			faultWaiter
		}{q, waits}
	case keeper:
		return struct {
			faultQueue
			faultKeeper
		}{q, keeps}
	case instances:
		return struct {
			faultQueue
			faultInstances
		}{q, client}
	case releaser | waiter:
		return struct {
			faultQueue
			faultReleaser
			faultWaiter
		}{q, releases, waits}
	case releaser | keeper:
		return struct {
			faultQueue
			faultReleaser
			faultKeeper
		}{q, releases, keeps}
	case releaser | instances:
		return struct {
			faultQueue
			faultReleaser
			faultInstances
		}{q, releases, client}
	case waiter | keeper:
		return struct {
			faultQueue
			faultWaiter
			faultKeeper
		}{q, waits, keeps}
	case waiter | instances:
		return struct {
			faultQueue
			faultWaiter
			faultInstances
		}{q, waits, client}
	case keeper | instances:
		return struct {
			faultQueue
			faultKeeper
			faultInstances
		}{q, keeps, client}
	case releaser | waiter | keeper:
		return struct {
			faultQueue
			faultReleaser
			faultWaiter
			faultKeeper
		}{q, releases, waits, keeps}
	case releaser | waiter | instances:
		return struct {
			faultQueue
			faultReleaser
			faultWaiter
			faultInstances
		}{q, releases, waits, client}
	case releaser | keeper | instances:
		return struct {
			faultQueue
			faultReleaser
			faultKeeper
			faultInstances
		}{q, releases, keeps, client}
	case waiter | keeper | instances:
		return struct {
			faultQueue
			faultWaiter
			faultKeeper
			faultInstances
		}{q, waits, keeps, client}
	case releaser | waiter | keeper | instances:
		return struct {
			faultQueue
			faultReleaser
			faultWaiter
			faultKeeper
			faultInstances
		}{q, releases, waits, keeps, client}
	}
	return q
}

// only makes a call that returns nothing but an error.
func only(ctx context.Context, f *Faults, op Op, do func() error) error {
	_, err := call(ctx, f, op, func() (struct{}, error) { return struct{}{}, do() })
	return err
}

type faultQueue struct {
	faults *Faults
	queue  supervisor.WorkQueue
}

func (q faultQueue) ClaimDue(ctx context.Context, req supervisor.ClaimRequest) ([]supervisor.WorkItem, error) {
	return call(ctx, q.faults, OpClaimDue, func() ([]supervisor.WorkItem, error) { return q.queue.ClaimDue(ctx, req) })
}

func (q faultQueue) LoadRevision(ctx context.Context, item *supervisor.WorkItem) (*supervisor.Revision, error) {
	return call(ctx, q.faults, OpLoadRevision, func() (*supervisor.Revision, error) { return q.queue.LoadRevision(ctx, item) })
}

func (q faultQueue) AdmitEvaluation(ctx context.Context, item *supervisor.WorkItem) error {
	return only(ctx, q.faults, OpAdmitEvaluation, func() error { return q.queue.AdmitEvaluation(ctx, item) })
}

func (q faultQueue) Renew(ctx context.Context, lease supervisor.Lease) error {
	return only(ctx, q.faults, OpRenew, func() error { return q.queue.Renew(ctx, lease) })
}

func (q faultQueue) CommitCommand(ctx context.Context, item *supervisor.WorkItem, command *supervisor.TransitionCommand) error {
	return only(ctx, q.faults, OpCommitCommand, func() error { return q.queue.CommitCommand(ctx, item, command) })
}

type faultReleaser struct {
	faults  *Faults
	release supervisor.Releaser
}

func (q faultReleaser) Release(ctx context.Context, item *supervisor.WorkItem, reason string) error {
	return only(ctx, q.faults, OpRelease, func() error { return q.release.Release(ctx, item, reason) })
}

type faultWaiter struct {
	faults *Faults
	wait   supervisor.Waiter
}

func (q faultWaiter) WaitDue(ctx context.Context, specIDs []string) error {
	return only(ctx, q.faults, OpWaitDue, func() error { return q.wait.WaitDue(ctx, specIDs) })
}

type faultKeeper struct {
	faults *Faults
	keep   supervisor.CommitKeeper
}

func (q faultKeeper) CommitAndKeep(ctx context.Context, item *supervisor.WorkItem, command *supervisor.TransitionCommand, lease time.Duration) (*supervisor.WorkItem, error) {
	return call(ctx, q.faults, OpCommitAndKeep, func() (*supervisor.WorkItem, error) {
		return q.keep.CommitAndKeep(ctx, item, command, lease)
	})
}

type faultInstances struct {
	faults *Faults
	client supervisor.Instances
}

func (q faultInstances) Start(ctx context.Context, instance supervisor.Instance, dueAt time.Time) (bool, error) {
	return call(ctx, q.faults, OpStart, func() (bool, error) { return q.client.Start(ctx, instance, dueAt) })
}

func (q faultInstances) Deliver(ctx context.Context, tenantID, instanceID string, wakeup supervisor.Wakeup, dueAt time.Time) error {
	return only(ctx, q.faults, OpDeliver, func() error { return q.client.Deliver(ctx, tenantID, instanceID, wakeup, dueAt) })
}

func (q faultInstances) Cancel(ctx context.Context, tenantID, instanceID string) error {
	return only(ctx, q.faults, OpCancel, func() error { return q.client.Cancel(ctx, tenantID, instanceID) })
}

func (q faultInstances) Pause(ctx context.Context, scope supervisor.Scope) error {
	return only(ctx, q.faults, OpPause, func() error { return q.client.Pause(ctx, scope) })
}

func (q faultInstances) Resume(ctx context.Context, scope supervisor.Scope) error {
	return only(ctx, q.faults, OpResume, func() error { return q.client.Resume(ctx, scope) })
}

func (q faultInstances) Retry(ctx context.Context, tenantID, instanceID string) error {
	return only(ctx, q.faults, OpRetry, func() error { return q.client.Retry(ctx, tenantID, instanceID) })
}

func (q faultInstances) PublishRevision(ctx context.Context, tenantID string, revision *supervisor.Revision) error {
	return only(ctx, q.faults, OpPublishRevision, func() error { return q.client.PublishRevision(ctx, tenantID, revision) })
}

func (q faultInstances) Get(ctx context.Context, tenantID, instanceID string) (supervisor.Snapshot, error) {
	return call(ctx, q.faults, OpGet, func() (supervisor.Snapshot, error) { return q.client.Get(ctx, tenantID, instanceID) })
}

func (q faultInstances) List(ctx context.Context, filter supervisor.Filter) iter.Seq2[supervisor.Snapshot, error] {
	return listing(ctx, q.faults, OpList, q.client.List(ctx, filter))
}

func (q faultInstances) History(ctx context.Context, tenantID, instanceID string) iter.Seq2[supervisor.Event, error] {
	return listing(ctx, q.faults, OpHistory, q.client.History(ctx, tenantID, instanceID))
}

func (q faultInstances) Explain(ctx context.Context, tenantID, instanceID string) (supervisor.Explanation, error) {
	return call(ctx, q.faults, OpExplain, func() (supervisor.Explanation, error) {
		return q.client.Explain(ctx, tenantID, instanceID)
	})
}

func (q faultInstances) Prune(ctx context.Context, before time.Time) (int, error) {
	return call(ctx, q.faults, OpPrune, func() (int, error) { return q.client.Prune(ctx, before) })
}

// listing meets a fault when it is read: each reading is a call. ApplyThenFail
// yields all elements and then the error.
func listing[V any](ctx context.Context, f *Faults, op Op, list iter.Seq2[V, error]) iter.Seq2[V, error] {
	return func(yield func(V, error) bool) {
		stopped := false
		err := only(ctx, f, op, func() error {
			for v, err := range list {
				if !yield(v, err) || err != nil {
					stopped = true
					return nil
				}
			}
			return nil
		})
		if err != nil && !stopped {
			var none V
			yield(none, err)
		}
	}
}
