package sqlitequeue

// laneChange is what a transaction has made of a lane.
type laneChange struct {
	// readyAt is the earliest instant at which something in it may be claimed.
	readyAt instant
	// event is the latest change that made something due; never for none.
	event instant
}

// pullLane notes that something in a lane may be claimed from readyAt on.
func (t *transaction) pullLane(lane int64, readyAt, now instant) {
	change, known := t.ready[lane]
	if !known {
		change = laneChange{readyAt: readyAt, event: never}
	}
	change.readyAt = earlier(change.readyAt, readyAt)
	if readyAt <= now {
		change.event = now
	}
	t.ready[lane] = change
	t.pulled = true
}

const (
	selectLane = `SELECT key FROM supervisor_lanes WHERE tenant = ? AND spec_id = ?`
	insertLane = `INSERT INTO supervisor_lanes (tenant, spec_id) VALUES (?, ?)`
	pullLane   = `UPDATE supervisor_lanes SET ready_at = min(coalesce(ready_at, ?1), ?1), ready_event = max(ready_event, ?2) WHERE key = ?3`
)

// makeLane returns the key of a lane, which it adds where there is none.
func (t *transaction) makeLane(tenant int64, specID string) (int64, error) {
	lane, err := t.session.queryInt(selectLane, tenant, specID)
	if err != nil || lane != 0 {
		return lane, err
	}
	if _, err := t.session.exec(insertLane, tenant, specID); err != nil {
		return 0, err
	}
	return t.session.queryInt(selectLane, tenant, specID)
}

// flush writes the lanes that were pulled, once for all operations before it.
func (t *transaction) flush() error {
	for lane, change := range t.ready {
		event := int64(0)
		if change.event != never {
			event = int64(change.event)
		}
		if _, err := t.session.exec(pullLane, int64(change.readyAt), event, lane); err != nil {
			return err
		}
	}
	clear(t.ready)
	return nil
}
