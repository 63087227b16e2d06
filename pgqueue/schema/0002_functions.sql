-- Functions of version 2, for intents.
--
-- Locks are taken in one order: the barrier (shared, by everything that relies on
-- what controls intents), tenants, runs by number, intents by instance and id,
-- limits. Claims do not wait for locks, so that they may begin with intents.

-- load_intents locks intents, and the runs of those that tell, and reads them.
CREATE FUNCTION {{schema}}.load_intents_v1(
    p_barrier bigint, p_tenant text[], p_instance text[], p_id text[], p_tells boolean[]) RETURNS SETOF {{schema}}.intent_record
LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_no bigint[];
BEGIN
    PERFORM pg_advisory_xact_lock_shared(p_barrier);
    SELECT array_agg((SELECT i.instance_no FROM {{schema}}.instance i
                      WHERE i.tenant_id = m.tenant_id AND i.id = m.instance_id) ORDER BY m.place)
    INTO v_no
    FROM unnest(p_tenant, p_instance) WITH ORDINALITY AS m(tenant_id, instance_id, place);
    IF true = ANY (p_tells) THEN
        PERFORM 1
        FROM (SELECT DISTINCT m.no FROM unnest(v_no, p_tells) AS m(no, tells) WHERE m.tells) m
        JOIN {{schema}}.run r ON r.instance_no = m.no
        ORDER BY r.instance_no FOR NO KEY UPDATE OF r;
    END IF;
    PERFORM 1
    FROM unnest(v_no, p_id) AS m(no, id)
    JOIN {{schema}}.intent n ON n.instance_no = m.no AND n.id = m.id
    ORDER BY n.instance_no, n.id FOR NO KEY UPDATE OF n;
    -- A statement of its own, for the snapshot must be younger than the locks.
    RETURN QUERY
    SELECT v.* FROM unnest(v_no, p_id) AS m(no, id)
    JOIN {{schema}}.intent_record v ON v.instance_no = m.no AND v.id = m.id;
END $$;

-- instance_intents locks the intents of an instance that are not settled and
-- reads them.
CREATE FUNCTION {{schema}}.instance_intents_v1(p_no bigint) RETURNS SETOF {{schema}}.intent_record
LANGUAGE plpgsql SET jit = off SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    PERFORM 1 FROM {{schema}}.intent n
    WHERE n.instance_no = p_no AND n.state NOT IN ('succeeded', 'rejected', 'reconciled')
    ORDER BY n.instance_no, n.id FOR NO KEY UPDATE;
    RETURN QUERY
    SELECT v.* FROM {{schema}}.intent_record v
    WHERE v.instance_no = p_no AND v.state NOT IN ('succeeded', 'rejected', 'reconciled');
END $$;

-- unpark_intents makes the intents of an instance, or of a tenant, or of one of
-- its resources, due that wait for a hand-off and are not leased.
CREATE FUNCTION {{schema}}.unpark_intents_v1(p_instance_no bigint, p_tenant_id text, p_resource_id text) RETURNS bigint
LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_tenant bigint;
    v_nos    bigint[];
    v_ids    text[];
    v_now    timestamptz;
    v_count  bigint;
BEGIN
    IF p_instance_no IS NULL THEN
        SELECT t.tenant_no INTO v_tenant FROM {{schema}}.tenant t WHERE t.tenant_id = p_tenant_id;
        SELECT array_agg(w.instance_no), array_agg(w.id) INTO v_nos, v_ids
        FROM (SELECT n.instance_no, n.id FROM {{schema}}.intent n
              WHERE n.tenant_no = v_tenant AND n.state IN ('prepared', 'awaiting_confirmation', 'authorized', 'retryable')
                AND (p_resource_id IS NULL OR n.resource_scope_id = p_resource_id)
              ORDER BY n.instance_no, n.id FOR NO KEY UPDATE) w;
    ELSE
        SELECT array_agg(w.instance_no), array_agg(w.id) INTO v_nos, v_ids
        FROM (SELECT n.instance_no, n.id FROM {{schema}}.intent n
              WHERE n.instance_no = p_instance_no AND n.state IN ('prepared', 'awaiting_confirmation', 'authorized', 'retryable')
              ORDER BY n.instance_no, n.id FOR NO KEY UPDATE) w;
    END IF;
    v_now := clock_timestamp();
    UPDATE {{schema}}.intent n SET parked = NULL, parked_at = NULL, due_at = v_now, touched = n.touched + 1
    FROM unnest(v_nos, v_ids) AS w(instance_no, id)
    WHERE n.instance_no = w.instance_no AND n.id = w.id AND (n.lease_ends_at IS NULL OR n.lease_ends_at <= v_now);
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END $$;

