package sqlitequeue

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/workflow-supervisor/supervisor"
)

// intentState is what a transaction knows of intents. held, pins and turns
// outlast it in the writer.
type intentState struct {
	// held are the intents that this process has leased, so that most of what is
	// done with them need not read them again. One in it may be out of date,
	// which shows when it is stored.
	held map[supervisor.IntentKey]*intent
	// pins are keys of capabilities.
	pins map[supervisor.CapabilityPin]int64
	// turns are when claims of this process served a capability last, by its key.
	turns map[int64]int64
	turn  int64

	// limits are those that were asked for, nil for one that is not set; loaded
	// and limited say whether there are any at all.
	limits          map[limitID]*limit
	loaded, limited bool
	// news: an intent is due at another instant than before.
	news bool
}

func (s *intentState) init() {
	s.pins = make(map[supervisor.CapabilityPin]int64)
	s.limits = make(map[limitID]*limit)
	s.turns = make(map[int64]int64)
}

// reset begins a new transaction.
func (s *intentState) reset() {
	clear(s.limits)
	s.loaded, s.limited, s.news = false, false, false
}

// rolledBack forgets what may be of a transaction that was undone.
func (s *intentState) rolledBack() {
	clear(s.held)
	clear(s.pins)
}

// intent is an intent's row.
type intent struct {
	key, version int64
	// instance, tenant and pin are keys.
	instance, tenant, pin int64
	// limit is the key of the limit that the intent waits for or was made due
	// to take a slot of, 0 for none; waits is since when it has had to wait.
	limit int64
	waits instant
	// record is shared and never written to.
	record supervisor.IntentRecord
	// fresh: read or written in this transaction, so that refusals are final.
	fresh bool
}

// Bounds of what is held, in intents and in the input that each keeps alive.
const (
	maxHeld      = 4096
	maxHeldInput = 16 << 10
)

const intentColumns = `a.key, a.version, a.instance, a.tenant, a.capability, a.limit_key, a.waits_since,
	a.state, a.due_at, a.parked, a.lease_version, a.lease_owner, a.lease_ends_at, CAST(a.progress AS BLOB), a.confirmed_by, a.confirmed_at,
	i.tenant_id, i.id, i.run_id, c.id, c.contract, c.digest,
	a.id, a.idempotency_key, a.effect, a.retry_class, a.tenant_epoch, a.instance_epoch, a.resource_epoch, a.resource_id,
	a.lease_epoch, a.action_epoch, a.deadline, a.reservation_id, a.reservation_token, a.made_at, a.requires_confirmation,
	CAST(coalesce(a.input, x.input) AS BLOB)`

// intentWidth is the number of intentColumns.
const intentWidth = 38

// parkings are what intents are parked by, as it is stored.
var parkings = [...]supervisor.IntentParking{supervisor.NotParked, supervisor.ParkedByPause, supervisor.ParkedByLimit}

