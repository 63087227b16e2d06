package sqlitequeue

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

// CommitCommand implements [supervisor.WorkQueue].
func (q *Queue) CommitCommand(ctx context.Context, item *supervisor.WorkItem, command *supervisor.TransitionCommand) error {
	_, err := q.commit(ctx, item, command, 0)
	return err
}

// CommitAndKeep implements [supervisor.CommitKeeper].
func (q *Queue) CommitAndKeep(ctx context.Context, item *supervisor.WorkItem, command *supervisor.TransitionCommand, lease time.Duration) (next *supervisor.WorkItem, err error) {
	if lease <= 0 {
		return nil, fmt.Errorf("sqlitequeue: commit and keep: lease is %v, must be positive", lease)
	}
	return q.commit(ctx, item, command, lease)
}

func (q *Queue) commit(ctx context.Context, item *supervisor.WorkItem, command *supervisor.TransitionCommand, lease time.Duration) (*supervisor.WorkItem, error) {
	if err := command.ValidateContent(item); err != nil {
		return nil, fmt.Errorf("%w: %w", supervisor.ErrCommandRejected, err)
	}
	c := commit{
		id:      instanceID{item.TenantID, item.ID},
		item:    item,
		command: command,
		lease:   lease,
		hash:    keyHash(command.DeliveryKey),
	}
	if err := q.update(ctx, "commit", change{run: c.run, unknown: true}); err != nil {
		return nil, err
	}
	return c.kept, nil
}

// keyHash tells most delivery keys apart without reading the stored one.
func keyHash(key string) int64 {
	h := fnv.New64a()
	_, _ = io.WriteString(h, key)
	return int64(h.Sum64())
}

// commit is one command on its way to the instance that it was made for.
type commit struct {
	id      instanceID
	item    *supervisor.WorkItem
	command *supervisor.TransitionCommand
	// lease keeps the claim for that long where it is positive.
	lease time.Duration
	hash  int64

	kept *supervisor.WorkItem

	// What decide leaves for write.

	now      instant
	tenant   *tenant
	consumed []int64
	raised   []supervisor.RaisedWakeup
	worker   string
	keep     bool
	hadTexts bool
	// cancelled: the lifecycle has, with the claim that is kept.
	cancelled bool
}

// small reports whether the next state is stored in the row.
func (c *commit) small() bool { return len(c.command.NextState) <= inlineState }

// errRepeated ends the commit of a command that was committed before.
var errRepeated = errors.New("repeated")

func (c *commit) run(t *transaction) error {
	c.now, c.kept = t.now(), nil
	var repeated *entry
	e, err := t.change(c.id, c.now, func(e *entry, next *row) error {
		repeated = e
		return c.decide(t, e, next)
	})
	if errors.Is(err, errRepeated) {
		return c.repeat(t, repeated)
	}
	if err != nil {
		return err
	}
	return c.write(t, e)
}

// decide checks the command against the instance as it stands, in the order of
// [supervisor.WorkQueue], and works out what it makes of the row.
func (c *commit) decide(t *transaction, e *entry, next *row) (err error) {
	if e == nil {
		return notFound(c.id)
	}
	if err := c.checkDelivery(t, e); err != nil {
		return err
	}
	if c.tenant, err = t.tenant(c.id.tenant); err != nil {
		return err
	}
	switch r := &e.row; {
	case r.leaseVersion != c.item.LeaseVersion:
		return refusal("commit of", c.id, supervisor.ErrLeaseLost)
	case r.stateVersion != c.item.StateVersion || !r.active():
		return refusal("commit of", c.id, supervisor.ErrStateConflict)
	case c.tenant.epoch != c.item.ControlEpochs.Tenant || r.epoch != c.item.ControlEpochs.Instance:
		return refusal("commit of", c.id, supervisor.ErrEpochStale)
	}
	record := e.row.record()
	if err := t.checkIntents(c, e, &record); err != nil {
		return err
	}
	if c.consumed, err = t.pendingWakeups(e.row.key, c.command.ConsumedWakeups); err != nil {
		return err
	}
	c.apply(e, next, record)
	return nil
}

// apply is the command's effect on the row.
func (c *commit) apply(e *entry, next *row, record supervisor.Record) {
	policy := &e.instance.Lifecycle
	record, at := record.AfterCommit(policy, c.item, c.command, c.now.time())
	due := instantOf(record.NextDue(policy, at, e.outside.time()))
	next.setRecord(&record)
	next.stateVersion++
	next.deliveryHash = c.hash
	next.wakeups -= int64(len(c.consumed))
	next.dueAt = never
	if due != never {
		next.dueAt = max(due, c.now)
	}
	next.state = new(json.RawMessage)
	if c.small() {
		next.state = &c.command.NextState
	}
	_, failed := c.command.Disposition.(supervisor.Failed)
	next.beside, c.hadTexts = failed || !c.small(), e.row.beside
	c.worker = ""
	if e.row.held() {
		c.worker = e.row.workerID
	}
	next.endLease()
	c.raised, c.cancelled = nil, false
	c.keep = c.lease > 0 && next.dueAt != never && next.dueAt <= c.now && !next.paused && !c.tenant.paused
	if !c.keep {
		next.place(c.now)
		return
	}
	c.raised = next.acquire(e.instance, c.tenant, c.lease, c.now)
	c.cancelled = next.epoch != e.row.epoch
	next.kept = true
}

