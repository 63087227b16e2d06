package sqlitequeue

import (
	"context"

	"github.com/workflow-supervisor/supervisor"
)

// storedIntents reads the intents of an instance.
func storedIntents(ctx context.Context, q *Queue, tenantID, id string) (intents []supervisor.ActionIntent, err error) {
	for record, err := range q.ListIntents(ctx, supervisor.IntentFilter{TenantID: tenantID, InstanceID: id}) {
		if err != nil {
			return nil, err
		}
		intents = append(intents, record.Intent)
	}
	return intents, nil
}