// scan reads intentColumns. The key is read also where the rest is malformed.
func (e *intent) scan(rows *rows) error {
	*e = intent{
		key: rows.int(0), version: rows.int(1), instance: rows.int(2), tenant: rows.int(3), pin: rows.int(4),
		waits: rows.instant(6), fresh: true,
	}
	if rows.values[5] != nil {
		e.limit = rows.int(5)
	}
	e.record = supervisor.IntentRecord{
		DueAt:        rows.instant(8).time(),
		LeaseVersion: rows.int(10), LeaseOwner: rows.string(11), LeaseEndsAt: rows.instant(12).time(),
		Intent: supervisor.ActionIntent{
			State:    supervisor.ActionState(rows.string(7)),
			TenantID: rows.string(16), InstanceID: rows.string(17), RunID: rows.string(18),
			Capability: supervisor.CapabilityPin{ID: rows.string(19), ContractVersion: rows.string(20), ContentDigest: rows.string(21)},
			ID:         rows.string(22), IdempotencyKey: rows.string(23),
			Effect: supervisor.Effect(rows.string(24)), RetryClass: supervisor.IdempotencyMode(rows.string(25)),
			ControlEpochs:   supervisor.ControlEpochs{Tenant: rows.int(26), Instance: rows.int(27), Resource: rows.int(28)},
			ResourceScopeID: rows.string(29),
			LeaseEpoch:      rows.int(30), ActionEpoch: rows.int(31),
			Deadline: rows.instant(32).time(), CreatedAt: rows.instant(35).time(),
			RequiresConfirmation: rows.int(36) != 0,
			Input:                rows.bytes(37),
		},
	}
	if parked := rows.int(9); parked >= 0 && int(parked) < len(parkings) {
		e.record.Parked = parkings[parked]
	} else {
		rows.unexpected(9, "a kind of parking")
	}
	if rows.values[33] != nil {
		e.record.Intent.Reservation = &supervisor.ResourceReservationRef{ID: rows.string(33), FencingToken: rows.int(34)}
	}
	if rows.values[14] != nil {
		e.record.Intent.Confirmation = &supervisor.Confirmation{By: rows.string(14), At: rows.instant(15).time()}
	}
	if progress := rows.bytes(13); progress != nil {
		if err := json.Unmarshal(progress, &e.record.IntentProgress); err != nil {
			return fmt.Errorf("%w: progress: %w", errMalformed, err)
		}
	}
	if rows.malformed != nil {
		return fmt.Errorf("%w: %w", errMalformed, rows.malformed)
	}
	return nil
}

// copy is a record that rules may change: they replace what is behind pointers
// and slices, and only append to the evidence.
func (e *intent) copy() supervisor.IntentRecord {
	next := e.record
	next.Evidence = slices.Clip(next.Evidence)
	return next
}

const (
	intentFrom = ` CROSS JOIN supervisor_capabilities c ON c.key = a.capability
		LEFT JOIN supervisor_intent_inputs x ON x.key = a.key `
	selectIntent = `SELECT ` + intentColumns + ` FROM supervisor_instances i
		CROSS JOIN supervisor_intents a ON a.instance = i.key` + intentFrom + `WHERE i.tenant_id = ? AND i.id = ? AND a.id = ?`
	selectOpenIntents = `SELECT ` + intentColumns + ` FROM supervisor_instances i
		CROSS JOIN supervisor_intents a ON a.instance = i.key` + intentFrom + `WHERE i.key = ? AND a.state NOT IN ('succeeded', 'rejected', 'reconciled')`
)

// intent returns an intent, nil where there is none: out of what is held, where
// it may be out of date.
func (t *transaction) intent(key *supervisor.IntentKey) (*intent, error) {
	if found := t.intents.held[*key]; found != nil {
		return found, nil
	}
	return t.loadIntent(key)
}

// loadIntent reads an intent, nil where there is none.
func (t *transaction) loadIntent(key *supervisor.IntentKey) (*intent, error) {
	delete(t.intents.held, *key)
	rows, err := t.session.query(selectIntent, key.TenantID, key.InstanceID, key.IntentID)
	if err != nil {
		return nil, err
	}
	if !rows.next() {
		return nil, rows.close()
	}
	found := new(intent)
	malformed := found.scan(rows)
	if err := rows.close(); err != nil {
		return nil, err
	}
	if malformed != nil {
		return nil, intentRefusal("intent", key, fmt.Errorf("%w: %w", supervisor.ErrUnavailable, malformed))
	}
	return found, nil
}

const updateIntent = `UPDATE supervisor_intents SET version = ?, state = ?, due_at = ?, parked = ?, idle = ?, limit_key = ?, waits_since = ?,
	lease_version = ?, lease_owner = ?, lease_ends_at = ?, progress = CAST(? AS TEXT), confirmed_by = ?, confirmed_at = ?
	WHERE key = ? AND version = ?`

