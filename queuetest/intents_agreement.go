package queuetest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

// The part of intents in the agreement of two queues.

// dispatches reports whether both queues do what follows from intents.
func (a *agreement) dispatches() bool {
	for n := range a.sides {
		if a.sides[n].intents == nil || a.sides[n].operator == nil {
			return false
		}
	}
	return true
}

// sortWakeups orders by id what became due at one instant: it is open in which
// order the intents of one instance tell of one cause.
func sortWakeups(item *supervisor.WorkItem) {
	slices.SortStableFunc(item.Wakeups, func(a, b supervisor.Wakeup) int { return strings.Compare(a.ID, b.ID) })
}

func (a *agreement) pins() []supervisor.CapabilityPin {
	first, second := pin(), pin()
	first.ID, second.ID = a.prefix+"c1", a.prefix+"c2"
	return []supervisor.CapabilityPin{first, second}
}

// delay is a time in which nothing has to be looked at: where the clocks differ
// it is not to depend on the pace what is due.
func (a *agreement) delay() time.Duration {
	if a.exact {
		return a.offset()
	}
	return far
}

// intent is a random intent, nil for none.
func (a *agreement) intent() (intent func(*side, *supervisor.WorkItem) supervisor.ActionIntent, text string) {
	if a.rand.IntN(3) == 0 || !a.dispatches() {
		return nil, "none"
	}
	i := supervisor.ActionIntent{
		ID: a.pick("i1", "i2", "i3", "i4", "i5"), Capability: a.pins()[a.rand.IntN(2)],
		Effect:               supervisor.Effect(a.pick("read", "external_write", "external_write", "internal_write")),
		RetryClass:           supervisor.IdempotencyMode(a.pick("none", "native", "reconcile_before_retry", "never_automatic_retry")),
		ResourceScopeID:      a.pick("", "r"),
		RequiresConfirmation: a.rand.IntN(4) == 0,
	}
	var deadline time.Duration
	if a.rand.IntN(4) == 0 {
		deadline = a.offset() - time.Second
	}
	text = fmt.Sprintf("%s of %s, %s, %s, resource %q, confirmation %v, deadline now+%v",
		i.ID, i.Capability.ID, i.Effect, i.RetryClass, i.ResourceScopeID, i.RequiresConfirmation, deadline)
	return func(s *side, item *supervisor.WorkItem) supervisor.ActionIntent {
		made := preparedIntent(item, i.ID)
		made.Capability, made.Effect, made.RetryClass = i.Capability, i.Effect, i.RetryClass
		made.ResourceScopeID, made.RequiresConfirmation = i.ResourceScopeID, i.RequiresConfirmation
		if deadline != 0 {
			made.Deadline = s.now().Add(deadline)
		}
		return made
	}, text
}

// intentCall makes a random call of a dispatcher or an operator.
func (a *agreement) intentCall(tenant, instance string) {
	key := supervisor.IntentKey{TenantID: tenant, InstanceID: instance, IntentID: a.pick("i1", "i2", "i3", "i4", "i5")}
	name := fmt.Sprintf("%s/%s/%s", tenant, instance, key.IntentID)
	by := a.pick("alice", "bob")
	kind := a.rand.IntN(18)
	switch kind {
	case 0:
		a.both("ConfirmIntent "+name+" by "+by, func(_ int, s *side) (any, error) { return nil, s.operator.ConfirmIntent(a.ctx, key, by) })
		return
	case 1:
		a.both("RejectIntent "+name+" by "+by, func(_ int, s *side) (any, error) { return nil, s.operator.RejectIntent(a.ctx, key, by, "no") })
		return
	case 2:
		resolution := supervisor.IntentResolution{
			Kind: supervisor.IntentResolutionKind(a.pick("succeeded", "failed", "repeat")), Attempt: a.rand.IntN(3),
		}
		a.both(fmt.Sprintf("ResolveIntent %s by %s with %+v", name, by, resolution), func(_ int, s *side) (any, error) {
			return nil, s.operator.ResolveIntent(a.ctx, key, by, resolution)
		})
		return
	case 3, 4, 5, 6:
		a.claimIntents()
		return
	}
	if len(a.works) == 0 {
		return
	}
	last := len(a.works) - 1
	a.workCall(kind, a.works[last-min(last, a.rand.IntN(5))])
}

