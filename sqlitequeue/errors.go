package sqlitequeue

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/workflow-supervisor/supervisor"
)

// ErrClosed is returned by every method of a queue after Close. It is also
// [supervisor.ErrUnavailable].
var ErrClosed = fmt.Errorf("sqlitequeue: queue is closed: %w", supervisor.ErrUnavailable)

// ErrSchemaTooNew is returned where the file was migrated by a newer version of
// this package; its message names both versions.
var ErrSchemaTooNew = errors.New("sqlitequeue: schema is newer than this package")

// ErrFileGone is returned by calls that write where the file, or the log beside
// it, was deleted or replaced while the queue had it open: what was written to
// it would be lost. It is also [supervisor.ErrUnavailable]; a file that is moved
// back is written again, and for another one the queue has to be opened again.
var ErrFileGone = errors.New("sqlitequeue: the file was deleted or replaced while it was open")

// Result codes of SQLite that decide what to do next; see
// https://www.sqlite.org/rescode.html. The lower eight bits are the primary code.
const (
	codeBusy   = 5
	codeLocked = 6
	codeFull   = 13
	codeTooBig = 18
)

// codeOf returns the primary result code of a driver's error, 0 for none. The
// default driver's errors have a method for it.
func codeOf(err error) int {
	var coded interface{ Code() int }
	if errors.As(err, &coded) {
		return coded.Code() & 0xff
	}
	return 0
}

// isBusy is the default of [Options.IsBusy].
func isBusy(err error) bool {
	code := codeOf(err)
	return code == codeBusy || code == codeLocked
}

// storeError wraps an error of the database, after which nothing has changed.
func storeError(what string, err error) error {
	sentinel := supervisor.ErrUnavailable
	switch {
	case errors.Is(err, supervisor.ErrUnavailable):
		return fmt.Errorf("sqlitequeue: %s: %w", what, err)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("sqlitequeue: %s: %w", what, err)
	case codeOf(err) == codeTooBig:
		// No row of SQLite holds more than a gigabyte, now or later.
		sentinel = supervisor.ErrCommandRejected
	}
	return fmt.Errorf("sqlitequeue: %s: %w: %w", what, sentinel, err)
}

// refusal is an operation that was refused for the instance that it was meant for.
func refusal(what string, id instanceID, reason error) error {
	return fmt.Errorf("sqlitequeue: %s %q of tenant %q: %w", what, shorten(id.id), shorten(id.tenant), reason)
}

func notFound(id instanceID) error { return refusal("instance", id, supervisor.ErrNotFound) }

// shorten cuts a value for an error message.
func shorten(s string) string {
	const most = 64
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
