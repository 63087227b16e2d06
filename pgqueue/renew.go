package pgqueue

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/workflow-supervisor/supervisor"
)

// renewGroup makes one statement of the renewals that wait while another is in
// flight. It has a connection to itself, which nothing else can use up.
type renewGroup[R any] struct {
	// batch renews some and tells each caller; it is set before the first comes.
	batch func([]R)

	mu      sync.Mutex
	waiting []R
	running bool
}

type renewal struct {
	lease supervisor.Lease
	no    int64 // 0: not known
	done  chan error
}

// renewBatch bounds the renewals of one statement, renewTimeout how long it may
// take.
const (
	renewBatch   = 1000
	renewTimeout = 10 * time.Second
)

// Renew implements [supervisor.WorkQueue].
func (q *Queue) Renew(ctx context.Context, lease supervisor.Lease) error {
	if err := q.ready(ctx); err != nil {
		return err
	}
	if lease.Duration <= 0 {
		return fmt.Errorf("pgqueue: lease: Duration is %v, must be positive", lease.Duration)
	}
	r := &renewal{lease: lease, done: make(chan error, 1)}
	if claim := q.held.get(lease.TenantID, lease.InstanceID, lease.Version); claim != nil {
		r.no = claim.no
	}
	q.renewals.submit(q, r)
	select {
	case err := <-r.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-q.closed.Done():
		return ErrClosed
	}
}

func (g *renewGroup[R]) submit(q *Queue, r R) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting = append(g.waiting, r)
	if !g.running && q.closed.Err() == nil {
		g.running = true
		// Ends when nothing waits; joined by Close.
		q.background.Go(g.run)
	}
}

// run renews what waits until nothing does.
func (g *renewGroup[R]) run() {
	for {
		g.mu.Lock()
		n := min(len(g.waiting), renewBatch)
		batch := g.waiting[:n:n]
		g.waiting = g.waiting[n:]
		if n == 0 {
			g.waiting, g.running = nil, false
			g.mu.Unlock()
			return
		}
		g.mu.Unlock()
		g.batch(batch)
	}
}

// verdicts of renew_v1.
const (
	renewed = iota
	renewLost
	renewStale
)

// renew extends the leases of a batch and tells each caller.
func (q *Queue) renew(batch []*renewal) {
	ctx, cancel := context.WithTimeout(q.closed, renewTimeout)
	defer cancel()
	// In the order in which all that lock several instances do.
	slices.SortFunc(batch, func(a, b *renewal) int { return cmp.Compare(a.no, b.no) })
	a := q.store.newArgs()
	defer q.store.free(a)
	column := func(oid uint32, each func(r *renewal)) {
		a.array(oid, len(batch))
		for _, r := range batch {
			each(r)
		}
	}
	column(pgtype.Int8OID, func(r *renewal) { a.int8OrNull(r.no) })
	column(pgtype.TextOID, func(r *renewal) { a.text(storable(r.lease.TenantID)) })
	column(pgtype.TextOID, func(r *renewal) { a.text(storable(r.lease.InstanceID)) })
	column(pgtype.Int8OID, func(r *renewal) { a.int8(r.lease.Version) })
	column(pgtype.TextOID, func(r *renewal) { a.text(storable(r.lease.WorkerID)) })
	column(pgtype.Int8OID, func(r *renewal) { a.int8(leaseMicros(r.lease.Duration)) })
	verdicts := make([]int, len(batch))
	for n := range verdicts {
		verdicts[n] = math.MaxInt
	}
	err := q.store.do(ctx, q.renewing, q.store.statements.renew, a, func(c *cells) error {
		c.elements(func(n int, element []byte) {
			verdict := cells{values: [][]byte{element}}
			if n < len(verdicts) {
				verdicts[n] = verdict.int4()
			}
		})
		return nil
	})
	for n, r := range batch {
		switch {
		case err != nil:
			r.done <- q.wrap(context.Background(), "renew", err)
		case verdicts[n] == renewed:
			r.done <- nil
		case verdicts[n] == renewLost:
			r.done <- about("renew", r.lease.TenantID, r.lease.InstanceID, supervisor.ErrLeaseLost)
		case verdicts[n] == renewStale:
			r.done <- about("renew", r.lease.TenantID, r.lease.InstanceID, supervisor.ErrEpochStale)
		default:
			r.done <- q.wrap(context.Background(), "renew", errBadRow)
		}
	}
}
