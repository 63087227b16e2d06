package pgqueue

import (
	"context"
	"database/sql"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/workflow-supervisor/supervisor"
)

const sqlNotify = `SELECT pg_notify($1::text, $2::text)`

// StartTx is [Queue.Start] in the caller's own transaction: the instance exists
// if and when that commits. It never waits for another transaction's commit,
// unless that starts the same instance.
func (q *Queue) StartTx(ctx context.Context, tx pgx.Tx, instance supervisor.Instance, dueAt time.Time) (started bool, err error) {
	return q.startIn(ctx, askTx(tx), instance, dueAt)
}

// DeliverTx is [Queue.Deliver] in the caller's own transaction: the wakeup
// arrives if and when that commits. It locks no instance, so that transactions
// may deliver to many in any order, and take their time.
func (q *Queue) DeliverTx(ctx context.Context, tx pgx.Tx, tenantID, instanceID string, wakeup supervisor.Wakeup, dueAt time.Time) error {
	return q.deliverIn(ctx, askTx(tx), tenantID, instanceID, wakeup, dueAt)
}

// StartSQL is [Queue.StartTx] for a transaction of database/sql, of any driver
// for PostgreSQL.
func (q *Queue) StartSQL(ctx context.Context, tx *sql.Tx, instance supervisor.Instance, dueAt time.Time) (started bool, err error) {
	return q.startIn(ctx, askSQL(tx), instance, dueAt)
}

// DeliverSQL is [Queue.DeliverTx] for a transaction of database/sql, of any
// driver for PostgreSQL.
func (q *Queue) DeliverSQL(ctx context.Context, tx *sql.Tx, tenantID, instanceID string, wakeup supervisor.Wakeup, dueAt time.Time) error {
	return q.deliverIn(ctx, askSQL(tx), tenantID, instanceID, wakeup, dueAt)
}

func askTx(tx pgx.Tx) asker {
	return func(ctx context.Context, sql string, parameters []any, into ...any) error {
		return tx.QueryRow(ctx, sql, inExecMode(parameters)...).Scan(into...)
	}
}

func askSQL(tx *sql.Tx) asker {
	return func(ctx context.Context, sql string, parameters []any, into ...any) error {
		return tx.QueryRowContext(ctx, sql, parameters...).Scan(into...)
	}
}

func (q *Queue) startIn(ctx context.Context, ask asker, instance supervisor.Instance, dueAt time.Time) (bool, error) {
	started, dueAt, err := q.start(ctx, ask, &instance, dueAt)
	if err != nil || !started {
		return false, err
	}
	return true, q.notifyIn(ctx, ask, instance.SpecID, dueAt)
}

// notifyIn tells waiters of all processes when the caller's transaction
// commits.
func (q *Queue) notifyIn(ctx context.Context, ask asker, specID string, dueAt time.Time) error {
	var nothing any
	err := ask(ctx, sqlNotify, []any{q.channel(), notice("", map[string]time.Time{specID: dueAt})}, &nothing)
	return q.wrap(ctx, "notify", err)
}
