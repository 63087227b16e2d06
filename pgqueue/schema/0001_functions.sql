-- Functions of version 1. They are the statements of the hot paths: each server
-- connection plans them once, whatever pooler stands before it, and the planner
-- settings that come with them keep every plan on the indexes, whatever the
-- statistics say. A released function is never changed; a new version of the
-- schema adds another, so that processes of two versions work side by side.

-- announce makes sure that claims look into a lane at an instant.
CREATE FUNCTION {{schema}}.announce_v1(p_lane bigint, p_due timestamptz) RETURNS void
LANGUAGE plpgsql SET jit = off SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    PERFORM 1 FROM {{schema}}.lane_due d
    WHERE d.lane_no = p_lane AND d.due_at <= p_due
    ORDER BY d.due_at LIMIT 1
    FOR KEY SHARE;
    IF NOT FOUND THEN
        INSERT INTO {{schema}}.lane_due (lane_no, due_at) VALUES (p_lane, p_due);
    END IF;
END $$;

-- start adds an instance. The answer is 'known' where it is there already, else
-- 'due' or 'later'.
CREATE FUNCTION {{schema}}.start_v1(
    p_tenant_no bigint, p_lane_no bigint, p_tenant_id text, p_id text, p_run_id text, p_subject_id text, p_spec_id text,
    p_definition_id text, p_revision bigint, p_revision_digest text, p_profile_id text, p_profile_revision bigint,
    p_profile_digest text, p_abi text, p_pins text, p_lifecycle text, p_config text,
    p_created timestamptz, p_due timestamptz, p_timer timestamptz) RETURNS text
LANGUAGE plpgsql SET jit = off SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_no bigint;
    v_created timestamptz := coalesce(p_created, clock_timestamp());
    v_due timestamptz := coalesce(p_due, v_created);
BEGIN
    INSERT INTO {{schema}}.instance (
        tenant_id, id, tenant_no, lane_no, run_id, subject_id, spec_id, definition_id, workflow_revision,
        workflow_revision_digest, execution_profile_id, execution_profile_revision, execution_profile_digest,
        kernel_abi_version, capability_pins, lifecycle, config)
    VALUES (
        p_tenant_id, p_id, p_tenant_no, p_lane_no, p_run_id, p_subject_id, p_spec_id, p_definition_id, p_revision,
        p_revision_digest, p_profile_id, p_profile_revision, p_profile_digest,
        p_abi, p_pins, p_lifecycle, p_config)
    ON CONFLICT (tenant_id, id) DO NOTHING
    RETURNING instance_no INTO v_no;
    IF v_no IS NULL THEN
        RETURN 'known';
    END IF;
    INSERT INTO {{schema}}.run (instance_no, tenant_no, lane_no, created_at, due_at, timer_at, runnable, status)
    VALUES (v_no, p_tenant_no, p_lane_no, v_created, v_due, p_timer, true, 'active');
    PERFORM {{schema}}.announce_v1(p_lane_no, v_due);
    RETURN CASE WHEN v_due <= clock_timestamp() THEN 'due' ELSE 'later' END;
END $$;

-- deliver adds a wakeup without locking the instance: the next claim counts it.
-- The answer is 'stored', 'known', 'missing', 'finished' or 'conflict', the
-- last with the digest that is stored.
CREATE FUNCTION {{schema}}.deliver_v1(
    p_tenant_id text, p_instance_id text, p_id text, p_kind text, p_branch_id text, p_digest text, p_payload text,
    p_due timestamptz, OUT answer text, OUT stored_digest text)
LANGUAGE plpgsql SET jit = off SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_no bigint;
    v_status text;
BEGIN
    SELECT r.instance_no, r.status INTO v_no, v_status
    FROM {{schema}}.instance i JOIN {{schema}}.run r ON r.instance_no = i.instance_no
    WHERE i.tenant_id = p_tenant_id AND i.id = p_instance_id;
    IF NOT FOUND THEN
        answer := 'missing';
        RETURN;
    END IF;
    IF v_status NOT IN ('completed', 'cancelled') THEN
        INSERT INTO {{schema}}.wakeup (instance_no, id, due_at, counted, kind, branch_id, digest, payload)
        VALUES (v_no, p_id, coalesce(p_due, clock_timestamp()), false, p_kind, p_branch_id, p_digest, p_payload)
        ON CONFLICT (instance_no, id) DO NOTHING;
        IF FOUND THEN
            answer := 'stored';
            RETURN;
        END IF;
    END IF;
    SELECT w.digest INTO stored_digest FROM {{schema}}.wakeup w WHERE w.instance_no = v_no AND w.id = p_id;
    answer := CASE WHEN NOT FOUND THEN 'finished' WHEN stored_digest = p_digest THEN 'known' ELSE 'conflict' END;
