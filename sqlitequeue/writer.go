package sqlitequeue

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

// writer is the one place in the process that writes to the file. Its goroutine
// takes all operations that have queued up while it was writing and runs them
// in one transaction, so that they share the price of making it durable: an
// operation that comes alone is written at once, and the more come the more
// share.
type writer struct {
	q    *Queue
	done sync.WaitGroup

	mu      sync.Mutex
	pending []*operation
	closed  bool
	// wake has room for one signal that pending or closed has changed.
	wake chan struct{}

	// What follows belongs to the goroutine.

	conn  *sql.Conn // nil: to be connected
	files files     // of conn
	tx    transaction
	batch []*operation
	// sharedUntil is how long the file counts as used by others, too.
	sharedUntil time.Time
}

const (
	// maxBatch bounds the operations in a transaction, and with it how long the
	// first of them waits for the last: a few milliseconds.
	maxBatch = 512
	// patience is how long a call waits before it watches its context, too.
	patience = 20 * time.Millisecond
	// connectTimeout bounds the wait for a connection of a pool that is in use.
	connectTimeout = 10 * time.Second
	// mostGathered bounds the transactions that callers are waited for after in
	// proportion to them, so that a slow disk does not cost processor time.
	mostGathered = 8 * time.Millisecond
	// sharedFor is how long another process that has written is waited for
	// after each transaction.
	sharedFor = time.Second
	// The wait is as long as the transaction was, within these bounds.
	leastGap, mostGap = 200 * time.Microsecond, 5 * time.Millisecond
)

// change is what one caller wants of the writer, and waits for: it may use the
// caller's arguments.
type change struct {
	// run makes the change, or refuses it with an error before it has written
	// anything. It may run again, after a transaction that was rolled back.
	run func(t *transaction) error
	// last: after the others, which may make something due for it.
	last bool
	// unknown: the caller has to be told where the outcome is not known.
	unknown bool
}

// operation is a change on its way through the writer.
type operation struct {
	change
	// alone: in a transaction of its own, after one that failed.
	alone bool
	state atomic.Int32
	err   error
	// done has room for the one signal that the operation is over.
	done     chan struct{}
	patience *time.Timer
}

// States of an operation: a caller may abandon it until the writer takes it.
const (
	operationQueued int32 = iota
	operationTaken
	operationAbandoned
)

// operations are used again, for their channels and timers.
var operations = sync.Pool{New: func() any {
	op := &operation{done: make(chan struct{}, 1), patience: time.NewTimer(patience)}
	op.patience.Stop()
	return op
}}

func newWriter(q *Queue) *writer {
	w := &writer{q: q, wake: make(chan struct{}, 1)}
	w.tx.init(q)
	w.tx.cache = make(map[instanceID]*entry)
	w.tx.intents.held = make(map[supervisor.IntentKey]*intent)
	return w
}

// update has the writer run a change and waits until it is durable. Where ctx
// ends before the writer has begun with it, nothing is changed; after that the
// outcome is a few milliseconds away and is waited for.
func (q *Queue) update(ctx context.Context, what string, c change) error {
	if err := ctx.Err(); err != nil {
		return storeError(what, context.Cause(ctx))
	}
	op := operations.Get().(*operation)
	op.change, op.alone, op.err = c, false, nil
	op.state.Store(operationQueued)
	if err := q.writer.submit(op); err != nil {
		return err
	}
	if !op.await(ctx) {
		// The writer still has the operation in its list: it is not used again.
		return storeError(what, context.Cause(ctx))
	}
	err := op.err
	op.change, op.err = change{}, nil
	operations.Put(op)
	return err
}

// await waits until the operation is over and reports true, or until ctx ends
// before the writer has taken it.
func (op *operation) await(ctx context.Context) bool {
	// Most operations are over within milliseconds. Asking a context for its
	// channel is what makes many of them cost something.
	op.patience.Reset(patience)
	select {
	case <-op.done:
		op.patience.Stop()
		return true
	case <-op.patience.C:
	}
	select {
	case <-op.done:
		return true
	case <-ctx.Done():
	}
	if op.state.CompareAndSwap(operationQueued, operationAbandoned) {
		return false
	}
	<-op.done
	return true
}

func (w *writer) submit(op *operation) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return ErrClosed
	}
	w.pending = append(w.pending, op)
	w.signal()
	return nil
}

