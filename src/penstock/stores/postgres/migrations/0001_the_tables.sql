-- old workers may keep running: no
--
-- What was asked (job) is written once. What became of it is a narrow row in exactly one of four tables:
-- ready (queued), lease (running), parked (waiting, dead, held) and done (succeeded, cancelled).
-- What happened (attempt, change) is only ever added to.
--
-- The keys of those four begin with the id, all other indexes with the tenant: a planner that believes a table empty
-- then still has one index only to find a job by.
--
-- The wide tables (job, attempt, change) are partitioned by the day in a job's id, a UUIDv7: a day's history goes by
-- dropping its tables, never row by row. Ids of no known day (clients may send any UUID) go to the DEFAULT partitions.
-- All three are cut alike, so what belongs to one job is either in its day's tables or in the defaults.

CREATE TABLE penstock.job (
    tenant       text        NOT NULL,
    id           uuid        NOT NULL,
    queue        text        NOT NULL,
    type         text        NOT NULL,
    payload      json        NOT NULL,
    priority     smallint    NOT NULL,
    key          text,
    schedule     text,
    run_at       timestamptz,              -- as asked for; null for most
    options      json,                     -- what else was asked for; null for most
    created_at   timestamptz NOT NULL,
    scheduled_at timestamptz NOT NULL,
    PRIMARY KEY (tenant, id)
) PARTITION BY RANGE (id);

CREATE TABLE penstock.job_default PARTITION OF penstock.job DEFAULT;

CREATE TABLE penstock.ready (
    tenant       text        NOT NULL,
    id           uuid        NOT NULL,
    queue        text        NOT NULL,
    priority     smallint    NOT NULL,
    run_at       timestamptz NOT NULL,
    key          text,
    ordering_key text,
    scheduled_at timestamptz NOT NULL,
    blocked      boolean     NOT NULL DEFAULT false,  -- behind another job of its ordering key
    is_parent    boolean     NOT NULL DEFAULT false,
    is_unique    boolean     NOT NULL DEFAULT false,
    start_by     timestamptz,
    attempts     integer     NOT NULL DEFAULT 0,
    leases       integer     NOT NULL DEFAULT 0,
    error        text,
    progress     text,
    PRIMARY KEY (id, tenant)
) WITH (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 1);

CREATE INDEX ready_next ON penstock.ready (tenant, queue, priority, run_at, id) WHERE NOT blocked;
CREATE INDEX ready_by_key ON penstock.ready (tenant, queue, key, priority DESC, run_at, id) WHERE NOT blocked AND key IS NOT NULL;
CREATE INDEX ready_in_order ON penstock.ready (tenant, queue, ordering_key, scheduled_at, id) WHERE ordering_key IS NOT NULL;
CREATE INDEX ready_start_by ON penstock.ready (tenant, start_by) WHERE start_by IS NOT NULL AND leases = 0;

-- The priorities ever used in a queue: a claim visits each, so that none is hidden behind another's scheduled jobs.
-- No job that may be leased has a run_at below the floor: a claim starts there and does not step over the dead rows of
-- jobs long gone, which stay for as long as somebody holds a snapshot open.
CREATE TABLE penstock.lane (
    tenant   text     NOT NULL,
    queue    text     NOT NULL,
    priority smallint NOT NULL,
    floor    timestamptz NOT NULL DEFAULT '-infinity',
    PRIMARY KEY (tenant, queue, priority)
) WITH (fillfactor = 50);

CREATE TABLE penstock.lease (
    tenant           text        NOT NULL,
    id               uuid        NOT NULL,
    queue            text        NOT NULL,
    priority         smallint    NOT NULL,
    run_at           timestamptz NOT NULL,
    key              text,
    ordering_key     text,
    scheduled_at     timestamptz NOT NULL,
    is_parent        boolean     NOT NULL DEFAULT false,
    is_unique        boolean     NOT NULL DEFAULT false,
    start_by         timestamptz,
    attempts         integer     NOT NULL,
    leases           integer     NOT NULL,
    error            text,
    progress         text,
    token            text        NOT NULL,
    worker           text        NOT NULL,
    taken_at         timestamptz NOT NULL,
    until            timestamptz NOT NULL,
    seconds          double precision NOT NULL,
    cancel_requested boolean     NOT NULL DEFAULT false,
    PRIMARY KEY (id, tenant)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 1);

CREATE INDEX lease_until ON penstock.lease (tenant, until);
CREATE INDEX lease_by_key ON penstock.lease (tenant, queue, key);

CREATE TABLE penstock.parked (
    tenant       text        NOT NULL,
    id           uuid        NOT NULL,
    status       text        NOT NULL CHECK (status IN ('waiting', 'dead', 'held')),
    queue        text        NOT NULL,
    run_at       timestamptz NOT NULL,
    ordering_key text,
    scheduled_at timestamptz NOT NULL,
    is_parent    boolean     NOT NULL DEFAULT false,
    start_by     timestamptz,
    attempts     integer     NOT NULL,
    leases       integer     NOT NULL,
    error        text,
    progress     text,
    cause        text,
    ended_at     timestamptz,
    PRIMARY KEY (id, tenant)
);

