package queuetest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

// model is a second implementation of a queue, simple and slow: every call
// looks at every row under one lock. It shares the pure rules with the other
// queues and nothing else, and carries the switches that break it on purpose.
type model struct {
	// skew is what the store's clock is ahead of the host's.
	skew time.Duration
	broken

	mu        modelLock
	tenants   map[string]*modelTenant
	rows      map[modelKey]*modelRow
	revisions map[string]supervisor.Revision
	denied    map[string]bool
	limits    map[modelScope]int
	// limitsSince is when each limit was set.
	limitsSince map[modelScope]time.Time
	turns       map[supervisor.CapabilityPin]int64 // when each was served
	sequence    int64                              // orders servings, arrivals and equal due times
	changed     chan struct{}                      // closed and replaced when something may be due
	hostShift   time.Duration
	failAt      int // the write that fails; 0: none
	writes      int
}

// modelLock is a mutex on which goroutines of a bubble wait durably. A broken
// queue that waits for itself goes on after an hour, so that its bubble can end.
type modelLock chan struct{}

func (l modelLock) Lock() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	select {
	case l <- struct{}{}:
	case <-timer.C:
	}
}

func (l modelLock) Unlock() {
	select {
	case <-l:
	default:
	}
}

type modelKey struct{ tenant, id string }

type modelTenant struct {
	epoch, resourceEpoch int64
	paused               bool
	served               int64
	resources            map[string]*modelResource
}

type modelResource struct {
	epoch  int64
	paused bool
}

type modelRow struct {
	instance      supervisor.Instance
	record        supervisor.Record
	state         json.RawMessage
	stateVersion  int64
	dueAt         time.Time
	dueSequence   int64
	leaseVersion  int64
	leaseEnd      time.Time
	leaseOwner    string
	claimed       supervisor.ControlEpochs
	epoch         int64
	paused        bool
	pending       []modelWakeup
	known         map[string]modelKnown
	key, digest   string
	keyFrom       int64 // the state version that the key was stored from
	keptVersion   int64 // the lease version of the item that the latest command kept
	events        []supervisor.Event
	intents       map[string]*modelIntent
	lastError     string
	failureClass  supervisor.FailureClass
	releaseReason string
	setAside      time.Time
	corrupt       bool
}

type modelWakeup struct {
	supervisor.Wakeup
	dueAt    time.Time
	sequence int64
	claim    int64 // the lease version that contained it
}

type modelKnown struct {
	digest     string
	consumedAt time.Time
}

func newModel(b broken) *model {
	m := &model{broken: b, mu: make(modelLock, 1)}
	m.reset()
	return m
}

func (m *model) reset() {
	m.tenants = map[string]*modelTenant{}
	m.rows = map[modelKey]*modelRow{}
	m.revisions = map[string]supervisor.Revision{}
	m.denied = map[string]bool{}
	m.limits, m.limitsSince = map[modelScope]int{}, map[modelScope]time.Time{}
	m.turns = map[supervisor.CapabilityPin]int64{}
	m.changed = make(chan struct{})
}

// now is the store's clock.
func (m *model) now() time.Time { return time.Now().Add(m.skew).UTC() }

// judged is the clock by which due times and lease ends are judged.
func (m *model) judged() time.Time {
	if m.hostClock {
		return time.Now().Add(m.hostShift).UTC()
	}
	return m.now()
}

func (m *model) next() int64 {
	m.sequence++
	return m.sequence
}

// write counts a write of a transaction and fails the armed one.
func (m *model) write() error {
	m.writes++
	if m.failAt > 0 && m.writes == m.failAt {
		return fmt.Errorf("model: write %d failed: %w", m.writes, supervisor.ErrUnavailable)
	}
	return nil
}

func (m *model) tenant(id string) *modelTenant {
	t := m.tenants[id]
	if t == nil {
		t = &modelTenant{resources: map[string]*modelResource{}}
		m.tenants[id] = t
	}
	return t
}

