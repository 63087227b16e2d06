package sqlitequeue

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/workflow-supervisor/supervisor"
)

// maxRefused bounds the intents that one claim settles or parks instead of
// handing them out; the next one goes on from there.
const maxRefused = 256

// ClaimIntents implements [supervisor.IntentQueue]. The turns of capabilities
// are those of this process.
func (q *Queue) ClaimIntents(ctx context.Context, req supervisor.IntentClaimRequest) (works []supervisor.IntentWork, err error) {
	if err := req.Validate(); err != nil {
		return nil, err
	}
	err = q.update(ctx, "claim intents", change{last: true, run: func(t *transaction) (err error) {
		claim := intentClaim{req: &req}
		works, err = claim.run(t)
		return err
	}})
	if err != nil {
		return nil, err
	}
	return works, nil
}

// intentClaim is one claim of due intents.
type intentClaim struct {
	req     *supervisor.IntentClaimRequest
	now     instant
	works   []supervisor.IntentWork
	refused int
}

// intentLane is a capability that may have something due.
type intentLane struct {
	pin int64
	// found are due intents that were not looked at yet, in order; exhausted:
	// there are no others.
	found     []dueIntent
	exhausted bool
	// last is the last one that was found.
	lastDue instant
	lastKey int64
}

// dueIntent is an intent with what decides about its hand-off.
type dueIntent struct {
	intent
	control   supervisor.IntentControl
	malformed error
}

const (
	controlColumns   = `n.epoch, n.paused, r.instance_epoch, r.paused, r.status, s.epoch, s.paused`
	selectDueIntents = `SELECT ` + intentColumns + `, ` + controlColumns + ` FROM supervisor_intents a
		CROSS JOIN supervisor_instances i ON i.key = a.instance
		CROSS JOIN supervisor_records r ON r.key = a.instance
		CROSS JOIN supervisor_tenants n ON n.key = a.tenant` + intentFrom + `
		LEFT JOIN supervisor_resources s ON s.tenant = a.tenant AND s.resource_id = a.resource_id
		WHERE a.capability = ? AND a.due_at <= ? AND (a.due_at, a.key) > (?, ?) ORDER BY a.due_at, a.key LIMIT ?`
	// selectDuePins steps from capability to capability through the index, so
	// that it costs nothing for each intent.
	selectDuePins = `WITH RECURSIVE pins (pin) AS (
		SELECT min(capability) FROM supervisor_intents WHERE due_at IS NOT NULL
		UNION ALL SELECT (SELECT min(capability) FROM supervisor_intents WHERE due_at IS NOT NULL AND capability > pin)
			FROM pins WHERE pin IS NOT NULL)
		SELECT pin FROM pins WHERE pin IS NOT NULL`
	setIntentAside = `UPDATE supervisor_intents SET version = version + 1, due_at = ?, limit_key = NULL WHERE key = ?`
)

func (c *intentClaim) run(t *transaction) ([]supervisor.IntentWork, error) {
	if err := t.flushLimits(); err != nil {
		return nil, err
	}
	lanes, err := c.lanes(t)
	if err != nil {
		return nil, err
	}
	// Not earlier, for what was just made due for a free slot is due now.
	c.now = t.now()
	for len(lanes) > 0 && len(c.works) < c.req.Limit && c.refused < maxRefused {
		round, page := lanes, (c.req.Limit-len(c.works)+len(lanes)-1)/len(lanes)
		lanes = lanes[:0]
		for _, lane := range round {
			if len(c.works) == c.req.Limit {
				break
			}
			served, err := c.serve(t, lane, page)
			if err != nil {
				return nil, err
			}
			if served {
				t.intents.turn++
				t.intents.turns[lane.pin] = t.intents.turn
				lanes = append(lanes, lane)
			}
		}
	}
	return c.works, nil
}

