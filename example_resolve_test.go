package supervisor_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

// printer is what the instance may have done.
var printer = supervisor.CapabilityPin{ID: "label.print", ContractVersion: "1", ContentDigest: "code:label.print@1"}

// parcel has a label printed. It waits on while nobody knows whether it was.
func parcel(_ context.Context, _ struct{}, item *supervisor.WorkItem) (supervisor.TransitionCommand, error) {
	never := time.Date(9999, time.December, 31, 0, 0, 0, 0, time.UTC)
	if len(item.Wakeups) > 0 {
		wakeup := &item.Wakeups[0]
		result, err := supervisor.ParseActionResult(wakeup)
		if err != nil {
			return supervisor.TransitionCommand{}, supervisor.Permanent(err)
		}
		var then supervisor.Disposition = supervisor.Complete{}
		if result.Outcome == supervisor.OutcomeUnknown {
			then = supervisor.Reschedule{At: never} // another result follows
		}
		command, err := supervisor.NewCommand(item, "label."+string(result.Outcome), result.Output, "printing", then)
		command.ConsumedWakeups = []string{wakeup.ID}
		return command, err
	}
	// A printer knows nothing of keys, it prints what it is sent: class none, as
	// NewIntent has it.
	label, err := supervisor.NewIntent(item, "label", printer, nil)
	if err != nil {
		return supervisor.TransitionCommand{}, err
	}
	command, err := supervisor.NewCommand(item, "label.wanted", nil, "printing", supervisor.Reschedule{At: never})
	command.ActionIntents = []supervisor.ActionIntent{label}
	return command, err
}

// jammed is a printer of which nobody knows what it did.
type jammed struct{}

func (jammed) Dispatch(context.Context, *supervisor.Handoff) (supervisor.Receipt, error) {
	return supervisor.Receipt{}, errors.New("connection reset")
}

// A hand-off that may or may not have had its effect is not sent again. Its
// instance is told that the outcome is unknown; somebody has a look, and says
// what they found.
func ExampleMemoryWorkQueue_ResolveIntent() {
	ctx := context.Background()
	drivers := supervisor.NewDriverRegistry[struct{}]()
	if err := drivers.Register(supervisor.NewDriver("parcel", 1, parcel)); err != nil {
		log.Fatal(err)
	}
	providers := supervisor.NewProviderRegistry()
	if err := providers.Register(printer, jammed{}, supervisor.ProviderOptions{}); err != nil {
		log.Fatal(err)
	}
	queue := supervisor.NewMemoryWorkQueue()
	instance, err := supervisor.NewInstance("parcel", 1, nil)
	if err != nil {
		log.Fatal(err)
	}
	instance.ID = "parcel-1"
	instance.CapabilityPins = []supervisor.CapabilityPin{printer}
	if _, err := queue.Start(ctx, instance, time.Time{}); err != nil {
		log.Fatal(err)
	}
	noContext := func(context.Context) (struct{}, error) { return struct{}{}, nil }
	pass := func() {
		if _, err := supervisor.RunDuePass(ctx, queue, drivers, supervisor.Settings{}, noContext); err != nil {
			log.Fatal(err)
		}
		if _, err := supervisor.RunDispatchPass(ctx, queue, providers, supervisor.Settings{}); err != nil {
			log.Fatal(err)
		}
	}

	pass()
	pass()
	for record, err := range queue.ListIntents(ctx, supervisor.IntentFilter{State: supervisor.ActionUnknown}) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s of %s, attempt %d: %s in %s\n", record.Intent.ID, record.Intent.InstanceID, record.Attempt,
			record.Diagnostic.Category, record.Diagnostic.Phase)
		found := supervisor.IntentResolution{
			Kind: supervisor.ResolveSucceeded, Attempt: record.Attempt, Output: json.RawMessage(`"in the tray"`),
		}
		if err := queue.ResolveIntent(ctx, record.Key(), "Grace", found); err != nil {
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
	// label of parcel-1, attempt 1: error in dispatch
	// 1 label.wanted null
	// 2 label.unknown null
	// 3 label.succeeded "in the tray"
}
