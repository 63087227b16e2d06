package supervisor

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// memEvent is one entry of an instance's history, a list in order of the
// commits. Only next is ever changed.
type memEvent struct {
	typ, digest, key, worker   string
	stateVersion, leaseVersion int64
	payload                    json.RawMessage
	at                         time.Time
	next                       *memEvent
}

// committed records a commit. It shares what is never changed with the row and
// its event, for every commit of the queue's life may be recorded.
type committed struct {
	*memIdentity
	event                             *memEvent
	createdAt, scheduledAt, claimedAt time.Time
	state, nextState                  json.RawMessage
	epochs                            ControlEpochs
	attempt                           int
	deliveryDigest                    string
	disposition                       Disposition
	outcome                           EvaluationOutcome
	cancelRequested                   bool
	// rare is nil for a commit without any of it.
	rare *committedRare
}

// committedRare is what few commits have.
type committedRare struct {
	wakeups         []Wakeup
	consumedWakeups []string
	actionIntents   []ActionIntent
}

// fill makes the record of a command that the row has just applied, whose
// memory it keeps; state is the row's before it.
func (c *committed) fill(row *memRow, item *WorkItem, command *TransitionCommand, state json.RawMessage, rare *committedRare) {
	*c = committed{
		memIdentity:     row.memIdentity,
		event:           row.lastEvent,
		createdAt:       item.CreatedAt,
		scheduledAt:     item.ScheduledAt,
		claimedAt:       item.ClaimedAt,
		state:           state,
		nextState:       command.NextState,
		epochs:          item.ControlEpochs,
		attempt:         item.Attempt,
		deliveryDigest:  command.DeliveryDigest,
		disposition:     command.Disposition,
		outcome:         command.Outcome,
		cancelRequested: item.CancelRequested,
		rare:            rare,
	}
}

// copy returns the record in memory of the caller's.
func (c *committed) copy() Commit {
	item := WorkItem{
		Instance:        c.instance(),
		ScheduledAt:     c.scheduledAt,
		CreatedAt:       c.createdAt,
		ClaimedAt:       c.claimedAt,
		State:           c.state,
		StateVersion:    c.event.stateVersion - 1,
		ControlEpochs:   c.epochs,
		CancelRequested: c.cancelRequested,
		LeaseVersion:    c.event.leaseVersion,
		Attempt:         c.attempt,
	}
	command := TransitionCommand{
		DeliveryKey:    c.event.key,
		DeliveryDigest: c.deliveryDigest,
		EventType:      c.event.typ,
		EventDigest:    c.event.digest,
		EventPayload:   c.event.payload,
		NextState:      c.nextState,
		Outcome:        c.outcome,
		Disposition:    c.disposition,
	}
	if c.rare != nil {
		item.Wakeups = c.rare.wakeups
		command.ConsumedWakeups, command.ActionIntents = c.rare.consumedWakeups, c.rare.actionIntents
	}
	return Commit{Item: item.Clone(), Command: command.Clone()}
}

// CommitCommand implements [WorkQueue].
func (q *MemoryWorkQueue) CommitCommand(ctx context.Context, item *WorkItem, command *TransitionCommand) error {
	_, err := q.commit(ctx, item, command, 0)
	return err
}

// CommitAndKeep implements [CommitKeeper].
func (q *MemoryWorkQueue) CommitAndKeep(ctx context.Context, item *WorkItem, command *TransitionCommand, lease time.Duration) (*WorkItem, error) {
	if lease <= 0 {
		return nil, fmt.Errorf("supervisor: commit and keep: lease is %v, must be positive", lease)
	}
	return q.commit(ctx, item, command, lease)
}

// commit applies a command; a positive lease keeps the claim where the instance
// is due again at once.
func (q *MemoryWorkQueue) commit(ctx context.Context, item *WorkItem, command *TransitionCommand, lease time.Duration) (*WorkItem, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := command.ValidateContent(item); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCommandRejected, err)
	}
	// Copied before the lock is taken, so that large values hold up nobody.
	stored := copyCommand(command)
	rare := copyRare(item, &stored)

	q.mu.Lock()
	defer q.mu.Unlock()
	row := q.row(item.TenantID, item.ID)
	if row == nil {
		return nil, notFound(item.TenantID, item.ID)
	}
	if row.latest.key == stored.DeliveryKey {
		if err := row.repeats(item, &stored); err != nil || lease == 0 {
			return nil, err
		}
		return q.keptItem(row), nil
	}
	if err := row.refuses(item, &stored); err != nil {
		return nil, err
	}
	now := q.now()
	state, worker := row.state, ""
	if row.lease != nil {
		worker = row.lease.worker
	}
	due := row.apply(item, &stored, worker, now)
	q.prepareIntents(row, stored.ActionIntents, now)
	q.endLease(row)
	q.commits.next().fill(row, item, &stored, state, rare)
	if lease == 0 || due.IsZero() || due.After(now) || row.pausedBy() != nil {
		q.reschedule(row, due, now)
		return nil, nil
	}
	q.schedule.remove(row)
	row.due = due
	kept := q.acquire([]*memRow{row}, worker, lease, now)
	row.latest.kept = row.leaseVersion
	return &kept[0], nil
}

// repeats reports whether a command with the latest delivery key is that
// command again.
func (r *memRow) repeats(item *WorkItem, command *TransitionCommand) error {
	if r.latest.digest == command.DeliveryDigest && r.latest.from == item.StateVersion {
		return nil
	}
	return r.errorf("commit of", &DeliveryConflictError{
		Key: command.DeliveryKey, StoredDigest: r.latest.digest, Digest: command.DeliveryDigest,
	})
}

