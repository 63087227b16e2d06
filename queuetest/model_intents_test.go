package queuetest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

// modelIntent is an intent of the model.
type modelIntent struct {
	supervisor.IntentRecord
	sequence int64 // orders equal due times, and what is parked
}

// modelScope is the scope of a limit.
type modelScope struct{ tenant, capability string }

func (m *model) intent(key supervisor.IntentKey) (*modelRow, *modelIntent, error) {
	if err := key.Validate(); err != nil {
		return nil, nil, err
	}
	r, err := m.row(key.TenantID, key.InstanceID)
	if err != nil {
		return nil, nil, err
	}
	i := r.intents[key.IntentID]
	if i == nil {
		return nil, nil, fmt.Errorf("model: intent %q of %q: %w", key.IntentID, key.InstanceID, supervisor.ErrNotFound)
	}
	return r, i, nil
}

func (m *model) newIntent(intent supervisor.ActionIntent, now time.Time) *modelIntent {
	intent = intent.Clone()
	intent.Input = m.stored(cmp.Or(string(intent.Input), "null"))
	i := &modelIntent{IntentRecord: supervisor.NewIntentRecord(intent, now), sequence: m.next()}
	if m.awaitsForEver {
		i.DueAt = time.Time{}
	}
	return i
}

// control is what the control plane says of an intent.
func (m *model) control(r *modelRow, i *supervisor.ActionIntent) supervisor.IntentControl {
	tenant := m.tenant(r.instance.TenantID)
	c := supervisor.IntentControl{
		Epochs:   supervisor.ControlEpochs{Tenant: tenant.epoch, Instance: r.epoch},
		Paused:   tenant.paused || r.paused,
		Finished: r.record.Status == supervisor.StatusCompleted || r.record.Status == supervisor.StatusCancelled,
	}
	if resource := tenant.resources[i.ResourceScopeID]; resource != nil && i.ResourceScopeID != "" && !m.intentResourceIgnored {
		c.Epochs.Resource = resource.epoch
		c.Paused = c.Paused || resource.paused
	}
	return c
}

// free reports whether an intent finds a slot, beside those that are in flight
// and those that count asks for.
func (m *model) free(i *supervisor.ActionIntent, count func(*modelIntent) bool) bool {
	for scope, most := range m.limits {
		limit := supervisor.IntentLimit{TenantID: scope.tenant, CapabilityID: scope.capability}
		if m.tenantLimitIgnored {
			limit.TenantID = ""
		}
		if !limit.Covers(i) {
			continue
		}
		taken := 0
		for _, r := range m.rows {
			for _, other := range r.intents {
				held := other.HoldsSlot() || m.unknownHolds && other.Intent.State == supervisor.ActionUnknown
				if m.limitForgetsInFlight && !other.MarkedAt.After(m.limitsSince[scope]) {
					held = false
				}
				if (held || count(other)) && limit.Covers(&other.Intent) {
					taken++
				}
			}
		}
		if taken >= most {
			return false
		}
	}
	return true
}

func (m *model) slotFree(i *supervisor.ActionIntent) func() bool {
	return func() bool {
		return m.limitIgnored || m.free(i, func(*modelIntent) bool { return false })
	}
}

// letIn unparks as many as there are slots for, beside those that are due.
func (m *model) letIn() {
	now := m.now()
	if m.parkedForEver {
		return
	}
	var parked []*modelIntent
	for _, r := range m.rows {
		for _, i := range r.intents {
			if i.Parked == supervisor.ParkedByLimit {
				parked = append(parked, i)
			}
		}
	}
	slices.SortFunc(parked, func(a, b *modelIntent) int {
		if m.newestIn {
			a, b = b, a
		}
		return cmp.Compare(a.sequence, b.sequence)
	})
	for _, i := range parked {
		if m.free(&i.Intent, func(other *modelIntent) bool {
			return other.Waiting() && other.Intent.State != supervisor.ActionAwaitingConfirmation && other.Parked == supervisor.NotParked &&
				(other.Leased(now) || !other.DueAt.IsZero() && !other.DueAt.After(now))
		}) {
			i.Unpark(now)
			i.sequence = m.next()
		}
	}
}

