package pgqueue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/workflow-supervisor/supervisor"
)

// intentOp is one change of an intent by a rule. It is a member of a group, so
// that those that come together share a transaction.
type intentOp struct {
	at   place
	key  supervisor.IntentKey
	rule func(x *intentRow, slotFree func() bool) (told bool, err error)
	// tells is whether the rule is likely to tell the instance: its run is locked
	// first then. takes is whether it may take a slot: those that free one go
	// before it.
	tells, takes bool
	// held is whether only the holder of a lease may do it: an intent that is not
	// there is nobody's.
	held bool
	// lease is the lease version that it relies on, 0 for none.
	lease int64
	// bytes is the size of what the rule stores.
	bytes int
	// repeated reports, where an earlier attempt may have been applied, that it
	// was; nil: the rule knows.
	repeated func(r *supervisor.IntentRecord) bool

	// Set when it is decided: what the rule said, and the record after it.
	said error
	row  *intentRow
}

func (op *intentOp) place() *place { return &op.at }

func (op *intentOp) size() int { return op.bytes }

const oidText = pgtype.TextOID

// Errors that keep a rule from being applied in a group.
var (
	// errTells: the instance has to be told, but is not locked.
	errTells = errors.New("pgqueue: the instance has to be locked first")
	// errNotDue: somebody else was there before.
	errNotDue = errors.New("pgqueue: the intent is not due any more")
)

// storedWith reports an error with which a rule has changed the record.
func storedWith(err error) bool {
	return errors.Is(err, supervisor.ErrIntentRefused) || errors.Is(err, supervisor.ErrReceiptConflict)
}

// changeIntent applies a rule to an intent, in a transaction with others that
// come at the same time, and returns the intent after it and what the rule said.
func (q *Queue) changeIntent(ctx context.Context, what string, op *intentOp) (*intentRow, error) {
	if err := q.ready(ctx); err != nil {
		return nil, err
	}
	grouped := *op
	grouped.at = place{ctx: ctx, done: make(chan struct{}, 1)}
	unknown := false
	verdict, err := q.intents.submit(q, &grouped)
	switch verdict {
	case applied:
		return grouped.row, grouped.said
	case notSent:
		if ctx.Err() != nil || q.closed.Err() != nil {
			return nil, q.wrap(ctx, what, err)
		}
	case outcomeUnknown:
		unknown = true
	}
	return q.changeIntentAlone(ctx, what, op, unknown)
}

