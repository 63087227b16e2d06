package sqlitequeue

import (
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/workflow-supervisor/supervisor/internal/dispatchtrial"
)

// longVariable makes tests that repeat chances take more of them.
const longVariable = "SUPERVISOR_TEST_LONG"

// Dispatchers on one file that are killed by chance lose and double nothing, and
// leave no slot of a limit counted.
func TestDispatchersLiveAndDie(t *testing.T) {
	path := filepath.Join(t.TempDir(), "queue.db")
	trial := dispatchtrial.Trial{Duration: 4 * time.Second, Instances: 12}
	if os.Getenv(longVariable) != "" {
		trial.Duration, trial.Instances = time.Minute, 150
	}
	trial.Seed = rand.Uint64()
	trial.Open = func() (dispatchtrial.Store, func(), error) {
		q, err := Open(context.WithoutCancel(t.Context()), path, Options{})
		if err != nil {
			return nil, nil, err
		}
		return q, sync.OnceFunc(func() { _ = q.Close() }), nil
	}
	q := openFile(t, path, Options{})
	trial.InFlight = func(capabilityID string) (n int, err error) {
		err = q.DB().QueryRowContext(t.Context(), `SELECT count(*) FROM supervisor_intents a JOIN supervisor_capabilities c ON c.key = a.capability
			WHERE c.id = ? AND a.state IN ('dispatch_committed', 'executing')`, capabilityID).Scan(&n)
		return n, err
	}
	dispatchtrial.Run(t, trial)
	var used int
	require.NoError(t, q.DB().QueryRowContext(t.Context(), `SELECT coalesce(sum(used), 0) FROM supervisor_limits`).Scan(&used))
	require.Zero(t, used, "slots of limits")
}