-- parked_intents locks, without waiting, the intents of some capabilities (NULL:
-- all) that are parked by a limit and covered by one of some limits (NULL: by any),
-- of each tenant and capability the p_most that are so longest, and reads them.
-- With p_room only where all limits that cover them have room.
CREATE FUNCTION {{schema}}.parked_intents_v1(
    p_ids text[], p_versions text[], p_digests text[], p_limit_tenants text[], p_limit_capabilities text[], p_room boolean,
    p_most integer) RETURNS SETOF {{schema}}.intent_record
LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_wanted     bigint[];
    v_tenant     bigint := 0;
    v_capability bigint := 0;
    v_nos        bigint[] := '{}';
    v_texts      text[] := '{}';
    v_row        record;
BEGIN
    IF p_ids IS NOT NULL THEN
        v_wanted := ARRAY(
            SELECT c.capability_no FROM unnest(p_ids, p_versions, p_digests) AS w(id, contract_version, content_digest)
            JOIN {{schema}}.capability c
              ON c.id = w.id AND c.contract_version = w.contract_version AND c.content_digest = w.content_digest);
    END IF;
    LOOP
        SELECT n.tenant_no, n.capability_no INTO v_row FROM {{schema}}.intent n
        WHERE n.parked = 'limit' AND (n.tenant_no, n.capability_no) > (v_tenant, v_capability)
        ORDER BY n.tenant_no, n.capability_no LIMIT 1;
        EXIT WHEN NOT FOUND;
        v_tenant := v_row.tenant_no;
        v_capability := v_row.capability_no;
        CONTINUE WHEN v_capability <> ALL (v_wanted);
        CONTINUE WHEN p_limit_tenants IS NOT NULL AND NOT EXISTS (
            SELECT 1 FROM unnest(p_limit_tenants, p_limit_capabilities) AS l(tenant_id, capability_id),
                          {{schema}}.tenant t, {{schema}}.capability c
            WHERE t.tenant_no = v_tenant AND c.capability_no = v_capability
              AND (l.tenant_id = '' OR l.tenant_id = t.tenant_id) AND (l.capability_id = '' OR l.capability_id = c.id));
        CONTINUE WHEN p_room AND NOT {{schema}}.room_v1(v_tenant, v_capability);
        FOR v_row IN
            SELECT n.instance_no, n.id FROM {{schema}}.intent n
            WHERE n.parked = 'limit' AND n.tenant_no = v_tenant AND n.capability_no = v_capability
            ORDER BY n.parked_at, n.arrival LIMIT p_most FOR NO KEY UPDATE SKIP LOCKED
        LOOP
            v_nos := v_nos || v_row.instance_no;
            v_texts := v_texts || v_row.id;
        END LOOP;
    END LOOP;
    RETURN QUERY
    SELECT v.* FROM unnest(v_nos, v_texts) AS m(no, id)
    JOIN {{schema}}.intent_record v ON v.instance_no = m.no AND v.id = m.id
    ORDER BY v.parked_at, v.instance_no, v.id;
END $$;

-- room reports whether all limits that cover a tenant's intents of a capability
-- have room.
CREATE FUNCTION {{schema}}.room_v1(p_tenant_no bigint, p_capability_no bigint) RETURNS boolean
LANGUAGE sql AS $$
    SELECT NOT EXISTS (
        SELECT 1 FROM {{schema}}.intent_limit l, {{schema}}.tenant t, {{schema}}.capability c
        WHERE t.tenant_no = p_tenant_no AND c.capability_no = p_capability_no AND l.used >= l.most
          AND (l.tenant_id = '' OR l.tenant_id = t.tenant_id) AND (l.capability_id = '' OR l.capability_id = c.id))
$$;

-- claim_intents locks due intents of some capabilities (NULL: all), without
-- waiting, and reads them: one of each capability in turn, the least recently
-- served first, and within one by due time. The last row has no intent, but in
-- due_at the instant up to which the claim has looked, and limited.
--
-- With p_worker it also leases those of which that is all that the rules ask for:
-- they wait for a hand-off that nothing refuses. With p_mark it marks them, where
-- they may be sent again anyway. The others are read as they are. Where there are
-- limits it does nothing then.
CREATE FUNCTION {{schema}}.claim_intents_v1(
    p_barrier bigint, p_ids text[], p_versions text[], p_digests text[], p_wanted integer,
    p_worker text, p_lease bigint, p_mark boolean) RETURNS SETOF {{schema}}.intent_record
LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_now      timestamptz;
    v_caps     bigint[];
    v_dry      boolean[];
    v_last_due timestamptz[];
    v_last     bigint[];
    v_nos      bigint[] := '{}';
    v_texts    text[] := '{}';
    v_of       integer[] := '{}';
    v_round    integer[] := '{}';
    v_quota    integer;
    v_taken    integer;
    v_ask      integer;
    v_rounds   integer := 0;
    v_row      record;
    v_end      {{schema}}.intent_record%ROWTYPE;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(p_barrier);
    v_now := clock_timestamp();
    v_end.due_at := v_now;
    v_end.limited := EXISTS (SELECT 1 FROM {{schema}}.intent_limit);
    IF p_worker IS NOT NULL AND v_end.limited THEN
        v_end.now := v_now;
        RETURN NEXT v_end;
        RETURN;
    END IF;
    IF p_ids IS NULL THEN
        SELECT array_agg(h.capability_no ORDER BY h.served NULLS FIRST, h.due_at, h.capability_no) INTO v_caps
        FROM (SELECT c.capability_no, c.served,
                     (SELECT n.due_at FROM {{schema}}.intent n
                      WHERE n.capability_no = c.capability_no AND n.due_at <= v_now
                      ORDER BY n.due_at, n.arrival LIMIT 1) AS due_at
              FROM {{schema}}.capability c) h
        WHERE h.due_at IS NOT NULL;
    ELSE
        SELECT array_agg(h.capability_no ORDER BY h.served NULLS FIRST, h.due_at, h.capability_no) INTO v_caps
        FROM (SELECT c.capability_no, c.served,
                     (SELECT n.due_at FROM {{schema}}.intent n
                      WHERE n.capability_no = c.capability_no AND n.due_at <= v_now
                      ORDER BY n.due_at, n.arrival LIMIT 1) AS due_at
              FROM (SELECT DISTINCT * FROM unnest(p_ids, p_versions, p_digests)) AS w(id, contract_version, content_digest)
              JOIN {{schema}}.capability c
                ON c.id = w.id AND c.contract_version = w.contract_version AND c.content_digest = w.content_digest) h
        WHERE h.due_at IS NOT NULL;
    END IF;
    IF v_caps IS NULL THEN
        v_end.now := clock_timestamp();
        RETURN NEXT v_end;
        RETURN;
    END IF;
    v_dry := array_fill(false, ARRAY[cardinality(v_caps)]);
    v_last_due := array_fill('-infinity'::timestamptz, ARRAY[cardinality(v_caps)]);
    v_last := array_fill(0::bigint, ARRAY[cardinality(v_caps)]);
    <<rounds>>
    WHILE false = ANY (v_dry) LOOP
        -- All that have work left take the same share.
        v_quota := greatest(1, (p_wanted - cardinality(v_nos)) / (SELECT count(*) FROM unnest(v_dry) d WHERE NOT d));
        FOR k IN 1..cardinality(v_caps) LOOP
            CONTINUE WHEN v_dry[k];
            v_ask := least(v_quota, p_wanted - cardinality(v_nos));
            v_taken := 0;
            FOR v_row IN
                SELECT n.instance_no, n.id, n.due_at, n.arrival FROM {{schema}}.intent n
                WHERE n.capability_no = v_caps[k] AND n.due_at <= v_now
                  AND (n.due_at, n.arrival) > (v_last_due[k], v_last[k])
                ORDER BY n.due_at, n.arrival LIMIT v_ask
                FOR NO KEY UPDATE SKIP LOCKED
            LOOP
                v_taken := v_taken + 1;
                v_nos := v_nos || v_row.instance_no;
                v_texts := v_texts || v_row.id;
                v_of := v_of || k;
                v_round := v_round || v_rounds + v_taken;
                v_last_due[k] := v_row.due_at;
                v_last[k] := v_row.arrival;
            END LOOP;
            v_dry[k] := v_taken < v_ask;
            EXIT rounds WHEN cardinality(v_nos) >= p_wanted;
        END LOOP;
        v_rounds := v_rounds + v_quota;
    END LOOP;
    -- Where no other has work there is no order to remember.
    IF cardinality(v_caps) > 1 AND cardinality(v_nos) > 0 THEN
        WITH free AS MATERIALIZED (
            SELECT c.capability_no FROM {{schema}}.capability c WHERE c.capability_no = ANY (v_caps) FOR NO KEY UPDATE SKIP LOCKED
        )
        UPDATE {{schema}}.capability c SET served = v_now + g.place * interval '1 microsecond'
        FROM free f
        JOIN (SELECT v_caps[g.cap] AS capability_no, row_number() OVER (ORDER BY max(g.round), g.cap) AS place
              FROM unnest(v_of, v_round) AS g(cap, round) GROUP BY g.cap) g ON g.capability_no = f.capability_no
        WHERE c.capability_no = f.capability_no;
    END IF;
    -- Statements of their own, for their snapshots must be younger than the locks.
    IF p_worker IS NOT NULL THEN
        v_now := clock_timestamp();
        UPDATE {{schema}}.intent n SET
            lease_version = n.lease_version + 1,
            lease_owner = p_worker,
            lease_ends_at = v_now + p_lease * interval '1 microsecond',
            due_at = v_now + p_lease * interval '1 microsecond',
            parked = NULL,
            parked_at = NULL,
            touched = n.touched + 1,
            state = CASE WHEN m.marks THEN 'dispatch_committed' ELSE n.state END,
            attempt = CASE WHEN m.marks THEN n.attempt + 1 ELSE n.attempt END,
            marked_at = CASE WHEN m.marks THEN v_now ELSE n.marked_at END,
            marked_under = CASE WHEN m.marks THEN n.lease_version + 1 ELSE n.marked_under END
        FROM (SELECT p.no, p.id, p_mark AND (i.retry_class = 'native' OR i.effect IN ('pure', 'read')) AS marks
              FROM unnest(v_nos, v_texts) AS p(no, id)
              JOIN {{schema}}.intent i ON i.instance_no = p.no AND i.id = p.id
              JOIN {{schema}}.run r ON r.instance_no = i.instance_no
              JOIN {{schema}}.tenant t ON t.tenant_no = i.tenant_no
              WHERE {{schema}}.plain_v1(i.state, i.deadline, v_now, t.paused OR r.paused, t.epoch <> i.tenant_epoch OR r.epoch <> i.instance_epoch)
                AND (i.resource_scope_id = '' OR NOT EXISTS (
                    SELECT 1 FROM {{schema}}.resource s
                    WHERE s.tenant_no = i.tenant_no AND s.resource_id = i.resource_scope_id AND (s.paused OR s.epoch > i.resource_epoch)))
             ) m
        WHERE n.instance_no = m.no AND n.id = m.id;
    END IF;
    RETURN QUERY
    SELECT v.* FROM unnest(v_nos, v_texts, v_round, v_of) AS m(no, id, round, cap)
    JOIN {{schema}}.intent_record v ON v.instance_no = m.no AND v.id = m.id
    ORDER BY m.round, m.cap;
    v_end.now := CASE WHEN p_worker IS NULL THEN clock_timestamp() ELSE v_now END;
    RETURN NEXT v_end;
