package sqlitequeue

import (
	"context"
	"database/sql"
	"fmt"
	"iter"

	"github.com/workflow-supervisor/supervisor"
)

// read runs f on a pooled connection, again where a lock keeps it from reading.
func (q *Queue) read(ctx context.Context, what string, f func(s *session) error) error {
	if q.news.isClosed() {
		return ErrClosed
	}
	var refused error
	err := q.withConn(ctx, func(conn *sql.Conn) error {
		s := session{pooled: conn, ctx: ctx, prefix: q.prefix}
		refused = f(&s)
		return s.err
	})
	if err != nil {
		return storeError(what, err)
	}
	return refused
}

const (
	tenantColumns = `n.epoch, n.paused, n.resource_epoch`
	textColumns   = `CAST(coalesce(r.state, s.state) AS BLOB), s.last_error, s.failure_class, s.release_reason, s.set_aside_reason`
	snapshotFrom  = ` FROM supervisor_instances i CROSS JOIN supervisor_records r ON r.key = i.key
		CROSS JOIN supervisor_tenants n ON n.key = r.tenant
		LEFT JOIN supervisor_texts s ON s.key = r.key `
	selectSnapshot = `SELECT ` + recordColumns + `, ` + tenantColumns + `, ` + textColumns + `, ` + instanceColumns +
		snapshotFrom + `WHERE i.tenant_id = ? AND i.id = ?`
	selectFacts = `SELECT ` + recordColumns + `, ` + tenantColumns + `, ` + textColumns +
		snapshotFrom + `WHERE i.tenant_id = ? AND i.id = ?`
	selectPage = `SELECT ` + recordColumns + `, ` + tenantColumns + `, ` + textColumns + `, ` + instanceColumns +
		snapshotFrom + `WHERE (i.tenant_id, i.id) > (?1, ?2) AND (?3 = '' OR i.tenant_id = ?3) AND (?4 = '' OR i.spec_id = ?4)
		AND (?5 < 0 OR r.status = ?5) AND (?6 IS NULL OR (r.status = 0 AND r.due_at < ?6))
		ORDER BY i.tenant_id, i.id LIMIT ?7`
)

// Columns behind recordColumns in the statements above.
const (
	tenantColumn   = recordWidth
	textColumn     = tenantColumn + 3
	instanceColumn = textColumn + 5
)

// facts are what a row says beside the instance itself.
func facts(rows *rows, id instanceID, now instant) supervisor.ExplainFacts {
	var r row
	r.scan(rows)
	tenantPaused := rows.int(tenantColumn+1) != 0
	f := supervisor.ExplainFacts{
		Snapshot: supervisor.Snapshot{
			State:           rows.bytes(textColumn),
			StateVersion:    r.stateVersion,
			LeaseVersion:    r.leaseVersion,
			CreatedAt:       r.createdAt.time(),
			NextDueAt:       r.dueAt.time(),
			FinishedAt:      r.finishedAt.time(),
			LastError:       rows.string(textColumn + 1),
			Attempt:         int(r.attempt),
			PendingWakeups:  int(r.wakeups),
			CancelRequested: r.cancelRequested,
			ControlEpochs: supervisor.ControlEpochs{
				Tenant: rows.int(tenantColumn), Instance: r.epoch, Resource: rows.int(tenantColumn + 2),
			},
		},
		Now:            now.time(),
		FailureClass:   supervisor.FailureClass(rows.string(textColumn + 2)),
		ReleaseReason:  rows.string(textColumn + 3),
		SetAsideUntil:  r.setAsideUntil.time(),
		SetAsideReason: rows.string(textColumn + 4),
	}
	if rows.malformed == nil {
		f.Snapshot.Status = statuses[r.status]
	}
	if r.leased(now) {
		f.Snapshot.LeaseEndsAt, f.Snapshot.LeaseOwner = r.endsAt.time(), r.workerID
	}
	switch {
	case tenantPaused:
		f.Snapshot.PausedBy = &supervisor.Scope{TenantID: id.tenant}
	case r.paused:
		f.Snapshot.PausedBy = &supervisor.Scope{TenantID: id.tenant, InstanceID: id.id}
	}
	return f
}

// snapshot reads a row with all columns.
func snapshot(rows *rows, now instant) (supervisor.Snapshot, error) {
	id := instanceID{rows.string(instanceColumn), rows.string(instanceColumn + 1)}
	f := facts(rows, id, now)
	instance, err := scanInstance(rows, instanceColumn)
	if err != nil {
		return supervisor.Snapshot{}, refusal("instance", id, fmt.Errorf("%w: %w: %w", supervisor.ErrUnavailable, errMalformed, err))
	}
	f.Snapshot.Instance = *instance
	if f.Snapshot.State == nil {
		f.Snapshot.State = append(f.Snapshot.State, instance.Config...)
	}
	return f.Snapshot, nil
}

