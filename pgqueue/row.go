package pgqueue

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

// row is an instance as the database has it. The columns of a claim come first
// and are those that decisions about a claimed instance need; the others are
// set by a load alone.
type row struct {
	no, tenantNo, laneNo int64
	instance             supervisor.Instance
	record               supervisor.Record
	dueAt                time.Time
	leaseVersion         int64
	stateVersion         int64
	touched              int64
	epochs               supervisor.ControlEpochs
	deliveryHash         int64
	wakeupAt             time.Time // the first pending wakeup that the claim does not hold
	pending              int
	state                json.RawMessage

	paused, tenantPaused         bool
	leaseEndsAt                  time.Time
	leaseOwner                   string
	leaseEpoch, leaseTenantEpoch int64
	kept                         bool
	setAsideUntil                time.Time
	setAsideReason               string
	releaseReason                string
	failureClass, lastError      string
	deliveryKey, deliveryDigest  string
	now                          time.Time
}

// scanClaimed reads the columns that claims and loads have in common. All text
// of the row becomes one string and all JSON one piece of memory, which nobody
// else has. broken says why the row cannot be decoded; what could be read of it
// is set nevertheless.
func (r *row) scanClaimed(c *cells) (broken error) {
	r.no, r.tenantNo, r.laneNo = c.int8(), c.int8(), c.int8()
	if len(c.values) < 37 {
		c.bad = true
		return nil
	}
	var texts strings.Builder
	size := 0
	for _, n := range textColumns {
		size += len(c.values[n])
	}
	texts.Grow(size)
	for _, n := range textColumns {
		texts.Write(c.values[n])
	}
	rest := texts.String()
	text := func() (s string) {
		size := len(c.next())
		s, rest = rest[:size], rest[size:]
		return s
	}
	i := &r.instance
	i.TenantID, i.ID, i.RunID, i.SubjectID, i.SpecID, i.DefinitionID = text(), text(), text(), text(), text(), text()
	i.WorkflowRevision, i.WorkflowRevisionDigest = uint64(c.int8()), text()
	i.ExecutionProfileID = text()
	i.ExecutionProfileRevision, i.ExecutionProfileDigest = uint64(c.int8()), text()
	i.KernelABIVersion = text()
	pins, lifecycle, config := c.next(), c.next(), c.next()
	if pins != nil {
		if err := json.Unmarshal(pins, &i.CapabilityPins); err != nil {
			broken = fmt.Errorf("capability_pins: %w", err)
		}
	}
	if lifecycle != nil {
		if err := json.Unmarshal(lifecycle, &i.Lifecycle); err != nil {
			broken = fmt.Errorf("lifecycle: %w", err)
		}
	}
	record := &r.record
	record.Status = supervisor.StatusActive
	record.CreatedAt, r.dueAt = c.instant(), c.instant()
	r.leaseVersion, r.stateVersion, r.touched = c.int8(), c.int8(), c.int8()
	r.epochs = supervisor.ControlEpochs{Instance: c.int8(), Tenant: c.int8(), Resource: c.int8()}
	r.deliveryHash = c.int8()
	record.LastProgressAt, record.LastEventAt, record.RetryAt, r.wakeupAt = c.instant(), c.instant(), c.instant(), c.instant()
	record.Attempt, r.pending = c.int4(), c.int4()
	record.Raised = supervisor.Raised(c.int4())
	record.CancelRequested = c.bool()
	record.Counters = supervisor.Counters{Triggered: c.int8(), Matched: c.int8(), Succeeded: c.int8(), ActionTerminal: c.int8()}
	state := c.next()

	memory := make([]byte, 0, len(config)+max(len(state), len(config)))
	i.Config, memory = keep(memory, config)
	if state == nil {
		// Before the first transition the state is the config.
		state = config
	}
	r.state, _ = keep(memory, state)
	if broken == nil {
		broken = checkJSON("config", i.Config)
	}
	if broken == nil && r.stateVersion > 0 {
		broken = checkJSON("state", r.state)
	}
	return broken
}

