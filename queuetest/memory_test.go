package queuetest_test

import (
	"testing"

	"github.com/workflow-supervisor/supervisor"
	"github.com/workflow-supervisor/supervisor/queuetest"
)

func openMemory(*testing.T) queuetest.Queue {
	return queuetest.Queue{WorkQueue: supervisor.NewMemoryWorkQueue()}
}

func TestMemoryWorkQueue(t *testing.T) { queuetest.Run(t, openMemory) }

func TestMemoryWorkQueueInBubbles(t *testing.T) { queuetest.RunInBubbles(t, openMemory) }
