package queuetest

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

// minimal is a queue with no more than a WorkQueue and a way to add an item, as
// a service may bring it.
func minimal(m *model) Queue {
	return Queue{
		WorkQueue: bareQueue{m},
		Add: func(ctx context.Context, item supervisor.WorkItem) error {
			if _, err := m.Start(ctx, item.Instance, item.ScheduledAt); err != nil {
				return err
			}
			for _, wakeup := range item.Wakeups {
				if err := m.Deliver(ctx, item.TenantID, item.ID, wakeup, time.Time{}); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

func TestMinimalQueuePasses(t *testing.T) {
	RunInBubbles(t, func(*testing.T) Queue { return minimal(newModel(broken{})) })
}

// minimalIntents is minimal for a queue that is also one of intents.
func minimalIntents(m *model) Queue {
	queue := minimal(m)
	queue.WorkQueue = struct {
		bareQueue
		bareIntents
	}{bareQueue{m}, bareIntents{m}}
	return queue
}

func TestMinimalQueueOfIntentsPasses(t *testing.T) {
	RunInBubbles(t, func(*testing.T) Queue { return minimalIntents(newModel(broken{})) })
}

// someInstances has a few methods of Instances, and no others.
type someInstances struct {
	NoInstances
	m *model
}

func (s someInstances) Deliver(ctx context.Context, tenantID, instanceID string, wakeup supervisor.Wakeup, dueAt time.Time) error {
	return s.m.Deliver(ctx, tenantID, instanceID, wakeup, dueAt)
}

func (s someInstances) Cancel(ctx context.Context, tenantID, instanceID string) error {
	return s.m.Cancel(ctx, tenantID, instanceID)
}

func TestQueueWithSomeInstancesPasses(t *testing.T) {
	RunInBubbles(t, func(*testing.T) Queue {
		m := newModel(broken{})
		queue := minimal(m)
		queue.Instances = someInstances{m: m}
		return queue
	})
}

func TestSkipsNameWhatIsMissing(t *testing.T) {
	for _, skip := range []struct {
		id, missing string
		queue       func(m *model) Queue
	}{
		{"pause/tenant", "supervisor.Instances", minimal},
		{"keep/repeated", "supervisor.CommitKeeper", minimal},
		{"release/fences", "supervisor.Releaser", minimal},
		{"wait/start", "supervisor.Waiter", minimal},
		{"wait/deliver", "supervisor.Instances, supervisor.Waiter", minimal},
		{"atomicity/commit", "Queue.FailWrite", minimal},
		{"claim/broken-row", "Queue.Corrupt", minimal},
		{"clock/wrong-host-clock", "Queue.ShiftHost", minimal},
		{"admission/denied", "Queue.Deny", minimal},
		{"fencing/another-handle", "Queue.Reopen", minimal},
		{"intent-claim/order", "supervisor.IntentQueue", minimal},
		{"intent-wait/commit", "supervisor.IntentWaiter", minimalIntents},
		{"intent-confirm/awaits", "supervisor.IntentOperator", minimalIntents},
		{"intent-cancel/repeated", "supervisor.Instances", minimalIntents},
		{"pause/tenant", "Pause", func(m *model) Queue {
			queue := minimal(m)
			queue.Instances = someInstances{m: m}
			return queue
		}},
	} {
		report := record(t, findCase(t, skip.id), func() Queue { return skip.queue(newModel(broken{})) })
		if len(report.failed) > 0 || len(report.skipped) != 1 || !strings.Contains(report.skipped[0], skip.missing) {
			t.Errorf("case %s: skipped is %q and failed %q, want a skip that names %s", skip.id, report.skipped, report.failed, skip.missing)
		}
	}
}

func TestQueueWithoutAWayToAdd(t *testing.T) {
	report := record(t, findCase(t, "claim/limit"), func() Queue { return Queue{WorkQueue: bareQueue{newModel(broken{})}} })
	if len(report.failed) != 1 || !strings.Contains(report.failed[0], "Add") {
		t.Errorf("reported was %q, want what is missing", report.failed)
	}
}

// TestModelPasses runs the suite in real time on one queue for many cases, as
// durable queues run it.
func TestModelPasses(t *testing.T) {
	Run(t, func(*testing.T) Queue {
		m := newModel(broken{})
		queue := m.queue()
		queue.Lease = 200 * time.Millisecond
		queue.Reopen = func(*testing.T) supervisor.WorkQueue { return m }
		return queue
	})
}

func TestTopicsKeepTheirOrder(t *testing.T) {
	var topics []string
	for topic := range byTopic([]testCase{{topic: "b"}, {topic: "a"}, {topic: "b"}}) {
		topics = append(topics, topic)
	}
	if !slices.Equal(topics, []string{"b", "a"}) {
		t.Errorf("the topics are %v", topics)
	}
}