END $$;

-- load locks an instance, by number or by tenant and id, and reads it.
CREATE FUNCTION {{schema}}.load_v1(p_no bigint, p_tenant_id text, p_id text) RETURNS SETOF {{schema}}.snapshot
LANGUAGE plpgsql SET jit = off SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    v_no bigint := coalesce(p_no, (SELECT i.instance_no FROM {{schema}}.instance i WHERE i.tenant_id = p_tenant_id AND i.id = p_id));
BEGIN
    PERFORM 1 FROM {{schema}}.run r WHERE r.instance_no = v_no FOR NO KEY UPDATE;
    -- A statement of its own, for the snapshot must be younger than the lock.
    RETURN QUERY SELECT * FROM {{schema}}.snapshot s WHERE s.instance_no = v_no;
END $$;

-- store writes what rules outside of commits have decided for a locked instance.
CREATE FUNCTION {{schema}}.store_v1(
    p_no bigint, p_due timestamptz, p_lease_version bigint, p_lease_ends_at timestamptz, p_lease_owner text,
    p_lease_epoch bigint, p_lease_tenant_epoch bigint, p_epoch bigint, p_status text, p_paused boolean,
    p_kept boolean, p_cancel_requested boolean, p_attempt integer, p_pending integer, p_raised integer, p_retry_at timestamptz,
    p_finished_at timestamptz, p_wakeup_at timestamptz, p_timer_at timestamptz, p_release_reason text, p_set_aside_until timestamptz, p_set_aside_reason text) RETURNS void
LANGUAGE plpgsql SET jit = off SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_lane bigint;
BEGIN
    UPDATE {{schema}}.run r SET
        due_at = p_due,
        runnable = p_status = 'active' AND NOT p_paused,
        touched = r.touched + 1,
        lease_version = p_lease_version,
        lease_ends_at = p_lease_ends_at,
        lease_owner = p_lease_owner,
        lease_epoch = p_lease_epoch,
        lease_tenant_epoch = p_lease_tenant_epoch,
        epoch = p_epoch,
        status = p_status,
        paused = p_paused,
        kept = p_kept,
        cancel_requested = p_cancel_requested,
        attempt = p_attempt,
        pending = p_pending,
        raised = p_raised,
        retry_at = p_retry_at,
        finished_at = p_finished_at,
        wakeup_at = p_wakeup_at,
        timer_at = p_timer_at,
        release_reason = p_release_reason,
        set_aside_until = p_set_aside_until,
        set_aside_reason = p_set_aside_reason
    WHERE r.instance_no = p_no
    RETURNING r.lane_no INTO v_lane;
    IF p_due IS NOT NULL AND NOT p_paused THEN
        PERFORM {{schema}}.announce_v1(v_lane, p_due);
    END IF;
END $$;

