package sqlitequeue

import (
	"fmt"

	"github.com/workflow-supervisor/supervisor"
)

const (
	selectResource = `SELECT epoch FROM supervisor_resources WHERE tenant = ? AND resource_id = ?`
	selectIntent   = `SELECT count(*) FROM supervisor_intents WHERE instance = ? AND id = ?`
	insertIntent   = `INSERT INTO supervisor_intents (instance, id, seq, state, capability_id, capability_contract, capability_digest,
		idempotency_key, effect, retry_class, input, tenant_epoch, instance_epoch, resource_epoch, resource_id,
		lease_epoch, action_epoch, deadline, reservation_id, reservation_token, made_at, created_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, CAST(? AS TEXT), ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`
)

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
		known, err := t.session.queryInt(selectIntent, e.row.key, intents[n].ID)
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
		i := &c.command.ActionIntents[n]
		var reservationID, reservationToken, resource any
		if i.Reservation != nil {
			reservationID, reservationToken = i.Reservation.ID, i.Reservation.FencingToken
		}
		if i.ResourceScopeID != "" {
			resource = i.ResourceScopeID
		}
		if _, err := t.session.exec(insertIntent, e.row.key, i.ID, int64(n), string(i.State),
			i.Capability.ID, i.Capability.ContractVersion, i.Capability.ContentDigest,
			i.IdempotencyKey, string(i.Effect), string(i.RetryClass), blob(i.Input),
			i.ControlEpochs.Tenant, i.ControlEpochs.Instance, i.ControlEpochs.Resource, resource,
			i.LeaseEpoch, i.ActionEpoch, instantOf(i.Deadline).value(), reservationID, reservationToken,
			instantOf(i.CreatedAt).value(), int64(c.now)); err != nil {
			return err
		}
	}
	return nil
}
