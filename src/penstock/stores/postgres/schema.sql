-- The schema after all migrations, as the database tells it. Written by `make schema`; not run by anything.

CREATE SEQUENCE penstock.record_seq;

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
    CONSTRAINT attempt_pkey PRIMARY KEY (tenant, job_id, number)
) PARTITION BY RANGE (job_id);

CREATE TABLE penstock.attempt_default PARTITION OF penstock.attempt DEFAULT;

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
    CONSTRAINT change_pkey PRIMARY KEY (tenant, kind, name, seq)
) PARTITION BY RANGE (kind, name);

CREATE TABLE penstock.change_default PARTITION OF penstock.change DEFAULT;

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
CREATE INDEX done_ended_at ON penstock.done USING btree (tenant, queue, ended_at);

CREATE TABLE penstock.edge (
    tenant text NOT NULL,
    parent_id uuid NOT NULL,
    child_id uuid NOT NULL,
    CONSTRAINT edge_pkey PRIMARY KEY (tenant, parent_id, child_id)
);
CREATE INDEX edge_by_child ON penstock.edge USING btree (tenant, child_id);

CREATE TABLE penstock.holder (
    tenant text NOT NULL,
    queue text NOT NULL,
    unique_key text NOT NULL,
    job_id uuid NOT NULL,
    CONSTRAINT holder_pkey PRIMARY KEY (tenant, queue, unique_key)
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
    CONSTRAINT job_pkey PRIMARY KEY (tenant, id)
) PARTITION BY RANGE (id);

CREATE TABLE penstock.job_default PARTITION OF penstock.job DEFAULT;

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
    RETURN true;
END $function$;

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
AS $function$
DECLARE
    suffix text := to_char(day, 'YYYYMMDD');
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
    -- Now everybody waits, but only for the catalogue: files are removed after the locks are gone.
    LOCK TABLE ONLY penstock.job, ONLY penstock.attempt, ONLY penstock.change IN ACCESS EXCLUSIVE MODE;
    EXECUTE format('DROP TABLE penstock.job_%1$s, penstock.attempt_%1$s, penstock.change_%1$s', suffix);
    RETURN true;
END $function$;

CREATE OR REPLACE FUNCTION penstock.first_id(day date)
 RETURNS uuid
 LANGUAGE sql
 IMMUTABLE STRICT
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$ SELECT (lpad(to_hex((day - '1970-01-01'::date) * 86400000::bigint), 12, '0') || repeat('0', 20))::uuid $function$;