CREATE INDEX parked_in_order ON penstock.parked (tenant, queue, ordering_key, scheduled_at, id) WHERE ordering_key IS NOT NULL AND status = 'held';
CREATE INDEX parked_start_by ON penstock.parked (tenant, start_by) WHERE start_by IS NOT NULL AND status = 'waiting';

CREATE TABLE penstock.done (
    tenant    text        NOT NULL,
    id        uuid        NOT NULL,
    status    text        NOT NULL CHECK (status IN ('succeeded', 'cancelled')),
    queue     text        NOT NULL,
    run_at    timestamptz NOT NULL,
    is_parent boolean     NOT NULL DEFAULT false,
    start_by  timestamptz,
    attempts  integer     NOT NULL,
    leases    integer     NOT NULL,
    error     text,
    progress  text,
    cause     text,
    ended_at  timestamptz NOT NULL,
    PRIMARY KEY (id, tenant)
);

CREATE INDEX done_ended_at ON penstock.done (tenant, queue, ended_at);

CREATE SEQUENCE penstock.record_seq;

CREATE TABLE penstock.attempt (
    seq        bigint      NOT NULL DEFAULT nextval('penstock.record_seq'),
    tenant     text        NOT NULL,
    job_id     uuid        NOT NULL,
    number     integer     NOT NULL,
    worker     text        NOT NULL,
    token      text        NOT NULL,
    started_at timestamptz NOT NULL,
    ended_at   timestamptz NOT NULL,
    outcome    text        NOT NULL,
    status     text        NOT NULL,
    run_at     timestamptz NOT NULL,
    error      text,
    result     text,
    PRIMARY KEY (tenant, job_id, number)
) PARTITION BY RANGE (job_id);

CREATE TABLE penstock.attempt_default PARTITION OF penstock.attempt DEFAULT;

-- By kind and name and not by `at`: a job's changes leave when the job does, however long ago each was made, and those of
-- queues and schedules stay. In the order of bytes the text of a UUID sorts as the UUID does.
CREATE TABLE penstock.change (
    seq    bigint      NOT NULL DEFAULT nextval('penstock.record_seq'),
    tenant text        NOT NULL,
    kind   text        COLLATE "C" NOT NULL,
    name   text        COLLATE "C" NOT NULL,
    at     timestamptz NOT NULL,
    verb   text        NOT NULL,
    actor  text        NOT NULL,
    reason text,
    status text,
    detail json,
    PRIMARY KEY (tenant, kind, name, seq)
) PARTITION BY RANGE (kind, name);

CREATE TABLE penstock.change_default PARTITION OF penstock.change DEFAULT;

CREATE TABLE penstock.edge (
    tenant    text NOT NULL,
    parent_id uuid NOT NULL,
    child_id  uuid NOT NULL,
    PRIMARY KEY (tenant, parent_id, child_id)
);

CREATE INDEX edge_by_child ON penstock.edge (tenant, child_id);

CREATE TABLE penstock.request (
    tenant      text        NOT NULL,
    key         text        NOT NULL,
    job_id      uuid        NOT NULL,
    fingerprint text        NOT NULL,
    until       timestamptz NOT NULL,
    PRIMARY KEY (tenant, key)
);

CREATE INDEX request_until ON penstock.request (until);

CREATE TABLE penstock.holder (
    tenant     text NOT NULL,
    queue      text NOT NULL,
    unique_key text NOT NULL,
    job_id     uuid NOT NULL,
    PRIMARY KEY (tenant, queue, unique_key)
);

CREATE TABLE penstock.queue (
    tenant     text    NOT NULL,
    name       text    NOT NULL,
    settings   json    NOT NULL,
    governed   boolean NOT NULL DEFAULT false,  -- some limit or fair turns: leased one caller at a time
    paused     boolean NOT NULL DEFAULT false,
    seconds    double precision NOT NULL DEFAULT 30,
    full_until timestamptz,
    turn       bigint  NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, name)
) WITH (fillfactor = 50);

CREATE TABLE penstock.key_use (
    tenant     text   NOT NULL,
    queue      text   NOT NULL,
    key        text   NOT NULL,                 -- '' stands for jobs without a key
    turn       bigint NOT NULL DEFAULT 0,
    full_until timestamptz,
    PRIMARY KEY (tenant, queue, key)
) WITH (fillfactor = 50);

CREATE TABLE penstock.schedule (
    tenant       text NOT NULL,
    name         text NOT NULL,
    body         json NOT NULL,
    next_fire_at timestamptz,
    last_fire_at timestamptz,
    PRIMARY KEY (tenant, name)
);

