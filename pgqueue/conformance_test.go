package pgqueue

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/workflow-supervisor/supervisor"
	"github.com/workflow-supervisor/supervisor/queuetest"
)

func TestConformance(t *testing.T) {
	dsn := testDSN(t)
	queuetest.Run(t, func(t *testing.T) queuetest.Queue {
		schema := newSchema(t, dsn)
		var denied sync.Map
		options := Options{Admit: func(_ context.Context, item *supervisor.WorkItem) error {
			if _, found := denied.Load(item.TenantID); found {
				return supervisor.ErrNotAdmitted
			}
			return nil
		}}
		q := open(t, dsn, schema, options)
		return queuetest.Queue{
			WorkQueue: q,
			// Long against the pauses of a busy machine.
			Lease:  time.Second,
			Reopen: func(t *testing.T) supervisor.WorkQueue { return open(t, dsn, schema, options) },
			Corrupt: func(ctx context.Context, tenantID, instanceID string) error {
				_, err := q.pool.Exec(ctx, q.store.text(`UPDATE {{schema}}.instance SET capability_pins = '{"' WHERE tenant_id = $1 AND id = $2`),
					tenantID, instanceID)
				return err
			},
			Analyze: func(ctx context.Context) error {
				_, err := q.pool.Exec(ctx, q.store.text("ANALYZE {{schema}}.run"))
				return err
			},
			Deny: func(tenantID string) { denied.Store(tenantID, true) },
		}
	})
}
