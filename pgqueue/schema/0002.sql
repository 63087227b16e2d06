-- Version 2: the dispatch of intents.

-- A capability is a pin that intents were made for. They are added with their
-- first intent, and stay.
CREATE TABLE {{schema}}.capability (
    capability_no    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id               text COLLATE "C" NOT NULL,
    contract_version text COLLATE "C" NOT NULL,
    content_digest   text COLLATE "C" NOT NULL,
    -- When a claim served it last beside others; NULL: never.
    served           timestamptz,
    UNIQUE (id, contract_version, content_digest)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

INSERT INTO {{schema}}.capability (id, contract_version, content_digest)
SELECT DISTINCT n.capability_id, n.contract_version, n.content_digest FROM {{schema}}.intent n;

-- What changes of an intent stands behind what does not, so that the log gets
-- only the end of a row.
ALTER TABLE {{schema}}.intent RENAME COLUMN state TO prepared_state;
ALTER TABLE {{schema}}.intent
    ADD COLUMN capability_no         bigint,
    ADD COLUMN requires_confirmation boolean NOT NULL DEFAULT false,
    -- When a claim has something to do; while a lease is held, its end. NULL: not
    -- by itself. Settled and parked intents have none.
    ADD COLUMN due_at                timestamptz,
    ADD COLUMN lease_version         bigint NOT NULL DEFAULT 0,
    ADD COLUMN lease_ends_at         timestamptz,
    ADD COLUMN marked_at             timestamptz,
    ADD COLUMN marked_under          bigint NOT NULL DEFAULT 0,
    -- Raised by everything but renewals. What was decided from a look at the
    -- intent is applied only where this is still the same.
    ADD COLUMN touched               bigint NOT NULL DEFAULT 0,
    ADD COLUMN attempt               integer NOT NULL DEFAULT 0,
    -- The first hand-off that may have had an effect nobody knows of; 0 for none.
    ADD COLUMN ambiguous             integer NOT NULL DEFAULT 0,
    ADD COLUMN parked_at             timestamptz,
    ADD COLUMN confirmed_at          timestamptz,
    ADD COLUMN state                 text COLLATE "C",
    ADD COLUMN parked                text COLLATE "C",
    ADD COLUMN lease_owner           text,
    ADD COLUMN confirmed_by          text,
    -- The rest of the intent's progress, as JSON; NULL for none.
    ADD COLUMN progress              text;
UPDATE {{schema}}.intent n SET capability_no = c.capability_no, state = n.prepared_state, due_at = clock_timestamp()
FROM {{schema}}.capability c
WHERE c.id = n.capability_id AND c.contract_version = n.contract_version AND c.content_digest = n.content_digest;
ALTER TABLE {{schema}}.intent
    DROP COLUMN prepared_state,
    DROP COLUMN capability_id,
    DROP COLUMN contract_version,
    DROP COLUMN content_digest,
    ALTER COLUMN capability_no SET NOT NULL,
    ALTER COLUMN state SET NOT NULL,
    SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000);

CREATE INDEX intent_due ON {{schema}}.intent (capability_no, due_at, arrival) WHERE due_at IS NOT NULL;
-- Those that wait for a hand-off, for the end of a pause.
CREATE INDEX intent_waiting ON {{schema}}.intent (tenant_no, instance_no, id)
    WHERE state IN ('prepared', 'awaiting_confirmation', 'authorized', 'retryable');
CREATE INDEX intent_parked ON {{schema}}.intent (tenant_no, capability_no, parked_at, arrival) WHERE parked = 'limit';

-- The limits that were set, and how many intents count against each. An empty id
-- is any.
CREATE TABLE {{schema}}.intent_limit (
    tenant_id     text COLLATE "C" NOT NULL,
    capability_id text COLLATE "C" NOT NULL,
    most          bigint NOT NULL,
    used          bigint NOT NULL,
    PRIMARY KEY (tenant_id, capability_id)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

-- clock is the clock, of which the planner is not told that it moves: it would not
-- merge a view that reads it with what the view is joined to.
CREATE FUNCTION {{schema}}.clock_v1() RETURNS timestamptz
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN clock_timestamp();
END $$;

-- One row per intent with all that is known of it and of what controls it.
CREATE VIEW {{schema}}.intent_record AS
SELECT n.instance_no, n.id, n.tenant_no, n.capability_no, n.touched, n.parked_at,
       i.tenant_id, i.id AS instance_id, i.spec_id, n.run_id, c.id AS capability_id, c.contract_version, c.content_digest,
       n.idempotency_key, n.effect, n.retry_class, n.resource_scope_id,
       n.tenant_epoch, n.instance_epoch, n.resource_epoch, n.lease_epoch, n.action_epoch,
       n.deadline, n.reservation_id, n.reservation_token, n.created_at,
       n.requires_confirmation, n.confirmed_by, n.confirmed_at, n.input,
       n.state, n.due_at, n.parked, n.lease_version, n.lease_owner, n.lease_ends_at,
       n.attempt, n.marked_at, n.marked_under, n.progress,
       t.epoch AS control_tenant_epoch, r.epoch AS control_instance_epoch, coalesce(s.epoch, 0) AS control_resource_epoch,
       t.paused OR r.paused OR coalesce(s.paused, false) AS paused, r.status IN ('completed', 'cancelled') AS finished,
       EXISTS (SELECT 1 FROM {{schema}}.intent_limit) AS limited, {{schema}}.clock_v1() AS now
FROM {{schema}}.intent n
JOIN {{schema}}.instance i ON i.instance_no = n.instance_no
JOIN {{schema}}.run r ON r.instance_no = n.instance_no
JOIN {{schema}}.tenant t ON t.tenant_no = n.tenant_no
JOIN {{schema}}.capability c ON c.capability_no = n.capability_no
LEFT JOIN {{schema}}.resource s ON s.tenant_no = n.tenant_no AND s.resource_id = n.resource_scope_id;
