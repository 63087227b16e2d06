package supervisor

import (
	"errors"
	"fmt"
	"time"
)

// memIntentRow is one intent. Whatever changes its record calls fileIntent
// afterwards, which brings everything below the record up to date.
type memIntentRow struct {
	IntentRecord
	row   *memRow
	group *memIntentGroup
	// seq orders intents that are due at the same instant by arrival; place and
	// ready tell where in its lane it waits.
	seq   uint64
	place int32
	ready bool
	// queued is its number in the order of those that wait for a slot, 0 for
	// none. It keeps it until it is marked or settled, so that one that was
	// unparked in vain goes back to the front. queuePlace is where it is parked.
	queued     uint64
	queuePlace int32
	// granted: it was unparked for a slot that came free.
	granted bool
	// counted: it holds a slot. unsettled: it also counts in its row.
	counted, unsettled bool
	// prev and next link the intents of a tenant that are not settled.
	prev, next *memIntentRow
	listed     bool
}

// memIntents are the intents of one instance.
type memIntents struct {
	// byID finds an intent, inOrder lists them as they were prepared.
	byID    map[string]*memIntentRow
	inOrder []*memIntentRow
	// unsettled counts those that are in flight.
	unsettled int
}

// memIntentSchedule decides which intents a claim gets.
type memIntentSchedule struct {
	lanes  map[CapabilityPin]*memIntentLane
	limits map[memLimitScope]*memLimit
	// turn counts what was handed out, seq what was prepared, queued what waited
	// for a slot, claims the claims and events what fell due other than by time.
	turn                        int64
	seq, queued, claims, events uint64
	// all is what claims of all capabilities have seen.
	all     memSeen
	waiters map[*memIntentWaiter]struct{}
}

// memIntentLane holds the intents of one capability that are due at some time,
// those under a lease at its end.
type memIntentLane struct {
	pin CapabilityPin
	// ready are those that were due when they came, as in [memLane].
	ready, waiting memHeap[memIntentRow]
	// served is the turn in which it was served last, 0 for never.
	served int64
	// claim is the last claim that wanted it, event the last event.
	claim, event uint64
	seen         memSeen
	groups       map[*memTenant]*memIntentGroup
}

// memIntentGroup is what one tenant has of one capability: all of it is covered
// by the same limits.
type memIntentGroup struct {
	tenant *memTenant
	lane   *memIntentLane
	// intents counts all, inUse those that hold a slot, granted those that were
	// unparked for one.
	intents, inUse, granted int
	// shares are its parts of the limits that cover it, parked the intents that
	// wait for a slot, by queued; waitsIn is the share that they wait for, nil
	// for none, and place where.
	shares  []*memLimitShare
	parked  memHeap[memIntentRow]
	waitsIn *memLimitShare
	place   int32
}

// join returns the group of a tenant and capability and counts n intents more in it.
func (s *memIntentSchedule) join(tenant *memTenant, pin *CapabilityPin, n int) *memIntentGroup {
	lane := s.lanes[*pin]
	if lane == nil {
		lane = &memIntentLane{pin: *pin, groups: make(map[*memTenant]*memIntentGroup)}
		if s.lanes == nil {
			s.lanes = make(map[CapabilityPin]*memIntentLane)
		}
		s.lanes[*pin] = lane
	}
	group := lane.groups[tenant]
	if group == nil {
		group = &memIntentGroup{tenant: tenant, lane: lane}
		lane.groups[tenant] = group
		for _, scope := range limitScopes(tenant.id, pin.ID) {
			if limit := s.limits[scope]; limit != nil {
				limit.cover(group)
			}
		}
	}
	group.intents += n
	return group
}

// leave counts an intent less in its group.
func (s *memIntentSchedule) leave(group *memIntentGroup) {
	if group.intents--; group.intents > 0 {
		return
	}
	for _, share := range group.shares {
		share.leave()
	}
	delete(group.lane.groups, group.tenant)
	if len(group.lane.groups) == 0 {
		delete(s.lanes, group.lane.pin)
	}
}

// first returns the intent that is due first, nil for none.
func (l *memIntentLane) first() *memEntry[memIntentRow] {
	switch {
	case l.ready.len() == 0 && l.waiting.len() == 0:
		return nil
	case l.ready.len() == 0 || (l.waiting.len() > 0 && l.waiting.top().less(l.ready.top())):
		return l.waiting.top()
	}
	return l.ready.top()
}

