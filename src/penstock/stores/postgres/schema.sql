-- The schema after all migrations, as the database tells it. Written by `make schema`; not run by anything.

CREATE SEQUENCE penstock.record_seq;

CREATE UNLOGGED TABLE penstock.allowance (
    tenant text NOT NULL,
    name text COLLATE "C" NOT NULL,
    remaining double precision NOT NULL,
    at timestamp with time zone NOT NULL,
    kept_until timestamp with time zone NOT NULL,
    CONSTRAINT allowance_pkey PRIMARY KEY (tenant, name)
) WITH (fillfactor=50);
CREATE INDEX allowance_kept_until ON penstock.allowance USING btree (kept_until);

CREATE TABLE penstock.attempt (
    seq bigint NOT NULL DEFAULT nextval('penstock.record_seq'::regclass),
    tenant text NOT NULL,
    job_id uuid NOT NULL,
    number integer NOT NULL,
    worker text NOT NULL,
    token text NOT NULL,
    started_at timestamp with time zone NOT NULL,
    ended_at timestamp with time zone NOT NULL,
    outcome text NOT NULL,
    status text NOT NULL,
    run_at timestamp with time zone NOT NULL,
    error text,
    result text,
    logs text,
    xid bigint NOT NULL DEFAULT ((pg_current_xact_id())::text)::bigint,
    CONSTRAINT attempt_pkey PRIMARY KEY (tenant, job_id, number)
) PARTITION BY RANGE (job_id);
CREATE INDEX attempt_xid ON ONLY penstock.attempt USING brin (xid) WITH (autosummarize='on', pages_per_range='64');
CREATE TRIGGER gone AFTER DELETE ON penstock.attempt REFERENCING OLD TABLE AS gone FOR EACH STATEMENT WHEN ((current_setting('penstock.moving'::text, true) IS DISTINCT FROM 'yes'::text)) EXECUTE FUNCTION penstock.gone();
CREATE TRIGGER stamp BEFORE INSERT ON penstock.attempt FOR EACH ROW WHEN ((new.xid IS NULL)) EXECUTE FUNCTION penstock.stamp();

CREATE TABLE penstock.attempt_default PARTITION OF penstock.attempt DEFAULT;
CREATE TRIGGER gone AFTER DELETE ON penstock.attempt_default REFERENCING OLD TABLE AS gone FOR EACH STATEMENT WHEN ((current_setting('penstock.moving'::text, true) IS DISTINCT FROM 'yes'::text)) EXECUTE FUNCTION penstock.gone();

CREATE TABLE penstock.change (
    seq bigint NOT NULL DEFAULT nextval('penstock.record_seq'::regclass),
    tenant text NOT NULL,
    kind text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    at timestamp with time zone NOT NULL,
    verb text NOT NULL,
    actor text NOT NULL,
    reason text,
    status text,
    detail json,
    xid bigint NOT NULL DEFAULT ((pg_current_xact_id())::text)::bigint,
    CONSTRAINT change_pkey PRIMARY KEY (tenant, kind, name, seq)
) PARTITION BY RANGE (kind, name);
CREATE INDEX change_audit ON ONLY penstock.change USING btree (tenant, seq) WHERE (actor !~~ 'rule:%'::text);
CREATE INDEX change_xid ON ONLY penstock.change USING brin (xid) WITH (autosummarize='on', pages_per_range='64');
CREATE TRIGGER gone AFTER DELETE ON penstock.change REFERENCING OLD TABLE AS gone FOR EACH STATEMENT WHEN ((current_setting('penstock.moving'::text, true) IS DISTINCT FROM 'yes'::text)) EXECUTE FUNCTION penstock.gone();
CREATE TRIGGER stamp BEFORE INSERT ON penstock.change FOR EACH ROW WHEN ((new.xid IS NULL)) EXECUTE FUNCTION penstock.stamp();

CREATE TABLE penstock.change_default PARTITION OF penstock.change DEFAULT;
CREATE TRIGGER gone AFTER DELETE ON penstock.change_default REFERENCING OLD TABLE AS gone FOR EACH STATEMENT WHEN ((current_setting('penstock.moving'::text, true) IS DISTINCT FROM 'yes'::text)) EXECUTE FUNCTION penstock.gone();

CREATE TABLE penstock.done (
    tenant text NOT NULL,
    id uuid NOT NULL,
    status text NOT NULL,
    queue text NOT NULL,
    run_at timestamp with time zone NOT NULL,
    is_parent boolean NOT NULL DEFAULT false,
    start_by timestamp with time zone,
    attempts integer NOT NULL,
    leases integer NOT NULL,
    error text,
    progress text,
    cause text,
    ended_at timestamp with time zone NOT NULL,
    CONSTRAINT done_pkey PRIMARY KEY (id, tenant),
    CONSTRAINT done_status_check CHECK ((status = ANY (ARRAY['succeeded'::text, 'cancelled'::text])))
);
CREATE INDEX done_cancelled ON penstock.done USING btree (tenant, id) WHERE (status = 'cancelled'::text);
CREATE INDEX done_ended_at ON penstock.done USING btree (tenant, queue, ended_at);

