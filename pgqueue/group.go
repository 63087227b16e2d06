package pgqueue

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/workflow-supervisor/supervisor"
)

// group makes one transaction of the members that wait. There is no timer: a
// member that finds nothing in flight goes at once, alone, and those that come
// while it is in flight gather for the next.
type group[M grouped] struct {
	// most bounds the transactions in flight, and batch takes what waits, makes a
	// transaction of it and gives every verdict. Both are set before the first
	// member comes.
	most  int
	batch func()

	mu         sync.Mutex
	waiting    []M
	sent       map[M]struct{} // in the batches in flight
	committers int            // goroutines that commit
	preparing  int            // those of them that have no batch yet
	watched    bool           // whether a goroutine looks after callers that leave
}

// grouped is a member of a group.
type grouped interface {
	comparable
	place() *place
	// size is the number of bytes that it brings into a transaction.
	size() int
}

// place is what a group knows of a member, which it has from submit until done
// has a value.
type place struct {
	ctx context.Context
	// reading is set, under the group's lock, while what the caller gave is read:
	// it cannot leave then. left is set when it has left: then nothing of the
	// caller's is touched any more, and the verdict is given.
	reading, left bool
	done          chan struct{} // has room for one
	verdict       verdict
	err           error
}

// commitGroup is the group of commits.
type commitGroup struct {
	group[*member]
	members sync.Pool
}

// member is one commit of a group.
type member struct {
	at      place
	claim   *heldClaim
	item    *supervisor.WorkItem
	command *supervisor.TransitionCommand
	lease   time.Duration

	// Set when it is decided and applied.
	now           time.Time
	decision      decision
	resourceEpoch int64
}

func (m *member) place() *place { return &m.at }

// verdict is what became of a member.
type verdict int

const (
	// notSent: nothing was sent for it; err says why.
	notSent verdict = iota
	applied
	// decideAlone: it was not applied, and has to be decided with its instance
	// locked.
	decideAlone
	// outcomeUnknown: whether it was applied is not known.
	outcomeUnknown
)

// batchBytes bounds the JSON of one transaction, unless one member alone is
// larger.
const batchBytes = 4 << 20

func (m *member) size() int { return len(m.command.NextState) + len(m.command.EventPayload) }

// member returns an empty member.
func (g *commitGroup) member() *member {
	if m, ok := g.members.Get().(*member); ok {
		return m
	}
	return &member{at: place{done: make(chan struct{}, 1)}}
}

// free takes a member back whose verdict was applied.
func (g *commitGroup) free(m *member) {
	*m = member{at: place{done: m.at.done}}
	g.members.Put(m)
}

// submit adds a member and blocks until it is settled or its context has ended.
func (g *group[M]) submit(q *Queue, m M) (verdict, error) {
	g.mu.Lock()
	if q.closed.Err() != nil {
		g.mu.Unlock()
		return notSent, ErrClosed
	}
	g.waiting = append(g.waiting, m)
	if g.wantsCommitter() {
		g.committers++
		g.preparing++
		// Ends when nothing waits, or others see to it; joined by Close.
		q.background.Go(g.run)
	}
	if !g.watched {
		g.watched = true
		// Ends when nothing was committed for a while; joined by Close.
		q.background.Go(func() { g.watch(q) })
	}
	g.mu.Unlock()
	at := m.place()
	<-at.done
	return at.verdict, at.err
}

// Callers that leave are looked for every watchInterval, for as long as there
// are any, and watchIdle rounds longer.
const (
	watchInterval = 20 * time.Millisecond
	watchIdle     = 100
)

// watch answers callers whose context has ended. Asking each context now and
// then costs a fraction of what a channel of its own for each commit would.
func (g *group[M]) watch(q *Queue) {
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	for idle := 0; ; {
		select {
		case <-ticker.C:
		case <-q.closed.Done():
		}
		g.mu.Lock()
		for n := 0; n < len(g.waiting); {
			if m := g.waiting[n].place(); m.ctx.Err() != nil {
				g.waiting = slices.Delete(g.waiting, n, n+1)
				m.leave(notSent)
				continue
			}
			n++
		}
		for m := range g.sent {
			if at := m.place(); at.ctx.Err() != nil && !at.reading {
				delete(g.sent, m)
				at.leave(outcomeUnknown)
			}
		}
		idle++
		if len(g.waiting)+len(g.sent) > 0 {
			idle = 0
		}
		if idle > watchIdle || q.closed.Err() != nil {
			g.watched = false
			g.mu.Unlock()
			return
		}
		g.mu.Unlock()
	}
}

// leave answers a caller whose context has ended. Whether a member that is in
// flight was sent already is for the caller to find out.
func (m *place) leave(v verdict) {
	m.left = true
	m.settle(v, context.Cause(m.ctx))
}

// settle gives the verdict.
func (m *place) settle(v verdict, err error) {
	m.verdict, m.err = v, err
	m.done <- struct{}{}
}

// besideOthers is the least number of commits that are worth a transaction beside
// others: what a transaction costs by itself is then little for each of them.
const besideOthers = 64

// wantsCommitter reports whether what waits is worth one more transaction: where
// none is in flight, and beside others when as many wait as are in flight, so
// that batches grow with the load instead of splitting up.
func (g *group[M]) wantsCommitter() bool {
	switch {
	case len(g.waiting) == 0 || g.preparing > 0 || g.committers >= g.most:
		return false
	case g.committers == 0:
		return true
	}
	return len(g.waiting) >= max(besideOthers, len(g.sent))
}

