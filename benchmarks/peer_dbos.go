package main

import (
	"context"
	"strconv"
	"time"

	"github.com/dbos-inc/dbos-transact-golang/dbos"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"
)

const (
	dbosQueue    = "bench"
	dbosWorkflow = "bench"
	// dbosConnections is the size of the pool that DBOS would make itself.
	dbosConnections = 20
	// dbosAtOnce is how many workflows run side by side.
	dbosAtOnce  = 100
	dbosTimeout = time.Minute
)

// dbosSteps is a workflow of a number of steps that do nothing.
func dbosSteps(ctx dbos.Context, steps int) (int, error) {
	for range steps {
		if _, err := dbos.RunAsStep(ctx, func(context.Context) (int, error) { return 0, nil }); err != nil {
			return 0, err
		}
	}
	return steps, nil
}

// openDBOS returns a context that is migrated, but not launched.
func openDBOS(ctx context.Context, s *stage) (dbos.Context, *pgxpool.Pool, error) {
	pool, err := s.pool(ctx, dbosConnections)
	if err != nil {
		return nil, nil, err
	}
	context, err := dbos.NewContext(ctx, dbos.Config{
		AppName:            "bench",
		SystemDBPool:       pool,
		DatabaseSchema:     s.schema,
		Logger:             quiet(),
		ApplicationVersion: "1",
	})
	return context, pool, err
}

// dbosDirect runs workflows in goroutines of the caller.
type dbosDirect struct {
	context   dbos.Context
	workflows int
}

func (w *dbosDirect) run(ctx context.Context) (int, error) {
	var group errgroup.Group
	group.SetLimit(dbosAtOnce)
	for n := range w.workflows {
		// Ends with the workflow.
		group.Go(func() error {
			handle, err := dbos.RunWorkflow(w.context, dbosSteps, transitionsPerInstance, dbos.WithWorkflowID(strconv.Itoa(n)))
			if err != nil {
				return err
			}
			_, err = handle.GetResult()
			return err
		})
	}
	return w.workflows * transitionsPerInstance, group.Wait()
}

func (w *dbosDirect) close() error { return dbos.Shutdown(w.context, dbosTimeout) }

// dbosQueued runs workflows that a client has enqueued before.
type dbosQueued struct {
	context   dbos.Context
	pool      *pgxpool.Pool
	workflows int
}

func (w *dbosQueued) run(ctx context.Context) (int, error) {
	if err := dbos.Launch(w.context); err != nil {
		return 0, err
	}
	return w.workflows * transitionsPerInstance,
		awaitNone(ctx, w.pool, `SELECT count(*) FROM (SELECT FROM workflow_status WHERE status <> 'SUCCESS' LIMIT 1) w`)
}

func (w *dbosQueued) close() error { return dbos.Shutdown(w.context, dbosTimeout) }

const (
	dbosUnit = "a step: a transaction to check, one to lock the workflow and insert the output; the workflow's own rows are shared by its 10 steps"
	// What a DBOS step does not have of ours, in short.
	dbosLacks = "no lease (recovery by executor id), no fence, no intents"
)

func dbosDirectContender(name string) *contender {
	return &contender{
		name:  name,
		about: "workflows of 10 steps run directly, 100 at once, its pool of 20",
		unit:  dbosUnit,
		lacks: dbosLacks,
		units: 5_000,
		prepare: func(ctx context.Context, s *stage, units int) (work, error) {
			context, _, err := openDBOS(ctx, s)
			if err != nil {
				return nil, err
			}
			dbos.RegisterWorkflow(context, dbosSteps, dbos.WithWorkflowName(dbosWorkflow))
			return &dbosDirect{context, max(units/transitionsPerInstance, 1)}, dbos.Launch(context)
		},
	}
}

func dbosQueueContender(name string) *contender {
	return &contender{
		name:  name,
		about: "workflows of 10 steps from a queue, 100 at once, polled each 10 ms, its pool of 20",
		unit:  dbosUnit,
		lacks: dbosLacks,
		units: 5_000,
		prepare: func(ctx context.Context, s *stage, units int) (work, error) {
			context, pool, err := openDBOS(ctx, s)
			if err != nil {
				return nil, err
			}
			dbos.RegisterWorkflow(context, dbosSteps, dbos.WithWorkflowName(dbosWorkflow))
			if _, err := dbos.RegisterQueue(context, dbosQueue, dbos.WithWorkerConcurrency(dbosAtOnce),
				dbos.WithQueueBasePollingInterval(10*time.Millisecond)); err != nil {
				return nil, err
			}
			w := &dbosQueued{context, pool, max(units/transitionsPerInstance, 1)}
			// Closed by the client's end.
			own, err := s.pool(ctx, dbosConnections)
			if err != nil {
				return nil, err
			}
			client, err := dbos.NewClient(ctx, dbos.ClientConfig{
				AppName: "bench", SystemDBPool: own, DatabaseSchema: s.schema, Logger: quiet(),
			})
			if err != nil {
				return nil, err
			}
			var group errgroup.Group
			group.SetLimit(dbosConnections)
			for range w.workflows {
				// Ends when it is enqueued.
				group.Go(func() error {
					_, err := dbos.Enqueue[int](client, dbosQueue, dbosWorkflow, transitionsPerInstance)
					return err
				})
			}
			if err := group.Wait(); err != nil {
				return nil, err
			}
			if err := dbos.Shutdown(client, dbosTimeout); err != nil {
				return nil, err
			}
			return w, s.analyze(ctx, "workflow_status")
		},
	}
}