CREATE TABLE penstock.edge (
    tenant text NOT NULL,
    parent_id uuid NOT NULL,
    child_id uuid NOT NULL,
    CONSTRAINT edge_pkey PRIMARY KEY (tenant, parent_id, child_id)
);
CREATE INDEX edge_by_child ON penstock.edge USING btree (tenant, child_id);

CREATE TABLE penstock.entry (
    tenant text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    body json NOT NULL,
    changed_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone,
    CONSTRAINT entry_pkey PRIMARY KEY (name, kind, tenant)
) WITH (fillfactor=70);
CREATE INDEX entry_expires_at ON penstock.entry USING btree (expires_at) WHERE (expires_at IS NOT NULL);
CREATE INDEX entry_of_kind ON penstock.entry USING btree (kind, tenant);

CREATE TABLE penstock.feed (
    id text NOT NULL,
    older bigint NOT NULL,
    newer bigint NOT NULL,
    marked_at timestamp with time zone NOT NULL DEFAULT now()
);

CREATE TABLE penstock.feed_floor (
    xid bigint NOT NULL
);
CREATE INDEX feed_floor_xid ON penstock.feed_floor USING btree (xid);

CREATE TABLE penstock.holder (
    tenant text NOT NULL,
    queue text NOT NULL,
    unique_key text NOT NULL,
    job_id uuid NOT NULL,
    CONSTRAINT holder_pkey PRIMARY KEY (tenant, queue, unique_key)
);

CREATE TABLE penstock.insight (
    tenant text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    as_of timestamp with time zone NOT NULL,
    body json NOT NULL,
    published_at timestamp with time zone NOT NULL DEFAULT now(),
    CONSTRAINT insight_pkey PRIMARY KEY (tenant, name)
);

CREATE TABLE penstock.job (
    tenant text NOT NULL,
    id uuid NOT NULL,
    queue text NOT NULL,
    type text NOT NULL,
    payload json NOT NULL,
    priority smallint NOT NULL,
    key text,
    schedule text,
    run_at timestamp with time zone,
    options json,
    created_at timestamp with time zone NOT NULL,
    scheduled_at timestamp with time zone NOT NULL,
    xid bigint NOT NULL DEFAULT ((pg_current_xact_id())::text)::bigint,
    CONSTRAINT job_pkey PRIMARY KEY (tenant, id)
) PARTITION BY RANGE (id);
CREATE INDEX job_of_schedule ON ONLY penstock.job USING btree (tenant, schedule, id) WHERE (schedule IS NOT NULL);
CREATE INDEX job_xid ON ONLY penstock.job USING brin (xid) WITH (autosummarize='on', pages_per_range='64');
CREATE TRIGGER gone AFTER DELETE ON penstock.job REFERENCING OLD TABLE AS gone FOR EACH STATEMENT WHEN ((current_setting('penstock.moving'::text, true) IS DISTINCT FROM 'yes'::text)) EXECUTE FUNCTION penstock.gone();

CREATE TABLE penstock.job_default PARTITION OF penstock.job DEFAULT;
CREATE TRIGGER gone AFTER DELETE ON penstock.job_default REFERENCING OLD TABLE AS gone FOR EACH STATEMENT WHEN ((current_setting('penstock.moving'::text, true) IS DISTINCT FROM 'yes'::text)) EXECUTE FUNCTION penstock.gone();

CREATE TABLE penstock.key_use (
    tenant text NOT NULL,
    queue text NOT NULL,
    key text NOT NULL,
    turn bigint NOT NULL DEFAULT 0,
    full_until timestamp with time zone,
    CONSTRAINT key_use_pkey PRIMARY KEY (tenant, queue, key)
) WITH (fillfactor=50);

CREATE TABLE penstock.lane (
    tenant text NOT NULL,
    queue text NOT NULL,
    priority smallint NOT NULL,
    floor timestamp with time zone NOT NULL DEFAULT '-infinity'::timestamp with time zone,
    CONSTRAINT lane_pkey PRIMARY KEY (tenant, queue, priority)
) WITH (fillfactor=50);

CREATE TABLE penstock.leader (
    office text NOT NULL,
    holder text NOT NULL,
    until timestamp with time zone NOT NULL,
    CONSTRAINT leader_pkey PRIMARY KEY (office)
) WITH (fillfactor=50);

