package supervisor_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

// mail is what the instance may have done. Its pin names the version too.
var mail = supervisor.CapabilityPin{ID: "mail.send", ContractVersion: "1", ContentDigest: "code:mail.send@1"}

// letter is the durable state of an invitation.
type letter struct {
	To    string `json:"to"`
	Asked bool   `json:"asked,omitempty"`
}

// invitation has a letter sent and waits for what becomes of it. It sends
// nothing by itself: the commit stores the intent, and the dispatcher hands it
// off afterwards.
func invitation(_ context.Context, _ struct{}, item *supervisor.WorkItem) (supervisor.TransitionCommand, error) {
	var state letter
	if err := json.Unmarshal(item.State, &state); err != nil {
		return supervisor.TransitionCommand{}, supervisor.Permanent(err)
	}
	for _, wakeup := range item.Wakeups {
		if wakeup.Kind != supervisor.WakeupKindAction {
			continue
		}
		result, err := supervisor.ParseActionResult(&wakeup)
		if err != nil {
			return supervisor.TransitionCommand{}, supervisor.Permanent(err)
		}
		command, err := supervisor.NewCommand(item, "letter."+string(result.Outcome), result.Output, state, supervisor.Complete{})
		command.ConsumedWakeups = []string{wakeup.ID}
		return command, err
	}
	// Nothing but the wakeup shall wake it: the end of the calendar is far away.
	never := time.Date(9999, time.December, 31, 0, 0, 0, 0, time.UTC)
	if state.Asked {
		return supervisor.NewCommand(item, "letter.awaited", nil, state, supervisor.Reschedule{At: never})
	}
	state.Asked = true // the state says it, and not StateVersion, which a failure raises too
	letter, err := supervisor.NewIntent(item, "letter", mail, item.Config)
	if err != nil {
		return supervisor.TransitionCommand{}, err
	}
	// The server takes repeats under one key as one.
	letter.RetryClass, letter.IdempotencyKey = supervisor.IdempotencyNative, item.ID+"/letter"
	command, err := supervisor.NewCommand(item, "letter.written", nil, state, supervisor.Reschedule{At: never})
	command.ActionIntents = []supervisor.ActionIntent{letter}
	return command, err
}

// mailServer is a provider that answers at once.
type mailServer struct{}

func (mailServer) Dispatch(_ context.Context, handoff *supervisor.Handoff) (supervisor.Receipt, error) {
	fmt.Printf("sent %s under key %s\n", handoff.Intent.Input, handoff.Intent.IdempotencyKey)
	return supervisor.Receipt{
		Reference: "mail-7",
		Report:    supervisor.Report{Status: supervisor.ProviderSucceeded, Output: json.RawMessage(`{"letter":7}`)},
	}, nil
}

// An instance asks for an effect by an intent in its command. A dispatcher hands
// it to the provider of the capability, and a wakeup tells the instance what
// became of it. A service has a [supervisor.Dispatcher] run beside its
// supervisor; here each does one pass at a time.
func ExampleRunDispatchPass() {
	ctx := context.Background()
	drivers := supervisor.NewDriverRegistry[struct{}]()
	if err := drivers.Register(supervisor.NewDriver("invitation", 1, invitation)); err != nil {
		log.Fatal(err)
	}
	providers := supervisor.NewProviderRegistry()
	if err := providers.Register(mail, mailServer{}, supervisor.ProviderOptions{}); err != nil {
		log.Fatal(err)
	}
	queue := supervisor.NewMemoryWorkQueue()
	instance, err := supervisor.NewInstance("invitation", 1, letter{To: "Ada"})
	if err != nil {
		log.Fatal(err)
	}
	instance.ID = "invitation-1"
	instance.CapabilityPins = []supervisor.CapabilityPin{mail}
	if _, err := queue.Start(ctx, instance, time.Time{}); err != nil {
		log.Fatal(err)
	}

	noContext := func(context.Context) (struct{}, error) { return struct{}{}, nil }
	for range 2 {
		if _, err := supervisor.RunDuePass(ctx, queue, drivers, supervisor.Settings{}, noContext); err != nil {
			log.Fatal(err)
		}
		stats, err := supervisor.RunDispatchPass(ctx, queue, providers, supervisor.Settings{})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("handed off:", stats.HandedOff)
	}
	for event, err := range queue.History(ctx, instance.TenantID, instance.ID) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(event.StateVersion, event.Type, string(event.Payload))
	}
	// Output:
	// sent {"to":"Ada"} under key invitation-1/letter
	// handed off: 1
	// handed off: 0
	// 1 letter.written null
	// 2 letter.succeeded {"letter":7}
}