// workCall makes a random call of who holds an intent, or held it once.
func (a *agreement) workCall(kind int, work [2]supervisor.IntentWork) {
	name := fmt.Sprintf("%+v of attempt %d, lease version %d", work[0].Key(), work[0].Attempt, work[0].LeaseVersion)
	switch kind {
	case 7, 8, 9, 10:
		var marked [2]supervisor.IntentWork
		failed := false
		a.both("MarkIntent "+name, func(n int, s *side) (any, error) {
			var err error
			marked[n], err = s.intents.MarkIntent(a.ctx, &work[n])
			failed = failed || err != nil
			return marked[n], err
		})
		if !failed {
			a.works = append(a.works, marked)
		}
	case 11, 12, 13:
		receipt := supervisor.Receipt{Reference: a.pick("x", "x", "x", "y")}
		receipt.Status = supervisor.ProviderStatus(a.pick("", "running", "succeeded", "failed", "retryable", "cancelled", "unknown"))
		if receipt.Status == supervisor.ProviderSucceeded {
			receipt.Output = json.RawMessage(a.pick("1", "1", "2"))
		}
		receipt.After = a.delay()
		a.both(fmt.Sprintf("RecordReceipt %s with %+v", name, receipt), func(n int, s *side) (any, error) {
			return nil, s.intents.RecordReceipt(a.ctx, &work[n], receipt)
		})
	case 14, 15, 16:
		settlement := a.settlement()
		text, _ := json.Marshal(settlement)
		a.both(fmt.Sprintf("SettleIntent %s with %s", name, text), func(n int, s *side) (any, error) {
			return nil, s.intents.SettleIntent(a.ctx, &work[n], settlement)
		})
	case 17:
		if a.rand.IntN(3) == 0 {
			a.both("RenewIntent "+name, func(n int, s *side) (any, error) {
				return nil, s.intents.RenewIntent(a.ctx, work[n].Lease(a.leaseFor()))
			})
			return
		}
		release := supervisor.IntentRelease{
			NotHandedOff: a.rand.IntN(2) == 0, CancelAcknowledged: a.rand.IntN(3) == 0, After: a.delay(),
		}
		a.both(fmt.Sprintf("ReleaseIntent %s with %+v", name, release), func(n int, s *side) (any, error) {
			return nil, s.intents.ReleaseIntent(a.ctx, &work[n], release)
		})
	}
}

func (a *agreement) settlement() supervisor.Settlement {
	s := supervisor.Settlement{
		State: supervisor.ActionState(a.pick("succeeded", "rejected", "retryable", "retryable", "unknown")),
		Cause: supervisor.CauseReported, Proof: supervisor.IntentProof(a.pick("", "not_sent", "reported")),
	}
	switch s.State {
	case supervisor.ActionSucceeded:
		s.Output = json.RawMessage(a.pick("1", "1", "2"))
	case supervisor.ActionRejected:
		s.Outcome, s.Reason = supervisor.IntentOutcome(a.pick("failed", "cancelled")), "a reason"
	case supervisor.ActionRetryable:
		s.Delay = a.offset()
	}
	if a.rand.IntN(4) == 0 {
		s.Diagnostic = &supervisor.Diagnostic{Phase: supervisor.PhaseDispatch, Category: supervisor.CategoryTimeout}
	}
	return s
}

// claimIntents claims all intents that are due.
func (a *agreement) claimIntents() {
	req := supervisor.IntentClaimRequest{
		Capabilities: a.pins(), WorkerID: dispatcher, LeaseDuration: a.leaseFor(), Limit: 100, MarkRepeatable: a.rand.IntN(2) == 0,
	}
	if a.rand.IntN(3) == 0 {
		req.Capabilities = req.Capabilities[:1]
	}
	var claims [2][]supervisor.IntentWork
	a.both(fmt.Sprintf("ClaimIntents of %d capabilities, marking %v", len(req.Capabilities), req.MarkRepeatable), func(n int, s *side) (any, error) {
		works, err := s.intents.ClaimIntents(a.ctx, req)
		// The order across capabilities, and among equal due times, is open.
		slices.SortFunc(works, func(a, b supervisor.IntentWork) int {
			x, y := a.Key(), b.Key()
			return cmp.Or(strings.Compare(x.TenantID, y.TenantID), strings.Compare(x.InstanceID, y.InstanceID), strings.Compare(x.IntentID, y.IntentID))
		})
		claims[n] = works
		if len(works) == 0 {
			return nil, err
		}
		return works, err
	})
	if len(claims[0]) == len(claims[1]) {
		for n := range claims[0] {
			a.works = append(a.works, [2]supervisor.IntentWork{claims[0][n], claims[1][n]})
		}
	}
}

// viewIntents adds the intents of a tenant to a view.
func (a *agreement) viewIntents(s *side, tenant string, view map[string]string) {
	for record, err := range s.operator.ListIntents(a.ctx, supervisor.IntentFilter{TenantID: tenant}) {
		a.unsupported(err)
		if err != nil {
			a.differ("ListIntents", err.Error(), "no error")
			return
		}
		view[fmt.Sprintf("the intent %+v", record.Key())] = a.text(s, record)
	}
}
