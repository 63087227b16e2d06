package supervisor_test

import (
	"testing"

	"github.com/workflow-supervisor/supervisor"
	"github.com/workflow-supervisor/supervisor/queuetest"
)

func TestMemoryWorkQueueConforms(t *testing.T) {
	queuetest.RunInBubbles(t, func(t *testing.T) queuetest.Queue {
		return queuetest.Queue{WorkQueue: supervisor.NewMemoryWorkQueue()}
	})
}

// In real time the cases share one queue and run side by side.
func TestMemoryWorkQueueConformsUnderLoad(t *testing.T) {
	queuetest.Run(t, func(t *testing.T) queuetest.Queue {
		return queuetest.Queue{WorkQueue: supervisor.NewMemoryWorkQueue()}
	})
}