-- wakeups returns what a claim of an instance holds, oldest first; no row for no
-- instance.
CREATE FUNCTION {{schema}}.wakeups_v1(p_no bigint, p_now timestamptz)
RETURNS TABLE (ids text[], kinds text[], branches text[], payloads text[], left_at timestamptz)
LANGUAGE plpgsql STABLE STRICT
SET jit = off SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
BEGIN
    SELECT array_agg(k.id ORDER BY k.due_at, k.arrival), array_agg(k.kind ORDER BY k.due_at, k.arrival),
           array_agg(k.branch_id ORDER BY k.due_at, k.arrival), array_agg(k.payload ORDER BY k.due_at, k.arrival)
    INTO ids, kinds, branches, payloads
    FROM (
        SELECT u.*, row_number() OVER o AS rank, sum(coalesce(octet_length(u.payload), 0)) OVER o AS bytes
        FROM (
            (SELECT w.id, w.kind, w.branch_id, w.payload, w.due_at, w.arrival, w.urgent FROM {{schema}}.wakeup w
             WHERE w.instance_no = p_no AND w.counted AND w.consumed_at IS NULL AND w.urgent AND w.due_at <= p_now
             ORDER BY w.due_at, w.arrival LIMIT 1000)
            UNION ALL
            (SELECT w.id, w.kind, w.branch_id, w.payload, w.due_at, w.arrival, w.urgent FROM {{schema}}.wakeup w
             WHERE w.instance_no = p_no AND w.counted AND w.consumed_at IS NULL AND NOT w.urgent AND w.due_at <= p_now
             ORDER BY w.due_at, w.arrival LIMIT 1000)
        ) u
        WINDOW o AS (ORDER BY u.urgent DESC, u.due_at, u.arrival ROWS UNBOUNDED PRECEDING)
    ) k
    WHERE k.rank <= 1000 AND (k.rank = 1 OR k.bytes <= 4194304);
    left_at := least(
        (SELECT w.due_at FROM {{schema}}.wakeup w
         WHERE w.instance_no = p_no AND w.counted AND w.consumed_at IS NULL AND w.urgent AND w.id <> ALL (coalesce(ids, '{}'))
         ORDER BY w.due_at, w.arrival LIMIT 1),
        (SELECT w.due_at FROM {{schema}}.wakeup w
         WHERE w.instance_no = p_no AND w.counted AND w.consumed_at IS NULL AND NOT w.urgent AND w.id <> ALL (coalesce(ids, '{}'))
         ORDER BY w.due_at, w.arrival LIMIT 1));
    RETURN NEXT;
END $$;

-- claim leases due instances: one per tenant in turn, round after round, each
-- tenant's in order of due time. Instances with a lifecycle timer to raise are
-- returned unleased, with only their number and special set: the rules for them
-- are the library's. Deliveries that are not counted yet come first: where there
-- are any, the answer is one row of NULL, unless p_leave_inbox.
CREATE FUNCTION {{schema}}.claim_v1(
    p_specs text[], p_worker text, p_lease bigint, p_wanted integer, p_leave_inbox boolean)
RETURNS TABLE (
    instance_no bigint, tenant_no bigint, lane_no bigint, tenant_id text, id text, run_id text, subject_id text, spec_id text,
    definition_id text, workflow_revision bigint, workflow_revision_digest text, execution_profile_id text,
    execution_profile_revision bigint, execution_profile_digest text, kernel_abi_version text, capability_pins text,
    lifecycle text, config text, created_at timestamptz, due_at timestamptz, lease_version bigint, state_version bigint,
    touched bigint, epoch bigint, tenant_epoch bigint, resource_epoch bigint, delivery_hash bigint,
    last_progress_at timestamptz, last_event_at timestamptz, retry_at timestamptz, wakeup_at timestamptz, attempt integer,
    pending integer, raised integer, cancel_requested boolean, triggered bigint, matched bigint, succeeded bigint,
    action_terminal bigint, state text,
    place bigint, special boolean, claimed_at timestamptz, wakeup_ids text[], wakeup_kinds text[], wakeup_branches text[],
    wakeup_payloads text[])
LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
SET enable_sort = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    v_now      timestamptz := clock_timestamp();
    v_lanes    bigint[];       -- the lanes to look into, those of a tenant side by side
    v_tenants  bigint[];       -- their tenants, in turn
    v_served   bigint[];
    v_floors   timestamptz[];  -- nothing in the lane is due earlier
    v_heads    bigint[];       -- the next instance of a lane; NULL: to be looked for
    v_head_due timestamptz[];
    v_last     bigint[];       -- the last instance taken or passed over
    v_last_due timestamptz[];
    v_found    boolean[];      -- whether the lane had anything
    v_dry      boolean[];      -- whether it has nothing more
    v_got      bigint[] := '{}';
    v_got_of   bigint[] := '{}';
    v_pending  integer[] := '{}';
    v_special  boolean[] := '{}';
    v_got_due  timestamptz[];
    v_got_lane integer[];
    v_quota    integer;
    v_row      record;
    v_progress boolean;
    v_first    integer;
    v_end      integer;
    v_best     integer;
    v_stale    bigint[];
    v_locked   tid[];
    v_turn     bigint;
