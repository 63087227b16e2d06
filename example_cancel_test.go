package supervisor_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

// rent goes on for ever, until it is cancelled: then it converges, which is to
// say that it puts everything back and ends.
func rent(_ context.Context, _ struct{}, item *supervisor.WorkItem) (supervisor.TransitionCommand, error) {
	if item.CancelRequested {
		return supervisor.NewCommand(item, "rent.keys-returned", nil, "moved out", supervisor.Complete{})
	}
	return supervisor.NewCommand(item, "rent.paid", nil, "living here", supervisor.Continue{Delay: 30 * 24 * time.Hour})
}

// Cancel is durable: it is part of the instance, not a message that may be lost.
// It makes the instance due, and the driver has the last word.
func ExampleMemoryWorkQueue_Cancel() {
	ctx := context.Background()
	drivers := supervisor.NewDriverRegistry[struct{}]()
	if err := drivers.Register(supervisor.NewDriver("rent", 1, rent)); err != nil {
		log.Fatal(err)
	}
	queue := supervisor.NewMemoryWorkQueue()
	instance, err := supervisor.NewInstance("rent", 1, nil)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := queue.Start(ctx, instance, time.Time{}); err != nil {
		log.Fatal(err)
	}
	noContext := func(context.Context) (struct{}, error) { return struct{}{}, nil }
	pass := func() {
		if _, err := supervisor.RunDuePass(ctx, queue, drivers, supervisor.Settings{}, noContext); err != nil {
			log.Fatal(err)
		}
		snapshot, err := queue.Get(ctx, instance.TenantID, instance.ID)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(snapshot.Status, string(snapshot.State))
	}

	pass()
	if err := queue.Cancel(ctx, instance.TenantID, instance.ID); err != nil {
		log.Fatal(err)
	}
	pass()
	// Output:
	// active "living here"
	// cancelled "moved out"
}
