package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// riverArgs are the arguments of a job.
type riverArgs struct {
	ID string `json:"id"`
}

func (riverArgs) Kind() string { return "bench" }

// riverWorker does nothing but tell that a job has begun.
type riverWorker struct {
	river.WorkerDefaults[riverArgs]
	began func(id string)
}

func (w *riverWorker) Work(_ context.Context, job *river.Job[riverArgs]) error {
	if w.began != nil {
		w.began(job.Args.ID)
	}
	return nil
}

// riverSettings are one configuration of River.
type riverSettings struct {
	workers        int
	cooldown, poll time.Duration
}

var (
	// riverTuned is what River's own benchmark program sets.
	riverTuned = riverSettings{workers: 2000, cooldown: 2 * time.Millisecond, poll: 20 * time.Millisecond}
	// riverDefault has the workers of River's documentation, and its defaults.
	riverDefault = riverSettings{workers: 100}
)

// openRiver migrates and returns a client that is not started yet.
func openRiver(ctx context.Context, s *stage, settings riverSettings, began func(id string)) (*river.Client[pgx.Tx], error) {
	pool, err := s.pool(ctx, 8)
	if err != nil {
		return nil, err
	}
	driver := riverpgxv5.New(pool)
	migrator, err := rivermigrate.New(driver, &rivermigrate.Config{Schema: s.schema, Logger: quiet()})
	if err != nil {
		return nil, err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return nil, err
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, &riverWorker{began: began})
	return river.NewClient(driver, &river.Config{
		Schema:            s.schema,
		Logger:            quiet(),
		FetchCooldown:     settings.cooldown,
		FetchPollInterval: settings.poll,
		Queues:            map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: settings.workers}},
		Workers:           workers,
	})
}

// riverWork runs jobs that were inserted before.
type riverWork struct {
	client *river.Client[pgx.Tx]
	units  int
}

// run counts jobs by River's events, which come when their completion is
// stored, as its own benchmark program does.
func (w *riverWork) run(ctx context.Context) (int, error) {
	completed, cancel := w.client.SubscribeConfig(&river.SubscribeConfig{
		ChanSize: w.units + 1,
		Kinds:    []river.EventKind{river.EventKindJobCompleted, river.EventKindJobFailed},
	})
	defer cancel()
	if err := w.client.Start(ctx); err != nil {
		return 0, err
	}
	for done := range w.units {
		select {
		case event := <-completed:
			if event.Kind != river.EventKindJobCompleted {
				return done, fmt.Errorf("job %d failed", event.Job.ID)
			}
		case <-ctx.Done():
			return done, ctx.Err()
		}
	}
	return w.units, nil
}

func (w *riverWork) close() error { return w.client.Stop(context.Background()) }

func riverContender(name, about string, settings riverSettings, units int) *contender {
	return &contender{
		name:  name,
		about: about,
		unit:  "a job: the claim's update and the completion's update of one row, both in batches",
		lacks: "no event row, no state of a workflow; a job is fenced by its state, its lease is one hour",
		units: units,
		prepare: func(ctx context.Context, s *stage, units int) (work, error) {
			client, err := openRiver(ctx, s, settings, nil)
			if err != nil {
				return nil, err
			}
			const batch = 5000
			jobs := make([]river.InsertManyParams, 0, batch)
			for n := range units {
				jobs = append(jobs, river.InsertManyParams{Args: riverArgs{}})
				if len(jobs) == batch || n == units-1 {
					if _, err := client.InsertManyFast(ctx, jobs); err != nil {
						return nil, err
					}
					jobs = jobs[:0]
				}
			}
			return &riverWork{client, units}, s.analyze(ctx, "river_job")
		},
	}
}
