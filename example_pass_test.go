package supervisor_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

// countdown goes on at once until it has come to nothing.
func countdown(_ context.Context, _ struct{}, item *supervisor.WorkItem) (supervisor.TransitionCommand, error) {
	var left int
	if err := json.Unmarshal(item.State, &left); err != nil {
		return supervisor.TransitionCommand{}, supervisor.Permanent(err)
	}
	if left == 0 {
		return supervisor.NewCommand(item, "countdown.ended", nil, 0, supervisor.Complete{})
	}
	return supervisor.NewCommand(item, "countdown.counted", left, left-1, supervisor.Continue{})
}

// A pass claims once what is due, and returns when all of it is settled: for a
// cron job, a serverless function or a test.
func ExampleRunDuePass() {
	ctx := context.Background()
	drivers := supervisor.NewDriverRegistry[struct{}]()
	if err := drivers.Register(supervisor.NewDriver("countdown", 1, countdown)); err != nil {
		log.Fatal(err)
	}
	queue := supervisor.NewMemoryWorkQueue()
	for from := range 3 {
		instance, err := supervisor.NewInstance("countdown", 1, from)
		if err != nil {
			log.Fatal(err)
		}
		if _, err := queue.Start(ctx, instance, time.Time{}); err != nil {
			log.Fatal(err)
		}
	}

	noContext := func(context.Context) (struct{}, error) { return struct{}{}, nil }
	for {
		stats, err := supervisor.RunDuePass(ctx, queue, drivers, supervisor.Settings{}, noContext)
		if err != nil {
			log.Fatal(err)
		}
		if stats.Claimed == 0 {
			break
		}
		fmt.Printf("claimed %d: %d continued, %d completed\n", stats.Claimed, stats.Continued, stats.Completed)
	}
	// Output:
	// claimed 3: 2 continued, 1 completed
	// claimed 2: 1 continued, 1 completed
	// claimed 1: 0 continued, 1 completed
}
