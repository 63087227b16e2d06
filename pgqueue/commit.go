package pgqueue

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/workflow-supervisor/supervisor"
)

// CommitCommand implements [supervisor.WorkQueue]. A commit joins the others
// that wait and goes with them in one transaction.
func (q *Queue) CommitCommand(ctx context.Context, item *supervisor.WorkItem, command *supervisor.TransitionCommand) error {
	_, err := q.commit(ctx, item, command, 0)
	return err
}

// CommitAndKeep implements [supervisor.CommitKeeper].
func (q *Queue) CommitAndKeep(ctx context.Context, item *supervisor.WorkItem, command *supervisor.TransitionCommand, lease time.Duration) (*supervisor.WorkItem, error) {
	if lease <= 0 {
		return nil, fmt.Errorf("pgqueue: commit and keep: lease is %v, must be positive", lease)
	}
	return q.commit(ctx, item, command, lease)
}

// commit applies a command; a positive lease keeps the claim where the instance
// is due again at once.
func (q *Queue) commit(ctx context.Context, item *supervisor.WorkItem, command *supervisor.TransitionCommand, lease time.Duration) (*supervisor.WorkItem, error) {
	if err := q.ready(ctx); err != nil {
		return nil, err
	}
	if err := command.ValidateContent(item); err != nil {
		return nil, fmt.Errorf("%w: %w", supervisor.ErrCommandRejected, err)
	}
	unknown := false
	if claim := q.held.get(item.TenantID, item.ID, item.LeaseVersion); claim != nil && claim.fits(item, command) {
		m := q.commits.member()
		m.at.ctx, m.claim, m.item, m.command, m.lease = ctx, claim, item, command, lease
		verdict, err := q.commits.submit(q, m)
		switch verdict {
		case applied:
			next := q.committed(m)
			q.commits.free(m)
			return next, nil
		case notSent:
			if ctx.Err() != nil || q.closed.Err() != nil {
				return nil, q.wrap(ctx, "commit", err)
			}
		case outcomeUnknown:
			unknown = true
		}
	}
	return q.commitAlone(ctx, item, command, lease, unknown)
}

// committed follows up on a commit that was decided from a held claim.
func (q *Queue) committed(m *member) *supervisor.WorkItem {
	c := m.claim
	if m.decision.keep == 0 {
		q.held.forget(c.key, c.leaseVersion)
		if due := m.decision.due; !due.IsZero() {
			q.announceCommit(m.item.SpecID, due, m.now)
		}
		return nil
	}
	next := m.item.Clone()
	next.ScheduledAt = m.decision.due
	next.ClaimedAt = m.now
	next.State = append(next.State[:0:0], m.command.NextState...)
	next.StateVersion++
	next.LeaseVersion++
	next.ControlEpochs.Resource = m.resourceEpoch
	next.CancelRequested = m.decision.record.CancelRequested
	next.Attempt = m.decision.record.Attempt
	next.Wakeups = nil
	q.held.remember(&heldClaim{
		identity:     c.identity,
		record:       m.decision.record,
		claimedAt:    m.now,
		dueAt:        c.dueAt,
		wakeupAt:     c.wakeupAt,
		leaseVersion: next.LeaseVersion,
		stateVersion: next.StateVersion,
		touched:      c.touched,
		deliveryHash: hashKey(m.command.DeliveryKey),
		epochs:       next.ControlEpochs,
	}, m.lease)
	return &next
}

// commitAlone decides a command from its locked instance, in a transaction of
// its own. While the database cannot be reached it tries again, for as long as
// ctx lets it or commitPatience lasts. That is safe, also where unknown says
// that an earlier attempt may have been applied: each application moves the
// state version, so that the command is applied once at most, and where it was
// it is found by its key.
func (q *Queue) commitAlone(ctx context.Context, item *supervisor.WorkItem, command *supervisor.TransitionCommand, lease time.Duration, unknown bool) (*supervisor.WorkItem, error) {
	what := fmt.Sprintf("commit of %q of tenant %q", shorten(item.ID), shorten(item.TenantID))
	var next *supervisor.WorkItem
	err := q.insist(ctx, what, unknown, func(ctx context.Context, _ bool) (err error) {
		next, err = q.commitLocked(ctx, item, command, lease)
		return err
	})
	if err != nil {
		return nil, err
	}
	q.held.forget(instanceKey{item.TenantID, item.ID}, item.LeaseVersion)
	return next, nil
}