END $$;

-- plain reports whether nothing refuses the hand-off of an intent.
CREATE FUNCTION {{schema}}.plain_v1(
    p_state text, p_deadline timestamptz, p_now timestamptz, p_paused boolean, p_stale boolean) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT p_state IN ('prepared', 'authorized', 'retryable') AND (p_deadline IS NULL OR p_deadline > p_now)
       AND NOT p_paused AND NOT p_stale
$$;

-- intent_v1 is what is written of one intent, and the wakeup that tells its
-- instance of it, NULL for none. mark is set where it was decided without a look at
-- what controls it that it may be handed off.
CREATE TYPE {{schema}}.intent_v1 AS (
    instance_no bigint, id text, touched bigint, due_at timestamptz, lease_version bigint, lease_ends_at timestamptz,
    marked_at timestamptz, marked_under bigint, attempt integer, ambiguous integer, parked_at timestamptz, confirmed_at timestamptz,
    state text, parked text, lease_owner text, confirmed_by text, progress text, mark boolean,
    wakeup_id text, wakeup_digest text, wakeup_payload text
);

-- apply_intents writes intents that are still as they were when it was decided,
-- tells their instances, unless these are finished, and returns the places of
-- those that were written. With p_barrier nothing is locked yet, and it does
-- nothing where there are limits.
CREATE FUNCTION {{schema}}.apply_intents_v1(p_barrier bigint, p_now timestamptz, p_intents {{schema}}.intent_v1[]) RETURNS integer[]
LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_done  integer[];
    v_told  bigint[];
    v_lanes bigint;
