package sqlitequeue

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func migrateOnce(ctx context.Context, path string) error {
	_, closeAll, err := openInChild(ctx, path)
	if err != nil {
		return err
	}
	return closeAll()
}

// dump returns the schema of a file as SQLite keeps it.
func dump(t *testing.T, db *sql.DB) (schema []string) {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), `SELECT type || ' ' || name || ' ' || coalesce(sql, '') FROM sqlite_schema ORDER BY name`)
	require.NoError(t, err)
	defer func() { require.NoError(t, rows.Close()) }()
	for rows.Next() {
		var text string
		require.NoError(t, rows.Scan(&text))
		schema = append(schema, text)
	}
	require.NoError(t, rows.Err())
	return schema
}

func TestMigrateTogether(t *testing.T) {
	alone := make(map[string][]string)
	for _, prefix := range []string{defaultPrefix, "other_"} {
		alone[prefix] = dump(t, open(t, Options{TablePrefix: prefix}).DB())
	}
	for round := range 8 {
		prefix := defaultPrefix
		processes := 2
		if round == 0 {
			prefix, processes = "other_", 0
		}
		path := filepath.Join(t.TempDir(), "queue.db")
		var together sync.WaitGroup
		failures := make([]error, 8+processes)
		for n := range processes {
			cmd := child(t, "migrate", path)
			together.Go(func() { failures[8+n] = cmd.Run() })
		}
		for n := range 8 {
			together.Go(func() {
				store := &faultyStore{path: path}
				db := store.pool()
				q, err := Open(t.Context(), "", Options{DB: db, IsBusy: testIsBusy, TablePrefix: prefix})
				if err == nil {
					err = errors.Join(q.Migrate(t.Context()), q.Close())
				}
				failures[n] = errors.Join(err, db.Close())
			})
		}
		together.Wait()
		require.NoError(t, errors.Join(failures...))
		q := openFile(t, path, Options{TablePrefix: prefix})
		require.Equal(t, alone[prefix], dump(t, q.DB()))
		var versions string
		require.NoError(t, q.DB().QueryRowContext(t.Context(),
			`SELECT group_concat(version) FROM `+prefix+`schema`).Scan(&versions))
		each := make([]string, SchemaVersion) // once
		for n := range each {
			each[n] = fmt.Sprint(n + 1)
		}
		require.Equal(t, strings.Join(each, ","), versions)
	}
}

func TestMigrateRefusesNewerSchema(t *testing.T) {
	path := filepath.Join(t.TempDir(), "queue.db")
	q := openFile(t, path, Options{})
	_, err := q.DB().ExecContext(t.Context(), `INSERT INTO supervisor_schema (version, applied_at) VALUES (?, 0)`, SchemaVersion+7)
	require.NoError(t, err)
	require.ErrorIs(t, q.Migrate(t.Context()), ErrSchemaTooNew)

	_, err = tryOpen(t.Context(), t, &faultyStore{path: path}, Options{})
	require.ErrorIs(t, err, ErrSchemaTooNew)
	require.ErrorContains(t, err, fmt.Sprintf("version %d", SchemaVersion+7))
	require.ErrorContains(t, err, fmt.Sprintf("with %d", SchemaVersion))
}

// Whoever is interrupted in a step leaves nothing of it behind.
func TestMigrateInterrupted(t *testing.T) {
	whole := dump(t, open(t, Options{}).DB())
	for write := 1; ; write++ {
		path := filepath.Join(t.TempDir(), "queue.db")
		store := &faultyStore{path: path}
		disarm := store.failWrite(write)
		store.everything = true
		q, err := tryOpen(t.Context(), t, store, Options{})
		reached := disarm()
		if reached {
			require.ErrorIs(t, err, errDiskFull, "write %d", write)
			q, err = tryOpen(t.Context(), t, store, Options{})
		}
		require.NoError(t, err)
		require.Equal(t, whole, dump(t, q.DB()))
		require.NoError(t, q.Close())
		if !reached {
			require.Greater(t, write, 10)
			return
		}
	}
}

func TestOpenEndsWithContext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "queue.db")
	db := (&faultyStore{path: path}).pool()
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	conn, err := db.Conn(t.Context())
	require.NoError(t, err)
	_, err = conn.ExecContext(t.Context(), `BEGIN IMMEDIATE`)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = tryOpen(ctx, t, &faultyStore{path: path}, Options{})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	_, err = conn.ExecContext(t.Context(), `ROLLBACK`)
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	openFile(t, path, Options{})
}
