package pgqueue

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/workflow-supervisor/supervisor"
)

// ErrClosed is returned by every method of a queue that was closed.
var ErrClosed = errors.New("pgqueue: the queue is closed")

// ErrSchema is returned where the schema of the database is not the one that
// this version of the library needs: [Queue.Migrate] was not called yet, or a
// newer version of the library was here.
var ErrSchema = errors.New("pgqueue: schema does not fit")

var errBadRow = errors.New("pgqueue: the server sent a row of another form")

// sqlState returns the SQLSTATE of an error of the server, empty for others.
func sqlState(err error) string {
	if answer, ok := errors.AsType[*pgconn.PgError](err); ok {
		return answer.Code
	}
	return ""
}

// isConflict reports that a transaction was undone because of another one.
func isConflict(err error) bool {
	switch sqlState(err) {
	case "40001", "40P01", "55P03": // serialization failure, deadlock, lock timeout
		return true
	}
	return false
}

// refused reports that the server answered a statement with an error and goes
// on: what was sent is certainly undone. After any other error it is not known
// whether it was applied, unless nothing was sent.
func refused(err error) bool {
	if pgconn.SafeToRetry(err) {
		return true
	}
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return true
	}
	answer, ok := errors.AsType[*pgconn.PgError](err)
	return ok && answer.SeverityUnlocalized == "ERROR"
}

// wrap turns an error of the database into one of the queue: what was being
// done, the sentinel that callers match, and the cause.
func (q *Queue) wrap(ctx context.Context, what string, err error) error {
	if err == nil {
		return nil
	}
	if ctxErr := context.Cause(ctx); ctxErr != nil {
		return fmt.Errorf("pgqueue: %s: %w", what, errors.Join(ctx.Err(), ctxErr, err))
	}
	if q.closed.Err() != nil {
		return fmt.Errorf("pgqueue: %s: %w", what, ErrClosed)
	}
	switch code := sqlState(err); {
	case errors.Is(err, errBadRow):
	case code == "42P01", code == "3F000", code == "42883", code == "42703":
		// Undefined table, schema, function, column.
		return fmt.Errorf("pgqueue: %s: %w: call Migrate: %w", what, ErrSchema, err)
	case code == "", strings.HasPrefix(code, "08"), strings.HasPrefix(code, "40"), strings.HasPrefix(code, "53"),
		strings.HasPrefix(code, "57"), code == "55P03", code == "25006":
		// Without a code: the connection. Then connection, conflict, resources,
		// intervention, lock timeout, and a standby where the primary was.
		return fmt.Errorf("pgqueue: %s: %w: %w", what, supervisor.ErrUnavailable, err)
	}
	return fmt.Errorf("pgqueue: %s: %w", what, err)
}

// about wraps a sentinel with what was tried on which instance.
func about(what, tenantID, instanceID string, sentinel error) error {
	return fmt.Errorf("pgqueue: %s %q of tenant %q: %w", what, shorten(instanceID), shorten(tenantID), sentinel)
}

// shorten cuts a value for an error message.
func shorten(s string) string {
	const limit = 64
	if len(s) <= limit {
		return s
	}
	end := limit
	for end > limit-utf8.UTFMax && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + "…"
}
