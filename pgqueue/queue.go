package pgqueue

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/workflow-supervisor/supervisor"
)

// Queue is a durable queue in PostgreSQL. Make one with [New]; all methods may
// be called by many goroutines at once.
type Queue struct {
	options Options
	store   *store

	// pool is the caller's and serves the client side. What workers need goes
	// over connections of the queue's own, so that drivers that use up the
	// caller's pool can starve neither commits nor, least of all, renewals.
	pool     *pgxpool.Pool
	own      *pgxpool.Pool
	renewing *pgxpool.Pool

	// hostNow is the host's clock, [time.Now]. Nothing that is stored, and no
	// answer, depends on it.
	hostNow func() time.Time

	closed context.Context
	close  context.CancelCauseFunc
	// background joins everything that the queue has started.
	background sync.WaitGroup
	closing    sync.Once

	lanes                  laneCache
	held                   heldClaims
	commits                commitGroup
	renewals               renewGroup[*renewal]
	waits                  waiters
	notices                notifier
	watching               sync.Once
	commitType, intentType rowType
	// claimed is how many items the latest claim got.
	claimed atomic.Int32

	capabilities   capabilityCache
	heldIntents    heldIntents
	intents        group[*intentOp]
	intentRenewals renewGroup[*intentRenewal]
	intentWaits    waiters
}

var (
	_ supervisor.WorkQueue    = (*Queue)(nil)
	_ supervisor.Instances    = (*Queue)(nil)
	_ supervisor.Releaser     = (*Queue)(nil)
	_ supervisor.Waiter       = (*Queue)(nil)
	_ supervisor.CommitKeeper = (*Queue)(nil)

	_ supervisor.IntentQueue    = (*Queue)(nil)
	_ supervisor.IntentWaiter   = (*Queue)(nil)
	_ supervisor.IntentOperator = (*Queue)(nil)
)

// barrierKey is the advisory lock that commits hold shared, for as long as they
// rely on the epochs of their tenants.
func (q *Queue) barrierKey() int64 { return q.lockKey() + 1 }

// New returns a queue in the database of a pool. It does not block and sends
// nothing: [Queue.Migrate] sets the database up.
//
// The pool stays the caller's and must outlive the queue. Start, Deliver and
// the rest of [supervisor.Instances] use it; claims, renewals and commits use
// connections of the queue's own, made from the pool's configuration when they
// are first needed: one for renewals, one to listen, and up to
// Options.Committers * 3/2 + 3 for the rest. The error names every option that
// cannot be used.
func New(pool *pgxpool.Pool, options Options) (*Queue, error) {
	resolved, err := options.resolved()
	if pool == nil {
		err = errors.Join(errors.New("pgqueue: pool is nil"), err)
	}
	if err != nil {
		return nil, err
	}
	config := pool.Config()
	unnamed := config.ConnConfig.DefaultQueryExecMode != pgx.QueryExecModeCacheStatement
	q := &Queue{
		options: resolved,
		store:   newStore(resolved.Schema, unnamed),
		pool:    pool,
		hostNow: time.Now,
	}
	q.held.now = func() time.Time { return q.hostNow() }
	q.heldIntents.now = q.held.now
	q.store.prepare()
	if q.own, err = ownPool(config, resolved.Committers+intentCommitters(resolved.Committers)+3); err != nil {
		return nil, err
	}
	if q.renewing, err = ownPool(config, 1); err != nil {
		q.own.Close()
		return nil, err
	}
	q.commitType.name, q.intentType.name = "commit_v1", "intent_v1"
	q.commits.most, q.commits.batch = resolved.Committers, q.commitBatch
	q.intents.most, q.intents.batch = intentCommitters(resolved.Committers), q.intentBatch
	q.renewals.batch, q.intentRenewals.batch = q.renew, q.renewIntents
	q.notices.id = newNoticeID()
	q.closed, q.close = context.WithCancelCause(context.Background())
	return q, nil
}

// intentCommitters bounds the transactions for intents beside those for commits.
func intentCommitters(committers int) int { return (committers + 1) / 2 }

// ownPool makes a pool like the caller's, of another size.
func ownPool(config *pgxpool.Config, size int) (*pgxpool.Pool, error) {
	config = config.Copy()
	config.MaxConns = int32(size)
	config.MinConns, config.MinIdleConns = 0, 0
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return nil, fmt.Errorf("pgqueue: %w", err)
	}
	return pool, nil
}

// Close ends what the queue does in the background and closes its own
// connections. It blocks until calls that were sent are answered. Calls that
// wait or come later return [ErrClosed]. Claims that are still held run out;
// release them before.
func (q *Queue) Close() {
	q.closing.Do(func() {
		q.close(ErrClosed)
		q.background.Wait()
		q.own.Close()
		q.renewing.Close()
	})
}

// ready reports why a call cannot begin.
func (q *Queue) ready(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if q.closed.Err() != nil {
		return ErrClosed
	}
	return nil
}
