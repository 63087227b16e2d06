package sqlitequeue

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"slices"
)

// session runs statements on one connection for one goroutine at a time. All
// code that reads or writes the database does so through it, whether it runs
// in the writer, on a pooled connection or in a caller's transaction.
//
// The writer's session talks to the driver's own connection and statements,
// each prepared once: database/sql would add a lock, a context watcher and a
// dozen allocations to each of the few microseconds that a statement takes.
type session struct {
	// direct is the writer's connection; nil where pooled is used.
	direct driver.Conn
	// prepared are the statements of direct by their text, which is one of a
	// fixed set of constants.
	prepared map[string]driver.Stmt
	args     []driver.NamedValue

	pooled querier
	ctx    context.Context

	prefix prefixer
	rows   rows
	// err is the first error of the database since it was last cleared.
	err error
	// broken: the connection must not be used again.
	broken bool
}

// querier is what *sql.Conn and *sql.Tx have in common.
type querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// exec runs a statement without results and returns the number of rows that it
// changed. Arguments are nil, int64, string, []byte and instant values.
func (s *session) exec(text string, args ...any) (changed int64, err error) {
	if s.direct == nil {
		result, err := s.pooled.ExecContext(s.ctx, s.prefix.apply(text), slices.Clone(args)...)
		if err == nil {
			changed, err = result.RowsAffected()
		}
		return changed, s.failed(text, err)
	}
	statement, err := s.prepare(text)
	if err != nil {
		return 0, s.failed(text, err)
	}
	result, err := statement.(driver.StmtExecContext).ExecContext(context.Background(), s.bind(args))
	if err == nil {
		changed, err = result.RowsAffected()
	}
	return changed, s.failed(text, err)
}

// query runs a statement with results. The rows are the session's: they have to
// be closed before its next statement.
func (s *session) query(text string, args ...any) (*rows, error) {
	if s.direct == nil {
		//nolint:rowserrcheck // rows.next asks for it
		pooled, err := s.pooled.QueryContext(s.ctx, s.prefix.apply(text), slices.Clone(args)...)
		if err != nil {
			return nil, s.failed(text, err)
		}
		columns, err := pooled.Columns()
		if err != nil {
			err = errors.Join(err, pooled.Close()) //nolint:sqlclosecheck // rows.close does it else
			return nil, s.failed(text, err)
		}
		s.rows.open(s, text, len(columns))
		s.rows.pooled = pooled
		return &s.rows, nil
	}
	statement, err := s.prepare(text)
	if err != nil {
		return nil, s.failed(text, err)
	}
	direct, err := statement.(driver.StmtQueryContext).QueryContext(context.Background(), s.bind(args))
	if err != nil {
		return nil, s.failed(text, err)
	}
	s.rows.open(s, text, len(direct.Columns()))
	s.rows.direct = direct
	return &s.rows, nil
}

func (s *session) prepare(text string) (driver.Stmt, error) {
	if statement := s.prepared[text]; statement != nil {
		return statement, nil
	}
	statement, err := s.direct.(driver.ConnPrepareContext).PrepareContext(context.Background(), s.prefix.apply(text))
	if err != nil {
		return nil, err
	}
	s.prepared[text] = statement
	return statement, nil
}

// bind gives the arguments the form that drivers take, in memory that the next
// statement uses again.
func (s *session) bind(args []any) []driver.NamedValue {
	s.args = s.args[:0]
	for n, arg := range args {
		s.args = append(s.args, driver.NamedValue{Ordinal: n + 1, Value: arg})
	}
	return s.args
}

// failed keeps the first error of the session.
func (s *session) failed(text string, err error) error {
	if err == nil {
		return nil
	}
	err = &statementError{text: text, err: err}
	if s.err == nil {
		s.err = err
	}
	return err
}

