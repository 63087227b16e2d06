package pgqueue

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

// intentRow is an intent as the database has it, with what controls it, and what
// is to be written of it.
type intentRow struct {
	no, touched int64
	specID      string
	record      supervisor.IntentRecord
	control     supervisor.IntentControl
	// parkedAt is when the intent was parked.
	parkedAt time.Time
	// limited is whether there are limits at all.
	limited bool
	now     time.Time
	// runLocked is whether its run is locked, so that the instance can be told.
	runLocked bool

	// broken says why it could not be decoded; nil: it could.
	broken error

	// marks is set where the mark was decided from what a claim saw.
	marks   bool
	changed bool
	wakeup  *supervisor.Wakeup
}

// intentColumns is the number of columns of the view intent_record.
const intentColumns = 47

// scan reads a row of the view intent_record. broken says why the row cannot be
// decoded.
func (x *intentRow) scan(c *cells) (broken error) {
	if len(c.values) != intentColumns {
		c.bad = true
		return nil
	}
	r := &x.record
	i := &r.Intent
	x.no, i.ID = c.int8(), c.text()
	_, _ = c.int8(), c.int8() // the numbers of tenant and capability
	x.touched, x.parkedAt = c.int8(), c.instant()
	i.TenantID, i.InstanceID, x.specID, i.RunID = c.text(), c.text(), c.text(), c.text()
	i.Capability = supervisor.CapabilityPin{ID: c.text(), ContractVersion: c.text(), ContentDigest: c.text()}
	i.IdempotencyKey = c.text()
	i.Effect, i.RetryClass = supervisor.Effect(c.text()), supervisor.IdempotencyMode(c.text())
	i.ResourceScopeID = c.text()
	i.ControlEpochs = supervisor.ControlEpochs{Tenant: c.int8(), Instance: c.int8(), Resource: c.int8()}
	i.LeaseEpoch, i.ActionEpoch = c.int8(), c.int8()
	i.Deadline = c.instant()
	if reservation, token := c.next(), c.int8(); reservation != nil {
		i.Reservation = &supervisor.ResourceReservationRef{ID: string(reservation), FencingToken: token}
	}
	i.CreatedAt = c.instant()
	i.RequiresConfirmation = c.bool()
	if by, at := c.next(), c.instant(); by != nil {
		i.Confirmation = &supervisor.Confirmation{By: string(by), At: at}
	}
	i.Input, _ = keep(nil, c.next())
	i.State = supervisor.ActionState(c.text())
	r.DueAt = c.instant()
	r.Parked = supervisor.IntentParking(c.text())
	r.LeaseVersion, r.LeaseOwner, r.LeaseEndsAt = c.int8(), c.text(), c.instant()
	attempt, markedAt, markedUnder := c.int4(), c.instant(), c.int8()
	if progress := c.next(); progress != nil {
		if err := json.Unmarshal(progress, &r.IntentProgress); err != nil {
			broken = fmt.Errorf("progress: %w", err)
		}
	}
	r.Attempt, r.MarkedAt, r.MarkedUnder = attempt, markedAt, markedUnder
	x.control.Epochs = supervisor.ControlEpochs{Tenant: c.int8(), Instance: c.int8(), Resource: c.int8()}
	x.control.Paused, x.control.Finished = c.bool(), c.bool()
	x.limited = c.bool()
	x.now = c.instant()
	if broken == nil {
		broken = checkJSON("input", i.Input)
	}
	return broken
}

// brokenIntentError is a stored intent that cannot be decoded.
type brokenIntentError struct {
	key   supervisor.IntentKey
	cause error
}

func (e *brokenIntentError) Error() string {
	return fmt.Sprintf("pgqueue: intent %q of instance %q of tenant %q cannot be decoded: %v",
		shorten(e.key.IntentID), shorten(e.key.InstanceID), shorten(e.key.TenantID), e.cause)
}

func (e *brokenIntentError) Unwrap() error { return e.cause }

// apply lets a rule change the record, and takes the change back where nothing
// is to be stored. It returns what the rule says.
func (x *intentRow) apply(rule func(r *supervisor.IntentRecord) (told bool, err error)) error {
	before := x.record
	told, err := rule(&x.record)
	if err != nil && !storedWith(err) {
		x.record = before
		return err
	}
	if told && (!x.runLocked || x.wakeup != nil) {
		x.record = before
		return errTells
	}
	if told && !x.control.Finished {
		wakeup, broken := x.record.Wakeup()
		if broken != nil {
			x.record = before
			return broken
		}
		x.wakeup = &wakeup
	}
	if x.record.Parked != before.Parked {
		x.parkedAt = time.Time{}
		if x.record.Parked != supervisor.NotParked {
			x.parkedAt = x.now
		}
	}
	x.changed = x.changed || told || !reflect.DeepEqual(&before, &x.record)
	return err
}

// intentFields is the number of fields of the type intent_v1.
const intentFields = 21

// write writes the row as one of the type intent_v1.
func (x *intentRow) write(a *args) error {
	r := &x.record
	progress, err := progressText(&r.IntentProgress)
	if err != nil {
		return err
	}
	a.row(intentFields)
	a.int8(x.no)
	a.text(r.Intent.ID)
	a.int8(x.touched)
	a.instant(r.DueAt)
	a.int8(r.LeaseVersion)
	a.instant(r.LeaseEndsAt)
	a.instant(r.MarkedAt)
	a.int8(r.MarkedUnder)
	a.int4(r.Attempt)
	a.int4(r.Ambiguous)
	a.instant(x.parkedAt)
	confirmation := r.Intent.Confirmation
	if confirmation == nil {
		confirmation = new(supervisor.Confirmation)
	}
	a.instant(confirmation.At)
	a.text(string(r.Intent.State))
	a.textOrNull(string(r.Parked))
	a.textOrNull(r.LeaseOwner)
	a.textOrNull(confirmation.By)
	a.raw(progress)
	a.bool(x.marks)
	if x.wakeup == nil {
		a.null(oidText)
		a.null(oidText)
		a.null(oidText)
		return nil
	}
	a.text(x.wakeup.ID)
	a.text(x.wakeup.Digest())
	a.raw(x.wakeup.Payload)
	return nil
}

// progressText is the progress as far as it has no column of its own, nil for
// none.
func progressText(p *supervisor.IntentProgress) ([]byte, error) {
	rest := *p
	rest.Attempt, rest.MarkedAt, rest.MarkedUnder = 0, time.Time{}, 0
	if reflect.ValueOf(&rest).Elem().IsZero() {
		return nil, nil
	}
	// Nothing is escaped that need not be, so that outputs come back as they were.
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(&rest); err != nil {
		return nil, fmt.Errorf("pgqueue: progress: %w", err)
	}
	return bytes.TrimSuffix(text.Bytes(), []byte("\n")), nil
}
