package pgqueue

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"sort"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

// ClaimDue implements [supervisor.WorkQueue]. It takes one round trip, and one
// more for each time that tenants with little due work leave room.
func (q *Queue) ClaimDue(ctx context.Context, req supervisor.ClaimRequest) ([]supervisor.WorkItem, error) {
	if err := q.ready(ctx); err != nil {
		return nil, err
	}
	if err := req.Validate(); err != nil {
		return nil, err
	}
	q.watchSnapshots()
	seen := q.waits.claiming()
	result, err := q.claim(ctx, &req, false)
	for n := 0; err == nil && result.inbox; n++ {
		if err = q.countInbox(ctx); err == nil {
			result, err = q.claim(ctx, &req, n == inboxRounds)
		}
	}
	if err != nil {
		return nil, q.wrap(ctx, "claim", err)
	}
	q.waits.claimed(req.SpecIDs, seen, result.at)
	q.claimed.Store(int32(len(result.claimed)))
	for _, special := range result.special {
		claimed, err := q.claimOne(ctx, &req, special)
		if err != nil {
			// What was claimed before is served.
			return result.items(), q.wrap(ctx, "claim", err)
		}
		if claimed != nil {
			result.add(special.place, claimed)
		}
	}
	for n := range result.broken {
		q.setAside(ctx, result.broken[n])
	}
	return result.items(), nil
}

// inboxRounds bounds how often a claim counts deliveries before it takes what
// is there.
const inboxRounds = 3

// claimResult is what the database answered to a claim.
type claimResult struct {
	claimed []supervisor.WorkItem
	places  []int64 // of claimed, among the turns
	special []placedNumber
	broken  []*brokenRowError
	// at is the instant of the claim.
	at time.Time
	// inbox: nothing was claimed, deliveries have to be counted first.
	inbox bool

	// row is the one that is being read. Whatever is kept of it is copied.
	row *row
	// room is for how many items memory is taken when the first comes.
	room int
}

// placedNumber is an instance that has to be claimed by the library's rules.
type placedNumber struct {
	place, no int64
}

func (r *claimResult) add(place int64, item *supervisor.WorkItem) {
	if r.claimed == nil {
		r.claimed, r.places = make([]supervisor.WorkItem, 0, r.room), make([]int64, 0, r.room)
	}
	r.claimed, r.places = append(r.claimed, *item), append(r.places, place)
}

// items returns what was claimed in order of the turns.
func (r *claimResult) items() []supervisor.WorkItem {
	if !slices.IsSorted(r.places) {
		sort.Sort((*byPlace)(r))
	}
	return r.claimed
}

// byPlace sorts what was claimed.
type byPlace claimResult

func (r *byPlace) Len() int           { return len(r.places) }
func (r *byPlace) Less(a, b int) bool { return r.places[a] < r.places[b] }
func (r *byPlace) Swap(a, b int) {
	r.places[a], r.places[b] = r.places[b], r.places[a]
	r.claimed[a], r.claimed[b] = r.claimed[b], r.claimed[a]
}

func (q *Queue) claim(ctx context.Context, req *supervisor.ClaimRequest, leaveInbox bool) (result claimResult, err error) {
	result.room = min(req.Limit, 1+int(q.claimed.Load()))
	a := q.store.newArgs()
	defer q.store.free(a)
	a.texts(req.SpecIDs)
	a.text(req.WorkerID)
	a.int8(leaseMicros(req.LeaseDuration))
	a.int4(min(req.Limit, math.MaxInt32))
	a.bool(leaveInbox)
	err = q.store.do(ctx, q.own, q.store.statements.claim, a, func(c *cells) error { return q.scanClaim(c, req, &result) })
	return result, err
}

// columns of sqlClaim: those that loads have, too, then those of the claim.
const claimColumns, sharedColumns = 47, 40

func (q *Queue) scanClaim(c *cells, req *supervisor.ClaimRequest, result *claimResult) error {
	if len(c.values) != claimColumns {
		return errBadRow
	}
	last := cells{values: c.values[sharedColumns:]}
	place, special, claimedAt := last.int8(), last.bool(), last.instant()
	if c.values[0] == nil {
		result.at, result.inbox = claimedAt, claimedAt.IsZero()
		return nil
	}
	if special {
		result.special = append(result.special, placedNumber{place: place, no: c.int8()})
		return nil
	}
	if result.row == nil {
		result.row = new(row)
	}
	r := result.row
	*r = row{}
	broken := r.scanClaimed(c)
	wakeups, err := scanWakeups(&last)
	if broken == nil {
		broken = err
	}
	c.bad = c.bad || last.bad
	if broken != nil {
		result.broken = append(result.broken, &brokenRowError{row: r, cause: broken})
		result.row = nil
		return nil //nolint:nilerr // The row is set aside; it fails nothing else.
	}
	item := r.item(claimedAt, wakeups)
	result.add(place, &item)
	q.held.remember(r.held(claimedAt, wakeups), req.LeaseDuration)
	return nil
}

