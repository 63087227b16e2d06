package pgqueue

import (
	"context"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/workflow-supervisor/supervisor"
)

// knownIntents is what the database knows about the intents of a command.
type knownIntents struct {
	ids       map[string]bool
	resources map[string]int64 // epochs by resource
}

const (
	sqlKnownIntents = `
SELECT n.id FROM {{schema}}.instance i
JOIN {{schema}}.intent n ON n.instance_no = i.instance_no
WHERE i.tenant_id = $1 AND i.id = $2 AND n.id = ANY ($3)`

	sqlResourceEpochs = `
SELECT r.resource_id, r.epoch FROM {{schema}}.tenant t
JOIN {{schema}}.resource r ON r.tenant_no = t.tenant_no
WHERE t.tenant_id = $1 AND r.resource_id = ANY ($2)`

	sqlAddIntents = `
INSERT INTO {{schema}}.intent (instance_no, tenant_no, prepared_at, id, state, due_at, run_id, capability_no, idempotency_key,
    effect, retry_class, requires_confirmation, tenant_epoch, instance_epoch, resource_epoch, resource_scope_id,
    lease_epoch, action_epoch, deadline, reservation_id, reservation_token, created_at, input)
SELECT $1, $2, $3, m.* FROM unnest($4::text[], $5::text[], $6::timestamptz[], $7::text[], $8::bigint[], $9::text[], $10::text[],
    $11::text[], $12::boolean[], $13::bigint[], $14::bigint[], $15::bigint[], $16::text[], $17::bigint[], $18::bigint[],
    $19::timestamptz[], $20::text[], $21::bigint[], $22::timestamptz[], $23::text[]) AS m`
)

// addIntentLookups adds what a command with intents has to be compared with to
// a transaction; the answers are there when the instance is loaded.
func (q *Queue) addIntentLookups(tx *transaction, item *supervisor.WorkItem, command *supervisor.TransitionCommand) *knownIntents {
	intents := command.ActionIntents
	if len(intents) == 0 {
		return nil
	}
	known := &knownIntents{ids: make(map[string]bool), resources: make(map[string]int64)}
	a := q.store.newArgs()
	defer q.store.free(a)
	// A pause waits for the commits that did not see it, so that what is read here
	// stays true.
	q.addBarrier(tx, sqlShareBarrier)
	a.text(item.TenantID)
	a.text(item.ID)
	a.array(pgtype.TextOID, len(intents))
	for n := range intents {
		a.text(intents[n].ID)
	}
	tx.add(sqlKnownIntents, a, func(c *cells) error {
		known.ids[c.text()] = true
		return nil
	})
	a.reset()
	a.text(item.TenantID)
	a.array(pgtype.TextOID, len(intents))
	for n := range intents {
		a.text(intents[n].ResourceScopeID)
	}
	tx.add(sqlResourceEpochs, a, func(c *cells) error {
		known.resources[c.text()] = c.int8()
		return nil
	})
	return known
}

// intentCapabilities returns the numbers of the capabilities of a command's intents.
func (q *Queue) intentCapabilities(ctx context.Context, command *supervisor.TransitionCommand) ([]int64, error) {
	if len(command.ActionIntents) == 0 {
		return nil, nil
	}
	numbers := make([]int64, len(command.ActionIntents))
	for n := range command.ActionIntents {
		no, err := q.capability(ctx, command.ActionIntents[n].Capability)
		if err != nil {
			return nil, err
		}
		numbers[n] = no
	}
	return numbers, nil
}

// addIntents adds the storing of a command's intents, whose capabilities have
// these numbers, to a transaction, and returns what is stored.
func (q *Queue) addIntents(tx *transaction, r *row, command *supervisor.TransitionCommand, capabilities []int64) []supervisor.IntentRecord {
	intents := make([]supervisor.IntentRecord, len(command.ActionIntents))
	if len(intents) == 0 {
		return nil
	}
	for n := range intents {
		intents[n] = supervisor.NewIntentRecord(command.ActionIntents[n], r.now)
	}
	a := q.store.newArgs()
	defer q.store.free(a)
	column := func(oid uint32, each func(i *supervisor.ActionIntent)) {
		a.array(oid, len(intents))
		for n := range intents {
			each(&intents[n].Intent)
		}
	}
	text := func(each func(i *supervisor.ActionIntent) string) {
		column(pgtype.TextOID, func(i *supervisor.ActionIntent) { a.text(each(i)) })
	}
	number := func(each func(i *supervisor.ActionIntent) int64) {
		column(pgtype.Int8OID, func(i *supervisor.ActionIntent) { a.int8(each(i)) })
	}
	a.int8(r.no)
	a.int8(r.tenantNo)
	a.instant(r.now)
	text(func(i *supervisor.ActionIntent) string { return i.ID })
	text(func(i *supervisor.ActionIntent) string { return string(i.State) })
	a.array(pgtype.TimestamptzOID, len(intents))
	for n := range intents {
		a.instant(intents[n].DueAt)
	}
	text(func(i *supervisor.ActionIntent) string { return i.RunID })
	a.array(pgtype.Int8OID, len(intents))
	for _, no := range capabilities {
		a.int8(no)
	}
	text(func(i *supervisor.ActionIntent) string { return i.IdempotencyKey })
	text(func(i *supervisor.ActionIntent) string { return string(i.Effect) })
	text(func(i *supervisor.ActionIntent) string { return string(i.RetryClass) })
	column(pgtype.BoolOID, func(i *supervisor.ActionIntent) { a.bool(i.RequiresConfirmation) })
	number(func(i *supervisor.ActionIntent) int64 { return i.ControlEpochs.Tenant })
	number(func(i *supervisor.ActionIntent) int64 { return i.ControlEpochs.Instance })
	number(func(i *supervisor.ActionIntent) int64 { return i.ControlEpochs.Resource })
	text(func(i *supervisor.ActionIntent) string { return i.ResourceScopeID })
	number(func(i *supervisor.ActionIntent) int64 { return i.LeaseEpoch })
	number(func(i *supervisor.ActionIntent) int64 { return i.ActionEpoch })
	column(pgtype.TimestamptzOID, func(i *supervisor.ActionIntent) { a.instant(i.Deadline) })
	column(pgtype.TextOID, func(i *supervisor.ActionIntent) {
		if i.Reservation == nil {
			a.null(pgtype.TextOID)
			return
		}
		a.text(i.Reservation.ID)
	})
	column(pgtype.Int8OID, func(i *supervisor.ActionIntent) {
		if i.Reservation == nil {
			a.null(pgtype.Int8OID)
			return
		}
		a.int8(i.Reservation.FencingToken)
	})
	column(pgtype.TimestamptzOID, func(i *supervisor.ActionIntent) { a.instant(i.CreatedAt) })
	column(pgtype.TextOID, func(i *supervisor.ActionIntent) { a.raw(i.Input) })
	tx.add(sqlAddIntents, a, nil)
	return intents
}
