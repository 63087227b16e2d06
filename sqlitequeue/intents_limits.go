package sqlitequeue

import (
	"cmp"
	"context"
	"slices"

	"github.com/workflow-supervisor/supervisor"
)

// limitID names a limit; an empty part covers all.
type limitID struct{ tenant, capability string }

// limit is a limit's row. Its counters are written once, before the transaction
// ends or a claim begins.
type limit struct {
	key     int64
	slots   int64
	used    int64
	waiting bool
	// freed: there may be room for intents that wait.
	freed   bool
	changed bool
}

const (
	selectAnyLimit = `SELECT count(*) FROM (SELECT 1 FROM supervisor_limits LIMIT 1)`
	selectLimit    = `SELECT key, slots, used, waiting FROM supervisor_limits WHERE tenant_id = ? AND capability_id = ?`
	insertLimit    = `INSERT INTO supervisor_limits (tenant_id, capability_id, slots, used) VALUES (?1, ?2, ?3, (
		SELECT count(*) FROM supervisor_intents WHERE due_at IS NOT NULL AND state IN ('dispatch_committed', 'executing')
		AND (?1 = '' OR tenant = (SELECT key FROM supervisor_tenants WHERE tenant_id = ?1))
		AND (?2 = '' OR capability IN (SELECT key FROM supervisor_capabilities WHERE id = ?2))))`
	updateSlots  = `UPDATE supervisor_limits SET slots = ? WHERE key = ?`
	updateLimit  = `UPDATE supervisor_limits SET used = ?, waiting = ? WHERE key = ?`
	deleteLimit  = `DELETE FROM supervisor_limits WHERE key = ?`
	leaveLimit   = `UPDATE supervisor_intents SET version = version + 1, limit_key = NULL WHERE limit_key = ? AND parked <> 2`
	unparkAll    = `UPDATE supervisor_intents SET version = version + 1, limit_key = NULL, parked = 0, due_at = ?, idle = 0 WHERE limit_key = ? AND parked = 2`
	selectFree   = `SELECT key, slots, used FROM supervisor_limits WHERE waiting = 1 AND used < slots ORDER BY key`
	selectWaits  = `SELECT key, waits_since FROM supervisor_intents WHERE limit_key = ? AND parked = 2 AND capability = ? ORDER BY waits_since, key LIMIT ?`
	unparkIntent = `UPDATE supervisor_intents SET version = version + 1, parked = 0, due_at = ?, idle = 0 WHERE key = ?`
	// countMeant counts the intents that were made due to take a slot and may yet do so.
	countMeant = `SELECT count(*) FROM supervisor_intents WHERE limit_key = ? AND parked = 0 AND capability = ?`
	// waitingPins are the capabilities of which intents are parked by a limit.
	waitingPins = `WITH RECURSIVE pins (pin) AS (
		SELECT min(capability) FROM supervisor_intents WHERE limit_key = ?1 AND parked = 2
		UNION ALL SELECT (SELECT min(capability) FROM supervisor_intents WHERE limit_key = ?1 AND parked = 2 AND capability > pin)
			FROM pins WHERE pin IS NOT NULL)
		SELECT pin FROM pins WHERE pin IS NOT NULL`
	meantPins = `WITH RECURSIVE pins (pin) AS (
		SELECT min(capability) FROM supervisor_intents WHERE limit_key = ?1 AND parked = 0
		UNION ALL SELECT (SELECT min(capability) FROM supervisor_intents WHERE limit_key = ?1 AND parked = 0 AND capability > pin)
			FROM pins WHERE pin IS NOT NULL)
		SELECT pin FROM pins WHERE pin IS NOT NULL`
)

// LimitIntents implements [supervisor.IntentOperator]. Setting a limit for the
// first time counts the intents in flight, which reads all that are not settled.
func (q *Queue) LimitIntents(ctx context.Context, limit supervisor.IntentLimit) error {
	if err := limit.Validate(); err != nil {
		return err
	}
	id := limitID{limit.TenantID, limit.CapabilityID}
	return q.update(ctx, "limit intents", change{run: func(t *transaction) error {
		return t.setLimit(id, int64(limit.Max))
	}})
}

func (t *transaction) setLimit(id limitID, slots int64) error {
	found, err := t.findLimit(id)
	if err != nil {
		return err
	}
	switch {
	case found == nil && slots == 0:
		return nil
	case found == nil:
		if _, err := t.session.exec(insertLimit, id.tenant, id.capability, slots); err != nil {
			return err
		}
		delete(t.intents.limits, id)
		t.intents.limited = true
		return nil
	case slots > 0:
		found.slots = slots
		found.freed = true
		_, err := t.session.exec(updateSlots, slots, found.key)
		return err
	}
	t.intents.limits[id] = nil
	t.intents.news = true
	if _, err := t.session.exec(leaveLimit, found.key); err != nil {
		return err
	}
	if _, err := t.session.exec(unparkAll, int64(t.now()), found.key); err != nil {
		return err
	}
	_, err = t.session.exec(deleteLimit, found.key)
	return err
}

// findLimit returns a limit, nil where it is not set.
func (t *transaction) findLimit(id limitID) (*limit, error) {
	if found, known := t.intents.limits[id]; known {
		return found, nil
	}
	rows, err := t.session.query(selectLimit, id.tenant, id.capability)
	if err != nil {
		return nil, err
	}
	var found *limit
	if rows.next() {
		found = &limit{key: rows.int(0), slots: rows.int(1), used: rows.int(2), waiting: rows.int(3) != 0}
	}
	if err := rows.close(); err != nil {
		return nil, err
	}
	t.intents.limits[id] = found
	return found, nil
}