// storeIntent writes a changed record on condition that the row still is as it
// was read, and reports whether it was. It also counts the slots that the
// change takes or frees. full is the limit that it was refused a slot of.
func (t *transaction) storeIntent(e *intent, next *supervisor.IntentRecord, full *limit, now instant) (stored bool, err error) {
	dueAt, leaseEndsAt := instantOf(next.DueAt), instantOf(next.LeaseEndsAt)
	next.DueAt, next.LeaseEndsAt = dueAt.time(), leaseEndsAt.time()
	row := *e
	row.version++
	row.fresh = true
	row.record = *next
	row.wait(full, now)
	progress, err := encodeProgress(&next.IntentProgress)
	if err != nil {
		return false, intentRefusal("intent", new(next.Key()), err)
	}
	var limitKey, owner, confirmedBy, confirmedAt any
	if row.limit != 0 {
		limitKey = row.limit
	}
	if next.LeaseOwner != "" {
		owner = next.LeaseOwner
	}
	if confirmation := next.Intent.Confirmation; confirmation != nil {
		confirmedBy, confirmedAt = confirmation.By, instantOf(confirmation.At).value()
	}
	changed, err := t.session.exec(updateIntent, row.version, string(next.Intent.State), dueAt.value(),
		int64(slices.Index(parkings[:], next.Parked)), integer(idle(next, now)), limitKey, row.waits.value(),
		next.LeaseVersion, owner, leaseEndsAt.value(), progress, confirmedBy, confirmedAt, e.key, e.version)
	if err != nil || changed != 1 {
		return false, err
	}
	if err := t.countSlot(&e.record, next, full); err != nil {
		return false, err
	}
	// A lease's end is looked for anyway.
	if dueAt != never && leaseEndsAt == never || row.limit != e.limit {
		t.intents.news = true
	}
	*e = row
	if leaseEndsAt != never {
		t.hold(e)
	} else {
		delete(t.intents.held, next.Key())
	}
	return true, nil
}

// wait brings limit and waits up to date. An intent keeps its place among those
// that wait until it is handed off. The slot that it was made due for is meant
// for it only while it may be about to take it.
func (e *intent) wait(full *limit, now instant) {
	r := &e.record
	if !r.Waiting() {
		e.limit, e.waits = 0, never
		return
	}
	switch {
	case r.Parked == supervisor.ParkedByLimit:
		if full != nil {
			e.limit = full.key
		}
		if e.waits == never {
			e.waits = now
		}
	case r.Parked != supervisor.NotParked || idle(r, now):
		e.limit = 0
	}
}

// hold keeps a leased intent.
func (t *transaction) hold(e *intent) {
	if t.intents.held == nil || len(e.record.Intent.Input) > maxHeldInput || len(e.record.Output) > maxHeldInput {
		return
	}
	if len(t.intents.held) >= maxHeld {
		// Any one will do: it is read again when it is wanted.
		for key := range t.intents.held {
			delete(t.intents.held, key)
			break
		}
	}
	held := *e
	held.fresh = false
	t.intents.held[held.record.Key()] = &held
}

// encodeProgress returns what is stored of the progress, nil for none. Escaping
// for HTML would change outputs.
func encodeProgress(progress *supervisor.IntentProgress) (any, error) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(progress); err != nil {
		return nil, err
	}
	if text.Len() <= len("{}\n") {
		return nil, nil
	}
	return text.Bytes(), nil
}

// intentDecision applies a rule to a record.
type intentDecision func(next *supervisor.IntentRecord, slots *slots) (told bool, err error)

// changeIntent applies a decision to an intent, stores it and tells the
// instance. decide is called again where what is held was out of date; it may
// read but must not write. A nil record is an unknown intent.
func (t *transaction) changeIntent(key *supervisor.IntentKey, now instant, decide intentDecision) (*intent, error) {
	e, err := t.intent(key)
	for {
		if err != nil {
			return nil, err
		}
		if e == nil {
			return nil, intentRefusal("intent", key, supervisor.ErrNotFound)
		}
		next := e.copy()
		slots := slots{t: t, intent: e}
		told, refused := decide(&next, &slots)
		if t.session.err != nil {
			return nil, t.session.err
		}
		if refused == nil || errors.Is(refused, supervisor.ErrIntentRefused) || errors.Is(refused, supervisor.ErrReceiptConflict) {
			stored, err := t.storeIntent(e, &next, slots.full, now)
			if err != nil {
				return nil, err
			}
			if stored {
				if told {
					err = t.tell(e, nil, now)
				}
				if err == nil {
					err = refused
				}
				return e, err
			}
		} else if e.fresh {
			return nil, refused
		}
		e, err = t.loadIntent(key)
	}
}

