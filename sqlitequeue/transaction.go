package sqlitequeue

import (
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/workflow-supervisor/supervisor"
)

// transaction is what operations run in: the writer's, which many of them
// share, or a caller's own.
//
// An operation reads, decides with the library's rules, and only then writes:
// one that is refused has written nothing, so that its neighbours need not be
// undone. After an error of the database, which session.err keeps, nothing
// further is written and the transaction is rolled back.
type transaction struct {
	q       *Queue
	session session

	// cache holds the rows that this process has claimed, so that most commits
	// need not read them again; nil in callers' transactions. A row in it may be
	// out of date, which shows when it is stored.
	cache map[instanceID]*entry
	// tenants, ready and args last for one transaction.
	tenants map[string]*tenant
	ready   map[int64]laneChange
	args    []any
	// pulled: something may be claimed at another instant than before.
	pulled  bool
	intents intentState
}

// entry is an instance with what a commit has to know of it.
type entry struct {
	row row
	// instance is shared and never written to.
	instance *supervisor.Instance
	// outside is the first due time of pending wakeups that the latest claim
	// did not contain.
	outside instant
	// fresh: read or written in this transaction, so that refusals are final.
	fresh bool
}

// The cache is bounded, in rows and in the configuration that each keeps alive:
// a process that has more in its hands, or larger ones, reads them again.
const (
	maxCache        = 4096
	maxCachedConfig = 16 << 10
)

// tenant is a tenant's row.
type tenant struct {
	key           int64
	epoch         int64
	paused        bool
	resourceEpoch int64
}

func (t *transaction) init(q *Queue) {
	t.q = q
	t.session.prefix = q.prefix
	t.session.prepared = make(map[string]driver.Stmt)
	t.tenants = make(map[string]*tenant)
	t.ready = make(map[int64]laneChange)
	t.intents.init()
}

// reset begins a new transaction.
func (t *transaction) reset() {
	clear(t.tenants)
	clear(t.ready)
	t.pulled = false
	t.intents.reset()
}

func (t *transaction) now() instant { return t.q.clock.now() }

const (
	selectTenant = `SELECT key, epoch, paused, resource_epoch FROM supervisor_tenants WHERE tenant_id = ?`
	insertTenant = `INSERT INTO supervisor_tenants (tenant_id) VALUES (?)`
)

// tenant returns a tenant's row, nil where there is none.
func (t *transaction) tenant(id string) (*tenant, error) {
	if known := t.tenants[id]; known != nil {
		return known, nil
	}
	rows, err := t.session.query(selectTenant, id)
	if err != nil {
		return nil, err
	}
	var found *tenant
	if rows.next() {
		found = &tenant{key: rows.int(0), epoch: rows.int(1), paused: rows.int(2) != 0, resourceEpoch: rows.int(3)}
	}
	if err := rows.close(); err != nil {
		return nil, err
	}
	if found != nil {
		t.tenants[id] = found
	}
	return found, nil
}

// makeTenant returns a tenant's row, which it adds where there is none.
func (t *transaction) makeTenant(id string) (*tenant, error) {
	found, err := t.tenant(id)
	if err != nil || found != nil {
		return found, err
	}
	if _, err := t.session.exec(insertTenant, id); err != nil {
		return nil, err
	}
	return t.tenant(id)
}

const instanceColumns = `i.tenant_id, i.id, i.run_id, i.subject_id, i.spec_id, i.definition_id,
	i.workflow_revision, i.workflow_digest, i.profile_id, i.profile_revision, i.profile_digest, i.kernel_abi,
	CAST(i.capability_pins AS BLOB), CAST(i.lifecycle AS BLOB), CAST(i.config AS BLOB)`

// instanceWidth is the number of instanceColumns.
const instanceWidth = 15

// scanInstance reads instanceColumns, the first of which is at column.
func scanInstance(rows *rows, column int) (*supervisor.Instance, error) {
	instance := &supervisor.Instance{
		TenantID:                 rows.string(column),
		ID:                       rows.string(column + 1),
		RunID:                    rows.string(column + 2),
		SubjectID:                rows.string(column + 3),
		SpecID:                   rows.string(column + 4),
		DefinitionID:             rows.string(column + 5),
		WorkflowRevision:         uint64(rows.int(column + 6)),
		WorkflowRevisionDigest:   rows.string(column + 7),
		ExecutionProfileID:       rows.string(column + 8),
		ExecutionProfileRevision: uint64(rows.int(column + 9)),
		ExecutionProfileDigest:   rows.string(column + 10),
		KernelABIVersion:         rows.string(column + 11),
		Config:                   rows.bytes(column + 14),
	}
	if pins := rows.bytes(column + 12); pins != nil {
		if err := json.Unmarshal(pins, &instance.CapabilityPins); err != nil {
			return nil, fmt.Errorf("capability pins: %w", err)
		}
	}
	if lifecycle := rows.bytes(column + 13); lifecycle != nil {
		if err := json.Unmarshal(lifecycle, &instance.Lifecycle); err != nil {
			return nil, fmt.Errorf("lifecycle: %w", err)
		}
	}
	return instance, rows.malformed
}