func (m *model) key(tenant, id string) modelKey {
	if m.tenantIgnored {
		tenant = ""
	}
	if m.idsFolded {
		id = strings.ToLower(id)
	}
	return modelKey{tenant, id}
}

// row finds an instance.
func (m *model) row(tenant, id string) (*modelRow, error) {
	r := m.rows[m.key(tenant, id)]
	if r == nil {
		return nil, fmt.Errorf("model: instance %q of tenant %q: %w", id, tenant, supervisor.ErrNotFound)
	}
	return r, nil
}

// wake lets all waiters look again.
func (m *model) wake() {
	if m.neverWakes {
		return
	}
	close(m.changed)
	m.changed = make(chan struct{})
}

func (m *model) setDue(r *modelRow, at time.Time) {
	r.dueAt, r.dueSequence = at, m.next()
}

// setDueAgain is setDue where an instant that has passed means now.
func (m *model) setDueAgain(r *modelRow, at, now time.Time) {
	if !at.IsZero() && at.Before(now) {
		at = now
	}
	m.setDue(r, at)
}

func (m *model) isPaused(r *modelRow) bool {
	return !m.pauseIgnored && (m.tenant(r.instance.TenantID).paused || r.paused)
}

// due reports whether a row may be claimed at now.
func (m *model) due(r *modelRow, now time.Time) bool {
	if r.dueAt.IsZero() || r.dueAt.After(now) || r.setAside.After(now) {
		return false
	}
	if m.lapsedStays && !r.leaseEnd.IsZero() {
		return false
	}
	return (m.leaseIgnored || !r.leaseEnd.After(now)) && !m.isPaused(r)
}