// commitPatience bounds the attempts of a commit whose caller sets no deadline.
const commitPatience = 30 * time.Second

const firstRetryDelay, lastRetryDelay = 5 * time.Millisecond, time.Second

// pause waits, unless ctx or the queue ends first.
func (q *Queue) pause(ctx context.Context, delay time.Duration) bool {
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
	case <-q.closed.Done():
	}
	return false
}

func (q *Queue) commitLocked(ctx context.Context, item *supervisor.WorkItem, command *supervisor.TransitionCommand, lease time.Duration) (next *supervisor.WorkItem, err error) {
	var kept *row
	var due, now time.Time
	var intents []supervisor.IntentRecord
	capabilities, err := q.intentCapabilities(ctx, command)
	if err != nil {
		return nil, err
	}
	err = q.store.transact(ctx, q.own, func(tx *transaction) error {
		next, kept, due, intents = nil, nil, time.Time{}, nil
		known := q.addIntentLookups(tx, item, command)
		r, err := q.load(ctx, tx, 0, item.TenantID, item.ID)
		if err != nil {
			return err
		}
		if r == nil {
			return about("commit of", item.TenantID, item.ID, supervisor.ErrNotFound)
		}
		now = r.now
		if r.deliveryKey == command.DeliveryKey {
			if r.deliveryDigest != command.DeliveryDigest || r.stateVersion-1 != item.StateVersion {
				return about("commit of", item.TenantID, item.ID, &supervisor.DeliveryConflictError{
					Key: command.DeliveryKey, StoredDigest: r.deliveryDigest, Digest: command.DeliveryDigest,
				})
			}
			if lease > 0 && r.kept && r.leaseEndsAt.After(r.now) {
				kept = r
				next, err = q.capture(ctx, tx, r)
			}
			return err
		}
		if err := r.refuses(item, command, known); err != nil {
			return err
		}
		m := &member{claim: r.held(r.now, nil), item: item, command: command, now: r.now}
		m.decision = m.claim.decide(item, command, 0, r.now)
		due = m.decision.due
		verdicts, err := q.applyIn(ctx, tx, []*member{m})
		if err != nil {
			return err
		}
		if len(verdicts) == 0 {
			// The tenant's epoch has moved since the lock.
			return errRaced
		}
		intents = q.addIntents(tx, r, command, capabilities)
		if lease == 0 || due.IsZero() || due.After(r.now) || r.pausedBy() != nil {
			return nil
		}
		worker := r.leaseOwner
		if r, err = q.load(ctx, tx, r.no, "", ""); err != nil {
			return err
		}
		r.now = now
		r.kept = true
		wakeups, err := q.acquire(ctx, tx, r, worker, lease)
		if err != nil {
			return err
		}
		kept = r
		item := r.item(now, wakeups)
		next = &item
		return nil
	})
	if errors.Is(err, errRaced) {
		return nil, about("commit of", item.TenantID, item.ID, supervisor.ErrEpochStale)
	}
	if err != nil {
		return nil, err
	}
	for n := range intents {
		if at := intents[n].DueAt; !at.IsZero() {
			q.announceIntent(&intents[n].Intent.Capability, at, now)
		}
	}
	if kept != nil {
		q.held.remember(kept.held(next.ClaimedAt, next.Wakeups), lease)
	} else if !due.IsZero() {
		q.announceCommit(item.SpecID, due, now)
	}
	return next, nil
}

