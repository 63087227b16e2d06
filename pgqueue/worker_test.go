package pgqueue

import (
	"context"
	"fmt"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"
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
