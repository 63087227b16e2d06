package sqlitequeue

import (
	"fmt"

	"github.com/workflow-supervisor/supervisor"
)

var (
	_ supervisor.IntentQueue    = (*Queue)(nil)
	_ supervisor.IntentWaiter   = (*Queue)(nil)
	_ supervisor.IntentOperator = (*Queue)(nil)
)

const (
	selectResource = `SELECT epoch, paused FROM supervisor_resources WHERE tenant = ? AND resource_id = ?`
	countIntent    = `SELECT count(*) FROM supervisor_intents WHERE instance = ? AND id = ?`
	insertIntent   = `INSERT INTO supervisor_intents (version, instance, tenant, capability, state, due_at, parked, idle, lease_version,
		id, seq, idempotency_key, effect, retry_class, tenant_epoch, instance_epoch, resource_epoch, resource_id,
		lease_epoch, action_epoch, deadline, reservation_id, reservation_token, made_at, created_at, requires_confirmation, input)
		VALUES (0, ?, ?, ?, ?, ?, 0, ?, 0, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, CAST(? AS TEXT))`
	insertInput = `INSERT INTO supervisor_intent_inputs (key, input)
		SELECT key, CAST(?3 AS TEXT) FROM supervisor_intents WHERE instance = ?1 AND id = ?2`
	selectPin = `SELECT key FROM supervisor_capabilities WHERE id = ? AND contract = ? AND digest = ?`
	insertPin = `INSERT INTO supervisor_capabilities (id, contract, digest) VALUES (?, ?, ?)`
)

// inlineInput bounds an input that is stored in the intent's row.
const inlineInput = 1 << 10

// checkIntents refuses intents whose resource was paused since the claim, that
// come after the lifecycle expired, or whose id the instance has already.
func (t *transaction) checkIntents(c *commit, e *entry, record *supervisor.Record) error {
	intents := c.command.ActionIntents
	if len(intents) == 0 {
		return nil
	}
	for n := range intents {
		if intents[n].ResourceScopeID == "" {
			continue
		}
		epoch, err := t.session.queryInt(selectResource, c.tenant.key, intents[n].ResourceScopeID)
		if err != nil {
			return err
		}
		if epoch > intents[n].ControlEpochs.Resource {
			return refusal(fmt.Sprintf("intent %q of", shorten(intents[n].ID)), c.id, supervisor.ErrEpochStale)
		}
	}
	if record.RefusesIntents() {
		return refusal("intents after the expiry of", c.id, supervisor.ErrCommandRejected)
	}
	for n := range intents {
		known, err := t.session.queryInt(countIntent, e.row.key, intents[n].ID)
		if err != nil {
			return err
		}
		if known > 0 {
			return refusal(fmt.Sprintf("intent %q again of", shorten(intents[n].ID)), c.id, supervisor.ErrCommandRejected)
		}
	}
	return nil
}

func (t *transaction) insertIntents(c *commit, e *entry) error {
	for n := range c.command.ActionIntents {
		record := supervisor.NewIntentRecord(c.command.ActionIntents[n], c.now.time())
		i := &record.Intent
		pin, err := t.makePin(&i.Capability)
		if err != nil {
			return err
		}
		var reservationID, reservationToken, resource, input any
		if i.Reservation != nil {
			reservationID, reservationToken = i.Reservation.ID, i.Reservation.FencingToken
		}
		if i.ResourceScopeID != "" {
			resource = i.ResourceScopeID
		}
		beside := len(i.Input) > inlineInput
		if !beside {
			input = blob(i.Input)
		}
		dueAt := instantOf(record.DueAt)
		if _, err := t.session.exec(insertIntent, e.row.key, c.tenant.key, pin, string(i.State), dueAt.value(), integer(idle(&record, c.now)),
			i.ID, int64(n), i.IdempotencyKey, string(i.Effect), string(i.RetryClass),
			i.ControlEpochs.Tenant, i.ControlEpochs.Instance, i.ControlEpochs.Resource, resource,
			i.LeaseEpoch, i.ActionEpoch, instantOf(i.Deadline).value(), reservationID, reservationToken,
			instantOf(i.CreatedAt).value(), int64(c.now), integer(i.RequiresConfirmation), input); err != nil {
			return err
		}
		if beside {
			if _, err := t.session.exec(insertInput, e.row.key, i.ID, blob(i.Input)); err != nil {
				return err
			}
		}
		if dueAt != never {
			t.intents.news = true
		}
	}
	return nil
}

// idle reports whether a resume has to make an intent due: it waits for a
// hand-off, nobody holds it, and it is not due by itself.
func idle(r *supervisor.IntentRecord, now instant) bool {
	at := now.time()
	return r.Waiting() && !r.Leased(at) && (r.DueAt.IsZero() || r.DueAt.After(at))
}

// maxPins bounds the keys of pins that are remembered.
const maxPins = 4096

// pin returns the key of a pin, 0 where no intent was ever made for it.
func (t *transaction) pin(pin *supervisor.CapabilityPin) (key int64, err error) {
	if key = t.intents.pins[*pin]; key != 0 {
		return key, nil
	}
	key, err = t.session.queryInt(selectPin, pin.ID, pin.ContractVersion, pin.ContentDigest)
	if err != nil || key == 0 {
		return 0, err
	}
	if len(t.intents.pins) >= maxPins {
		clear(t.intents.pins)
	}
	t.intents.pins[*pin] = key
	return key, nil
}

// makePin returns the key of a pin, which it adds where there is none.
func (t *transaction) makePin(pin *supervisor.CapabilityPin) (int64, error) {
	key, err := t.pin(pin)
	if err != nil || key != 0 {
		return key, err
	}
	if _, err := t.session.exec(insertPin, pin.ID, pin.ContractVersion, pin.ContentDigest); err != nil {
		return 0, err
	}
	return t.pin(pin)
}
