package supervisor

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

type evaluateFunc = func(ctx context.Context, item *WorkItem) (TransitionCommand, error)

// complete is the least evaluation.
func complete(_ context.Context, item *WorkItem) (TransitionCommand, error) { return completed(item) }

// push makes items due.
func (q *scriptQueue) push(items ...WorkItem) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.items = append(q.items, items...)
}

// claimCalls, renewCalls and commitCalls return what was recorded so far.
func (q *scriptQueue) claimCalls() []claimCall   { return recorded(&q.mu, &q.claims) }
func (q *scriptQueue) renewCalls() []renewCall   { return recorded(&q.mu, &q.renews) }
func (q *scriptQueue) commitCalls() []commitCall { return recorded(&q.mu, &q.commits) }

func recorded[T any](mu *sync.Mutex, calls *[]T) []T {
	mu.Lock()
	defer mu.Unlock()
	return slices.Clone(*calls)
}

// failureOf returns the failure that is the only commit for an instance.
func (q *scriptQueue) failureOf(t *testing.T, id string) Failed {
	t.Helper()
	commits := q.commitsOf(id)
	require.Len(t, commits, 1, "commits of %s", id)
	require.Equal(t, EventEvaluationFailed, commits[0].command.EventType)
	require.IsType(t, Failed{}, commits[0].command.Disposition)
	return commits[0].command.Disposition.(Failed)
}

// releaseCall is a claim that was given back.
type releaseCall struct {
	at     time.Time
	item   WorkItem
	reason string
	ctxErr error
}

// releasingQueue is a scriptQueue that is a Releaser.
type releasingQueue struct {
	*scriptQueue
	onRelease func(ctx context.Context, item *WorkItem, reason string) error

	releases []releaseCall
}

func (q *releasingQueue) Release(ctx context.Context, item *WorkItem, reason string) error {
	q.mu.Lock()
	q.releases = append(q.releases, releaseCall{time.Now(), item.Clone(), reason, ctx.Err()})
	q.mu.Unlock()
	if q.onRelease != nil {
		return q.onRelease(ctx, item, reason)
	}
	return nil
}

func (q *releasingQueue) releaseCalls() []releaseCall { return recorded(&q.mu, &q.releases) }

// waitingQueue is a scriptQueue that is a Waiter.
type waitingQueue struct {
	*scriptQueue
	onWait func(ctx context.Context, specIDs []string) error

	waits atomic.Int64
}

func (q *waitingQueue) WaitDue(ctx context.Context, specIDs []string) error {
	q.waits.Add(1)
	return q.onWait(ctx, specIDs)
}

// keepingQueue is a releasingQueue that is a CommitKeeper. It records commits
// like a plain one, and keeps a claim as long as its command does not end the
// instance.
type keepingQueue struct {
	*releasingQueue
	// onKeep replaces the rule for what is kept.
	onKeep func(ctx context.Context, item *WorkItem, command *TransitionCommand, lease time.Duration) (*WorkItem, error)

	keeps []WorkItem
}

func newKeepingQueue(items ...WorkItem) *keepingQueue {
	return &keepingQueue{releasingQueue: &releasingQueue{scriptQueue: &scriptQueue{items: items}}}
}

func (q *keepingQueue) CommitAndKeep(ctx context.Context, item *WorkItem, command *TransitionCommand, lease time.Duration) (*WorkItem, error) {
	q.mu.Lock()
	q.keeps = append(q.keeps, item.Clone())
	q.mu.Unlock()
	if q.onKeep != nil {
		return q.onKeep(ctx, item, command, lease)
	}
	if err := q.CommitCommand(ctx, item, command); err != nil {
		return nil, err
	}
	next := item.Clone()
	next.State = slices.Clone(command.NextState)
	next.StateVersion++
	next.LeaseVersion++
	next.ClaimedAt = time.Now().UTC()
	return &next, nil
}

func (q *keepingQueue) keepCalls() []WorkItem { return recorded(&q.mu, &q.keeps) }

// mostAtOnce counts what runs at one time.
type mostAtOnce struct{ now, most atomic.Int64 }

// enter returns the function that ends what began.
func (m *mostAtOnce) enter() (leave func()) {
	now := m.now.Add(1)
	for most := m.most.Load(); now > most && !m.most.CompareAndSwap(most, now); most = m.most.Load() {
	}
	return func() { m.now.Add(-1) }
}
