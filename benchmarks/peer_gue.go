package main

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/vgarvardt/gue/v5"
	"github.com/vgarvardt/gue/v5/adapter/pgxv5"
	"golang.org/x/sync/errgroup"
)

// gueSchema is the table that gue's migrations make, for it has no code for them.
const gueSchema = `
	CREATE TABLE gue_jobs (job_id text PRIMARY KEY, priority smallint NOT NULL, run_at timestamptz NOT NULL, job_type text NOT NULL,
		args bytea NOT NULL, error_count integer NOT NULL DEFAULT 0, last_error text, queue text NOT NULL,
		created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL);
	CREATE INDEX idx_gue_jobs_selector ON gue_jobs (queue, run_at, priority)`

const (
	gueQueue   = "bench"
	gueWorkers = 16
)

type gueWork struct {
	pool   *pgxpool.Pool
	client *gue.Client
	units  int
}

func (w *gueWork) run(ctx context.Context) (int, error) {
	nothing := func(context.Context, *gue.Job) error { return nil }
	workers, err := gue.NewWorkerPool(w.client, gue.WorkMap{"bench": nothing}, gueWorkers,
		gue.WithPoolQueue(gueQueue),
		gue.WithPoolPollStrategy(gue.RunAtPollStrategy),
		gue.WithPoolPollInterval(100*time.Millisecond))
	if err != nil {
		return 0, err
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	var group errgroup.Group
	// Ends when all jobs are gone.
	group.Go(func() error { return workers.Run(running) })
	err = awaitNone(ctx, w.pool, `SELECT count(*) FROM (SELECT FROM gue_jobs LIMIT 1) j`)
	stop()
	// The workers return what ended them, which is stop.
	if ended := group.Wait(); err == nil && running.Err() == nil {
		err = ended
	}
	return w.units, err
}

func (w *gueWork) close() error { return nil }

// awaitNone waits until a query counts nothing. It asks often enough to add
// little to a round of a second, and seldom enough to cost little.
func awaitNone(ctx context.Context, pool *pgxpool.Pool, query string) error {
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for {
		var left int
		if err := pool.QueryRow(ctx, query).Scan(&left); err != nil {
			return err
		}
		if left == 0 {
			return nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func gueContender(name string) *contender {
	return &contender{
		name:  name,
		about: "16 workers, ordered by run_at, which its index serves",
		unit:  "a job: select for update and delete, in one transaction held over the work",
		lacks: "no lease (a row lock), no fence, no state, no event row",
		units: 8_000,
		prepare: func(ctx context.Context, s *stage, units int) (work, error) {
			pool, err := s.pool(ctx, gueWorkers+2)
			if err != nil {
				return nil, err
			}
			if _, err := pool.Exec(ctx, gueSchema); err != nil {
				return nil, err
			}
			client, err := gue.NewClient(pgxv5.NewConnPool(pool))
			if err != nil {
				return nil, err
			}
			for begin := 0; begin < units; begin += 1000 {
				var jobs []*gue.Job
				for range min(1000, units-begin) {
					jobs = append(jobs, &gue.Job{Queue: gueQueue, Type: "bench", Args: []byte("{}")})
				}
				if err := client.EnqueueBatch(ctx, jobs); err != nil {
					return nil, err
				}
			}
			return &gueWork{pool, client, units}, s.analyze(ctx, "gue_jobs")
		},
	}
}