func (w *writer) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// shutDown refuses further operations, waits for those that were submitted and
// joins the goroutine.
func (w *writer) shutDown() error {
	w.mu.Lock()
	w.closed = true
	w.signal()
	w.mu.Unlock()
	w.q.news.close()
	w.done.Wait()
	return w.disconnect()
}

// loop writes until the queue is closed and nothing is pending.
func (w *writer) loop() {
	for {
		if w.queued() == 0 {
			w.mu.Lock()
			closed := w.closed && len(w.pending) == 0
			w.mu.Unlock()
			if closed {
				return
			}
			<-w.wake
			continue
		}
		began := time.Now()
		served := w.transact()
		if served > 1 {
			w.gather(served, time.Since(began))
		}
		if began.Before(w.sharedUntil) {
			// A writer that always has something to write leaves no gap in which
			// another process would find the file unlocked.
			_ = pause(context.Background(), min(max(time.Since(began), leastGap), mostGap))
		}
	}
}

// gather lets the callers that were just answered come back before the next
// transaction begins, so that they share the price of making it durable. It
// waits for them only while they keep coming, and for no more than a fraction
// of what the transaction took.
func (w *writer) gather(answered int, took time.Duration) {
	took = min(took, mostGathered)
	began := time.Now()
	for last, grown := 0, began; ; {
		// Spinning, for a timer would oversleep what it waits for.
		runtime.Gosched()
		queued := w.queued()
		if queued >= answered {
			return
		}
		now := time.Now()
		if queued > last {
			last, grown = queued, now
		}
		if now.Sub(grown) > took/16 || now.Sub(began) > took/4 {
			return
		}
	}
}

func (w *writer) queued() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.pending)
}

// take moves the operations that run next from pending to batch.
func (w *writer) take() {
	clear(w.batch)
	w.batch = w.batch[:0]
	w.mu.Lock()
	defer w.mu.Unlock()
	taken := 0
	for _, op := range w.pending {
		if len(w.batch) == maxBatch || (op.alone && len(w.batch) > 0) {
			break
		}
		taken++
		if !op.state.CompareAndSwap(operationQueued, operationTaken) {
			continue
		}
		w.batch = append(w.batch, op)
		if op.alone {
			break
		}
	}
	rest := copy(w.pending, w.pending[taken:])
	clear(w.pending[rest:])
	w.pending = w.pending[:rest]
}

// dropAbandoned reports whether there is anything left to write.
func (w *writer) dropAbandoned() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	left := w.pending[:0]
	for _, op := range w.pending {
		if op.state.Load() == operationQueued {
			left = append(left, op)
		}
	}
	clear(w.pending[len(left):])
	w.pending = left
	return len(left) > 0
}

// transact runs what is pending in one transaction and returns how many
// operations were answered.
func (w *writer) transact() int {
	if w.conn == nil {
		ctx, cancel := context.WithTimeout(context.Background(), connectTimeout)
		err := w.connect(ctx)
		cancel()
		if err != nil {
			w.take()
			return w.answerAll(storeError("connect", err))
		}
	}
	answered := 0
	err := w.conn.Raw(func(direct any) error {
		w.tx.session.direct = direct.(driver.Conn)
		answered = w.write()
		return nil
	})
	if w.tx.session.broken {
		w.tx.session.broken = false
		_ = w.disconnect()
		return answered
	}
	if err != nil {
		// The connection is gone; what was pending stays so.
		err = errors.Join(err, w.disconnect())
		w.take()
		return w.answerAll(storeError("connect", err))
	}
	return answered
}

// write is transact on a connection.
func (w *writer) write() int {
	t := &w.tx
	begun, err := w.begin()
	if err != nil {
		w.take()
		w.rollback()
		return w.answerAll(storeError("begin", err))
	}
	if !begun {
		return 0
	}
	w.take()
	if err := w.files.check(); err != nil {
		w.rollback()
		return w.answerAll(storeError("write", err))
	}
	t.reset()
	for _, last := range [...]bool{false, true} {
		for _, op := range w.batch {
			if op.last != last {
				continue
			}
			op.err = op.run(t)
			if t.session.err != nil {
				return w.retryAlone()
			}
		}
	}
	if t.flushLimits() != nil || t.flush() != nil {
		return w.retryAlone()
	}
	if _, err := t.session.exec(`COMMIT`); err != nil {
		return w.failCommit(err)
	}
	if t.pulled {
		w.q.news.announce()
	}
	if t.intents.news {
		w.q.intentNews.announce()
	}
	return w.answer()
}