// backup returns how to undo changes of rows.
func backup(rows ...*modelRow) (undo func()) {
	saved := make([]modelRow, len(rows))
	for n, r := range rows {
		c := *r
		c.pending, c.events = slices.Clone(r.pending), slices.Clone(r.events)
		c.known, c.intents = maps.Clone(r.known), map[string]*modelIntent{}
		for id, i := range r.intents {
			c.intents[id] = &modelIntent{IntentRecord: i.Clone(), sequence: i.sequence}
		}
		saved[n] = c
	}
	return func() {
		for n, r := range rows {
			*r = saved[n]
		}
	}
}

// store writes a changed intent and the wakeup that tells of it.
func (m *model) store(r *modelRow, i *modelIntent, told bool) error {
	i.sequence = m.next()
	if err := m.write(); err != nil {
		return err
	}
	if told && !m.untold {
		return m.tell(r, i)
	}
	return nil
}

func (m *model) tell(r *modelRow, i *modelIntent) error {
	control := m.control(r, &i.Intent)
	if control.Finished && !m.tellsFinished {
		return nil
	}
	w, err := i.Wakeup()
	if err != nil {
		return err
	}
	if m.tellsAgain {
		w.ID += fmt.Sprint(":", m.next())
	}
	now := m.now()
	due := r.record.WakeupDue(&r.instance.Lifecycle, time.Time{}, now)
	r.known[w.ID] = modelKnown{digest: w.Digest()}
	r.pending = append(r.pending, modelWakeup{Wakeup: w, dueAt: now, sequence: m.next()})
	if !due.IsZero() && due.Before(r.dueAt) && !m.tellsSilently {
		m.setDue(r, due)
	}
	return m.write()
}

// byHolder is change for calls of holders: what is not there nobody holds.
func (m *model) byHolder(ctx context.Context, key supervisor.IntentKey, rule func(r *modelRow, i *modelIntent, now time.Time) (told bool, err error)) error {
	err := m.change(ctx, key, rule)
	if errors.Is(err, supervisor.ErrNotFound) {
		return supervisor.ErrLeaseLost
	}
	return err
}

// change applies a rule to an intent in one transaction.
func (m *model) change(ctx context.Context, key supervisor.IntentKey, rule func(r *modelRow, i *modelIntent, now time.Time) (told bool, err error)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	r, i, err := m.intent(key)
	if err != nil {
		return err
	}
	undo := backup(r)
	before := i.Clone()
	told, err := rule(r, i, m.now())
	if err != nil && !errors.Is(err, supervisor.ErrIntentRefused) && !errors.Is(err, supervisor.ErrReceiptConflict) {
		undo()
		return err
	}
	if err != nil && m.refusalForgotten {
		undo()
		return err
	}
	if !told && reflect.DeepEqual(before, i.Clone()) {
		return err
	}
	if failed := m.store(r, i, told); failed != nil {
		if m.wakeupOutside && i.SettledAt.Equal(m.now()) {
			return failed
		}
		undo()
		return failed
	}
	m.letIn()
	m.wakeIntents()
	return err
}

func (m *model) wakeIntents() {
	if !m.intentNeverWakes {
		m.wake()
	}
}

