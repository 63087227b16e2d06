package pgqueue

import (
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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
		var shift atomic.Int64
		q.hostNow = func() time.Time { return time.Now().Add(time.Duration(shift.Load())) }
		faults := &writeFaults{q: q}
		return queuetest.Queue{
			WorkQueue: q,
			// Long against the pauses of a busy machine.
			Lease:     time.Second,
			Reopen:    func(t *testing.T) supervisor.WorkQueue { return open(t, dsn, schema, options) },
			FailWrite: func(n int) func() bool { return faults.failWrite(t, n) },
			ShiftHost: func(d time.Duration) { shift.Store(int64(d)) },
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

// TestHostClockIsReadInOnePlace proves that shifting Queue.hostNow, as the suite
// does, shifts all that a queue sees of its host's clock.
func TestHostClockIsReadInOnePlace(t *testing.T) {
	files, err := os.ReadDir(".")
	require.NoError(t, err)
	var uses []string
	for _, file := range files {
		if !strings.HasSuffix(file.Name(), ".go") || strings.HasSuffix(file.Name(), "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file.Name(), nil, 0)
		require.NoError(t, err)
		ast.Inspect(parsed, func(node ast.Node) bool {
			if selector, ok := node.(*ast.SelectorExpr); ok {
				if pkg, ok := selector.X.(*ast.Ident); ok && pkg.Name == "time" {
					switch selector.Sel.Name {
					case "Now", "Since", "Until":
						uses = append(uses, file.Name()+": time."+selector.Sel.Name)
					}
				}
			}
			return true
		})
	}
	require.Equal(t, []string{"queue.go: time.Now"}, uses)
}
