-- Version 1. {{schema}} is replaced by the quoted name of the schema.
--
-- Ids compare by byte, so that order does not depend on the server's locale.
-- JSON is text: what was given comes back as it was. A zero instant is NULL.

-- Tenants are added with their first instance, pause or revision, and stay.
CREATE TABLE {{schema}}.tenant (
    tenant_no      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant_id      text COLLATE "C" NOT NULL UNIQUE,
    epoch          bigint NOT NULL DEFAULT 0,
    resource_epoch bigint NOT NULL DEFAULT 0,
    -- The turn in which a claim served the tenant last; 0: never.
    served         bigint NOT NULL DEFAULT 0,
    paused         boolean NOT NULL DEFAULT false
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

CREATE SEQUENCE {{schema}}.turn;

CREATE TABLE {{schema}}.resource (
    tenant_no   bigint NOT NULL,
    resource_id text COLLATE "C" NOT NULL,
    epoch       bigint NOT NULL,
    paused      boolean NOT NULL,
    PRIMARY KEY (tenant_no, resource_id)
);

-- A lane holds the instances of one tenant and one spec.
CREATE TABLE {{schema}}.lane (
    lane_no   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant_no bigint NOT NULL,
    spec_id   text COLLATE "C" NOT NULL,
    UNIQUE (tenant_no, spec_id)
);

-- When to look into a lane: each runnable instance has a row of its lane here
-- that is not later than its due time. It lets a claim find the lanes that have
-- due work without touching those that wait.
--
-- A commit never lowers a due time, so that only what does (start, delivery,
-- cancel, retry, resume) has to see to the rule: it relies on a row that is
-- early enough by locking it FOR KEY SHARE, or else adds one. Only claims remove
-- rows, and only those that they can lock FOR UPDATE, after which they look for
-- the earliest due time with a new snapshot. Nobody ever waits here for a
-- caller's transaction.
CREATE TABLE {{schema}}.lane_due (
    lane_no bigint NOT NULL,
    due_at  timestamptz NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
CREATE INDEX lane_due_by_time ON {{schema}}.lane_due (due_at, lane_no);
CREATE INDEX lane_due_by_lane ON {{schema}}.lane_due (lane_no, due_at);

-- What is started and never changes.
CREATE TABLE {{schema}}.instance (
    instance_no                bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant_id                  text COLLATE "C" NOT NULL,
    id                         text COLLATE "C" NOT NULL,
    tenant_no                  bigint NOT NULL,
    lane_no                    bigint NOT NULL,
    run_id                     text NOT NULL,
    subject_id                 text NOT NULL,
    spec_id                    text COLLATE "C" NOT NULL,
    definition_id              text NOT NULL,
    -- Revisions are unsigned; the upper half is stored as negative numbers.
    workflow_revision          bigint NOT NULL,
    workflow_revision_digest   text NOT NULL,
    execution_profile_id       text NOT NULL,
    execution_profile_revision bigint NOT NULL,
    execution_profile_digest   text NOT NULL,
    kernel_abi_version         text NOT NULL,
    capability_pins            text,
    lifecycle                  text,
    config                     text,
    UNIQUE (tenant_id, id)
);

-- What changes: one narrow row per instance, updated in place where neither
-- due_at nor runnable moves. Columns that seldom change come first, for only what
-- lies between the first and the last changed byte of a row goes to the log.
CREATE TABLE {{schema}}.run (
    instance_no        bigint PRIMARY KEY,
    tenant_no          bigint NOT NULL,
    lane_no            bigint NOT NULL,
    created_at         timestamptz NOT NULL,
    -- What the claim captured.
    lease_epoch        bigint NOT NULL DEFAULT 0,
    lease_tenant_epoch bigint NOT NULL DEFAULT 0,
    -- Raised by everything but claim, renewal and commit. A commit decides from
    -- what its claim saw, and applies only where lease_version, state_version and
    -- touched are still the same.
    touched            bigint NOT NULL DEFAULT 0,
    epoch              bigint NOT NULL DEFAULT 0,
    raised             integer NOT NULL DEFAULT 0,
    -- Active and not paused itself: it has a place in the index.
    runnable           boolean NOT NULL,
    paused             boolean NOT NULL DEFAULT false,
    cancel_requested   boolean NOT NULL DEFAULT false,
    -- The lease was kept by the commit that made state_version.
    kept               boolean NOT NULL DEFAULT false,
    due_at             timestamptz,
    -- The fence.
    lease_version      bigint NOT NULL DEFAULT 0,
    lease_ends_at      timestamptz,
    state_version      bigint NOT NULL DEFAULT 0,
    -- A hash of the latest delivery key; the key itself is in its event.
    delivery_hash      bigint NOT NULL DEFAULT 0,
    last_progress_at   timestamptz,
    last_event_at      timestamptz,
    retry_at           timestamptz,
    finished_at        timestamptz,
    -- The first due time of pending wakeups that the latest claim did not hold.
    wakeup_at          timestamptz,
    -- The first lifecycle timer that is still to be raised.
    timer_at           timestamptz,
    attempt            integer NOT NULL DEFAULT 0,
    pending            integer NOT NULL DEFAULT 0,
    status             text NOT NULL,
    lease_owner        text,
    triggered          bigint,
    matched            bigint,
    succeeded          bigint,
    action_terminal    bigint,
    set_aside_until    timestamptz,
    set_aside_reason   text,
    release_reason     text,
    failure_class      text,
    last_error         text,
    -- NULL: the instance's config.
    state              text
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000);
CREATE INDEX run_due ON {{schema}}.run (lane_no, due_at, instance_no) WHERE runnable;
CREATE INDEX run_finished ON {{schema}}.run (finished_at) WHERE finished_at IS NOT NULL;

CREATE TABLE {{schema}}.event (
    instance_no     bigint NOT NULL,
    state_version   bigint NOT NULL,
    lease_version   bigint NOT NULL,
    at              timestamptz NOT NULL,
    type            text NOT NULL,
    -- Packed: hexadecimal digits are stored as bytes.
    digest          bytea NOT NULL,
    delivery_key    bytea NOT NULL,
    delivery_digest bytea NOT NULL,
    worker_id       text,
    payload         text,
    PRIMARY KEY (instance_no, state_version)
);

CREATE TABLE {{schema}}.wakeup (
    instance_no bigint NOT NULL,
    id          text COLLATE "C" NOT NULL,
    arrival     bigint GENERATED ALWAYS AS IDENTITY,
    due_at      timestamptz NOT NULL,
    consumed_at timestamptz,
    -- Whether run knows of it. A delivery in a caller's transaction must not
    -- lock the row there and leaves it to the next claim.
    counted     boolean NOT NULL,
    -- Where a claim cannot hold all, these come first.
    urgent      boolean NOT NULL GENERATED ALWAYS AS (kind IN ('action', 'child', 'gate', 'timer')) STORED,
    kind        text NOT NULL,
    branch_id   text NOT NULL,
    digest      text NOT NULL,
    payload     text,
    PRIMARY KEY (instance_no, id)
);
CREATE INDEX wakeup_pending ON {{schema}}.wakeup (instance_no, urgent, due_at, arrival) WHERE counted AND consumed_at IS NULL;
CREATE INDEX wakeup_inbox ON {{schema}}.wakeup (arrival) WHERE NOT counted;
CREATE INDEX wakeup_consumed ON {{schema}}.wakeup (consumed_at) WHERE consumed_at IS NOT NULL;

CREATE TABLE {{schema}}.intent (
    instance_no           bigint NOT NULL,
    id                    text COLLATE "C" NOT NULL,
    arrival               bigint GENERATED ALWAYS AS IDENTITY,
    tenant_no             bigint NOT NULL,
    state                 text NOT NULL,
    run_id                text NOT NULL,
    capability_id         text COLLATE "C" NOT NULL,
    contract_version      text NOT NULL,
    content_digest        text NOT NULL,
    idempotency_key       text NOT NULL,
    effect                text NOT NULL,
    retry_class           text NOT NULL,
    tenant_epoch          bigint NOT NULL,
    instance_epoch        bigint NOT NULL,
    resource_epoch        bigint NOT NULL,
    resource_scope_id     text COLLATE "C" NOT NULL,
    lease_epoch           bigint NOT NULL,
    action_epoch          bigint NOT NULL,
    deadline              timestamptz,
    reservation_id        text,
    reservation_token     bigint,
    created_at            timestamptz,
    prepared_at           timestamptz NOT NULL,
    input                 text,
    PRIMARY KEY (instance_no, id)
);

CREATE TABLE {{schema}}.revision (
    tenant_no             bigint NOT NULL,
    definition_id         text COLLATE "C" NOT NULL,
    revision              bigint NOT NULL,
    content_digest        text NOT NULL,
    -- The digest of the content itself; content_digest may be the caller's own.
    content               text NOT NULL,
    spec_id               text NOT NULL,
    spec                  text NOT NULL,
    kernel_abi_version    text NOT NULL,
    capabilities          text,
    expression_versions   text,
    dependency_set_digest text NOT NULL,
    PRIMARY KEY (tenant_no, definition_id, revision)
);

-- One row per instance with all that is known of it. now is the clock.
CREATE VIEW {{schema}}.snapshot AS
SELECT i.instance_no, i.tenant_no, i.lane_no, i.tenant_id, i.id, i.run_id, i.subject_id, i.spec_id, i.definition_id,
       i.workflow_revision, i.workflow_revision_digest, i.execution_profile_id, i.execution_profile_revision,
       i.execution_profile_digest, i.kernel_abi_version, i.capability_pins, i.lifecycle, i.config,
       r.created_at, r.due_at, r.lease_version, r.state_version, r.touched, r.epoch,
       t.epoch AS tenant_epoch, t.resource_epoch, r.delivery_hash, r.last_progress_at, r.last_event_at, r.retry_at,
       r.wakeup_at, r.attempt, r.pending, r.raised, r.cancel_requested, r.triggered, r.matched, r.succeeded,
       r.action_terminal, r.state,
       r.status, r.paused, t.paused AS tenant_paused, r.finished_at, r.lease_ends_at, r.lease_owner, r.lease_epoch,
       r.lease_tenant_epoch, r.kept, r.set_aside_until, r.set_aside_reason, r.release_reason, r.failure_class, r.last_error,
       e.delivery_key, e.delivery_digest, clock_timestamp() AS now
FROM {{schema}}.instance i
JOIN {{schema}}.run r ON r.instance_no = i.instance_no
JOIN {{schema}}.tenant t ON t.tenant_no = i.tenant_no
LEFT JOIN {{schema}}.event e ON e.instance_no = r.instance_no AND e.state_version = r.state_version;