// begin starts a transaction that may write, once nobody else does. It reports
// false where nobody waits for it any longer.
func (w *writer) begin() (begun bool, err error) {
	s := &w.tx.session
	for delay := firstBusyDelay; ; delay = min(2*delay, mostBusyDelay) {
		s.err = nil
		if _, err := s.exec(`BEGIN IMMEDIATE`); err == nil || !w.q.options.IsBusy(err) {
			return err == nil, err
		}
		w.sharedUntil = time.Now().Add(sharedFor)
		if !w.dropAbandoned() {
			return false, nil
		}
		_ = pause(context.Background(), delay)
	}
}

// retryAlone undoes a transaction in which an operation met an error of the
// database, and has each run again in a transaction of its own, so that only
// those fail which have to.
func (w *writer) retryAlone() int {
	failure := w.tx.session.err
	w.rollback()
	if len(w.batch) == 1 {
		return w.answerAll(storeError("write", failure))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, op := range w.batch {
		op.alone, op.err = true, nil
		op.state.Store(operationQueued)
	}
	w.pending = append(append(make([]*operation, 0, len(w.batch)+len(w.pending)), w.batch...), w.pending...)
	return 0
}

// failCommit answers for a transaction of which it is not known whether it was
// made durable: a failed write may yet be found in the file after a crash.
func (w *writer) failCommit(err error) int {
	w.rollback()
	certain := codeOf(err) == codeFull || w.q.options.IsBusy(err)
	for _, op := range w.batch {
		op.err = storeError("commit", err)
		if op.unknown && !certain {
			op.err = fmt.Errorf("sqlitequeue: commit: %w: %w", supervisor.ErrCommitUnknown, err)
		}
	}
	return w.answer()
}

// rollback undoes the transaction. What was remembered of rows may be of it.
func (w *writer) rollback() {
	s := &w.tx.session
	s.err = nil
	// SQLite has rolled back by itself after some errors, and then there is
	// nothing left to undo. A connection of which that is not known is given up.
	if _, err := s.exec(`ROLLBACK`); err != nil {
		s.broken = true
	}
	clear(w.tx.cache)
	w.tx.intents.rolledBack()
}

func (w *writer) answerAll(err error) int {
	for _, op := range w.batch {
		op.err = err
	}
	return w.answer()
}

func (w *writer) answer() int {
	for _, op := range w.batch {
		op.done <- struct{}{}
	}
	return len(w.batch)
}

var writerPragmas = [...]string{
	`PRAGMA synchronous = FULL`,
	// The writer waits for locks by itself, so that operations can be abandoned
	// meanwhile.
	`PRAGMA busy_timeout = 0`,
	// 32 MiB hold the inner pages of trees with millions of rows.
	`PRAGMA cache_size = -32768`,
	// Pages that change all the time are copied into the file once in 16 MiB of
	// log instead of once in 4; copying them takes a few milliseconds.
	`PRAGMA wal_autocheckpoint = 4000`,
}

// connect takes a connection out of the pool for the writer alone.
func (w *writer) connect(ctx context.Context) error {
	conn, err := w.q.db.Conn(ctx)
	if err != nil {
		return errors.Join(w.q.file.check(), err)
	}
	files, err := w.prepare(ctx, conn)
	if err != nil {
		// Another file in the place of the queue's cannot even be read where the
		// log is not its own.
		return errors.Join(w.q.file.check(), err, conn.Close())
	}
	w.conn, w.files = conn, files
	return nil
}

// prepare makes a connection the writer's and proves that it can write.
func (w *writer) prepare(ctx context.Context, conn *sql.Conn) (files, error) {
	for _, pragma := range writerPragmas {
		if _, err := conn.ExecContext(ctx, pragma); err != nil {
			return files{}, err
		}
	}
	// Beginning a transaction does not tell a file that cannot be written.
	_, err := conn.ExecContext(ctx, w.q.prefix.apply(lockForWriting))
	if err != nil && !w.q.options.IsBusy(err) {
		return files{}, err
	}
	return w.q.file.opened()
}

// disconnect gives the connection up. It does not go back to the pool, for its
// settings are the writer's.
func (w *writer) disconnect() error {
	if w.conn == nil {
		return nil
	}
	_ = w.conn.Raw(func(any) error {
		w.tx.session.close()
		return driver.ErrBadConn
	})
	clear(w.tx.session.prepared)
	err := w.conn.Close()
	w.conn = nil
	if errors.Is(err, sql.ErrConnDone) || errors.Is(err, driver.ErrBadConn) {
		err = nil
	}
	return err
}
