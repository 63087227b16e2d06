package sqlitequeue

import (
	"encoding/json"
	"strings"

	"github.com/workflow-supervisor/supervisor"
)

// instanceID names an instance from outside.
type instanceID struct{ tenant, id string }

// row is an instance's row in the table of records. Its parts are written
// together, so that a change writes no more columns, and touches no more
// indexes, than it has to.
type row struct {
	key, tenant, lane int64
	// version counts the changes of the row; see transaction.store.
	version int64
	schedule
	progress
	lease
	holder
	standing
	// state is what is to be stored as the small state with the next change: nil
	// for no change, NULL where it points at nil.
	state *json.RawMessage
}

// inlineState bounds a state that is stored in the row: large ones would have
// to be copied with every change of the rest.
const inlineState = 512

// schedule is what the indexes for claims are made of.
type schedule struct {
	readyAt, reapAt instant
}

// progress changes with every commit.
type progress struct {
	dueAt          instant
	stateVersion   int64
	deliveryHash   int64
	lastProgressAt instant
}

// lease changes with every acquisition. While endsAt is not never, nothing has
// been committed or given back under the lease version, also when the lease has
// ended.
type lease struct {
	leaseVersion  int64
	endsAt        instant
	kept          bool
	tenantEpoch   int64
	instanceEpoch int64
	claimedAt     instant
}

type holder struct {
	workerID string
}

// standing is what most claims and commits leave as it is.
type standing struct {
	status          int64
	createdAt       instant
	finishedAt      instant
	cancelRequested bool
	paused          bool
	epoch           int64
	attempt         int64
	retryAt         instant
	counters        supervisor.Counters
	lastEventAt     instant
	raised          supervisor.Raised
	// wakeups counts those that are pending.
	wakeups       int64
	setAsideUntil instant
	// beside: the instance has a row in the table of texts.
	beside bool
}

// Statuses as they are stored.
const (
	statusActive int64 = iota
	statusCompleted
	statusFailed
	statusCancelled
)

var statuses = [...]supervisor.Status{
	statusActive:    supervisor.StatusActive,
	statusCompleted: supervisor.StatusCompleted,
	statusFailed:    supervisor.StatusFailed,
	statusCancelled: supervisor.StatusCancelled,
}

func statusOf(status supervisor.Status) int64 {
	for stored, known := range statuses {
		if known == status {
			return int64(stored)
		}
	}
	return -1
}

// record is the part of the row that the library's rules work on.
func (r *row) record() supervisor.Record {
	return supervisor.Record{
		Status:          statuses[r.status],
		CreatedAt:       r.createdAt.time(),
		FinishedAt:      r.finishedAt.time(),
		CancelRequested: r.cancelRequested,
		Attempt:         int(r.attempt),
		RetryAt:         r.retryAt.time(),
		Counters:        r.counters,
		LastEventAt:     r.lastEventAt.time(),
		LastProgressAt:  r.lastProgressAt.time(),
		Raised:          r.raised,
	}
}

func (r *row) setRecord(record *supervisor.Record) {
	r.status = statusOf(record.Status)
	r.finishedAt = instantOf(record.FinishedAt)
	r.cancelRequested = record.CancelRequested
	r.attempt = int64(record.Attempt)
	r.retryAt = instantOf(record.RetryAt)
	r.counters = record.Counters
	r.lastEventAt = instantOf(record.LastEventAt)
	r.lastProgressAt = instantOf(record.LastProgressAt)
	r.raised = record.Raised
}

func (r *row) active() bool { return r.status == statusActive }

// held reports whether the lease version has a holder, whose lease may have ended.
func (r *row) held() bool { return r.endsAt != never }

// leased reports whether the holder's lease lasts.
func (r *row) leased(now instant) bool { return r.held() && r.endsAt > now }

// endLease takes the lease version from its holder.
func (r *row) endLease() {
	r.endsAt, r.claimedAt, r.kept = never, never, false
}

// place sets when the row may be claimed. Everything that bears on it calls it
// afterwards: status, lease, pause, due time. A reap_at that still is before
// the end of the lease stays, so that renewals leave the index alone.
func (r *row) place(now instant) {
	reapAt := r.reapAt
	r.readyAt, r.reapAt = never, never
	switch {
	case !r.active():
		r.dueAt = never
	case r.leased(now):
		r.reapAt = earlier(reapAt, r.endsAt)
	case !r.paused:
		r.readyAt = r.dueAt
		if r.setAsideUntil != never {
			r.readyAt = max(r.dueAt, r.setAsideUntil)
		}
	}
}

const recordColumns = `r.key, r.tenant, r.lane, r.version, r.ready_at, r.reap_at,
	r.due_at, r.state_version, r.delivery_hash, r.last_progress_at,
	r.lease_version, r.lease_ends_at, r.lease_kept, r.lease_tenant_epoch, r.lease_instance_epoch, r.claimed_at,
	r.worker_id,
	r.status, r.created_at, r.finished_at, r.cancel_requested, r.paused, r.instance_epoch, r.attempt, r.retry_at,
	r.triggered, r.matched, r.succeeded, r.action_terminal, r.last_event_at, r.raised, r.wakeups, r.set_aside_until, r.beside`

