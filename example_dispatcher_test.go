package supervisor_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"sync"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

// shakyServer loses the answer to the first attempt: nobody knows whether it
// sent the letter.
type shakyServer struct{}

func (shakyServer) Dispatch(_ context.Context, handoff *supervisor.Handoff) (supervisor.Receipt, error) {
	fmt.Printf("attempt %d under key %s\n", handoff.Attempt, handoff.Intent.IdempotencyKey)
	if handoff.Attempt == 1 {
		return supervisor.Receipt{}, errors.New("connection reset")
	}
	return supervisor.Receipt{
		Report: supervisor.Report{Status: supervisor.ProviderSucceeded, Output: json.RawMessage(`{"letter":7}`)},
	}, nil
}

// A service runs a dispatcher beside its supervisor, on the same queue. The
// driver is that of the example of RunDispatchPass. Its intents have the retry
// class native, so that an attempt of which nobody knows the outcome is repeated
// under the same key.
func ExampleDispatcher_Run() {
	drivers := supervisor.NewDriverRegistry[struct{}]()
	if err := drivers.Register(supervisor.NewDriver("invitation", 1, invitation)); err != nil {
		log.Fatal(err)
	}
	providers := supervisor.NewProviderRegistry()
	options := supervisor.ProviderOptions{
		Timeout: 10 * time.Second, // for each call
		Retry:   supervisor.RetryPolicy{Attempts: 3, Delay: 10 * time.Millisecond},
	}
	if err := providers.Register(mail, shakyServer{}, options); err != nil {
		log.Fatal(err)
	}
	queue := supervisor.NewMemoryWorkQueue()
	running, stop := context.WithCancel(context.Background()) // or signal.NotifyContext
	defer stop()
	settings := supervisor.Settings{Observer: &supervisor.Observer{
		Commit: func(info supervisor.CommitInfo) {
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
	dispatcher, err := supervisor.NewDispatcher(queue, providers, settings)
	if err != nil {
		log.Fatal(err)
	}
	var service sync.WaitGroup
	service.Go(func() {
		if err := loop.Run(running); err != nil {
			log.Print(err)
		}
	})
	service.Go(func() {
		if err := dispatcher.Run(running); err != nil {
			log.Print(err)
		}
	})

	instance, err := supervisor.NewInstance("invitation", 1, letter{To: "Ada"})
	if err != nil {
		log.Fatal(err)
	}
	instance.ID = "invitation-1"
	instance.CapabilityPins = []supervisor.CapabilityPin{mail} // all that it may ask for
	if _, err := queue.Start(running, instance, time.Time{}); err != nil {
		log.Fatal(err)
	}
	service.Wait()
	for event, err := range queue.History(context.Background(), instance.TenantID, instance.ID) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(event.StateVersion, event.Type, string(event.Payload))
	}
	// Output:
	// attempt 1 under key invitation-1/letter
	// attempt 2 under key invitation-1/letter
	// 1 letter.written null
	// 2 letter.succeeded {"letter":7}
}
