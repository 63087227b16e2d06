package supervisor

import (
	"encoding/json"
	"slices"
	"time"
)

// memTenant is everything of one tenant.
type memTenant struct {
	id   string
	rows map[string]*memRow
	// lanes are the tenant's by spec id, awake those of them that take part in
	// turns, by first due time.
	lanes map[string]*memLane
	awake memHeap[memLane]
	// served is the turn in which the tenant was served last, 0 for never; place
	// is where it waits for its next turn.
	served int64
	place  int32

	paused bool
	epoch  int64
	// resourceEpoch counts pauses of resources.
	resourceEpoch int64
	resources     map[string]memResource
	// firstIntent and lastIntent end the list of its intents that are not settled.
	firstIntent, lastIntent *memIntentRow
	revisions               map[memRevisionKey]memRevision
}

// memResource is a resource that was paused at least once.
type memResource struct {
	epoch  int64
	paused bool
}

// memRow is one instance.
type memRow struct {
	*memIdentity
	tenant *memTenant
	lane   *memLane
	record Record

	// epochs.Instance is the instance's own. The others are what an instance
	// was pushed with beyond its tenant's, which is nothing for any other.
	epochs ControlEpochs
	paused bool
	// state is replaced by commits, never written to.
	state        json.RawMessage
	stateVersion int64

	// due is when the row falls due, seq orders equal instants, place and ready
	// tell where it waits for it.
	due   time.Time
	seq   uint64
	place int32
	ready bool

	leaseVersion int64
	// lease is the latest acquisition until it is committed or given back, also
	// when it has ended; nil for none.
	lease *memLease
	// latest is what the last commit was known by.
	latest memDelivery

	lastError, releaseReason string
	failureClass             FailureClass

	firstEvent, lastEvent *memEvent
	// mail and intents are nil until there are any.
	mail    *mailbox
	intents *memIntents
}

// memIdentity is the part of a row that never changes. It lives on in the
// records of commits after the row is gone.
type memIdentity struct {
	id, runID, subjectID string
	config               json.RawMessage
	// pins are the other fields of the instance, shared with its neighbours in
	// the lane: most instances of a spec are pinned to the same content, and a
	// million of them are to take little memory.
	pins *Instance
}

// instance returns the instance as it was started; config and capability pins
// are the queue's memory.
func (i *memIdentity) instance() Instance {
	instance := *i.pins
	instance.ID, instance.RunID, instance.SubjectID, instance.Config = i.id, i.runID, i.subjectID, i.config
	return instance
}

// newRow returns the row of an instance whose memory it keeps.
func newRow(instance *Instance, now time.Time) *memRow {
	pins := *instance
	pins.ID, pins.RunID, pins.SubjectID, pins.Config = "", "", "", nil
	return &memRow{
		memIdentity: &memIdentity{
			id:        instance.ID,
			runID:     instance.RunID,
			subjectID: instance.SubjectID,
			config:    instance.Config,
			pins:      &pins,
		},
		record: NewRecord(now),
		state:  instance.Config,
	}
}

// sameSharedPins reports whether two instances differ at most in the fields that a
// memIdentity has for itself.
func sameSharedPins(a, b *Instance) bool {
	return a.TenantID == b.TenantID &&
		a.SpecID == b.SpecID &&
		a.DefinitionID == b.DefinitionID &&
		a.WorkflowRevision == b.WorkflowRevision &&
		a.WorkflowRevisionDigest == b.WorkflowRevisionDigest &&
		a.ExecutionProfileID == b.ExecutionProfileID &&
		a.ExecutionProfileRevision == b.ExecutionProfileRevision &&
		a.ExecutionProfileDigest == b.ExecutionProfileDigest &&
		a.KernelABIVersion == b.KernelABIVersion &&
		a.Lifecycle == b.Lifecycle &&
		(a.CapabilityPins == nil) == (b.CapabilityPins == nil) &&
		slices.Equal(a.CapabilityPins, b.CapabilityPins)
}

// memLease is one acquisition of a row.
type memLease struct {
	worker         string
	end, claimedAt time.Time
	epochs         ControlEpochs
	place          int32 // in leases; outside once it has ended
}

// mostSpareLeases bounds what a queue keeps for its next claims.
const mostSpareLeases = 1024

// memDelivery is the latest delivery key of an instance.
type memDelivery struct {
	key, digest string
	// from is the state version that the command was made for.
	from int64
	// kept is the lease version under which the claim was kept, 0 for none.
	kept int64
}

// tenant returns a tenant, which it adds where it is new.
func (q *MemoryWorkQueue) tenant(id string) *memTenant {
	tenant := q.tenants[id]
	if tenant == nil {
		tenant = &memTenant{id: id, rows: make(map[string]*memRow)}
		if q.tenants == nil {
			q.tenants = make(map[string]*memTenant)
		}
		q.tenants[id] = tenant
	}
	return tenant
}

// row returns an instance, nil where there is none.
func (q *MemoryWorkQueue) row(tenantID, instanceID string) *memRow {
	if tenant := q.tenants[tenantID]; tenant != nil {
		return tenant.rows[instanceID]
	}
	return nil
}

// add adds a row that is due at an instant.
func (q *MemoryWorkQueue) add(tenant *memTenant, row *memRow, due, now time.Time) {
	row.tenant = tenant
	row.lane = q.schedule.join(tenant, row.pins.SpecID)
	if latest := row.lane.pins; latest != nil && sameSharedPins(latest, row.pins) {
		row.pins = latest
	}
	row.lane.pins = row.pins
	tenant.rows[row.id] = row
	q.reschedule(row, due, now)
}

// drop removes a row with everything that belongs to it, and its tenant with
// the last row unless there is something to remember of it.
func (q *MemoryWorkQueue) drop(row *memRow, now time.Time) {
	q.endLease(row)
	q.dropIntents(row, now)
	q.schedule.leave(row)
	tenant := row.tenant
	delete(tenant.rows, row.id)
	if len(tenant.rows) == 0 && tenant.epoch == 0 && tenant.resourceEpoch == 0 && len(tenant.revisions) == 0 {
		delete(q.tenants, tenant.id)
	}
}

// reschedule sets a row's due time; it goes behind those that are due at the
// same instant.
func (q *MemoryWorkQueue) reschedule(row *memRow, due, now time.Time) {
	row.due = due
	q.schedule.seq++
	row.seq = q.schedule.seq
	q.place(row, now)
}

// place lets a row wait where it may be claimed, and nowhere else. Everything
// that bears on that calls it afterwards: status, lease, pause and due time.
func (q *MemoryWorkQueue) place(row *memRow, now time.Time) {
	if row.record.Status != StatusActive || row.paused || row.leased() {
		q.schedule.remove(row)
		return
	}
	q.schedule.put(row, now)
	if !row.tenant.paused {
		q.announce(row.lane.spec, row.due, now)
	}
}

// leased reports whether a lease keeps the row from being claimed.
func (r *memRow) leased() bool { return r.lease != nil && r.lease.place != 0 }

// controlEpochs are the epochs that a claim captures.
func (r *memRow) controlEpochs() ControlEpochs {
	return ControlEpochs{
		Tenant:   r.tenant.epoch + r.epochs.Tenant,
		Instance: r.epochs.Instance,
		Resource: r.tenant.resourceEpoch + r.epochs.Resource,
	}
}