// close finalizes the prepared statements.
func (s *session) close() {
	for _, statement := range s.prepared {
		// The connection is given up; there is nothing to do about an error.
		_ = statement.Close()
	}
	clear(s.prepared)
}

// statementError is an error of the database with the statement that met it.
type statementError struct {
	text string
	err  error
}

func (e *statementError) Error() string {
	text := e.text
	if len(text) > 48 {
		text = text[:48] + "…"
	}
	return fmt.Sprintf("%q: %v", text, e.err)
}

func (e *statementError) Unwrap() error { return e.err }

// rows are the results of a query, read column by column. Reading a column as
// what it does not hold keeps an error for the row, which next clears.
type rows struct {
	session *session
	text    string
	direct  driver.Rows
	pooled  *sql.Rows
	values  []driver.Value
	dest    []any
	// malformed is why the row cannot be decoded.
	malformed error
}

func (r *rows) open(s *session, text string, columns int) {
	r.session, r.text = s, text
	r.direct, r.pooled = nil, nil
	r.values = slices.Grow(r.values[:0], columns)[:columns]
}

// next reads the next row and reports whether there was one; errors of the
// database stay with the session and come from close.
func (r *rows) next() bool {
	r.malformed = nil
	var err error
	switch {
	case r.direct != nil:
		if err = r.direct.Next(r.values); errors.Is(err, io.EOF) {
			return false
		}
	case !r.pooled.Next():
		err = r.pooled.Err()
		if err == nil {
			return false
		}
	default:
		r.dest = r.dest[:0]
		for n := range r.values {
			r.dest = append(r.dest, (*any)(&r.values[n]))
		}
		err = r.pooled.Scan(r.dest...)
	}
	if err != nil {
		_ = r.session.failed(r.text, err)
		return false
	}
	return true
}

// close ends the query and returns the first error of the session.
func (r *rows) close() error {
	var err error
	if r.direct != nil {
		err = r.direct.Close()
	} else {
		err = r.pooled.Close()
	}
	clear(r.values)
	if err != nil {
		_ = r.session.failed(r.text, err)
	}
	return r.session.err
}

func (r *rows) int(column int) int64 {
	value, ok := r.values[column].(int64)
	if !ok {
		r.unexpected(column, "an integer")
	}
	return value
}

// instant reads a point in time; NULL is never.
func (r *rows) instant(column int) instant {
	if r.values[column] == nil {
		return never
	}
	return instant(r.int(column))
}

// text reads text; NULL is empty.
func (r *rows) string(column int) string {
	switch value := r.values[column].(type) {
	case nil:
	case string:
		return value
	case []byte:
		return string(value)
	default:
		r.unexpected(column, "text")
	}
	return ""
}

// bytes reads text or a blob into memory of the caller's; NULL is nil.
func (r *rows) bytes(column int) []byte {
	switch value := r.values[column].(type) {
	case nil:
	case string:
		return []byte(value)
	case []byte:
		// Drivers may use the memory again for the next row.
		return append(make([]byte, 0, len(value)), value...)
	default:
		r.unexpected(column, "text")
	}
	return nil
}

func (r *rows) unexpected(column int, want string) {
	if r.malformed == nil {
		r.malformed = fmt.Errorf("column %d holds a %T, want %s", column, r.values[column], want)
	}
}

// queryInt returns the first column of the first row, 0 where there is none or
// it is NULL.
func (s *session) queryInt(text string, args ...any) (value int64, err error) {
	rows, err := s.query(text, args...)
	if err != nil {
		return 0, err
	}
	if rows.next() && rows.values[0] != nil {
		value = rows.int(0)
	}
	return value, rows.close()
}

// queryInstant returns the first column of the first row as a point in time.
func (s *session) queryInstant(text string, args ...any) (instant, error) {
	rows, err := s.query(text, args...)
	if err != nil {
		return never, err
	}
	found := never
	if rows.next() {
		found = rows.instant(0)
	}
	return found, rows.close()
}
