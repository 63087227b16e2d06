package supervisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// Disposition is what happens to an instance after a commit: one of
// [Continue], [Reschedule], [Complete] and [Failed].
type Disposition interface{ disposition() }

// Continue evaluates the instance again after a delay. A negative delay means
// now, one too long for the calendar its end.
type Continue struct {
	Delay time.Duration `json:"delay,omitempty"`
}

// Reschedule evaluates the instance again at an instant; a past one means now. What
// falls due before then, such as a delivery or the result of an intent, wakes it
// earlier. To wait for that alone, take an instant 100 years away or more: Explain
// then says that it waits.
type Reschedule struct {
	At time.Time `json:"at,omitzero"`
}

// Complete ends the instance.
type Complete struct{}

// Failed records a failed evaluation. A zero RetryAt fails the instance for
// good; a past one means now.
type Failed struct {
	Reason  string    `json:"reason"`
	RetryAt time.Time `json:"retry_at,omitzero"`
}

func (Continue) disposition()   {}
func (Reschedule) disposition() {}
func (Complete) disposition()   {}
func (Failed) disposition()     {}

// The last instant of the calendar that every store and JSON can hold, cut to
// the microseconds of PostgreSQL.
func endOfCalendar() time.Time {
	return time.Unix(253_402_300_799, 999_999_000).UTC() // cheaper than time.Date, and called for every commit
}

// clampInstant brings a computed instant into the calendar, in UTC.
func clampInstant(t time.Time) time.Time {
	t = t.UTC()
	if end := endOfCalendar(); t.After(end) {
		return end
	}
	return t
}

// checkInstant refuses what RFC 3339, and with it JSON, cannot write.
func checkInstant(field string, t time.Time) error {
	if year := t.UTC().Year(); year < 1 || year > 9999 {
		return fmt.Errorf("%s is in the year %d, outside 1 to 9999", field, year)
	}
	return nil
}

func checkDisposition(d Disposition) error {
	switch d := d.(type) {
	case Continue, Complete:
		return nil
	case Reschedule:
		return checkInstant("Reschedule.At", d.At)
	case Failed:
		if err := checkRequired("Failed.Reason", d.Reason); err != nil {
			return err
		}
		return checkInstant("Failed.RetryAt", d.RetryAt)
	}
	// Pointers to dispositions and structs that embed one satisfy the
	// interface, too; neither could be stored.
	if d == nil {
		return errors.New("Disposition is nil")
	}
	return fmt.Errorf("Disposition is a %T, must be a Continue, Reschedule, Complete or Failed", d)
}

// The names of dispositions in JSON.
const (
	kindContinue   = "continue"
	kindReschedule = "reschedule"
	kindComplete   = "complete"
	kindFailed     = "failed"
)

// dispositionText renders a disposition for a digest.
func dispositionText(d Disposition) (kind, detail string) {
	switch d := d.(type) {
	case Continue:
		return kindContinue, strconv.FormatInt(int64(d.Delay), 10)
	case Reschedule:
		return kindReschedule, d.At.UTC().Format(time.RFC3339Nano)
	case Complete:
		return kindComplete, ""
	case Failed:
		return kindFailed, d.RetryAt.UTC().Format(time.RFC3339Nano) + " " + d.Reason
	}
	return "", ""
}

// dispositionJSON is the form of a disposition in JSON, told apart by kind.
type dispositionJSON struct {
	Kind    string        `json:"kind"`
	Delay   time.Duration `json:"delay,omitempty"`
	At      time.Time     `json:"at,omitzero"`
	Reason  string        `json:"reason,omitempty"`
	RetryAt time.Time     `json:"retry_at,omitzero"`
}

// commandJSON has the fields of a command but not its methods, and the
// disposition in its JSON form.
type commandJSON struct {
	*commandFields
	Disposition *dispositionJSON `json:"disposition"`
}

type commandFields TransitionCommand

// MarshalJSON encodes the command with its disposition as an object of its
// kind ("continue", "reschedule", "complete", "failed"); delays are integers of
// nanoseconds and the instants of dispositions are UTC.
//
// Raw values keep the text of their numbers and strings; [json.Marshal] itself
// removes white space between them and escapes <, > and & in any raw value,
// which a [json.Encoder] with SetEscapeHTML(false) does not.
func (c TransitionCommand) MarshalJSON() ([]byte, error) {
	form := commandJSON{commandFields: (*commandFields)(&c)}
	// In another zone an instant that is valid can be in the year 10000.
	switch d := c.Disposition.(type) {
	case nil:
	case Continue:
		form.Disposition = &dispositionJSON{Kind: kindContinue, Delay: d.Delay}
	case Reschedule:
		form.Disposition = &dispositionJSON{Kind: kindReschedule, At: d.At.UTC()}
	case Complete:
		form.Disposition = &dispositionJSON{Kind: kindComplete}
	case Failed:
		form.Disposition = &dispositionJSON{Kind: kindFailed, Reason: d.Reason, RetryAt: d.RetryAt.UTC()}
	default:
		return nil, fmt.Errorf("supervisor: command: %w", checkDisposition(d))
	}
	// The caller's encoder decides about HTML escapes.
	return encodeJSON(form)
}

// UnmarshalJSON decodes what MarshalJSON wrote; an unknown kind is an error.
func (c *TransitionCommand) UnmarshalJSON(data []byte) error {
	var decoded TransitionCommand
	form := commandJSON{commandFields: (*commandFields)(&decoded)}
	if err := json.Unmarshal(data, &form); err != nil {
		return err
	}
	if d := form.Disposition; d != nil {
		switch d.Kind {
		case kindContinue:
			decoded.Disposition = Continue{Delay: d.Delay}
		case kindReschedule:
			decoded.Disposition = Reschedule{At: d.At}
		case kindComplete:
			decoded.Disposition = Complete{}
		case kindFailed:
			decoded.Disposition = Failed{Reason: d.Reason, RetryAt: d.RetryAt}
		default:
			return fmt.Errorf("supervisor: command: disposition kind %q is not known", shorten(d.Kind))
		}
	}
	*c = decoded
	return nil
}
