package supervisor_test

import (
	"testing"

	"github.com/workflow-supervisor/supervisor/queuetest"
)

// TestListQueue proves the queue of ExampleWorkQueue. It is all that a service
// needs to prove its own.
func TestListQueue(t *testing.T) {
	queuetest.RunInBubbles(t, func(*testing.T) queuetest.Queue {
		queue := new(listQueue)
		return queuetest.Queue{WorkQueue: queue, Add: queue.Add}
	})
}
