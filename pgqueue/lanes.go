package pgqueue

import (
	"context"
	"sync"

	"github.com/jackc/pgx/v5/pgxpool"
)

// laneCache remembers the numbers of lanes, which never change. It is bounded:
// beyond its size it starts over.
type laneCache struct {
	mu    sync.RWMutex
	lanes map[laneKey]lane
}

type laneKey struct{ tenantID, specID string }

type lane struct{ tenantNo, laneNo int64 }

const laneCacheSize = 1 << 16

const sqlEnsureTenant = `
INSERT INTO {{schema}}.tenant (tenant_id) VALUES ($1) ON CONFLICT (tenant_id) DO NOTHING`

const sqlEnsureLane = `
INSERT INTO {{schema}}.lane (tenant_no, spec_id)
SELECT t.tenant_no, $2 FROM {{schema}}.tenant t WHERE t.tenant_id = $1
ON CONFLICT (tenant_no, spec_id) DO NOTHING`

const sqlFindLane = `
SELECT l.tenant_no, l.lane_no FROM {{schema}}.lane l
JOIN {{schema}}.tenant t ON t.tenant_no = l.tenant_no
WHERE t.tenant_id = $1 AND l.spec_id = $2`

// lane returns the lane of a tenant and spec and adds what is missing, always
// in transactions of its own: one of a caller's that added a tenant would hold
// up, and might deadlock with, all others that need it.
func (q *Queue) lane(ctx context.Context, pool *pgxpool.Pool, tenantID, specID string) (lane, error) {
	key := laneKey{tenantID, specID}
	q.lanes.mu.RLock()
	found, ok := q.lanes.lanes[key]
	q.lanes.mu.RUnlock()
	if ok {
		return found, nil
	}
	find := func() error {
		a := q.store.newArgs()
		defer q.store.free(a)
		a.text(tenantID)
		a.text(specID)
		return q.store.do(ctx, pool, q.store.statements.findLane, a, func(c *cells) error {
			found, ok = lane{tenantNo: c.int8(), laneNo: c.int8()}, true
			return nil
		})
	}
	if err := find(); err != nil {
		return lane{}, err
	}
	if !ok {
		a := q.store.newArgs()
		defer q.store.free(a)
		a.text(tenantID)
		if err := q.store.do(ctx, pool, q.store.statements.ensureTenant, a, nil); err != nil {
			return lane{}, err
		}
		a.text(specID)
		if err := q.store.do(ctx, pool, q.store.statements.ensureLane, a, nil); err != nil {
			return lane{}, err
		}
		if err := find(); err != nil {
			return lane{}, err
		}
	}
	q.lanes.mu.Lock()
	if q.lanes.lanes == nil || len(q.lanes.lanes) >= laneCacheSize {
		q.lanes.lanes = make(map[laneKey]lane)
	}
	q.lanes.lanes[key] = found
	q.lanes.mu.Unlock()
	return found, nil
}
