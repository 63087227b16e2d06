package sqlitequeue

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

// Start implements [supervisor.Instances].
func (q *Queue) Start(ctx context.Context, instance supervisor.Instance, dueAt time.Time) (started bool, err error) {
	insert, err := newInsertion(&instance, dueAt)
	if err != nil {
		return false, err
	}
	err = q.update(ctx, "start", change{run: func(t *transaction) (err error) {
		started, err = insert.run(t)
		return err
	}})
	return started && err == nil, err
}

// StartTx is Start in a transaction of the caller's, on a connection to the
// same file: the instance is there once the caller commits. Waiters in this
// process notice it within [Options.PollInterval].
//
// Begin the transaction as an immediate one, which those of [Queue.DB] are
// unless it was handed in: SQLite refuses to write in one that has read and was
// overtaken by another writer, which is [supervisor.ErrUnavailable] and means
// that the caller has to begin again. After any error, roll back.
func (q *Queue) StartTx(ctx context.Context, tx *sql.Tx, instance supervisor.Instance, dueAt time.Time) (started bool, err error) {
	insert, err := newInsertion(&instance, dueAt)
	if err != nil {
		return false, err
	}
	err = q.within(ctx, tx, "start", func(t *transaction) (err error) {
		started, err = insert.run(t)
		return err
	})
	return started && err == nil, err
}

// within runs an operation in a caller's transaction.
func (q *Queue) within(ctx context.Context, tx *sql.Tx, what string, run func(t *transaction) error) error {
	t := transaction{
		q:       q,
		session: session{pooled: tx, ctx: ctx, prefix: q.prefix},
		tenants: make(map[string]*tenant),
		ready:   make(map[int64]laneChange),
	}
	// The lock that writing takes comes first, so that what is read, the clock
	// included, is not overtaken.
	if _, err := t.session.exec(lockForWriting); err != nil {
		return storeError(what, err)
	}
	err := run(&t)
	if err == nil {
		err = t.flush()
	}
	if t.session.err != nil {
		return storeError(what, t.session.err)
	}
	return err
}

const lockForWriting = `UPDATE supervisor_lanes SET ready_event = 0 WHERE key = -1`

// insertion is an instance in the form that is stored.
type insertion struct {
	instance        *supervisor.Instance
	pins, lifecycle []byte
	dueAt           time.Time
}

func newInsertion(instance *supervisor.Instance, dueAt time.Time) (*insertion, error) {
	if err := instance.Validate(); err != nil {
		return nil, err
	}
	if err := checkInstant("dueAt", dueAt); err != nil {
		return nil, err
	}
	insert := &insertion{instance: instance, dueAt: dueAt}
	var err error
	if len(instance.CapabilityPins) > 0 {
		if insert.pins, err = json.Marshal(instance.CapabilityPins); err != nil {
			return nil, fmt.Errorf("sqlitequeue: start: CapabilityPins: %w", err)
		}
	}
	if instance.Lifecycle != (supervisor.LifecyclePolicy{}) {
		if insert.lifecycle, err = json.Marshal(&instance.Lifecycle); err != nil {
			return nil, fmt.Errorf("sqlitequeue: start: Lifecycle: %w", err)
		}
	}
	return insert, nil
}

// checkInstant refuses what is outside the calendar of the library.
func checkInstant(field string, t time.Time) error {
	if year := t.UTC().Year(); year < 1 || year > 9999 {
		return fmt.Errorf("sqlitequeue: %s is in the year %d, outside 1 to 9999", field, year)
	}
	return nil
}

const (
	insertInstance = `INSERT INTO supervisor_instances (tenant_id, id, run_id, subject_id, spec_id, definition_id,
		workflow_revision, workflow_digest, profile_id, profile_revision, profile_digest, kernel_abi,
		capability_pins, lifecycle, config)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, CAST(? AS TEXT), CAST(? AS TEXT), CAST(? AS TEXT))
		ON CONFLICT (tenant_id, id) DO NOTHING`
	selectInstanceKey = `SELECT key FROM supervisor_instances WHERE tenant_id = ? AND id = ?`
	insertRecord      = `INSERT INTO supervisor_records (key, tenant, lane, version, ready_at, due_at, state_version, delivery_hash,
		lease_version, lease_kept, lease_tenant_epoch, lease_instance_epoch, status, created_at, cancel_requested, paused,
		instance_epoch, attempt, triggered, matched, succeeded, action_terminal, raised, wakeups, beside)
		VALUES (?, ?, ?, 0, ?, ?, 0, 0, 0, 0, 0, 0, 0, ?, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)`
)

func (i *insertion) run(t *transaction) (started bool, err error) {
	in := i.instance
	inserted, err := t.session.exec(insertInstance, in.TenantID, in.ID, in.RunID, in.SubjectID, in.SpecID, in.DefinitionID,
		int64(in.WorkflowRevision), in.WorkflowRevisionDigest, in.ExecutionProfileID, int64(in.ExecutionProfileRevision),
		in.ExecutionProfileDigest, in.KernelABIVersion, blob(i.pins), blob(i.lifecycle), blob(in.Config))
	if err != nil || inserted == 0 {
		return false, err
	}
	key, err := t.session.queryInt(selectInstanceKey, in.TenantID, in.ID)
	if err != nil {
		return false, err
	}
	tenant, err := t.makeTenant(in.TenantID)
	if err != nil {
		return false, err
	}
	lane, err := t.makeLane(tenant.key, in.SpecID)
	if err != nil {
		return false, err
	}
	now := t.now()
	record := supervisor.NewRecord(now.time())
	// A past due time is kept, for the order among instances.
	dueAt := i.dueAt
	if dueAt.IsZero() {
		dueAt = now.time()
	}
	due := instantOf(record.NextDue(&in.Lifecycle, dueAt, time.Time{}))
	if _, err := t.session.exec(insertRecord, key, tenant.key, lane, int64(due), int64(due), int64(now)); err != nil {
		return false, err
	}
	t.pullLane(lane, due, now)
	return true, nil
}

// blob is text as an argument that is stored without another copy of it; nil is
// NULL. The statement casts it to text.
func blob(text []byte) any {
	if text == nil {
		return nil
	}
	return text
}
