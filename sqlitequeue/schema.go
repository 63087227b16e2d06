package sqlitequeue

// migrations are the steps of the schema; step n brings it to version n+1. A
// step that has landed is never changed.
//
// Instants are integers of microseconds since 1970, UTC. Keys are integers of
// this file; what callers named is text beside them.
var migrations = [...][]string{
	{
		// One row for each tenant that was ever started, paused or published in.
		// turn orders tenants by when they were served last, 0 being never.
		`CREATE TABLE supervisor_tenants (
			key            INTEGER PRIMARY KEY,
			tenant_id      TEXT NOT NULL UNIQUE,
			epoch          INTEGER NOT NULL DEFAULT 0,
			paused         INTEGER NOT NULL DEFAULT 0,
			resource_epoch INTEGER NOT NULL DEFAULT 0,
			turn           INTEGER NOT NULL DEFAULT 0
		) STRICT`,
		`CREATE INDEX supervisor_tenants_turn ON supervisor_tenants (turn)`,

		// A lane holds the instances of one tenant and spec. ready_at is at or
		// before the first ready_at of its records: a claim looks into lanes that
		// may have something due and into no others. ready_event is the last
		// change that made something due in it.
		`CREATE TABLE supervisor_lanes (
			key         INTEGER PRIMARY KEY AUTOINCREMENT,
			tenant      INTEGER NOT NULL,
			spec_id     TEXT NOT NULL,
			ready_at    INTEGER,
			ready_event INTEGER NOT NULL DEFAULT 0,
			UNIQUE (tenant, spec_id)
		) STRICT`,
		`CREATE INDEX supervisor_lanes_ready ON supervisor_lanes (ready_at) WHERE ready_at IS NOT NULL`,

		// What was started; never updated. Keys are never used again, so that
		// what was read under one stays true.
		`CREATE TABLE supervisor_instances (
			key               INTEGER PRIMARY KEY AUTOINCREMENT,
			tenant_id         TEXT NOT NULL,
			id                TEXT NOT NULL,
			run_id            TEXT NOT NULL,
			subject_id        TEXT NOT NULL,
			spec_id           TEXT NOT NULL,
			definition_id     TEXT NOT NULL,
			workflow_revision INTEGER NOT NULL,
			workflow_digest   TEXT NOT NULL,
			profile_id        TEXT NOT NULL,
			profile_revision  INTEGER NOT NULL,
			profile_digest    TEXT NOT NULL,
			kernel_abi        TEXT NOT NULL,
			capability_pins   TEXT,
			lifecycle         TEXT,
			config            TEXT,
			UNIQUE (tenant_id, id)
		) STRICT`,

		// What changes with every claim and commit, kept narrow. version counts
		// the changes: each is made on condition that there was none since the
		// row was read. ready_at is when the row may be claimed, NULL where no
		// passage of time makes it so (leased, paused, not active); reap_at is at
		// or before the end of its lease, NULL where no lease keeps it from being
		// claimed. lease_ends_at is not NULL from the claim to its commit or
		// release, also when the lease has ended. state is here where it is small,
		// so that a commit writes one row; beside says that there is a row of
		// texts, too. Both NULL is the instance's configuration.
		`CREATE TABLE supervisor_records (
			key                  INTEGER PRIMARY KEY,
			tenant               INTEGER NOT NULL,
			lane                 INTEGER NOT NULL,
			version              INTEGER NOT NULL,
			ready_at             INTEGER,
			reap_at              INTEGER,
			due_at               INTEGER,
			state_version        INTEGER NOT NULL,
			delivery_hash        INTEGER NOT NULL,
			last_progress_at     INTEGER,
			lease_version        INTEGER NOT NULL,
			lease_ends_at        INTEGER,
			lease_kept           INTEGER NOT NULL,
			lease_tenant_epoch   INTEGER NOT NULL,
			lease_instance_epoch INTEGER NOT NULL,
			claimed_at           INTEGER,
			worker_id            TEXT,
			status               INTEGER NOT NULL,
			created_at           INTEGER NOT NULL,
			finished_at          INTEGER,
			cancel_requested     INTEGER NOT NULL,
			paused               INTEGER NOT NULL,
			instance_epoch       INTEGER NOT NULL,
			attempt              INTEGER NOT NULL,
			retry_at             INTEGER,
			triggered            INTEGER NOT NULL,
			matched              INTEGER NOT NULL,
			succeeded            INTEGER NOT NULL,
			action_terminal      INTEGER NOT NULL,
			last_event_at        INTEGER,
			raised               INTEGER NOT NULL,
			wakeups              INTEGER NOT NULL,
			set_aside_until      INTEGER,
			beside               INTEGER NOT NULL,
			state                TEXT
		) STRICT`,
		`CREATE INDEX supervisor_records_ready ON supervisor_records (lane, ready_at) WHERE ready_at IS NOT NULL`,
		`CREATE INDEX supervisor_records_reap ON supervisor_records (reap_at) WHERE reap_at IS NOT NULL`,
		`CREATE INDEX supervisor_records_finished ON supervisor_records (finished_at) WHERE finished_at IS NOT NULL`,

		// What is large or rare: a state that is not small, and why the instance
		// failed, was given back or set aside.
		`CREATE TABLE supervisor_texts (
			key              INTEGER PRIMARY KEY,
			state            TEXT,
			last_error       TEXT,
			failure_class    TEXT,
			release_reason   TEXT,
			set_aside_reason TEXT
		) STRICT`,

		// seq makes events of all instances go to the end of one table, so that
		// those of a transaction share pages. Its index is a second fence.
		`CREATE TABLE supervisor_events (
			seq             INTEGER PRIMARY KEY,
			instance        INTEGER NOT NULL,
			state_version   INTEGER NOT NULL,
			type            TEXT NOT NULL,
			digest          TEXT NOT NULL,
			delivery_key    TEXT NOT NULL,
			delivery_digest TEXT NOT NULL,
			worker_id       TEXT,
			lease_version   INTEGER NOT NULL,
			payload         TEXT,
			at              INTEGER NOT NULL,
			UNIQUE (instance, state_version)
		) STRICT`,

		// seq is the order of arrival. claim is the lease version of the latest
		// claim that contained the wakeup. urgent ones come first where a claim
		// cannot hold all. Once consumed, only id and digest are left.
		`CREATE TABLE supervisor_wakeups (
			seq         INTEGER PRIMARY KEY,
			instance    INTEGER NOT NULL,
			id          TEXT NOT NULL,
			digest      TEXT NOT NULL,
			kind        TEXT,
			branch_id   TEXT,
			payload     TEXT,
			urgent      INTEGER NOT NULL,
			due_at      INTEGER NOT NULL,
			claim       INTEGER,
			consumed_at INTEGER,
			UNIQUE (instance, id)
		) STRICT`,
		`CREATE INDEX supervisor_wakeups_pending ON supervisor_wakeups (instance, urgent, due_at) WHERE consumed_at IS NULL`,

		`CREATE TABLE supervisor_intents (
			instance            INTEGER NOT NULL,
			id                  TEXT NOT NULL,
			seq                 INTEGER NOT NULL,
			state               TEXT NOT NULL,
			capability_id       TEXT NOT NULL,
			capability_contract TEXT NOT NULL,
			capability_digest   TEXT NOT NULL,
			idempotency_key     TEXT NOT NULL,
			effect              TEXT NOT NULL,
			retry_class         TEXT NOT NULL,
			input               TEXT,
			tenant_epoch        INTEGER NOT NULL,
			instance_epoch      INTEGER NOT NULL,
			resource_epoch      INTEGER NOT NULL,
			resource_id         TEXT,
			lease_epoch         INTEGER NOT NULL,
			action_epoch        INTEGER NOT NULL,
			deadline            INTEGER,
			reservation_id      TEXT,
			reservation_token   INTEGER,
			made_at             INTEGER,
			created_at          INTEGER NOT NULL,
			PRIMARY KEY (instance, id)
		) STRICT`,

		// A resource has a row from its first pause on.
		`CREATE TABLE supervisor_resources (
			tenant      INTEGER NOT NULL,
			resource_id TEXT NOT NULL,
			epoch       INTEGER NOT NULL,
			paused      INTEGER NOT NULL,
			PRIMARY KEY (tenant, resource_id)
		) STRICT, WITHOUT ROWID`,

		`CREATE TABLE supervisor_revisions (
			tenant_id     TEXT NOT NULL,
			definition_id TEXT NOT NULL,
			revision      INTEGER NOT NULL,
			spec          TEXT NOT NULL,
			content       TEXT NOT NULL,
			published_at  INTEGER NOT NULL,
			PRIMARY KEY (tenant_id, definition_id, revision)
		) STRICT`,
	},
	{
		// Pins that intents were ever made for; never updated or removed.
		`CREATE TABLE supervisor_capabilities (
			key      INTEGER PRIMARY KEY,
			id       TEXT NOT NULL,
			contract TEXT NOT NULL,
			digest   TEXT NOT NULL,
			UNIQUE (id, contract, digest)
		) STRICT`,

		// What changes when an intent is dispatched comes first, so that its
		// columns are found without reading the rest. version counts changes.
		// due_at is when a claim has something to do, the end of the lease where
		// one is held, NULL where no passage of time makes it so. parked is 0, 1
		// by a pause, 2 by a limit. idle says that it waits for a hand-off and is
		// neither leased nor was it due when it was written: what a resume makes
		// due. limit_key is the limit whose slot it waits for, or was made due to
		// take; waits_since is when it first had to. An input that is not small is
		// in a table of its own, lest it is copied with every change.
		`ALTER TABLE supervisor_intents RENAME TO supervisor_intents_1`,
		`CREATE TABLE supervisor_intents (
			key                   INTEGER PRIMARY KEY,
			version               INTEGER NOT NULL,
			instance              INTEGER NOT NULL,
			tenant                INTEGER NOT NULL,
			capability            INTEGER NOT NULL,
			state                 TEXT NOT NULL,
			due_at                INTEGER,
			parked                INTEGER NOT NULL,
			idle                  INTEGER NOT NULL,
			limit_key             INTEGER,
			waits_since           INTEGER,
			lease_version         INTEGER NOT NULL,
			lease_owner           TEXT,
			lease_ends_at         INTEGER,
			id                    TEXT NOT NULL,
			seq                   INTEGER NOT NULL,
			idempotency_key       TEXT NOT NULL,
			effect                TEXT NOT NULL,
			retry_class           TEXT NOT NULL,
			tenant_epoch          INTEGER NOT NULL,
			instance_epoch        INTEGER NOT NULL,
			resource_epoch        INTEGER NOT NULL,
			resource_id           TEXT,
			lease_epoch           INTEGER NOT NULL,
			action_epoch          INTEGER NOT NULL,
			deadline              INTEGER,
			reservation_id        TEXT,
			reservation_token     INTEGER,
			made_at               INTEGER,
			created_at            INTEGER NOT NULL,
			requires_confirmation INTEGER NOT NULL,
			confirmed_by          TEXT,
			confirmed_at          INTEGER,
			progress              TEXT,
			input                 TEXT,
			UNIQUE (instance, id)
		) STRICT`,
		`INSERT INTO supervisor_capabilities (id, contract, digest)
			SELECT DISTINCT capability_id, capability_contract, capability_digest FROM supervisor_intents_1`,
		// Up to now nothing was dispatched: all of them wait for it.
		`INSERT INTO supervisor_intents (version, instance, tenant, capability, state, due_at, parked, idle, lease_version,
				id, seq, idempotency_key, effect, retry_class, tenant_epoch, instance_epoch, resource_epoch, resource_id,
				lease_epoch, action_epoch, deadline, reservation_id, reservation_token, made_at, created_at, requires_confirmation, input)
			SELECT 0, a.instance, r.tenant, c.key, a.state, a.created_at, 0, 0, 0,
				a.id, a.seq, a.idempotency_key, a.effect, a.retry_class, a.tenant_epoch, a.instance_epoch, a.resource_epoch, a.resource_id,
				a.lease_epoch, a.action_epoch, a.deadline, a.reservation_id, a.reservation_token, a.made_at, a.created_at, 0, a.input
			FROM supervisor_intents_1 a
			CROSS JOIN supervisor_records r ON r.key = a.instance
			CROSS JOIN supervisor_capabilities c ON c.id = a.capability_id AND c.contract = a.capability_contract AND c.digest = a.capability_digest
			ORDER BY a.created_at, a.instance, a.seq`,
		`DROP TABLE supervisor_intents_1`,
		// Settled, unknown and parked intents are not in it.
		`CREATE INDEX supervisor_intents_due ON supervisor_intents (capability, due_at) WHERE due_at IS NOT NULL`,
		`CREATE INDEX supervisor_intents_idle ON supervisor_intents (tenant, resource_id) WHERE idle = 1`,
		`CREATE INDEX supervisor_intents_limit ON supervisor_intents (limit_key, parked, capability, waits_since) WHERE limit_key IS NOT NULL`,
		`CREATE TABLE supervisor_intent_inputs (
			key   INTEGER PRIMARY KEY,
			input TEXT NOT NULL
		) STRICT`,

		// One row for each limit that was set; an empty id covers all. used counts
		// the intents that it covers between mark and settlement; waiting says that
		// some may be parked for one of its slots. Keys are never used again.
		`CREATE TABLE supervisor_limits (
			key           INTEGER PRIMARY KEY AUTOINCREMENT,
			tenant_id     TEXT NOT NULL,
			capability_id TEXT NOT NULL,
			slots         INTEGER NOT NULL,
			used          INTEGER NOT NULL,
			waiting       INTEGER NOT NULL DEFAULT 0,
			UNIQUE (tenant_id, capability_id)
		) STRICT`,
		`CREATE INDEX supervisor_limits_free ON supervisor_limits (key) WHERE waiting = 1 AND used < slots`,
	},
}

// SchemaVersion is the version of the schema that this package works with.
const SchemaVersion = len(migrations)

// The table of versions is outside the steps: it says which were taken.
const (
	createSchemaTable = `CREATE TABLE IF NOT EXISTS supervisor_schema (
		version    INTEGER PRIMARY KEY,
		applied_at INTEGER NOT NULL
	) STRICT`
	selectSchemaTable   = `SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'supervisor_schema'`
	selectSchemaVersion = `SELECT coalesce(max(version), 0) FROM supervisor_schema`
	insertSchemaVersion = `INSERT INTO supervisor_schema (version, applied_at) VALUES (?, ?)`
)
