package supervisor_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

// scriptCompiler makes drivers of specs that are lists of words: a driver says
// one of them at a time.
type scriptCompiler struct{}

func (scriptCompiler) Compile(_ context.Context, revision *supervisor.Revision) (supervisor.Driver[struct{}], error) {
	var words []string
	if err := json.Unmarshal(revision.Spec, &words); err != nil {
		return nil, fmt.Errorf("spec %q: %w", revision.SpecID, err)
	}
	return supervisor.NewDriver(revision.SpecID, revision.Revision,
		func(_ context.Context, _ struct{}, item *supervisor.WorkItem) (supervisor.TransitionCommand, error) {
			said := item.StateVersion
			if said == int64(len(words)) {
				return supervisor.NewCommand(item, "script.ended", nil, nil, supervisor.Complete{})
			}
			return supervisor.NewCommand(item, "script.said", words[said], nil, supervisor.Continue{})
		}), nil
}

// Where workflows are data, their revisions are published, and an instance is
// pinned to the digest of the one that it was started with. A later revision
// changes nothing for it.
func ExampleCompiler() {
	ctx := context.Background()
	queue := supervisor.NewMemoryWorkQueue()
	drivers := supervisor.NewDriverRegistry[struct{}]()
	drivers.UseCompiler(scriptCompiler{})

	publish := func(number uint64, spec string) supervisor.Revision {
		revision := supervisor.Revision{
			DefinitionID: "speech", Revision: number, SpecID: "speech",
			Spec: json.RawMessage(spec), KernelABIVersion: supervisor.DefaultKernelABIVersion,
		}
		digest, err := revision.ComputeDigest()
		if err != nil {
			log.Fatal(err)
		}
		revision.ContentDigest = digest
		if err := queue.PublishRevision(ctx, supervisor.DefaultTenantID, &revision); err != nil {
			log.Fatal(err)
		}
		return revision
	}
	first := publish(1, `["good", "morning"]`)

	instance, err := supervisor.NewInstance(first.SpecID, first.Revision, nil)
	if err != nil {
		log.Fatal(err)
	}
	instance.WorkflowRevisionDigest = first.ContentDigest
	if _, err := queue.Start(ctx, instance, time.Time{}); err != nil {
		log.Fatal(err)
	}
	publish(2, `["good", "night"]`)

	noContext := func(context.Context) (struct{}, error) { return struct{}{}, nil }
	for range 3 {
		if _, err := supervisor.RunDuePass(ctx, queue, drivers, supervisor.Settings{}, noContext); err != nil {
			log.Fatal(err)
		}
	}
	for event, err := range queue.History(ctx, instance.TenantID, instance.ID) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(event.Type, string(event.Payload))
	}
	// Output:
	// script.said "good"
	// script.said "morning"
	// script.ended null
}