// put lets an intent wait for its due time, remove ends that.
func (l *memIntentLane) put(x *memIntentRow, now time.Time) {
	if ready := !x.DueAt.After(now); ready != x.ready {
		l.remove(x)
		x.ready = ready
	}
	l.heap(x).put(&x.place, x, instantKey(x.DueAt), x.seq)
}

func (l *memIntentLane) remove(x *memIntentRow) { l.heap(x).remove(&x.place) }

func (l *memIntentLane) heap(x *memIntentRow) *memHeap[memIntentRow] {
	if x.ready {
		return &l.ready
	}
	return &l.waiting
}

// prepareIntents stores the intents of a commit, whose memory it keeps.
func (q *MemoryWorkQueue) prepareIntents(row *memRow, intents []ActionIntent, now time.Time) {
	if len(intents) == 0 {
		return
	}
	if row.intents == nil {
		row.intents = &memIntents{byID: make(map[string]*memIntentRow)}
	}
	// The record of the commit keeps them as they were prepared.
	stored := make([]memIntentRow, len(intents))
	for n := range intents {
		x := &stored[n]
		q.intents.seq++
		x.IntentRecord = NewIntentRecord(intents[n], now)
		x.row, x.seq = row, q.intents.seq
		x.group = q.intents.join(row.tenant, &x.Intent.Capability, 1)
		row.intents.byID[x.Intent.ID] = x
		row.intents.inOrder = append(row.intents.inOrder, x)
		q.fileIntent(x, now)
	}
}

// intent finds an intent, nil where there is none.
func (q *MemoryWorkQueue) intent(key *IntentKey) *memIntentRow {
	if row := q.row(key.TenantID, key.InstanceID); row != nil && row.intents != nil {
		return row.intents.byID[key.IntentID]
	}
	return nil
}

// storeIntent stores what a rule made of an intent, tells the instance where
// that is due, and returns the rule's error. before is the record before it,
// which stays after an error that stores nothing.
func (q *MemoryWorkQueue) storeIntent(x *memIntentRow, before *IntentRecord, told bool, err error, now time.Time) error {
	if err != nil && !errors.Is(err, ErrIntentRefused) && !errors.Is(err, ErrReceiptConflict) {
		x.IntentRecord = *before
		return err
	}
	if told {
		wakeup, wakeupErr := x.Wakeup()
		if wakeupErr != nil {
			x.IntentRecord = *before
			return wakeupErr
		}
		q.tell(x.row, wakeup, now)
	}
	q.fileIntent(x, now)
	return err
}

// tell delivers a wakeup of the queue's own.
func (q *MemoryWorkQueue) tell(row *memRow, wakeup Wakeup, now time.Time) {
	if row.finished() || row.mail.get(wakeup.ID) != nil {
		return
	}
	row.deliver(wakeup, wakeup.Digest(), now)
	q.wakeupArrived(row, now, now)
}

// finished reports whether the row takes no more wakeups.
func (r *memRow) finished() bool {
	return r.record.Status == StatusCompleted || r.record.Status == StatusCancelled
}

// control is what bears on the hand-off of an intent of the row.
func (r *memRow) control(intent *ActionIntent) IntentControl {
	control := IntentControl{
		Epochs:   r.controlEpochs(),
		Paused:   r.tenant.paused || r.paused,
		Finished: r.finished(),
	}
	control.Epochs.Resource = 0
	if resource, known := r.tenant.resources[intent.ResourceScopeID]; known {
		control.Epochs.Resource = resource.epoch + r.epochs.Resource
		control.Paused = control.Paused || resource.paused
	}
	return control
}

