package pgqueue

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// store sends statements to one schema. It speaks the protocol below pgx, so
// that parameters and results are binary whatever the pool's query mode, and
// costs no allocation per value.
type store struct {
	schema     string // quoted
	statements statements

	// unnamed is set once it turns out that prepared statements do not survive
	// from one call to the next, as behind a pooler that hands out another
	// server connection for each transaction. Planning is no matter then: the
	// costly statements are in functions, which every server connection plans
	// for itself.
	unnamed atomic.Bool

	// fault, set by tests, is asked before each statement that writes.
	fault func(sql string) error

	arguments sync.Pool
}

// statement is one SQL text. The name is made of the text, so that whatever a
// server connection has under it is the same statement.
type statement struct {
	name, sql string
}

func newStore(schema string, unnamed bool) *store {
	s := &store{schema: pgx.Identifier{schema}.Sanitize()}
	s.unnamed.Store(unnamed)
	s.arguments.New = func() any { return new(args) }
	return s
}

// text fills in the name of the schema.
func (s *store) text(sql string) string { return strings.ReplaceAll(sql, "{{schema}}", s.schema) }

func (s *store) statement(sql string) *statement {
	sql = s.text(sql)
	sum := sha256.Sum256([]byte(sql))
	return &statement{name: "supervisor_" + hex.EncodeToString(sum[:12]), sql: sql}
}

func (s *store) newArgs() *args {
	a := s.arguments.Get().(*args)
	a.reset()
	return a
}

// largestKeptBuffer bounds the memory of parameters that is kept for the next call.
const largestKeptBuffer = 1 << 20

func (s *store) free(a *args) {
	if cap(a.buffer) <= largestKeptBuffer {
		s.arguments.Put(a)
	}
}

// call runs one statement in a transaction of its own and calls each for every
// row. Where the statement fails because it is not prepared, nothing has been
// done, and it is sent again with its text.
func (s *store) call(ctx context.Context, conn *pgx.Conn, st *statement, a *args, each func(*cells) error) error {
	if s.fault != nil {
		if err := s.fault(st.sql); err != nil {
			return err
		}
	}
	values, oids, binary := a.bind()
	if !s.unnamed.Load() {
		if _, err := conn.Prepare(ctx, st.name, st.sql); err == nil {
			open := isOpen(ctx, conn)
			err = sent(open, read(conn.PgConn().ExecPrepared(ctx, st.name, values, binary, binary), each))
			if !isUnprepared(err) {
				return err
			}
		} else if !isUnprepared(err) {
			return err
		}
		s.unnamed.Store(true)
	}
	open := isOpen(ctx, conn)
	return sent(open, read(conn.PgConn().ExecParams(ctx, st.sql, values, oids, binary, binary), each))
}

// read calls each for every row of a result. An error of each ends the reading
// of rows, not that of the result.
func read(result *pgconn.ResultReader, each func(*cells) error) error {
	var failed error
	for result.NextRow() {
		if each == nil || failed != nil {
			continue
		}
		row := cells{values: result.Values()}
		if failed = each(&row); failed == nil && row.bad {
			failed = errBadRow
		}
	}
	if _, err := result.Close(); err != nil {
		return err
	}
	return failed
}

// isUnprepared reports that a prepared statement is not there, or is there
// though this connection did not prepare it.
func isUnprepared(err error) bool {
	switch sqlState(err) {
	case "26000", // invalid_sql_statement_name
		"42P05", // duplicate_prepared_statement
		"08P01": // protocol_violation: what some poolers answer
		return true
	}
	return false
}

// on calls work with a connection of the pool.
func (s *store) on(ctx context.Context, pool *pgxpool.Pool, work func(conn *pgx.Conn) error) error {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	return work(conn.Conn())
}

// do runs one statement on a connection of the pool, again where it met a
// conflict between transactions, after which nothing has been done.
func (s *store) do(ctx context.Context, pool *pgxpool.Pool, st *statement, a *args, each func(*cells) error) error {
	return s.repeat(ctx, func() error {
		return s.on(ctx, pool, func(conn *pgx.Conn) error { return s.call(ctx, conn, st, a, each) })
	})
}

// conflictRepeats bounds how often a transaction is repeated after a conflict.
const conflictRepeats = 10

// repeat calls work again while it ends with a conflict.
func (s *store) repeat(ctx context.Context, work func() error) error {
	for n := 0; ; n++ {
		err := work()
		if n == conflictRepeats || !isConflict(err) || ctx.Err() != nil {
			return err
		}
	}
}