BEGIN
    IF NOT p_leave_inbox THEN
        PERFORM 1 FROM {{schema}}.wakeup w WHERE NOT w.counted LIMIT 1;
        IF FOUND THEN
            RETURN NEXT;
            RETURN;
        END IF;
    END IF;
    SELECT array_agg(d.lane_no ORDER BY d.served, d.tenant_due, d.tenant_no, d.lane_no),
           array_agg(d.tenant_no ORDER BY d.served, d.tenant_due, d.tenant_no, d.lane_no),
           array_agg(d.served ORDER BY d.served, d.tenant_due, d.tenant_no, d.lane_no),
           array_agg(d.floor ORDER BY d.served, d.tenant_due, d.tenant_no, d.lane_no)
    INTO v_lanes, v_tenants, v_served, v_floors
    FROM (
        SELECT g.*, min(g.floor) OVER (PARTITION BY g.tenant_no) AS tenant_due
        FROM (
            SELECT l.lane_no, l.tenant_no, t.served, min(d.due_at) AS floor
            FROM (SELECT d.lane_no, d.due_at FROM {{schema}}.lane_due d WHERE d.due_at <= v_now ORDER BY d.due_at, d.lane_no) d
            JOIN {{schema}}.lane l ON l.lane_no = d.lane_no
            JOIN {{schema}}.tenant t ON t.tenant_no = l.tenant_no
            WHERE NOT t.paused AND (p_specs IS NULL OR l.spec_id = ANY (p_specs))
            GROUP BY l.lane_no, l.tenant_no, t.served
        ) g
    ) d;
    -- The last row tells the instant of the claim, also of one that got nothing.
    claimed_at := v_now;
    IF v_lanes IS NULL THEN
        RETURN NEXT;
        RETURN;
    END IF;
    v_heads := array_fill(NULL::bigint, ARRAY[cardinality(v_lanes)]);
    v_head_due := array_fill(NULL::timestamptz, ARRAY[cardinality(v_lanes)]);
    v_last := array_fill(0::bigint, ARRAY[cardinality(v_lanes)]);
    v_last_due := v_floors;
    v_found := array_fill(false, ARRAY[cardinality(v_lanes)]);
    v_dry := v_found;

    IF (SELECT count(DISTINCT t) FROM unnest(v_tenants) t) = cardinality(v_lanes) THEN
        -- Each tenant has one lane, as most have: the rounds that all of them have
        -- work for are taken in one statement.
        v_quota := greatest(1, p_wanted / cardinality(v_lanes));
        SELECT array_agg(q.instance_no ORDER BY q.round, q.lane), array_agg(q.tenant_no ORDER BY q.round, q.lane),
               array_agg(q.pending ORDER BY q.round, q.lane), array_agg(q.special ORDER BY q.round, q.lane),
               array_agg(q.due_at ORDER BY q.round, q.lane), array_agg(q.lane ORDER BY q.round, q.lane)
        INTO v_got, v_got_of, v_pending, v_special, v_got_due, v_got_lane
        FROM (
            SELECT f.*, row_number() OVER (PARTITION BY f.lane ORDER BY f.due_at, f.instance_no) AS round
            FROM (
                SELECT p.instance_no, p.due_at, p.pending, coalesce(p.timer_at <= v_now, false) AS special, l.tenant_no,
                       l.lane::integer AS lane
                FROM unnest(v_lanes, v_tenants, v_floors) WITH ORDINALITY AS l(lane_no, tenant_no, floor, lane)
                CROSS JOIN LATERAL (
                    SELECT r.instance_no, r.due_at, r.pending, r.timer_at
                    FROM {{schema}}.run r
                    WHERE r.lane_no = l.lane_no AND r.runnable AND r.due_at >= l.floor AND r.due_at <= v_now
                      AND (r.lease_ends_at IS NULL OR r.lease_ends_at <= v_now)
                    ORDER BY r.due_at, r.instance_no LIMIT v_quota
                    FOR NO KEY UPDATE SKIP LOCKED
                ) p
                LIMIT p_wanted
            ) f
        ) q;
        IF v_got IS NULL THEN
            v_got := '{}';
            v_dry := array_fill(true, ARRAY[cardinality(v_lanes)]);
        ELSE
            -- Lanes were asked in turn, until there was enough.
            FOR n IN 1..CASE WHEN cardinality(v_got) < p_wanted THEN cardinality(v_lanes)
                             ELSE (SELECT max(l) FROM unnest(v_got_lane) l) END LOOP
                v_dry[n] := true;
            END LOOP;
            FOR v_row IN
                SELECT g.lane, count(*) AS taken, max(g.due_at) AS due_at,
                       (array_agg(g.instance_no ORDER BY g.due_at DESC, g.instance_no DESC))[1] AS instance_no
                FROM unnest(v_got, v_got_due, v_got_lane) AS g(instance_no, due_at, lane)
                GROUP BY g.lane
            LOOP
                v_found[v_row.lane] := true;
                v_dry[v_row.lane] := v_row.taken < v_quota;
                v_last[v_row.lane] := v_row.instance_no;
                v_last_due[v_row.lane] := v_row.due_at;
            END LOOP;
        END IF;
    END IF;

    <<rounds>>
    WHILE cardinality(v_got) < p_wanted AND false = ANY (v_dry) LOOP
        v_progress := false;
        v_first := 1;
        WHILE v_first <= cardinality(v_lanes) LOOP
            v_end := v_first;
            WHILE v_end < cardinality(v_lanes) AND v_tenants[v_end + 1] = v_tenants[v_first] LOOP
                v_end := v_end + 1;
            END LOOP;
            -- The earliest instance of the tenant that nobody else has locked.
            LOOP
                v_best := NULL;
                FOR n IN v_first..v_end LOOP
                    IF v_heads[n] IS NULL AND NOT v_dry[n] THEN
                        SELECT r.instance_no, r.due_at INTO v_row
                        FROM {{schema}}.run r
                        WHERE r.lane_no = v_lanes[n] AND r.runnable AND r.due_at <= v_now
                          AND (r.due_at, r.instance_no) > (v_last_due[n], v_last[n])
                          AND (r.lease_ends_at IS NULL OR r.lease_ends_at <= v_now)
                        ORDER BY r.due_at, r.instance_no LIMIT 1;
                        IF FOUND THEN
                            v_heads[n] := v_row.instance_no;
                            v_head_due[n] := v_row.due_at;
                            v_found[n] := true;
                        ELSE
                            v_dry[n] := true;
                        END IF;
                    END IF;
                    IF v_heads[n] IS NOT NULL AND (v_best IS NULL
                        OR (v_head_due[n], v_heads[n]) < (v_head_due[v_best], v_heads[v_best])) THEN
                        v_best := n;
                    END IF;
                END LOOP;
                EXIT WHEN v_best IS NULL;
                SELECT r.pending, r.timer_at INTO v_row
                FROM {{schema}}.run r
                WHERE r.instance_no = v_heads[v_best] AND r.runnable AND r.due_at = v_head_due[v_best]
                  AND (r.lease_ends_at IS NULL OR r.lease_ends_at <= v_now)
                FOR NO KEY UPDATE SKIP LOCKED;
                v_last[v_best] := v_heads[v_best];
                v_last_due[v_best] := v_head_due[v_best];
                IF FOUND THEN
                    v_got := v_got || v_heads[v_best];
                    v_got_of := v_got_of || v_tenants[v_best];
                    v_pending := v_pending || v_row.pending;
                    v_special := v_special || coalesce(v_row.timer_at <= v_now, false);
                    v_progress := true;
                END IF;
                v_heads[v_best] := NULL;
                EXIT WHEN FOUND;
            END LOOP;
            EXIT rounds WHEN cardinality(v_got) = p_wanted;
            v_first := v_end + 1;
        END LOOP;
        EXIT WHEN NOT v_progress;
    END LOOP;

    -- A lane without anything due need not be looked into before its first due time.
    v_stale := ARRAY(
        SELECT l.lane_no FROM unnest(v_lanes, v_floors, v_dry, v_found) AS l(lane_no, floor, dry, found)
        WHERE l.dry AND NOT l.found AND NOT EXISTS (
            SELECT 1 FROM {{schema}}.run r
            WHERE r.lane_no = l.lane_no AND r.runnable AND r.due_at >= l.floor AND r.due_at <= v_now)
        LIMIT 1000);
    IF cardinality(v_stale) > 0 THEN
        v_locked := ARRAY(
            SELECT d.ctid FROM {{schema}}.lane_due d
            WHERE d.lane_no = ANY (v_stale) AND d.due_at <= v_now
            FOR UPDATE SKIP LOCKED);
        WITH first AS MATERIALIZED (
            SELECT s.lane_no, (SELECT r.due_at FROM {{schema}}.run r
                               WHERE r.lane_no = s.lane_no AND r.runnable
                               ORDER BY r.due_at, r.instance_no LIMIT 1) AS due_at
            FROM unnest(v_stale) AS s(lane_no)
        ), gone AS (
            DELETE FROM {{schema}}.lane_due d USING first f
            WHERE d.ctid = ANY (v_locked) AND d.lane_no = f.lane_no AND (f.due_at IS NULL OR f.due_at > v_now)
            RETURNING d.lane_no
        )
        INSERT INTO {{schema}}.lane_due (lane_no, due_at)
        SELECT DISTINCT f.lane_no, f.due_at FROM first f JOIN gone g ON g.lane_no = f.lane_no
        WHERE f.due_at IS NOT NULL;
    END IF;
    IF cardinality(v_got) = 0 THEN
        RETURN NEXT;
        RETURN;
    END IF;

    -- The turn of a tenant that was served alone ends with 2^20 - 1. Where it is
    -- served alone again, the order stays as it is and nothing is written.
    SELECT (s.last_value << 20) + 1048575 INTO v_turn FROM {{schema}}.turn s;
    IF NOT (v_got_of[1] = ALL (v_got_of)) OR v_served[array_position(v_tenants, v_got_of[1])] IS DISTINCT FROM v_turn THEN
        v_turn := nextval('{{schema}}.turn') << 20;
        WITH free AS MATERIALIZED (
            SELECT t.tenant_no FROM {{schema}}.tenant t WHERE t.tenant_no = ANY (v_got_of) FOR NO KEY UPDATE SKIP LOCKED
        )
        UPDATE {{schema}}.tenant t
        SET served = v_turn + CASE WHEN v_got_of[1] = ALL (v_got_of) THEN 1048575 ELSE least(g.place, 1048574) END
        FROM free f
        JOIN (SELECT g.tenant_no, max(g.place) AS place FROM unnest(v_got_of) WITH ORDINALITY AS g(tenant_no, place)
              GROUP BY g.tenant_no) g ON g.tenant_no = f.tenant_no
        WHERE t.tenant_no = f.tenant_no;
    END IF;

    RETURN QUERY
    UPDATE {{schema}}.run r SET
        lease_version = r.lease_version + 1,
        lease_ends_at = v_now + p_lease * interval '1 microsecond',
        lease_epoch = r.epoch,
        lease_tenant_epoch = t.epoch,
        lease_owner = p_worker,
        kept = false,
        wakeup_at = CASE WHEN g.pending > 0 THEN w.left_at END,
        release_reason = NULL
    FROM unnest(v_got, v_pending, v_special) WITH ORDINALITY AS g(instance_no, pending, special, place)
    JOIN {{schema}}.instance i ON i.instance_no = g.instance_no
    JOIN {{schema}}.tenant t ON t.tenant_no = i.tenant_no
    LEFT JOIN LATERAL {{schema}}.wakeups_v1(CASE WHEN g.pending > 0 THEN g.instance_no END, v_now) w ON true
    WHERE r.instance_no = g.instance_no AND NOT g.special
    RETURNING i.instance_no, i.tenant_no, i.lane_no, i.tenant_id, i.id, i.run_id, i.subject_id, i.spec_id, i.definition_id,
        i.workflow_revision, i.workflow_revision_digest, i.execution_profile_id, i.execution_profile_revision,
        i.execution_profile_digest, i.kernel_abi_version, i.capability_pins, i.lifecycle, i.config,
        r.created_at, r.due_at, r.lease_version, r.state_version, r.touched, r.epoch, t.epoch, t.resource_epoch,
        r.delivery_hash, r.last_progress_at, r.last_event_at, r.retry_at, r.wakeup_at, r.attempt, r.pending, r.raised,
        r.cancel_requested, r.triggered, r.matched, r.succeeded, r.action_terminal, r.state,
        g.place, false, v_now, w.ids, w.kinds, w.branches, w.payloads;

    IF true = ANY (v_special) THEN
        FOR v_row IN SELECT * FROM unnest(v_got, v_special) WITH ORDINALITY AS g(instance_no, special, place) WHERE g.special LOOP
            instance_no := v_row.instance_no;
            place := v_row.place;
            special := true;
            RETURN NEXT;
        END LOOP;
        instance_no := NULL;
    END IF;
    RETURN NEXT;