func (m *model) ClaimIntents(ctx context.Context, req supervisor.IntentClaimRequest) ([]supervisor.IntentWork, error) {
	if err := req.Validate(); err != nil && !m.requestUnchecked {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.judged()
	type candidate struct {
		r *modelRow
		i *modelIntent
	}
	due := map[supervisor.CapabilityPin][]candidate{}
	touched := map[*modelRow]bool{}
	for _, r := range m.rows {
		for _, i := range r.intents {
			wanted := len(req.Capabilities) == 0 || slices.ContainsFunc(req.Capabilities, func(pin supervisor.CapabilityPin) bool {
				return pin == i.Intent.Capability || m.pinsByID && pin.ID == i.Intent.Capability.ID
			})
			if wanted && !i.DueAt.IsZero() && !i.DueAt.After(now) || wanted && m.intentLeaseIgnored && i.Leased(now) {
				due[i.Intent.Capability] = append(due[i.Intent.Capability], candidate{r, i})
				touched[r] = true
			}
		}
	}
	undo := backup(slices.Collect(maps.Keys(touched))...)
	for _, list := range due {
		slices.SortFunc(list, func(a, b candidate) int {
			if m.intentsByID {
				return strings.Compare(a.i.Intent.ID, b.i.Intent.ID)
			}
			return cmp.Or(a.i.DueAt.Compare(b.i.DueAt), cmp.Compare(a.i.sequence, b.i.sequence))
		})
	}
	var works []supervisor.IntentWork
	for len(due) > 0 && len(works) < req.Limit {
		pin := slices.MinFunc(slices.Collect(maps.Keys(due)), func(a, b supervisor.CapabilityPin) int {
			if m.capabilityStarves {
				return due[a][0].i.DueAt.Compare(due[b][0].i.DueAt)
			}
			return cmp.Or(cmp.Compare(m.turns[a], m.turns[b]), strings.Compare(fmt.Sprint(a), fmt.Sprint(b)))
		})
		r, i := due[pin][0].r, due[pin][0].i
		if due[pin] = due[pin][1:]; len(due[pin]) == 0 {
			delete(due, pin)
		}
		work, err := m.admit(r, i, &req)
		if err != nil {
			undo()
			return nil, err
		}
		if work != nil {
			m.turns[pin] = m.next()
			works = append(works, *work)
		}
	}
	if !m.limitStays {
		m.letIn()
	}
	return works, nil
}

// admit settles, parks or leases an intent that is due.
func (m *model) admit(r *modelRow, i *modelIntent, req *supervisor.IntentClaimRequest) (*supervisor.IntentWork, error) {
	now := m.judged()
	control := m.control(r, &i.Intent)
	if m.claimIgnoresPause {
		control.Paused = false
	}
	task, told := i.Admit(&control, m.slotFree(&i.Intent), now)
	if task == "" {
		return nil, m.store(r, i, told)
	}
	version := i.LeaseVersion
	i.Acquire(req.WorkerID, req.LeaseDuration, now)
	if m.intentVersionKept && version > 0 {
		i.LeaseVersion = version
	}
	if task == supervisor.IntentTaskDispatch && (req.MarkRepeatable && (i.Repeatable() || m.marksUnrepeatable) || m.marksUnasked) {
		i.MarkNow(now)
	}
	if err := m.store(r, i, false); err != nil {
		return nil, err
	}
	work := &supervisor.IntentWork{IntentRecord: i.IntentRecord, Task: task, ClaimedAt: now}
	if !m.sharesMemory {
		work.IntentRecord = i.Clone()
	}
	return work, nil
}

func (m *model) RenewIntent(ctx context.Context, lease supervisor.IntentLease) error {
	if lease.Duration <= 0 && !m.anyDuration {
		return fmt.Errorf("model: Duration is %v, must be positive", lease.Duration)
	}
	return m.byHolder(ctx, lease.IntentKey, func(_ *modelRow, i *modelIntent, now time.Time) (bool, error) {
		if (lease.Version != i.LeaseVersion || lease.WorkerID != i.LeaseOwner || !i.Leased(now)) && !m.renewsAnyIntent {
			return false, supervisor.ErrLeaseLost
		}
		i.Extend(lease.Duration, now)
		return false, nil
	})
}

func (m *model) MarkIntent(ctx context.Context, work *supervisor.IntentWork) (supervisor.IntentWork, error) {
	var marked supervisor.IntentWork
	err := m.byHolder(ctx, work.Key(), func(r *modelRow, i *modelIntent, now time.Time) (bool, error) {
		control := m.control(r, &i.Intent)
		if m.markIgnoresPause {
			control.Paused = false
		}
		if m.markIgnoresEpochs {
			control.Epochs = i.Intent.ControlEpochs
		}
		if m.markIgnoresDeadline {
			now = time.Time{}
		}
		holder := *work
		if m.markUnfenced {
			holder.LeaseVersion = i.LeaseVersion
		}
		if m.instanceVoids && r.leaseVersion != i.Intent.LeaseEpoch {
			return false, supervisor.ErrLeaseLost
		}
		slotFree := m.slotFree(&i.Intent)
		if m.markIgnoresLimit {
			slotFree = func() bool { return true }
		}
		again := i.Intent.State == supervisor.ActionDispatchCommitted && i.MarkedUnder == holder.LeaseVersion
		told, err := i.Mark(&holder, &control, slotFree, now)
		if again && m.markAgainCounts {
			i.MarkNow(now)
		}
		if m.markIgnoresDeadline && err == nil {
			i.MarkedAt = m.now()
		}
		marked = supervisor.IntentWork{IntentRecord: i.Clone(), Task: work.Task, ClaimedAt: work.ClaimedAt}
		return told, err
	})
	if err != nil {
		return supervisor.IntentWork{}, err
	}
	return marked, nil
}

func (m *model) RecordReceipt(ctx context.Context, work *supervisor.IntentWork, receipt supervisor.Receipt) error {
	return m.change(ctx, work.Key(), func(_ *modelRow, i *modelIntent, now time.Time) (bool, error) {
		before := i.Clone()
		if m.receiptFenced && work.LeaseVersion != i.LeaseVersion {
			return false, supervisor.ErrLeaseLost
		}
		told, err := i.Accept(work, receipt, now)
		switch {
		case m.contradictionTaken && errors.Is(err, supervisor.ErrReceiptConflict):
			i.Receipt = &receipt
			return false, nil
		case m.evidenceDropped && errors.Is(err, supervisor.ErrReceiptConflict):
			i.Evidence = before.Evidence
		case m.receiptAgainWakes && err == nil && reflect.DeepEqual(before, i.Clone()):
			i.DueAt = now
		case m.receiptKeepsLease && err == nil:
			i.LeaseOwner, i.LeaseEndsAt, i.DueAt = before.LeaseOwner, before.LeaseEndsAt, before.DueAt
		case m.lateReceiptIgnored && before.Intent.State == supervisor.ActionUnknown:
			i.IntentRecord = before
			return false, nil
		}
		return told, err
	})
}

func (m *model) SettleIntent(ctx context.Context, work *supervisor.IntentWork, s supervisor.Settlement) error {
	return m.byHolder(ctx, work.Key(), func(_ *modelRow, i *modelIntent, now time.Time) (bool, error) {
		holder, terminal := *work, i.Intent.State.Terminal()
		if m.settleUnfenced && !terminal {
			holder.LeaseVersion = i.LeaseVersion
			i.LeaseEndsAt = now.Add(1)
		}
		if m.proofIgnored {
			s.Proof = cmp.Or(s.Proof, supervisor.ProofReported)
		}
		if m.delayIgnored {
			s.Delay = 0
		}
		if m.lateSuccessLost && !i.CancelRequestedAt.IsZero() && s.State == supervisor.ActionSucceeded {
			s = supervisor.Settlement{State: supervisor.ActionRejected, Outcome: supervisor.OutcomeCancelled, Proof: supervisor.ProofReported, Cause: supervisor.CauseCancelled}
		}
		told, err := i.Settle(&holder, &s, now)
		if terminal && err == nil && m.tellsAgain {
			told = true
		}
		if terminal && m.settleConflictTaken && errors.Is(err, supervisor.ErrReceiptConflict) {
			return false, nil
		}
		return told, err
	})
}

func (m *model) ReleaseIntent(ctx context.Context, work *supervisor.IntentWork, release supervisor.IntentRelease) error {
	return m.byHolder(ctx, work.Key(), func(_ *modelRow, i *modelIntent, now time.Time) (bool, error) {
		if m.markNotTakenBack {
			release.NotHandedOff = false
		}
		if m.cancelForgotten {
			release.CancelAcknowledged = true
		}
		return i.Release(work, &release, now)
	})
}

// cancelIntents is part of the cancellation of an instance.
func (m *model) cancelIntents(r *modelRow, now time.Time) error {
	ids := slices.Sorted(maps.Keys(r.intents))
	for _, id := range ids {
		i := r.intents[id]
		if i.Waiting() && m.cancelLeaves || !i.Waiting() && m.cancelNotAsked {
			continue
		}
		if m.withdrawsAnyway {
			i.Ambiguous = 0
		}
		before := i.Intent.State
		asked := i.CancelRequestedAt
		told := i.RequestCancel(now)
		if before == i.Intent.State && asked.Equal(i.CancelRequestedAt) {
			continue
		}
		if err := m.store(r, i, told); err != nil {
			return err
		}
	}
	m.letIn()
	return nil
}

// resumeIntents is part of Resume.
func (m *model) resumeIntents(scope supervisor.Scope) {
	now := m.now()
	for _, r := range m.rows {
		for _, i := range r.intents {
			if r.instance.TenantID == scope.TenantID && (scope.InstanceID == "" || scope.InstanceID == r.instance.ID) &&
				(scope.ResourceID == "" || scope.ResourceID == i.Intent.ResourceScopeID) && i.Waiting() && !m.pausedForEver {
				i.Unpark(now)
				i.sequence = m.next()
			}
		}
	}
}

func (m *model) WaitIntents(ctx context.Context, capabilities []supervisor.CapabilityPin) error {
	for {
		m.mu.Lock()
		changed, now := m.changed, m.judged()
		var soonest time.Time
		for _, r := range m.rows {
			for _, i := range r.intents {
				wanted := len(capabilities) == 0 || slices.Contains(capabilities, i.Intent.Capability)
				if wanted && !i.DueAt.IsZero() && (soonest.IsZero() || i.DueAt.Before(soonest)) {
					soonest = i.DueAt
				}
			}
		}
		m.mu.Unlock()
		delay := time.Hour
		if !soonest.IsZero() {
			delay = soonest.Sub(now)
			if delay <= 0 {
				return nil
			}
			if m.intentWaitTooLate {
				delay = time.Hour
			}
		}
		timer := time.NewTimer(delay)
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-timer.C:
		case <-changed:
		}
		timer.Stop()
	}
}

