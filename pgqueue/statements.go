package pgqueue

// statements are the single statements of the queue.
type statements struct {
	clock, claim, apply, typeOID, renew, release, inbox, setAside, nextDue *statement
	findLane, ensureTenant, ensureLane                                     *statement
	findCapability, ensureCapability                                       *statement
	renewIntents, nextIntent, listIntents, claimIntents, applyIntents      *statement
	publish, loadRevision                                                  *statement
	get, list, history                                                     *statement
	pruneInstances, pruneEvents, pruneWakeups                              *statement
	oldestSnapshot                                                         *statement
}

const (
	sqlClock = `SELECT clock_timestamp()`
	sqlClaim = `SELECT * FROM {{schema}}.claim_v1($1, $2, $3, $4, $5)`
	sqlApply = `SELECT * FROM {{schema}}.apply_v1($1, $2, $3, $4, $5)`
	// sqlTypeOID finds a type of rows.
	sqlTypeOID = `SELECT to_regtype($1)::oid::bigint`
	sqlRenew   = `SELECT {{schema}}.renew_v1($1, $2, $3, $4, $5, $6)`
	// The casts let any driver send any parameter as text.
	sqlStart = `
SELECT {{schema}}.start_v1($1::bigint, $2::bigint, $3::text, $4::text, $5::text, $6::text, $7::text, $8::text, $9::bigint,
    $10::text, $11::text, $12::bigint, $13::text, $14::text, $15::text, $16::text, $17::text, $18::timestamptz,
    $19::timestamptz, $20::timestamptz)`
	sqlDeliver = `
SELECT answer, coalesce(stored_digest, '') FROM {{schema}}.deliver_v1($1::text, $2::text, $3::text, $4::text, $5::text,
    $6::text, $7::text, $8::timestamptz)`
	sqlMicros = `SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint`
	sqlLoad   = `SELECT * FROM {{schema}}.load_v1($1, $2, $3)`
	sqlStore  = `
SELECT {{schema}}.store_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22)`
	sqlLoadIntents     = `SELECT * FROM {{schema}}.load_intents_v1($1, $2, $3, $4, $5)`
	sqlInstanceIntents = `SELECT * FROM {{schema}}.instance_intents_v1($1)`
	sqlUnparkIntents   = `SELECT {{schema}}.unpark_intents_v1($1, $2, $3)`
	sqlParkedIntents   = `SELECT * FROM {{schema}}.parked_intents_v1($1, $2, $3, $4, $5, $6, $7)`
	sqlClaimIntents    = `SELECT * FROM {{schema}}.claim_intents_v1($1, $2, $3, $4, $5, $6, $7, $8)`
	sqlApplyIntents    = `SELECT {{schema}}.apply_intents_v1($1, $2, $3)`
	sqlRenewIntents    = `SELECT {{schema}}.renew_intents_v1($1, $2, $3, $4, $5, $6)`
	sqlNextIntent      = `
SELECT next_at, left_over, now FROM {{schema}}.next_intent_v1($1, $2, $3, coalesce($4::timestamptz, '-infinity'))`
	sqlWakeups = `SELECT ids, kinds, branches, payloads, left_at FROM {{schema}}.wakeups_v1($1, $2)`
)

func (s *store) prepare() {
	s.statements = statements{
		clock:        s.statement(sqlClock),
		claim:        s.statement(sqlClaim),
		apply:        s.statement(sqlApply),
		typeOID:      s.statement(sqlTypeOID),
		renew:        s.statement(sqlRenew),
		release:      s.statement(sqlRelease),
		inbox:        s.statement(sqlInbox),
		setAside:     s.statement(sqlSetAside),
		nextDue:      s.statement(sqlNextDue),
		findLane:     s.statement(sqlFindLane),
		ensureTenant: s.statement(sqlEnsureTenant),
		ensureLane:   s.statement(sqlEnsureLane),

		findCapability:   s.statement(sqlFindCapability),
		ensureCapability: s.statement(sqlEnsureCapability),
		renewIntents:     s.statement(sqlRenewIntents),
		nextIntent:       s.statement(sqlNextIntent),
		listIntents:      s.statement(sqlListIntents),
		claimIntents:     s.statement(sqlClaimIntents),
		applyIntents:     s.statement(sqlApplyIntents),

		publish:        s.statement(sqlPublish),
		loadRevision:   s.statement(sqlLoadRevision),
		get:            s.statement(sqlGet),
		list:           s.statement(sqlList),
		history:        s.statement(sqlHistory),
		pruneInstances: s.statement(sqlPrune),
		pruneEvents:    s.statement(sqlPruneEvents),
		pruneWakeups:   s.statement(sqlPruneWakeups),
		oldestSnapshot: s.statement(sqlOldestSnapshot),
	}
}