END $$;

-- commit_v1 is what one commit writes and where: only where the instance still
-- has these versions and the tenant this epoch. keep is the length of the lease
-- where the claim is kept. One array of rows costs the server a fraction of what
-- an array per column does.
CREATE TYPE {{schema}}.commit_v1 AS (
    instance_no bigint, lease_version bigint, state_version bigint, touched bigint, tenant_epoch bigint,
    due_at timestamptz, keep bigint, status text, attempt integer, consumed integer, retry_at timestamptz,
    last_progress_at timestamptz, last_event_at timestamptz, wakeup_at timestamptz, timer_at timestamptz,
    triggered bigint, matched bigint, succeeded bigint, action_terminal bigint, failure_class text, last_error text,
    state text, delivery_hash bigint, type text, digest bytea, delivery_key bytea, delivery_digest bytea, payload text
);

-- apply writes commits and returns the places of those that were applied and the
-- resource epochs of their tenants. p_barrier is a lock that a pause waits for:
-- when it returns, no commit that did not see it is still on its way.
CREATE FUNCTION {{schema}}.apply_v1(
    p_barrier bigint, p_now timestamptz, p_commits {{schema}}.commit_v1[], p_consumed_place integer[], p_consumed_id text[],
    OUT done integer[], OUT resource_epochs bigint[])
LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(p_barrier);
    WITH done AS (
        UPDATE {{schema}}.run r SET
            due_at = CASE WHEN m.keep IS NULL THEN m.due_at ELSE r.due_at END,
            lease_version = CASE WHEN m.keep IS NULL THEN r.lease_version ELSE r.lease_version + 1 END,
            lease_ends_at = p_now + m.keep * interval '1 microsecond',
            kept = m.keep IS NOT NULL,
            state_version = r.state_version + 1,
            delivery_hash = m.delivery_hash,
            last_progress_at = m.last_progress_at,
            last_event_at = m.last_event_at,
            retry_at = m.retry_at,
            finished_at = CASE WHEN m.status <> 'active' THEN p_now END,
            wakeup_at = m.wakeup_at,
            timer_at = m.timer_at,
            attempt = m.attempt,
            pending = r.pending - m.consumed,
            runnable = m.status = 'active',
            status = m.status,
            triggered = m.triggered,
            matched = m.matched,
            succeeded = m.succeeded,
            action_terminal = m.action_terminal,
            release_reason = NULL,
            failure_class = m.failure_class,
            last_error = m.last_error,
            state = m.state
        FROM unnest(p_commits) WITH ORDINALITY AS m,
             {{schema}}.tenant t
        WHERE r.instance_no = m.instance_no AND r.lease_version = m.lease_version AND r.state_version = m.state_version
          AND r.touched = m.touched
          AND t.tenant_no = r.tenant_no AND t.epoch = m.tenant_epoch
        RETURNING m.ordinality AS place, r.instance_no, r.state_version, m.lease_version, m.type, m.digest, m.delivery_key,
                  m.delivery_digest, r.lease_owner, m.payload, t.resource_epoch
    ), events AS (
        INSERT INTO {{schema}}.event (instance_no, state_version, lease_version, at, type, digest, delivery_key,
                                      delivery_digest, worker_id, payload)
        SELECT d.instance_no, d.state_version, d.lease_version, p_now, d.type, d.digest, d.delivery_key, d.delivery_digest,
               d.lease_owner, d.payload
        FROM done d
    )
    SELECT array_agg(d.place), array_agg(d.resource_epoch) INTO done, resource_epochs FROM done d;
    IF cardinality(p_consumed_place) > 0 THEN
        UPDATE {{schema}}.wakeup w SET consumed_at = p_now, payload = NULL
        FROM unnest(p_consumed_place, p_consumed_id) AS c(place, id)
        WHERE c.place = ANY (done) AND w.instance_no = p_commits[c.place].instance_no AND w.id = c.id;
    END IF;