// transaction is one that takes several statements. Statements are gathered by
// add and go to the server together with send or commit: one round trip each.
type transaction struct {
	store *store
	conn  *pgx.Conn
	batch pgconn.Batch
	eachs []func(*cells) error
	begun bool
	added bool
}

// transact runs work in a transaction and commits it, again after a conflict.
// work adds statements and sends them; what it has added last goes with the
// commit.
func (s *store) transact(ctx context.Context, pool *pgxpool.Pool, work func(tx *transaction) error) error {
	return s.repeat(ctx, func() error {
		return s.on(ctx, pool, func(conn *pgx.Conn) error { return s.transactOn(ctx, conn, work) })
	})
}

func (s *store) transactOn(ctx context.Context, conn *pgx.Conn, work func(tx *transaction) error) error {
	tx := &transaction{store: s, conn: conn}
	err := work(tx)
	if err == nil && (tx.begun || tx.added) {
		tx.batch.ExecParams("commit", nil, nil, nil, nil)
		tx.eachs = append(tx.eachs, nil)
		err = tx.send(ctx)
	}
	if err != nil && conn.PgConn().TxStatus() != 'I' && !conn.IsClosed() {
		// The connection goes back to the pool only without a transaction; where
		// this fails, too, the pool closes it.
		_ = conn.PgConn().Exec(context.WithoutCancel(ctx), "rollback").Close()
	}
	return err
}

// add gathers a statement. The parameters may be used again when it returns.
func (tx *transaction) add(sql string, a *args, each func(*cells) error) {
	if !tx.begun && !tx.added {
		// Whatever the database's default, the rules of locks and snapshots
		// here are those of this level.
		tx.batch.ExecParams("begin isolation level read committed read write", nil, nil, nil, nil)
		tx.eachs = append(tx.eachs, nil)
	}
	values, oids, binary := a.bind()
	tx.batch.ExecParams(tx.store.text(sql), values, oids, binary, binary)
	tx.eachs = append(tx.eachs, each)
	tx.added = true
}

// send runs what was gathered.
func (tx *transaction) send(ctx context.Context) error {
	if tx.store.fault != nil {
		if err := tx.store.fault("transaction"); err != nil {
			return err
		}
	}
	batch, eachs := tx.batch, tx.eachs
	tx.batch, tx.eachs, tx.added, tx.begun = pgconn.Batch{}, nil, false, true
	open := isOpen(ctx, tx.conn)
	results := tx.conn.PgConn().ExecBatch(ctx, &batch)
	var failed error
	for n := 0; results.NextResult(); n++ {
		result := results.ResultReader()
		for result.NextRow() {
			if n >= len(eachs) || eachs[n] == nil || failed != nil {
				continue
			}
			row := cells{values: result.Values()}
			if failed = eachs[n](&row); failed == nil && row.bad {
				failed = errBadRow
			}
		}
		tag, err := result.Close()
		if err == nil && tag.String() == "ROLLBACK" && failed == nil {
			failed = fmt.Errorf("pgqueue: the server rolled the transaction back")
		}
	}
	if err := results.Close(); err != nil {
		return sent(open, err)
	}
	return failed
}

// isOpen reports whether what is sent on a connection may reach the server.
func isOpen(ctx context.Context, conn *pgx.Conn) bool { return ctx.Err() == nil && !conn.IsClosed() }

// sent is the error of statements that went out on a connection, if that was open.
// Where it is lost while an answer is read, pgconn says that it is closed, in the
// words of a statement that was never sent.
func sent(open bool, err error) error {
	if open && err != nil && pgconn.SafeToRetry(err) {
		return &sentError{err}
	}
	return err
}

type sentError struct{ cause error }

func (e *sentError) Error() string { return e.cause.Error() }

func (e *sentError) Unwrap() error { return e.cause }

// SafeToRetry answers [pgconn.SafeToRetry] before the cause does.
func (e *sentError) SafeToRetry() bool { return false }

// rowType is a type of rows in the schema, whose number the database gave it when
// it was made.
type rowType struct {
	name string
	oid  atomic.Uint32 // 0: not known yet
}

// find returns the number of the type.
func (t *rowType) find(ctx context.Context, q *Queue, conn *pgx.Conn) (uint32, error) {
	if oid := t.oid.Load(); oid != 0 {
		return oid, nil
	}
	a := q.store.newArgs()
	defer q.store.free(a)
	a.text(q.store.schema + "." + t.name)
	var oid uint32
	err := q.store.call(ctx, conn, q.store.statements.typeOID, a, func(c *cells) error {
		oid = uint32(c.int8())
		return nil
	})
	if err == nil && oid == 0 {
		err = ErrSchema
	}
	if err != nil {
		return 0, err
	}
	t.oid.Store(oid)
	return oid, nil
}
