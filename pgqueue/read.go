package pgqueue

import (
	"context"
	"fmt"
	"iter"

	"github.com/workflow-supervisor/supervisor"
)

// pageSize is how many instances or events are read at once.
const pageSize = 100

const (
	sqlGet = `SELECT * FROM {{schema}}.snapshot s WHERE s.tenant_id = $1 AND s.id = $2`

	sqlList = `
SELECT * FROM {{schema}}.snapshot s
WHERE (s.tenant_id, s.id) > ($1, $2)
  AND ($3::text IS NULL OR s.tenant_id = $3) AND ($4::text IS NULL OR s.spec_id = $4)
  AND ($5::text IS NULL OR s.status = $5) AND ($6::timestamptz IS NULL OR (s.status = 'active' AND s.due_at < $6))
ORDER BY s.tenant_id, s.id LIMIT $7`

	sqlHistory = `
SELECT e.type, e.digest, e.delivery_key, e.worker_id, e.state_version, e.lease_version, e.payload, e.at
FROM {{schema}}.instance i
JOIN {{schema}}.event e ON e.instance_no = i.instance_no
WHERE i.tenant_id = $1 AND i.id = $2 AND e.state_version > $3
ORDER BY e.state_version LIMIT $4`
)

// find reads one instance. One that cannot be decoded is returned beside its
// error.
func (q *Queue) find(ctx context.Context, what, tenantID, instanceID string) (*row, error) {
	if err := q.ready(ctx); err != nil {
		return nil, err
	}
	a := q.store.newArgs()
	defer q.store.free(a)
	a.text(storable(tenantID))
	a.text(storable(instanceID))
	var found *row
	var broken error
	err := q.store.do(ctx, q.pool, q.store.statements.get, a, func(c *cells) error {
		found = new(row)
		broken = found.scan(c)
		return nil
	})
	switch {
	case err != nil:
		return nil, q.wrap(ctx, what, err)
	case found == nil:
		return nil, about(what, tenantID, instanceID, supervisor.ErrNotFound)
	case broken != nil:
		return found, &brokenRowError{row: found, cause: broken}
	}
	return found, nil
}

// Get implements [supervisor.Instances].
func (q *Queue) Get(ctx context.Context, tenantID, instanceID string) (supervisor.Snapshot, error) {
	r, err := q.find(ctx, "get", tenantID, instanceID)
	if err != nil {
		return supervisor.Snapshot{}, err
	}
	return r.snapshot(), nil
}

// Explain implements [supervisor.Instances].
func (q *Queue) Explain(ctx context.Context, tenantID, instanceID string) (supervisor.Explanation, error) {
	r, err := q.find(ctx, "explain", tenantID, instanceID)
	if r == nil {
		return supervisor.Explanation{}, err
	}
	return supervisor.Explain(&supervisor.ExplainFacts{
		Snapshot:       r.snapshot(),
		Now:            r.now,
		SetAsideUntil:  r.setAsideUntil,
		SetAsideReason: r.setAsideReason,
		FailureClass:   supervisor.FailureClass(r.failureClass),
		ReleaseReason:  r.releaseReason,
	}), nil
}

// List implements [supervisor.Instances].
func (q *Queue) List(ctx context.Context, filter supervisor.Filter) iter.Seq2[supervisor.Snapshot, error] {
	return func(yield func(supervisor.Snapshot, error) bool) {
		fail := func(err error) { yield(supervisor.Snapshot{}, err) }
		switch filter.Status {
		case "", supervisor.StatusActive, supervisor.StatusCompleted, supervisor.StatusFailed, supervisor.StatusCancelled:
		default:
			fail(fmt.Errorf("pgqueue: filter: Status %q is not known", shorten(string(filter.Status))))
			return
		}
		var last supervisor.Instance
		for {
			if err := q.ready(ctx); err != nil {
				fail(err)
				return
			}
			page, err := q.listPage(ctx, &filter, &last)
			if err != nil {
				fail(q.wrap(ctx, "list", err))
				return
			}
			for _, r := range page {
				if !yield(r.snapshot(), nil) {
					return
				}
			}
			if len(page) < pageSize {
				return
			}
			last = page[len(page)-1].instance
		}
	}
}

func (q *Queue) listPage(ctx context.Context, filter *supervisor.Filter, last *supervisor.Instance) (page []*row, err error) {
	a := q.store.newArgs()
	defer q.store.free(a)
	a.text(last.TenantID)
	a.text(last.ID)
	a.textOrNull(storable(filter.TenantID))
	a.textOrNull(storable(filter.SpecID))
	a.textOrNull(string(filter.Status))
	a.instant(filter.DueBefore)
	a.int8(pageSize)
	err = q.store.do(ctx, q.pool, q.store.statements.list, a, func(c *cells) error {
		r := new(row)
		broken := r.scan(c)
		page = append(page, r)
		if broken != nil && c.bad {
			return broken
		}
		return nil
	})
	return page, err
}

// History implements [supervisor.Instances].
func (q *Queue) History(ctx context.Context, tenantID, instanceID string) iter.Seq2[supervisor.Event, error] {
	return func(yield func(supervisor.Event, error) bool) {
		fail := func(err error) { yield(supervisor.Event{}, err) }
		if _, err := q.find(ctx, "history", tenantID, instanceID); isRule(err) || q.ready(ctx) != nil {
			fail(err)
			return
		}
		var last int64
		for {
			page, err := q.historyPage(ctx, tenantID, instanceID, last)
			if err != nil {
				fail(q.wrap(ctx, "history", err))
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

func (q *Queue) historyPage(ctx context.Context, tenantID, instanceID string, after int64) (page []supervisor.Event, err error) {
	if err := q.ready(ctx); err != nil {
		return nil, err
	}
	a := q.store.newArgs()
	defer q.store.free(a)
	a.text(storable(tenantID))
	a.text(storable(instanceID))
	a.int8(after)
	a.int8(pageSize)
	err = q.store.do(ctx, q.pool, q.store.statements.history, a, func(c *cells) error {
		event := supervisor.Event{
			TenantID:     tenantID,
			InstanceID:   instanceID,
			Type:         c.text(),
			Digest:       c.packed(),
			DeliveryKey:  c.packed(),
			WorkerID:     c.text(),
			StateVersion: c.int8(),
			LeaseVersion: c.int8(),
		}
		event.Payload, _ = keep(nil, c.next())
		event.At = c.instant()
		page = append(page, event)
		return nil
	})
	return page, err
}