// changeIntentAlone applies a rule in a transaction of its own, again while the
// database cannot be reached. Also where unknown says that an earlier attempt may
// have been applied that is safe, for the rules know repeats under one lease.
func (q *Queue) changeIntentAlone(ctx context.Context, what string, op *intentOp, unknown bool) (*intentRow, error) {
	var alone intentOp
	about := fmt.Sprintf("%s intent %q of instance %q of tenant %q", what, shorten(op.key.IntentID),
		shorten(op.key.InstanceID), shorten(op.key.TenantID))
	err := q.insist(ctx, about, unknown, func(ctx context.Context, unknown bool) error {
		return q.store.repeat(ctx, func() error {
			alone = *op
			alone.tells = true
			if unknown && op.repeated != nil {
				alone.rule = func(x *intentRow, slotFree func() bool) (told bool, err error) {
					if op.repeated(&x.record) {
						return false, nil
					}
					return op.rule(x, slotFree)
				}
			}
			var after func()
			err := q.store.on(ctx, q.own, func(conn *pgx.Conn) error {
				return q.store.transactOn(ctx, conn, func(tx *transaction) (err error) {
					after, err = q.decideIntents(ctx, tx, []*intentOp{&alone}, func(ops []*intentOp) []*intentOp { return ops })
					return err
				})
			})
			if after != nil && (err == nil || !refused(err)) {
				// Where it is not known whether it was applied the next attempt has
				// nothing to tell of.
				after()
			}
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	return alone.row, alone.said
}

// intentBatch makes one transaction of the changes that wait.
func (q *Queue) intentBatch() {
	// Callers may leave; the transaction goes on.
	ctx, cancel := context.WithTimeout(context.Background(), commitTimeout)
	defer cancel()
	var now time.Time
	conn, err := q.own.Acquire(ctx)
	if err == nil {
		defer conn.Release()
		now, err = q.clock(ctx, conn.Conn())
	}
	batch := q.intents.take(q.options.BatchSize)
	if err != nil {
		q.intents.settle(batch, notSent, err)
		return
	}
	if batch = q.applyHeld(ctx, conn.Conn(), batch, now); len(batch) == 0 {
		return
	}
	var after func()
	err = q.store.transactOn(ctx, conn.Conn(), func(tx *transaction) (err error) {
		after, err = q.decideIntents(ctx, tx, batch, func(ops []*intentOp) []*intentOp {
			batch = q.intents.read(ops)
			return batch
		})
		q.intents.release(batch)
		return err
	})
	switch {
	case err == nil:
		after()
		alone := func(op *intentOp) bool { return errors.Is(op.said, errTells) }
		slices.SortStableFunc(batch, func(a, b *intentOp) int {
			return cmp.Compare(btoi(alone(a)), btoi(alone(b)))
		})
		first := slices.IndexFunc(batch, alone)
		if first < 0 {
			first = len(batch)
		}
		q.intents.settle(batch[:first], applied, nil)
		q.intents.settle(batch[first:], decideAlone, nil)
	case refused(err):
		// Each member is tried alone, so that whatever it was about fails by itself.
		q.intents.settle(batch, decideAlone, nil)
	default:
		if after != nil {
			// Where it was applied nobody else tells of it.
			after()
		}
		q.intents.settle(batch, outcomeUnknown, err)
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// decideIntents locks the intents of some changes, lets the rules decide, and adds
// the writing of what has changed to the transaction. hold is called before
// anything of the callers is read, and returns whose changes are still wanted.
// after is to be called when the transaction is committed.
func (q *Queue) decideIntents(ctx context.Context, tx *transaction, ops []*intentOp, hold func([]*intentOp) []*intentOp) (after func(), err error) {
	rows, err := q.loadIntents(ctx, tx, ops)
	if err != nil {
		return nil, err
	}
	list := make([]*intentRow, 0, len(rows))
	for _, x := range rows {
		list = append(list, x)
	}
	sortIntents(list)
	limits, err := q.lockLimits(ctx, tx, list)
	if err != nil {
		return nil, err
	}
	ops = slices.Clone(hold(ops))
	slices.SortStableFunc(ops, func(a, b *intentOp) int { return cmp.Compare(btoi(a.takes), btoi(b.takes)) })
	for _, op := range ops {
		x := rows[op.key]
		switch {
		case x == nil:
			op.said = op.missing()
			continue
		case x.broken != nil:
			op.said = &brokenIntentError{key: op.key, cause: x.broken}
			continue
		}
		held := x.record.HoldsSlot()
		op.said = x.apply(func(*supervisor.IntentRecord) (bool, error) {
			return op.rule(x, func() bool { return limits.free(&x.record.Intent) })
		})
		limits.count(&x.record.Intent, btoi(x.record.HoldsSlot())-btoi(held))
		decided := *x
		op.row = &decided
		q.heldIntents.forget(op.key)
	}
	unparked, err := q.unparkFreed(ctx, tx, limits, list)
	if err != nil {
		return nil, err
	}
	list = append(list, unparked...)
	return q.writeIntents(ctx, tx, list, limits)
}

// missing is the error of an intent that is not there.
func (op *intentOp) missing() error {
	sentinel := supervisor.ErrNotFound
	if op.held {
		sentinel = supervisor.ErrLeaseLost
	}
	return fmt.Errorf("pgqueue: intent %q of instance %q of tenant %q: %w",
		shorten(op.key.IntentID), shorten(op.key.InstanceID), shorten(op.key.TenantID), sentinel)
}

// sortIntents puts rows in the one order in which they are locked and written.
func sortIntents(rows []*intentRow) {
	slices.SortFunc(rows, compareIntents)
}

// loadIntents locks and reads the intents of some changes. All of them get one
// clock, which no claim before it is ahead of.
func (q *Queue) loadIntents(ctx context.Context, tx *transaction, ops []*intentOp) (map[supervisor.IntentKey]*intentRow, error) {
	tells := make(map[supervisor.IntentKey]bool, len(ops))
	keys := make([]supervisor.IntentKey, 0, len(ops))
	for _, op := range ops {
		known, found := tells[op.key]
		if !found {
			keys = append(keys, op.key)
		}
		tells[op.key] = known || op.tells
	}
	a := q.store.newArgs()
	defer q.store.free(a)
	a.int8(q.barrierKey())
	column := func(oid uint32, each func(key *supervisor.IntentKey)) {
		a.array(oid, len(keys))
		for n := range keys {
			each(&keys[n])
		}
	}
	column(pgtype.TextOID, func(key *supervisor.IntentKey) { a.text(storable(key.TenantID)) })
	column(pgtype.TextOID, func(key *supervisor.IntentKey) { a.text(storable(key.InstanceID)) })
	column(pgtype.TextOID, func(key *supervisor.IntentKey) { a.text(storable(key.IntentID)) })
	column(pgtype.BoolOID, func(key *supervisor.IntentKey) { a.bool(tells[*key]) })
	rows := make(map[supervisor.IntentKey]*intentRow, len(keys))
	var now time.Time
	tx.add(sqlLoadIntents, a, func(c *cells) error {
		x := new(intentRow)
		x.broken = x.scan(c)
		x.runLocked = tells[x.record.Key()]
		rows[x.record.Key()] = x
		now = later(now, x.now)
		return nil
	})
	if err := tx.send(ctx); err != nil {
		return nil, err
	}
	for _, x := range rows {
		x.now = now
	}
	return rows, nil
}

// writeIntents adds the writing of changed rows to a transaction, and of what that
// means for limits.
func (q *Queue) writeIntents(ctx context.Context, tx *transaction, rows []*intentRow, limits *limitSet) (after func(), err error) {
	rows = slices.DeleteFunc(rows, func(x *intentRow) bool { return !x.changed })
	if len(rows) == 0 {
		return func() {}, nil
	}
	sortIntents(rows)
	rowType, err := q.intentType.find(ctx, q, tx.conn)
	if err != nil {
		return nil, err
	}
	a := q.store.newArgs()
	defer q.store.free(a)
	now := rows[0].now
	a.null(pgtype.Int8OID)
	a.instant(now)
	a.arrayOf(rowType, 0, len(rows))
	for _, x := range rows {
		if err := x.write(a); err != nil {
			return nil, err
		}
	}
	written := 0
	tx.add(sqlApplyIntents, a, func(c *cells) error {
		written = c.elements(func(int, []byte) {})
		return nil
	})
	q.addLimits(tx, limits)
	if err := tx.send(ctx); err != nil {
		return nil, err
	}
	if written != len(rows) {
		return nil, errRaced
	}
	return func() { q.announceIntents(rows, now) }, nil
}

// announceIntents tells waiters what changed intents make due: themselves, and the
// instances that were told of them.
func (q *Queue) announceIntents(rows []*intentRow, now time.Time) {
	for _, x := range rows {
		if x.wakeup != nil {
			q.announceCommit(x.specID, now, now)
		}
		if due := x.record.DueAt; !due.IsZero() && !x.record.Leased(now) {
			q.announceIntent(&x.record.Intent.Capability, due, now)
		}
	}
}

// insist calls attempt until the database has answered: while it cannot be
// reached it tries again, for as long as ctx lets it or commitPatience lasts.
// unknown says that an earlier attempt may have been applied; where that is so in
// the end the error is [supervisor.ErrCommitUnknown]. An error of the rules is
// returned as it is.
func (q *Queue) insist(ctx context.Context, what string, unknown bool, attempt func(ctx context.Context, unknown bool) error) error {
	if _, limited := ctx.Deadline(); !limited {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, commitPatience)
		defer cancel()
	}
	for delay := firstRetryDelay; ; delay = min(2*delay, lastRetryDelay) {
		err := attempt(ctx, unknown)
		if err == nil || isRule(err) {
			return err
		}
		unknown = unknown || !refused(err)
		wrapped := q.wrap(context.Background(), what, err)
		if errors.Is(wrapped, supervisor.ErrUnavailable) && q.pause(ctx, delay) {
			continue
		}
		if unknown {
			return fmt.Errorf("pgqueue: %s: %w: %w", what, supervisor.ErrCommitUnknown, errors.Join(ctx.Err(), err))
		}
		return errors.Join(ctx.Err(), wrapped)
	}
}
