package queuetest

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"iter"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

// The client side of the model.

func (m *model) Start(ctx context.Context, instance supervisor.Instance, dueAt time.Time) (bool, error) {
	if err := instance.Validate(); err != nil && !m.startUnchecked {
		return false, err
	}
	if err := m.checkDue(dueAt); err != nil {
		return false, err
	}
	if err := ctx.Err(); err != nil {
		return false, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	key := m.key(instance.TenantID, instance.ID)
	if m.rows[key] != nil && !m.startReplaces {
		return m.startSaysTrue, nil
	}
	if err := m.write(); err != nil {
		return false, err
	}
	now := m.now()
	if !m.sharesArguments {
		instance.Config = m.stored(cmp.Or(string(instance.Config), "null"))
		instance.CapabilityPins = slices.Clone(instance.CapabilityPins)
	}
	if m.textTrimmed {
		instance.SubjectID = strings.TrimSpace(instance.SubjectID)
		instance.WorkflowRevisionDigest = strings.TrimSpace(instance.WorkflowRevisionDigest)
	}
	r := &modelRow{
		instance: instance, record: supervisor.NewRecord(now), state: instance.Config,
		known: map[string]modelKnown{}, intents: map[string]*modelIntent{},
	}
	if dueAt.IsZero() {
		dueAt = now
	}
	at := r.record.NextDue(&instance.Lifecycle, dueAt, time.Time{})
	if m.startsAtIgnored {
		at = dueAt
	}
	m.setDue(r, at)
	m.rows[key] = r
	m.wake()
	return true, nil
}

func (m *model) checkDue(dueAt time.Time) error {
	if year := dueAt.UTC().Year(); (year < 1 || year > 9999) && !m.anyYear {
		return fmt.Errorf("model: dueAt is in the year %d, outside 1 to 9999", year)
	}
	return nil
}

func (m *model) Deliver(_ context.Context, tenantID, instanceID string, wakeup supervisor.Wakeup, dueAt time.Time) error {
	if err := wakeup.Validate(); err != nil && !m.wakeupUnchecked {
		return err
	}
	if err := m.checkDue(dueAt); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	r, err := m.row(tenantID, instanceID)
	if err != nil {
		return err
	}
	if known, ok := r.known[wakeup.ID]; ok {
		if known.digest == wakeup.Digest() || m.deliverIgnoresContent {
			return nil
		}
		return &supervisor.DeliveryConflictError{Key: wakeup.ID, StoredDigest: known.digest, Digest: wakeup.Digest()}
	}
	if (r.record.Status == supervisor.StatusCompleted || r.record.Status == supervisor.StatusCancelled) && !m.deliversToFinished {
		return fmt.Errorf("model: deliver to %q: %w", instanceID, supervisor.ErrFinished)
	}
	if err := m.write(); err != nil {
		return err
	}
	now := m.now()
	due := r.record.WakeupDue(&r.instance.Lifecycle, dueAt, now)
	if dueAt.IsZero() {
		dueAt = now
	}
	if !m.sharesArguments {
		wakeup.Payload = m.stored(cmp.Or(string(wakeup.Payload), "null"))
	}
	r.known[wakeup.ID] = modelKnown{digest: wakeup.Digest()}
	if m.failedForgetsWakeups && r.record.Status == supervisor.StatusFailed {
		return nil
	}
	r.pending = append(r.pending, modelWakeup{Wakeup: wakeup, dueAt: dueAt, sequence: m.next()})
	switch {
	case m.failedWoken && r.record.Status == supervisor.StatusFailed:
		r.record.Status = supervisor.StatusActive
		m.setDue(r, now)
	case due.IsZero() || m.wakeupPullsNothing:
	case m.wakeupPushesBack, due.Before(r.dueAt):
		m.setDue(r, due)
	}
	m.wake()
	return nil
}

func (m *model) Cancel(_ context.Context, tenantID, instanceID string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, err := m.row(tenantID, instanceID)
	if err != nil {
		return err
	}
	now := m.now()
	next, changed := r.record.AfterCancel(now)
	if m.cancelsFinished && r.record.Status == supervisor.StatusCompleted {
		next.Status, changed = supervisor.StatusCancelled, true
	}
	if !changed && !m.cancelAgainRaises {
		return nil
	}
	if err := m.write(); err != nil {
		return err
	}
	undo := backup(r)
	r.record = next
	if !m.cancelKeepsEpoch {
		r.epoch++
	}
	if err := m.cancelIntents(r, now); err != nil {
		undo()
		return err
	}
	switch {
	case r.record.Status != supervisor.StatusActive:
		m.setDue(r, time.Time{})
	case !m.cancelWaits && r.dueAt.After(now):
		m.setDue(r, now)
	}
	m.wake()
	return nil
}

func (m *model) resource(scope supervisor.Scope) *modelResource {
	resources := m.tenant(scope.TenantID).resources
	if resources[scope.ResourceID] == nil {
		resources[scope.ResourceID] = &modelResource{}
	}
	return resources[scope.ResourceID]
}

func (m *model) Pause(_ context.Context, scope supervisor.Scope) error {
	return m.setPaused(scope, true)
}

func (m *model) Resume(_ context.Context, scope supervisor.Scope) error {
	return m.setPaused(scope, false)
}

func (m *model) setPaused(scope supervisor.Scope, pause bool) error {
	if err := scope.Validate(); err != nil && !m.scopeUnchecked {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	tenant := m.tenant(scope.TenantID)
	raises := pause
	var resumed bool
	switch {
	case scope.ResourceID != "":
		resource := m.resource(scope)
		resumed = resource.paused && !pause
		if pause && !resource.paused || pause && m.pauseAgainRaises {
			tenant.resourceEpoch++
			resource.epoch = tenant.resourceEpoch
		}
		resource.paused = pause
		if m.resourceStopsTenant {
			tenant.paused = pause
		}
	case scope.InstanceID != "":
		r, err := m.row(scope.TenantID, scope.InstanceID)
		if err != nil {
			return err
		}
		if (raises && !r.paused) || (raises && m.pauseAgainRaises) || (!pause && m.resumeRaises) {
			r.epoch++
		}
		resumed = r.paused && !pause
		r.paused = pause
		if !pause {
			m.liftFloor(r)
		}
	default:
		if (raises && !tenant.paused) || (raises && m.pauseAgainRaises) || (!pause && m.resumeRaises) {
			tenant.epoch++
		}
		resumed = tenant.paused && !pause
		tenant.paused = pause
		if !pause {
			for _, r := range m.rows {
				if m.resumeTenantLifts && r.instance.TenantID == scope.TenantID {
					m.liftFloor(r)
				}
				if m.resumeLiftsAll && r.instance.TenantID == scope.TenantID {
					r.paused = false
				}
			}
		}
	}
	if resumed {
		m.resumeIntents(scope)
	}
	m.wake()
	return nil
}

// liftFloor lets pending wakeups of an instance that backs off come before its
// retry time.
func (m *model) liftFloor(r *modelRow) {
	next, lifted := r.record.AfterResume()
	if !lifted {
		return
	}
	r.record = next
	var first time.Time
	for _, w := range r.pending {
		if first.IsZero() || w.dueAt.Before(first) {
			first = w.dueAt
		}
	}
	due, now := r.record.NextDue(&r.instance.Lifecycle, r.dueAt, first), m.now()
	if due.Before(r.dueAt) && now.Before(r.dueAt) {
		m.setDueAgain(r, due, now)
	}
	if m.resumeRetries {
		m.setDue(r, m.now())
	}
}

func (m *model) Retry(_ context.Context, tenantID, instanceID string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, err := m.row(tenantID, instanceID)
	if err != nil {
		return err
	}
	attempt := r.record.Attempt
	next, ok := r.record.AfterRetry()
	if !ok {
		if m.retriesAnything {
			m.setDue(r, m.now())
			return nil
		}
		return fmt.Errorf("model: retry of %q: %w", instanceID, supervisor.ErrStateConflict)
	}
	if err := m.write(); err != nil {
		return err
	}
	r.record = next
	if m.retryKeepsAttempt {
		r.record.Attempt = attempt
	}
	if m.retryFromStart {
		r.state = r.instance.Config
	}
	if now := m.now(); r.dueAt.IsZero() || r.dueAt.After(now) {
		m.setDue(r, now)
	}
	m.wake()
	return nil
}

func (m *model) PublishRevision(_ context.Context, tenantID string, revision *supervisor.Revision) error {
	if err := revision.Validate(); err != nil && !m.revisionUnchecked {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	key := m.revisionKey(tenantID, revision.DefinitionID, revision.Revision)
	if stored, ok := m.revisions[key]; ok && !m.revisionReplaced {
		if !reflect.DeepEqual(stored, *revision) {
			return fmt.Errorf("model: revision %s: %w", key, supervisor.ErrStateConflict)
		}
		return nil
	}
	m.revisions[key] = cloneRevision(revision)
	return nil
}

func (m *model) Get(_ context.Context, tenantID, instanceID string) (supervisor.Snapshot, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, err := m.row(tenantID, instanceID)
	if err != nil {
		return supervisor.Snapshot{}, err
	}
	return m.snapshot(r), nil
}

func (m *model) snapshot(r *modelRow) supervisor.Snapshot {
	tenant := m.tenant(r.instance.TenantID)
	s := supervisor.Snapshot{
		Instance: r.instance, State: bytes.Clone(r.state), StateVersion: r.stateVersion, LeaseVersion: r.leaseVersion,
		Status: r.record.Status, CreatedAt: r.record.CreatedAt, NextDueAt: r.dueAt, FinishedAt: r.record.FinishedAt,
		LastError: r.lastError, Attempt: r.record.Attempt, PendingWakeups: len(r.pending),
		CancelRequested: r.record.CancelRequested,
		ControlEpochs:   supervisor.ControlEpochs{Tenant: tenant.epoch, Instance: r.epoch, Resource: tenant.resourceEpoch},
	}
	s.Config, s.CapabilityPins = bytes.Clone(s.Config), slices.Clone(s.CapabilityPins)
	if m.sharesMemory {
		s.State, s.Config = r.state, r.instance.Config
	}
	if r.leaseEnd.After(m.now()) || m.showsEndedLease {
		s.LeaseOwner, s.LeaseEndsAt = r.leaseOwner, r.leaseEnd
	}
	switch {
	case tenant.paused && !(m.pausedByNarrowest && r.paused):
		s.PausedBy = &supervisor.Scope{TenantID: r.instance.TenantID}
	case r.paused:
		s.PausedBy = &supervisor.Scope{TenantID: r.instance.TenantID, InstanceID: r.instance.ID}
	}
	return s
}

func (m *model) List(ctx context.Context, filter supervisor.Filter) iter.Seq2[supervisor.Snapshot, error] {
	return func(yield func(supervisor.Snapshot, error) bool) {
		if err := ctx.Err(); err != nil {
			yield(supervisor.Snapshot{}, err)
			return
		}
		m.mu.Lock()
		var list []supervisor.Snapshot
		for _, r := range m.rows {
			s := m.snapshot(r)
			if (filter.TenantID == "" || filter.TenantID == s.TenantID || m.listIgnoresTenant) &&
				(filter.SpecID == "" || filter.SpecID == s.SpecID) &&
				(filter.Status == "" || filter.Status == s.Status || m.listIgnoresStatus) &&
				(filter.DueBefore.IsZero() || s.Status == supervisor.StatusActive && s.NextDueAt.Before(filter.DueBefore)) {
				list = append(list, s)
			}
		}
		m.mu.Unlock()
		slices.SortFunc(list, func(a, b supervisor.Snapshot) int {
			if m.listUnstable {
				return a.CreatedAt.Compare(b.CreatedAt)
			}
			return cmp.Or(strings.Compare(a.TenantID, b.TenantID), strings.Compare(a.ID, b.ID))
		})
		if m.listFirstPageOnly && len(list) > 100 {
			list = list[:100]
		}
		if m.listHoldsLock {
			m.mu.Lock()
			defer m.mu.Unlock()
		}
		for n, s := range list {
			if !yield(s, nil) || m.pageRepeats && n%100 == 99 && !yield(s, nil) {
				return
			}
		}
	}
}

func (m *model) History(ctx context.Context, tenantID, instanceID string) iter.Seq2[supervisor.Event, error] {
	return func(yield func(supervisor.Event, error) bool) {
		if err := ctx.Err(); err != nil {
			yield(supervisor.Event{}, err)
			return
		}
		m.mu.Lock()
		r, err := m.row(tenantID, instanceID)
		if err != nil {
			m.mu.Unlock()
			if !m.historyOfUnknownEmpty {
				yield(supervisor.Event{}, err)
			}
			return
		}
		events := slices.Clone(r.events)
		m.mu.Unlock()
		if m.historyNewestFirst {
			slices.Reverse(events)
		}
		for _, event := range events {
			event.Payload = bytes.Clone(event.Payload)
			if !yield(event, nil) {
				return
			}
		}
	}
}

func (m *model) Explain(_ context.Context, tenantID, instanceID string) (supervisor.Explanation, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, err := m.row(tenantID, instanceID)
	if err != nil {
		return supervisor.Explanation{}, err
	}
	facts := supervisor.ExplainFacts{
		Snapshot: m.snapshot(r), Now: m.now(), SetAsideUntil: r.setAside, SetAsideReason: "the row cannot be decoded",
		FailureClass: r.failureClass, ReleaseReason: r.releaseReason,
	}
	if m.explainForgetsClass {
		facts.FailureClass = ""
	}
	if m.explainForgetsRelease {
		facts.ReleaseReason = ""
	}
	return supervisor.Explain(&facts), nil
}

func (m *model) Prune(_ context.Context, before time.Time) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	removed := 0
	for key, r := range m.rows {
		finished := !r.record.FinishedAt.IsZero() && r.record.FinishedAt.Before(before)
		if m.prunesActive && r.record.CreatedAt.Before(before) || m.prunesLate && !r.record.FinishedAt.IsZero() {
			finished = true
		}
		if m.prunesNotFailed && r.record.Status == supervisor.StatusFailed {
			finished = false
		}
		if finished && !m.keepsIntents(r) {
			removed++
			delete(m.rows, key)
			continue
		}
		if m.prunesActiveEvents && !r.record.FinishedAt.IsZero() {
			continue
		}
		last := len(r.events) - 1
		events := r.events[:0]
		for n, event := range r.events {
			if n == last && !m.prunesLatestEvent || !event.At.Before(before) || m.prunesNoEvents {
				events = append(events, event)
			}
		}
		r.events = events
		for id, known := range r.known {
			if known.consumedAt.IsZero() || !known.consumedAt.Before(before) {
				continue
			}
			if m.prunesFreshIDs || m.now().Sub(known.consumedAt) >= supervisor.WakeupMemory {
				delete(r.known, id)
			}
		}
	}
	return removed, nil
}

// corruptRow is the hook Queue.Corrupt.
func (m *model) corruptRow(_ context.Context, tenantID, instanceID string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, err := m.row(tenantID, instanceID)
	if err == nil {
		r.corrupt = true
	}
	return err
}

// readIntents is the hook Queue.Intents.
func (m *model) readIntents(_ context.Context, tenantID, instanceID string) ([]supervisor.ActionIntent, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, err := m.row(tenantID, instanceID)
	if err != nil {
		return nil, err
	}
	var list []supervisor.ActionIntent
	for _, i := range r.intents {
		list = append(list, i.Intent.Clone())
	}
	return list, nil
}

// failWrite is the hook Queue.FailWrite.
func (m *model) failWrite(n int) func() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failAt, m.writes = n, 0
	return func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.failAt = 0
		return m.writes >= n
	}
}

// queue is the model with all its hooks.
func (m *model) queue() Queue {
	return Queue{
		WorkQueue: m,
		FailWrite: m.failWrite,
		ShiftHost: func(d time.Duration) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.hostShift = d
		},
		Corrupt: m.corruptRow,
		Intents: m.readIntents,
		Deny: func(tenantID string) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.denied[tenantID] = true
		},
	}
}
