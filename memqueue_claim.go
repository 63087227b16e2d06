package supervisor

import (
	"context"
	"fmt"
	"time"
)

// ClaimDue implements [WorkQueue].
func (q *MemoryWorkQueue) ClaimDue(ctx context.Context, req ClaimRequest) ([]WorkItem, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := req.Validate(); err != nil {
		return nil, err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.now()
	q.endLeases(now)
	var room [16]*memRow
	rows := q.schedule.take(room[:0], req.SpecIDs, req.Limit, now)
	if len(rows) == 0 {
		return nil, nil
	}
	return q.acquire(rows, req.WorkerID, req.LeaseDuration, now), nil
}

// endLeases makes rows whose lease has ended claimable again, due as they were.
func (q *MemoryWorkQueue) endLeases(now time.Time) {
	for key := instantKey(now); q.leases.len() > 0 && q.leases.top().key <= key; {
		row := q.leases.top().value
		q.leases.remove(&row.lease.place)
		q.place(row, now)
	}
}

// acquire leases rows that wait nowhere and returns them as claimed.
func (q *MemoryWorkQueue) acquire(rows []*memRow, worker string, duration time.Duration, now time.Time) []WorkItem {
	var size captureSize
	for _, row := range rows {
		q.raiseTimers(row, now)
		row.leaseVersion++
		row.releaseReason = ""
		if row.lease == nil {
			row.lease = q.newLease()
		}
		*row.lease = memLease{
			worker:    worker,
			claimedAt: now,
			epochs:    row.controlEpochs(),
		}
		q.extend(row, duration, now)
		row.mail.claim(row.leaseVersion, now)
		size.add(row)
	}
	items := make([]WorkItem, len(rows))
	memory := size.allocate()
	for n, row := range rows {
		row.capture(&items[n], &memory)
	}
	return items
}

// extend sets the end of a row's lease.
func (q *MemoryWorkQueue) extend(row *memRow, duration time.Duration, now time.Time) {
	row.lease.end = clampInstant(now.Add(duration))
	q.leases.put(&row.lease.place, row, instantKey(row.lease.end), uint64(row.leaseVersion))
	q.retime(row.lane.spec, row.lease.end)
}

// raiseTimers raises the lifecycle timers that a claim found passed.
func (q *MemoryWorkQueue) raiseTimers(row *memRow, now time.Time) {
	record, wakeups, cancel := row.pins.Lifecycle.RaiseTimers(row.record, now)
	row.record = record
	for n := range wakeups {
		row.deliver(wakeups[n].Wakeup, wakeups[n].Wakeup.Digest(), wakeups[n].DueAt)
	}
	if cancel {
		row.epochs.Instance++
		q.cancelIntents(row, now)
	}
}

// captureSize adds up the memory that claimed items need.
type captureSize struct {
	rows, bytes, wakeups, pins int
}

func (s *captureSize) add(row *memRow) {
	s.rows++
	s.bytes += len(row.config) + len(row.state)
	s.pins += len(row.pins.CapabilityPins)
	for _, wakeup := range row.claimed() {
		if wakeup.claim == row.leaseVersion {
			s.wakeups++
			s.bytes += len(wakeup.Payload)
		}
	}
}

// captureMemory is what claimed items are built from: one piece for all items
// of a claim, cut so that none can reach its neighbour's.
type captureMemory struct {
	arena   []byte
	wakeups []Wakeup
	pins    []CapabilityPin
}

// largestSharedArena bounds the memory that one item of a claim keeps alive for
// the others.
const largestSharedArena = 64 << 10

func (s *captureSize) allocate() captureMemory {
	var memory captureMemory
	if s.bytes <= largestSharedArena || s.rows == 1 {
		memory.arena = make([]byte, 0, s.bytes)
	}
	if s.wakeups > 0 {
		memory.wakeups = make([]Wakeup, 0, s.wakeups)
	}
	if s.pins > 0 {
		memory.pins = make([]CapabilityPin, 0, s.pins)
	}
	return memory
}

// capture fills in an item as the row's lease has claimed it.
func (r *memRow) capture(item *WorkItem, memory *captureMemory) {
	item.Instance = r.instance()
	item.Config = memory.copy(r.config)
	if pins := item.CapabilityPins; pins != nil {
		start := len(memory.pins)
		memory.pins = append(memory.pins, pins...)
		item.CapabilityPins = memory.pins[start:len(memory.pins):len(memory.pins)]
	}
	item.ScheduledAt = r.due
	item.CreatedAt = r.record.CreatedAt
	item.ClaimedAt = r.lease.claimedAt
	item.State = memory.copy(r.state)
	item.StateVersion = r.stateVersion
	item.ControlEpochs = r.lease.epochs
	item.CancelRequested = r.record.CancelRequested
	item.LeaseVersion = r.leaseVersion
	item.Attempt = r.record.Attempt
	start := len(memory.wakeups)
	for _, wakeup := range r.claimed() {
		if wakeup.claim == r.leaseVersion {
			memory.wakeups = append(memory.wakeups, wakeup.Wakeup)
			last := &memory.wakeups[len(memory.wakeups)-1]
			last.Payload = memory.copy(last.Payload)
		}
	}
	if start < len(memory.wakeups) {
		item.Wakeups = memory.wakeups[start:len(memory.wakeups):len(memory.wakeups)]
	}
}

// claimed returns pending wakeups among which are all that the lease contains:
// those that were due when it was acquired.
func (r *memRow) claimed() []*memWakeup {
	if r.mail == nil {
		return nil
	}
	return r.mail.due(r.lease.claimedAt)
}

func (m *captureMemory) copy(raw []byte) (copied []byte) {
	if m.arena == nil {
		return append([]byte(nil), raw...)
	}
	copied, m.arena = cloneInto(m.arena, raw)
	return copied
}

// Renew implements [WorkQueue].
func (q *MemoryWorkQueue) Renew(ctx context.Context, lease Lease) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if lease.Duration <= 0 {
		return fmt.Errorf("supervisor: lease: Duration is %v, must be positive", lease.Duration)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.now()
	row := q.row(lease.TenantID, lease.InstanceID)
	if row == nil || row.lease == nil || row.leaseVersion != lease.Version ||
		row.lease.worker != lease.WorkerID || !row.lease.end.After(now) {
		return fmt.Errorf("supervisor: renew %q of tenant %q: %w", shorten(lease.InstanceID), shorten(lease.TenantID), ErrLeaseLost)
	}
	if epochs := row.controlEpochs(); epochs.Tenant != row.lease.epochs.Tenant || epochs.Instance != row.lease.epochs.Instance {
		return row.errorf("renew", ErrEpochStale)
	}
	q.extend(row, lease.Duration, now)
	*q.renewals.next() = Renewal{
		TenantID:     row.tenant.id,
		InstanceID:   row.id,
		WorkerID:     row.lease.worker,
		LeaseVersion: row.leaseVersion,
	}
	return nil
}

// Release implements [Releaser].
func (q *MemoryWorkQueue) Release(ctx context.Context, item *WorkItem, reason string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	row := q.row(item.TenantID, item.ID)
	if row == nil || row.lease == nil || row.leaseVersion != item.LeaseVersion {
		return fmt.Errorf("supervisor: release %q of tenant %q: %w", shorten(item.ID), shorten(item.TenantID), ErrLeaseLost)
	}
	q.endLease(row)
	row.leaseVersion++
	row.releaseReason = cleanReason(reason)
	q.place(row, q.now())
	return nil
}

// newLease returns a lease of the spare ones.
func (q *MemoryWorkQueue) newLease() *memLease {
	last := len(q.spareLeases) - 1
	if last < 0 {
		return new(memLease)
	}
	lease := q.spareLeases[last]
	q.spareLeases = q.spareLeases[:last]
	return lease
}

// endLease ends the acquisition of a row; the caller places it.
func (q *MemoryWorkQueue) endLease(row *memRow) {
	if row.lease == nil {
		return
	}
	q.leases.remove(&row.lease.place)
	if len(q.spareLeases) < mostSpareLeases {
		*row.lease = memLease{}
		q.spareLeases = append(q.spareLeases, row.lease)
	}
	row.lease = nil
}

// errorf wraps a sentinel with what was tried on which instance.
func (r *memRow) errorf(what string, sentinel error) error {
	return fmt.Errorf("supervisor: %s %q of tenant %q: %w", what, shorten(r.id), shorten(r.tenant.id), sentinel)
}
