package sqlitequeue

// cancelIntents is what Cancel of an instance does with its intents: those that
// wait for a hand-off are withdrawn, for others the request is recorded.
func (t *transaction) cancelIntents(instance *entry, now instant) error {
	rows, err := t.session.query(selectOpenIntents, instance.row.key)
	if err != nil {
		return err
	}
	var open []intent
	for rows.next() {
		var found intent
		// One that cannot be decoded is stale from now on, so never handed off.
		if found.scan(rows) == nil {
			open = append(open, found)
		}
	}
	if err := rows.close(); err != nil {
		return err
	}
	for n := range open {
		e := &open[n]
		next := e.copy()
		told := next.RequestCancel(now.time())
		if stored, err := t.storeIntent(e, &next, nil, now); err != nil || !stored {
			return t.unexpected(err, "an intent changed while it was cancelled")
		}
		if told {
			if err := t.tell(e, instance, now); err != nil {
				return err
			}
		}
	}
	return nil
}

// IntentRecord.Unpark for all intents of a scope that wait for a hand-off and are
// not due by themselves. Statistics of a small table must not have the whole of
// a large one read.
const (
	resumeIdle = ` SET version = version + 1, parked = 0, due_at = ?1, idle = 0, limit_key = NULL
		WHERE idle = 1 AND (due_at IS NULL OR due_at > ?1) AND `
	resumeIdleTenant   = `UPDATE supervisor_intents INDEXED BY supervisor_intents_idle` + resumeIdle + `tenant = ?2`
	resumeIdleResource = `UPDATE supervisor_intents INDEXED BY supervisor_intents_idle` + resumeIdle + `tenant = ?2 AND resource_id = ?3`
	resumeIdleInstance = `UPDATE supervisor_intents` + resumeIdle + `instance = ?2`
)

// resumeIntents makes the waiting intents of a scope due that is resumed:
// statement is one of those above.
func (t *transaction) resumeIntents(now instant, statement string, scope ...any) error {
	t.intents.news = true
	_, err := t.session.exec(statement, append([]any{int64(now)}, scope...)...)
	return err
}