func (m *model) ClaimDue(ctx context.Context, req supervisor.ClaimRequest) ([]supervisor.WorkItem, error) {
	if err := req.Validate(); err != nil && !m.requestUnchecked {
		return nil, err
	}
	if m.specsSorted {
		slices.Sort(req.SpecIDs)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.judged()
	byTenant := map[string][]*modelRow{}
	for _, r := range m.rows {
		wanted := len(req.SpecIDs) == 0 || slices.Contains(req.SpecIDs, r.instance.SpecID) || m.specsIgnored
		if wanted && m.due(r, now) {
			if r.corrupt {
				r.setAside = now.Add(time.Minute)
				if m.brokenRowFailsAll {
					return nil, fmt.Errorf("model: cannot decode %q", r.instance.ID)
				}
				continue
			}
			byTenant[r.instance.TenantID] = append(byTenant[r.instance.TenantID], r)
		}
	}
	for _, rows := range byTenant {
		slices.SortFunc(rows, func(a, b *modelRow) int {
			if m.orderByID {
				return strings.Compare(a.instance.ID, b.instance.ID)
			}
			return cmp.Or(a.dueAt.Compare(b.dueAt), cmp.Compare(a.dueSequence, b.dueSequence))
		})
	}
	limit := req.Limit
	if m.beyondLimit {
		limit++
	}
	if len(byTenant) > 0 {
		if err := m.write(); err != nil {
			return nil, err
		}
	}
	var items []supervisor.WorkItem
	for len(byTenant) > 0 && len(items) < limit {
		order := slices.SortedFunc(maps.Keys(byTenant), func(a, b string) int {
			if m.unfair {
				return byTenant[a][0].dueAt.Compare(byTenant[b][0].dueAt)
			}
			return cmp.Or(cmp.Compare(m.tenant(a).served, m.tenant(b).served), cmp.Compare(a, b))
		})
		tenant := order[0]
		r := byTenant[tenant][0]
		if byTenant[tenant] = byTenant[tenant][1:]; len(byTenant[tenant]) == 0 {
			delete(byTenant, tenant)
		}
		if !m.turnsForgotten {
			m.tenant(tenant).served = m.next()
		}
		items = append(items, m.acquire(r, req.WorkerID, req.LeaseDuration))
	}
	if m.overLease {
		for _, rows := range byTenant {
			r := rows[0]
			m.acquire(r, req.WorkerID, req.LeaseDuration)
		}
	}
	return items, nil
}

// acquire leases a row and captures its item.
func (m *model) acquire(r *modelRow, owner string, duration time.Duration) supervisor.WorkItem {
	now := m.now()
	record, raised, cancel := r.instance.Lifecycle.RaiseTimers(r.record, now)
	if m.raisesTwice {
		record.Raised = 0
	}
	if m.timersIgnored {
		record, raised, cancel = r.record, nil, false
	}
	r.record = record
	for _, w := range raised {
		r.pending = append(r.pending, modelWakeup{Wakeup: w.Wakeup, dueAt: w.DueAt, sequence: m.next()})
	}
	if cancel {
		r.epoch++
		_ = m.cancelIntents(r, now)
	}
	if !m.versionKept {
		r.leaseVersion++
	}
	r.leaseEnd, r.leaseOwner = now.Add(duration), owner
	if !m.reasonStays {
		r.releaseReason = ""
	}
	tenant := m.tenant(r.instance.TenantID)
	r.claimed = supervisor.ControlEpochs{Tenant: tenant.epoch, Instance: r.epoch, Resource: tenant.resourceEpoch}
	if m.attemptOnClaim {
		r.record.Attempt++
	}
	item := supervisor.WorkItem{
		Instance: r.instance, ScheduledAt: r.dueAt, CreatedAt: r.record.CreatedAt, ClaimedAt: now,
		State: r.state, StateVersion: r.stateVersion, ControlEpochs: r.claimed,
		CancelRequested: r.record.CancelRequested, LeaseVersion: r.leaseVersion, Attempt: r.record.Attempt,
		Wakeups: m.capture(r),
	}
	if m.sharesMemory {
		return item
	}
	return item.Clone()
}

// capture marks and returns the wakeups that a claim holds.
func (m *model) capture(r *modelRow) []supervisor.Wakeup {
	now := m.judged()
	slices.SortFunc(r.pending, func(a, b modelWakeup) int {
		if m.newestFirst {
			a, b = b, a
		}
		return cmp.Or(a.dueAt.Compare(b.dueAt), cmp.Compare(a.sequence, b.sequence))
	})
	preferred := []string{"action", "child", "gate", "timer"}
	var chosen []int
	size := 0
	for pass := range 2 {
		for n := range r.pending {
			w := &r.pending[n]
			first := slices.Contains(preferred, w.Kind) && !m.kindsIgnored
			if w.dueAt.After(now) && !m.earlyWakeups || first != (pass == 0) {
				continue
			}
			if !m.wakeupsUnbounded && (len(chosen) >= supervisor.MaxClaimWakeups || size+len(w.Payload) > supervisor.MaxClaimWakeupBytes) {
				break
			}
			size += len(w.Payload)
			chosen = append(chosen, n)
		}
	}
	slices.Sort(chosen)
	var wakeups []supervisor.Wakeup
	for _, n := range chosen {
		r.pending[n].claim = r.leaseVersion
		wakeups = append(wakeups, r.pending[n].Wakeup)
	}
	return wakeups
}

func (m *model) LoadRevision(_ context.Context, item *supervisor.WorkItem) (*supervisor.Revision, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	revision, ok := m.revisions[m.revisionKey(item.TenantID, item.DefinitionID, item.WorkflowRevision)]
	if !ok || (revision.ContentDigest != item.WorkflowRevisionDigest && !m.revisionDigestIgnored) {
		return nil, fmt.Errorf("model: %w", supervisor.ErrRevisionUnavailable)
	}
	if !m.sharesMemory {
		revision = cloneRevision(&revision)
	}
	return &revision, nil
}

func (m *model) revisionKey(tenant, definition string, revision uint64) string {
	if m.revisionTenantIgnored {
		tenant = ""
	}
	return fmt.Sprintf("%q %q %d", tenant, definition, revision)
}

func cloneRevision(r *supervisor.Revision) supervisor.Revision {
	c := *r
	c.Spec = bytes.Clone(r.Spec)
	c.Capabilities = slices.Clone(r.Capabilities)
	c.ExpressionVersions = maps.Clone(r.ExpressionVersions)
	return c
}

func (m *model) AdmitEvaluation(_ context.Context, item *supervisor.WorkItem) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.denied[item.TenantID] {
		if m.wrongDenial {
			return supervisor.ErrUnavailable
		}
		return fmt.Errorf("model: tenant %q: %w", item.TenantID, supervisor.ErrNotAdmitted)
	}
	return nil
}

