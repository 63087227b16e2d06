package main

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/dbos-inc/dbos-transact-golang/dbos"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/workflow-supervisor/supervisor"
	"github.com/workflow-supervisor/supervisor/pgqueue"
)

// Names of the cases that others are compared with.
const (
	handInProcess = "by hand, in process"
	handNotify    = "by hand, LISTEN/NOTIFY, across processes"
)

func latencyCases() []latencyCase {
	return []latencyCase{
		{name: handInProcess, about: "an insert, a channel, a claim", prepare: handLatency(false)},
		{
			name: "pgqueue, in process", about: "Start and Supervisor.Run on one queue, default settings",
			reference: handInProcess, prepare: pgqueueLatency,
		},
		{name: handNotify, about: "an insert with pg_notify, a listening connection, a claim", across: true, prepare: handLatency(true)},
		{
			name: "pgqueue, across processes", about: "Start in another process, default settings", across: true,
			reference: handNotify, prepare: pgqueueLatency,
		},
		{
			name: "River", about: "FetchCooldown 2 ms, FetchPollInterval 20 ms; wakes by LISTEN/NOTIFY", reference: handNotify,
			prepare: riverLatency(riverTuned),
		},
		{
			name: "River, defaults", about: "FetchCooldown 100 ms; wakes by LISTEN/NOTIFY", reference: handNotify,
			prepare: riverLatency(riverDefault),
		},
		{name: "DBOS, queue, defaults", about: "polls each second", reference: handNotify, prepare: dbosLatency(0)},
		{
			name: "DBOS, queue, 10 ms", about: "polls each 10 ms", reference: handNotify,
			prepare: dbosLatency(10 * time.Millisecond),
		},
	}
}

// Statements of the system by hand.
const (
	handTask   = `CREATE TABLE task (id text PRIMARY KEY, due timestamptz NOT NULL, status smallint NOT NULL, lease_until timestamptz); CREATE INDEX ON task (due) WHERE status = 0`
	handInsert = `INSERT INTO task (id, due, status) VALUES ($1, clock_timestamp(), 0)`
	handTell   = `WITH i AS (INSERT INTO task (id, due, status) VALUES ($1, clock_timestamp(), 0)) SELECT pg_notify($2, '')`
	handTake   = `
		UPDATE task SET status = 1, lease_until = clock_timestamp() + interval '60 s'
		WHERE id IN (SELECT id FROM task WHERE status = 0 AND due <= clock_timestamp() ORDER BY due LIMIT 100 FOR UPDATE SKIP LOCKED)
		RETURNING id`
)

// handLatency is the wake-up that one would write by hand. The channel that is
// notified has the name of the schema.
func handLatency(notify bool) func(context.Context, *stage, func(string)) (latencySystem, error) {
	return func(ctx context.Context, s *stage, began func(string)) (latencySystem, error) {
		pool, err := s.pool(ctx, 4)
		if err != nil {
			return latencySystem{}, err
		}
		for statement := range strings.SplitSeq(handTask, ";") {
			if _, err := pool.Exec(ctx, statement); err != nil {
				return latencySystem{}, err
			}
		}
		running, stop := context.WithCancel(ctx)
		wake := make(chan struct{}, 1)
		poke := func() {
			select {
			case wake <- struct{}{}:
			default:
			}
		}
		var group errgroup.Group
		if notify {
			listener, err := pool.Acquire(ctx)
			if err != nil {
				stop()
				return latencySystem{}, err
			}
			if _, err := listener.Exec(ctx, "LISTEN "+quoted(s.schema)); err != nil {
				stop()
				listener.Release()
				return latencySystem{}, err
			}
			// Ends with stop.
			group.Go(func() error {
				defer listener.Release()
				for {
					if _, err := listener.Conn().WaitForNotification(running); err != nil {
						return err
					}
					poke()
				}
			})
		}
		// Ends with stop.
		group.Go(func() error {
			for {
				select {
				case <-wake:
				case <-running.Done():
					return running.Err()
				}
				if err := takeByHand(running, pool, began); err != nil {
					return err
				}
			}
		})
		return latencySystem{
			starter: starterHand,
			start: func(ctx context.Context, id string) error {
				_, err := pool.Exec(ctx, handInsert, id)
				poke()
				return err
			},
			stop: func() error {
				stop()
				return unless(group.Wait(), context.Canceled)
			},
		}, nil
	}
}

