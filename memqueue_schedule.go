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
	// by the turn of their first awake lane; a spec may be in both. Turns in it
	// are lower bounds, see memSpec.
	sleeping, awake memHeap[memSpec]
	// wanted is awake for the length of a claim of certain specs.
	wanted memHeap[memSpec]
	// seq counts what was scheduled, turn what was served, claims the claims of
	// certain specs and events what fell due other than by time.
	seq, turn, claims, events uint64
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
	// tenant. A tenant that is served keeps its turns here until they come to
	// the top and turn out to be past: turns only grow, so that what is kept is
	// a lower bound.
	sleeping, awake                        memHeap[memLane]
	sleepingPlace, awakePlace, wantedPlace int32
	lanes                                  int
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
	// waiting orders instances by due time, equal ones by when they were scheduled.
	waiting                                memHeap[memRow]
	sleepingPlace, awakePlace, tenantPlace int32
	// rows counts all instances of the lane, also those that do not wait.
	rows int
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
func (s *memSchedule) put(row *memRow) {
	row.lane.waiting.put(&row.place, row, instantKey(row.due), row.seq)
	s.settle(row.lane)
}

// remove ends the waiting of a row; one that does not wait stays as it is.
func (s *memSchedule) remove(row *memRow) {
	if row.place == 0 {
		return
	}
	row.lane.waiting.remove(&row.place)
	s.settle(row.lane)
}

// settle brings the order of lanes up to date after the first row of one has
// changed, or its tenant was paused or resumed.
func (s *memSchedule) settle(lane *memLane) {
	spec := lane.spec
	if lane.waiting.len() == 0 || lane.tenant.paused {
		s.rest(lane)
		spec.sleeping.remove(&lane.sleepingPlace)
		s.settleSleeping(spec)
		return
	}
	first := lane.waiting.top()
	if lane.awakePlace != 0 {
		lane.tenant.awake.put(&lane.tenantPlace, lane, first.key, first.seq)
		return
	}
	spec.sleeping.put(&lane.sleepingPlace, lane, first.key, first.seq)
	s.settleSleeping(spec)
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
		turn := int64(lane.tenant.served)
		if turn == 0 {
			// Tenants never served come before all others, and among
			// themselves in order of due time.
			turn = first.key>>1 - 1<<62
		}
		spec.awake.put(&lane.awakePlace, lane, turn, first.seq)
	}
	s.settleSleeping(spec)
	if spec.awake.len() > 0 {
		first := spec.awake.top()
		s.awake.put(&spec.awakePlace, spec, first.key, first.seq)
	}
}

// rest takes a lane out of the turns.
func (s *memSchedule) rest(lane *memLane) {
	spec := lane.spec
	spec.awake.remove(&lane.awakePlace)
	lane.tenant.awake.remove(&lane.tenantPlace)
	if spec.awake.len() == 0 {
		s.awake.remove(&spec.awakePlace)
	}
}

// take removes the rows that a claim gets, at most limit, and appends them to rows.
func (s *memSchedule) take(rows []*memRow, specIDs []string, limit int, at time.Time) []*memRow {
	now := instantKey(at)
	seen := memSeen{events: s.events, until: now}
	order := &s.awake
	var wants func(*memEntry[memLane]) bool
	if len(specIDs) == 0 {
		for s.sleeping.len() > 0 && s.sleeping.top().key <= now {
			s.wake(s.sleeping.top().value, now)
		}
		s.all = seen
	} else {
		s.claims++
		order = &s.wanted
		wants = func(lane *memEntry[memLane]) bool { return lane.value.spec.claim == s.claims }
		for _, id := range specIDs {
			spec := s.specs[id]
			if spec == nil || spec.claim == s.claims {
				continue
			}
			spec.claim = s.claims
			spec.seen = seen
			s.wake(spec, now)
			if spec.awake.len() > 0 {
				first := spec.awake.top()
				order.put(&spec.wantedPlace, spec, first.key, first.seq)
			}
		}
	}
	for len(rows) < limit && order.len() > 0 {
		lane := s.next(order, wants)
		if lane == nil {
			continue
		}
		first := lane.waiting.top()
		if first.key > now {
			// What was due here is gone.
			s.rest(lane)
			s.settle(lane)
			continue
		}
		row := first.value
		s.turn++
		lane.tenant.served = s.turn
		s.remove(row)
		rows = append(rows, row)
	}
	for s.wanted.len() > 0 {
		s.wanted.remove(&s.wanted.top().value.wantedPlace)
	}
	return rows
}

// next returns the lane whose turn it is: of the tenant least recently served,
// the wanted lane with the earliest due time. It returns nil where it had to
// correct the order first.
func (s *memSchedule) next(order *memHeap[memSpec], wants func(*memEntry[memLane]) bool) *memLane {
	best := order.top()
	spec := best.value
	if spec.awake.len() == 0 {
		// Only in wanted: what was awake has gone to rest meanwhile.
		order.remove(best.place)
		return nil
	}
	first := spec.awake.top()
	lane := first.value
	if turn := int64(lane.tenant.served); turn > 0 && turn > first.key {
		spec.awake.put(&lane.awakePlace, lane, turn, first.seq)
		first = spec.awake.top()
		order.put(best.place, spec, first.key, first.seq)
		return nil
	}
	if best.key != first.key {
		order.put(best.place, spec, first.key, first.seq)
		return nil
	}
	if wants == nil {
		return lane.tenant.awake.top().value
	}
	return lane.tenant.awake.first(wants).value
}

// news reports whether something of the specs (none: all) has fallen due since
// claims last looked, and otherwise the next due time. Both instants are keys.
func (s *memSchedule) news(specIDs []string, now int64) (due bool, next int64) {
	next = math.MaxInt64
	look := func(spec *memSpec) bool {
		seen := memSeen{events: max(spec.seen.events, s.all.events), until: max(spec.seen.until, s.all.until)}
		if spec.event > seen.events {
			return true
		}
		if spec.sleeping.len() > 0 {
			next = min(next, spec.sleeping.top().key)
		}
		// What was left behind is due already; behind it may be what is not.
		for _, lane := range spec.awake.entries {
			later := lane.value.waiting.first(func(row *memEntry[memRow]) bool { return row.key > seen.until })
			if later != nil {
				next = min(next, later.key)
			}
		}
		return next <= now
	}
	if len(specIDs) > 0 {
		for _, id := range specIDs {
			if spec := s.specs[id]; spec != nil && look(spec) {
				return true, 0
			}
		}
		return false, next
	}
	if s.events > s.all.events {
		for _, spec := range s.specs {
			if look(spec) {
				return true, 0
			}
		}
		return false, next
	}
	if s.sleeping.len() > 0 {
		next = s.sleeping.top().key
	}
	for _, spec := range s.awake.entries {
		if look(spec.value) {
			return true, 0
		}
	}
	return next <= now, next
}
