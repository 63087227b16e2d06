package main

import (
	"context"
	"database/sql"
	"errors"
	"iter"
	"net/url"
	"sync"
)

// verdict is what the payment server once said about an identity. It never
// changes: that is the whole promise of the server.
type verdict struct {
	Identity string       `json:"identity"`
	Order    string       `json:"order,omitempty"`
	Cents    int64        `json:"cents,omitempty"`
	State    verdictState `json:"state"`
}

type verdictState string

const (
	stateCharged  verdictState = "charged"
	stateDeclined verdictState = "declined"
	// stateNever is that of an identity that somebody looked up before it came:
	// it will not be accepted any more.
	stateNever verdictState = "never"
)

// ledger is what a payment server remembers.
type ledger interface {
	// decide stores a verdict, unless its identity has one already, and returns
	// the one that it has then.
	decide(ctx context.Context, v verdict) (verdict, error)
	all(ctx context.Context) iter.Seq2[verdict, error]
	close() error
}

// ledgerOf is the ledger that belongs to the file of a queue.
func ledgerOf(db string) string { return db + ".ledger" }

// openLedger opens a ledger in an SQLite file, which several servers may share,
// or one in memory where path is empty.
func openLedger(ctx context.Context, path string) (ledger, error) {
	if path == "" {
		return &memoryLedger{verdicts: make(map[string]verdict)}, nil
	}
	// The driver is the one that package sqlitequeue brings.
	db, err := sql.Open("sqlite", "file:"+(&url.URL{Path: path}).EscapedPath()+
		"?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)")
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	const table = `CREATE TABLE IF NOT EXISTS ledger
		(identity TEXT PRIMARY KEY, purchase TEXT NOT NULL, cents INTEGER NOT NULL, state TEXT NOT NULL) STRICT`
	if _, err := db.ExecContext(ctx, table); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &fileLedger{db}, nil
}

type memoryLedger struct {
	mu       sync.Mutex
	verdicts map[string]verdict
}

func (l *memoryLedger) decide(_ context.Context, v verdict) (verdict, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if known, ok := l.verdicts[v.Identity]; ok {
		return known, nil
	}
	l.verdicts[v.Identity] = v
	return v, nil
}

func (l *memoryLedger) all(context.Context) iter.Seq2[verdict, error] {
	return func(yield func(verdict, error) bool) {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, v := range l.verdicts {
			if !yield(v, nil) {
				return
			}
		}
	}
}

func (l *memoryLedger) close() error { return nil }

type fileLedger struct{ db *sql.DB }

func (l *fileLedger) decide(ctx context.Context, v verdict) (verdict, error) {
	const insert = `INSERT INTO ledger (identity, purchase, cents, state) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING`
	if _, err := l.db.ExecContext(ctx, insert, v.Identity, v.Order, v.Cents, string(v.State)); err != nil {
		return verdict{}, err
	}
	// No row ever changes, so that the second statement needs no transaction.
	const query = `SELECT purchase, cents, state FROM ledger WHERE identity = ?`
	err := l.db.QueryRowContext(ctx, query, v.Identity).Scan(&v.Order, &v.Cents, &v.State)
	return v, err
}

func (l *fileLedger) all(ctx context.Context) iter.Seq2[verdict, error] {
	return func(yield func(verdict, error) bool) {
		rows, err := l.db.QueryContext(ctx, `SELECT identity, purchase, cents, state FROM ledger`)
		if err != nil {
			yield(verdict{}, err)
			return
		}
		defer rows.Close()
		for rows.Next() {
			var v verdict
			if err := rows.Scan(&v.Identity, &v.Order, &v.Cents, &v.State); err != nil || !yield(v, nil) {
				if err != nil {
					yield(verdict{}, err)
				}
				return
			}
		}
		if err := rows.Err(); err != nil {
			yield(verdict{}, err)
		}
	}
}

func (l *fileLedger) close() error { return l.db.Close() }
