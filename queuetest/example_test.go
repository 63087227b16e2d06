package queuetest_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/workflow-supervisor/supervisor"
	"github.com/workflow-supervisor/supervisor/queuetest"
)

// A commit whose acknowledgement is lost: repeated under the same key it is
// applied once.
func ExampleFaults() {
	ctx := context.Background()
	faults, err := queuetest.NewFaults(1,
		queuetest.Fault{Kind: queuetest.ApplyThenFail, Op: queuetest.OpCommitCommand, Call: 1},
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	memory := supervisor.NewMemoryWorkQueue()
	queue := faults.Wrap(memory)

	instance, _ := supervisor.NewInstance("greeting", 1, "hello")
	_, _ = memory.Start(ctx, instance, time.Time{})
	items, _ := queue.ClaimDue(ctx, supervisor.ClaimRequest{WorkerID: "w", LeaseDuration: time.Minute, Limit: 1})
	command, _ := supervisor.NewCommand(&items[0], "greeted", nil, "hello", supervisor.Complete{})

	err = queue.CommitCommand(ctx, &items[0], &command)
	fmt.Println("unknown outcome:", errors.Is(err, supervisor.ErrCommitUnknown))
	fmt.Println("repeated:", queue.CommitCommand(ctx, &items[0], &command))
	fmt.Println("commits:", len(memory.Committed()))
	fmt.Println("injected:", faults.Injected())
	// Output:
	// unknown outcome: true
	// repeated: <nil>
	// commits: 1
	// injected: [{CommitCommand 1 apply_then_fail}]
}
