package supervisor_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

// approval waits for a verdict. The command that consumes the delivery and the
// one that acts on it are the same, so that no verdict is lost or counted twice.
func approval(_ context.Context, _ struct{}, item *supervisor.WorkItem) (supervisor.TransitionCommand, error) {
	for _, wakeup := range item.Wakeups {
		if wakeup.Kind == "verdict" {
			command, err := supervisor.NewCommand(item, "approval.decided", wakeup.Payload, wakeup.Payload, supervisor.Complete{})
			command.ConsumedWakeups = []string{wakeup.ID}
			return command, err
		}
	}
	// Nothing but a delivery shall wake it: the end of the calendar is far away.
	never := time.Date(9999, time.December, 31, 0, 0, 0, 0, time.UTC)
	return supervisor.NewCommand(item, "approval.asked", nil, "waiting", supervisor.Reschedule{At: never})
}

// A delivery may come at any time, before the instance waits for it too, and as
// often as its sender likes: its id makes it one.
func ExampleMemoryWorkQueue_Deliver() {
	ctx := context.Background()
	drivers := supervisor.NewDriverRegistry[struct{}]()
	if err := drivers.Register(supervisor.NewDriver("approval", 1, approval)); err != nil {
		log.Fatal(err)
	}
	queue := supervisor.NewMemoryWorkQueue()
	instance, err := supervisor.NewInstance("approval", 1, nil)
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
		explanation, err := queue.Explain(ctx, instance.TenantID, instance.ID)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(explanation.Reason)
	}

	pass()
	verdict := supervisor.Wakeup{ID: "mail-17", Kind: "verdict", Payload: json.RawMessage(`"yes"`)}
	for range 2 { // the sender did not get the first answer
		if err := queue.Deliver(ctx, instance.TenantID, instance.ID, verdict, time.Time{}); err != nil {
			log.Fatal(err)
		}
	}
	pass()
	for event, err := range queue.History(ctx, instance.TenantID, instance.ID) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(event.StateVersion, event.Type, string(event.Payload))
	}
	// Output:
	// waiting
	// completed
	// 1 approval.asked null
	// 2 approval.decided "yes"
}