BEGIN
    IF p_barrier IS NOT NULL THEN
        PERFORM pg_advisory_xact_lock_shared(p_barrier);
        IF EXISTS (SELECT 1 FROM {{schema}}.intent_limit) THEN
            RETURN NULL;
        END IF;
        PERFORM 1
        FROM (SELECT DISTINCT m.instance_no FROM unnest(p_intents) AS m WHERE m.wakeup_id IS NOT NULL) m
        JOIN {{schema}}.run r ON r.instance_no = m.instance_no
        ORDER BY r.instance_no FOR NO KEY UPDATE OF r;
    END IF;
    WITH done AS (
        UPDATE {{schema}}.intent n SET
            due_at = CASE WHEN m.mark THEN n.due_at ELSE m.due_at END,
            lease_version = m.lease_version,
            lease_ends_at = CASE WHEN m.mark THEN n.lease_ends_at ELSE m.lease_ends_at END,
            marked_at = m.marked_at,
            marked_under = m.marked_under,
            touched = n.touched + 1,
            attempt = m.attempt,
            ambiguous = m.ambiguous,
            parked_at = m.parked_at,
            confirmed_at = m.confirmed_at,
            state = m.state,
            parked = m.parked,
            lease_owner = m.lease_owner,
            confirmed_by = m.confirmed_by,
            progress = m.progress
        FROM unnest(p_intents) WITH ORDINALITY AS m
        WHERE n.instance_no = m.instance_no AND n.id = m.id AND n.touched = m.touched
          AND (NOT m.mark OR (
              EXISTS (SELECT 1 FROM {{schema}}.run r JOIN {{schema}}.tenant t ON t.tenant_no = r.tenant_no
                      WHERE r.instance_no = n.instance_no AND {{schema}}.plain_v1(n.state, n.deadline, p_now,
                          t.paused OR r.paused, t.epoch <> n.tenant_epoch OR r.epoch <> n.instance_epoch))
              AND (n.resource_scope_id = '' OR NOT EXISTS (
                  SELECT 1 FROM {{schema}}.resource s
                  WHERE s.tenant_no = n.tenant_no AND s.resource_id = n.resource_scope_id AND (s.paused OR s.epoch > n.resource_epoch)))))
        RETURNING m.ordinality AS place, n.instance_no, m.wakeup_id, m.wakeup_digest, m.wakeup_payload
    ), told AS (
        INSERT INTO {{schema}}.wakeup (instance_no, id, due_at, counted, kind, branch_id, digest, payload)
        SELECT d.instance_no, d.wakeup_id, p_now, true, 'action', '', d.wakeup_digest, d.wakeup_payload
        FROM done d JOIN {{schema}}.run r ON r.instance_no = d.instance_no
        WHERE d.wakeup_id IS NOT NULL AND r.status NOT IN ('completed', 'cancelled')
        ON CONFLICT (instance_no, id) DO NOTHING
        RETURNING instance_no
    )
    SELECT (SELECT array_agg(d.place::integer) FROM done d), (SELECT array_agg(t.instance_no ORDER BY t.instance_no) FROM told t)
    INTO v_done, v_told;
    IF v_told IS NOT NULL THEN
        WITH runs AS (
            UPDATE {{schema}}.run r SET
                pending = r.pending + c.arrived,
                wakeup_at = least(r.wakeup_at, p_now),
                due_at = CASE WHEN r.status = 'active' THEN least(r.due_at, greatest(p_now, r.retry_at)) ELSE r.due_at END,
                touched = r.touched + 1
            FROM (SELECT t.no, count(*)::integer AS arrived FROM unnest(v_told) AS t(no) GROUP BY t.no ORDER BY t.no) c
            WHERE r.instance_no = c.no
            RETURNING r.lane_no, r.due_at, r.runnable
        )
        SELECT count(*) INTO v_lanes
        FROM (SELECT r.lane_no, min(r.due_at) AS due_at FROM runs r WHERE r.runnable GROUP BY r.lane_no ORDER BY r.lane_no) l,
             LATERAL {{schema}}.announce_v1(l.lane_no, l.due_at);
    END IF;
    RETURN v_done;