// recordWidth is the number of recordColumns.
const recordWidth = 34

func (r *row) scan(rows *rows) {
	*r = row{
		key: rows.int(0), tenant: rows.int(1), lane: rows.int(2), version: rows.int(3),
		schedule: schedule{readyAt: rows.instant(4), reapAt: rows.instant(5)},
		progress: progress{
			dueAt: rows.instant(6), stateVersion: rows.int(7), deliveryHash: rows.int(8), lastProgressAt: rows.instant(9),
		},
		lease: lease{
			leaseVersion: rows.int(10), endsAt: rows.instant(11), kept: rows.int(12) != 0,
			tenantEpoch: rows.int(13), instanceEpoch: rows.int(14), claimedAt: rows.instant(15),
		},
		holder: holder{workerID: rows.string(16)},
		standing: standing{
			status: rows.int(17), createdAt: rows.instant(18), finishedAt: rows.instant(19),
			cancelRequested: rows.int(20) != 0, paused: rows.int(21) != 0, epoch: rows.int(22),
			attempt: rows.int(23), retryAt: rows.instant(24),
			counters: supervisor.Counters{
				Triggered: rows.int(25), Matched: rows.int(26), Succeeded: rows.int(27), ActionTerminal: rows.int(28),
			},
			lastEventAt: rows.instant(29), raised: supervisor.Raised(rows.int(30)), wakeups: rows.int(31),
			setAsideUntil: rows.instant(32), beside: rows.int(33) != 0,
		},
	}
	if r.status < 0 || int(r.status) >= len(statuses) {
		rows.unexpected(17, "a status")
	}
}

// The parts of a row as bits, and the columns of each.
const (
	partSchedule = 1 << iota
	partProgress
	partLease
	partHolder
	partStanding
	partState
	allParts = 1<<iota - 1
)

var partColumns = [...]string{
	`ready_at = ?, reap_at = ?`,
	`due_at = ?, state_version = ?, delivery_hash = ?, last_progress_at = ?`,
	`lease_version = ?, lease_ends_at = ?, lease_kept = ?, lease_tenant_epoch = ?, lease_instance_epoch = ?, claimed_at = ?`,
	`worker_id = ?`,
	`status = ?, finished_at = ?, cancel_requested = ?, paused = ?, instance_epoch = ?, attempt = ?, retry_at = ?, triggered = ?, matched = ?, succeeded = ?, action_terminal = ?, last_event_at = ?, raised = ?, wakeups = ?, set_aside_until = ?, beside = ?`,
	`state = CAST(? AS TEXT)`,
}

// updateRecord has a statement for each set of parts.
var updateRecord = func() (texts [allParts + 1]string) {
	for parts := range texts {
		var text strings.Builder
		text.WriteString(`UPDATE supervisor_records SET version = ?`)
		for n, columns := range partColumns {
			if parts&(1<<n) != 0 {
				text.WriteString(`, ` + columns)
			}
		}
		text.WriteString(` WHERE key = ? AND version = ?`)
		texts[parts] = text.String()
	}
	return texts
}()

// changes returns the parts in which two versions of a row differ.
func (r *row) changes(old *row) (parts int) {
	if r.schedule != old.schedule {
		parts |= partSchedule
	}
	if r.progress != old.progress {
		parts |= partProgress
	}
	if r.lease != old.lease {
		parts |= partLease
	}
	if r.holder != old.holder {
		parts |= partHolder
	}
	if r.standing != old.standing {
		parts |= partStanding
	}
	if r.state != nil {
		parts |= partState
	}
	return parts
}

func integer(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// appendParts appends the arguments of updateRecord[parts].
func (r *row) appendParts(args []any, parts int) []any {
	args = append(args, r.version+1)
	if parts&partSchedule != 0 {
		args = append(args, r.readyAt.value(), r.reapAt.value())
	}
	if parts&partProgress != 0 {
		args = append(args, r.dueAt.value(), r.stateVersion, r.deliveryHash, r.lastProgressAt.value())
	}
	if parts&partLease != 0 {
		args = append(args, r.leaseVersion, r.endsAt.value(), integer(r.kept), r.tenantEpoch, r.instanceEpoch, r.claimedAt.value())
	}
	if parts&partHolder != 0 {
		args = append(args, r.workerID)
	}
	if parts&partStanding != 0 {
		args = append(args, r.status, r.finishedAt.value(), integer(r.cancelRequested), integer(r.paused), r.epoch,
			r.attempt, r.retryAt.value(), r.counters.Triggered, r.counters.Matched, r.counters.Succeeded,
			r.counters.ActionTerminal, r.lastEventAt.value(), int64(r.raised), r.wakeups, r.setAsideUntil.value(), integer(r.beside))
	}
	if parts&partState != 0 {
		args = append(args, blob(*r.state))
	}
	return append(args, r.key, r.version)
}
