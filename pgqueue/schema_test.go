package pgqueue

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
)

// describe lists everything in a schema, by name.
func describe(t *testing.T, pool *pgxpool.Pool, schema string) string {
	t.Helper()
	rows, err := pool.Query(context.Background(), `
		SELECT 'column ' || c.relname || '.' || a.attname || ' ' || format_type(a.atttypid, a.atttypmod) || ' ' || a.attnotnull
		FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
		WHERE c.relnamespace = $1::text::regnamespace
		UNION ALL SELECT 'index ' || indexdef FROM pg_indexes WHERE schemaname = $2
		UNION ALL SELECT 'function ' || p.oid::regprocedure || ' ' || md5(replace(p.prosrc, $1::text, '')) FROM pg_proc p WHERE p.pronamespace = $1::text::regnamespace
		ORDER BY 1`, pgx.Identifier{schema}.Sanitize(), schema)
	require.NoError(t, err)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.NotEmpty(t, lines)
	return strings.ReplaceAll(strings.Join(lines, "\n"), pgx.Identifier{schema}.Sanitize(), "SCHEMA")
}

func TestMigrateFromManyProcessesAtOnce(t *testing.T) {
	dsn := testDSN(t)
	single := newSchema(t, dsn)
	want := describe(t, open(t, dsn, single, Options{}).pool, single)
	for round := range repeats(4, 20) {
		t.Run(strconv.Itoa(round), func(t *testing.T) { migrateTogether(t, dsn, want, round%2 == 1) })
	}
}

// migrateTogether migrates a schema from two processes and eight goroutines.
func migrateTogether(t *testing.T, dsn, want string, oddName bool) {
	ctx := context.Background()
	schema := newSchema(t, dsn)
	if oddName {
		// Any name will do.
		schema = fmt.Sprintf(`%s "quoted" Ünïcode;--`, schema)
		t.Cleanup(func() {
			_, err := newPool(t, dsn).Exec(ctx, "DROP SCHEMA "+pgx.Identifier{schema}.Sanitize()+" CASCADE")
			require.NoError(t, err)
		})
	}
	var group sync.WaitGroup
	for range 2 {
		group.Go(func() {
			command := exec.Command(os.Args[0])
			command.Env = append(os.Environ(), workerVariable+"=migrate", dsnVariable+"="+dsn, workerSchemaVariable+"="+schema)
			output, err := command.CombinedOutput()
			if err != nil {
				t.Errorf("another process: %v: %s", err, output)
			}
		})
	}
	pool := newPool(t, dsn, func(config *pgxpool.Config) { config.MaxConns = 4 })
	for range 8 {
		group.Go(func() {
			q, err := New(pool, Options{Schema: schema})
			if err == nil {
				defer q.Close()
				err = q.Migrate(ctx)
			}
			if err != nil {
				t.Errorf("migrate: %v", err)
			}
		})
	}
	group.Wait()
	require.False(t, t.Failed())
	var versions []int64
	rows, err := pool.Query(ctx, "SELECT version FROM "+pgx.Identifier{schema}.Sanitize()+".schema_version ORDER BY version")
	require.NoError(t, err)
	versions, err = pgx.CollectRows(rows, pgx.RowTo[int64])
	require.NoError(t, err)
	require.Equal(t, []int64{1, 2}, versions, "each version is recorded once")
	require.Equal(t, want, describe(t, pool, schema))
}

func TestMigrateRefusesNewerSchema(t *testing.T) {
	q := newQueue(t, Options{})
	ctx := context.Background()
	_, err := q.pool.Exec(ctx, q.store.text("INSERT INTO {{schema}}.schema_version (version) VALUES ($1)"), SchemaVersion+3)
	require.NoError(t, err)
	err = q.Migrate(ctx)
	require.ErrorIs(t, err, ErrSchema)
	require.ErrorContains(t, err, fmt.Sprintf("version %d", SchemaVersion+3))
	require.ErrorContains(t, err, fmt.Sprintf("version %d", SchemaVersion))
}

func TestMigrateNeedsNoRightsWhenUpToDate(t *testing.T) {
	q := newQueue(t, Options{})
	ctx := context.Background()
	_, err := q.pool.Exec(ctx, q.store.text(`
		DO $$ BEGIN
			CREATE ROLE supervisor_test_reader LOGIN PASSWORD 'reader';
		EXCEPTION WHEN duplicate_object THEN END $$;
		GRANT USAGE ON SCHEMA {{schema}} TO supervisor_test_reader;
		GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {{schema}} TO supervisor_test_reader;
		GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA {{schema}} TO supervisor_test_reader`))
	require.NoError(t, err)
	pool := newPool(t, testDSN(t), func(config *pgxpool.Config) {
		config.ConnConfig.User, config.ConnConfig.Password = "supervisor_test_reader", "reader"
	})
	reader, err := New(pool, Options{Schema: q.options.Schema})
	require.NoError(t, err)
	t.Cleanup(reader.Close)
	require.NoError(t, reader.Migrate(ctx))
	// Data rights are all that the queue needs.
	start(t, reader, "a")
	item := claimOne(t, reader)
	require.NoError(t, commit(t, reader, &item, complete))
	other, err := New(pool, Options{Schema: q.options.Schema + " other"})
	require.NoError(t, err)
	t.Cleanup(other.Close)
	require.Error(t, other.Migrate(ctx), "a schema that is missing needs rights")
}

func TestUnmigratedSchemaIsToldApart(t *testing.T) {
	dsn := testDSN(t)
	q, err := New(newPool(t, dsn), Options{Schema: newSchema(t, dsn)})
	require.NoError(t, err)
	t.Cleanup(q.Close)
	_, err = q.ClaimDue(context.Background(), request(1))
	require.ErrorIs(t, err, ErrSchema)
	require.ErrorContains(t, err, "Migrate")
	_, err = q.Start(context.Background(), instance(t, "a"), zero)
	require.ErrorIs(t, err, ErrSchema)
}
