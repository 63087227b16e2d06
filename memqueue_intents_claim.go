package supervisor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"
)

// memIntentStep is how many intents a claim looks at before it lets others have
// the lock: what it settles or parks may be many times what it hands out.
const memIntentStep = 256

// ClaimIntents implements [IntentQueue]. Its cost grows with the number of wanted
// capabilities that have intents, not with that of the intents.
func (q *MemoryWorkQueue) ClaimIntents(ctx context.Context, req IntentClaimRequest) ([]IntentWork, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := req.Validate(); err != nil {
		return nil, err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	claim := memIntentClaim{req: &req}
	lanes := q.intents.due(req.Capabilities, instantKey(q.now()))
	for len(lanes) > 0 {
		for n := 0; n < len(lanes); {
			if len(claim.works) == req.Limit {
				return claim.works, nil
			}
			more, err := q.claimFrom(lanes[n], &claim)
			if err != nil {
				return claim.works, err
			}
			if more {
				n++
			} else {
				lanes = slices.Delete(lanes, n, n+1)
			}
		}
	}
	return claim.works, nil
}

// memIntentClaim is a claim in the making.
type memIntentClaim struct {
	req    *IntentClaimRequest
	works  []IntentWork
	looked int
}

// due returns the wanted lanes that have something due at an instant, given as a
// key, the least recently served first, and notes that they were looked at.
func (s *memIntentSchedule) due(wanted []CapabilityPin, now int64) []*memIntentLane {
	seen := memSeen{events: s.events, until: now}
	s.claims++
	var lanes []*memIntentLane
	add := func(lane *memIntentLane) {
		if first := lane.first(); first != nil && first.key <= now {
			lanes = append(lanes, lane)
		}
	}
	if len(wanted) == 0 {
		s.all = seen
		for _, lane := range s.lanes {
			add(lane)
		}
	}
	for n := range wanted {
		if lane := s.lanes[wanted[n]]; lane != nil && lane.claim != s.claims {
			lane.claim, lane.seen = s.claims, seen
			add(lane)
		}
	}
	slices.SortFunc(lanes, func(a, b *memIntentLane) int {
		if order := cmp.Compare(a.served, b.served); order != 0 {
			return order
		}
		first, second := a.first(), b.first()
		return cmp.Or(cmp.Compare(first.key, second.key), cmp.Compare(first.seq, second.seq))
	})
	return lanes
}

// claimFrom hands out one intent of a lane and carries out what comes before it;
// it reports whether there was one.
func (q *MemoryWorkQueue) claimFrom(lane *memIntentLane, claim *memIntentClaim) (found bool, err error) {
	for {
		if claim.looked++; claim.looked%memIntentStep == 0 {
			q.mu.Unlock()
			q.mu.Lock()
		}
		now := q.now()
		first := lane.first()
		if first == nil || first.key > instantKey(now) {
			return false, nil
		}
		x := first.value
		before := x.IntentRecord
		control := x.row.control(&x.Intent)
		task, told := x.Admit(&control, x.slotFree, now)
		if task == "" {
			if err := q.storeIntent(x, &before, told, nil, now); err != nil {
				return false, err
			}
			continue
		}
		x.Acquire(claim.req.WorkerID, claim.req.LeaseDuration, now)
		if claim.req.MarkRepeatable && task == IntentTaskDispatch && x.Repeatable() {
			x.MarkNow(now)
		}
		q.fileIntent(x, now)
		q.intents.turn++
		lane.served = q.intents.turn
		claim.works = append(claim.works, IntentWork{IntentRecord: x.Clone(), Task: task, ClaimedAt: now})
		return true, nil
	}
}

// RenewIntent implements [IntentQueue].
func (q *MemoryWorkQueue) RenewIntent(ctx context.Context, lease IntentLease) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if lease.Duration <= 0 {
		return fmt.Errorf("supervisor: intent lease: Duration is %v, must be positive", lease.Duration)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.now()
	x := q.intent(&lease.IntentKey)
	if x == nil || x.LeaseVersion != lease.Version || x.LeaseOwner != lease.WorkerID || !x.Leased(now) {
		return intentLost("renewal of", &lease.IntentKey)
	}
	x.Extend(lease.Duration, now)
	q.fileIntent(x, now)
	return nil
}

// MarkIntent implements [IntentQueue].
func (q *MemoryWorkQueue) MarkIntent(ctx context.Context, work *IntentWork) (IntentWork, error) {
	if err := ctx.Err(); err != nil {
		return IntentWork{}, err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	key := work.Key()
	x := q.intent(&key)
	if x == nil {
		return IntentWork{}, intentLost("mark of", &key)
	}
	now := q.now()
	before := x.IntentRecord
	control := x.row.control(&x.Intent)
	told, err := x.Mark(work, &control, x.slotFree, now)
	if err := q.storeIntent(x, &before, told, err, now); err != nil {
		return IntentWork{}, err
	}
	return IntentWork{IntentRecord: x.Clone(), Task: work.Task, ClaimedAt: work.ClaimedAt}, nil
}

// RecordReceipt implements [IntentQueue].
func (q *MemoryWorkQueue) RecordReceipt(ctx context.Context, work *IntentWork, receipt Receipt) error {
	key := work.Key()
	return q.decideIntent(ctx, &key, intentNotFound, func(x *memIntentRow, now time.Time) (told bool, err error) {
		return x.Accept(work, receipt, now)
	})
}

// SettleIntent implements [IntentQueue].
func (q *MemoryWorkQueue) SettleIntent(ctx context.Context, work *IntentWork, settlement Settlement) error {
	key := work.Key()
	absent := func(key *IntentKey) error { return intentLost("settlement of", key) }
	return q.decideIntent(ctx, &key, absent, func(x *memIntentRow, now time.Time) (told bool, err error) {
		return x.Settle(work, &settlement, now)
	})
}

// decideIntent lets a rule decide about an intent and stores what it says; absent
// makes the answer where there is no such intent.
func (q *MemoryWorkQueue) decideIntent(ctx context.Context, key *IntentKey, absent func(*IntentKey) error,
	rule func(*memIntentRow, time.Time) (told bool, err error)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	x := q.intent(key)
	if x == nil {
		return absent(key)
	}
	now := q.now()
	before := x.IntentRecord
	told, err := rule(x, now)
	return q.storeIntent(x, &before, told, err, now)
}

// ReleaseIntent implements [IntentQueue].
func (q *MemoryWorkQueue) ReleaseIntent(ctx context.Context, work *IntentWork, release IntentRelease) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	key := work.Key()
	x := q.intent(&key)
	if x == nil {
		return intentLost("release of", &key)
	}
	now := q.now()
	before := x.IntentRecord
	told, err := x.Release(work, &release, now)
	if err := q.storeIntent(x, &before, told, err, now); err != nil {
		return err
	}
	if x.granted {
		// Who gives it back may do so for long: the slot goes to the next one.
		x.granted = false
		x.group.grant(-1)
		q.offerSlots(x.group, now)
	}
	return nil
}