func (m *model) Renew(ctx context.Context, lease supervisor.Lease) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if lease.Duration <= 0 && !m.anyDuration {
		return fmt.Errorf("model: Duration is %v, must be positive", lease.Duration)
	}
	r := m.rows[m.key(lease.TenantID, lease.InstanceID)]
	if m.renewsAnyTenant && r == nil {
		for key, other := range m.rows {
			if key.id == lease.InstanceID {
				r = other
			}
		}
	}
	if m.zeroRowsFine && r == nil {
		return nil
	}
	now := m.judged()
	if r == nil || r.leaseEnd.IsZero() || (!r.leaseEnd.After(now) && !m.revives) {
		return fmt.Errorf("model: renew %q: %w", lease.InstanceID, supervisor.ErrLeaseLost)
	}
	holder := lease.Version == r.leaseVersion && (lease.WorkerID == r.leaseOwner || m.anyWorker)
	if m.nameAsFence {
		holder = lease.WorkerID == r.leaseOwner
	}
	if !holder {
		return fmt.Errorf("model: renew %q under version %d: %w", lease.InstanceID, lease.Version, supervisor.ErrLeaseLost)
	}
	if !m.renewEpochIgnored && (r.claimed.Tenant != m.tenant(r.instance.TenantID).epoch || r.claimed.Instance != r.epoch) {
		return fmt.Errorf("model: renew %q: %w", lease.InstanceID, supervisor.ErrEpochStale)
	}
	if m.renewFromEnd {
		now = r.leaseEnd
	}
	if !m.renewIsNothing {
		r.leaseEnd = now.Add(lease.Duration)
	}
	return nil
}

func (m *model) CommitCommand(ctx context.Context, item *supervisor.WorkItem, command *supervisor.TransitionCommand) error {
	_, err := m.commit(ctx, item, command, 0)
	return err
}

func (m *model) CommitAndKeep(ctx context.Context, item *supervisor.WorkItem, command *supervisor.TransitionCommand, lease time.Duration) (*supervisor.WorkItem, error) {
	return m.commit(ctx, item, command, lease)
}

func (m *model) commit(ctx context.Context, item *supervisor.WorkItem, command *supervisor.TransitionCommand, keep time.Duration) (*supervisor.WorkItem, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := command.ValidateContent(item); err != nil && !m.contentUnchecked {
		return nil, fmt.Errorf("%w: %w", supervisor.ErrCommandRejected, err)
	}
	r, err := m.row(item.TenantID, item.ID)
	if err != nil {
		return nil, err
	}
	if repeat, err := m.repeated(r, item, command); err != nil || repeat {
		if err == nil && keep > 0 && r.keptVersion == r.leaseVersion && r.leaseEnd.After(m.now()) {
			next := m.recapture(r)
			return &next, nil
		}
		return nil, err
	}
	if err := m.fence(r, item, command); err != nil {
		return nil, err
	}
	saved := *r
	saved.pending, saved.events = slices.Clone(r.pending), slices.Clone(r.events)
	saved.known, saved.intents = maps.Clone(r.known), maps.Clone(r.intents)
	next, err := m.apply(r, item, command, keep)
	if err != nil {
		if !m.notAtomic && !(m.notAtomicOnFault && errors.Is(err, supervisor.ErrUnavailable)) {
			*r = saved
		}
		return nil, err
	}
	m.wake()
	return next, nil
}

