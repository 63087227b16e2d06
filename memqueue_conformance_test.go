package supervisor_test

import (
	"testing"

	"github.com/workflow-supervisor/supervisor"
	"github.com/workflow-supervisor/supervisor/queuetest"
)

func TestMemoryWorkQueueConforms(t *testing.T) {
	queuetest.RunInBubbles(t, func(*testing.T) queuetest.Queue {
		return queuetest.Queue{WorkQueue: supervisor.NewMemoryWorkQueue()}
	})
}
