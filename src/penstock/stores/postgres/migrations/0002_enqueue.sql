-- old workers may keep running: yes
--
-- Enqueue from plain SQL: SELECT penstock.enqueue('{"type": "email.send", "payload": {"to": "ada@example.com"}}');
-- It takes part in the caller's transaction: rolled back with it, and heard of by workers when it commits.

-- A UUIDv7 as PostgreSQL 18 makes it: the time, then chance.
CREATE FUNCTION penstock.new_id() RETURNS uuid LANGUAGE sql VOLATILE AS $$
    SELECT encode(set_bit(set_bit(overlay(
        uuid_send(gen_random_uuid())
        PLACING substring(int8send(floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3) FROM 1 FOR 6
    ), 52, 1), 53, 1), 'hex')::uuid
$$;

-- Let the first job of each ordering key in, if none of them runs or is held before it; keep the others back.
-- The caller holds the lock of each key. Returns the jobs that changed.
CREATE FUNCTION penstock.admit(of_tenant text, queues text[], ordering_keys text[])
RETURNS TABLE (queue text, priority smallint, run_at timestamptz, blocked boolean) LANGUAGE sql VOLATILE AS $$
    WITH first AS (
        SELECT g.queue, g.ordering_key, h.id
        FROM (SELECT DISTINCT * FROM unnest(queues, ordering_keys)) AS g (queue, ordering_key)
        LEFT JOIN LATERAL (
            SELECT r.id, true AS queued, r.scheduled_at FROM penstock.ready r
            WHERE r.tenant = of_tenant AND r.queue = g.queue AND r.ordering_key = g.ordering_key
            UNION ALL
            SELECT p.id, false, p.scheduled_at FROM penstock.parked p
            WHERE p.tenant = of_tenant AND p.queue = g.queue AND p.ordering_key = g.ordering_key AND p.status = 'held'
            ORDER BY scheduled_at, id LIMIT 1
        ) h ON h.queued AND NOT EXISTS (
            SELECT FROM penstock.lease l
            WHERE l.tenant = of_tenant AND l.queue = g.queue AND l.ordering_key = g.ordering_key
        )
    )
    UPDATE penstock.ready r SET blocked = r.id IS DISTINCT FROM f.id
    FROM first f
    WHERE r.tenant = of_tenant AND r.queue = f.queue AND r.ordering_key = f.ordering_key
      AND r.blocked <> (r.id IS DISTINCT FROM f.id)
    RETURNING r.queue, r.priority, r.run_at, r.blocked
$$;

-- See to it that queues and priorities that are used for the first time are known to all.
CREATE FUNCTION penstock.know(of_tenant text, queues text[], priorities smallint[]) RETURNS void LANGUAGE sql VOLATILE AS $$
    INSERT INTO penstock.queue (tenant, name, settings)
    SELECT of_tenant, g.queue, '{}' FROM (SELECT DISTINCT unnest(queues) AS queue) g
    WHERE NOT EXISTS (SELECT FROM penstock.queue q WHERE q.tenant = of_tenant AND q.name = g.queue)
    ORDER BY g.queue
    ON CONFLICT DO NOTHING;
    INSERT INTO penstock.lane (tenant, queue, priority)
    SELECT of_tenant, g.queue, g.priority FROM (SELECT DISTINCT * FROM unnest(queues, priorities)) AS g (queue, priority)
    WHERE NOT EXISTS (SELECT FROM penstock.lane l WHERE l.tenant = of_tenant AND l.queue = g.queue AND l.priority = g.priority)
    ORDER BY g.queue, g.priority
    ON CONFLICT DO NOTHING;
$$;

-- Let claims start low enough for jobs that were put into the line behind its beginning.
CREATE FUNCTION penstock.lower(of_tenant text, queues text[], priorities smallint[], run_ats timestamptz[]) RETURNS void
LANGUAGE sql VOLATILE AS $$
    UPDATE penstock.lane l SET floor = m.run_at
    FROM (
        SELECT queue, priority, min(run_at) AS run_at
        FROM unnest(queues, priorities, run_ats) AS g (queue, priority, run_at) GROUP BY queue, priority
    ) m
    WHERE l.tenant = of_tenant AND l.queue = m.queue AND l.priority = m.priority AND l.floor > m.run_at
$$;

-- Keep claims from raising the floor of these lanes before we commit, whenever that is: they cannot see our jobs yet.
-- Then lower it as far as they need. A lock that keeps nobody else from lowering it.
CREATE FUNCTION penstock.hold(of_tenant text, queues text[], priorities smallint[], run_ats timestamptz[]) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM FROM penstock.lane l
    WHERE l.tenant = of_tenant AND (l.queue, l.priority) IN (SELECT * FROM unnest(queues, priorities))
    ORDER BY l.queue, l.priority FOR KEY SHARE;
    PERFORM penstock.lower(of_tenant, queues, priorities, run_ats);
END
$$;

-- Lock jobs where they are and see to it that they are still there; in the order of their ids, as everyone does.
CREATE FUNCTION penstock.lock_jobs(of_tenant text, ids uuid[]) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    found_in jsonb;
BEGIN
    FOR round IN 1..100 LOOP
        WITH ready AS (SELECT id FROM penstock.ready WHERE tenant = of_tenant AND id = ANY (ids) ORDER BY id FOR UPDATE),
             lease AS (SELECT id FROM penstock.lease WHERE tenant = of_tenant AND id = ANY (ids) ORDER BY id FOR UPDATE),
             parked AS (SELECT id FROM penstock.parked WHERE tenant = of_tenant AND id = ANY (ids) ORDER BY id FOR UPDATE),
             done AS (SELECT id FROM penstock.done WHERE tenant = of_tenant AND id = ANY (ids) ORDER BY id FOR UPDATE),
             places AS (SELECT id, 'ready' AS place FROM ready UNION ALL SELECT id, 'lease' FROM lease
                        UNION ALL SELECT id, 'parked' FROM parked UNION ALL SELECT id, 'done' FROM done)
        SELECT coalesce(jsonb_object_agg(id, place), '{}') INTO found_in FROM places;
        -- A statement of its own, because only that sees where a job has gone that we had to wait for.
        PERFORM FROM penstock.job_now n
        WHERE n.tenant = of_tenant AND n.id = ANY (ids)
          AND found_in ->> n.id::text IS DISTINCT FROM CASE n.status
              WHEN 'queued' THEN 'ready' WHEN 'running' THEN 'lease' WHEN 'succeeded' THEN 'done' WHEN 'cancelled' THEN 'done'
              ELSE 'parked' END;
        IF NOT FOUND THEN
            RETURN;
        END IF;
    END LOOP;
    RAISE serialization_failure USING MESSAGE = 'the jobs named as parents keep changing; try again';
END
$$;

-- Take one job in, as `core.machine.Machine.enqueue` does; values have been checked.
-- `error` is the code of the refusal and `about` the other job it concerns. `asked`: see enqueue_asked.
CREATE FUNCTION penstock.enqueue_one(of_tenant text, moment timestamptz, asked json,
                                     OUT job_id uuid, OUT duplicate text, OUT error text, OUT about text)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    one     record;
    other   record;
    starts  timestamptz;
    ends_by timestamptz;
    becomes text := 'queued';
    cause   text;
    verb    text;
    reason  text;
BEGIN
    SELECT * INTO one FROM json_to_record(asked) AS j (
        id uuid, queue text, type text, payload text, priority smallint, key text, schedule text, run_at timestamptz,
        delay double precision, options text, expires_at timestamptz, expires_in double precision, ordering_key text,
        unique_key text, idempotency_key text, idempotency_window double precision, fingerprint text, parents uuid[],
        on_parent_failure text
    );
    one.parents := coalesce(one.parents, '{}');
    starts := coalesce(one.run_at, moment + make_interval(secs => one.delay), moment);
    ends_by := coalesce(one.expires_at, moment + make_interval(secs => one.expires_in));

    -- Names before jobs, requests before unique keys before ordering keys: everyone locks in this order.
    PERFORM pg_advisory_xact_lock(hashtextextended(of_tenant || ' request ' || one.idempotency_key, 0));
    PERFORM pg_advisory_xact_lock(hashtextextended(of_tenant || ' unique ' || one.queue || ' ' || one.unique_key, 0));
    PERFORM pg_advisory_xact_lock(hashtextextended(of_tenant || ' order ' || one.queue || ' ' || one.ordering_key, 0));

    SELECT * INTO other FROM penstock.job_now n WHERE n.tenant = of_tenant AND n.id = one.id;
    IF FOUND THEN
        job_id := one.id;
        duplicate := 'id';
        IF (other.type, other.queue, other.payload::text, other.priority, other.key, other.schedule, other.asked_run_at, other.options::text)
           IS DISTINCT FROM (one.type, one.queue, one.payload, one.priority, one.key, one.schedule, one.run_at, one.options) THEN
            error := 'id_conflict';
        END IF;
        RETURN;
    END IF;

    SELECT * INTO other FROM penstock.request r
    WHERE r.tenant = of_tenant AND r.key = one.idempotency_key AND r.until > moment;
    IF FOUND THEN
        job_id := other.job_id;
        duplicate := 'idempotency_key';
        IF other.fingerprint <> one.fingerprint THEN
            error := 'idempotency_conflict';
            about := other.job_id;
        END IF;
        RETURN;
    END IF;

    SELECT h.job_id INTO job_id FROM penstock.holder h
    WHERE h.tenant = of_tenant AND h.queue = one.queue AND h.unique_key = one.unique_key;
    IF FOUND THEN
        duplicate := 'unique_key';
    ELSE
        job_id := one.id;
        IF one.parents <> '{}' THEN
            PERFORM penstock.lock_jobs(of_tenant, one.parents);
            SELECT p.id INTO about FROM unnest(one.parents) WITH ORDINALITY AS p (id, place)
            WHERE NOT EXISTS (SELECT FROM penstock.job_now n WHERE n.tenant = of_tenant AND n.id = p.id) ORDER BY p.place LIMIT 1;
            IF FOUND THEN
                error := 'parent_not_found';
                RETURN;
            END IF;
        END IF;
    END IF;

    IF duplicate IS NULL THEN
        INSERT INTO penstock.job (tenant, id, queue, type, payload, priority, key, schedule, run_at, options, created_at, scheduled_at)
        VALUES (of_tenant, one.id, one.queue, one.type, one.payload::json, one.priority, one.key, one.schedule, one.run_at, one.options::json, moment, starts)
        ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN
            -- Either somebody else's, committed while we waited for it, which can be seen now; or what is left of one long gone.
            -- Locked before the look: nobody else can then take the id for a new job, whose row we would remove.
            PERFORM FROM penstock.job j WHERE j.tenant = of_tenant AND j.id = one.id FOR UPDATE;
            IF FOUND AND NOT EXISTS (SELECT FROM penstock.job_now n WHERE n.tenant = of_tenant AND n.id = one.id) THEN
                DELETE FROM penstock.attempt a WHERE a.tenant = of_tenant AND a.job_id = one.id;
                DELETE FROM penstock.change c WHERE c.tenant = of_tenant AND c.kind = 'job' AND c.name = one.id::text;
                DELETE FROM penstock.job j WHERE j.tenant = of_tenant AND j.id = one.id;
            END IF;
            SELECT * INTO job_id, duplicate, error, about FROM penstock.enqueue_one(of_tenant, moment, asked);
            RETURN;
        END IF;
    END IF;
    IF one.idempotency_key IS NOT NULL THEN
        INSERT INTO penstock.request AS r (tenant, key, job_id, fingerprint, until)
        VALUES (of_tenant, one.idempotency_key, enqueue_one.job_id, one.fingerprint, moment + make_interval(secs => one.idempotency_window))
        ON CONFLICT (tenant, key) DO UPDATE SET job_id = excluded.job_id, fingerprint = excluded.fingerprint, until = excluded.until;
    END IF;
    IF duplicate IS NOT NULL THEN
        RETURN;
    END IF;

    IF ends_by <= moment THEN
        becomes := 'cancelled'; cause := 'expired'; verb := 'expire'; reason := 'it had expired before it came in';
    ELSIF one.parents <> '{}' THEN
        SELECT n.id, n.status INTO other
        FROM unnest(one.parents) WITH ORDINALITY AS p (id, place)
        JOIN penstock.job_now n ON n.tenant = of_tenant AND n.id = p.id
        WHERE n.status <> 'succeeded' AND NOT (n.status IN ('dead', 'cancelled') AND one.on_parent_failure = 'run')
        ORDER BY n.status IN ('dead', 'cancelled') DESC, p.place LIMIT 1;
        IF FOUND AND other.status IN ('dead', 'cancelled') THEN
            becomes := 'cancelled'; cause := 'parent_failed'; verb := 'abandon';
            reason := format('parent %s ended %s', other.id, other.status);
        ELSIF FOUND THEN
            becomes := 'waiting';
        END IF;
    END IF;

    PERFORM penstock.know(of_tenant, ARRAY[one.queue], ARRAY[one.priority]);
    INSERT INTO penstock.edge (tenant, parent_id, child_id) SELECT of_tenant, p, one.id FROM unnest(one.parents) AS p;
    IF one.parents <> '{}' THEN
        UPDATE penstock.ready SET is_parent = true WHERE tenant = of_tenant AND id = ANY (one.parents) AND NOT is_parent;
        UPDATE penstock.lease SET is_parent = true WHERE tenant = of_tenant AND id = ANY (one.parents) AND NOT is_parent;
        UPDATE penstock.parked SET is_parent = true WHERE tenant = of_tenant AND id = ANY (one.parents) AND NOT is_parent;
        UPDATE penstock.done SET is_parent = true WHERE tenant = of_tenant AND id = ANY (one.parents) AND NOT is_parent;
    END IF;
    INSERT INTO penstock.tally (tenant, queue, queued, waiting, cancelled)
    VALUES (of_tenant, one.queue, (becomes = 'queued')::int, (becomes = 'waiting')::int, (becomes = 'cancelled')::int);

    IF becomes = 'cancelled' THEN
        INSERT INTO penstock.done (tenant, id, status, queue, run_at, start_by, attempts, leases, cause, ended_at)
        VALUES (of_tenant, one.id, becomes, one.queue, starts, ends_by, 0, 0, cause, moment);
        INSERT INTO penstock.change (tenant, kind, name, at, verb, actor, reason, status)
        VALUES (of_tenant, 'job', one.id::text, moment, verb, CASE verb WHEN 'expire' THEN 'rule:expiry' ELSE 'rule:flow' END, reason, becomes);
        RETURN;
    END IF;
    IF one.unique_key IS NOT NULL THEN
        INSERT INTO penstock.holder (tenant, queue, unique_key, job_id) VALUES (of_tenant, one.queue, one.unique_key, one.id);
    END IF;
    IF becomes = 'waiting' THEN
        INSERT INTO penstock.parked (tenant, id, status, queue, run_at, ordering_key, scheduled_at, start_by, attempts, leases)
        VALUES (of_tenant, one.id, becomes, one.queue, starts, one.ordering_key, starts, ends_by, 0, 0);
        RETURN;
    END IF;
    INSERT INTO penstock.ready (tenant, id, queue, priority, run_at, key, ordering_key, scheduled_at, blocked, is_unique, start_by)
    VALUES (of_tenant, one.id, one.queue, one.priority, starts, one.key, one.ordering_key, starts, one.ordering_key IS NOT NULL,
            one.unique_key IS NOT NULL, ends_by);
    PERFORM penstock.hold(of_tenant, ARRAY[one.queue], ARRAY[one.priority], ARRAY[starts]);
    IF one.ordering_key IS NOT NULL THEN
        PERFORM penstock.hold(of_tenant, array_agg(a.queue), array_agg(a.priority), array_agg(a.run_at))
        FROM penstock.admit(of_tenant, ARRAY[one.queue], ARRAY[one.ordering_key]) a WHERE NOT a.blocked;
    END IF;
END
$$;

-- Take jobs in: all at once if none concerns another, else one after the other. `at` is null but in tests. Each of `asked` is
-- an object with the fields that enqueue_one reads: spans in seconds; `payload` and `options` as JSON text, because inside
-- of JSON they may hold what no text of PostgreSQL can (NUL); `involved` unless it concerns no other job, nor a deadline.
-- Answers come in any order.
CREATE FUNCTION penstock.enqueue_asked(of_tenant text, at timestamptz, asked json)
RETURNS TABLE (place bigint, job_id uuid, duplicate text, error text, about text)
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := coalesce(at, now());
    apart  boolean;
    made   uuid[];
BEGIN
    SELECT NOT bool_or(involved) AND count(DISTINCT id) = count(*) INTO apart
    FROM json_to_recordset(asked) AS g (id uuid, involved boolean);

    IF apart THEN
        WITH put AS (
            INSERT INTO penstock.job (tenant, id, queue, type, payload, priority, key, run_at, options, created_at, scheduled_at)
            SELECT of_tenant, id, queue, type, payload::json, priority, key, run_at, options::json, moment,
                   coalesce(run_at, moment + make_interval(secs => delay), moment)
            FROM json_to_recordset(asked) AS g (
                id uuid, queue text, type text, payload text, priority smallint, key text, run_at timestamptz,
                delay double precision, options text)
            ON CONFLICT DO NOTHING
            RETURNING id, queue, priority, key, scheduled_at
        ),
        lined_up AS (
            INSERT INTO penstock.ready (tenant, id, queue, priority, run_at, key, scheduled_at)
            SELECT of_tenant, id, queue, priority, scheduled_at, key, scheduled_at FROM put
        ),
        counted AS (
            INSERT INTO penstock.tally (tenant, queue, queued) SELECT of_tenant, queue, count(*) FROM put GROUP BY queue
        ),
        known AS (
            SELECT penstock.know(of_tenant, array_agg(queue), array_agg(priority)),
                   penstock.hold(of_tenant, array_agg(queue), array_agg(priority), array_agg(scheduled_at)) FROM put
        )
        SELECT array_agg(id) INTO made FROM put, known;
        RETURN QUERY
        SELECT j.place, (j.body ->> 'id')::uuid, NULL::text, NULL::text, NULL::text
        FROM json_array_elements(asked) WITH ORDINALITY AS j (body, place) WHERE (j.body ->> 'id')::uuid = ANY (made);
    END IF;
    RETURN QUERY
    SELECT j.place, o.*
    FROM (SELECT * FROM json_array_elements(asked) WITH ORDINALITY AS j (body, place)
          WHERE (j.body ->> 'id')::uuid <> ALL (coalesce(made, '{}')) ORDER BY j.place) j,
    LATERAL penstock.enqueue_one(of_tenant, moment, j.body) o;

    PERFORM pg_notify('penstock', of_tenant || ' ' || g.queue)
    FROM (SELECT DISTINCT queue FROM json_to_recordset(asked) AS g (queue text)) g;
END
$$;

-- What SQL callers send is checked as `core.requests` checks it.
CREATE FUNCTION penstock.refuse(field text, must text, given text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE invalid_parameter_value USING
        MESSAGE = format('%s must %s; got %s', field, must, CASE WHEN length(given) > 80 THEN left(given, 60) || '…' ELSE coalesce(given, 'nothing') END),
        HINT = 'Nothing was enqueued. Correct the field and send it again.';
END
$$;

CREATE FUNCTION penstock.enqueue(job jsonb, of_tenant text DEFAULT 'default') RETURNS uuid
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    name_pattern constant text := '^[A-Za-z0-9_][A-Za-z0-9_.:/@+-]{0,127}$';
    a_name       constant text := 'be 1 to 128 letters, digits or _ . : / @ + - and begin with a letter, digit or _';
    a_uuid       constant text := '^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$';
    longest      constant numeric := 10 * 365 * 86400;
    fields       constant text[] := ARRAY['id', 'type', 'queue', 'payload', 'priority', 'run_at', 'delay', 'expires_at', 'expires_in',
        'max_attempts', 'retry', 'on_exhausted', 'key', 'ordering_key', 'unique_key', 'idempotency_key', 'idempotency_window', 'parents',
        'on_parent_failure', 'headers'];
    field        text;
    value        jsonb;
    kind         text;
    least        numeric;
    most         numeric;
    body         jsonb;
    options      jsonb := '{}';
    answer       record;
BEGIN
    IF of_tenant IS NULL OR of_tenant !~ name_pattern THEN
        PERFORM penstock.refuse('tenant', a_name, of_tenant);
    END IF;
    IF job IS NULL OR jsonb_typeof(job) <> 'object' THEN
        PERFORM penstock.refuse('a job', 'be an object with at least a type', job::text);
    END IF;
    FOR field, value IN SELECT * FROM jsonb_each(job) LOOP
        kind := jsonb_typeof(value);
        IF field <> ALL (fields) THEN
            PERFORM penstock.refuse('a job', 'have only the fields ' || array_to_string(fields, ', '), field);
        ELSIF kind = 'null' AND field <> 'payload' THEN
            job := job - field;  -- null stands for not given
            CONTINUE;
        END IF;
        CASE
        WHEN field IN ('type', 'queue') THEN
            IF kind <> 'string' OR value #>> '{}' !~ name_pattern THEN
                PERFORM penstock.refuse(field, a_name, value::text);
            END IF;
        WHEN field IN ('key', 'ordering_key', 'unique_key', 'idempotency_key') THEN
            IF kind <> 'string' OR length(value #>> '{}') NOT BETWEEN 1 AND 512 THEN
                PERFORM penstock.refuse(field, 'be 1 to 512 characters of Unicode without NUL', value::text);
            END IF;
        WHEN field IN ('priority', 'max_attempts') THEN
            least := CASE field WHEN 'priority' THEN -32768 ELSE 1 END;
            most := CASE field WHEN 'priority' THEN 32767 ELSE 1000 END;
            IF kind <> 'number' OR value::numeric NOT BETWEEN least AND most OR value::numeric % 1 <> 0 THEN
                PERFORM penstock.refuse(field, format('be a whole number from %s to %s', least, most), value::text);
            END IF;
        WHEN field IN ('delay', 'expires_in', 'idempotency_window') THEN
            IF kind <> 'number' OR value::numeric NOT BETWEEN 0 AND longest OR (field = 'idempotency_window' AND value::numeric = 0) THEN
                PERFORM penstock.refuse(field, format('be a number of seconds from 0 to %s', longest), value::text);
            END IF;
        WHEN field IN ('run_at', 'expires_at') THEN
            BEGIN
                IF kind <> 'string' OR value #>> '{}' !~* '^\d{4}-\d\d-\d\d[T ]\d\d:\d\d.*(Z|[+-]\d\d(:?\d\d)?)$'
                   OR (value #>> '{}')::timestamptz NOT BETWEEN '1970-01-01Z' AND '9000-01-01Z' THEN
                    RAISE datetime_field_overflow;
                END IF;
            EXCEPTION WHEN data_exception THEN
                PERFORM penstock.refuse(field, 'be a time like 2030-01-31T09:00:00Z, with a time zone, of the years 1970 to 9000', value::text);
            END;
        WHEN field IN ('on_exhausted', 'on_parent_failure') THEN
            IF value NOT IN (SELECT to_jsonb(choice) FROM unnest(CASE field WHEN 'on_exhausted' THEN ARRAY['dead', 'hold'] ELSE ARRAY['cancel', 'run'] END) choice) THEN
                PERFORM penstock.refuse(field, CASE field WHEN 'on_exhausted' THEN 'be dead or hold' ELSE 'be cancel or run' END, value::text);
            END IF;
        WHEN field = 'id' THEN
            IF kind <> 'string' OR value #>> '{}' !~ a_uuid THEN
                PERFORM penstock.refuse(field, 'be a UUID in lower case, 8-4-4-4-12', value::text);
            END IF;
        WHEN field = 'parents' THEN
            IF kind <> 'array' OR jsonb_array_length(value) > 1000
               OR EXISTS (SELECT FROM jsonb_array_elements(value) p WHERE jsonb_typeof(p) <> 'string' OR p #>> '{}' !~ a_uuid)
               OR jsonb_array_length(value) > (SELECT count(DISTINCT p) FROM jsonb_array_elements(value) p) THEN
                PERFORM penstock.refuse(field, 'be a list of at most 1,000 different job ids', value::text);
            END IF;
        WHEN field = 'payload' THEN
            IF octet_length(value::text) > 1048576 OR jsonb_path_exists(value, '$.**{201}') THEN
                PERFORM penstock.refuse(field, 'be at most 1,048,576 bytes of JSON, nested at most 200 deep', octet_length(value::text) || ' bytes');
            END IF;
        WHEN field = 'headers' THEN
            IF kind <> 'object' OR octet_length(value::text) > 16384 OR jsonb_path_exists(value, '$.**{201}') THEN
                PERFORM penstock.refuse(field, 'be an object of at most 16,384 bytes', value::text);
            END IF;
        WHEN field = 'retry' THEN
            IF kind <> 'object' OR NOT value ?& ARRAY['kind', 'base'] OR value ->> 'kind' NOT IN ('fixed', 'linear', 'exponential')
               OR EXISTS (
                   SELECT FROM jsonb_each(value) r
                   LEFT JOIN (VALUES ('base', 0, longest), ('factor', 1, 100), ('cap', 0, longest), ('jitter', 0, 1)) AS b (name, least, most) ON b.name = r.key
                   WHERE r.key <> 'kind' AND CASE WHEN jsonb_typeof(r.value) = 'number' THEN r.value::numeric NOT BETWEEN b.least AND b.most IS NOT FALSE ELSE true END
               ) THEN
                PERFORM penstock.refuse(field, 'be like {"kind": "exponential", "base": 5, "factor": 2, "cap": 3600, "jitter": 0.1}', value::text);
            END IF;
        END CASE;
    END LOOP;
    IF NOT job ? 'type' THEN
        PERFORM penstock.refuse('type', 'be given', NULL);
    ELSIF job ?& ARRAY['run_at', 'delay'] THEN
        PERFORM penstock.refuse('delay', 'not be given together with run_at', job ->> 'delay');
    ELSIF job ?& ARRAY['expires_at', 'expires_in'] THEN
        PERFORM penstock.refuse('expires_in', 'not be given together with expires_at', job ->> 'expires_in');
    END IF;

    FOREACH field IN ARRAY ARRAY['run_at', 'expires_at'] LOOP
        IF job ? field THEN
            job := jsonb_set(job, ARRAY[field], to_jsonb(to_char((job ->> field)::timestamptz AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')));
        END IF;
    END LOOP;
    -- As the table keeps them, and Python reads them: see `to_options` in rows.py.
    FOR field, value IN SELECT * FROM jsonb_each(job) LOOP
        IF field IN ('delay', 'expires_in', 'idempotency_window') THEN
            options := options || jsonb_build_object(field, 'PT' || trim_scale(round(value::numeric, 6)) || 'S');
        ELSIF field = 'headers' THEN
            options := options || jsonb_build_object(field, value::text);
        ELSIF field IN ('expires_at', 'max_attempts', 'retry', 'on_exhausted', 'ordering_key', 'unique_key', 'idempotency_key', 'parents', 'on_parent_failure') THEN
            options := options || jsonb_build_object(field, value);
        END IF;
    END LOOP;
    body := jsonb_build_object('id', penstock.new_id(), 'queue', 'default', 'priority', 0, 'on_parent_failure', 'cancel', 'idempotency_window', 86400)
        || job
        || jsonb_build_object(
            'payload', coalesce((job -> 'payload')::text, '{}'),
            'options', nullif(options, '{}')::text,
            'fingerprint', 'sql:' || encode(sha256(convert_to((job - ARRAY['id', 'idempotency_key', 'idempotency_window'])::text, 'UTF8')), 'hex'),
            'involved', job ?| ARRAY['expires_at', 'expires_in', 'ordering_key', 'unique_key', 'idempotency_key', 'parents']);

    SELECT * INTO answer FROM penstock.enqueue_asked(of_tenant, NULL, jsonb_build_array(body)::json);
    CASE answer.error
    WHEN 'id_conflict' THEN
        RAISE unique_violation USING MESSAGE = format('a different job already has the id %s', answer.job_id);
    WHEN 'idempotency_conflict' THEN
        RAISE unique_violation USING MESSAGE = format('idempotency key %s was first used, with a different body, for job %s', job ->> 'idempotency_key', answer.about);
    WHEN 'parent_not_found' THEN
        RAISE foreign_key_violation USING MESSAGE = format('the job names the parent %s, which does not exist in this tenant', answer.about);
    ELSE
        RETURN answer.job_id;
    END CASE;
END
$$;
