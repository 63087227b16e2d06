//go:build unix

package commandprovider_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"

	"github.com/workflow-supervisor/supervisor"
	"github.com/workflow-supervisor/supervisor/commandprovider"
)

// A command that reads the input of the intent and promises what its statuses
// mean: 75 that nothing was printed. A real one would be a program of yours.
func Example() {
	provider, err := commandprovider.New(commandprovider.Config{
		Command: []string{"/bin/sh", "-c", `page=$(cat) || exit 75; echo "{{\"printed\":$page,\"tray\":\"$1\"}}"`, "print", "{instance}"},
		Exits:   map[int]commandprovider.Meaning{75: commandprovider.Retryable},
	})
	if err != nil {
		log.Fatal(err)
	}
	providers := supervisor.NewProviderRegistry()
	pin := supervisor.CapabilityPin{ID: "page.print", ContractVersion: "1", ContentDigest: "code:page.print@1"}
	if err := providers.Register(pin, provider, supervisor.ProviderOptions{}); err != nil {
		log.Fatal(err)
	}

	// This is what a dispatcher does.
	receipt, err := provider.Dispatch(context.Background(), &supervisor.Handoff{Attempt: 1, Intent: supervisor.ActionIntent{
		ID: "page", TenantID: "default", InstanceID: "A-1001", IdempotencyKey: "A-1001/page",
		Capability: pin, Input: json.RawMessage(`"hello"`),
		Effect: supervisor.EffectExternalWrite, RetryClass: supervisor.IdempotencyNeverAutomaticRetry,
	}})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(receipt.Status, string(receipt.Output))
	// Output: succeeded {"printed":"hello","tray":"A-1001"}
}
