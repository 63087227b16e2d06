package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"
)

const (
	// steadyInstances never complete; steadyUnits is how many transitions they
	// make together at scale 1.
	steadyInstances = 10_000
	steadyUnits     = 1_000_000
	// steadyPrune is how often Prune is called, and how old an event may become.
	steadyPrune = 5 * time.Second
)

// Names of values.
const (
	tableBytes = "table_bytes"
	indexBytes = "index_bytes"
	tableRows  = "rows"
)

// steady runs a million transitions with Prune beside them, and records what
// the tables and indexes take before and after.
func (b *bench) steady(ctx context.Context) (err error) {
	s, err := newStage(ctx, b.db)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close(ctx)) }()
	q, pool, err := openPgqueue(ctx, s, pgSeed{due: steadyInstances, tenants: 1})
	if err != nil {
		return err
	}
	defer q.Close()
	if err := b.recordSizes(ctx, pool, s.schema, "before"); err != nil {
		return err
	}
	pruning, stop := context.WithCancel(ctx)
	defer stop()
	var group errgroup.Group
	removed := 0
	// Ends with stop.
	group.Go(func() error {
		ticker := time.NewTicker(steadyPrune)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
			case <-pruning.Done():
				return nil
			}
			count, err := q.Prune(pruning, time.Now().Add(-steadyPrune))
			if err != nil && pruning.Err() == nil {
				return err
			}
			removed += count
		}
	})
	work := newSupervised(q, true, 0, b.scaled(steadyUnits))
	values, err := meter{db: b.db}.measure(ctx, work.run)
	stop()
	if err := errors.Join(err, group.Wait()); err != nil {
		return err
	}
	b.record("steady", Measurement{"transitions", 0, values})
	if err := b.recordSizes(ctx, pool, s.schema, "after"); err != nil {
		return err
	}
	if _, err := q.Prune(ctx, time.Now()); err != nil {
		return err
	}
	return b.recordSizes(ctx, pool, s.schema, "pruned")
}

func (b *bench) recordSizes(ctx context.Context, pool *pgxpool.Pool, schema, when string) error {
	rows, err := pool.Query(ctx, `
		SELECT relname::text, pg_table_size(oid), pg_indexes_size(oid) FROM pg_class
		WHERE relkind = 'r' AND relnamespace = $1::regnamespace ORDER BY relname`, quoted(schema))
	if err != nil {
		return err
	}
	defer rows.Close()
	type size struct {
		name         string
		table, index int64
	}
	var sizes []size
	for rows.Next() {
		var found size
		if err := rows.Scan(&found.name, &found.table, &found.index); err != nil {
			return err
		}
		sizes = append(sizes, found)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	for _, found := range sizes {
		var count int64
		if err := pool.QueryRow(ctx, "SELECT count(*) FROM "+quoted(found.name)).Scan(&count); err != nil {
			return err
		}
		b.record("steady", Measurement{fmt.Sprintf("%s: %s", when, found.name), 0, map[string]float64{
			tableBytes: float64(found.table), indexBytes: float64(found.index), tableRows: float64(count),
		}})
	}
	return nil
}