const (
	selectTold = `SELECT ` + recordColumns + `, CAST(i.lifecycle AS BLOB)
		FROM supervisor_records r CROSS JOIN supervisor_instances i ON i.key = r.key WHERE r.key = ?`
	insertTold = `INSERT INTO supervisor_wakeups (instance, id, digest, kind, branch_id, payload, urgent, due_at)
		VALUES (?, ?, ?, ?, '', CAST(? AS TEXT), 1, ?) ON CONFLICT (instance, id) DO NOTHING`
)

// tell delivers the outcome of an intent to its instance, unless that is
// finished. told is the instance where the caller has it, else nil.
func (t *transaction) tell(e *intent, told *entry, now instant) error {
	wakeup, err := e.record.Wakeup()
	if err != nil {
		return t.session.failed(insertTold, err)
	}
	id := instanceID{e.record.Intent.TenantID, e.record.Intent.InstanceID}
	if told == nil {
		told = t.cache[id]
	}
	for {
		if told == nil {
			if told, err = t.loadTold(e.instance); err != nil {
				return err
			}
		}
		if finished(told.row.status) {
			if told.fresh {
				return nil
			}
			t.forget(id)
			told = nil
			continue
		}
		next := told.row
		next.wakeups++
		record := told.row.record()
		if due := instantOf(record.WakeupDue(&told.instance.Lifecycle, now.time(), now.time())); due != never && (next.dueAt == never || due < next.dueAt) {
			next.dueAt = due
			next.place(now)
		}
		stored, err := t.store(&told.row, &next, now)
		if err != nil {
			return err
		}
		if stored {
			told.row = next
			break
		}
		t.forget(id)
		told = nil
	}
	told.outside = earlier(told.outside, now)
	inserted, err := t.session.exec(insertTold, e.instance, wakeup.ID, wakeup.Digest(), wakeup.Kind, blob(wakeup.Payload), int64(now))
	if err != nil || inserted == 1 {
		return err
	}
	// Before such ids were kept for intents somebody may have delivered one.
	next := told.row
	next.wakeups--
	if stored, err := t.store(&told.row, &next, now); err != nil || !stored {
		return t.unexpected(err, "a record changed while it was told of an intent")
	}
	told.row = next
	return nil
}

// loadTold reads what telling an instance needs of it.
func (t *transaction) loadTold(key int64) (*entry, error) {
	rows, err := t.session.query(selectTold, key)
	if err != nil {
		return nil, err
	}
	found := &entry{outside: never, fresh: true, instance: new(supervisor.Instance)}
	known := rows.next()
	var malformed error
	if known {
		found.row.scan(rows)
		malformed = rows.malformed
		if lifecycle := rows.bytes(recordWidth); lifecycle != nil && json.Unmarshal(lifecycle, &found.instance.Lifecycle) != nil {
			// Nothing decodes the instance until it is repaired; then it is due.
			found.instance.Lifecycle = supervisor.LifecyclePolicy{}
		}
	}
	if err := rows.close(); err != nil {
		return nil, err
	}
	if !known || malformed != nil {
		return nil, t.unexpected(malformed, "an intent without a record")
	}
	return found, nil
}

// intentRefusal is an operation that was refused for the intent that it was
// meant for.
func intentRefusal(what string, key *supervisor.IntentKey, reason error) error {
	return fmt.Errorf("sqlitequeue: %s %q of instance %q of tenant %q: %w",
		what, shorten(key.IntentID), shorten(key.InstanceID), shorten(key.TenantID), reason)
}
