package pgqueue

import (
	"context"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

// pruneBatch bounds the instances that one transaction of Prune looks at, and
// pruneRows the rows that it removes: only an instance that has more by itself
// exceeds it, for it goes as a whole.
const pruneBatch, pruneRows = 1000, 5000

const (
	sqlPrune = `SELECT {{schema}}.prune_v1($1, $2, $3)`

	// Events are removed instance by instance, so that the latest of each, which
	// holds the delivery key, is known to stay. The answer is the instance to go
	// on with, NULL after the last.
	sqlPruneEvents = `
WITH page AS MATERIALIZED (
    SELECT r.instance_no, r.state_version FROM {{schema}}.run r
    WHERE r.instance_no >= $2 ORDER BY r.instance_no LIMIT $3
), old AS MATERIALIZED (
    SELECT e.instance_no, e.state_version FROM page
    CROSS JOIN LATERAL (
        SELECT e.instance_no, e.state_version FROM {{schema}}.event e
        WHERE e.instance_no = page.instance_no AND e.state_version < page.state_version AND e.at < $1
        ORDER BY e.state_version LIMIT $4
    ) e
    ORDER BY e.instance_no, e.state_version LIMIT $4
), gone AS (
    DELETE FROM {{schema}}.event e USING old WHERE e.instance_no = old.instance_no AND e.state_version = old.state_version
)
SELECT CASE WHEN (SELECT count(*) FROM old) = $4 THEN (SELECT max(instance_no) FROM old)
            ELSE (SELECT max(instance_no) + 1 FROM page) END`

	sqlPruneWakeups = `
WITH old AS MATERIALIZED (
    SELECT w.instance_no, w.id FROM {{schema}}.wakeup w
    WHERE w.consumed_at < least($1, clock_timestamp() - $2::bigint * interval '1 microsecond') ORDER BY w.consumed_at LIMIT $3
    FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM {{schema}}.wakeup w USING old WHERE w.instance_no = old.instance_no AND w.id = old.id
)
SELECT count(*) FROM old`
)

// Prune implements [supervisor.Instances]. It removes at most some thousand rows
// in a transaction, and may be broken off and repeated at any time.
func (q *Queue) Prune(ctx context.Context, before time.Time) (removed int, err error) {
	for next := int64(1); next > 0; {
		next, err = q.pruneStep(ctx, q.store.statements.pruneEvents, func(a *args) {
			a.instant(before)
			a.int8(next)
			a.int8(pruneBatch)
			a.int8(pruneRows)
		})
		if err != nil {
			return 0, err
		}
	}
	// What finished goes without most of its events by now.
	for count := int64(1); count > 0; {
		count, err = q.pruneStep(ctx, q.store.statements.pruneInstances, func(a *args) {
			a.instant(before)
			a.int8(pruneBatch)
			a.int8(pruneRows)
		})
		if err != nil {
			return removed, err
		}
		removed += int(count)
	}
	for count := int64(pruneBatch); count == pruneBatch; {
		count, err = q.pruneStep(ctx, q.store.statements.pruneWakeups, func(a *args) {
			a.instant(before)
			a.int8(supervisor.WakeupMemory.Microseconds())
			a.int8(pruneBatch)
		})
		if err != nil {
			return removed, err
		}
	}
	return removed, nil
}

// pruneStep runs one statement and returns the number that it answers.
func (q *Queue) pruneStep(ctx context.Context, st *statement, fill func(a *args)) (count int64, err error) {
	if err := q.ready(ctx); err != nil {
		return 0, err
	}
	a := q.store.newArgs()
	defer q.store.free(a)
	fill(a)
	err = q.store.do(ctx, q.pool, st, a, func(c *cells) error {
		count = c.int8()
		return nil
	})
	return count, q.wrap(ctx, "prune", err)
}
