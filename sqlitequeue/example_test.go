package sqlitequeue_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/workflow-supervisor/supervisor"
	"github.com/workflow-supervisor/supervisor/sqlitequeue"
)

// A countdown is one instance that is evaluated again and again. Its state is
// in the file: the process may end at any step, and the next one goes on.
func Example() {
	if err := countDown(context.Background()); err != nil {
		fmt.Println(err)
	}
	// Output:
	// 3
	// the process ends, and another one opens the file
	// 2
	// 1
	// completed after 3 steps
}

func countDown(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "countdown")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	path := filepath.Join(dir, "countdown.db")

	queue, err := sqlitequeue.Open(ctx, path, sqlitequeue.Options{})
	if err != nil {
		return err
	}
	instance, err := supervisor.NewInstance("countdown", 1, 3)
	if err != nil {
		return err
	}
	if _, err := queue.Start(ctx, instance, time.Time{}); err != nil {
		return err
	}
	if err := pass(ctx, queue); err != nil {
		return err
	}
	if err := queue.Close(); err != nil {
		return err
	}

	fmt.Fprintln(os.Stdout, "the process ends, and another one opens the file")
	if queue, err = sqlitequeue.Open(ctx, path, sqlitequeue.Options{}); err != nil {
		return err
	}
	for range 2 {
		if err := pass(ctx, queue); err != nil {
			return err
		}
	}
	snapshot, err := queue.Get(ctx, instance.TenantID, instance.ID)
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stdout, "%s after %d steps\n", snapshot.Status, snapshot.StateVersion)
	return queue.Close()
}

// pass evaluates what is due, once. A service runs [supervisor.Supervisor.Run].
func pass(ctx context.Context, queue supervisor.WorkQueue) error {
	driver := supervisor.NewDriver("countdown", 1,
		func(_ context.Context, _ struct{}, item *supervisor.WorkItem) (supervisor.TransitionCommand, error) {
			var left int
			if _, err := fmt.Sscan(string(item.State), &left); err != nil {
				return supervisor.TransitionCommand{}, err
			}
			fmt.Fprintln(os.Stdout, left)
			var next supervisor.Disposition = supervisor.Continue{}
			if left == 1 {
				next = supervisor.Complete{}
			}
			return supervisor.NewCommand(item, "counted", nil, left-1, next)
		})
	registry := supervisor.NewDriverRegistry[struct{}]()
	if err := registry.Register(driver); err != nil {
		return err
	}
	_, err := supervisor.RunDuePass(ctx, queue, registry, supervisor.Settings{},
		func(context.Context) (struct{}, error) { return struct{}{}, nil })
	return err
}

// An order and the workflow that serves it are stored together or not at all.
func ExampleQueue_StartTx() {
	if err := placeOrder(context.Background()); err != nil {
		fmt.Fprintln(os.Stdout, err)
	}
	// Output: 1 order, workflow active
}

func placeOrder(ctx context.Context) (err error) {
	dir, err := os.MkdirTemp("", "orders")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	queue, err := sqlitequeue.Open(ctx, filepath.Join(dir, "orders.db"), sqlitequeue.Options{})
	if err != nil {
		return err
	}
	defer func() { _ = queue.Close() }()
	if _, err := queue.DB().ExecContext(ctx, `CREATE TABLE orders (id TEXT PRIMARY KEY)`); err != nil {
		return err
	}
	instance, err := supervisor.NewInstance("order", 1, nil)
	if err != nil {
		return err
	}

	tx, err := queue.DB().BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.ExecContext(ctx, `INSERT INTO orders (id) VALUES (?)`, instance.ID); err != nil {
		return err
	}
	if _, err := queue.StartTx(ctx, tx, instance, time.Time{}); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return err
	}

	var orders int
	if err := queue.DB().QueryRowContext(ctx, `SELECT count(*) FROM orders`).Scan(&orders); err != nil {
		return err
	}
	snapshot, err := queue.Get(ctx, instance.TenantID, instance.ID)
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stdout, "%d order, workflow %s\n", orders, snapshot.Status)
	return nil
}
