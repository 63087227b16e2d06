package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/workflow-supervisor/supervisor/sqlitequeue"
)

// sqliteSource opens a file with the settings of sqlitequeue.
func sqliteSource(path string) string {
	return "file:" + path + "?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)"
}

// sqliteHand is the loop that one would write on database/sql for this work and
// no other: it claims a hundred rows in one statement and commits the hundred in
// one transaction, on one connection.
type sqliteHand struct {
	db                    *sql.DB
	conn                  *sql.Conn
	claim, update, insert *sql.Stmt
	target                int
	items                 []sqliteItem
}

type sqliteItem struct{ id, fence, version int64 }

func newSQLiteHand(ctx context.Context, s *stage, items int) (*sqliteHand, error) {
	db, err := sql.Open("sqlite", sqliteSource(filepath.Join(s.folder, "hand.db")))
	if err != nil {
		return nil, err
	}
	h := &sqliteHand{db: db, target: items * transitionsPerInstance}
	if h.conn, err = db.Conn(ctx); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	for _, text := range []string{
		`CREATE TABLE item (id INTEGER PRIMARY KEY, due INTEGER, status INTEGER, owner TEXT, lease_until INTEGER, fence INTEGER,
			version INTEGER, state TEXT)`,
		`CREATE INDEX item_due ON item (due) WHERE status = 0`,
		`CREATE TABLE event (id INTEGER, version INTEGER, at INTEGER, type TEXT, payload TEXT, PRIMARY KEY (id, version)) WITHOUT ROWID`,
		fmt.Sprintf(`WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < %d)
			INSERT INTO item SELECT i, 0, 0, NULL, NULL, 0, 0, '{"step":0}' FROM n`, items),
	} {
		if _, err := h.conn.ExecContext(ctx, text); err != nil {
			return nil, errors.Join(err, h.close())
		}
	}
	for text, statement := range map[string]**sql.Stmt{
		`UPDATE item SET status = 1, owner = 'worker', lease_until = ?1, fence = fence + 1
			WHERE id IN (SELECT id FROM item WHERE status = 0 AND due <= ?2 ORDER BY due LIMIT ?3) RETURNING id, fence, version`: &h.claim,
		`UPDATE item SET status = ?, due = ?, version = version + 1, state = ?, owner = NULL, lease_until = NULL
			WHERE id = ? AND fence = ? AND status = 1`: &h.update,
		`INSERT INTO event VALUES (?, ?, ?, 'stepped', ?)`: &h.insert,
	} {
		if *statement, err = h.conn.PrepareContext(ctx, text); err != nil { //nolint:sqlclosecheck // ends with the connection
			return nil, errors.Join(err, h.close())
		}
	}
	return h, nil
}

func (h *sqliteHand) run(ctx context.Context) (done int, err error) {
	for done < h.target {
		if err := h.round(ctx); err != nil {
			return done, err
		}
		done += len(h.items)
	}
	return done, nil
}

// round claims a batch, does nothing, and commits it.
func (h *sqliteHand) round(ctx context.Context) error {
	now := time.Now().UnixMicro()
	if err := h.claimDue(ctx, now); err != nil {
		return err
	}
	tx, err := h.conn.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	update, insert := tx.StmtContext(ctx, h.update), tx.StmtContext(ctx, h.insert) //nolint:sqlclosecheck // ends with the transaction
	for _, item := range h.items {
		status := 0
		if item.version+1 == transitionsPerInstance {
			status = 2
		}
		step := `{"step":` + strconv.FormatInt(item.version+1, 10) + `}`
		result, err := update.ExecContext(ctx, status, now, step, item.id, item.fence)
		if err != nil {
			return err
		}
		if changed, _ := result.RowsAffected(); changed != 1 {
			return errors.New("a commit was fenced out")
		}
		if _, err := insert.ExecContext(ctx, item.id, item.version+1, now, step); err != nil {
			return err
		}
	}
	return tx.Commit()
}

func (h *sqliteHand) claimDue(ctx context.Context, now int64) error {
	rows, err := h.claim.QueryContext(ctx, now+60_000_000, now, handBatch)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	h.items = h.items[:0]
	for rows.Next() {
		var item sqliteItem
		if err := rows.Scan(&item.id, &item.fence, &item.version); err != nil {
			return err
		}
		h.items = append(h.items, item)
	}
	return rows.Err()
}

func (h *sqliteHand) close() error { return errors.Join(h.conn.Close(), h.db.Close()) }

func sqliteHandContender(name string) *contender {
	return &contender{
		name:  name,
		about: "100 rows per claim and per commit, one connection, modernc.org/sqlite, WAL, synchronous FULL",
		unit:  "a claim's update, an update and an event; a transaction per 100",
		lacks: "everything but lease, fence and event",
		units: 60_000,
		prepare: func(ctx context.Context, s *stage, units int) (work, error) {
			return newSQLiteHand(ctx, s, max(units/transitionsPerInstance, 1))
		},
	}
}

type sqliteWork struct {
	*supervised
	queue *sqlitequeue.Queue
}

func (w sqliteWork) close() error { return w.queue.Close() }

func sqlitequeueContender(name string, keep bool) *contender {
	about := "Supervisor.Run with 256 in flight, default options, a claim per transition; modernc.org/sqlite, WAL, synchronous FULL"
	unit := "a claim's update, an update and an event; a transaction per what has gathered"
	if keep {
		about = "the same, claims are kept from one transition to the next (the default)"
		unit = "an update and an event; a transaction per what has gathered"
	}
	return &contender{
		name: name, about: about, unit: unit, lacks: "nothing", units: 60_000,
		prepare: func(ctx context.Context, s *stage, units int) (work, error) {
			q, err := sqlitequeue.Open(ctx, filepath.Join(s.folder, "queue.db"), sqlitequeue.Options{})
			if err != nil {
				return nil, err
			}
			instances := max(units/transitionsPerInstance, 1)
			if err := seedSQLite(ctx, q, instances); err != nil {
				return nil, errors.Join(err, q.Close())
			}
			return sqliteWork{newSupervised(q, keep, transitionsPerInstance, instances*transitionsPerInstance), q}, nil
		},
	}
}

func seedSQLite(ctx context.Context, q *sqlitequeue.Queue, instances int) error {
	tx, err := q.DB().BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	for n := range instances {
		instance, err := benchInstance(tenantName(0), "due-"+strconv.Itoa(n))
		if err != nil {
			return err
		}
		if _, err := q.StartTx(ctx, tx, instance, time.Time{}); err != nil {
			return err
		}
	}
	return tx.Commit()
}
