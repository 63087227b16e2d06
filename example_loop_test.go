package supervisor_test

import (
	"context"
	"fmt"
	"log"
	"sync"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

// A service runs a supervisor beside everything else that it does, starts
// instances whenever it likes, and ends the supervisor last.
func ExampleSupervisor_Run() {
	drivers := supervisor.NewDriverRegistry[struct{}]()
	err := drivers.Register(supervisor.NewDriver("ping", 1,
		func(_ context.Context, _ struct{}, item *supervisor.WorkItem) (supervisor.TransitionCommand, error) {
			return supervisor.NewCommand(item, "ping.answered", nil, nil, supervisor.Complete{})
		}))
	if err != nil {
		log.Fatal(err)
	}
	queue := supervisor.NewMemoryWorkQueue()
	var answers sync.WaitGroup
	settings := supervisor.Settings{
		LeaseDuration: 30 * time.Second, // what a crashed process held is taken up again after it
		Concurrency:   8,
		DrainTimeout:  10 * time.Second, // for what is being evaluated when the service ends
		Observer:      &supervisor.Observer{Commit: func(supervisor.CommitInfo) { answers.Done() }},
	}
	noContext := func(context.Context) (struct{}, error) { return struct{}{}, nil }
	loop, err := supervisor.New(queue, drivers, settings, noContext)
	if err != nil {
		log.Fatal(err)
	}

	running, stop := context.WithCancel(context.Background()) // or signal.NotifyContext
	var service sync.WaitGroup
	service.Go(func() {
		if err := loop.Run(running); err != nil {
			log.Print(err)
		}
	})

	answers.Add(100)
	for range 100 {
		instance, err := supervisor.NewInstance("ping", 1, nil)
		if err != nil {
			log.Fatal(err)
		}
		if _, err := queue.Start(running, instance, time.Time{}); err != nil {
			log.Fatal(err)
		}
	}
	answers.Wait()

	stop()
	service.Wait() // nothing of the supervisor is left now
	fmt.Println("completed", loop.Stats().Completed)
	// Output: completed 100
}
