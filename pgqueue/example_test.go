package pgqueue_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/workflow-supervisor/supervisor"
	"github.com/workflow-supervisor/supervisor/pgqueue"
)

// A service that runs workflow instances of one spec until its context ends. It
// may run in as many processes as there is work for.
func Example() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	queue, err := pgqueue.New(pool, pgqueue.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer queue.Close()
	if err := queue.Migrate(ctx); err != nil {
		log.Fatal(err)
	}

	registry := supervisor.NewDriverRegistry[struct{}]()
	greet := supervisor.NewDriver("greet", 1, func(_ context.Context, _ struct{}, item *supervisor.WorkItem) (supervisor.TransitionCommand, error) {
		fmt.Printf("hello %s\n", item.State)
		return supervisor.NewCommand(item, "greeted", nil, "done", supervisor.Complete{})
	})
	if err := registry.Register(greet); err != nil {
		log.Fatal(err)
	}
	service, err := supervisor.New(queue, registry, supervisor.Settings{}, func(context.Context) (struct{}, error) {
		return struct{}{}, nil
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := service.Run(ctx); err != nil {
		log.Fatal(err)
	}
}

// An order and the workflow that sees to it exist both or neither.
func ExampleQueue_StartTx() {
	placeOrder := func(ctx context.Context, pool *pgxpool.Pool, queue *pgqueue.Queue, orderID string) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "INSERT INTO orders (id) VALUES ($1)", orderID); err != nil {
				return err
			}
			instance, err := supervisor.NewInstance("order", 1, map[string]string{"order": orderID})
			if err != nil {
				return err
			}
			instance.ID = orderID
			started, err := queue.StartTx(ctx, tx, instance, instance.Lifecycle.StartsAt)
			if err == nil && !started {
				err = errors.New("the order was placed before")
			}
			return err
		})
	}
	_ = placeOrder
}
