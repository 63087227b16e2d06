package supervisor_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

// fetch fails in the three ways that there are. Its attempts are counted by the
// queue, so that they survive a crash.
func fetch(_ context.Context, _ struct{}, item *supervisor.WorkItem) (supervisor.TransitionCommand, error) {
	switch item.Attempt {
	case 0: // tried again after Settings.RequeueDelay, then after twice as long, and so on
		return supervisor.TransitionCommand{}, errors.New("connection refused")
	case 1: // tried again when the other side says
		return supervisor.TransitionCommand{}, supervisor.RetryAfter(errors.New("too many requests"), time.Hour)
	default: // failed for good
		return supervisor.TransitionCommand{}, supervisor.Permanent(errors.New("gone"))
	}
}

func ExampleRetryAfter() {
	ctx := context.Background()
	drivers := supervisor.NewDriverRegistry[struct{}]()
	if err := drivers.Register(supervisor.NewDriver("fetch", 1, fetch)); err != nil {
		log.Fatal(err)
	}
	instance, err := supervisor.NewInstance("fetch", 1, nil)
	if err != nil {
		log.Fatal(err)
	}
	noContext := func(context.Context) (struct{}, error) { return struct{}{}, nil }
	for attempt := range 3 {
		queue := supervisor.NewMemoryWorkQueue(supervisor.WorkItem{Instance: instance, Attempt: attempt})
		if _, err := supervisor.RunDuePass(ctx, queue, drivers, supervisor.Settings{}, noContext); err != nil {
			log.Fatal(err)
		}
		explanation, err := queue.Explain(ctx, instance.TenantID, instance.ID)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Print(explanation.Reason, ": ", explanation.Detail)
		if !explanation.Until.IsZero() {
			fmt.Print(", again in ", time.Until(explanation.Until).Round(time.Second))
		}
		fmt.Println()
	}
	// Output:
	// backing_off: connection refused, again in 5s
	// backing_off: too many requests, again in 1h0m0s
	// failed: gone
}
