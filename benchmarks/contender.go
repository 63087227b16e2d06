package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"
)

// contender is one way to do durable units of work, in one configuration.
type contender struct {
	name string
	// about is the configuration, unit what one unit of work writes, lacks what
	// this library's unit has and this one's has not.
	about, unit, lacks string
	// units is how many units a round takes at scale 1: some seconds of work.
	units   int
	prepare func(ctx context.Context, s *stage, units int) (work, error)
}

// work is what a contender has prepared for one round.
type work interface {
	// run does all units, returns when the last is durable, and how many there
	// were.
	run(ctx context.Context) (units int, err error)
	close() error
}

// stage is where a contender works: a schema and a folder of its own, both gone
// after the round.
type stage struct {
	db     *database
	schema string
	folder string
	pools  []*pgxpool.Pool
}

// newStage makes a stage; without a database it has a folder only.
func newStage(ctx context.Context, db *database) (*stage, error) {
	folder, err := os.MkdirTemp("", "benchmarks-")
	if err != nil {
		return nil, err
	}
	s := &stage{db: db, folder: folder}
	if db != nil {
		if s.schema, err = db.schema(ctx); err != nil {
			return nil, errors.Join(err, os.RemoveAll(folder))
		}
	}
	return s, nil
}

// pool opens connections to the schema, closed with the stage.
func (s *stage) pool(ctx context.Context, connections int) (*pgxpool.Pool, error) {
	pool, err := s.db.pool(ctx, s.schema, connections)
	if err == nil {
		s.pools = append(s.pools, pool)
	}
	return pool, err
}

func (s *stage) close(ctx context.Context) error {
	for _, pool := range s.pools {
		pool.Close()
	}
	err := os.RemoveAll(s.folder)
	if s.db != nil {
		err = errors.Join(err, s.db.drop(ctx, s.schema))
	}
	return err
}

// once prepares a contender, measures one round of it and clears up.
func (c *contender) once(ctx context.Context, db *database, units int) (values map[string]float64, err error) {
	s, err := newStage(ctx, db)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close(ctx)) }()
	work, err := c.prepare(ctx, s, units)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.name, err)
	}
	defer func() { err = errors.Join(err, work.close()) }()
	values, err = meter{db: db}.measure(ctx, work.run)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.name, err)
	}
	return values, nil
}

// quiet is a logger for peers, which would else write beside the tables. What
// fails comes back as an error, too.
func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// analyze gathers the statistics of a table that was filled, so that no peer is
// punished for missing ones.
func (s *stage) analyze(ctx context.Context, table string) error {
	_, err := s.db.admin.Exec(ctx, "ANALYZE "+quoted(s.schema)+"."+quoted(table))
	return err
}