END $$;

-- renew_intents extends leases and returns a verdict for each: 0 extended, 1 lost.
CREATE FUNCTION {{schema}}.renew_intents_v1(
    p_tenant text[], p_instance text[], p_id text[], p_version bigint[], p_worker text[], p_duration bigint[]) RETURNS integer[]
LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_verdict integer[] := array_fill(1, ARRAY[cardinality(p_id)]);
    v_row     record;
BEGIN
    FOR v_row IN
        SELECT i.instance_no, m.id, m.version, m.worker, m.duration, m.place
        FROM unnest(p_tenant, p_instance, p_id, p_version, p_worker, p_duration)
            WITH ORDINALITY AS m(tenant_id, instance_id, id, version, worker, duration, place)
        JOIN {{schema}}.instance i ON i.tenant_id = m.tenant_id AND i.id = m.instance_id
        ORDER BY i.instance_no, m.id COLLATE "C"
    LOOP
        UPDATE {{schema}}.intent n SET
            lease_ends_at = clock_timestamp() + v_row.duration * interval '1 microsecond',
            due_at = clock_timestamp() + v_row.duration * interval '1 microsecond'
        WHERE n.instance_no = v_row.instance_no AND n.id = v_row.id AND n.lease_version = v_row.version
          AND n.lease_owner = v_row.worker AND n.lease_ends_at > clock_timestamp();
        IF FOUND THEN
            v_verdict[v_row.place] := 0;
        END IF;
    END LOOP;
    RETURN v_verdict;
END $$;

-- next_intent returns when a claim of some capabilities (NULL: all) may find what
-- one that has looked up to an instant did not, and whether something is there
-- that it left: what was locked then, or what is parked by a limit that has room.
CREATE FUNCTION {{schema}}.next_intent_v1(
    p_ids text[], p_versions text[], p_digests text[], p_since timestamptz,
    OUT next_at timestamptz, OUT left_over boolean, OUT now timestamptz)
LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_caps bigint[];
BEGIN
    IF p_ids IS NULL THEN
        v_caps := ARRAY(SELECT c.capability_no FROM {{schema}}.capability c);
    ELSE
        v_caps := ARRAY(
            SELECT c.capability_no FROM unnest(p_ids, p_versions, p_digests) AS w(id, contract_version, content_digest)
            JOIN {{schema}}.capability c
              ON c.id = w.id AND c.contract_version = w.contract_version AND c.content_digest = w.content_digest);
    END IF;
    SELECT min(d.due_at), coalesce(bool_or(d.was_due), false) INTO next_at, left_over
    FROM (
        SELECT (SELECT n.due_at FROM {{schema}}.intent n
                WHERE n.capability_no = c.no AND n.due_at > p_since ORDER BY n.due_at, n.arrival LIMIT 1) AS due_at,
               EXISTS (SELECT 1 FROM {{schema}}.intent n WHERE n.capability_no = c.no AND n.due_at <= p_since) AS was_due
        FROM unnest(v_caps) AS c(no)
    ) d;
    IF NOT left_over THEN
        left_over := {{schema}}.parked_with_room_v1(v_caps);
    END IF;
    now := clock_timestamp();
END $$;

-- parked_with_room reports whether an intent of some capabilities is parked by a
-- limit though all limits that cover it have room.
CREATE FUNCTION {{schema}}.parked_with_room_v1(p_caps bigint[]) RETURNS boolean
LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_tenant     bigint := 0;
    v_capability bigint := 0;
    v_row        record;
BEGIN
    LOOP
        SELECT n.tenant_no, n.capability_no INTO v_row FROM {{schema}}.intent n
        WHERE n.parked = 'limit' AND (n.tenant_no, n.capability_no) > (v_tenant, v_capability)
        ORDER BY n.tenant_no, n.capability_no LIMIT 1;
        IF NOT FOUND THEN
            RETURN false;
        END IF;
        v_tenant := v_row.tenant_no;
        v_capability := v_row.capability_no;
        CONTINUE WHEN v_capability <> ALL (p_caps);
        IF {{schema}}.room_v1(v_tenant, v_capability) THEN
            RETURN true;
        END IF;
    END LOOP;
END $$;

