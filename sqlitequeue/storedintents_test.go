package sqlitequeue

import (
	"context"

	"github.com/workflow-supervisor/supervisor"
)

// storedIntents reads the intents of an instance as the tables hold them.
func storedIntents(ctx context.Context, q *Queue, tenantID, id string) (intents []supervisor.ActionIntent, err error) {
	err = q.read(ctx, "intents", func(s *session) error {
		rows, err := s.query(`SELECT a.id, i.run_id, a.capability_id, a.capability_contract, a.capability_digest, a.idempotency_key,
			a.state, CAST(a.input AS BLOB), a.effect, a.retry_class, a.tenant_epoch, a.instance_epoch, a.resource_epoch, a.resource_id,
			a.lease_epoch, a.action_epoch, a.deadline, a.reservation_id, a.reservation_token, a.made_at
			FROM supervisor_intents a JOIN supervisor_instances i ON i.key = a.instance WHERE i.tenant_id = ? AND i.id = ?`, tenantID, id)
		if err != nil {
			return err
		}
		for rows.next() {
			intent := supervisor.ActionIntent{
				ID: rows.string(0), TenantID: tenantID, InstanceID: id, RunID: rows.string(1),
				Capability:     supervisor.CapabilityPin{ID: rows.string(2), ContractVersion: rows.string(3), ContentDigest: rows.string(4)},
				IdempotencyKey: rows.string(5), State: supervisor.ActionState(rows.string(6)), Input: rows.bytes(7),
				Effect: supervisor.Effect(rows.string(8)), RetryClass: supervisor.IdempotencyMode(rows.string(9)),
				ControlEpochs:   supervisor.ControlEpochs{Tenant: rows.int(10), Instance: rows.int(11), Resource: rows.int(12)},
				ResourceScopeID: rows.string(13), LeaseEpoch: rows.int(14), ActionEpoch: rows.int(15),
				Deadline: rows.instant(16).time(), CreatedAt: rows.instant(19).time(),
			}
			if reservation := rows.string(17); reservation != "" {
				intent.Reservation = &supervisor.ResourceReservationRef{ID: reservation, FencingToken: rows.int(18)}
			}
			intents = append(intents, intent)
		}
		return rows.close()
	})
	return intents, err
}
