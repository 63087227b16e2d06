package pgqueue

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/workflow-supervisor/supervisor/internal/dispatchtrial"
)

// Dispatchers on one schema that are killed by chance, whose connections are cut,
// lose and double nothing, and leave no slot of a limit counted.
func TestDispatchersLiveAndDie(t *testing.T) {
	dsn := testDSN(t)
	schema := newSchema(t, dsn)
	look := open(t, dsn, schema, Options{})
	named := func(config *pgxpool.Config) { config.ConnConfig.RuntimeParams["application_name"] = schema }
	dispatchtrial.Run(t, dispatchtrial.Trial{
		Seed:      rand.Uint64(),
		Duration:  time.Duration(repeats(4, 60)) * time.Second,
		Instances: repeats(12, 150),
		Open: func() (dispatchtrial.Store, func(), error) {
			config, err := pgxpool.ParseConfig(dsn)
			if err != nil {
				return nil, nil, err
			}
			named(config)
			pool, err := pgxpool.NewWithConfig(context.Background(), config)
			if err != nil {
				return nil, nil, err
			}
			q, err := New(pool, Options{Schema: schema})
			if err != nil {
				pool.Close()
				return nil, nil, err
			}
			return q, sync.OnceFunc(func() {
				q.Close()
				pool.Close()
			}), nil
		},
		Disturb: func() {
			_, _ = look.pool.Exec(context.Background(),
				`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1 AND pid <> pg_backend_pid() AND random() < 0.5`, schema)
		},
		InFlight: func(capabilityID string) (n int, err error) {
			err = look.pool.QueryRow(t.Context(), look.store.text(`SELECT count(*) FROM {{schema}}.intent n JOIN {{schema}}.capability c USING (capability_no)
				WHERE c.id = $1 AND n.state IN ('dispatch_committed', 'executing')`), capabilityID).Scan(&n)
			return n, err
		},
	})
	require.Zero(t, number(t, look, "SELECT coalesce(sum(used), 0)::bigint FROM {{schema}}.intent_limit"), "slots of limits")
}
