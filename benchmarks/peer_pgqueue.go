package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/workflow-supervisor/supervisor/pgqueue"
)

// pgSeed says which instances a queue holds: those that are due, and others
// that wait for more than an hour, spread evenly over the tenants.
type pgSeed struct{ due, waiting, tenants int }

// openPgqueue returns a queue with instances, and a pool to look at its tables.
func openPgqueue(ctx context.Context, s *stage, seed pgSeed) (*pgqueue.Queue, *pgxpool.Pool, error) {
	pool, err := s.pool(ctx, 0)
	if err != nil {
		return nil, nil, err
	}
	q, err := pgqueue.New(pool, pgqueue.Options{Schema: s.schema})
	if err != nil {
		return nil, nil, err
	}
	if err := q.Migrate(ctx); err != nil {
		q.Close()
		return nil, nil, err
	}
	if err := seedPgqueue(ctx, q, pool, s.schema, seed); err != nil {
		q.Close()
		return nil, nil, err
	}
	return q, pool, nil
}

// seedPgqueue starts an instance of each kind and tenant with the queue's own
// Start, and multiplies them in the tables, which takes seconds for a million.
func seedPgqueue(ctx context.Context, q *pgqueue.Queue, pool *pgxpool.Pool, schema string, seed pgSeed) error {
	for kind, count := range map[string]int{"due": seed.due, "waiting": seed.waiting} {
		if count == 0 {
			continue
		}
		dueAt := time.Time{}
		if kind == "waiting" {
			dueAt = time.Now().Add(time.Hour)
		}
		group, starting := errgroup.WithContext(ctx)
		group.SetLimit(4)
		for n := range min(seed.tenants, count) {
			// Each ends with its start.
			group.Go(func() error {
				instance, err := benchInstance(tenantName(n), kind+"-0")
				if err != nil {
					return err
				}
				_, err = q.Start(starting, instance, dueAt)
				return err
			})
		}
		if err := group.Wait(); err != nil {
			return err
		}
		if err := multiply(ctx, pool, schema, kind, count, seed.tenants); err != nil {
			return fmt.Errorf("seed: %w", err)
		}
	}
	rows, err := pool.Query(ctx, "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = $1::regnamespace", quoted(schema))
	if err != nil {
		return err
	}
	var tables []string
	for rows.Next() {
		var table string
		if err := rows.Scan(&table); err != nil {
			return err
		}
		tables = append(tables, "ANALYZE "+quoted(table))
	}
	if err := rows.Err(); err != nil {
		return err
	}
	return execAll(ctx, pool, tables...)
}

// multiply makes copies of the first instance of a kind, as many per tenant as
// add up to count. Waiting ones come due one after the other.
func multiply(ctx context.Context, pool *pgxpool.Pool, schema, kind string, count, tenants int) error {
	copies := count/tenants - 1
	if copies < 1 {
		return nil
	}
	instance, err := columns(ctx, pool, schema, "instance")
	if err != nil {
		return err
	}
	run, err := columns(ctx, pool, schema, "run")
	if err != nil {
		return err
	}
	names, values := selection(instance, "t", map[string]string{
		"id":     fmt.Sprintf("'%s-' || n", kind),
		"run_id": "gen_random_uuid()::text",
	})
	if _, err := pool.Exec(ctx, fmt.Sprintf(
		`INSERT INTO instance (%s) SELECT %s FROM generate_series(1, %d) n CROSS JOIN instance t WHERE t.id = '%s-0'`,
		names, values, copies, kind)); err != nil {
		return err
	}
	later := "r.due_at"
	if kind == "waiting" {
		later += " + (i.instance_no - t.instance_no) * interval '1 ms'"
	}
	names, values = selection(run, "r", map[string]string{"instance_no": "i.instance_no", "due_at": later})
	_, err = pool.Exec(ctx, fmt.Sprintf(
		`INSERT INTO run (%[1]s) SELECT %[2]s FROM instance t JOIN run r USING (instance_no) JOIN instance i ON i.tenant_id = t.tenant_id
		WHERE t.id = '%[3]s-0' AND i.id LIKE '%[3]s-%%' AND i.id <> t.id`,
		names, values, kind))
	return err
}

// columns returns those columns of a table that an insert may give.
func columns(ctx context.Context, pool *pgxpool.Pool, schema, table string) ([]string, error) {
	rows, err := pool.Query(ctx, `
		SELECT attname FROM pg_attribute
		WHERE attrelid = ($1 || '.' || $2)::regclass AND attnum > 0 AND NOT attisdropped AND attidentity <> 'a' AND attgenerated = ''
		ORDER BY attnum`, quoted(schema), quoted(table))
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var names []string
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	return names, rows.Err()
}

// selection returns a list of columns and one of their values: those of a row,
// but for some.
func selection(columns []string, row string, except map[string]string) (names, values string) {
	from := make([]string, len(columns))
	for n, column := range columns {
		from[n] = row + "." + quoted(column)
		if value, ok := except[column]; ok {
			from[n] = value
		}
	}
	return strings.Join(columns, ", "), strings.Join(from, ", ")
}

// pgWork is a run of a supervisor that closes its queue afterwards.
type pgWork struct {
	*supervised
	queue *pgqueue.Queue
}

func (w pgWork) close() error {
	w.queue.Close()
	return nil
}

func pgqueueContender(name string, keep bool) *contender {
	about := "Supervisor.Run with 256 in flight, default options, a claim per transition"
	unit := "a claim's update, an update and an event, in statements of what has gathered"
	if keep {
		about = "the same, claims are kept from one transition to the next (the default)"
		unit = "an update and an event, in statements of what has gathered"
	}
	return &contender{
		name:  name,
		about: about,
		unit:  unit,
		lacks: "nothing",
		units: 100_000,
		prepare: func(ctx context.Context, s *stage, units int) (work, error) {
			instances := (units + transitionsPerInstance - 1) / transitionsPerInstance
			q, _, err := openPgqueue(ctx, s, pgSeed{due: instances, tenants: 1})
			if err != nil {
				return nil, err
			}
			return pgWork{newSupervised(q, keep, transitionsPerInstance, instances*transitionsPerInstance), q}, nil
		},
	}
}