END $$;

-- renew extends leases and returns a verdict for each: 0 extended, 1 lost, 2 a
-- control epoch has moved.
CREATE FUNCTION {{schema}}.renew_v1(
    p_no bigint[], p_tenant_id text[], p_id text[], p_version bigint[], p_worker text[], p_duration bigint[]) RETURNS integer[]
LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_no      bigint[];
    v_verdict integer[];
    v_row     record;
BEGIN
    SELECT array_agg(coalesce(m.no, (SELECT i.instance_no FROM {{schema}}.instance i
                                     WHERE i.tenant_id = m.tenant_id AND i.id = m.id)) ORDER BY m.place)
    INTO v_no
    FROM unnest(p_no, p_tenant_id, p_id) WITH ORDINALITY AS m(no, tenant_id, id, place);
    v_verdict := array_fill(1, ARRAY[cardinality(v_no)]);
    FOR v_row IN
        UPDATE {{schema}}.run r SET lease_ends_at = clock_timestamp() + m.duration * interval '1 microsecond'
        FROM unnest(v_no, p_version, p_worker, p_duration) WITH ORDINALITY AS m(no, version, worker, duration, place),
             {{schema}}.tenant t
        WHERE r.instance_no = m.no AND r.lease_version = m.version AND r.lease_owner = m.worker
          AND r.lease_ends_at > clock_timestamp() AND r.epoch = r.lease_epoch
          AND t.tenant_no = r.tenant_no AND t.epoch = r.lease_tenant_epoch
        RETURNING m.place
    LOOP
        v_verdict[v_row.place] := 0;
    END LOOP;
    IF 1 = ANY (v_verdict) THEN
        FOR v_row IN
            SELECT m.place
            FROM unnest(v_no, p_version, p_worker, v_verdict) WITH ORDINALITY AS m(no, version, worker, verdict, place)
            JOIN {{schema}}.run r ON r.instance_no = m.no
            JOIN {{schema}}.tenant t ON t.tenant_no = r.tenant_no
            WHERE m.verdict = 1 AND r.lease_version = m.version AND r.lease_owner = m.worker AND r.lease_ends_at > clock_timestamp()
              AND (r.epoch <> r.lease_epoch OR t.epoch <> r.lease_tenant_epoch)
        LOOP
            v_verdict[v_row.place] := 2;
        END LOOP;
    END IF;
    RETURN v_verdict;
