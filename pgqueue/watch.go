package pgqueue

import (
	"context"
	"time"
)

// A snapshot older than oldSnapshot is told of; it is looked for every
// snapshotLook.
const (
	oldSnapshot  = 10 * time.Second
	snapshotLook = 5 * time.Second
)

// A role sees its own sessions, and those of others where it may read all
// statistics.
const sqlOldestSnapshot = `
SELECT (extract(epoch FROM clock_timestamp() - a.xact_start) * 1000000)::bigint, a.pid, coalesce(a.application_name, '')
FROM pg_stat_activity a
WHERE a.backend_xmin IS NOT NULL AND a.backend_type = 'client backend' AND a.datname = current_database()
  AND a.pid <> pg_backend_pid() AND a.xact_start IS NOT NULL
ORDER BY a.xact_start LIMIT 1`

// watchSnapshots starts looking for old snapshots, once, where somebody wants to
// know of them.
func (q *Queue) watchSnapshots() {
	if q.options.Observer.OldSnapshot == nil {
		return
	}
	q.watching.Do(func() {
		// Ends with the queue; joined by Close.
		q.background.Go(func() {
			var told time.Time
			for q.pause(q.closed, snapshotLook) {
				info, found := q.oldestSnapshot()
				if found && info.Age > oldSnapshot && q.hostNow().Sub(told) >= oldSnapshot-snapshotLook/2 {
					told = q.hostNow()
					q.options.Observer.OldSnapshot(info)
				}
			}
		})
	})
}

// oldestSnapshot is best effort: a failure to look is no reason to warn.
func (q *Queue) oldestSnapshot() (info SnapshotInfo, found bool) {
	ctx, cancel := context.WithTimeout(q.closed, sendTimeout)
	defer cancel()
	a := q.store.newArgs()
	defer q.store.free(a)
	err := q.store.do(ctx, q.own, q.store.statements.oldestSnapshot, a, func(c *cells) error {
		info = SnapshotInfo{Age: time.Duration(c.int8()) * time.Microsecond, PID: int32(c.int4()), Application: c.text()}
		found = true
		return nil
	})
	return info, found && err == nil
}
