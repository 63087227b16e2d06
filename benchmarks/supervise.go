package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/workflow-supervisor/supervisor"
)

// benchSpec is the spec of all instances here, at code revision 1.
const benchSpec = "bench"

// inFlight is how many instances a supervisor evaluates at once.
const inFlight = 256

// supervised runs a [supervisor.Supervisor] on a queue of this library until a
// number of transitions is committed.
type supervised struct {
	queue supervisor.WorkQueue
	// complete is how many transitions complete an instance; 0: they never end.
	complete int
	target   int
	// progress counts commits, for whoever watches.
	progress *atomic.Int64
	// committed is called after each, if it is set.
	committed func(count int64)
}

// claimEach hides the queue's ability to keep a claim from one transition to
// the next, and with it all others but waiting.
type claimEach struct {
	supervisor.WorkQueue
	supervisor.Waiter
}

// waitingQueue is what every queue of this library is.
type waitingQueue interface {
	supervisor.WorkQueue
	supervisor.Waiter
}

// newSupervised returns a run that is to commit a number of transitions. keep:
// a claim is kept while the instance is due again at once.
func newSupervised(queue waitingQueue, keep bool, complete, target int) *supervised {
	s := &supervised{queue: queue, complete: complete, target: target, progress: new(atomic.Int64)}
	if !keep {
		s.queue = claimEach{queue, queue}
	}
	return s
}

// evaluate is the driver: a step that does nothing.
func (s *supervised) evaluate(_ context.Context, _ struct{}, item *supervisor.WorkItem) (supervisor.TransitionCommand, error) {
	step := json.RawMessage(`{"step":` + strconv.FormatInt(item.StateVersion+1, 10) + `}`)
	var next supervisor.Disposition = supervisor.Continue{}
	if item.StateVersion+1 == int64(s.complete) {
		next = supervisor.Complete{}
	}
	return supervisor.NewCommand(item, "stepped", step, step, next)
}

func (s *supervised) run(ctx context.Context) (int, error) {
	before := s.progress.Load()
	running, stop := context.WithCancel(ctx)
	defer stop()
	var failed error
	var once sync.Once
	observer := &supervisor.Observer{Commit: func(info supervisor.CommitInfo) {
		if info.Err != nil {
			once.Do(func() { failed = info.Err })
			stop()
			return
		}
		count := s.progress.Add(1)
		if s.committed != nil {
			s.committed(count)
		}
		if count-before == int64(s.target) {
			stop()
		}
	}}
	err := runSupervisor(running, s.queue, s.evaluate, observer)
	return int(s.progress.Load() - before), errors.Join(err, failed, ctx.Err())
}

// evaluation is a driver's function.
type evaluation func(context.Context, struct{}, *supervisor.WorkItem) (supervisor.TransitionCommand, error)

// runSupervisor runs a supervisor with one driver until ctx ends.
func runSupervisor(ctx context.Context, queue supervisor.WorkQueue, evaluate evaluation, observer *supervisor.Observer) error {
	registry := supervisor.NewDriverRegistry[struct{}]()
	if err := registry.Register(supervisor.NewDriver(benchSpec, 1, evaluate)); err != nil {
		return err
	}
	loop, err := supervisor.New(queue, registry, supervisor.Settings{Concurrency: inFlight, Observer: observer},
		func(context.Context) (struct{}, error) { return struct{}{}, nil })
	if err != nil {
		return err
	}
	return loop.Run(ctx)
}

// benchInstance returns an instance of a tenant.
func benchInstance(tenant, id string) (supervisor.Instance, error) {
	instance, err := supervisor.NewInstance(benchSpec, 1, json.RawMessage(`{"step":0}`))
	if err != nil {
		return instance, err
	}
	instance.TenantID, instance.ID = tenant, id
	return instance, nil
}

func tenantName(n int) string { return fmt.Sprintf("tenant-%d", n) }