END $$;

-- next_due returns when a claim of some specs (NULL: all) may find what one at
-- an instant did not: the next due time or the next end of a lease.
CREATE FUNCTION {{schema}}.next_due_v1(p_specs text[], p_since timestamptz, OUT next_at timestamptz, OUT now timestamptz)
LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
SET enable_sort = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    SELECT d.due_at INTO next_at
    FROM {{schema}}.lane_due d
    JOIN {{schema}}.lane l ON l.lane_no = d.lane_no
    JOIN {{schema}}.tenant t ON t.tenant_no = l.tenant_no
    WHERE d.due_at > p_since AND NOT t.paused AND (p_specs IS NULL OR l.spec_id = ANY (p_specs))
    ORDER BY d.due_at LIMIT 1;
    SELECT least(next_at, min(w.due_at), min(w.lease_ends_at)) INTO next_at
    FROM {{schema}}.lane_due d
    JOIN {{schema}}.lane l ON l.lane_no = d.lane_no
    JOIN {{schema}}.tenant t ON t.tenant_no = l.tenant_no
    CROSS JOIN LATERAL (
        (SELECT r.due_at, NULL::timestamptz AS lease_ends_at
         FROM {{schema}}.run r
         WHERE r.lane_no = d.lane_no AND r.runnable AND r.due_at > p_since
         ORDER BY r.due_at, r.instance_no LIMIT 1)
        UNION ALL
        (SELECT NULL, min(b.lease_ends_at) FROM (
            SELECT r.lease_ends_at FROM {{schema}}.run r
            WHERE r.lane_no = d.lane_no AND r.runnable AND r.due_at <= p_since
            ORDER BY r.due_at, r.instance_no LIMIT 1000) b
         WHERE b.lease_ends_at > p_since)
    ) w
    WHERE d.due_at <= p_since AND NOT t.paused AND (p_specs IS NULL OR l.spec_id = ANY (p_specs));
    now := clock_timestamp();
END $$;