-- set_limit sets a limit, or removes it where p_most is 0. Its caller holds the
-- barrier alone, so that nothing is marked meanwhile. Only a new limit has to
-- count what is in flight.
CREATE FUNCTION {{schema}}.set_limit_v1(p_tenant_id text, p_capability_id text, p_most bigint) RETURNS void
LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_used bigint;
BEGIN
    IF p_most = 0 THEN
        DELETE FROM {{schema}}.intent_limit l WHERE l.tenant_id = p_tenant_id AND l.capability_id = p_capability_id;
        RETURN;
    END IF;
    UPDATE {{schema}}.intent_limit l SET most = p_most WHERE l.tenant_id = p_tenant_id AND l.capability_id = p_capability_id;
    IF FOUND THEN
        RETURN;
    END IF;
    -- What is in flight is always due or leased.
    SELECT count(*) INTO v_used
    FROM {{schema}}.capability c
    JOIN {{schema}}.intent n ON n.capability_no = c.capability_no
    JOIN {{schema}}.tenant t ON t.tenant_no = n.tenant_no
    WHERE (p_capability_id = '' OR c.id = p_capability_id) AND (p_tenant_id = '' OR t.tenant_id = p_tenant_id)
      AND n.due_at IS NOT NULL AND n.state IN ('dispatch_committed', 'executing');
    INSERT INTO {{schema}}.intent_limit (tenant_id, capability_id, most, used) VALUES (p_tenant_id, p_capability_id, p_most, v_used);
END $$;

-- in_flight reports whether an intent may have, or have had, an effect of which the
-- outcome is not known.
CREATE FUNCTION {{schema}}.in_flight_v1(p_state text, p_ambiguous integer) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT p_state IN ('dispatch_committed', 'executing', 'unknown')
        OR p_ambiguous <> 0 AND p_state IN ('prepared', 'awaiting_confirmation', 'authorized', 'retryable')
$$;

-- prune removes instances that finished before an instant, with all their rows
-- but for those with an intent in flight, and returns how many: at most p_most, and
-- as many as have p_rows rows, though always one. Their rows are looked for once
-- they are locked, when nobody can add more, save deliveries that are still on
-- their way: the claim that finds those removes them.
CREATE FUNCTION {{schema}}.prune_v1(p_before timestamptz, p_most bigint, p_rows bigint) RETURNS bigint
LANGUAGE plpgsql SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_nos bigint[];
BEGIN
    v_nos := ARRAY(
        SELECT r.instance_no FROM {{schema}}.run r
        WHERE r.finished_at < p_before AND NOT EXISTS (
            SELECT 1 FROM {{schema}}.intent n
            WHERE n.instance_no = r.instance_no AND {{schema}}.in_flight_v1(n.state, n.ambiguous))
        ORDER BY r.finished_at LIMIT p_most
        FOR UPDATE SKIP LOCKED);
    IF cardinality(v_nos) = 0 THEN
        RETURN 0;
    END IF;
    PERFORM 1 FROM {{schema}}.intent n WHERE n.instance_no = ANY (v_nos) ORDER BY n.instance_no, n.id FOR UPDATE;
    -- Whatever was handed off until they were locked is seen now.
    v_nos := ARRAY(
        SELECT w.no FROM (
            SELECT v.no, row_number() OVER o AS nth, sum(
                (SELECT count(*) FROM {{schema}}.event e WHERE e.instance_no = v.no) +
                (SELECT count(*) FROM {{schema}}.wakeup k WHERE k.instance_no = v.no) +
                (SELECT count(*) FROM {{schema}}.intent n WHERE n.instance_no = v.no)) OVER o AS rows
            FROM unnest(v_nos) WITH ORDINALITY AS v(no, place)
            WHERE NOT EXISTS (SELECT 1 FROM {{schema}}.intent n
                              WHERE n.instance_no = v.no AND {{schema}}.in_flight_v1(n.state, n.ambiguous))
            WINDOW o AS (ORDER BY v.place)
        ) w
        WHERE w.rows <= p_rows OR w.nth = 1);
    DELETE FROM {{schema}}.intent n WHERE n.instance_no = ANY (v_nos);
    DELETE FROM {{schema}}.event e WHERE e.instance_no = ANY (v_nos);
    DELETE FROM {{schema}}.wakeup w WHERE w.instance_no = ANY (v_nos);
    DELETE FROM {{schema}}.run r WHERE r.instance_no = ANY (v_nos);
    DELETE FROM {{schema}}.instance i WHERE i.instance_no = ANY (v_nos);
    RETURN cardinality(v_nos);
END $$;