// run commits what waits until nothing does, or others see to it.
func (g *group[M]) run() {
	for {
		g.batch()
		g.mu.Lock()
		g.committers--
		if !g.wantsCommitter() {
			g.mu.Unlock()
			return
		}
		g.committers++
		g.preparing++
		g.mu.Unlock()
	}
}

// take removes the members of the next batch from those that wait.
func (g *group[M]) take(most int) []M {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.preparing--
	n, bytes := 0, 0
	for n < len(g.waiting) && n < most {
		if bytes += g.waiting[n].size(); n > 0 && bytes > batchBytes {
			break
		}
		n++
	}
	batch := slices.Clone(g.waiting[:n])
	if g.sent == nil {
		g.sent = make(map[M]struct{})
	}
	for _, m := range batch {
		g.sent[m] = struct{}{}
	}
	rest := copy(g.waiting, g.waiting[n:])
	clear(g.waiting[rest:])
	g.waiting = g.waiting[:rest]
	return batch
}

// read removes members from a batch whose callers have left, and holds the
// others until release.
func (g *group[M]) read(batch []M) []M {
	g.mu.Lock()
	defer g.mu.Unlock()
	batch = slices.DeleteFunc(batch, func(m M) bool { return m.place().left })
	for _, m := range batch {
		m.place().reading = true
	}
	return batch
}

// release lets the callers of members leave again.
func (g *group[M]) release(batch []M) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, m := range batch {
		m.place().reading = false
	}
}

// settle gives members of a batch their verdict, save those whose callers have
// left.
func (g *group[M]) settle(batch []M, v verdict, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, m := range batch {
		if at := m.place(); !at.left {
			delete(g.sent, m)
			at.settle(v, err)
		}
	}
}

// commitBatch decides and applies a batch and gives every verdict. The batch is
// what waits when the clock has been read: until then it gathers.
func (q *Queue) commitBatch() {
	// Callers may leave; the transaction goes on.
	ctx, cancel := context.WithTimeout(context.Background(), commitTimeout)
	defer cancel()
	var now time.Time
	var commitType uint32
	conn, err := q.own.Acquire(ctx)
	if err == nil {
		defer conn.Release()
		if commitType, err = q.commitType.find(ctx, q, conn.Conn()); err == nil {
			now, err = q.clock(ctx, conn.Conn())
		}
	}
	batch := q.commits.take(q.options.BatchSize)
	if err != nil {
		q.commits.settle(batch, notSent, err)
		return
	}
	a := q.store.newArgs()
	defer q.store.free(a)
	ready, alone := q.decideBatch(a, commitType, batch, now)
	q.commits.settle(alone, decideAlone, nil)
	if len(ready) == 0 {
		return
	}
	var places []int
	err = q.store.call(ctx, conn.Conn(), q.store.statements.apply, a, func(c *cells) (err error) {
		places, err = readApplied(c, ready)
		return err
	})
	switch {
	case err == nil:
		q.commits.settleApplied(ready, places)
	case refused(err):
		// Each member is tried alone, so that whatever it was about fails by itself.
		q.commits.settle(ready, decideAlone, nil)
	default:
		q.commits.settle(ready, outcomeUnknown, err)
	}
}

// decideBatch decides the members of a batch whose callers are still there, and
// writes those that can be applied together, in one order of locks for all
// batches. The others have to be decided alone.
func (q *Queue) decideBatch(a *args, commitType uint32, batch []*member, now time.Time) (ready, alone []*member) {
	batch = q.commits.read(batch)
	defer q.commits.release(batch)
	for _, m := range batch {
		// One that was claimed since the clock was read is not committed before.
		now = later(now, m.claim.claimedAt)
	}
	slices.SortFunc(batch, func(a, b *member) int { return cmp.Compare(a.claim.no, b.claim.no) })
	ready = make([]*member, 0, len(batch))
	for _, m := range batch {
		m.now = now
		m.decision = m.claim.decide(m.item, m.command, m.lease, now)
		switch {
		case m.decision.keep > 0 && !m.keepable(now):
			alone = append(alone, m)
		case len(ready) > 0 && ready[len(ready)-1].claim.no == m.claim.no:
			// Two commits of one claim: one after the other.
			alone = append(alone, m)
		default:
			ready = append(ready, m)
		}
	}
	if len(ready) > 0 {
		q.writeApply(a, commitType, ready, now)
	}
	return ready, alone
}

// settleApplied gives the verdicts of a batch that was applied at some places:
// whatever was not has changed since it was decided.
func (g *group[M]) settleApplied(batch []M, places []int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	verdicts := make([]verdict, len(batch))
	for n := range verdicts {
		verdicts[n] = decideAlone
	}
	for _, place := range places {
		verdicts[place] = applied
	}
	for n, m := range batch {
		if at := m.place(); !at.left {
			delete(g.sent, m)
			at.settle(verdicts[n], nil)
		}
	}
}

// commitTimeout bounds the transaction of a batch.
const commitTimeout = 30 * time.Second

// clock reads the server's clock.
func (q *Queue) clock(ctx context.Context, conn *pgx.Conn) (now time.Time, err error) {
	a := q.store.newArgs()
	defer q.store.free(a)
	err = q.store.call(ctx, conn, q.store.statements.clock, a, func(c *cells) error {
		now = c.instant()
		return nil
	})
	return now, err
}
