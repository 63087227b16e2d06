package main

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"
)

// transitionsPerInstance is how many units complete an instance, where
// instances complete.
const transitionsPerInstance = 10

// handLoop is the loop that a good programmer would write with pgx for this
// work and no other: it claims a hundred rows and commits state and event of
// the hundred in one statement, on four connections. It has leases and a fence,
// but no delivery keys, epochs, wakeups, tenants or turns.
type handLoop struct {
	pool          *pgxpool.Pool
	claim, commit string
	// complete is how many transitions complete an item; 0: they never end.
	complete int
	target   int
	// progress counts transitions, for whoever watches.
	progress *atomic.Int64
}

// Sizes of the loop: on two cores more of either gains nothing.
const (
	handBatch       = 100
	handConnections = 4
)

// newHandLoop makes the tables with items that are due and others that wait
// for an hour. moving: a transition moves the due time to now, which the index
// feels; else it stays.
func newHandLoop(ctx context.Context, s *stage, due, waiting int, moving bool) (*handLoop, error) {
	pool, err := s.pool(ctx, handConnections)
	if err != nil {
		return nil, err
	}
	nextDue := "due"
	if moving {
		nextDue = "clock_timestamp()"
	}
	h := &handLoop{
		pool:     pool,
		progress: new(atomic.Int64),
		claim: `
			WITH due AS MATERIALIZED (
				SELECT id FROM item WHERE status = 0 AND due <= clock_timestamp() ORDER BY due LIMIT $1 FOR UPDATE SKIP LOCKED)
			UPDATE item i SET status = 1, owner = 'worker', lease_until = clock_timestamp() + interval '60 s', fence = fence + 1
			FROM due WHERE i.id = due.id RETURNING i.id, i.fence, i.version, i.state`,
		commit: fmt.Sprintf(`
			WITH u AS (
				UPDATE item i SET status = m.status, due = %s, version = version + 1, state = m.state, owner = NULL, lease_until = NULL
				FROM unnest($1::bigint[], $2::bigint[], $3::smallint[], $4::text[], $5::text[]) m(id, fence, status, state, payload)
				WHERE i.id = m.id AND i.fence = m.fence AND i.status = 1
				RETURNING i.id, i.version, m.payload)
			INSERT INTO event (id, version, at, type, payload) SELECT id, version, clock_timestamp(), 'stepped', payload FROM u`, nextDue),
	}
	return h, execAll(ctx, pool,
		`CREATE TABLE item (id bigint PRIMARY KEY, due timestamptz NOT NULL, status smallint NOT NULL, owner text,
			lease_until timestamptz, fence bigint NOT NULL DEFAULT 0, version bigint NOT NULL DEFAULT 0, state text NOT NULL)`,
		`CREATE INDEX ON item (due) WHERE status = 0`,
		`CREATE TABLE event (id bigint, version bigint, at timestamptz NOT NULL, type text NOT NULL, payload text NOT NULL,
			PRIMARY KEY (id, version))`,
		fmt.Sprintf(`INSERT INTO item (id, due, status, state)
			SELECT n, clock_timestamp() + CASE WHEN n <= %d THEN interval '0' ELSE interval '1 hour' + n * interval '1 ms' END, 0, '{"step":0}'
			FROM generate_series(1, %d) n`, due, due+waiting),
		`ANALYZE item`)
}

func (h *handLoop) run(ctx context.Context) (int, error) {
	before := h.progress.Load()
	group, ctx := errgroup.WithContext(ctx)
	for range handConnections {
		// Ends when the target is reached.
		group.Go(func() error {
			for h.progress.Load()-before < int64(h.target) {
				done, err := h.round(ctx)
				if err != nil {
					return err
				}
				h.progress.Add(int64(done))
			}
			return nil
		})
	}
	err := group.Wait()
	return int(h.progress.Load() - before), err
}

// round claims a batch, does nothing, and commits it.
func (h *handLoop) round(ctx context.Context) (int, error) {
	rows, err := h.pool.Query(ctx, h.claim, handBatch)
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	var ids, fences []int64
	var statuses []int16
	var states []string
	for rows.Next() {
		var id, fence, version int64
		var state string
		if err := rows.Scan(&id, &fence, &version, &state); err != nil {
			return 0, err
		}
		status := int16(0)
		if version+1 == int64(h.complete) {
			status = 2
		}
		ids, fences = append(ids, id), append(fences, fence)
		statuses, states = append(statuses, status), append(states, `{"step":`+strconv.FormatInt(version+1, 10)+`}`)
	}
	if err := rows.Err(); err != nil || len(ids) == 0 {
		return 0, err
	}
	tag, err := h.pool.Exec(ctx, h.commit, ids, fences, statuses, states, states)
	if err != nil {
		return 0, err
	}
	if tag.RowsAffected() != int64(len(ids)) {
		return 0, fmt.Errorf("%d of %d commits were fenced out", int64(len(ids))-tag.RowsAffected(), len(ids))
	}
	return len(ids), nil
}

func (h *handLoop) close() error { return nil }

// handContender is the loop as a contender: the limit that all are measured
// against.
func handContender(name string, moving bool) *contender {
	about := "100 rows per claim and per commit, 4 connections, due times stay"
	if moving {
		about = "the same, each transition moves the due time to now"
	}
	return &contender{
		name:  name,
		about: about,
		unit:  "a claim's update, an update and an event, in statements of 100",
		lacks: "everything but lease, fence and event",
		units: 60_000,
		prepare: func(ctx context.Context, s *stage, units int) (work, error) {
			items := (units + transitionsPerInstance - 1) / transitionsPerInstance
			h, err := newHandLoop(ctx, s, items, 0, moving)
			if err != nil {
				return nil, err
			}
			h.complete, h.target = transitionsPerInstance, items*transitionsPerInstance
			return h, nil
		},
	}
}