// capture returns the item of a lease that is held, as it was kept.
func (q *Queue) capture(ctx context.Context, tx *transaction, r *row) (*supervisor.WorkItem, error) {
	var wakeups []supervisor.Wakeup
	var broken error
	if r.pending > 0 {
		a := q.store.newArgs()
		defer q.store.free(a)
		a.int8(r.no)
		a.instant(r.now)
		tx.add(sqlWakeups, a, func(c *cells) error {
			wakeups, broken = scanWakeups(c)
			r.wakeupAt = c.instant()
			return nil
		})
		if err := tx.send(ctx); err != nil {
			return nil, err
		}
	}
	item := r.item(r.now, wakeups)
	item.ControlEpochs.Tenant, item.ControlEpochs.Instance = r.leaseTenantEpoch, r.leaseEpoch
	return &item, broken
}

// isRule reports an error that the rules of a commit gave, after which nothing
// was applied.
func isRule(err error) bool {
	for _, sentinel := range ruleErrors {
		if errors.Is(err, sentinel) {
			return true
		}
	}
	return false
}

// refuses checks what comes after content, existence and delivery key.
func (r *row) refuses(item *supervisor.WorkItem, command *supervisor.TransitionCommand, known *knownIntents) error {
	refuse := func(sentinel error) error { return about("commit of", item.TenantID, item.ID, sentinel) }
	switch {
	case r.leaseVersion != item.LeaseVersion:
		return refuse(supervisor.ErrLeaseLost)
	case r.stateVersion != item.StateVersion || r.record.Status != supervisor.StatusActive:
		return refuse(supervisor.ErrStateConflict)
	case r.epochs.Tenant != item.ControlEpochs.Tenant || r.epochs.Instance != item.ControlEpochs.Instance:
		return refuse(supervisor.ErrEpochStale)
	}
	if len(command.ActionIntents) == 0 {
		return nil
	}
	for n := range command.ActionIntents {
		intent := &command.ActionIntents[n]
		if known.resources[intent.ResourceScopeID] > intent.ControlEpochs.Resource {
			return fmt.Errorf("pgqueue: intent %q: %w", shorten(intent.ID), refuse(supervisor.ErrEpochStale))
		}
	}
	if r.record.RefusesIntents() {
		return fmt.Errorf("pgqueue: intents after the lifecycle expired: %w", refuse(supervisor.ErrCommandRejected))
	}
	for n := range command.ActionIntents {
		if id := command.ActionIntents[n].ID; known.ids[id] {
			return fmt.Errorf("pgqueue: intent %q is there already: %w", shorten(id), refuse(supervisor.ErrCommandRejected))
		}
	}
	return nil
}

// decision is what a commit writes.
type decision struct {
	record supervisor.Record
	due    time.Time // zero: finished
	keep   time.Duration
}

// decide applies the rules to a command that nothing refuses.
func (c *heldClaim) decide(item *supervisor.WorkItem, command *supervisor.TransitionCommand, lease time.Duration, now time.Time) decision {
	policy := &c.policy
	record, at := c.record.AfterCommit(policy, item, command, now)
	d := decision{record: record, due: record.NextDue(policy, at, c.wakeupAt)}
	if d.due.IsZero() {
		return d
	}
	// Past means now. Nor does a due time ever fall behind the one before, even
	// if the server's clock was set back: see lane_due in the schema.
	d.due = later(later(d.due, now), c.dueAt)
	if lease > 0 && !d.due.After(now) {
		d.keep = lease
	}
	return d
}

// keepable reports whether the next item of a kept claim is known without
// another look: no wakeup is pending that it would contain, and no lifecycle
// timer has passed that it would raise.
func (m *member) keepable(now time.Time) bool {
	if len(m.claim.wakeups) > len(m.command.ConsumedWakeups) {
		return false
	}
	if at := m.claim.wakeupAt; !at.IsZero() && !at.After(now) {
		return false
	}
	at := timerAt(&m.claim.policy, &m.decision.record)
	return at.IsZero() || at.After(now)
}

