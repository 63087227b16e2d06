package supervisor

import (
	"math"
	"time"
)

// memSchedule decides which instances a claim gets: due ones, one tenant after
// the other, each tenant's in order of due time.
//
// Instances that may be claimed wait in the lane of their tenant and spec. A
// lane sleeps until its first due time comes and is awake from then on; only
// awake lanes take part in turns, so that a claim costs nothing for instances,
// tenants and specs that have nothing due.
type memSchedule struct {
	specs map[string]*memSpec
	// sleeping orders specs by the due time of their first sleeping lane, awake
	// orders tenants with awake lanes by turn.
	sleeping memHeap[memSpec]
	awake    memHeap[memTenant]
	// wanted orders specs by the turn of their first awake lane, for the length
	// of a claim of certain specs.
	wanted memHeap[memSpec]
	// turn counts what was served, seq what was scheduled, claims the claims of
	// certain specs and events what fell due other than by time.
	turn                int64
	seq, claims, events uint64
	// all is what claims of all specs have seen.
	all memSeen
}

// memSeen is how far claims have looked: everything due until then was theirs
// to take, and what they left is no news to a waiter.
type memSeen struct {
	events uint64
	until  int64
}

// memSpec is one spec of all tenants.
type memSpec struct {
	id string
	// sleeping orders lanes by their first due time, awake by the turn of their
	// tenant. Turns are put right only when they come to the top: they never
	// get smaller, so that an old one is a lower bound.
	sleeping, awake            memHeap[memLane]
	sleepingPlace, wantedPlace int32
	lanes                      int
	// claim is the last claim of certain specs that wanted this one.
	claim uint64
	// event is the number of the last event that made an instance due.
	event uint64
	seen  memSeen
}

// memLane holds the instances of one tenant and spec that wait for their due time.
type memLane struct {
	tenant *memTenant
	spec   *memSpec
	// ready and waiting order instances by due time, equal ones by when they
	// were scheduled. Those that were due when they came are ready: what is due
	// again at once never passes through a heap of a million that wait.
	ready, waiting memHeap[memRow]
	// The places in the sleeping and awake lanes of the spec and in the awake
	// ones of the tenant.
	sleepingPlace, awakePlace, tenantPlace int32
	// rows counts all instances of the lane, also those that do not wait; pins
	// are those of the one that came last.
	rows int
	pins *Instance
}

// join returns the lane of a tenant and spec and counts one row more in it.
func (s *memSchedule) join(tenant *memTenant, specID string) *memLane {
	lane := tenant.lanes[specID]
	if lane == nil {
		spec := s.specs[specID]
		if spec == nil {
			spec = &memSpec{id: specID}
			if s.specs == nil {
				s.specs = make(map[string]*memSpec)
			}
			s.specs[specID] = spec
		}
		spec.lanes++
		lane = &memLane{tenant: tenant, spec: spec}
		if tenant.lanes == nil {
			tenant.lanes = make(map[string]*memLane)
		}
		tenant.lanes[specID] = lane
	}
	lane.rows++
	return lane
}

// leave takes a row out of its lane for good.
func (s *memSchedule) leave(row *memRow) {
	s.remove(row)
	lane := row.lane
	if lane.rows--; lane.rows > 0 {
		return
	}
	delete(lane.tenant.lanes, lane.spec.id)
	if lane.spec.lanes--; lane.spec.lanes == 0 {
		delete(s.specs, lane.spec.id)
	}
}

// put lets a row wait for its due time.
func (s *memSchedule) put(row *memRow, now time.Time) {
	if ready := !row.due.After(now); ready != row.ready {
		row.heap().remove(&row.place)
		row.ready = ready
	}
	row.heap().put(&row.place, row, instantKey(row.due), row.seq)
	s.settle(row.lane)
}

// remove ends the waiting of a row; one that does not wait stays as it is.
func (s *memSchedule) remove(row *memRow) {
	if row.place == 0 {
		return
	}
	row.heap().remove(&row.place)
	s.settle(row.lane)
}