// repeated compares the latest delivery key.
func (m *model) repeated(r *modelRow, item *supervisor.WorkItem, command *supervisor.TransitionCommand) (bool, error) {
	known := r.key == command.DeliveryKey
	if m.keysFolded {
		known = strings.EqualFold(r.key, command.DeliveryKey)
	}
	if !known || m.keysIgnored {
		return false, nil
	}
	if m.keyAfterFence && item.LeaseVersion != r.leaseVersion {
		return false, nil
	}
	if (r.digest == command.DeliveryDigest || m.digestIgnored) && (r.keyFrom == item.StateVersion || m.keyVersionIgnored) {
		return true, nil
	}
	if m.plainConflict {
		return false, fmt.Errorf("model: %w", supervisor.ErrDeliveryConflict)
	}
	return false, &supervisor.DeliveryConflictError{Key: r.key, StoredDigest: r.digest, Digest: command.DeliveryDigest}
}

// fence checks the versions and epochs in their order.
func (m *model) fence(r *modelRow, item *supervisor.WorkItem, command *supervisor.TransitionCommand) error {
	checks := []func() error{
		func() error {
			stale := item.LeaseVersion != r.leaseVersion
			if m.nameAsFence {
				stale = r.leaseOwner != worker
			}
			if m.lapsedRefused && !r.leaseEnd.After(m.judged()) {
				stale = true
			}
			if stale && !m.noFence {
				return supervisor.ErrLeaseLost
			}
			return nil
		},
		func() error {
			if (item.StateVersion != r.stateVersion && !m.noCompare) || r.record.Status != supervisor.StatusActive {
				return supervisor.ErrStateConflict
			}
			return nil
		},
		func() error {
			tenant := m.tenant(r.instance.TenantID)
			for _, intent := range command.ActionIntents {
				if _, known := r.intents[intent.ID]; known && m.epochsLast {
					return supervisor.ErrCommandRejected
				}
			}
			if !m.epochIgnored && (item.ControlEpochs.Tenant != tenant.epoch && !m.tenantEpochIgnored || item.ControlEpochs.Instance != r.epoch) {
				return supervisor.ErrEpochStale
			}
			for n := range command.ActionIntents {
				intent := &command.ActionIntents[n]
				resource := tenant.resources[intent.ResourceScopeID]
				if resource != nil && resource.epoch > intent.ControlEpochs.Resource && !m.resourceEpochIgnored &&
					(resource.paused || !m.resourceEpochPaused) {
					return supervisor.ErrEpochStale
				}
			}
			return nil
		},
	}
	if m.epochsFirst {
		slices.Reverse(checks)
	}
	for _, check := range checks {
		if err := check(); err != nil {
			return fmt.Errorf("model: commit of %q: %w", item.ID, err)
		}
	}
	return nil
}