const (
	selectEntry = `SELECT ` + recordColumns + `, ` + instanceColumns + `
		FROM supervisor_instances i JOIN supervisor_records r ON r.key = i.key
		WHERE i.tenant_id = ? AND i.id = ?`
	// Wakeups of either urgency are in order of due time in the index.
	selectOutside = `SELECT min(due_at) FROM (
		SELECT * FROM (SELECT due_at FROM supervisor_wakeups WHERE instance = ?1 AND urgent = 0 AND consumed_at IS NULL AND claim IS NOT ?2 ORDER BY due_at LIMIT 1)
		UNION ALL
		SELECT * FROM (SELECT due_at FROM supervisor_wakeups WHERE instance = ?1 AND urgent = 1 AND consumed_at IS NULL AND claim IS NOT ?2 ORDER BY due_at LIMIT 1))`
)

// errMalformed is met where a row of an instance cannot be decoded.
var errMalformed = errors.New("the row cannot be decoded")

// entry returns an instance, nil where there is none: out of the cache, where
// it may be out of date.
func (t *transaction) entry(id instanceID) (*entry, error) {
	if found := t.cache[id]; found != nil {
		return found, nil
	}
	return t.load(id)
}

// load reads an instance, nil where there is none.
func (t *transaction) load(id instanceID) (*entry, error) {
	rows, err := t.session.query(selectEntry, id.tenant, id.id)
	if err != nil {
		return nil, err
	}
	if !rows.next() {
		return nil, rows.close()
	}
	found := &entry{outside: never, fresh: true}
	found.row.scan(rows)
	var malformed error
	found.instance, malformed = scanInstance(rows, recordWidth)
	if err := rows.close(); err != nil {
		return nil, err
	}
	if malformed != nil {
		return nil, fmt.Errorf("%w: %w", errMalformed, malformed)
	}
	if found.row.wakeups > 0 {
		if found.outside, err = t.outside(&found.row); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// outside returns the first due time of pending wakeups that the latest claim
// did not contain.
func (t *transaction) outside(r *row) (instant, error) {
	return t.session.queryInstant(selectOutside, r.key, r.leaseVersion)
}

// store writes a changed row on condition that it still is as it was read, and
// reports whether it was. It takes over what claims have to know of it.
func (t *transaction) store(old, next *row, now instant) (stored bool, err error) {
	parts := next.changes(old)
	if parts == 0 {
		// The caller relies on the row being as it was read all the same.
		parts = partHolder
	}
	t.args = next.appendParts(t.args[:0], parts)
	changed, err := t.session.exec(updateRecord[parts], t.args...)
	if err != nil || changed != 1 {
		return false, err
	}
	next.version++
	next.state = nil
	if next.readyAt != never && parts&partSchedule != 0 {
		t.pullLane(next.lane, next.readyAt, now)
	}
	return true, nil
}

// remember keeps a claimed instance in the cache.
func (t *transaction) remember(e *entry) {
	if t.cache == nil || len(e.instance.Config) > maxCachedConfig {
		return
	}
	if len(t.cache) >= maxCache {
		// Any one will do: it is read again when it is wanted.
		for id := range t.cache {
			delete(t.cache, id)
			break
		}
	}
	e.fresh = false
	t.cache[instanceID{e.instance.TenantID, e.instance.ID}] = e
}

// forget drops an instance that this process no longer holds.
func (t *transaction) forget(id instanceID) { delete(t.cache, id) }

// reload drops what the cache has of an instance and reads it again.
func (t *transaction) reload(id instanceID) (*entry, error) {
	t.forget(id)
	return t.load(id)
}

// change applies a decision to an instance and stores it. decide gets the
// instance as it stands and changes the row, or refuses with an error; it is
// called again where the cached instance was out of date; it may read but must
// not write.
// A nil entry is an unknown instance.
func (t *transaction) change(id instanceID, now instant, decide func(e *entry, next *row) error) (*entry, error) {
	e, err := t.entry(id)
	for {
		if err != nil {
			return nil, err
		}
		if e == nil {
			return nil, decide(nil, nil)
		}
		next := e.row
		refusal := decide(e, &next)
		if t.session.err != nil {
			return nil, t.session.err
		}
		if refusal == nil {
			if next == e.row && e.fresh {
				return e, nil
			}
			stored, err := t.store(&e.row, &next, now)
			if err != nil {
				return nil, err
			}
			if stored {
				e.row = next
				return e, nil
			}
		} else if e.fresh {
			return nil, refusal
		}
		e, err = t.reload(id)
	}
}

// unexpected returns err, or where that is nil an error of the transaction for
// what cannot happen while nobody else writes.
func (t *transaction) unexpected(err error, what string) error {
	if err == nil {
		err = t.session.failed(what, errors.New("unexpected"))
	}
	return err
}