CREATE TABLE penstock.lease (
    tenant text NOT NULL,
    id uuid NOT NULL,
    queue text NOT NULL,
    priority smallint NOT NULL,
    run_at timestamp with time zone NOT NULL,
    key text,
    ordering_key text,
    scheduled_at timestamp with time zone NOT NULL,
    is_parent boolean NOT NULL DEFAULT false,
    is_unique boolean NOT NULL DEFAULT false,
    start_by timestamp with time zone,
    attempts integer NOT NULL,
    leases integer NOT NULL,
    error text,
    progress text,
    token text NOT NULL,
    worker text NOT NULL,
    taken_at timestamp with time zone NOT NULL,
    until timestamp with time zone NOT NULL,
    seconds double precision NOT NULL,
    cancel_requested boolean NOT NULL DEFAULT false,
    CONSTRAINT lease_pkey PRIMARY KEY (id, tenant)
) WITH (autovacuum_vacuum_cost_delay=1, autovacuum_vacuum_scale_factor=0.02, fillfactor=50);
CREATE INDEX lease_by_key ON penstock.lease USING btree (tenant, queue, key);
CREATE INDEX lease_until ON penstock.lease USING btree (tenant, until);

CREATE TABLE penstock.migration (
    number integer NOT NULL,
    name text NOT NULL,
    checksum text NOT NULL,
    old_workers_may_run boolean NOT NULL,
    applied_at timestamp with time zone NOT NULL DEFAULT now(),
    CONSTRAINT migration_pkey PRIMARY KEY (number)
);

CREATE TABLE penstock.parked (
    tenant text NOT NULL,
    id uuid NOT NULL,
    status text NOT NULL,
    queue text NOT NULL,
    run_at timestamp with time zone NOT NULL,
    ordering_key text,
    scheduled_at timestamp with time zone NOT NULL,
    is_parent boolean NOT NULL DEFAULT false,
    start_by timestamp with time zone,
    attempts integer NOT NULL,
    leases integer NOT NULL,
    error text,
    progress text,
    cause text,
    ended_at timestamp with time zone,
    CONSTRAINT parked_pkey PRIMARY KEY (id, tenant),
    CONSTRAINT parked_status_check CHECK ((status = ANY (ARRAY['waiting'::text, 'dead'::text, 'held'::text])))
);
CREATE INDEX parked_by_status ON penstock.parked USING btree (tenant, status, id);
CREATE INDEX parked_in_order ON penstock.parked USING btree (tenant, queue, ordering_key, scheduled_at, id) WHERE ((ordering_key IS NOT NULL) AND (status = 'held'::text));
CREATE INDEX parked_start_by ON penstock.parked USING btree (tenant, start_by) WHERE ((start_by IS NOT NULL) AND (status = 'waiting'::text));

CREATE TABLE penstock.queue (
    tenant text NOT NULL,
    name text NOT NULL,
    settings json NOT NULL,
    governed boolean NOT NULL DEFAULT false,
    paused boolean NOT NULL DEFAULT false,
    seconds double precision NOT NULL DEFAULT 30,
    full_until timestamp with time zone,
    turn bigint NOT NULL DEFAULT 0,
    CONSTRAINT queue_pkey PRIMARY KEY (tenant, name)
) WITH (fillfactor=50);

CREATE TABLE penstock.ready (
    tenant text NOT NULL,
    id uuid NOT NULL,
    queue text NOT NULL,
    priority smallint NOT NULL,
    run_at timestamp with time zone NOT NULL,
    key text,
    ordering_key text,
    scheduled_at timestamp with time zone NOT NULL,
    blocked boolean NOT NULL DEFAULT false,
    is_parent boolean NOT NULL DEFAULT false,
    is_unique boolean NOT NULL DEFAULT false,
    start_by timestamp with time zone,
    attempts integer NOT NULL DEFAULT 0,
    leases integer NOT NULL DEFAULT 0,
    error text,
    progress text,
    CONSTRAINT ready_pkey PRIMARY KEY (id, tenant)
) WITH (autovacuum_vacuum_cost_delay=1, autovacuum_vacuum_scale_factor=0.02, fillfactor=90);
CREATE INDEX ready_blocked ON penstock.ready USING btree (tenant, queue, run_at) WHERE blocked;
CREATE INDEX ready_by_key ON penstock.ready USING btree (tenant, queue, key, priority DESC, run_at, id) WHERE ((NOT blocked) AND (key IS NOT NULL));
CREATE INDEX ready_in_order ON penstock.ready USING btree (tenant, queue, ordering_key, scheduled_at, id) WHERE (ordering_key IS NOT NULL);
CREATE INDEX ready_next ON penstock.ready USING btree (tenant, queue, priority, run_at, id) WHERE (NOT blocked);
CREATE INDEX ready_start_by ON penstock.ready USING btree (tenant, start_by) WHERE ((start_by IS NOT NULL) AND (leases = 0));

CREATE TABLE penstock.request (
    tenant text NOT NULL,
    key text NOT NULL,
    job_id uuid NOT NULL,
    fingerprint text NOT NULL,
    until timestamp with time zone NOT NULL,
    CONSTRAINT request_pkey PRIMARY KEY (tenant, key)
);
CREATE INDEX request_until ON penstock.request USING btree (until);

