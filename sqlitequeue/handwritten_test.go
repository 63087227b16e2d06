package sqlitequeue

import (
	"context"
	"database/sql"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// handWritten is what the queue is measured against: the loop that one would
// write for one program and no other, with the same driver and durability. It
// knows neither tenants nor wakeups, and checks nothing but its fence.
type handWritten struct {
	db                    *sql.DB
	conn                  *sql.Conn
	claim, update, insert *sql.Stmt
	items                 []handItem
}

type handItem struct {
	key, fence, version int64
	tenant, id, state   string
}

const (
	handState   = `{"step":1,"text":"the state of an instance, of a size that is common in practice"}`
	handPayload = `{"step":1}`
	handDigest  = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
)

// newHandWritten returns a loop over a file with instances that are due.
func newHandWritten(b *testing.B, instances int) *handWritten {
	ctx := b.Context()
	db, err := sql.Open("sqlite", dataSource(filepath.Join(b.TempDir(), "hand.db")))
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, db.Close()) })
	h := &handWritten{db: db}
	h.conn, err = db.Conn(ctx)
	require.NoError(b, err)
	for _, text := range []string{
		`CREATE TABLE instances (key INTEGER PRIMARY KEY, tenant TEXT, id TEXT, status INTEGER, due INTEGER, lease_end INTEGER,
			worker TEXT, fence INTEGER, version INTEGER, state TEXT)`,
		`CREATE INDEX instances_due ON instances (due) WHERE status = 0`,
		`CREATE TABLE events (instance INTEGER, version INTEGER, type TEXT, digest TEXT, delivery_key TEXT, payload TEXT, at INTEGER,
			PRIMARY KEY (instance, version)) WITHOUT ROWID`,
		`WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ` + strconv.Itoa(instances) + `)
			INSERT INTO instances SELECT i, 'tenant', 'instance-' || i, 0, 0, NULL, NULL, 0, 0, '` + handState + `' FROM n`,
	} {
		_, err := h.conn.ExecContext(ctx, text)
		require.NoError(b, err)
	}
	prepare := func(text string) *sql.Stmt {
		stmt, err := h.conn.PrepareContext(ctx, text)
		require.NoError(b, err)
		return stmt
	}
	h.claim = prepare(`UPDATE instances SET fence = fence + 1, lease_end = ?1, worker = ?2, due = ?1 WHERE key IN
		(SELECT key FROM instances WHERE status = 0 AND due <= ?3 ORDER BY due LIMIT ?4) RETURNING key, tenant, id, fence, version, state`)
	h.update = prepare(`UPDATE instances SET state = ?, version = version + 1, due = ?, lease_end = NULL WHERE key = ? AND fence = ? AND version = ?`)
	h.insert = prepare(`INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?)`)
	b.Cleanup(func() { require.NoError(b, h.conn.Close()) })
	return h
}

// round claims a batch and commits it, in a transaction each, and returns the
// number of transitions.
func (h *handWritten) round(b *testing.B, ctx context.Context, batch int) int {
	now := time.Now().UnixMicro()
	h.claimDue(b, ctx, now, batch)
	tx, err := h.conn.BeginTx(ctx, nil)
	require.NoError(b, err)
	update, insert := tx.StmtContext(ctx, h.update), tx.StmtContext(ctx, h.insert) //nolint:sqlclosecheck // ends with the transaction
	for n := range h.items {
		item := &h.items[n]
		result, err := update.ExecContext(ctx, handState, now, item.key, item.fence, item.version)
		if err != nil {
			b.Fatal(err)
		}
		if changed, _ := result.RowsAffected(); changed != 1 {
			b.Fatal("fenced")
		}
		if _, err := insert.ExecContext(ctx, item.key, item.version+1, "stepped", handDigest,
			"step:"+strconv.FormatInt(item.version, 10), handPayload, now); err != nil {
			b.Fatal(err)
		}
	}
	require.NoError(b, tx.Commit())
	return len(h.items)
}

func (h *handWritten) claimDue(b *testing.B, ctx context.Context, now int64, batch int) {
	rows, err := h.claim.QueryContext(ctx, now+60_000_000, "worker", now, batch)
	require.NoError(b, err)
	defer func() { require.NoError(b, rows.Close()) }()
	h.items = h.items[:0]
	for rows.Next() {
		var item handItem
		require.NoError(b, rows.Scan(&item.key, &item.tenant, &item.id, &item.fence, &item.version, &item.state))
		h.items = append(h.items, item)
	}
	require.NoError(b, rows.Err())
}
