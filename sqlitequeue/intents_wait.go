package sqlitequeue

import (
	"context"
	"slices"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

// WaitIntents implements [supervisor.IntentWaiter]. It notices changes made
// through this queue at once, those of other processes within
// [Options.PollInterval].
func (q *Queue) WaitIntents(ctx context.Context, capabilities []supervisor.CapabilityPin) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		// Before looking, lest what comes in between is missed.
		changed := q.intentNews.wait()
		due, delay, err := q.lookAtIntents(ctx, capabilities)
		if err == nil && !due {
			err = q.await(ctx, changed, delay)
		}
		q.intentNews.waited()
		if due || err != nil {
			if ended := ctx.Err(); ended != nil {
				return ended
			}
			return err
		}
	}
}

const (
	selectFirstDueIntent = `SELECT due_at FROM supervisor_intents WHERE capability = ? AND due_at IS NOT NULL ORDER BY due_at LIMIT 1`
)

// lookAtIntents reports whether an intent of the capabilities is due or could
// have a free slot, and otherwise after which delay to look again.
func (q *Queue) lookAtIntents(ctx context.Context, capabilities []supervisor.CapabilityPin) (due bool, delay time.Duration, err error) {
	next, now := never, q.clock.now()
	err = q.read(ctx, "wait for intents", func(s *session) error {
		pins, wanted, err := intentPins(s, capabilities)
		if err != nil {
			return err
		}
		for _, pin := range pins {
			first, err := s.queryInstant(selectFirstDueIntent, pin)
			if err != nil {
				return err
			}
			next = earlier(next, first)
		}
		if next != never && next <= now {
			return nil
		}
		free, err := hasFreeSlot(s, wanted)
		if err == nil && free {
			next = now
		}
		return err
	})
	if err != nil {
		return false, 0, err
	}
	due, delay = q.until(next, now)
	return due, delay, nil
}

// intentPins returns the keys of capabilities to look at, and of those wanted,
// nil for all.
func intentPins(s *session, capabilities []supervisor.CapabilityPin) (pins, wanted []int64, err error) {
	if len(capabilities) == 0 {
		pins, err = s.queryInts(selectDuePins)
		return pins, nil, err
	}
	wanted = make([]int64, 0, len(capabilities))
	for n := range capabilities {
		pin, err := s.queryInt(selectPin, capabilities[n].ID, capabilities[n].ContractVersion, capabilities[n].ContentDigest)
		if err != nil {
			return nil, nil, err
		}
		if pin != 0 {
			wanted = append(wanted, pin)
		}
	}
	return wanted, wanted, nil
}

// hasFreeSlot reports whether a claim would make something due for a free slot.
func hasFreeSlot(s *session, wanted []int64) (bool, error) {
	rows, err := s.query(selectFree)
	if err != nil {
		return false, err
	}
	var free []limit
	for rows.next() {
		free = append(free, limit{key: rows.int(0), slots: rows.int(1), used: rows.int(2)})
	}
	if err := rows.close(); err != nil {
		return false, err
	}
	for n := range free {
		pins, err := s.queryInts(waitingPins, free[n].key)
		if err != nil {
			return false, err
		}
		if !slices.ContainsFunc(pins, func(pin int64) bool { return wanted == nil || slices.Contains(wanted, pin) }) {
			continue
		}
		left, err := s.unmeant(&free[n], wanted)
		if err != nil || left > 0 {
			return left > 0, err
		}
	}
	return false, nil
}
