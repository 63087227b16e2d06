package pgqueue

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/workflow-supervisor/supervisor"
)

// commitGroup makes one transaction of the commits that wait. There is no timer:
// a commit that finds nothing in flight goes at once, alone, and those that come
// while it is in flight gather for the next.
type commitGroup struct {
	mu         sync.Mutex
	waiting    []*member
	committers int // goroutines that commit
	inFlight   int // members in their transactions
}

// member is one commit of a group.
type member struct {
	claim   *heldClaim
	item    *supervisor.WorkItem
	command *supervisor.TransitionCommand
	lease   time.Duration

	// Set when it is decided and applied.
	now           time.Time
	decision      decision
	resourceEpoch int64

	phase   phase // guarded by the group
	encoded chan struct{}
	done    chan struct{}
	verdict verdict
	err     error
}

// phase is how far a member has come.
type phase int

const (
	inLine phase = iota
	// taken: in a batch that is not decided yet.
	taken
	// left: its caller has gone; nothing of the caller's is touched any more.
	left
	// sent: item and command are being read, or were. The batch's channel
	// encoded is closed when they no longer are.
	sent
)

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

// submit adds a member and blocks until it is settled or ctx ends.
func (g *commitGroup) submit(ctx context.Context, q *Queue, m *member) (verdict, error) {
	m.done = make(chan struct{}, 1)
	g.mu.Lock()
	if q.closed.Err() != nil {
		g.mu.Unlock()
		return notSent, ErrClosed
	}
	g.waiting = append(g.waiting, m)
	if g.wantsCommitter(q.options.Committers) {
		g.committers++
		// Ends when nothing waits; joined by Close.
		q.background.Go(func() { g.run(q) })
	}
	g.mu.Unlock()
	select {
	case <-m.done:
		return m.verdict, m.err
	case <-ctx.Done():
	}
	g.mu.Lock()
	switch m.phase {
	case inLine:
		at := slices.Index(g.waiting, m)
		g.waiting = slices.Delete(g.waiting, at, at+1)
		fallthrough
	case taken:
		m.phase = left
		g.mu.Unlock()
		return notSent, context.Cause(ctx)
	}
	g.mu.Unlock()
	// The arguments are the caller's again when this returns.
	<-m.encoded
	select {
	case <-m.done:
		return m.verdict, m.err
	default:
		return outcomeUnknown, context.Cause(ctx)
	}
}

// wantsCommitter reports whether what waits is worth a transaction now: where
// none is in flight, and beside others when as many wait as are in flight, so
// that batches grow with the load instead of splitting up.
func (g *commitGroup) wantsCommitter(most int) bool {
	return g.committers == 0 || (g.committers < most && len(g.waiting) >= g.inFlight)
}

// run commits what waits until nothing does, or others see to it.
func (g *commitGroup) run(q *Queue) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for {
		batch := g.take(q.options.BatchSize)
		if len(batch) == 0 {
			g.committers--
			return
		}
		g.inFlight += len(batch)
		g.mu.Unlock()
		q.commitBatch(batch)
		for _, m := range batch {
			m.done <- struct{}{}
		}
		g.mu.Lock()
		g.inFlight -= len(batch)
		g.committers--
		if !g.wantsCommitter(q.options.Committers) {
			return
		}
		g.committers++
	}
}

// take removes the members of the next batch from those that wait.
func (g *commitGroup) take(most int) []*member {
	n, bytes := 0, 0
	for n < len(g.waiting) && n < most {
		if bytes += g.waiting[n].size(); n > 0 && bytes > batchBytes {
			break
		}
		n++
	}
	batch := slices.Clone(g.waiting[:n])
	for _, m := range batch {
		m.phase = taken
	}
	rest := copy(g.waiting, g.waiting[n:])
	clear(g.waiting[rest:])
	g.waiting = g.waiting[:rest]
	return batch
}

// sending returns the members of a batch whose callers are still there, and
// holds those until encoded is closed.
func (g *commitGroup) sending(batch []*member, encoded chan struct{}) []*member {
	ready := make([]*member, 0, len(batch))
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, m := range batch {
		if m.phase == left {
			continue
		}
		m.phase, m.encoded = sent, encoded
		ready = append(ready, m)
	}
	return ready
}

// commitBatch decides and applies a batch and sets every verdict.
func (q *Queue) commitBatch(batch []*member) {
	// Callers may leave; the transaction goes on.
	ctx, cancel := context.WithTimeout(context.Background(), commitTimeout)
	defer cancel()
	settle := func(v verdict, err error) {
		for _, m := range batch {
			m.verdict, m.err = v, err
		}
	}
	conn, err := q.own.Acquire(ctx)
	if err != nil {
		settle(notSent, err)
		return
	}
	defer conn.Release()
	now, err := q.clock(ctx, conn.Conn())
	if err != nil {
		settle(notSent, err)
		return
	}
	commitType, err := q.commitTypeOID(ctx, conn.Conn())
	if err != nil {
		settle(notSent, err)
		return
	}
	settle(decideAlone, nil)
	encoded := make(chan struct{})
	release := sync.OnceFunc(func() { close(encoded) })
	defer release()
	ready := q.commits.sending(batch, encoded)
	decided := ready[:0]
	for _, m := range ready {
		m.now = now
		m.decision = m.claim.decide(m.item, m.command, m.lease, now)
		if m.decision.keep == 0 || m.keepable(now) {
			decided = append(decided, m)
		}
	}
	ready = decided
	if len(ready) == 0 {
		return
	}
	// One order of locks for all batches. Two with the same instance would be
	// two commits of one claim; they go one after the other.
	slices.SortFunc(ready, func(a, b *member) int {
		switch {
		case a.claim.no < b.claim.no:
			return -1
		case a.claim.no > b.claim.no:
			return 1
		}
		return 0
	})
	ready = slices.CompactFunc(ready, func(a, b *member) bool { return a.claim.no == b.claim.no })
	a := q.store.newArgs()
	defer q.store.free(a)
	q.writeApply(a, commitType, ready, now)
	release()
	var places []int
	err = q.store.call(ctx, conn.Conn(), q.store.statements.apply, a, func(c *cells) (err error) {
		places, err = readApplied(c, ready)
		return err
	})
	switch {
	case err == nil:
		for _, place := range places {
			ready[place].verdict = applied
		}
	case !refused(err):
		for _, m := range ready {
			m.verdict, m.err = outcomeUnknown, err
		}
	}
	// Where the server refused the batch, each member is tried alone, so that
	// whatever it was about fails by itself.
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
