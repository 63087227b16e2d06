package pgqueue

import (
	"context"
	"embed"
	"fmt"
	"hash/fnv"

	"github.com/jackc/pgx/v5"
)

// migrations are the files of each version, in order.
//
//go:embed schema/*.sql
var migrationFiles embed.FS

var migrations = [...][]string{
	{"schema/0001.sql", "schema/0001_functions.sql"},
	{"schema/0002.sql", "schema/0002_functions.sql"},
}

// SchemaVersion is the version of the schema that this version of the library
// works with.
const SchemaVersion = len(migrations)

const sqlSchemaVersion = `SELECT coalesce(max(version), 0)::bigint FROM {{schema}}.schema_version`

// Migrate brings the queue's schema up to [SchemaVersion]. It may be called by
// any number of processes at once, at every start: one does the work in one
// transaction, the others wait for it. Where the schema is up to date, it only
// reads one row and needs no right to change the database. A newer schema is an
// [ErrSchema] that names both versions, and so is a database that does not hold
// UTF-8.
func (q *Queue) Migrate(ctx context.Context) error {
	if err := q.ready(ctx); err != nil {
		return err
	}
	err := q.store.on(ctx, q.pool, func(conn *pgx.Conn) error {
		if encoding := conn.PgConn().ParameterStatus("server_encoding"); encoding != "UTF8" && encoding != "" {
			return fmt.Errorf("%w: the database's encoding is %s, must be UTF8", ErrSchema, encoding)
		}
		version, err := q.schemaVersion(ctx, conn)
		if err != nil || version == SchemaVersion {
			return err
		}
		return q.store.transactOn(ctx, conn, func(tx *transaction) error { return q.migrate(ctx, tx, conn) })
	})
	return q.wrap(ctx, "migrate", err)
}

// schemaVersion returns the version that is there, 0 for none.
func (q *Queue) schemaVersion(ctx context.Context, conn *pgx.Conn) (version int, err error) {
	err = read(conn.PgConn().ExecParams(ctx, q.store.text(sqlSchemaVersion), nil, nil, nil, []int16{1}), func(c *cells) error {
		version = int(c.int8())
		return nil
	})
	switch sqlState(err) {
	case "42P01", "3F000": // no such table, no such schema
		return 0, nil
	}
	if err == nil && version > SchemaVersion {
		err = fmt.Errorf("%w: schema %s has version %d, this library works with version %d",
			ErrSchema, q.store.schema, version, SchemaVersion)
	}
	return version, err
}

// migrate applies what is missing, all in one transaction.
func (q *Queue) migrate(ctx context.Context, tx *transaction, conn *pgx.Conn) error {
	a := new(args)
	a.int8(q.lockKey())
	// The version is read again under the lock, by a statement whose snapshot is
	// younger than it.
	tx.add("SELECT pg_advisory_xact_lock($1)", a, nil)
	if err := tx.send(ctx); err != nil {
		return err
	}
	// Who may not create schemas can still fill one that is there.
	there := false
	a.reset()
	a.text(q.options.Schema)
	tx.add("SELECT true FROM pg_namespace WHERE nspname = $1", a, func(c *cells) error {
		there = c.bool()
		return nil
	})
	if err := tx.send(ctx); err != nil {
		return err
	}
	if !there {
		if err := tx.exec(ctx, "CREATE SCHEMA {{schema}}"); err != nil {
			return err
		}
	}
	if err := tx.exec(ctx, `CREATE TABLE IF NOT EXISTS {{schema}}.schema_version (
		version bigint PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT clock_timestamp())`); err != nil {
		return err
	}
	version, err := q.schemaVersion(ctx, conn)
	if err != nil {
		return err
	}
	for ; version < SchemaVersion; version++ {
		for _, name := range migrations[version] {
			sql, err := migrationFiles.ReadFile(name)
			if err != nil {
				return err
			}
			if err := tx.exec(ctx, string(sql)); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		a.reset()
		a.int8(int64(version + 1))
		tx.add("INSERT INTO {{schema}}.schema_version (version) VALUES ($1)", a, nil)
	}
	return nil
}

// exec runs statements without parameters or results within the transaction.
func (tx *transaction) exec(ctx context.Context, sql string) error {
	return tx.conn.PgConn().Exec(ctx, tx.store.text(sql)).Close()
}

// lockKey is the advisory lock of the schema, in a database shared with locks
// that other programs have chosen.
func (q *Queue) lockKey() int64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte("github.com/workflow-supervisor/supervisor/pgqueue " + q.store.schema))
	return int64(h.Sum64())
}
