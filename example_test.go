package supervisor_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

// greeting is the durable state of an instance.
type greeting struct {
	Name string `json:"name"`
	Text string `json:"text,omitempty"`
}

// greet is a driver: it makes one command from what was claimed, and touches
// nothing else.
func greet(_ context.Context, _ struct{}, item *supervisor.WorkItem) (supervisor.TransitionCommand, error) {
	var g greeting
	if err := json.Unmarshal(item.State, &g); err != nil {
		return supervisor.TransitionCommand{}, supervisor.Permanent(err)
	}
	if g.Text == "" {
		g.Text = "Hello, " + g.Name + "!"
		return supervisor.NewCommand(item, "greeting.written", nil, g, supervisor.Continue{})
	}
	return supervisor.NewCommand(item, "greeting.sent", g.Text, g, supervisor.Complete{})
}

// A workflow of two steps, from its start to its end.
func Example() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()

	drivers := supervisor.NewDriverRegistry[struct{}]()
	if err := drivers.Register(supervisor.NewDriver("greeting", 1, greet)); err != nil {
		log.Fatal(err)
	}

	queue := supervisor.NewMemoryWorkQueue()
	instance, err := supervisor.NewInstance("greeting", 1, greeting{Name: "Ada"})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := queue.Start(ctx, instance, time.Time{}); err != nil {
		log.Fatal(err)
	}

	settings := supervisor.Settings{Observer: &supervisor.Observer{
		Commit: func(info supervisor.CommitInfo) {
			fmt.Println(info.Command.EventType, string(info.Command.NextState))
			if _, done := info.Command.Disposition.(supervisor.Complete); done {
				stop() // a service runs on, until it is told to end
			}
		},
	}}
	noContext := func(context.Context) (struct{}, error) { return struct{}{}, nil }
	loop, err := supervisor.New(queue, drivers, settings, noContext)
	if err != nil {
		log.Fatal(err)
	}
	if err := loop.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// greeting.written {"name":"Ada","text":"Hello, Ada!"}
	// greeting.sent {"name":"Ada","text":"Hello, Ada!"}
}
