package sqlitequeue

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// faultyStore is a pool of connections whose writes can be made to fail, as a
// full disk would.
type faultyStore struct {
	path string
	// deferred: transactions begin as SQLite's default, not as immediate ones.
	deferred bool
	// readOnly: as where the process may not write.
	readOnly bool
	// full: the file cannot grow.
	full bool

	mu      sync.Mutex
	left    int // writes until the one that fails; 0: none does
	reached bool
	commits int
	// everything: the creation of tables and the begin of transactions, too.
	everything bool
	// sticky: all writes after it fail, too, and so do rollbacks.
	sticky bool
	// kill: the process is killed instead.
	kill bool
}

var errDiskFull = errors.New("disk I/O error")

// openFaulty returns a queue on a faulty store in a file.
func openFaulty(t testing.TB, path string) (*Queue, *faultyStore) {
	t.Helper()
	store := &faultyStore{path: path}
	return openStore(t, store, Options{}), store
}

// openStore returns a queue on a store, which ends with the test.
func openStore(t testing.TB, store *faultyStore, options Options) *Queue {
	t.Helper()
	q, err := tryOpen(t.Context(), t, store, options)
	require.NoError(t, err)
	return q
}

// tryOpen is openStore for what may fail.
func tryOpen(ctx context.Context, t testing.TB, store *faultyStore, options Options) (*Queue, error) {
	t.Helper()
	db := store.pool()
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	options.DB, options.IsBusy = db, testIsBusy
	q, err := Open(ctx, "", options)
	if err == nil {
		t.Cleanup(func() { require.NoError(t, q.Close()) })
	}
	return q, err
}

func (s *faultyStore) pool() *sql.DB { return sql.OpenDB(s) }

// failWrite makes the n-th write from now on fail.
func (s *faultyStore) failWrite(n int) (disarm func() (reached bool)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left, s.reached = n, false
	return func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.left = 0
		return s.reached
	}
}

// committed returns how many transactions were committed with a statement.
func (s *faultyStore) committed() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.commits
}

func (s *faultyStore) write(text string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	verb, _, _ := strings.Cut(text, " ")
	if verb == "COMMIT" {
		s.commits++
	}
	switch verb {
	case "INSERT", "UPDATE", "DELETE", "COMMIT":
	case "CREATE", "BEGIN":
		if !s.everything {
			return nil
		}
	case "ROLLBACK":
		if !s.sticky {
			return nil
		}
	default:
		return nil
	}
	if s.left == 0 {
		return nil
	}
	if s.left--; s.left > 0 {
		return nil
	}
	if s.sticky {
		s.left = 1
	}
	s.reached = true
	if s.kill {
		// Nothing runs after this.
		process, err := os.FindProcess(os.Getpid())
		if err == nil {
			err = process.Kill()
		}
		// The signal is on its way.
		time.Sleep(time.Minute)
		panic(err)
	}
	return errDiskFull
}

// Driver implements [driver.Connector].
func (s *faultyStore) Driver() driver.Driver { return testDriver }

// Connect implements [driver.Connector].
func (s *faultyStore) Connect(ctx context.Context) (driver.Conn, error) {
	source := testSource(s.path)
	if s.deferred {
		source = strings.Replace(source, "_txlock=immediate", "_txlock=deferred", 1)
	}
	if s.readOnly {
		source += "&mode=ro"
	}
	conn, err := testDriver.Open(source)
	if err != nil {
		return nil, err
	}
	if s.full {
		// Not below the pages that there are.
		_, err = conn.(driver.ExecerContext).ExecContext(ctx, `PRAGMA max_page_count = 1`, nil)
	}
	return &faultyConn{Conn: conn, store: s}, err
}

type faultyConn struct {
	driver.Conn
	store *faultyStore
}

func (c *faultyConn) PrepareContext(ctx context.Context, text string) (driver.Stmt, error) {
	stmt, err := c.Conn.(driver.ConnPrepareContext).PrepareContext(ctx, text)
	if err != nil {
		return nil, err
	}
	return &faultyStmt{Stmt: stmt, store: c.store, text: text}, nil
}

func (c *faultyConn) ExecContext(ctx context.Context, text string, args []driver.NamedValue) (driver.Result, error) {
	if err := c.store.write(text); err != nil {
		return nil, err
	}
	return c.Conn.(driver.ExecerContext).ExecContext(ctx, text, args)
}

func (c *faultyConn) QueryContext(ctx context.Context, text string, args []driver.NamedValue) (driver.Rows, error) {
	return c.Conn.(driver.QueryerContext).QueryContext(ctx, text, args)
}

func (c *faultyConn) BeginTx(ctx context.Context, options driver.TxOptions) (driver.Tx, error) {
	return c.Conn.(driver.ConnBeginTx).BeginTx(ctx, options)
}

type faultyStmt struct {
	driver.Stmt
	store *faultyStore
	text  string
}

func (s *faultyStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	if err := s.store.write(s.text); err != nil {
		return nil, err
	}
	return s.Stmt.(driver.StmtExecContext).ExecContext(ctx, args)
}

func (s *faultyStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	if err := s.store.write(s.text); err != nil {
		return nil, err
	}
	return s.Stmt.(driver.StmtQueryContext).QueryContext(ctx, args)
}