CREATE TABLE penstock.schedule (
    tenant text NOT NULL,
    name text NOT NULL,
    body json NOT NULL,
    next_fire_at timestamp with time zone,
    last_fire_at timestamp with time zone,
    CONSTRAINT schedule_pkey PRIMARY KEY (tenant, name)
);

CREATE TABLE penstock.tally (
    tenant text NOT NULL,
    queue text NOT NULL,
    waiting bigint NOT NULL DEFAULT 0,
    queued bigint NOT NULL DEFAULT 0,
    running bigint NOT NULL DEFAULT 0,
    succeeded bigint NOT NULL DEFAULT 0,
    dead bigint NOT NULL DEFAULT 0,
    held bigint NOT NULL DEFAULT 0,
    cancelled bigint NOT NULL DEFAULT 0
) WITH (autovacuum_vacuum_scale_factor=0.02);
CREATE INDEX tally_of_queue ON penstock.tally USING btree (tenant, queue);

CREATE VIEW penstock.job_now AS
 SELECT j.tenant,
    j.id,
    j.queue,
    j.type,
    j.payload,
    j.priority,
    j.key,
    j.schedule,
    j.run_at AS asked_run_at,
    j.options,
    j.created_at,
    j.scheduled_at,
    s.status,
    s.run_at,
    s.start_by,
    s.attempts,
    s.leases,
    s.error,
    s.progress,
    s.cause,
    s.ended_at,
    s.token,
    s.worker,
    s.taken_at,
    s.until,
    s.seconds,
    s.cancel_requested,
    a.result
   FROM penstock.job j
     CROSS JOIN LATERAL ( SELECT 'queued'::text AS status,
            r.run_at,
            r.start_by,
            r.attempts,
            r.leases,
            r.error,
            r.progress,
            NULL::text AS cause,
            NULL::timestamp with time zone AS ended_at,
            NULL::text AS token,
            NULL::text AS worker,
            NULL::timestamp with time zone AS taken_at,
            NULL::timestamp with time zone AS until,
            NULL::double precision AS seconds,
            false AS cancel_requested
           FROM penstock.ready r
          WHERE r.tenant = j.tenant AND r.id = j.id
        UNION ALL
         SELECT 'running'::text,
            l.run_at,
            l.start_by,
            l.attempts,
            l.leases,
            l.error,
            l.progress,
            NULL::text,
            NULL::timestamp with time zone,
            l.token,
            l.worker,
            l.taken_at,
            l.until,
            l.seconds,
            l.cancel_requested
           FROM penstock.lease l
          WHERE l.tenant = j.tenant AND l.id = j.id
        UNION ALL
         SELECT p.status,
            p.run_at,
            p.start_by,
            p.attempts,
            p.leases,
            p.error,
            p.progress,
            p.cause,
            p.ended_at,
            NULL::text,
            NULL::text,
            NULL::timestamp with time zone,
            NULL::timestamp with time zone,
            NULL::double precision,
            false
           FROM penstock.parked p
          WHERE p.tenant = j.tenant AND p.id = j.id
        UNION ALL
         SELECT d.status,
            d.run_at,
            d.start_by,
            d.attempts,
            d.leases,
            d.error,
            d.progress,
            d.cause,
            d.ended_at,
            NULL::text,
            NULL::text,
            NULL::timestamp with time zone,
            NULL::timestamp with time zone,
            NULL::double precision,
            false
           FROM penstock.done d
          WHERE d.tenant = j.tenant AND d.id = j.id) s
     LEFT JOIN penstock.attempt a ON s.status = 'succeeded'::text AND a.tenant = j.tenant AND a.job_id = j.id AND a.number = s.leases;

CREATE OR REPLACE FUNCTION penstock.add_day(day date, most integer DEFAULT 1000)
 RETURNS boolean
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
 SET "penstock.moving" TO 'yes'
AS $function$
DECLARE
    lowest uuid := penstock.first_id(day);
    beyond uuid := penstock.first_id(day + 1);
    suffix text := to_char(day, 'YYYYMMDD');
    found  bigint;
    wide   text;
    span   text;
    bounds text;