// apply writes a command that passed all checks but those of its intents.
func (m *model) apply(r *modelRow, item *supervisor.WorkItem, command *supervisor.TransitionCommand, keep time.Duration) (*supervisor.WorkItem, error) {
	now := m.now()
	if err := m.write(); err != nil {
		return nil, err
	}
	r.state = m.stored(command.NextState)
	if m.failedKeepsState {
		if _, failed := command.Disposition.(supervisor.Failed); failed {
			r.state = item.State
		}
	}
	r.stateVersion++
	for _, id := range command.ConsumedWakeups {
		r.pending = slices.DeleteFunc(r.pending, func(w modelWakeup) bool { return w.ID == id && !m.neverConsumes })
		if known, ok := r.known[id]; ok {
			known.consumedAt = now
			r.known[id] = known
			if m.forgetsConsumed {
				delete(r.known, id)
			}
		}
	}
	if _, failed := command.Disposition.(supervisor.Failed); failed && m.failureConsumes {
		r.pending = slices.DeleteFunc(r.pending, func(w modelWakeup) bool { return w.claim == item.LeaseVersion })
	}
	if err := m.write(); err != nil {
		return nil, err
	}
	for _, intent := range command.ActionIntents {
		if r.record.RefusesIntents() && !m.intentsAfterExpiry {
			return nil, fmt.Errorf("model: intents after expiry: %w", supervisor.ErrCommandRejected)
		}
		if _, known := r.intents[intent.ID]; known && !m.intentsRepeat {
			return nil, fmt.Errorf("model: intent %q is known: %w", intent.ID, supervisor.ErrCommandRejected)
		}
		if !m.intentsDropped {
			r.intents[intent.ID] = m.newIntent(intent, now)
		}
		if err := m.write(); err != nil {
			return nil, err
		}
	}
	r.events = append(r.events, supervisor.Event{
		TenantID: item.TenantID, InstanceID: item.ID, Type: command.EventType, Digest: command.EventDigest,
		DeliveryKey: command.DeliveryKey, WorkerID: r.leaseOwner, StateVersion: r.stateVersion,
		LeaseVersion: item.LeaseVersion, Payload: m.stored(cmp.Or(string(command.EventPayload), "null")), At: now,
	})
	if err := m.write(); err != nil {
		return nil, err
	}
	r.key, r.digest, r.keyFrom = command.DeliveryKey, command.DeliveryDigest, item.StateVersion
	m.settle(r, item, command, now)
	r.leaseEnd, r.keptVersion, r.releaseReason = time.Time{}, 0, ""
	if m.commitKeepsLease {
		r.leaseEnd = now.Add(time.Hour)
	}
	if keep > 0 && (m.due(r, now) || m.keepsAlways) {
		next := m.acquire(r, r.leaseOwner, keep)
		if m.keepStale {
			next.Wakeups = item.Wakeups
		}
		r.keptVersion = r.leaseVersion
		if m.keepForgotten {
			r.keptVersion = 0
		}
		if m.keepWithoutLease {
			r.leaseEnd = time.Time{}
		}
		return &next, nil
	}
	return nil, nil
}

// settle applies counters, lifecycle and disposition.
func (m *model) settle(r *modelRow, item *supervisor.WorkItem, command *supervisor.TransitionCommand, now time.Time) {
	before := r.record
	var at time.Time
	r.record, at = r.record.AfterCommit(&r.instance.Lifecycle, item, command, now)
	failed, isFailure := command.Disposition.(supervisor.Failed)
	if !m.errorStays {
		r.lastError, r.failureClass = "", ""
	}
	if isFailure {
		r.lastError, r.failureClass = failed.Reason, supervisor.FailureClassOf(command)
		if m.attemptNotCounted {
			r.record.Attempt = before.Attempt
		}
		if m.countsFailures {
			r.record.Counters = r.record.Counters.Add(command.Outcome)
			if r.instance.Lifecycle.Completion.Met(r.record.Counters) {
				r.record.Status, r.record.FinishedAt = supervisor.StatusCompleted, now
			}
		}
		if m.retryFloorIgnored {
			r.record.RetryAt = time.Time{}
		}
	} else if m.attemptKept {
		r.record.Attempt = before.Attempt
	}
	if m.cancelOverwritten && before.CancelRequested && r.record.Status != supervisor.StatusActive {
		r.record.Status = supervisor.StatusCompleted
	}
	if m.delayFromClaim && at.After(now) {
		at = at.Add(-time.Hour)
	}
	var wakeupAt time.Time
	for _, w := range r.pending {
		if w.claim == item.LeaseVersion && !m.claimedWakeupsPull {
			continue
		}
		if (wakeupAt.IsZero() || w.dueAt.Before(wakeupAt)) && !m.lateWakeupLost {
			wakeupAt = w.dueAt
		}
	}
	m.setDueAgain(r, r.record.NextDue(&r.instance.Lifecycle, at, wakeupAt), now)
	if m.failedStaysDue && r.record.Status == supervisor.StatusFailed {
		m.setDue(r, now)
	}
	if m.againKeepsPlace && r.dueAt.Equal(now) {
		r.dueAt = item.ScheduledAt
	}
}