// hashKey is the hash by which a claim remembers the latest delivery key.
func hashKey(key string) int64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(key))
	return int64(h.Sum64())
}

// commitFields is the number of fields of the type commit_v1.
const commitFields = 28

// writeApply writes the parameters of sqlApply. commitType is the type of the rows.
func (q *Queue) writeApply(a *args, commitType uint32, members []*member, now time.Time) {
	a.int8(q.barrierKey())
	a.instant(now)
	a.arrayOf(commitType, 0, len(members))
	for _, m := range members {
		m.write(a)
	}
	consumed := 0
	for _, m := range members {
		consumed += len(m.command.ConsumedWakeups)
	}
	a.array(pgtype.Int4OID, consumed)
	for n, m := range members {
		for range m.command.ConsumedWakeups {
			a.int4(n + 1)
		}
	}
	a.array(pgtype.TextOID, consumed)
	for _, m := range members {
		for _, id := range m.command.ConsumedWakeups {
			a.text(id)
		}
	}
}

// write writes a member as a row of the type commit_v1.
func (m *member) write(a *args) {
	record := &m.decision.record
	a.row(commitFields)
	a.int8(m.claim.no)
	a.int8(m.claim.leaseVersion)
	a.int8(m.claim.stateVersion)
	a.int8(m.claim.touched)
	a.int8(m.claim.epochs.Tenant)
	a.instant(m.decision.due)
	if m.decision.keep == 0 {
		a.null(pgtype.Int8OID)
	} else {
		a.int8(leaseMicros(m.decision.keep))
	}
	a.text(string(record.Status))
	a.int4(record.Attempt)
	a.int4(len(m.command.ConsumedWakeups))
	a.instant(record.RetryAt)
	a.instant(record.LastProgressAt)
	a.instant(record.LastEventAt)
	a.instant(m.claim.wakeupAt)
	a.instant(timerAt(&m.claim.policy, record))
	a.int8OrNull(record.Counters.Triggered)
	a.int8OrNull(record.Counters.Matched)
	a.int8OrNull(record.Counters.Succeeded)
	a.int8OrNull(record.Counters.ActionTerminal)
	a.textOrNull(string(supervisor.FailureClassOf(m.command)))
	failed, _ := m.command.Disposition.(supervisor.Failed)
	a.textOrNull(failed.Reason)
	a.raw(m.command.NextState)
	a.int8(hashKey(m.command.DeliveryKey))
	a.text(m.command.EventType)
	a.packed(m.command.EventDigest)
	a.packed(m.command.DeliveryKey)
	a.packed(m.command.DeliveryDigest)
	a.raw(m.command.EventPayload)
}

// readApplied reads the answer of sqlApply: the places of the members that were
// applied.
func readApplied(c *cells, members []*member) (places []int, err error) {
	c.elements(func(_ int, element []byte) {
		place := cells{values: [][]byte{element}}
		places = append(places, place.int4()-1)
	})
	c.elements(func(n int, element []byte) {
		epoch := cells{values: [][]byte{element}}
		if n < len(places) && places[n] >= 0 && places[n] < len(members) {
			members[places[n]].resourceEpoch = epoch.int8()
		}
	})
	for _, place := range places {
		if place < 0 || place >= len(members) {
			return nil, errBadRow
		}
	}
	return places, nil
}

// applyIn applies members within a transaction.
func (q *Queue) applyIn(ctx context.Context, tx *transaction, members []*member) (places []int, err error) {
	commitType, err := q.commitType.find(ctx, q, tx.conn)
	if err != nil {
		return nil, err
	}
	a := q.store.newArgs()
	defer q.store.free(a)
	q.writeApply(a, commitType, members, members[0].now)
	tx.add(sqlApply, a, func(c *cells) (err error) {
		places, err = readApplied(c, members)
		return err
	})
	return places, tx.send(ctx)
}
