package supervisor_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

// bank is what the instance may have done.
var bank = supervisor.CapabilityPin{ID: "bank.transfer", ContractVersion: "1", ContentDigest: "code:bank.transfer@1"}

// payout asks for a transfer that a human has to allow.
func payout(_ context.Context, _ struct{}, item *supervisor.WorkItem) (supervisor.TransitionCommand, error) {
	if len(item.Wakeups) > 0 {
		wakeup := &item.Wakeups[0]
		result, err := supervisor.ParseActionResult(wakeup)
		if err != nil {
			return supervisor.TransitionCommand{}, supervisor.Permanent(err)
		}
		command, err := supervisor.NewCommand(item, "payout."+string(result.Outcome), result.Reason, "done", supervisor.Complete{})
		command.ConsumedWakeups = []string{wakeup.ID}
		return command, err
	}
	never := time.Date(9999, time.December, 31, 0, 0, 0, 0, time.UTC)
	transfer, err := supervisor.NewIntent(item, "transfer", bank, item.Config)
	if err != nil {
		return supervisor.TransitionCommand{}, err
	}
	transfer.RequiresConfirmation = true
	command, err := supervisor.NewCommand(item, "payout.asked", nil, "waiting", supervisor.Reschedule{At: never})
	command.ActionIntents = []supervisor.ActionIntent{transfer}
	return command, err
}

type bankServer struct{}

func (bankServer) Dispatch(_ context.Context, handoff *supervisor.Handoff) (supervisor.Receipt, error) {
	fmt.Printf("transferred %s, confirmed by %s\n", handoff.Intent.Input, handoff.Intent.Confirmation.By)
	return supervisor.Receipt{Report: supervisor.Report{Status: supervisor.ProviderSucceeded}}, nil
}

// An intent that requires confirmation is not handed off before somebody has
// allowed it. Who did is kept with it.
func ExampleMemoryWorkQueue_ConfirmIntent() {
	ctx := context.Background()
	drivers := supervisor.NewDriverRegistry[struct{}]()
	if err := drivers.Register(supervisor.NewDriver("payout", 1, payout)); err != nil {
		log.Fatal(err)
	}
	providers := supervisor.NewProviderRegistry()
	if err := providers.Register(bank, bankServer{}, supervisor.ProviderOptions{}); err != nil {
		log.Fatal(err)
	}
	queue := supervisor.NewMemoryWorkQueue()
	for id, amount := range map[string]int{"small": 10, "large": 10_000} {
		instance, err := supervisor.NewInstance("payout", 1, amount)
		if err != nil {
			log.Fatal(err)
		}
		instance.ID = id
		instance.CapabilityPins = []supervisor.CapabilityPin{bank}
		if _, err := queue.Start(ctx, instance, time.Time{}); err != nil {
			log.Fatal(err)
		}
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
	// What an operator's page shows, and what its buttons do.
	filter := supervisor.IntentFilter{State: supervisor.ActionAwaitingConfirmation}
	for record, err := range queue.ListIntents(ctx, filter) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s waits: %s\n", record.Intent.InstanceID, record.Intent.Input)
	}
	key := supervisor.IntentKey{TenantID: supervisor.DefaultTenantID, InstanceID: "small", IntentID: "transfer"}
	if err := queue.ConfirmIntent(ctx, key, "Grace"); err != nil {
		log.Fatal(err)
	}
	key.InstanceID = "large"
	if err := queue.RejectIntent(ctx, key, "Grace", "over the limit"); err != nil {
		log.Fatal(err)
	}
	pass()
	pass()
	for _, id := range []string{"small", "large"} {
		for event, err := range queue.History(ctx, supervisor.DefaultTenantID, id) {
			if err != nil {
				log.Fatal(err)
			}
			fmt.Println(id, event.Type, string(event.Payload))
		}
	}
	// Output:
	// large waits: 10000
	// small waits: 10
	// transferred 10, confirmed by Grace
	// small payout.asked null
	// small payout.succeeded ""
	// large payout.asked null
	// large payout.withdrawn "over the limit"
}
