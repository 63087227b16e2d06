package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/cschleiden/go-workflows/backend"
	"github.com/cschleiden/go-workflows/backend/monoprocess"
	"github.com/cschleiden/go-workflows/backend/sqlite"
	"github.com/cschleiden/go-workflows/client"
	"github.com/cschleiden/go-workflows/worker"
	"github.com/cschleiden/go-workflows/workflow"
)

// goWorkflow is a workflow of a number of activities that do nothing, one after
// the other.
func goWorkflow(ctx workflow.Context, activities int) (int, error) {
	for range activities {
		if _, err := workflow.ExecuteActivity[int](ctx, workflow.DefaultActivityOptions, goActivity).Get(ctx); err != nil {
			return 0, err
		}
	}
	return activities, nil
}

func goActivity(context.Context) (int, error) { return 0, nil }

// goWorkflowsTimeout bounds how long a workflow is waited for.
const goWorkflowsTimeout = 5 * time.Minute

type goWorkflowsWork struct {
	backend   backend.Backend
	client    *client.Client
	instances []*workflow.Instance
}

func (w *goWorkflowsWork) run(ctx context.Context) (int, error) {
	options := worker.DefaultOptions
	options.SingleWorkerMode = true
	options.WorkflowExecutorCacheSize = max(len(w.instances), options.WorkflowExecutorCacheSize)
	loop := worker.New(w.backend, &options)
	if err := errors.Join(loop.RegisterWorkflow(goWorkflow), loop.RegisterActivity(goActivity)); err != nil {
		return 0, err
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	if err := loop.Start(running); err != nil {
		return 0, err
	}
	for _, instance := range w.instances {
		if err := w.client.WaitForWorkflowInstance(ctx, instance, goWorkflowsTimeout); err != nil {
			return 0, err
		}
	}
	stop()
	return len(w.instances) * transitionsPerInstance, loop.WaitForCompletion()
}

func (w *goWorkflowsWork) close() error { return w.backend.Close() }

func goWorkflowsContender(name string) *contender {
	return &contender{
		name:  name,
		about: "workflows of 10 activities, in one process (its monoprocess wrapper), every instance in the executor cache",
		unit:  "an activity: 4 transactions, to get and to complete a workflow task and an activity task",
		lacks: "no fence by number (the worker's name), no intents",
		units: 500,
		prepare: func(ctx context.Context, s *stage, units int) (work, error) {
			store := monoprocess.NewMonoprocessBackend(sqlite.NewSqliteBackend(filepath.Join(s.folder, "workflows.db"),
				sqlite.WithBackendOptions(backend.WithLogger(quiet()))))
			w := &goWorkflowsWork{backend: store, client: client.New(store)}
			for n := range max(units/transitionsPerInstance, 1) {
				instance, err := w.client.CreateWorkflowInstance(ctx,
					client.WorkflowInstanceOptions{InstanceID: fmt.Sprintf("instance-%d", n)}, goWorkflow, transitionsPerInstance)
				if err != nil {
					return nil, errors.Join(err, store.Close())
				}
				w.instances = append(w.instances, instance)
			}
			return w, nil
		},
	}
}