func (m *model) ConfirmIntent(ctx context.Context, key supervisor.IntentKey, by string) error {
	return m.change(ctx, key, func(_ *modelRow, i *modelIntent, now time.Time) (bool, error) {
		if m.confirmsAgain && i.Intent.Confirmation != nil {
			i.Intent.Confirmation = &supervisor.Confirmation{By: by, At: now}
		}
		return false, i.Confirm(by, now)
	})
}

func (m *model) RejectIntent(ctx context.Context, key supervisor.IntentKey, by, reason string) error {
	return m.change(ctx, key, func(_ *modelRow, i *modelIntent, now time.Time) (bool, error) {
		return i.Deny(by, reason, now)
	})
}

func (m *model) ResolveIntent(ctx context.Context, key supervisor.IntentKey, by string, resolution supervisor.IntentResolution) error {
	return m.change(ctx, key, func(_ *modelRow, i *modelIntent, now time.Time) (bool, error) {
		told, err := i.Resolve(by, &resolution, now)
		if m.resolvesAgain && errors.Is(err, supervisor.ErrIntentConflict) {
			return false, nil
		}
		return told, err
	})
}

func (m *model) ListIntents(ctx context.Context, filter supervisor.IntentFilter) iter.Seq2[supervisor.IntentRecord, error] {
	return func(yield func(supervisor.IntentRecord, error) bool) {
		if err := ctx.Err(); err != nil {
			yield(supervisor.IntentRecord{}, err)
			return
		}
		if err := filter.Validate(); err != nil {
			yield(supervisor.IntentRecord{}, err)
			return
		}
		if m.intentTenantIgnored {
			filter.TenantID = ""
		}
		m.mu.Lock()
		var list []supervisor.IntentRecord
		for _, r := range m.rows {
			for _, i := range r.intents {
				if filter.Matches(&i.IntentRecord) {
					list = append(list, i.Clone())
				}
			}
		}
		m.mu.Unlock()
		slices.SortFunc(list, func(a, b supervisor.IntentRecord) int {
			if m.intentsUnsorted {
				return strings.Compare(a.Intent.ID, b.Intent.ID)
			}
			return cmp.Or(strings.Compare(a.Intent.TenantID, b.Intent.TenantID),
				strings.Compare(a.Intent.InstanceID, b.Intent.InstanceID), strings.Compare(a.Intent.ID, b.Intent.ID))
		})
		if m.intentsFirstPage && len(list) > 100 {
			list = list[:100]
		}
		for _, i := range list {
			if !yield(i, nil) {
				return
			}
		}
	}
}

func (m *model) LimitIntents(ctx context.Context, limit supervisor.IntentLimit) error {
	if err := limit.Validate(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	scope := modelScope{limit.TenantID, limit.CapabilityID}
	if limit.Max == 0 {
		delete(m.limits, scope)
	} else {
		m.limits[scope], m.limitsSince[scope] = limit.Max, m.now()
	}
	if !m.limitStays {
		m.letIn()
	}
	m.wakeIntents()
	return nil
}

// keepsIntents reports whether the outcome of an intent of a row is still to
// come.
func (m *model) keepsIntents(r *modelRow) bool {
	for _, i := range r.intents {
		marked := i.HoldsSlot() || i.Intent.State == supervisor.ActionUnknown
		if i.InFlight() && !(marked && m.prunesMarked) && !(!marked && m.prunesRepeating) {
			return true
		}
	}
	return false
}