// lanes returns the wanted capabilities that may have something due, the least
// recently served first.
func (c *intentClaim) lanes(t *transaction) (lanes []*intentLane, err error) {
	var wanted []int64
	if len(c.req.Capabilities) > 0 {
		wanted = make([]int64, 0, len(c.req.Capabilities))
		for n := range c.req.Capabilities {
			pin, err := t.pin(&c.req.Capabilities[n])
			if err != nil {
				return nil, err
			}
			if pin != 0 && !slices.Contains(wanted, pin) {
				wanted = append(wanted, pin)
			}
		}
	}
	if err := t.unparkFor(wanted); err != nil {
		return nil, err
	}
	if wanted == nil {
		if wanted, err = t.session.queryInts(selectDuePins); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(wanted, func(a, b int64) int {
		return cmp.Or(cmp.Compare(t.intents.turns[a], t.intents.turns[b]), cmp.Compare(a, b))
	})
	for _, pin := range wanted {
		lanes = append(lanes, &intentLane{pin: pin, lastDue: never})
	}
	return lanes, nil
}

// serve hands out the due intent of a lane that was due first, and reports
// whether there was one.
func (c *intentClaim) serve(t *transaction, lane *intentLane, page int) (served bool, err error) {
	for c.refused < maxRefused {
		if len(lane.found) == 0 && !lane.exhausted {
			if err := lane.read(t, c.now, page); err != nil {
				return false, err
			}
		}
		if len(lane.found) == 0 {
			return false, nil
		}
		due := lane.found[0]
		lane.found = lane.found[1:]
		if served, err = c.admit(t, &due); served || err != nil {
			return served, err
		}
		c.refused++
	}
	return false, nil
}

// read reads the next due intents of a lane.
func (l *intentLane) read(t *transaction, now instant, page int) error {
	rows, err := t.session.query(selectDueIntents, l.pin, int64(now), int64(l.lastDue), l.lastKey, int64(page))
	if err != nil {
		return err
	}
	for rows.next() {
		var due dueIntent
		due.malformed = due.scan(rows)
		due.control = scanControl(rows, intentWidth)
		l.lastDue, l.lastKey = rows.instant(8), due.key
		l.found = append(l.found, due)
	}
	l.exhausted = len(l.found) < page
	return rows.close()
}

// scanControl reads controlColumns, the first of which is at column.
func scanControl(rows *rows, column int) supervisor.IntentControl {
	control := supervisor.IntentControl{
		Epochs:   supervisor.ControlEpochs{Tenant: rows.int(column), Instance: rows.int(column + 2)},
		Paused:   rows.int(column+1) != 0 || rows.int(column+3) != 0,
		Finished: finished(rows.int(column + 4)),
	}
	if rows.values[column+5] != nil {
		control.Epochs.Resource = rows.int(column + 5)
		control.Paused = control.Paused || rows.int(column+6) != 0
	}
	return control
}

// finished reports whether an instance takes no wakeups any longer.
func finished(status int64) bool { return status == statusCompleted || status == statusCancelled }

// admit does what the rules say of a due intent, and reports whether it was
// handed out.
func (c *intentClaim) admit(t *transaction, due *dueIntent) (served bool, err error) {
	if due.malformed != nil {
		until := c.now + instant(setAsideDelay/time.Microsecond)
		_, err := t.session.exec(setIntentAside, int64(until), due.key)
		return false, err
	}
	next := due.copy()
	slots := slots{t: t, intent: &due.intent}
	task, told := next.Admit(&due.control, slots.free, c.now.time())
	if t.session.err != nil {
		return false, t.session.err
	}
	if task != "" {
		next.Acquire(c.req.WorkerID, c.req.LeaseDuration, c.now.time())
		if c.req.MarkRepeatable && task == supervisor.IntentTaskDispatch && next.Repeatable() {
			next.MarkNow(c.now.time())
		}
	}
	if stored, err := t.storeIntent(&due.intent, &next, slots.full, c.now); err != nil || !stored {
		return false, t.unexpected(err, "an intent changed while it was claimed")
	}
	if told {
		if err := t.tell(&due.intent, nil, c.now); err != nil {
			return false, err
		}
	}
	if task == "" {
		return false, nil
	}
	c.works = append(c.works, supervisor.IntentWork{IntentRecord: next.Clone(), Task: task, ClaimedAt: c.now.time()})
	return true, nil
}