// refuses checks what comes after content, existence and delivery key.
func (r *memRow) refuses(item *WorkItem, command *TransitionCommand) error {
	switch epochs := r.controlEpochs(); {
	case r.leaseVersion != item.LeaseVersion:
		return r.errorf("commit of", ErrLeaseLost)
	case r.stateVersion != item.StateVersion || r.record.Status != StatusActive:
		return r.errorf("commit of", ErrStateConflict)
	case epochs.Tenant != item.ControlEpochs.Tenant || epochs.Instance != item.ControlEpochs.Instance:
		return r.errorf("commit of", ErrEpochStale)
	}
	for n := range command.ActionIntents {
		intent := &command.ActionIntents[n]
		if r.resourcePausedSince(intent) {
			return r.errorf(fmt.Sprintf("intent %q of", shorten(intent.ID)), ErrEpochStale)
		}
	}
	if len(command.ActionIntents) > 0 && r.record.RefusesIntents() {
		return r.errorf("intents after the expiry of", ErrCommandRejected)
	}
	for n := range command.ActionIntents {
		if id := command.ActionIntents[n].ID; r.intents != nil && r.intents.byID[id] != nil {
			return r.errorf(fmt.Sprintf("intent %q again of", shorten(id)), ErrCommandRejected)
		}
	}
	return nil
}

// resourcePausedSince reports whether the resource of an intent was paused after
// its claim.
func (r *memRow) resourcePausedSince(intent *ActionIntent) bool {
	resource, known := r.tenant.resources[intent.ResourceScopeID]
	return known && resource.epoch+r.epochs.Resource > intent.ControlEpochs.Resource
}

// apply writes a command to the row and returns when it is due next.
func (r *memRow) apply(item *WorkItem, command *TransitionCommand, worker string, now time.Time) (due time.Time) {
	policy := &r.pins.Lifecycle
	record, at := r.record.AfterCommit(policy, item, command, now)
	r.record = record
	r.latest = memDelivery{key: command.DeliveryKey, digest: command.DeliveryDigest, from: r.stateVersion}
	r.state = command.NextState
	r.stateVersion++
	r.mail.consume(command.ConsumedWakeups, now)
	r.releaseReason, r.lastError, r.failureClass = "", "", ""
	if failed, ok := command.Disposition.(Failed); ok {
		r.lastError, r.failureClass = failed.Reason, FailureClassOf(command)
	}
	event := &memEvent{
		typ:          command.EventType,
		digest:       command.EventDigest,
		key:          command.DeliveryKey,
		worker:       worker,
		stateVersion: r.stateVersion,
		leaseVersion: r.leaseVersion,
		payload:      command.EventPayload,
		at:           now,
	}
	if r.lastEvent == nil {
		r.firstEvent = event
	} else {
		r.lastEvent.next = event
	}
	r.lastEvent = event
	due = record.NextDue(policy, at, r.mail.firstOutside(r.leaseVersion))
	if due.IsZero() {
		return due
	}
	return later(due, now)
}

// keptItem returns the item again that the latest command was answered with,
// nil where its lease is no longer held.
func (q *MemoryWorkQueue) keptItem(row *memRow) *WorkItem {
	if row.latest.kept == 0 || row.latest.kept != row.leaseVersion || row.lease == nil || !row.lease.end.After(q.now()) {
		return nil
	}
	var size captureSize
	size.add(row)
	memory := size.allocate()
	item := new(WorkItem)
	row.capture(item, &memory)
	// Nothing was evaluated under it before the pauses of resources since.
	item.ControlEpochs.Resource = row.controlEpochs().Resource
	return item
}

// largestSharedCommand bounds how much larger than itself the memory is that a
// state or an event payload keeps alive for the other.
const largestSharedCommand = 1 << 10

// copyCommand copies a command into memory of the queue's. State and payload
// share one piece only where they are small, for events outlive states.
func copyCommand(c *TransitionCommand) TransitionCommand {
	command := *c
	if size := len(c.NextState) + len(c.EventPayload); size <= largestSharedCommand {
		arena := make([]byte, 0, size)
		command.NextState, arena = cloneInto(arena, c.NextState)
		command.EventPayload, _ = cloneInto(arena, c.EventPayload)
	} else {
		command.NextState = bytes.Clone(c.NextState)
		command.EventPayload = bytes.Clone(c.EventPayload)
	}
	command.ConsumedWakeups = slices.Clone(c.ConsumedWakeups)
	command.ActionIntents = slices.Clone(c.ActionIntents)
	for n := range command.ActionIntents {
		command.ActionIntents[n] = command.ActionIntents[n].Clone()
	}
	return command
}

// copyRare copies what few items and commands have, nil where there is nothing;
// the command is the queue's already.
func copyRare(item *WorkItem, command *TransitionCommand) *committedRare {
	if len(item.Wakeups)+len(command.ConsumedWakeups)+len(command.ActionIntents) == 0 {
		return nil
	}
	wakeups := slices.Clone(item.Wakeups)
	for n := range wakeups {
		wakeups[n].Payload = bytes.Clone(wakeups[n].Payload)
	}
	return &committedRare{wakeups: wakeups, consumedWakeups: command.ConsumedWakeups, actionIntents: command.ActionIntents}
}