-- How many jobs of a queue are in each state: the sum of what every statement added, folded up by the sweep.
CREATE TABLE penstock.tally (
    tenant    text    NOT NULL,
    queue     text    NOT NULL,
    waiting   bigint  NOT NULL DEFAULT 0,
    queued    bigint  NOT NULL DEFAULT 0,
    running   bigint  NOT NULL DEFAULT 0,
    succeeded bigint  NOT NULL DEFAULT 0,
    dead      bigint  NOT NULL DEFAULT 0,
    held      bigint  NOT NULL DEFAULT 0,
    cancelled bigint  NOT NULL DEFAULT 0
) WITH (autovacuum_vacuum_scale_factor = 0.02);

CREATE INDEX tally_of_queue ON penstock.tally (tenant, queue);

-- A job as it stands: what was asked and what became of it.
CREATE VIEW penstock.job_now AS
SELECT j.tenant, j.id, j.queue, j.type, j.payload, j.priority, j.key, j.schedule, j.run_at AS asked_run_at, j.options, j.created_at, j.scheduled_at,
       s.status, s.run_at, s.start_by, s.attempts, s.leases, s.error, s.progress, s.cause, s.ended_at,
       s.token, s.worker, s.taken_at, s.until, s.seconds, s.cancel_requested, a.result
FROM penstock.job j
CROSS JOIN LATERAL (
    SELECT 'queued' AS status, run_at, start_by, attempts, leases, error, progress, NULL::text AS cause, NULL::timestamptz AS ended_at,
           NULL::text AS token, NULL::text AS worker, NULL::timestamptz AS taken_at, NULL::timestamptz AS until,
           NULL::double precision AS seconds, false AS cancel_requested
    FROM penstock.ready r WHERE r.tenant = j.tenant AND r.id = j.id
    UNION ALL
    SELECT 'running', run_at, start_by, attempts, leases, error, progress, NULL, NULL, token, worker, taken_at, until, seconds, cancel_requested
    FROM penstock.lease l WHERE l.tenant = j.tenant AND l.id = j.id
    UNION ALL
    SELECT status, run_at, start_by, attempts, leases, error, progress, cause, ended_at, NULL, NULL, NULL, NULL, NULL, false
    FROM penstock.parked p WHERE p.tenant = j.tenant AND p.id = j.id
    UNION ALL
    SELECT status, run_at, start_by, attempts, leases, error, progress, cause, ended_at, NULL, NULL, NULL, NULL, NULL, false
    FROM penstock.done d WHERE d.tenant = j.tenant AND d.id = j.id
) s
LEFT JOIN penstock.attempt a
       ON s.status = 'succeeded' AND a.tenant = j.tenant AND a.job_id = j.id AND a.number = s.leases;

-- ── Days ───────────────────────────────────────────────────────────────────────────────────────────────────────────────

-- The lowest id of a day: a UUIDv7 begins with the milliseconds since 1970.
CREATE FUNCTION penstock.first_id(day date) RETURNS uuid LANGUAGE sql IMMUTABLE STRICT
SET search_path = pg_catalog, pg_temp
AS $$ SELECT (lpad(to_hex((day - '1970-01-01'::date) * 86400000::bigint), 12, '0') || repeat('0', 20))::uuid $$;

-- Whether any job of a day is left, of any tenant and in any state.
CREATE FUNCTION penstock.day_is_needed(day date) RETURNS boolean LANGUAGE sql STABLE STRICT
SET search_path = pg_catalog, pg_temp
AS $$
    -- The first of each: asked whether one exists, the planner would read the whole table.
    SELECT coalesce(
        (SELECT id FROM penstock.ready WHERE id >= penstock.first_id(day) AND id < penstock.first_id(day + 1) ORDER BY id LIMIT 1),
        (SELECT id FROM penstock.lease WHERE id >= penstock.first_id(day) AND id < penstock.first_id(day + 1) ORDER BY id LIMIT 1),
        (SELECT id FROM penstock.parked WHERE id >= penstock.first_id(day) AND id < penstock.first_id(day + 1) ORDER BY id LIMIT 1),
        (SELECT id FROM penstock.done WHERE id >= penstock.first_id(day) AND id < penstock.first_id(day + 1) ORDER BY id LIMIT 1)
    ) IS NOT NULL
$$;

-- See to it that a day has its tables, and say whether it has. Rows of that day which are in the defaults come along; with
-- more than `most` of them it gets none, since everybody waits meanwhile: they leave by the sweep, like all in the defaults.
-- The caller sets lock_timeout. PostgreSQL reads all of the defaults to see that nothing of the day is left in them.
CREATE FUNCTION penstock.add_day(day date, most integer DEFAULT 1000) RETURNS boolean LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
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
END $$;

-- Drop the tables of a day if no job of that day is left, and say whether that was done. The caller sets lock_timeout.
-- Not DETACH … CONCURRENTLY: PostgreSQL refuses that beside a DEFAULT partition, and a job could come in between.
CREATE FUNCTION penstock.drop_day(day date) RETURNS boolean LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
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
END $$;

-- The first days. From then on the sweep makes them, well ahead.
SELECT penstock.add_day((now() AT TIME ZONE 'UTC')::date + n) FROM generate_series(0, 7) AS n;
