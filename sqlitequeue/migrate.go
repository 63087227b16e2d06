package sqlitequeue

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// Migrate brings the queue's tables in the file up to [SchemaVersion], and
// nothing else. Open has done it; calling it again changes nothing. Any number
// of processes may migrate at once: each step is taken once, in a transaction
// of its own, so that whoever is interrupted leaves whole steps behind and the
// next one goes on from there. A newer schema is refused with
// [ErrSchemaTooNew].
func (q *Queue) Migrate(ctx context.Context) error {
	if q.news.isClosed() {
		return ErrClosed
	}
	for {
		var version int
		err := q.withConn(ctx, func(conn *sql.Conn) (err error) {
			version, err = q.schemaVersion(ctx, conn)
			return err
		})
		switch {
		case err != nil:
			return fmt.Errorf("sqlitequeue: migrate: %w", err)
		case version > SchemaVersion:
			return fmt.Errorf("%w: the file has version %d, this package works with %d", ErrSchemaTooNew, version, SchemaVersion)
		case version == SchemaVersion:
			return nil
		}
		if err := q.withConn(ctx, func(conn *sql.Conn) error { return q.migrateStep(ctx, conn) }); err != nil {
			return fmt.Errorf("sqlitequeue: migrate from version %d: %w", version, err)
		}
	}
}

func (q *Queue) schemaVersion(ctx context.Context, conn querier) (version int, err error) {
	s := session{pooled: conn, ctx: ctx, prefix: q.prefix}
	tables, err := s.queryInt(selectSchemaTable)
	if err != nil || tables == 0 {
		return 0, err
	}
	found, err := s.queryInt(selectSchemaVersion)
	return int(found), err
}

// migrateStep takes the next step, whichever that is once nobody else can write.
func (q *Queue) migrateStep(ctx context.Context, conn *sql.Conn) (err error) {
	// BEGIN as a statement, for database/sql has no immediate transactions.
	if _, err := conn.ExecContext(ctx, `BEGIN IMMEDIATE`); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			// Also after ctx has ended, lest the connection goes back to the
			// pool inside a transaction.
			_, rollback := conn.ExecContext(context.WithoutCancel(ctx), `ROLLBACK`)
			err = errors.Join(err, rollback)
		}
	}()
	version, err := q.schemaVersion(ctx, conn)
	if err != nil {
		return err
	}
	s := session{pooled: conn, ctx: ctx, prefix: q.prefix}
	if version < SchemaVersion {
		if version == 0 {
			if _, err := s.exec(createSchemaTable); err != nil {
				return err
			}
		}
		for _, statement := range migrations[version] {
			if _, err := s.exec(statement); err != nil {
				return err
			}
		}
		if _, err := s.exec(insertSchemaVersion, int64(version+1), int64(q.clock.now())); err != nil {
			return err
		}
	}
	_, err = conn.ExecContext(ctx, `COMMIT`)
	return err
}
