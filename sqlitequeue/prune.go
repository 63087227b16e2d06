package sqlitequeue

import (
	"context"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

// Prune works in transactions of bounded size, so that it holds up nobody.
const (
	pruneInstances = 64
	pruneRows      = 1000
)

const (
	// What may have had an effect and is not settled yet keeps its instance:
	// [supervisor.IntentRecord.InFlight]. The progress of an intent that waits for
	// a hand-off has no member of that name but its own, and may be malformed, for
	// which no other instance may stay.
	selectFinished = `SELECT key FROM supervisor_records r WHERE finished_at < ?
		AND NOT EXISTS (SELECT 1 FROM supervisor_intents WHERE instance = r.key AND (state IN ('dispatch_committed', 'executing', 'unknown')
			OR state = 'retryable' AND instr(progress, '"ambiguous":') > 0))
		ORDER BY finished_at LIMIT ?`
	selectLastKey = `SELECT max(key) FROM (SELECT key FROM supervisor_records WHERE key > ? ORDER BY key LIMIT ?)`
	deleteEvents  = `DELETE FROM supervisor_events WHERE seq IN (
		SELECT e.seq FROM supervisor_events e CROSS JOIN supervisor_records r ON r.key = e.instance
		WHERE e.instance > ? AND e.instance <= ? AND e.at < ? AND e.state_version < r.state_version LIMIT ?)`
	deleteWakeups = `DELETE FROM supervisor_wakeups WHERE seq IN (
		SELECT seq FROM supervisor_wakeups WHERE instance > ? AND instance <= ? AND consumed_at < ? LIMIT ?)`
)

// deleteInstance are the statements that remove an instance; each takes its key.
var deleteInstance = [...]string{
	`DELETE FROM supervisor_events WHERE instance = ?`,
	`DELETE FROM supervisor_wakeups WHERE instance = ?`,
	`DELETE FROM supervisor_intent_inputs WHERE key IN (SELECT key FROM supervisor_intents WHERE instance = ?)`,
	`DELETE FROM supervisor_intents WHERE instance = ?`,
	`DELETE FROM supervisor_texts WHERE key = ?`,
	`DELETE FROM supervisor_records WHERE key = ?`,
	`DELETE FROM supervisor_instances WHERE key = ?`,
}

// Prune implements [supervisor.Instances]. Space in the file is used again, not
// given back; VACUUM does that.
func (q *Queue) Prune(ctx context.Context, before time.Time) (removed int, err error) {
	if err := checkInstant("before", before); err != nil {
		return 0, err
	}
	until := instantOf(before)
	for {
		found := 0
		err := q.update(ctx, "prune", change{run: func(t *transaction) (err error) {
			found, err = t.pruneFinished(until)
			return err
		}})
		if err != nil {
			return removed, err
		}
		removed += found
		if found < pruneInstances {
			break
		}
	}
	for after := int64(0); ; {
		var last int64
		err := q.update(ctx, "prune", change{run: func(t *transaction) (err error) {
			last, err = t.prunePage(after, until)
			return err
		}})
		if err != nil || last == 0 {
			return removed, err
		}
		after = last
	}
}

// pruneFinished removes some of what finished before an instant.
func (t *transaction) pruneFinished(before instant) (removed int, err error) {
	rows, err := t.session.query(selectFinished, before.value(), int64(pruneInstances))
	if err != nil {
		return 0, err
	}
	var keys []int64
	for rows.next() {
		keys = append(keys, rows.int(0))
	}
	if err := rows.close(); err != nil {
		return 0, err
	}
	for _, key := range keys {
		for _, statement := range deleteInstance {
			if _, err := t.session.exec(statement, key); err != nil {
				return 0, err
			}
		}
	}
	return len(keys), nil
}

// prunePage removes old events and ids of the instances that come after a key,
// and returns the key to go on after, 0 at the end.
func (t *transaction) prunePage(after int64, before instant) (last int64, err error) {
	last, err = t.session.queryInt(selectLastKey, after, int64(pruneInstances))
	if err != nil || last == 0 {
		return 0, err
	}
	events, err := t.session.exec(deleteEvents, after, last, before.value(), int64(pruneRows))
	if err != nil {
		return 0, err
	}
	forget := min(before, t.now()-instant(supervisor.WakeupMemory/time.Microsecond))
	wakeups, err := t.session.exec(deleteWakeups, after, last, forget.value(), int64(pruneRows))
	if err != nil {
		return 0, err
	}
	if events == pruneRows || wakeups == pruneRows {
		// There may be more; the same page again.
		return after, nil
	}
	return last, nil
}
