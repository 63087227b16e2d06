package queuetest_test

import (
	"context"
	"testing"

	"github.com/workflow-supervisor/supervisor"
	"github.com/workflow-supervisor/supervisor/queuetest"
)

func openMemory(*testing.T) queuetest.Queue {
	queue := supervisor.NewMemoryWorkQueue()
	return queuetest.Queue{
		WorkQueue: queue,
		Intents: func(_ context.Context, tenantID, instanceID string) (intents []supervisor.ActionIntent, err error) {
			for _, commit := range queue.Committed() {
				if commit.Item.TenantID == tenantID && commit.Item.ID == instanceID {
					intents = append(intents, commit.Command.ActionIntents...)
				}
			}
			return intents, nil
		},
	}
}

func TestMemoryWorkQueue(t *testing.T) { queuetest.Run(t, openMemory) }

func TestMemoryWorkQueueInBubbles(t *testing.T) { queuetest.RunInBubbles(t, openMemory) }