BEGIN
    IF to_regclass('penstock.job_' || suffix) IS NOT NULL THEN
        RETURN true;
    END IF;
    SELECT count(*) INTO found FROM (
        (SELECT FROM penstock.job_default WHERE id >= lowest AND id < beyond LIMIT most + 1)
        UNION ALL
        (SELECT FROM penstock.attempt_default WHERE job_id >= lowest AND job_id < beyond LIMIT most + 1)
        UNION ALL
        (SELECT FROM penstock.change_default
         WHERE kind = 'job' AND name >= lowest::text AND name < beyond::text LIMIT most + 1)
    ) AS rows;
    IF found > most THEN
        RETURN false;
    END IF;
    -- From the parents down, in the order in which everybody reads them: one who writes meanwhile would be sent astray.
    LOCK TABLE ONLY penstock.job, ONLY penstock.attempt, ONLY penstock.change IN ACCESS EXCLUSIVE MODE;
    FOR wide, span, bounds IN VALUES
        ('job', format('id >= %L AND id < %L', lowest, beyond), format('FROM (%L) TO (%L)', lowest, beyond)),
        ('attempt', format('job_id >= %L AND job_id < %L', lowest, beyond), format('FROM (%L) TO (%L)', lowest, beyond)),
        ('change', format('kind = ''job'' AND name >= %L AND name < %L', lowest, beyond),
                   format('FROM (''job'', %L) TO (''job'', %L)', lowest, beyond))
    LOOP
        EXECUTE format('CREATE TABLE penstock.%1$s_%2$s (LIKE penstock.%1$s INCLUDING ALL)', wide, suffix);
        EXECUTE format('WITH moved AS (DELETE FROM penstock.%1$s_default WHERE %3$s RETURNING *)
                        INSERT INTO penstock.%1$s_%2$s SELECT * FROM moved', wide, suffix, span);
        EXECUTE format('ALTER TABLE penstock.%1$s ATTACH PARTITION penstock.%1$s_%2$s FOR VALUES %3$s', wide, suffix, bounds);
    END LOOP;
    PERFORM penstock.mark_feed();
    RETURN true;
END $function$;

CREATE OR REPLACE FUNCTION penstock.admit(of_tenant text, queues text[], ordering_keys text[])
 RETURNS TABLE(queue text, priority smallint, run_at timestamp with time zone, blocked boolean)
 LANGUAGE sql
AS $function$
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
$function$;

CREATE OR REPLACE FUNCTION penstock.day_is_needed(day date)
 RETURNS boolean
 LANGUAGE sql
 STABLE STRICT
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
    -- The first of each: asked whether one exists, the planner would read the whole table.
    SELECT coalesce(
        (SELECT id FROM penstock.ready WHERE id >= penstock.first_id(day) AND id < penstock.first_id(day + 1) ORDER BY id LIMIT 1),
        (SELECT id FROM penstock.lease WHERE id >= penstock.first_id(day) AND id < penstock.first_id(day + 1) ORDER BY id LIMIT 1),
        (SELECT id FROM penstock.parked WHERE id >= penstock.first_id(day) AND id < penstock.first_id(day + 1) ORDER BY id LIMIT 1),
        (SELECT id FROM penstock.done WHERE id >= penstock.first_id(day) AND id < penstock.first_id(day + 1) ORDER BY id LIMIT 1)
    ) IS NOT NULL
$function$;

CREATE OR REPLACE FUNCTION penstock.drop_day(day date)
 RETURNS boolean
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
 SET enable_bitmapscan TO 'on'
AS $function$
DECLARE
    suffix text := to_char(day, 'YYYYMMDD');
    newest bigint;
BEGIN
    IF to_regclass('penstock.job_' || suffix) IS NULL THEN
        RETURN false;
    END IF;
    -- First keep new jobs of that day out, which stops nobody else, then look: the look may take long, and it must see
    -- whoever was just putting one in.
    EXECUTE format('LOCK TABLE ONLY penstock.job_%s IN SHARE MODE', suffix);
    IF penstock.day_is_needed(day) THEN
        RETURN false;
    END IF;
    -- Only what is new is looked for, by the index: a cursor from before that is too old, whatever it has missed.
    PERFORM penstock.mark_feed();
    EXECUTE format('SELECT greatest(f.older - 1,
                               (SELECT max(xid) FROM penstock.job_%1$s WHERE xid >= f.older),
                               (SELECT max(xid) FROM penstock.attempt_%1$s WHERE xid >= f.older),
                               (SELECT max(xid) FROM penstock.change_%1$s WHERE xid >= f.older))
                    FROM penstock.feed f', suffix) INTO newest;
    PERFORM penstock.raise_feed_floor(newest);
    -- Now everybody waits, but only for the catalogue: files are removed after the locks are gone.
    LOCK TABLE ONLY penstock.job, ONLY penstock.attempt, ONLY penstock.change IN ACCESS EXCLUSIVE MODE;
    EXECUTE format('DROP TABLE penstock.job_%1$s, penstock.attempt_%1$s, penstock.change_%1$s', suffix);
    RETURN true;
END $function$;

CREATE OR REPLACE FUNCTION penstock.enqueue(job jsonb, of_tenant text DEFAULT 'default'::text)
 RETURNS uuid
 LANGUAGE plpgsql
AS $function$
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
$function$;

CREATE OR REPLACE FUNCTION penstock.enqueue_asked(of_tenant text, at timestamp with time zone, asked json)
 RETURNS TABLE(place bigint, job_id uuid, duplicate text, error text, about text)
 LANGUAGE plpgsql
 SET enable_seqscan TO 'off'
 SET enable_bitmapscan TO 'off'
AS $function$
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
$function$;

CREATE OR REPLACE FUNCTION penstock.enqueue_one(of_tenant text, moment timestamp with time zone, asked json, OUT job_id uuid, OUT duplicate text, OUT error text, OUT about text)
 RETURNS record
 LANGUAGE plpgsql
AS $function$
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
$function$;

CREATE OR REPLACE FUNCTION penstock.events(of_tenant text, after_xid bigint, after_seq bigint, after_id uuid, horizon bigint, most integer)
 RETURNS TABLE(xid bigint, seq bigint, id uuid, at timestamp with time zone, kind text, name text, what text, queue text, type text, status text, attempt integer, worker text, actor text, error text, started_at timestamp with time zone, ready_at timestamp with time zone)
 LANGUAGE plpgsql
 STABLE
 SET search_path TO 'pg_catalog', 'pg_temp'
 SET enable_seqscan TO 'off'
 SET enable_bitmapscan TO 'on'
 SET enable_sort TO 'on'
 SET jit TO 'off'
AS $function$
#variable_conflict use_column
DECLARE
    nobody uuid   := '00000000-0000-0000-0000-000000000000';
    lowest bigint := after_xid;
    beyond bigint;
    width  bigint := 32;
    found  integer;
BEGIN
    -- A few transactions first, then many: who is far behind must not read all that happened since for every page. Not by
    -- small steps: each reads anew what the index has not summed up yet.
    WHILE lowest < horizon AND most > 0 LOOP
        beyond := least(lowest + width, horizon);
        RETURN QUERY
        SELECT e.xid, e.seq, e.id, e.at, e.kind, e.name, e.what, coalesce(e.queue, j.queue), coalesce(e.type, j.type),
               e.status, e.attempt, e.worker, e.actor, e.error, e.started_at,
               CASE e.attempt WHEN 1 THEN greatest(j.created_at, j.scheduled_at) END
        FROM (
            -- IS TRUE: of the indexes only the one on `xid` may be taken.
            (SELECT j.xid, 0::bigint AS seq, j.id, j.created_at AS at, 'job'::text AS kind, j.id::text AS name, 'enqueued'::text AS what,
                    j.queue, j.type, NULL::text AS status, NULL::integer AS attempt, NULL::text AS worker, NULL::text AS actor,
                    NULL::text AS error, NULL::uuid AS job_id, NULL::timestamptz AS started_at
             FROM penstock.job j
             WHERE (j.tenant = of_tenant) IS TRUE AND j.xid >= lowest AND j.xid < beyond
               AND (j.xid, 0, j.id) > (after_xid, after_seq, after_id)
             ORDER BY j.xid, j.id LIMIT most)
            UNION ALL
            (SELECT a.xid, a.seq, nobody, a.ended_at, 'job', a.job_id::text, a.outcome,
                    NULL, NULL, a.status, a.number, a.worker, NULL, a.error, a.job_id, a.started_at
             FROM penstock.attempt a
             WHERE (a.tenant = of_tenant) IS TRUE AND a.xid >= lowest AND a.xid < beyond
               AND (a.xid, a.seq) > (after_xid, after_seq)
             ORDER BY a.xid, a.seq LIMIT most)
            UNION ALL
            (SELECT c.xid, c.seq, nobody, c.at, c.kind, c.name, c.verb,
                    CASE c.kind WHEN 'queue' THEN c.name END, NULL, c.status, NULL, NULL, c.actor, NULL,
                    CASE c.kind WHEN 'job' THEN c.name::uuid END, NULL
             FROM penstock.change c
             WHERE (c.tenant = of_tenant) IS TRUE AND c.xid >= lowest AND c.xid < beyond
               AND (c.xid, c.seq) > (after_xid, after_seq)
             ORDER BY c.xid, c.seq LIMIT most)
            ORDER BY 1, 2, 3 LIMIT most
        ) e
        -- LIMIT keeps it a look-up per event, in the one partition that the job's id belongs to.
        LEFT JOIN LATERAL (SELECT j.queue, j.type, j.created_at, j.scheduled_at FROM penstock.job j WHERE j.tenant = of_tenant AND j.id = e.job_id LIMIT 1) j
            ON true
        ORDER BY e.xid, e.seq, e.id;
        GET DIAGNOSTICS found = ROW_COUNT;
        most := most - found;
        lowest := beyond;
        width := width * 32;
    END LOOP;
END $function$;

CREATE OR REPLACE FUNCTION penstock.first_id(day date)
 RETURNS uuid
 LANGUAGE sql
 IMMUTABLE STRICT
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$ SELECT (lpad(to_hex((day - '1970-01-01'::date) * 86400000::bigint), 12, '0') || repeat('0', 20))::uuid $function$;

CREATE OR REPLACE FUNCTION penstock.gone()
 RETURNS trigger
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
BEGIN
    PERFORM penstock.raise_feed_floor(max(xid)) FROM gone HAVING max(xid) IS NOT NULL;
    RETURN NULL;
END $function$;

CREATE OR REPLACE FUNCTION penstock.hold(of_tenant text, queues text[], priorities smallint[], run_ats timestamp with time zone[])
 RETURNS void
 LANGUAGE plpgsql
AS $function$
BEGIN
    PERFORM FROM penstock.lane l
    WHERE l.tenant = of_tenant AND (l.queue, l.priority) IN (SELECT * FROM unnest(queues, priorities))
    ORDER BY l.queue, l.priority FOR KEY SHARE;
    PERFORM penstock.lower(of_tenant, queues, priorities, run_ats);
END
$function$;

CREATE OR REPLACE FUNCTION penstock.know(of_tenant text, queues text[], priorities smallint[])
 RETURNS void
 LANGUAGE sql
AS $function$
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
$function$;

CREATE OR REPLACE FUNCTION penstock.lock_jobs(of_tenant text, ids uuid[])
 RETURNS void
 LANGUAGE plpgsql
AS $function$
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
$function$;

CREATE OR REPLACE FUNCTION penstock.lower(of_tenant text, queues text[], priorities smallint[], run_ats timestamp with time zone[])
 RETURNS void
 LANGUAGE sql
AS $function$
    UPDATE penstock.lane l SET floor = m.run_at
    FROM (
        SELECT queue, priority, min(run_at) AS run_at
        FROM unnest(queues, priorities, run_ats) AS g (queue, priority, run_at) GROUP BY queue, priority
    ) m
    WHERE l.tenant = of_tenant AND l.queue = m.queue AND l.priority = m.priority AND l.floor > m.run_at
$function$;

CREATE OR REPLACE FUNCTION penstock.mark_feed()
 RETURNS void
 LANGUAGE sql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
    UPDATE penstock.feed SET older = newer, newer = pg_snapshot_xmin(pg_current_snapshot())::text::bigint, marked_at = now()
    WHERE marked_at < now() - interval '1 day';
    DELETE FROM penstock.feed_floor WHERE xid < (SELECT max(xid) FROM penstock.feed_floor);
$function$;

CREATE OR REPLACE FUNCTION penstock.new_id()
 RETURNS uuid
 LANGUAGE sql
AS $function$
    SELECT encode(set_bit(set_bit(overlay(
        uuid_send(gen_random_uuid())
        PLACING substring(int8send(floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3) FROM 1 FOR 6
    ), 52, 1), 53, 1), 'hex')::uuid
$function$;

CREATE OR REPLACE FUNCTION penstock.put_entries(of_tenant text, given_now timestamp with time zone, kinds text[], names text[], bodies json[], guards bigint[], seconds double precision[], untils timestamp with time zone[], audit_names text[], verbs text[], actors text[], reasons text[], details json[])
 RETURNS TABLE(place bigint, put_version bigint, put_at timestamp with time zone, put_until timestamp with time zone)
 LANGUAGE plpgsql
AS $function$
DECLARE
    moment  timestamptz := coalesce(given_now, now());
    one     record;
    there   penstock.entry;
    is_held boolean;
    had     bigint;
    told    bigint[] := '{}';
BEGIN
    -- By name, as everyone does, so that no two wait for each other; of one name in the order given.
    FOR one IN
        SELECT *
        FROM unnest(kinds, names, bodies, guards, seconds, untils, audit_names, verbs, actors, reasons, details)
            WITH ORDINALITY AS g (kind, name, body, guard, seconds, until, audit_name, verb, actor, reason, detail, place)
        ORDER BY g.name COLLATE "C", g.kind COLLATE "C", g.place
    LOOP
        place := one.place;
        LOOP
            -- IS TRUE: only the key may be taken.
            SELECT * INTO there FROM penstock.entry e
            WHERE e.name = one.name AND (e.kind = one.kind) IS TRUE AND (e.tenant = of_tenant) IS TRUE
            FOR UPDATE;
            is_held := FOUND;
            -- Whoever waited for a row that then was dropped, and made anew, has not found the new one: its snapshot is older.
            CONTINUE WHEN NOT is_held AND EXISTS (
                SELECT FROM penstock.entry e
                WHERE e.name = one.name AND (e.kind = one.kind) IS TRUE AND (e.tenant = of_tenant) IS TRUE
            );
            had := CASE WHEN is_held AND (there.expires_at > moment) IS NOT FALSE THEN there.version ELSE 0 END;
            put_version := CASE WHEN one.guard <> had THEN NULL WHEN one.body IS NULL THEN 0 ELSE had + 1 END;
            put_at := moment;
            put_until := coalesce(one.until, moment + make_interval(secs => one.seconds));
            EXIT WHEN put_version IS NULL;
            IF put_version > 0 AND NOT is_held THEN
                INSERT INTO penstock.entry (tenant, kind, name, version, body, changed_at, expires_at)
                VALUES (of_tenant, one.kind, one.name, put_version, one.body, put_at, put_until)
                ON CONFLICT DO NOTHING;
                EXIT WHEN FOUND;
                CONTINUE;  -- somebody was first: look at what is there now
            END IF;
            IF put_version > 0 THEN
                UPDATE penstock.entry e
                SET version = put_version, body = one.body, changed_at = put_at, expires_at = put_until
                WHERE e.name = one.name AND (e.kind = one.kind) IS TRUE AND (e.tenant = of_tenant) IS TRUE;
            ELSE
                DELETE FROM penstock.entry e
                WHERE e.name = one.name AND (e.kind = one.kind) IS TRUE AND (e.tenant = of_tenant) IS TRUE;
            END IF;
            EXIT;
        END LOOP;
        -- Whoever drops what is not there has changed nothing.
        IF one.actor IS NOT NULL AND (put_version > 0 OR put_version = 0 AND had > 0) THEN
            told := told || one.place;
        END IF;
        RETURN NEXT;
    END LOOP;
    -- In the order given, while everything is still held.
    INSERT INTO penstock.change (tenant, kind, name, at, verb, actor, reason, detail)
    SELECT of_tenant, g.kind, g.name, moment, g.verb, g.actor, g.reason, g.detail
    FROM unnest(kinds, audit_names, verbs, actors, reasons, details)
        WITH ORDINALITY AS g (kind, name, verb, actor, reason, detail, place)
    WHERE g.place = ANY (told)
    ORDER BY g.place;
END
$function$;

CREATE OR REPLACE FUNCTION penstock.raise_feed_floor(newest bigint)
 RETURNS void
 LANGUAGE sql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$ INSERT INTO penstock.feed_floor SELECT newest + 1 WHERE newest >= (SELECT max(xid) FROM penstock.feed_floor) $function$;

CREATE OR REPLACE FUNCTION penstock.refuse(field text, must text, given text)
 RETURNS void
 LANGUAGE plpgsql
AS $function$
BEGIN
    RAISE invalid_parameter_value USING
        MESSAGE = format('%s must %s; got %s', field, must, CASE WHEN length(given) > 80 THEN left(given, 60) || '…' ELSE coalesce(given, 'nothing') END),
        HINT = 'Nothing was enqueued. Correct the field and send it again.';
END
$function$;

CREATE OR REPLACE FUNCTION penstock.spend(of_tenant text, given_now timestamp with time zone, names text[], costs double precision[], rates double precision[], bursts double precision[])
 RETURNS TABLE(place bigint, granted boolean, remains double precision, wait_seconds double precision)
 LANGUAGE plpgsql
AS $function$
DECLARE
    moment timestamptz;
    one    record;
    there  penstock.allowance;
BEGIN
    -- By name, as everyone does, so that no two wait for each other; of one name in the order given.
    FOR one IN
        SELECT *
        FROM unnest(names, costs, rates, bursts) WITH ORDINALITY AS g (name, cost, rate, burst, place)
        ORDER BY g.name COLLATE "C", g.place
    LOOP
        LOOP
            SELECT * INTO there FROM penstock.allowance a WHERE a.tenant = of_tenant AND a.name = one.name FOR UPDATE;
            EXIT WHEN FOUND;
            moment := coalesce(given_now, clock_timestamp());
            INSERT INTO penstock.allowance (tenant, name, remaining, at, kept_until)
            VALUES (of_tenant, one.name, one.burst, moment, moment)
            ON CONFLICT DO NOTHING;
        END LOOP;
        -- Only now that nobody else can spend: the lock may have been waited for. It never goes back behind what others saw.
        moment := greatest(there.at, coalesce(given_now, clock_timestamp()));
        place := one.place;
        remains := least(one.burst, there.remaining + one.rate * extract(epoch FROM moment - there.at)::double precision);
        granted := one.cost <= remains;
        wait_seconds := CASE WHEN granted THEN 0 ELSE (one.cost - remains) / one.rate END;
        IF granted THEN  -- who is refused writes nothing: a flood of them must not wear out the row
            remains := remains - one.cost;
            UPDATE penstock.allowance a
            SET remaining = remains, at = moment,
                -- By the hour: it is indexed, and a change of it would write to all indexes of the row.
                kept_until = date_trunc('hour', moment + make_interval(secs => (one.burst - remains) / one.rate), 'UTC')
                             + interval '2 hours'
            WHERE a.tenant = of_tenant AND a.name = one.name;
        END IF;
        RETURN NEXT;
    END LOOP;
END
$function$;

CREATE OR REPLACE FUNCTION penstock.stamp()
 RETURNS trigger
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$ BEGIN NEW.xid := pg_current_xact_id()::text::bigint; RETURN NEW; END $function$;