// Get implements [supervisor.Instances].
func (q *Queue) Get(ctx context.Context, tenantID, instanceID string) (found supervisor.Snapshot, err error) {
	err = q.one(ctx, "get", selectSnapshot, tenantID, instanceID, func(rows *rows) (err error) {
		found, err = snapshot(rows, q.clock.now())
		return err
	})
	return found, err
}

// Explain implements [supervisor.Instances].
func (q *Queue) Explain(ctx context.Context, tenantID, instance string) (explanation supervisor.Explanation, err error) {
	id := instanceID{tenantID, instance}
	err = q.one(ctx, "explain", selectFacts, tenantID, instance, func(rows *rows) error {
		facts := facts(rows, id, q.clock.now())
		if rows.malformed != nil {
			return refusal("instance", id, fmt.Errorf("%w: %w: %w", supervisor.ErrUnavailable, errMalformed, rows.malformed))
		}
		explanation = supervisor.Explain(&facts)
		return nil
	})
	return explanation, err
}

// one reads one instance.
func (q *Queue) one(ctx context.Context, what, text, tenantID, instance string, scan func(rows *rows) error) error {
	return q.read(ctx, what, func(s *session) error {
		rows, err := s.query(text, tenantID, instance)
		if err != nil {
			return err
		}
		scanned := notFound(instanceID{tenantID, instance})
		if rows.next() {
			scanned = scan(rows)
		}
		if err := rows.close(); err != nil {
			return err
		}
		return scanned
	})
}

// pageSize is how many instances or events are read at once.
const pageSize = 64

// List implements [supervisor.Instances].
func (q *Queue) List(ctx context.Context, filter supervisor.Filter) iter.Seq2[supervisor.Snapshot, error] {
	return func(yield func(supervisor.Snapshot, error) bool) {
		status := int64(-1)
		if filter.Status != "" {
			if status = statusOf(filter.Status); status < 0 {
				yield(supervisor.Snapshot{}, fmt.Errorf("sqlitequeue: filter: Status %q is not known", shorten(string(filter.Status))))
				return
			}
		}
		dueBefore := instantOf(filter.DueBefore).value()
		after := instanceID{}
		for {
			var page []supervisor.Snapshot
			err := q.read(ctx, "list", func(s *session) error {
				page = page[:0]
				rows, err := s.query(selectPage, after.tenant, after.id, filter.TenantID, filter.SpecID, status, dueBefore, int64(pageSize))
				if err != nil {
					return err
				}
				var malformed error
				for malformed == nil && rows.next() {
					var found supervisor.Snapshot
					if found, malformed = snapshot(rows, q.clock.now()); malformed == nil {
						page = append(page, found)
					}
				}
				if err := rows.close(); err != nil {
					return err
				}
				return malformed
			})
			for n := range page {
				if !yield(page[n], nil) {
					return
				}
			}
			if err != nil {
				yield(supervisor.Snapshot{}, err)
				return
			}
			if len(page) < pageSize {
				return
			}
			last := &page[len(page)-1]
			after = instanceID{last.TenantID, last.ID}
		}
	}
}

const selectEvents = `SELECT type, digest, delivery_key, worker_id, state_version, lease_version, CAST(payload AS BLOB), at
	FROM supervisor_events WHERE instance = ? AND state_version > ? ORDER BY state_version LIMIT ?`

// History implements [supervisor.Instances].
func (q *Queue) History(ctx context.Context, tenantID, instance string) iter.Seq2[supervisor.Event, error] {
	return func(yield func(supervisor.Event, error) bool) {
		var key int64
		err := q.read(ctx, "history", func(s *session) (err error) {
			key, err = s.queryInt(selectInstanceKey, tenantID, instance)
			if err == nil && key == 0 {
				err = notFound(instanceID{tenantID, instance})
			}
			return err
		})
		if err != nil {
			yield(supervisor.Event{}, err)
			return
		}
		for last := int64(-1); ; {
			var page []supervisor.Event
			err := q.read(ctx, "history", func(s *session) error {
				page = page[:0]
				rows, err := s.query(selectEvents, key, last, int64(pageSize))
				if err != nil {
					return err
				}
				for rows.next() {
					page = append(page, supervisor.Event{
						TenantID: tenantID, InstanceID: instance,
						Type: rows.string(0), Digest: rows.string(1), DeliveryKey: rows.string(2), WorkerID: rows.string(3),
						StateVersion: rows.int(4), LeaseVersion: rows.int(5), Payload: rows.bytes(6), At: rows.instant(7).time(),
					})
				}
				return rows.close()
			})
			if err != nil {
				yield(supervisor.Event{}, err)
				return
			}
			for n := range page {
				if !yield(page[n], nil) {
					return
				}
			}
			if len(page) < pageSize {
				return
			}
			last = page[len(page)-1].StateVersion
		}
	}
}
