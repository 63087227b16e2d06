package pgqueue

import (
	"slices"
	"sync"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

// heldClaims remembers what claims made through this queue have seen, so that a
// commit can be decided without reading its instance again. Forgetting one is
// harmless: its commit reads the instance. That is how claims made elsewhere
// are committed.
type heldClaims struct {
	mu     sync.Mutex
	claims map[instanceKey]*heldClaim
	// sweepAt is the size at which ended claims are looked for next.
	sweepAt int
	// now is the host's clock.
	now func() time.Time
}

type instanceKey struct{ tenantID, instanceID string }

// heldClaim is what decides about a claimed instance. It is never changed; a
// kept claim is another one that shares the identity.
type heldClaim struct {
	*identity
	record       supervisor.Record
	claimedAt    time.Time
	dueAt        time.Time
	wakeupAt     time.Time // the first pending wakeup that the claim does not hold
	leaseVersion int64
	stateVersion int64
	touched      int64
	deliveryHash int64
	epochs       supervisor.ControlEpochs
	// wakeups are the ids that the claim holds.
	wakeups []string
	// forgetAt is when the lease, renewals aside, ended a good while ago. It is
	// on the host's clock and has no bearing on the lease.
	forgetAt time.Time
}

// identity is what never changes about an instance.
type identity struct {
	key    instanceKey
	no     int64
	policy supervisor.LifecyclePolicy
}

// held returns the claim that a row is, as far as decisions need it.
func (r *row) held(claimedAt time.Time, wakeups []supervisor.Wakeup) *heldClaim {
	claim := &heldClaim{
		identity: &identity{
			key:    instanceKey{r.instance.TenantID, r.instance.ID},
			no:     r.no,
			policy: r.instance.Lifecycle,
		},
		record:       r.record,
		claimedAt:    claimedAt,
		dueAt:        r.dueAt,
		wakeupAt:     r.wakeupAt,
		leaseVersion: r.leaseVersion,
		stateVersion: r.stateVersion,
		touched:      r.touched,
		deliveryHash: r.deliveryHash,
		epochs:       r.epochs,
	}
	if len(wakeups) > 0 {
		claim.wakeups = make([]string, len(wakeups))
		for n := range wakeups {
			claim.wakeups[n] = wakeups[n].ID
		}
	}
	return claim
}

// sweepFrom is the least number of claims at which ended ones are looked for.
const sweepFrom = 1024

// remember adds a claim.
func (h *heldClaims) remember(claim *heldClaim, lease time.Duration) {
	now := h.now()
	claim.forgetAt = now.Add(2*lease + time.Minute)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.claims == nil {
		h.claims, h.sweepAt = make(map[instanceKey]*heldClaim), sweepFrom
	}
	h.claims[claim.key] = claim
	if len(h.claims) < h.sweepAt {
		return
	}
	for key, claim := range h.claims {
		if claim.forgetAt.Before(now) {
			delete(h.claims, key)
		}
	}
	h.sweepAt = max(sweepFrom, 2*len(h.claims))
}

// get returns the claim under a lease version, nil where it is not known.
func (h *heldClaims) get(tenantID, instanceID string, version int64) *heldClaim {
	h.mu.Lock()
	defer h.mu.Unlock()
	claim := h.claims[instanceKey{tenantID, instanceID}]
	if claim == nil || claim.leaseVersion != version {
		return nil
	}
	return claim
}

// forget drops the claim under a lease version.
func (h *heldClaims) forget(key instanceKey, version int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if claim := h.claims[key]; claim != nil && claim.leaseVersion == version {
		delete(h.claims, key)
	}
}

// fits reports whether a command for an item can be decided from the claim: the
// item is what was claimed, and nothing has to be looked up.
func (c *heldClaim) fits(item *supervisor.WorkItem, command *supervisor.TransitionCommand) bool {
	if c.stateVersion != item.StateVersion || c.epochs.Tenant != item.ControlEpochs.Tenant ||
		c.epochs.Instance != item.ControlEpochs.Instance || len(command.ActionIntents) > 0 ||
		c.deliveryHash == hashKey(command.DeliveryKey) {
		return false
	}
	for _, id := range command.ConsumedWakeups {
		if !slices.Contains(c.wakeups, id) {
			return false
		}
	}
	return true
}
