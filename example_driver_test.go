package supervisor_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"

	"github.com/workflow-supervisor/supervisor"
)

// stock is what evaluations of one pass share.
type stock map[string]int

type purchase struct {
	Article string `json:"article"`
	Pieces  int    `json:"pieces"`
}

func reserve(_ context.Context, stock stock, item *supervisor.WorkItem) (supervisor.TransitionCommand, error) {
	var wanted purchase
	if err := json.Unmarshal(item.Config, &wanted); err != nil {
		return supervisor.TransitionCommand{}, supervisor.Permanent(err)
	}
	if stock[wanted.Article] < wanted.Pieces {
		return supervisor.TransitionCommand{}, errors.New("out of stock") // tried again later
	}
	return supervisor.NewCommand(item, "purchase.reserved", nil, wanted, supervisor.Complete{})
}

// A driver is a function from an item to a command, so that it is tested
// without a queue, a clock or a supervisor.
func ExampleNewDriver() {
	driver := supervisor.NewDriver("purchase", 1, reserve)

	instance, err := supervisor.NewInstance("purchase", 1, purchase{Article: "lamp", Pieces: 2})
	if err != nil {
		log.Fatal(err)
	}
	item := &supervisor.WorkItem{Instance: instance, State: instance.Config, LeaseVersion: 1}

	for _, stock := range []stock{{"lamp": 1}, {"lamp": 2}} {
		command, err := driver.Evaluate(context.Background(), stock, item)
		if err != nil {
			fmt.Println("error:", err)
			continue
		}
		fmt.Printf("%s %s %T, valid: %v\n", command.EventType, command.NextState, command.Disposition,
			command.ValidateFor(item) == nil)
	}
	// Output:
	// error: out of stock
	// purchase.reserved {"article":"lamp","pieces":2} supervisor.Complete, valid: true
}