// heap is where the row waits.
func (r *memRow) heap() *memHeap[memRow] {
	if r.ready {
		return &r.lane.ready
	}
	return &r.lane.waiting
}

// first returns the instance that is due first, nil for none.
func (l *memLane) first() *memEntry[memRow] {
	switch {
	case l.ready.len() == 0 && l.waiting.len() == 0:
		return nil
	case l.ready.len() == 0 || (l.waiting.len() > 0 && l.waiting.top().less(l.ready.top())):
		return l.waiting.top()
	}
	return l.ready.top()
}

// settle brings the order of lanes up to date after the first row of one has
// changed, or its tenant was paused or resumed.
func (s *memSchedule) settle(lane *memLane) {
	spec, first := lane.spec, lane.first()
	switch {
	case first == nil || lane.tenant.paused:
		s.rest(lane)
		spec.sleeping.remove(&lane.sleepingPlace)
		s.settleSleeping(spec)
	case lane.awakePlace != 0:
		lane.tenant.awake.put(&lane.tenantPlace, lane, first.key, first.seq)
	default:
		spec.sleeping.put(&lane.sleepingPlace, lane, first.key, first.seq)
		s.settleSleeping(spec)
	}
}

func (s *memSchedule) settleSleeping(spec *memSpec) {
	if spec.sleeping.len() == 0 {
		s.sleeping.remove(&spec.sleepingPlace)
		return
	}
	first := spec.sleeping.top()
	if spec.sleepingPlace == 0 || s.sleeping.entries[spec.sleepingPlace-1].key != first.key {
		s.sleeping.put(&spec.sleepingPlace, spec, first.key, first.seq)
	}
}

// wake lets the sleeping lanes of a spec whose due time has come take part in turns.
func (s *memSchedule) wake(spec *memSpec, now int64) {
	for spec.sleeping.len() > 0 && spec.sleeping.top().key <= now {
		first := *spec.sleeping.top()
		lane := first.value
		spec.sleeping.remove(&lane.sleepingPlace)
		lane.tenant.awake.put(&lane.tenantPlace, lane, first.key, first.seq)
		turn := lane.tenant.turn()
		s.awake.put(&lane.tenant.place, lane.tenant, turn, first.seq)
		spec.awake.put(&lane.awakePlace, lane, turn, first.seq)
	}
	s.settleSleeping(spec)
}

// rest takes a lane out of the turns.
func (s *memSchedule) rest(lane *memLane) {
	lane.spec.awake.remove(&lane.awakePlace)
	lane.tenant.awake.remove(&lane.tenantPlace)
	if lane.tenant.awake.len() == 0 {
		s.awake.remove(&lane.tenant.place)
	}
}

// turn is a tenant's place in the order of turns, as a key: those never served
// come before all others, and among themselves in order of due time. The tenant
// has awake lanes.
func (t *memTenant) turn() int64 {
	if t.served == 0 {
		return t.awake.top().key>>1 - 1<<62
	}
	return t.served
}

// take removes the rows that a claim gets, at most limit, and appends them to
// rows.
func (s *memSchedule) take(rows []*memRow, specIDs []string, limit int, at time.Time) []*memRow {
	now := instantKey(at)
	seen := memSeen{events: s.events, until: now}
	if len(specIDs) > 0 {
		s.want(specIDs, seen)
		defer s.unwant()
	} else {
		for s.sleeping.len() > 0 && s.sleeping.top().key <= now {
			s.wake(s.sleeping.top().value, now)
		}
		s.all = seen
	}
	for len(rows) < limit {
		lane := s.next(specIDs)
		if lane == nil {
			break
		}
		first := lane.first()
		if first.key > now {
			// What was due here has been taken.
			s.rest(lane)
			s.settle(lane)
			continue
		}
		rows = append(rows, first.value)
		s.remove(first.value)
		s.turn++
		lane.tenant.served = s.turn
		if lane.tenant.place != 0 {
			s.awake.put(&lane.tenant.place, lane.tenant, s.turn, 0)
		}
	}
	return rows
}