func takeByHand(ctx context.Context, pool *pgxpool.Pool, began func(string)) error {
	rows, err := pool.Query(ctx, handTake)
	if err != nil {
		return err
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	for _, id := range ids {
		began(id)
	}
	return nil
}

// unless returns err, or nil where it is the error that was expected.
func unless(err, expected error) error {
	if errors.Is(err, expected) {
		return nil
	}
	return err
}

func pgqueueLatency(ctx context.Context, s *stage, began func(string)) (latencySystem, error) {
	q, _, err := openPgqueue(ctx, s, pgSeed{tenants: 1})
	if err != nil {
		return latencySystem{}, err
	}
	running, stop := context.WithCancel(ctx)
	evaluate := func(_ context.Context, _ struct{}, item *supervisor.WorkItem) (supervisor.TransitionCommand, error) {
		began(item.ID)
		return supervisor.NewCommand(item, "began", nil, item.State, supervisor.Complete{})
	}
	var group errgroup.Group
	// Ends with stop.
	group.Go(func() error { return runSupervisor(running, q, evaluate, nil) })
	return latencySystem{
		starter: starterPgqueue,
		start:   pgqueueStart(q),
		stop: func() error {
			stop()
			defer q.Close()
			return group.Wait()
		},
	}, nil
}

// pgqueueStart returns what starts an instance in a queue.
func pgqueueStart(q *pgqueue.Queue) func(context.Context, string) error {
	return func(ctx context.Context, id string) error {
		instance, err := benchInstance(tenantName(0), id)
		if err != nil {
			return err
		}
		_, err = q.Start(ctx, instance, time.Time{})
		return err
	}
}

func riverLatency(settings riverSettings) func(context.Context, *stage, func(string)) (latencySystem, error) {
	return func(ctx context.Context, s *stage, began func(string)) (latencySystem, error) {
		client, err := openRiver(ctx, s, settings, began)
		if err != nil {
			return latencySystem{}, err
		}
		if err := client.Start(ctx); err != nil {
			return latencySystem{}, err
		}
		return latencySystem{
			start: func(ctx context.Context, id string) error {
				_, err := client.Insert(ctx, riverArgs{ID: id}, nil)
				return err
			},
			stop: func() error { return client.Stop(context.WithoutCancel(ctx)) },
		}, nil
	}
}

func dbosLatency(polling time.Duration) func(context.Context, *stage, func(string)) (latencySystem, error) {
	return func(ctx context.Context, s *stage, began func(string)) (latencySystem, error) {
		system, _, err := openDBOS(ctx, s)
		if err != nil {
			return latencySystem{}, err
		}
		begin := func(_ dbos.Context, id string) (int, error) { //nolint:unparam // what a workflow is
			began(id)
			return 0, nil
		}
		dbos.RegisterWorkflow(system, begin, dbos.WithWorkflowName("begin"))
		options := []dbos.QueueOption{dbos.WithWorkerConcurrency(dbosAtOnce)}
		if polling > 0 {
			options = append(options, dbos.WithQueueBasePollingInterval(polling))
		}
		queue, err := dbos.RegisterQueue(system, dbosQueue, options...)
		if err != nil {
			return latencySystem{}, err
		}
		if err := dbos.Launch(system); err != nil {
			return latencySystem{}, err
		}
		return latencySystem{
			start: func(_ context.Context, id string) error {
				_, err := dbos.RunWorkflow(system, begin, id, dbos.WithWorkflowID(id), dbos.WithQueue(queue))
				return err
			},
			stop: func() error { return dbos.Shutdown(system, dbosTimeout) },
		}, nil
	}
}
