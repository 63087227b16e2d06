// The queue's life: opening, migrating, closing.

package sqlitequeue

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"sync"

	"github.com/workflow-supervisor/supervisor"
	_ "modernc.org/sqlite" // the driver "sqlite"
)

// Queue is a durable queue in one SQLite file. Several queues, in this process
// and others, may share the file. All methods may be called by many goroutines
// at once.
type Queue struct {
	options Options
	db      *sql.DB
	ownsDB  bool
	prefix  prefixer
	file    files
	clock   *clock
	writer  *writer
	news    news
	// intentNews wakes those who wait for intents.
	intentNews bell
	close      func() error
}

var (
	_ supervisor.WorkQueue    = (*Queue)(nil)
	_ supervisor.Instances    = (*Queue)(nil)
	_ supervisor.Releaser     = (*Queue)(nil)
	_ supervisor.Waiter       = (*Queue)(nil)
	_ supervisor.CommitKeeper = (*Queue)(nil)
)

// Open opens or makes the file at path, brings its schema up as Migrate does
// and starts the queue's one goroutine, which Close ends. The file is put into
// WAL mode; beside it SQLite keeps two more, with the suffixes -wal and -shm,
// which belong to it. It must be on a local disk.
//
// It waits for locks that others hold on the file, until ctx ends; ctx is not
// kept. A file with a newer schema is [ErrSchemaTooNew]; one that cannot be
// written is an error, too.
func Open(ctx context.Context, path string, options Options) (*Queue, error) {
	options, err := options.withDefaults(path)
	if err != nil {
		return nil, err
	}
	q := &Queue{
		options: options,
		db:      options.DB,
		prefix:  prefixer(options.TablePrefix),
		clock:   newClock(),
	}
	q.close = sync.OnceValue(q.shutDown)
	if q.db == nil {
		q.ownsDB = true
		if q.db, err = sql.Open("sqlite", dataSource(path)); err != nil {
			return nil, fmt.Errorf("sqlitequeue: open %q: %w", path, err)
		}
		q.db.SetMaxOpenConns(1 + options.ReadConnections)
		q.db.SetMaxIdleConns(1 + options.ReadConnections)
	}
	if err := q.start(ctx); err != nil {
		err = fmt.Errorf("sqlitequeue: open %q: %w", path, err)
		if q.ownsDB {
			err = errors.Join(err, q.db.Close())
		}
		return nil, err
	}
	return q, nil
}

// dataSource is the default driver's name for a file, with what every pooled
// connection has to be set to.
func dataSource(path string) string {
	// A relative path with a colon would read as a URI with a scheme.
	escaped := (&url.URL{Path: path}).EscapedPath()
	return "file:" + escaped + "?_txlock=immediate" +
		"&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)"
}

func (q *Queue) start(ctx context.Context) error {
	if err := q.useWAL(ctx); err != nil {
		return err
	}
	if err := q.Migrate(ctx); err != nil {
		return err
	}
	q.news.init()
	q.intentNews.changed = make(chan struct{})
	q.writer = newWriter(q)
	if err := q.writer.connect(ctx); err != nil {
		return err
	}
	// Ended and joined by shutDown.
	q.writer.done.Go(q.writer.loop)
	return nil
}

// useWAL proves that the database is a file and puts it into WAL mode, which
// lasts.
func (q *Queue) useWAL(ctx context.Context) error {
	return q.withConn(ctx, func(conn *sql.Conn) error {
		var file string
		if err := conn.QueryRowContext(ctx, `SELECT coalesce(file, '') FROM pragma_database_list WHERE name = 'main'`).Scan(&file); err != nil {
			return err
		}
		if file == "" {
			return errors.New("the database is in memory: every connection would get one of its own; supervisor.MemoryWorkQueue is the queue in memory")
		}
		var mode string
		if err := conn.QueryRowContext(ctx, `PRAGMA journal_mode = WAL`).Scan(&mode); err != nil {
			return err
		}
		if mode != "wal" {
			return fmt.Errorf("journal mode is %q, the file cannot be put into WAL mode", mode)
		}
		q.file = filesAt(file)
		return nil
	})
}

// withConn runs f with a pooled connection, again while it is refused for a
// lock that somebody else holds. f must be harmless to repeat.
func (q *Queue) withConn(ctx context.Context, f func(conn *sql.Conn) error) error {
	return whileBusy(ctx, q.options.IsBusy, func() (err error) {
		conn, err := q.db.Conn(ctx)
		if err != nil && q.news.isClosed() {
			return ErrClosed
		}
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, conn.Close()) }()
		return f(conn)
	})
}

// DB returns the pool of connections to the queue's file, for tables of your
// own and for transactions with StartTx and DeliverTx. Do not close it where
// the queue opened it.
func (q *Queue) DB() *sql.DB { return q.db }

// Close ends the queue: it refuses new calls with [ErrClosed], waits for those
// under way, ends the writer's goroutine and closes the file where Open opened
// it. Leases stay as they are. Closing again returns the same result.
func (q *Queue) Close() error { return q.close() }

func (q *Queue) shutDown() error {
	err := q.writer.shutDown()
	if q.ownsDB {
		err = errors.Join(err, q.db.Close())
	}
	if err != nil {
		return fmt.Errorf("sqlitequeue: close: %w", err)
	}
	return nil
}
