package main

import (
	"context"
	"time"

	"github.com/workflow-supervisor/supervisor"
	"github.com/workflow-supervisor/supervisor/sqlitequeue"
)

// store is the queue of a run. Which one it is makes no difference to the rest
// of the program, but for what is left when the process has ended.
type store struct {
	queue interface {
		supervisor.WorkQueue
		supervisor.Instances
		supervisor.IntentQueue
	}
	// forget drops what has ended; nil where the queue shall remember it.
	forget func(context.Context) error
	close  func() error
	// afterInterrupt tells what an interrupt means for the orders on the way.
	afterInterrupt string
}

// openStore opens the queue in an SQLite file, or one in memory where path is empty.
func openStore(ctx context.Context, path string) (*store, error) {
	if path == "" {
		queue := supervisor.NewMemoryWorkQueue()
		return &store{
			queue: queue,
			// A million orders would stay in memory after their end.
			forget: func(ctx context.Context) error {
				queue.ClearHistory()
				_, err := queue.Prune(ctx, time.Now().Add(time.Second)) // what ends at this instant, too
				return err
			},
			close:          func() error { return nil },
			afterInterrupt: "; without -db nothing is left of the orders on the way",
		}, nil
	}
	queue, err := sqlitequeue.Open(ctx, path, sqlitequeue.Options{})
	if err != nil {
		return nil, err
	}
	return &store{
		queue:          queue,
		close:          queue.Close,
		afterInterrupt: "; the same command goes on with the orders on the way",
	}, nil
}