const selectDelivery = `SELECT delivery_key, delivery_digest FROM supervisor_events WHERE instance = ? AND state_version = ?`

// checkDelivery compares the command's delivery key with the instance's latest,
// which belongs to the event that made its state.
func (c *commit) checkDelivery(t *transaction, e *entry) error {
	if e.row.stateVersion == 0 || e.row.deliveryHash != c.hash {
		return nil
	}
	rows, err := t.session.query(selectDelivery, e.row.key, e.row.stateVersion)
	if err != nil {
		return err
	}
	var key, digest string
	if rows.next() {
		key, digest = rows.string(0), rows.string(1)
	}
	switch err := rows.close(); {
	case err != nil:
		return err
	case key != c.command.DeliveryKey:
		return nil
	case digest == c.command.DeliveryDigest && c.item.StateVersion == e.row.stateVersion-1:
		return errRepeated
	}
	return refusal("commit of", c.id, &supervisor.DeliveryConflictError{
		Key: key, StoredDigest: digest, Digest: c.command.DeliveryDigest,
	})
}

const (
	insertEvent = `INSERT INTO supervisor_events (instance, state_version, type, digest, delivery_key, delivery_digest,
		worker_id, lease_version, payload, at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, CAST(? AS TEXT), ?)`
	replaceTexts = `INSERT OR REPLACE INTO supervisor_texts (key, state, last_error, failure_class)
		VALUES (?, CAST(? AS TEXT), ?, ?)`
	deleteTexts = `DELETE FROM supervisor_texts WHERE key = ?`
)

// write stores what belongs to the changed row.
func (c *commit) write(t *transaction, e *entry) error {
	if err := t.consume(c.consumed, c.now); err != nil {
		return err
	}
	if _, err := t.session.exec(insertEvent, e.row.key, e.row.stateVersion, c.command.EventType, c.command.EventDigest,
		c.command.DeliveryKey, c.command.DeliveryDigest, c.worker, c.item.LeaseVersion, blob(c.command.EventPayload), int64(c.now)); err != nil {
		return err
	}
	if err := c.writeTexts(t, e); err != nil {
		return err
	}
	if err := t.insertIntents(c, e); err != nil {
		return err
	}
	if !c.keep {
		t.forget(c.id)
		return nil
	}
	if c.cancelled {
		if err := t.cancelIntents(e, c.now); err != nil {
			return err
		}
	}
	wakeups, err := t.capture(e, c.raised, c.now)
	if err != nil {
		return err
	}
	item := e.item(c.tenant, c.command.NextState, wakeups)
	c.kept = &item
	t.remember(e)
	return nil
}

// writeTexts stores what the row has no room for, and drops what is no longer
// true.
func (c *commit) writeTexts(t *transaction, e *entry) error {
	if !e.row.beside {
		if !c.hadTexts {
			return nil
		}
		_, err := t.session.exec(deleteTexts, e.row.key)
		return err
	}
	var state, lastError, class any
	if !c.small() {
		state = blob(c.command.NextState)
	}
	if failed, ok := c.command.Disposition.(supervisor.Failed); ok {
		lastError = failed.Reason
		if found := supervisor.FailureClassOf(c.command); found != "" {
			class = string(found)
		}
	}
	_, err := t.session.exec(replaceTexts, e.row.key, state, lastError, class)
	return err
}

const (
	selectState = `SELECT CAST(coalesce(r.state, s.state) AS BLOB)
		FROM supervisor_records r LEFT JOIN supervisor_texts s ON s.key = r.key WHERE r.key = ?`
	selectClaimed = `SELECT id, kind, branch_id, CAST(payload AS BLOB) FROM supervisor_wakeups
		WHERE instance = ? AND consumed_at IS NULL AND claim = ? ORDER BY due_at, seq`
)

// repeat answers the latest command again: with the kept claim, as long as it
// is held.
func (c *commit) repeat(t *transaction, e *entry) error {
	if c.lease <= 0 || !e.row.kept || !e.row.leased(c.now) {
		return nil
	}
	tenant, err := t.tenant(c.id.tenant)
	if err != nil {
		return err
	}
	var state json.RawMessage
	rows, err := t.session.query(selectState, e.row.key)
	if err != nil {
		return err
	}
	if rows.next() {
		state = rows.bytes(0)
	}
	if err := rows.close(); err != nil {
		return err
	}
	var wakeups []supervisor.Wakeup
	if rows, err = t.session.query(selectClaimed, e.row.key, e.row.leaseVersion); err != nil {
		return err
	}
	for rows.next() {
		wakeups = append(wakeups, supervisor.Wakeup{
			ID: rows.string(0), Kind: rows.string(1), BranchID: rows.string(2), Payload: rows.bytes(3),
		})
	}
	if err := rows.close(); err != nil {
		return err
	}
	item := e.item(tenant, state, wakeups)
	c.kept = &item
	return nil
}
