package supervisor

import (
	"context"
	"slices"
	"time"
)

// memLimitScope names a limit; one of the two may be empty.
type memLimitScope struct{ tenantID, capabilityID string }

// limitScopes are the scopes of the limits that cover a tenant's intents of a
// capability.
func limitScopes(tenantID, capabilityID string) [3]memLimitScope {
	return [...]memLimitScope{{tenantID, capabilityID}, {tenantID: tenantID}, {capabilityID: capabilityID}}
}

// memLimit bounds how many intents of a scope hold a slot.
type memLimit struct {
	max, inUse int
	shares     map[*memIntentLane]*memLimitShare
}

// memLimitShare is the part of one capability in a limit. Intents that were
// granted a free slot keep it from others of their capability, so that nobody
// overtakes them, but not from other capabilities, for which other dispatchers
// may be at work.
//
// Groups wait in a share only while it is full.
type memLimitShare struct {
	limit  *memLimit
	lane   *memIntentLane
	groups int
	// granted counts intents that were unparked for a slot of the limit.
	granted int
	// waiting orders groups by the number of their first parked intent.
	waiting memHeap[memIntentGroup]
}

// cover adds a group to the limit and counts its intents in flight.
func (l *memLimit) cover(group *memIntentGroup) {
	share := l.shares[group.lane]
	if share == nil {
		share = &memLimitShare{limit: l, lane: group.lane}
		if l.shares == nil {
			l.shares = make(map[*memIntentLane]*memLimitShare)
		}
		l.shares[group.lane] = share
	}
	share.groups++
	share.granted += group.granted
	l.inUse += group.inUse
	group.shares = append(group.shares, share)
}

// leave removes one group, which has no intents.
func (s *memLimitShare) leave() {
	if s.groups--; s.groups == 0 {
		delete(s.limit.shares, s.lane)
	}
}

// full reports whether no slot is free that nobody was granted.
func (s *memLimitShare) full() bool { return s.limit.inUse+s.granted >= s.limit.max }

// slotFree reports whether an intent finds a free slot in each of its limits.
func (x *memIntentRow) slotFree() bool {
	own := 0
	if x.granted {
		own = 1
	}
	for _, share := range x.group.shares {
		if share.limit.inUse+share.granted-own >= share.limit.max {
			return false
		}
	}
	return true
}

func (g *memIntentGroup) use(slots int) {
	if slots == 0 {
		return
	}
	g.inUse += slots
	for _, share := range g.shares {
		share.limit.inUse += slots
	}
}

func (g *memIntentGroup) grant(slots int) {
	g.granted += slots
	for _, share := range g.shares {
		share.granted += slots
	}
}

// fullShare returns a share that keeps the group waiting, nil for none.
func (g *memIntentGroup) fullShare() *memLimitShare {
	for _, share := range g.shares {
		if share.full() {
			return share
		}
	}
	return nil
}

// park lets an intent wait for a slot that a full share refused, unpark ends
// that; both also move its group to where its first one belongs.
func (g *memIntentGroup) park(x *memIntentRow) {
	g.parked.put(&x.queuePlace, x, int64(x.queued), 0)
	g.wait(g.waitsIn)
}

func (g *memIntentGroup) unpark(x *memIntentRow) {
	if x.queuePlace != 0 {
		g.parked.remove(&x.queuePlace)
		g.wait(g.waitsIn)
	}
}

// wait lets the group wait in a share, nil for any that is full.
func (g *memIntentGroup) wait(share *memLimitShare) {
	if g.parked.len() == 0 {
		share = nil
	} else if share == nil {
		share = g.fullShare()
	}
	if g.waitsIn != nil && g.waitsIn != share {
		g.waitsIn.waiting.remove(&g.place)
	}
	if g.waitsIn = share; share != nil {
		share.waiting.put(&g.place, g, g.parked.top().key, 0)
	}
}

// offerSlots grants slots that came free in the limits of a group.
func (q *MemoryWorkQueue) offerSlots(group *memIntentGroup, now time.Time) {
	for _, share := range group.shares {
		q.offerLimit(share.limit, now)
	}
}

// offerLimit grants the free slots of a limit to those that have waited longest,
// for each capability as many as are free.
func (q *MemoryWorkQueue) offerLimit(limit *memLimit, now time.Time) {
	for _, share := range limit.shares {
		for share.waiting.len() > 0 && !share.full() {
			q.offerGroup(share.waiting.top().value, now)
		}
	}
}

// offerGroup grants a slot to the first parked intent of a group, or lets the
// group wait in another share that is full.
func (q *MemoryWorkQueue) offerGroup(group *memIntentGroup, now time.Time) {
	if full := group.fullShare(); full != nil {
		group.wait(full)
		return
	}
	x := group.parked.top().value
	x.granted = true
	group.grant(1)
	x.Unpark(now)
	q.fileIntent(x, now)
}

// LimitIntents implements [IntentOperator].
func (q *MemoryWorkQueue) LimitIntents(ctx context.Context, limit IntentLimit) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := limit.Validate(); err != nil {
		return err
	}
	scope := memLimitScope{limit.TenantID, limit.CapabilityID}
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.now()
	stored := q.intents.limits[scope]
	switch {
	case limit.Max == 0 && stored == nil:
	case limit.Max == 0:
		delete(q.intents.limits, scope)
		q.uncover(stored, now)
	case stored == nil:
		if q.intents.limits == nil {
			q.intents.limits = make(map[memLimitScope]*memLimit)
		}
		stored = &memLimit{max: limit.Max}
		q.intents.limits[scope] = stored
		for _, lane := range q.intents.lanes {
			for tenant, group := range lane.groups {
				if slices.Contains(limitScopesOf(tenant.id, lane.pin.ID), scope) {
					stored.cover(group)
				}
			}
		}
	default:
		stored.max = limit.Max
		q.offerLimit(stored, now)
	}
	return nil
}

func limitScopesOf(tenantID, capabilityID string) []memLimitScope {
	scopes := limitScopes(tenantID, capabilityID)
	return scopes[:]
}

// uncover removes a limit from the groups that it covers; those that wait for it
// go on, or wait for another one.
func (q *MemoryWorkQueue) uncover(limit *memLimit, now time.Time) {
	for lane := range limit.shares {
		for _, group := range lane.groups {
			at := slices.IndexFunc(group.shares, func(share *memLimitShare) bool { return share.limit == limit })
			if at < 0 {
				continue
			}
			share := group.shares[at]
			group.shares = slices.Delete(group.shares, at, at+1)
			if group.waitsIn == share {
				group.wait(nil)
			}
			for group.parked.len() > 0 && group.waitsIn == nil {
				q.offerGroup(group, now)
			}
		}
	}
}
