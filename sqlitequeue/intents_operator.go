package sqlitequeue

import (
	"context"
	"iter"

	"github.com/workflow-supervisor/supervisor"
)

// ConfirmIntent implements [supervisor.IntentOperator].
func (q *Queue) ConfirmIntent(ctx context.Context, key supervisor.IntentKey, by string) error {
	if err := key.Validate(); err != nil {
		return err
	}
	return q.changeIntent(ctx, "confirm intent", key, supervisor.ErrNotFound, func(_ *transaction, now instant) intentDecision {
		return func(next *supervisor.IntentRecord, _ *slots) (bool, error) {
			return false, next.Confirm(by, now.time())
		}
	})
}

// RejectIntent implements [supervisor.IntentOperator].
func (q *Queue) RejectIntent(ctx context.Context, key supervisor.IntentKey, by, reason string) error {
	if err := key.Validate(); err != nil {
		return err
	}
	return q.changeIntent(ctx, "reject intent", key, supervisor.ErrNotFound, func(_ *transaction, now instant) intentDecision {
		return func(next *supervisor.IntentRecord, _ *slots) (bool, error) {
			return next.Deny(by, reason, now.time())
		}
	})
}

// ResolveIntent implements [supervisor.IntentOperator].
func (q *Queue) ResolveIntent(ctx context.Context, key supervisor.IntentKey, by string, resolution supervisor.IntentResolution) error {
	if err := key.Validate(); err != nil {
		return err
	}
	return q.changeIntent(ctx, "resolve intent", key, supervisor.ErrNotFound, func(_ *transaction, now instant) intentDecision {
		return func(next *supervisor.IntentRecord, _ *slots) (bool, error) {
			return next.Resolve(by, &resolution, now.time())
		}
	})
}

// A listing reads the rest of an instance's intents, then those of the
// instances behind it, which go on from there.
const (
	listColumns = `SELECT ` + intentColumns + ` FROM supervisor_instances i CROSS JOIN supervisor_intents a ON a.instance = i.key` + intentFrom
	listRest    = listColumns + `WHERE i.tenant_id = ?1 AND i.id = ?2 AND a.id > ?3
		AND (?4 = '' OR c.id = ?4) AND (?5 = '' OR a.state = ?5) ORDER BY a.id LIMIT ?6`
	listTenant = listColumns + `WHERE i.tenant_id = ?1 AND i.id > ?2 AND (?3 = '' OR i.id = ?3)
		AND (?4 = '' OR c.id = ?4) AND (?5 = '' OR a.state = ?5) ORDER BY i.tenant_id, i.id, a.id LIMIT ?6`
	listAll = listColumns + `WHERE (i.tenant_id, i.id) > (?1, ?2) AND (?3 = '' OR i.id = ?3)
		AND (?4 = '' OR c.id = ?4) AND (?5 = '' OR a.state = ?5) ORDER BY i.tenant_id, i.id, a.id LIMIT ?6`
)

// ListIntents implements [supervisor.IntentOperator]. It reads all that the
// filter's tenant and instance have.
func (q *Queue) ListIntents(ctx context.Context, filter supervisor.IntentFilter) iter.Seq2[supervisor.IntentRecord, error] {
	return func(yield func(supervisor.IntentRecord, error) bool) {
		if err := filter.Validate(); err != nil {
			yield(supervisor.IntentRecord{}, err)
			return
		}
		after := supervisor.IntentKey{TenantID: filter.TenantID}
		if filter.TenantID != "" {
			// All of this very instance, and nothing else.
			after.InstanceID = filter.InstanceID
		}
		for {
			var page []supervisor.IntentRecord
			err := q.read(ctx, "list intents", func(s *session) (err error) {
				page, err = listIntents(s, &filter, &after)
				return err
			})
			for n := range page {
				if !yield(page[n], nil) {
					return
				}
			}
			if err != nil {
				yield(supervisor.IntentRecord{}, err)
				return
			}
			if len(page) < pageSize {
				return
			}
			after = page[len(page)-1].Key()
		}
	}
}

// listIntents reads the page behind an intent.
func listIntents(s *session, filter *supervisor.IntentFilter, after *supervisor.IntentKey) (page []supervisor.IntentRecord, err error) {
	if after.InstanceID != "" {
		page, err = scanIntents(s, page, listRest, after.TenantID, after.InstanceID, after.IntentID,
			filter.CapabilityID, string(filter.State), int64(pageSize))
		if err != nil || len(page) == pageSize || filter.TenantID != "" && filter.InstanceID != "" {
			return page, err
		}
	}
	text := listAll
	if filter.TenantID != "" {
		text = listTenant
	}
	return scanIntents(s, page, text, after.TenantID, after.InstanceID, filter.InstanceID,
		filter.CapabilityID, string(filter.State), int64(pageSize-len(page)))
}

func scanIntents(s *session, page []supervisor.IntentRecord, text string, args ...any) ([]supervisor.IntentRecord, error) {
	rows, err := s.query(text, args...)
	if err != nil {
		return nil, err
	}
	var malformed error
	for malformed == nil && rows.next() {
		var found intent
		if malformed = found.scan(rows); malformed == nil {
			page = append(page, found.record)
		} else {
			key := found.record.Key()
			malformed = intentRefusal("intent", &key, malformed)
		}
	}
	if err := rows.close(); err != nil {
		return nil, err
	}
	return page, malformed
}