// stored is what the store makes of JSON.
func (m *model) stored(raw any) json.RawMessage {
	text := fmt.Sprintf("%s", raw)
	switch {
	case m.jsonThroughFloat:
		var value any
		if json.Unmarshal([]byte(text), &value) == nil {
			encoded, _ := json.Marshal(value)
			return encoded
		}
	case m.jsonCompacted:
		var buffer bytes.Buffer
		if json.Compact(&buffer, []byte(text)) == nil {
			return buffer.Bytes()
		}
	}
	return json.RawMessage(text)
}

// recapture makes the kept item again.
func (m *model) recapture(r *modelRow) supervisor.WorkItem {
	item := supervisor.WorkItem{
		Instance: r.instance, ScheduledAt: r.dueAt, CreatedAt: r.record.CreatedAt, ClaimedAt: m.now(),
		State: r.state, StateVersion: r.stateVersion, ControlEpochs: r.claimed,
		CancelRequested: r.record.CancelRequested, LeaseVersion: r.leaseVersion, Attempt: r.record.Attempt,
	}
	tenant := m.tenant(r.instance.TenantID)
	if !m.keepEpochsStay {
		item.ControlEpochs.Resource = tenant.resourceEpoch
	}
	if m.keepEpochsMove {
		item.ControlEpochs.Tenant, item.ControlEpochs.Instance = tenant.epoch, r.epoch
	}
	for _, w := range r.pending {
		if w.claim == r.leaseVersion {
			item.Wakeups = append(item.Wakeups, w.Wakeup)
		}
	}
	return item.Clone()
}

func (m *model) Release(_ context.Context, item *supervisor.WorkItem, reason string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, err := m.row(item.TenantID, item.ID)
	if err != nil || ((item.LeaseVersion != r.leaseVersion || r.leaseEnd.IsZero() && !m.releasesAfterCommit) && !m.releasesAny) {
		return fmt.Errorf("model: release of %q: %w", item.ID, supervisor.ErrLeaseLost)
	}
	if m.releaseChecksEpochs && item.ControlEpochs.Instance != r.epoch {
		return supervisor.ErrEpochStale
	}
	if !m.releaseKeepsVersion {
		r.leaseVersion++
	}
	if m.releaseBurnsAttempt {
		r.record.Attempt++
	}
	if m.releaseDelays {
		m.setDue(r, m.now().Add(time.Hour))
	}
	r.leaseEnd, r.releaseReason = time.Time{}, reason
	m.wake()
	return nil
}

func (m *model) WaitDue(ctx context.Context, specIDs []string) error {
	m.mu.Lock()
	since := m.changed
	m.mu.Unlock()
	for {
		m.mu.Lock()
		changed, now := m.changed, m.judged()
		var soonest time.Time
		due := false
		for _, r := range m.rows {
			if len(specIDs) > 0 && !slices.Contains(specIDs, r.instance.SpecID) || r.dueAt.IsZero() || m.isPaused(r) || r.setAside.After(now) {
				continue
			}
			at := r.dueAt
			if r.leaseEnd.After(at) && !m.waitForgetsLeases {
				at = r.leaseEnd
			} else if m.waitForgetsLeases && !r.leaseEnd.IsZero() {
				continue
			}
			due = due || !at.After(now)
			if at.After(now) && (soonest.IsZero() || at.Before(soonest)) {
				soonest = at
			}
		}
		m.mu.Unlock()
		if m.lostWakeup && changed == since {
			due = false
		}
		if due || m.spins {
			return nil
		}
		timer := time.NewTimer(time.Hour)
		if !soonest.IsZero() {
			delay := soonest.Sub(now)
			if m.waitTooLate {
				delay = time.Hour
			}
			timer.Reset(delay)
		}
		select {
		case <-ctx.Done():
			timer.Stop()
			if m.waitSwallowsContext {
				return nil
			}
			return ctx.Err()
		case <-timer.C:
		case <-changed:
		}
		timer.Stop()
	}
}