// limitsOf returns the limits that cover an intent, at most three.
func (t *transaction) limitsOf(i *supervisor.ActionIntent) (limits [3]*limit, err error) {
	if !t.intents.loaded {
		some, err := t.session.queryInt(selectAnyLimit)
		if err != nil {
			return limits, err
		}
		t.intents.loaded, t.intents.limited = true, some > 0
	}
	if !t.intents.limited {
		return limits, nil
	}
	for n, id := range [...]limitID{{"", i.Capability.ID}, {i.TenantID, ""}, {i.TenantID, i.Capability.ID}} {
		if limits[n], err = t.findLimit(id); err != nil {
			return limits, err
		}
	}
	return limits, nil
}

// slots answers whether an intent would get a slot of every limit that covers
// it.
type slots struct {
	t      *transaction
	intent *intent
	// full is a limit that had none.
	full *limit
}

// free is false, too, after an error of the database, which the session keeps.
func (s *slots) free() bool {
	limits, err := s.t.limitsOf(&s.intent.record.Intent)
	if err != nil {
		return false
	}
	for _, limit := range limits {
		if limit != nil && limit.used >= limit.slots {
			s.full = limit
			return false
		}
	}
	return true
}

// countSlot counts the slots that a stored change takes or frees.
func (t *transaction) countSlot(old, next *supervisor.IntentRecord, full *limit) error {
	if full != nil && next.Parked == supervisor.ParkedByLimit && !full.waiting {
		full.waiting, full.changed = true, true
	}
	taken := integer(next.HoldsSlot()) - integer(old.HoldsSlot())
	if taken == 0 {
		return nil
	}
	limits, err := t.limitsOf(&next.Intent)
	if err != nil {
		return err
	}
	for _, limit := range limits {
		if limit != nil {
			limit.used += taken
			limit.changed = true
			limit.freed = limit.freed || taken < 0
		}
	}
	return nil
}

// flushLimits has freed slots made use of and writes the counters.
func (t *transaction) flushLimits() error {
	for _, limit := range t.intents.limits {
		if limit == nil {
			continue
		}
		if limit.freed && limit.waiting {
			if err := t.unpark(limit, nil); err != nil {
				return err
			}
		}
		limit.freed = false
		if limit.changed {
			if _, err := t.session.exec(updateLimit, limit.used, integer(limit.waiting), limit.key); err != nil {
				return err
			}
			limit.changed = false
		}
	}
	return nil
}

// unparkFor makes intents of the wanted capabilities due for slots that are
// free though others were made due for them: those may be of capabilities that
// nobody claims, or have gone without a slot. The counters have been written.
func (t *transaction) unparkFor(wanted []int64) error {
	rows, err := t.session.query(selectFree)
	if err != nil {
		return err
	}
	var free []*limit
	for rows.next() {
		free = append(free, &limit{key: rows.int(0), slots: rows.int(1), used: rows.int(2), waiting: true})
	}
	if err := rows.close(); err != nil {
		return err
	}
	for _, limit := range free {
		if err := t.unpark(limit, wanted); err != nil {
			return err
		}
		if limit.changed {
			// Read again by whoever asks for it.
			clear(t.intents.limits)
			if _, err := t.session.exec(updateLimit, limit.used, integer(limit.waiting), limit.key); err != nil {
				return err
			}
		}
	}
	return nil
}

// unpark makes as many intents of the wanted capabilities (none: all) due as
// slots of a limit are free and not meant for others of them, those that have
// waited longest.
func (t *transaction) unpark(limit *limit, wanted []int64) error {
	pins, err := t.session.queryInts(waitingPins, limit.key)
	if err != nil {
		return err
	}
	if len(pins) == 0 {
		limit.waiting, limit.changed = false, true
		return nil
	}
	free, err := t.session.unmeant(limit, wanted)
	if err != nil || free <= 0 {
		return err
	}
	var waiting []waitingIntent
	for _, pin := range pins {
		if wanted != nil && !slices.Contains(wanted, pin) {
			continue
		}
		rows, err := t.session.query(selectWaits, limit.key, pin, free)
		if err != nil {
			return err
		}
		for rows.next() {
			waiting = append(waiting, waitingIntent{key: rows.int(0), since: rows.instant(1)})
		}
		if err := rows.close(); err != nil {
			return err
		}
	}
	slices.SortFunc(waiting, func(a, b waitingIntent) int {
		return cmp.Or(cmp.Compare(a.since, b.since), cmp.Compare(a.key, b.key))
	})
	for _, intent := range waiting[:min(len(waiting), int(free))] {
		// IntentRecord.Unpark: what is parked waits and is not leased.
		if _, err := t.session.exec(unparkIntent, int64(t.now()), intent.key); err != nil {
			return err
		}
		t.intents.news = true
	}
	return nil
}

type waitingIntent struct {
	key   int64
	since instant
}

// unmeant returns how many slots of a limit are free and not meant for intents
// of the wanted capabilities (none: all).
func (s *session) unmeant(limit *limit, wanted []int64) (free int64, err error) {
	free = limit.slots - limit.used
	if wanted == nil && free > 0 {
		if wanted, err = s.queryInts(meantPins, limit.key); err != nil {
			return 0, err
		}
	}
	for _, pin := range wanted {
		if free <= 0 {
			break
		}
		meant, err := s.queryInt(countMeant, limit.key, pin)
		if err != nil {
			return 0, err
		}
		free -= meant
	}
	return free, nil
}

// queryInts returns the first column of all rows.
func (s *session) queryInts(text string, args ...any) (values []int64, err error) {
	rows, err := s.query(text, args...)
	if err != nil {
		return nil, err
	}
	for rows.next() {
		values = append(values, rows.int(0))
	}
	return values, rows.close()
}
