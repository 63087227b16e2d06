package sqlitequeue

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

// Options are the settings of a queue; the zero value is good for most. Open
// copies them, fills in defaults and validates them whole.
type Options struct {
	// DB is a pool of connections of another driver, to a database in a file;
	// the path given to Open must then be empty. The queue keeps one of its
	// connections for itself, so that the pool must allow at least two. The
	// caller closes it after the queue. Nil: the queue opens the file with
	// modernc.org/sqlite, which is written in Go alone.
	//
	// Connections should be opened with synchronous FULL and immediate
	// transactions: the queue sets what its own connection needs, but StartTx
	// and DeliverTx run on the caller's.
	DB *sql.DB
	// IsBusy reports whether an error of DB's driver is SQLITE_BUSY or
	// SQLITE_LOCKED, which is waited for and never reaches a caller. Nil: the
	// errors have a method Code() int with SQLite's result code.
	IsBusy func(error) bool
	// TablePrefix begins the names of all tables and indexes; lower-case
	// letters, digits and underscores. Default "supervisor_".
	TablePrefix string
	// ReadConnections bounds the connections that the queue opens for reading.
	// Default 4; unused with DB.
	ReadConnections int
	// PollInterval is how often a waiting WaitDue looks for what other processes
	// and callers' transactions changed. Default 100 ms.
	PollInterval time.Duration
	// Admit decides whether a claimed item may be evaluated; nil admits all. An
	// error refuses. It is called by many goroutines at once.
	Admit func(ctx context.Context, item *supervisor.WorkItem) error
}

// Defaults of [Options].
const (
	DefaultReadConnections = 4
	DefaultPollInterval    = 100 * time.Millisecond
)

// withDefaults returns the options with defaults, or everything that is wrong
// with them and the path.
func (o Options) withDefaults(path string) (Options, error) {
	if o.IsBusy == nil {
		o.IsBusy = isBusy
	}
	if o.TablePrefix == "" {
		o.TablePrefix = defaultPrefix
	}
	if o.ReadConnections == 0 {
		o.ReadConnections = DefaultReadConnections
	}
	if o.PollInterval == 0 {
		o.PollInterval = DefaultPollInterval
	}
	errs := []error{o.validatePath(path), prefixer(o.TablePrefix).validate()}
	if o.ReadConnections < 0 {
		errs = append(errs, fmt.Errorf("ReadConnections is %d, must be positive", o.ReadConnections))
	}
	if o.PollInterval < 0 {
		errs = append(errs, fmt.Errorf("PollInterval is %v, must be positive", o.PollInterval))
	}
	if o.DB != nil {
		if most := o.DB.Stats().MaxOpenConnections; most == 1 {
			errs = append(errs, errors.New("DB allows 1 connection, the queue needs at least 2: one to write and one to read"))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return o, fmt.Errorf("sqlitequeue: options: %w", err)
	}
	return o, nil
}

func (o *Options) validatePath(path string) error {
	switch {
	case o.DB != nil && path != "":
		return fmt.Errorf("path is %q and DB is set, only one may be", path)
	case o.DB != nil:
		return nil
	case path == "":
		return errors.New("path is empty: SQLite would keep a temporary database; supervisor.MemoryWorkQueue is the queue in memory")
	case strings.Contains(path, ":memory:"):
		return fmt.Errorf("path is %q: every connection would get a database of its own; supervisor.MemoryWorkQueue is the queue in memory", path)
	case strings.HasPrefix(path, "file:"):
		return fmt.Errorf("path is %q: give the path of the file, not a URI", path)
	case strings.IndexByte(path, 0) >= 0:
		return fmt.Errorf("path %q holds a NUL character", path)
	}
	return nil
}
