package supervisor_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

// checklists compiles specs such as {"steps": ["pick", "pack"]} to drivers that
// tick one step off with each evaluation. The state is the number of steps done.
type checklists struct{}

func (checklists) Compile(_ context.Context, revision *supervisor.Revision) (supervisor.Driver[struct{}], error) {
	var spec struct {
		Steps []string `json:"steps"`
	}
	if err := json.Unmarshal(revision.Spec, &spec); err != nil {
		return nil, err
	}
	if len(spec.Steps) == 0 {
		return nil, errors.New("a checklist needs steps")
	}
	evaluate := func(_ context.Context, _ struct{}, item *supervisor.WorkItem) (supervisor.TransitionCommand, error) {
		var done int
		if err := json.Unmarshal(item.State, &done); err != nil {
			return supervisor.TransitionCommand{}, supervisor.Permanent(err)
		}
		var then supervisor.Disposition = supervisor.Continue{}
		if done+1 == len(spec.Steps) {
			then = supervisor.Complete{}
		}
		return supervisor.NewCommand(item, "checklist."+spec.Steps[done], nil, done+1, then)
	}
	return supervisor.NewDriver(revision.SpecID, revision.Revision, evaluate), nil
}

// A compiler executes what is published at run time. Instances stay with the
// revision that they were started with.
func ExampleDriverRegistry_UseCompiler() {
	ctx := context.Background()
	queue := supervisor.NewMemoryWorkQueue()
	registry := supervisor.NewDriverRegistry[struct{}]()
	registry.UseCompiler(checklists{})

	publish := func(number uint64, spec string) *supervisor.Revision {
		revision := &supervisor.Revision{
			DefinitionID:     "order",
			Revision:         number,
			SpecID:           "order",
			Spec:             json.RawMessage(spec),
			KernelABIVersion: supervisor.DefaultKernelABIVersion,
		}
		var err error
		if revision.ContentDigest, err = revision.ComputeDigest(); err != nil {
			panic(err)
		}
		if err := queue.PublishRevision(ctx, supervisor.DefaultTenantID, revision); err != nil {
			panic(err)
		}
		return revision
	}
	start := func(id string, revision *supervisor.Revision) {
		instance, err := supervisor.NewInstance(revision.SpecID, revision.Revision, 0)
		if err != nil {
			panic(err)
		}
		instance.ID = id
		instance.WorkflowRevisionDigest = revision.ContentDigest
		if _, err := queue.Start(ctx, instance, time.Time{}); err != nil {
			panic(err)
		}
	}
	start("first", publish(1, `{"steps": ["pick", "ship"]}`))
	start("second", publish(2, `{"steps": ["pick", "pack", "ship"]}`))

	noContext := func(context.Context) (struct{}, error) { return struct{}{}, nil }
	for {
		stats, err := supervisor.RunDuePass(ctx, queue, registry, supervisor.Settings{}, noContext)
		if err != nil {
			panic(err)
		}
		if stats.Claimed == 0 {
			break
		}
	}
	for _, id := range []string{"first", "second"} {
		for event, err := range queue.History(ctx, supervisor.DefaultTenantID, id) {
			if err != nil {
				panic(err)
			}
			fmt.Println(id, event.Type)
		}
	}
	// Output:
	// first checklist.pick
	// first checklist.ship
	// second checklist.pick
	// second checklist.pack
	// second checklist.ship
}