// fileIntent brings everything that is known beside the record of an intent up
// to date with it.
func (q *MemoryWorkQueue) fileIntent(x *memIntentRow, now time.Time) {
	holds := x.HoldsSlot()
	x.list(!x.Intent.State.Terminal())
	x.count(x.InFlight())

	slots, freed := 0, false
	if holds != x.counted {
		x.counted = holds
		if slots = 1; !holds {
			slots, freed = -1, true
		}
	}
	if x.granted && (!x.Waiting() || x.Parked != NotParked) {
		x.granted, freed = false, true
		x.group.grant(-1)
	}
	x.group.use(slots)
	if !x.Waiting() {
		x.queued = 0
	}
	if x.Parked == ParkedByLimit {
		if x.queued == 0 {
			q.intents.queued++
			x.queued = q.intents.queued
		}
		x.group.park(x)
	} else {
		x.group.unpark(x)
	}

	if x.DueAt.IsZero() {
		x.group.lane.remove(x)
	} else {
		x.group.lane.put(x, now)
		q.announceIntent(x.group.lane, x.DueAt, now)
	}
	if freed {
		q.offerSlots(x.group, now)
	}
}

// list keeps an intent that is not settled in its tenant's list.
func (x *memIntentRow) list(open bool) {
	if open == x.listed {
		return
	}
	x.listed = open
	tenant := x.row.tenant
	if open {
		x.prev = tenant.lastIntent
		if x.prev == nil {
			tenant.firstIntent = x
		} else {
			x.prev.next = x
		}
		tenant.lastIntent = x
		return
	}
	if x.prev == nil {
		tenant.firstIntent = x.next
	} else {
		x.prev.next = x.next
	}
	if x.next == nil {
		tenant.lastIntent = x.prev
	} else {
		x.next.prev = x.prev
	}
	x.prev, x.next = nil, nil
}

// count keeps the number of marked, unsettled intents of the row.
func (x *memIntentRow) count(unsettled bool) {
	if unsettled == x.unsettled {
		return
	}
	x.unsettled = unsettled
	if unsettled {
		x.row.intents.unsettled++
	} else {
		x.row.intents.unsettled--
	}
}

// dropIntents removes the intents of a row that is removed.
func (q *MemoryWorkQueue) dropIntents(row *memRow, now time.Time) {
	if row.intents == nil {
		return
	}
	for _, x := range row.intents.inOrder {
		x.list(false)
		group := x.group
		group.lane.remove(x)
		group.unpark(x)
		if x.granted {
			group.grant(-1)
		}
		if x.counted {
			group.use(-1)
		}
		if x.granted || x.counted {
			q.offerSlots(group, now)
		}
		q.intents.leave(group)
	}
	row.intents = nil
}

// inFlight reports whether an intent of the row is.
func (r *memRow) inFlight() bool { return r.intents != nil && r.intents.unsettled > 0 }

// cancelIntents is the part of the intents in a cancel of their instance.
func (q *MemoryWorkQueue) cancelIntents(row *memRow, now time.Time) {
	if row.intents == nil {
		return
	}
	for _, x := range row.intents.inOrder {
		if !x.listed {
			continue
		}
		before := x.IntentRecord
		told := x.RequestCancel(now)
		// It has no output, the only thing that could fail to be encoded.
		_ = q.storeIntent(x, &before, told, nil, now)
	}
}

// resumeIntents lets the waiting intents of a tenant that are in a scope be
// looked at again.
func (q *MemoryWorkQueue) resumeIntents(tenant *memTenant, scope *Scope, now time.Time) {
	if scope.InstanceID != "" {
		if row := tenant.rows[scope.InstanceID]; row.intents != nil {
			for _, x := range row.intents.inOrder {
				q.unparkIntent(x, now)
			}
		}
		return
	}
	for x := tenant.firstIntent; x != nil; x = x.next {
		if scope.ResourceID == "" || scope.ResourceID == x.Intent.ResourceScopeID {
			q.unparkIntent(x, now)
		}
	}
}

func (q *MemoryWorkQueue) unparkIntent(x *memIntentRow, now time.Time) {
	if x.Waiting() {
		x.Unpark(now)
		q.fileIntent(x, now)
	}
}

func intentNotFound(key *IntentKey) error {
	return fmt.Errorf("supervisor: intent %q of instance %q of tenant %q: %w",
		shorten(key.IntentID), shorten(key.InstanceID), shorten(key.TenantID), ErrNotFound)
}

func intentLost(what string, key *IntentKey) error {
	return fmt.Errorf("supervisor: %s intent %q of instance %q of tenant %q: %w",
		what, shorten(key.IntentID), shorten(key.InstanceID), shorten(key.TenantID), ErrLeaseLost)
}
