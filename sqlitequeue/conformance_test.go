package sqlitequeue

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"testing"

	"github.com/workflow-supervisor/supervisor"
	"github.com/workflow-supervisor/supervisor/queuetest"
)

// open returns a queue on a new file, which ends with the test.
func open(t testing.TB, options Options) *Queue {
	t.Helper()
	return openFile(t, filepath.Join(t.TempDir(), "queue.db"), options)
}

func openFile(t testing.TB, path string, options Options) *Queue {
	t.Helper()
	return openStore(t, &faultyStore{path: path}, options)
}

func TestQueueConforms(t *testing.T) {
	queuetest.Run(t, func(t *testing.T) queuetest.Queue {
		path := filepath.Join(t.TempDir(), "queue.db")
		q, store := openFaulty(t, path)
		var denied sync.Map
		q.options.Admit = func(_ context.Context, item *supervisor.WorkItem) error {
			if _, found := denied.Load(item.TenantID); found {
				return errors.New("denied")
			}
			return nil
		}
		return queuetest.Queue{
			WorkQueue: q,
			Lease:     testLease,
			Reopen: func(t *testing.T) supervisor.WorkQueue {
				return openFile(t, path, Options{})
			},
			FailWrite: store.failWrite,
			Corrupt: func(ctx context.Context, tenantID, instanceID string) error {
				_, err := q.DB().ExecContext(ctx,
					`UPDATE supervisor_instances SET capability_pins = '{"broken' WHERE tenant_id = ? AND id = ?`, tenantID, instanceID)
				return err
			},
			Analyze: func(ctx context.Context) error {
				_, err := q.DB().ExecContext(ctx, `ANALYZE`)
				return err
			},
			Intents: func(ctx context.Context, tenantID, instanceID string) ([]supervisor.ActionIntent, error) {
				return storedIntents(ctx, q, tenantID, instanceID)
			},
			Deny: func(tenantID string) { denied.Store(tenantID, true) },
		}
	})
}