// textColumns are the places of the text that becomes one string, among the
// columns behind the three numbers.
var textColumns = [...]int{0, 1, 2, 3, 4, 5, 7, 8, 10, 11}

// scan reads a row of the view snapshot.
func (r *row) scan(c *cells) (broken error) {
	broken = r.scanClaimed(c)
	r.record.Status = supervisor.Status(c.text())
	r.paused, r.tenantPaused = c.bool(), c.bool()
	r.record.FinishedAt, r.leaseEndsAt = c.instant(), c.instant()
	r.leaseOwner = c.text()
	r.leaseEpoch, r.leaseTenantEpoch = c.int8(), c.int8()
	r.kept = c.bool()
	r.setAsideUntil, r.setAsideReason = c.instant(), c.text()
	r.releaseReason, r.failureClass, r.lastError = c.text(), c.text(), c.text()
	r.deliveryKey, r.deliveryDigest = c.packed(), c.packed()
	r.now = c.instant()
	return broken
}

// keep appends raw to memory and returns the copy and the memory.
func keep(memory, raw []byte) (kept json.RawMessage, rest []byte) {
	if raw == nil {
		return nil, memory
	}
	start := len(memory)
	memory = append(memory, raw...)
	return memory[start:len(memory):len(memory)], memory
}

func checkJSON(column string, raw json.RawMessage) error {
	if raw != nil && !json.Valid(raw) {
		return fmt.Errorf("%s is not valid JSON", column)
	}
	return nil
}

// item returns the row as claimed at an instant. It shares the row's memory.
func (r *row) item(claimedAt time.Time, wakeups []supervisor.Wakeup) supervisor.WorkItem {
	return supervisor.WorkItem{
		Instance:        r.instance,
		ScheduledAt:     r.dueAt,
		CreatedAt:       r.record.CreatedAt,
		ClaimedAt:       claimedAt,
		State:           r.state,
		StateVersion:    r.stateVersion,
		ControlEpochs:   r.epochs,
		CancelRequested: r.record.CancelRequested,
		LeaseVersion:    r.leaseVersion,
		Attempt:         r.record.Attempt,
		Wakeups:         wakeups,
	}
}

// pausedBy is the widest pause that covers the row; nil for none.
func (r *row) pausedBy() *supervisor.Scope {
	switch {
	case r.tenantPaused:
		return &supervisor.Scope{TenantID: r.instance.TenantID}
	case r.paused:
		return &supervisor.Scope{TenantID: r.instance.TenantID, InstanceID: r.instance.ID}
	}
	return nil
}

// snapshot returns the row for people.
func (r *row) snapshot() supervisor.Snapshot {
	s := supervisor.Snapshot{
		Instance:        r.instance,
		State:           r.state,
		StateVersion:    r.stateVersion,
		LeaseVersion:    r.leaseVersion,
		Status:          r.record.Status,
		CreatedAt:       r.record.CreatedAt,
		NextDueAt:       r.dueAt,
		FinishedAt:      r.record.FinishedAt,
		LastError:       r.lastError,
		Attempt:         r.record.Attempt,
		PendingWakeups:  r.pending,
		CancelRequested: r.record.CancelRequested,
		PausedBy:        r.pausedBy(),
		ControlEpochs:   r.epochs,
	}
	if r.leaseEndsAt.After(r.now) {
		s.LeaseEndsAt, s.LeaseOwner = r.leaseEndsAt, r.leaseOwner
	}
	return s
}

// timerAt is the first lifecycle timer that the record has still to raise; zero
// for none. Floors do not count, for a claim comes only after them.
func timerAt(policy *supervisor.LifecyclePolicy, record *supervisor.Record) time.Time {
	if *policy == (supervisor.LifecyclePolicy{Completion: policy.Completion}) {
		return time.Time{}
	}
	bare, free := *policy, *record
	bare.StartsAt, free.RetryAt = time.Time{}, time.Time{}
	return free.NextDue(&bare, time.Time{}, time.Time{})
}

// later returns the later of two instants.
func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// earlier returns the earlier of two instants, zero being none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || (!b.IsZero() && b.Before(a)) {
		return b
	}
	return a
}