// scanWakeups reads the four columns of wakeups into memory of their own.
func scanWakeups(c *cells) (wakeups []supervisor.Wakeup, broken error) {
	count := c.elements(func(_ int, id []byte) { wakeups = append(wakeups, supervisor.Wakeup{ID: string(id)}) })
	sameCount := func(got int) {
		if got != count {
			c.bad = true
		}
	}
	sameCount(c.elements(func(n int, kind []byte) {
		if n < count {
			wakeups[n].Kind = string(kind)
		}
	}))
	sameCount(c.elements(func(n int, branch []byte) {
		if n < count {
			wakeups[n].BranchID = string(branch)
		}
	}))
	sameCount(c.elements(func(n int, payload []byte) {
		if n >= count || payload == nil {
			return
		}
		wakeups[n].Payload = append(json.RawMessage(nil), payload...)
		if err := checkJSON("payload", wakeups[n].Payload); err != nil && broken == nil {
			broken = fmt.Errorf("wakeup %q: %w", shorten(wakeups[n].ID), err)
		}
	}))
	return wakeups, broken
}

// claimOne claims an instance that has a lifecycle timer to raise, where it is
// still to be had.
func (q *Queue) claimOne(ctx context.Context, req *supervisor.ClaimRequest, special placedNumber) (claimed *supervisor.WorkItem, err error) {
	var got *row
	var wakeups []supervisor.Wakeup
	err = q.store.transact(ctx, q.own, func(tx *transaction) error {
		got = nil
		r, err := q.load(ctx, tx, special.no, "", "")
		if err != nil || r == nil || !r.claimable() {
			return err
		}
		wakeups, err = q.acquire(ctx, tx, r, req.WorkerID, req.LeaseDuration)
		if err != nil {
			return err
		}
		got = r
		return nil
	})
	if err != nil || got == nil {
		return nil, err
	}
	item := got.item(got.now, wakeups)
	q.held.remember(got.held(got.now, wakeups), req.LeaseDuration)
	return &item, nil
}

// claimable reports whether a locked row may be claimed now.
func (r *row) claimable() bool {
	return r.record.Status == supervisor.StatusActive && r.pausedBy() == nil &&
		!r.dueAt.After(r.now) && !r.leaseEndsAt.After(r.now)
}

// acquire leases a locked row within a transaction, by the rules that SQL does
// not know: lifecycle timers that have passed are raised first. It brings the
// row up to date and returns the wakeups of the claim.
func (q *Queue) acquire(ctx context.Context, tx *transaction, r *row, worker string, lease time.Duration) ([]supervisor.Wakeup, error) {
	record, raised, cancel := r.instance.Lifecycle.RaiseTimers(r.record, r.now)
	r.record = record
	if cancel {
		r.epochs.Instance++
	}
	for n := range raised {
		wakeup := &raised[n].Wakeup
		q.addWakeup(tx, r.no, wakeup, wakeup.Digest(), raised[n].DueAt, nil)
		r.pending++
	}
	if cancel {
		if _, err := q.cancelIntents(ctx, tx, r); err != nil {
			return nil, err
		}
	}
	r.leaseVersion++
	r.leaseEndsAt = r.now.Add(time.Duration(leaseMicros(lease)) * time.Microsecond)
	r.leaseOwner = worker
	r.leaseEpoch, r.leaseTenantEpoch = r.epochs.Instance, r.epochs.Tenant
	r.releaseReason = ""
	r.wakeupAt = time.Time{}
	var wakeups []supervisor.Wakeup
	if r.pending > 0 {
		a := q.store.newArgs()
		defer q.store.free(a)
		a.int8(r.no)
		a.instant(r.now)
		var broken error
		tx.add(sqlWakeups, a, func(c *cells) error {
			wakeups, broken = scanWakeups(c)
			r.wakeupAt = c.instant()
			return nil
		})
		if err := tx.send(ctx); err != nil {
			return nil, err
		}
		if broken != nil {
			return nil, &brokenRowError{row: r, cause: broken}
		}
	}
	q.put(tx, r)
	r.touched++
	return wakeups, nil
}

// leaseMicros is the length of a lease for SQL: at least one microsecond, at
// most what no calendar overflows by.
func leaseMicros(lease time.Duration) int64 {
	const most = 100 * 365 * 24 * time.Hour
	return max(1, min(lease, most).Microseconds())
}

// setAsideDelay is how long a row that cannot be decoded is left alone.
const setAsideDelay = 5 * time.Minute

const sqlSetAside = `
UPDATE {{schema}}.run SET
    lease_ends_at = NULL,
    due_at = greatest(due_at, clock_timestamp() + $3::bigint * interval '1 microsecond'),
    set_aside_until = clock_timestamp() + $3::bigint * interval '1 microsecond',
    set_aside_reason = $4,
    touched = touched + 1
WHERE instance_no = $1 AND lease_version = $2`

// setAside puts a claimed row that cannot be decoded off and records why. Where
// that fails its lease runs out, and the next claim finds it again.
func (q *Queue) setAside(ctx context.Context, broken *brokenRowError) {
	a := q.store.newArgs()
	defer q.store.free(a)
	a.int8(broken.row.no)
	a.int8(broken.row.leaseVersion)
	a.int8(setAsideDelay.Microseconds())
	a.text(broken.cause.Error())
	_ = q.store.do(ctx, q.own, q.store.statements.setAside, a, nil)
}