// want prepares a claim of certain specs.
func (s *memSchedule) want(specIDs []string, seen memSeen) {
	s.claims++
	for _, id := range specIDs {
		spec := s.specs[id]
		if spec == nil || spec.claim == s.claims {
			continue
		}
		spec.claim = s.claims
		spec.seen = seen
		s.wake(spec, seen.until)
		if spec.awake.len() > 0 {
			first := spec.awake.top()
			s.wanted.put(&spec.wantedPlace, spec, first.key, first.seq)
		}
	}
}

func (s *memSchedule) unwant() {
	for s.wanted.len() > 0 {
		s.wanted.remove(&s.wanted.top().value.wantedPlace)
	}
}

// next returns the lane whose turn it is: of the tenant least recently served
// that has wanted lanes, the one that is due first; nil for none.
func (s *memSchedule) next(specIDs []string) *memLane {
	if len(specIDs) == 0 {
		if s.awake.len() == 0 {
			return nil
		}
		return s.awake.top().value.awake.top().value
	}
	for s.wanted.len() > 0 {
		best := s.wanted.top()
		spec := best.value
		if spec.awake.len() == 0 {
			s.wanted.remove(&spec.wantedPlace)
			continue
		}
		first := spec.awake.top()
		tenant := first.value.tenant
		switch turn := tenant.turn(); {
		case turn > first.key:
			spec.awake.put(&first.value.awakePlace, first.value, turn, first.seq)
		case first.key > best.key:
			s.wanted.put(&spec.wantedPlace, spec, first.key, first.seq)
		default:
			return s.firstWanted(tenant, specIDs)
		}
	}
	return nil
}

// firstWanted returns the awake lane of a tenant that is due first among the
// wanted ones, by way of the tenant's lanes or of the specs, whichever are fewer.
func (s *memSchedule) firstWanted(tenant *memTenant, specIDs []string) *memLane {
	if tenant.awake.len() <= len(specIDs) {
		return tenant.awake.first(func(lane *memEntry[memLane]) bool { return lane.value.spec.claim == s.claims }).value
	}
	var best *memEntry[memLane]
	for _, id := range specIDs {
		if lane := tenant.lanes[id]; lane != nil && lane.tenantPlace != 0 {
			if entry := &tenant.awake.entries[lane.tenantPlace-1]; best == nil || entry.less(best) {
				best = entry
			}
		}
	}
	return best.value
}

// news reports whether something of the specs (none: all) has fallen due since
// claims last looked, and otherwise the next due time. Both instants are keys.
func (s *memSchedule) news(specIDs []string, now int64) (due bool, next int64) {
	next = math.MaxInt64
	if len(specIDs) == 0 {
		if s.sleeping.len() > 0 {
			next = s.sleeping.top().key
		}
		for _, tenant := range s.awake.entries {
			for _, lane := range tenant.value.awake.entries {
				next = min(next, s.nextDue(lane.value))
			}
		}
		if s.events > s.all.events {
			for _, spec := range s.specs {
				due = due || s.hasEvent(spec)
			}
		}
		return due || next <= now, next
	}
	for _, id := range specIDs {
		spec := s.specs[id]
		if spec == nil {
			continue
		}
		due = due || s.hasEvent(spec)
		if spec.sleeping.len() > 0 {
			next = min(next, spec.sleeping.top().key)
		}
		for _, lane := range spec.awake.entries {
			next = min(next, s.nextDue(lane.value))
		}
	}
	return due || next <= now, next
}

// hasEvent reports whether an instance was made due that no claim has seen.
func (s *memSchedule) hasEvent(spec *memSpec) bool {
	return spec.event > max(s.all.events, spec.seen.events)
}

// nextDue is the first due time in an awake lane that no claim has seen, as a
// key. It looks at what claims have left behind, which is nothing unless they
// reached their limit.
func (s *memSchedule) nextDue(lane *memLane) int64 {
	seen := max(s.all.until, lane.spec.seen.until)
	row := lane.waiting.first(func(row *memEntry[memRow]) bool { return row.key > seen })
	if row == nil {
		return math.MaxInt64
	}
	return row.key
}
