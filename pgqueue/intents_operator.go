package pgqueue

import (
	"context"
	"iter"

	"github.com/workflow-supervisor/supervisor"
)

// ConfirmIntent implements [supervisor.IntentOperator].
func (q *Queue) ConfirmIntent(ctx context.Context, key supervisor.IntentKey, by string) error {
	return q.answerIntent(ctx, "confirm", key, &intentOp{
		rule: func(x *intentRow, _ func() bool) (bool, error) {
			return false, x.record.Confirm(by, x.now)
		},
	})
}

// RejectIntent implements [supervisor.IntentOperator].
func (q *Queue) RejectIntent(ctx context.Context, key supervisor.IntentKey, by, reason string) error {
	return q.answerIntent(ctx, "reject", key, &intentOp{
		tells: true,
		rule: func(x *intentRow, _ func() bool) (bool, error) {
			return x.record.Deny(by, reason, x.now)
		},
	})
}

// ResolveIntent implements [supervisor.IntentOperator].
func (q *Queue) ResolveIntent(ctx context.Context, key supervisor.IntentKey, by string, resolution supervisor.IntentResolution) error {
	if err := resolution.Validate(); err != nil {
		return err
	}
	return q.answerIntent(ctx, "resolve", key, &intentOp{
		tells: true,
		bytes: 2 * len(resolution.Output),
		rule: func(x *intentRow, _ func() bool) (bool, error) {
			return x.record.Resolve(by, &resolution, x.now)
		},
	})
}

func (q *Queue) answerIntent(ctx context.Context, what string, key supervisor.IntentKey, op *intentOp) error {
	if err := key.Validate(); err != nil {
		return err
	}
	op.key = key
	_, err := q.changeIntent(ctx, what, op)
	return err
}

const sqlListIntents = `
SELECT v.* FROM (
    SELECT n.instance_no AS no, n.id
    FROM {{schema}}.instance i
    JOIN {{schema}}.intent n ON n.instance_no = i.instance_no
    WHERE (i.tenant_id, i.id) >= ($1, $2) AND (i.tenant_id, i.id, n.id) > ($1, $2, $3)
      AND ($4::text IS NULL OR i.tenant_id = $4) AND ($5::text IS NULL OR i.id = $5)
      AND ($6::text IS NULL OR n.capability_no IN (SELECT c.capability_no FROM {{schema}}.capability c WHERE c.id = $6))
      AND ($7::text IS NULL OR n.state = $7)
    ORDER BY i.tenant_id, i.id, n.id LIMIT $8
) m
JOIN {{schema}}.intent_record v ON v.instance_no = m.no AND v.id = m.id
ORDER BY v.tenant_id, v.instance_id, v.id`

// ListIntents implements [supervisor.IntentOperator].
func (q *Queue) ListIntents(ctx context.Context, filter supervisor.IntentFilter) iter.Seq2[supervisor.IntentRecord, error] {
	return func(yield func(supervisor.IntentRecord, error) bool) {
		fail := func(err error) { yield(supervisor.IntentRecord{}, err) }
		if err := filter.Validate(); err != nil {
			fail(err)
			return
		}
		var last supervisor.IntentKey
		for {
			if err := q.ready(ctx); err != nil {
				fail(err)
				return
			}
			page, err := q.listIntents(ctx, &filter, &last)
			if err != nil {
				fail(q.wrap(ctx, "list intents", err))
				return
			}
			for _, x := range page {
				if x.broken != nil {
					fail(&brokenIntentError{key: x.record.Key(), cause: x.broken})
					return
				}
				if !yield(x.record, nil) {
					return
				}
			}
			if len(page) < pageSize {
				return
			}
			last = page[len(page)-1].record.Key()
		}
	}
}

func (q *Queue) listIntents(ctx context.Context, filter *supervisor.IntentFilter, last *supervisor.IntentKey) (page []*intentRow, err error) {
	a := q.store.newArgs()
	defer q.store.free(a)
	a.text(last.TenantID)
	a.text(last.InstanceID)
	a.text(last.IntentID)
	a.textOrNull(storable(filter.TenantID))
	a.textOrNull(storable(filter.InstanceID))
	a.textOrNull(storable(filter.CapabilityID))
	a.textOrNull(storable(string(filter.State)))
	a.int8(pageSize)
	err = q.store.do(ctx, q.pool, q.store.statements.listIntents, a, func(c *cells) error {
		x := new(intentRow)
		x.broken = x.scan(c)
		page = append(page, x)
		return nil
	})
	return page, err
}
