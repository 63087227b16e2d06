package supervisor

import (
	"context"
	"iter"
	"maps"
	"slices"
	"time"
)

// ConfirmIntent implements [IntentOperator].
func (q *MemoryWorkQueue) ConfirmIntent(ctx context.Context, key IntentKey, by string) error {
	return q.operate(ctx, &key, func(x *memIntentRow, now time.Time) (told bool, err error) {
		return false, x.Confirm(by, now)
	})
}

// RejectIntent implements [IntentOperator].
func (q *MemoryWorkQueue) RejectIntent(ctx context.Context, key IntentKey, by, reason string) error {
	return q.operate(ctx, &key, func(x *memIntentRow, now time.Time) (told bool, err error) {
		return x.Deny(by, reason, now)
	})
}

// ResolveIntent implements [IntentOperator].
func (q *MemoryWorkQueue) ResolveIntent(ctx context.Context, key IntentKey, by string, resolution IntentResolution) error {
	return q.operate(ctx, &key, func(x *memIntentRow, now time.Time) (told bool, err error) {
		return x.Resolve(by, &resolution, now)
	})
}

// operate applies an operator's answer to an intent.
func (q *MemoryWorkQueue) operate(ctx context.Context, key *IntentKey, answer func(*memIntentRow, time.Time) (told bool, err error)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := key.Validate(); err != nil {
		return err
	}
	return q.decideIntent(ctx, key, intentNotFound, answer)
}

// ListIntents implements [IntentOperator]. The ids of a tenant and of an
// instance are collected when the iteration comes to them, so that it costs
// memory for them.
func (q *MemoryWorkQueue) ListIntents(ctx context.Context, filter IntentFilter) iter.Seq2[IntentRecord, error] {
	return func(yield func(IntentRecord, error) bool) {
		if err := filter.Validate(); err != nil {
			yield(IntentRecord{}, err)
			return
		}
		for _, tenantID := range q.tenantIDs(filter.TenantID) {
			instances, err := q.intentInstances(ctx, tenantID, filter.InstanceID)
			if err != nil {
				yield(IntentRecord{}, err)
				return
			}
			for _, instanceID := range instances {
				for page := range slices.Chunk(q.intentIDs(tenantID, instanceID), memPage) {
					if err := ctx.Err(); err != nil {
						yield(IntentRecord{}, err)
						return
					}
					for _, record := range q.intentPage(tenantID, instanceID, page, &filter) {
						if !yield(record, nil) {
							return
						}
					}
				}
			}
		}
	}
}

// intentInstances returns the ids of a tenant's instances that have intents, in
// order; only one where only is not empty.
func (q *MemoryWorkQueue) intentInstances(ctx context.Context, tenantID, only string) ([]string, error) {
	if only != "" {
		return []string{only}, ctx.Err()
	}
	var ids []string
	err := q.walk(ctx, tenantID, func(row *memRow) {
		if row.intents != nil {
			ids = append(ids, row.id)
		}
	})
	slices.Sort(ids)
	return ids, err
}

// intentIDs returns the ids of an instance's intents in order.
func (q *MemoryWorkQueue) intentIDs(tenantID, instanceID string) []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	row := q.row(tenantID, instanceID)
	if row == nil || row.intents == nil {
		return nil
	}
	return slices.Sorted(maps.Keys(row.intents.byID))
}

// intentPage returns those of the intents that are still there and match.
func (q *MemoryWorkQueue) intentPage(tenantID, instanceID string, ids []string, filter *IntentFilter) []IntentRecord {
	q.mu.Lock()
	defer q.mu.Unlock()
	records := make([]IntentRecord, 0, len(ids))
	for _, id := range ids {
		key := IntentKey{TenantID: tenantID, InstanceID: instanceID, IntentID: id}
		if x := q.intent(&key); x != nil && filter.Matches(&x.IntentRecord) {
			records = append(records, x.Clone())
		}
	}
	return records
}
