package pgqueue

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/workflow-supervisor/supervisor"
)

// The test binary is a worker process where workerVariable is set.
const (
	workerVariable       = "SUPERVISOR_TEST_WORKER"
	workerSchemaVariable = "SUPERVISOR_TEST_SCHEMA"
)

// runWorker does what a test wants another process to do.
func runWorker() (code int) {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv(dsnVariable))
	if err == nil {
		defer pool.Close()
		var q *Queue
		if q, err = New(pool, Options{Schema: os.Getenv(workerSchemaVariable)}); err == nil {
			defer q.Close()
			switch os.Getenv(workerVariable) {
			case "migrate":
				err = q.Migrate(ctx)
			case "run":
				err = runSupervisor(ctx, q)
			case "start":
				var i supervisor.Instance
				if i, err = supervisor.NewInstance(testSpec, 1, nil); err == nil {
					_, err = q.Start(ctx, i, time.Time{})
				}
				// Notifications follow; a queue that is closed sends none.
				time.Sleep(100 * time.Millisecond)
			case "dispatch":
				err = dispatchUntilKilled(ctx, q)
			default:
				err = fmt.Errorf("unknown work %q", os.Getenv(workerVariable))
			}
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// runSupervisor takes instances through their steps until the process is killed.
func runSupervisor(ctx context.Context, q *Queue) error {
	registry := supervisor.NewDriverRegistry[int]()
	if err := registry.Register(supervisor.NewDriver("spec", 1, stepDriver)); err != nil {
		return err
	}
	settings := supervisor.Settings{
		Concurrency: 8, LeaseDuration: 2 * time.Second, RequeueDelay: time.Second, PollInterval: 100 * time.Millisecond,
	}
	s, err := supervisor.New(q, registry, settings, func(context.Context) (int, error) { return 0, nil })
	if err != nil {
		return err
	}
	return s.Run(ctx)
}
