-- old workers may keep running: yes
--
-- A feed of what happened that leaves nothing out. Rows commit out of order, so neither a sequence nor a time says what a
-- reader has had. Each row carries the id of the transaction that wrote it, and only what is below the oldest transaction
-- still running is told: nothing more can come in there.
--
-- Rows from before this migration share its transaction. A stable default is worked out once: no table is rewritten.
ALTER TABLE penstock.job ADD COLUMN xid bigint NOT NULL DEFAULT pg_current_xact_id()::text::bigint;
ALTER TABLE penstock.attempt ADD COLUMN xid bigint NOT NULL DEFAULT pg_current_xact_id()::text::bigint;
ALTER TABLE penstock.change ADD COLUMN xid bigint NOT NULL DEFAULT pg_current_xact_id()::text::bigint;

-- BRIN, because a B-tree would cost each job 134 bytes of WAL and this costs none. Not fewer pages to a range: autovacuum
-- takes no more than 256 requests to sum one up and looks once a minute, which at 64 is enough for 5,000 jobs a second.
CREATE INDEX job_xid ON penstock.job USING brin (xid) WITH (autosummarize = on, pages_per_range = 64);
CREATE INDEX attempt_xid ON penstock.attempt USING brin (xid) WITH (autosummarize = on, pages_per_range = 64);
CREATE INDEX change_xid ON penstock.change USING brin (xid) WITH (autosummarize = on, pages_per_range = 64);

-- Whoever writes whole rows from JSON, and has not heard of the column, writes null and not the default.
CREATE FUNCTION penstock.stamp() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$ BEGIN NEW.xid := pg_current_xact_id()::text::bigint; RETURN NEW; END $$;

CREATE TRIGGER stamp BEFORE INSERT ON penstock.attempt FOR EACH ROW WHEN (NEW.xid IS NULL) EXECUTE FUNCTION penstock.stamp();
CREATE TRIGGER stamp BEFORE INSERT ON penstock.change FOR EACH ROW WHEN (NEW.xid IS NULL) EXECUTE FUNCTION penstock.stamp();

-- ── What is no longer kept ─────────────────────────────────────────────────────────────────────────────────────────────

-- Whose feed this is, and two horizons of the past, by which a day that goes need not be read from end to end.
CREATE TABLE penstock.feed (
    id        text        NOT NULL,
    older     bigint      NOT NULL,                 -- as it was a day or more ago
    newer     bigint      NOT NULL,
    marked_at timestamptz NOT NULL DEFAULT now()    -- when it was `newer`
);

INSERT INTO penstock.feed (id, older, newer)
SELECT gen_random_uuid(), x.xid, x.xid FROM (SELECT pg_current_xact_id()::text::bigint AS xid) x;

-- The highest is the floor: of transactions below it some events are gone. Only added to, so that nobody waits for it.
CREATE TABLE penstock.feed_floor (xid bigint NOT NULL);
CREATE INDEX feed_floor_xid ON penstock.feed_floor (xid);
INSERT INTO penstock.feed_floor VALUES (pg_current_xact_id()::text::bigint);

-- Remember that events up to a transaction are gone.
CREATE FUNCTION penstock.raise_feed_floor(newest bigint) RETURNS void LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$ INSERT INTO penstock.feed_floor SELECT newest + 1 WHERE newest >= (SELECT max(xid) FROM penstock.feed_floor) $$;

CREATE FUNCTION penstock.gone() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM penstock.raise_feed_floor(max(xid)) FROM gone HAVING max(xid) IS NOT NULL;
    RETURN NULL;
END $$;

-- Rows are deleted when an id is used anew, and in the default partitions; but not lost when they move into a day's tables.
DO $$
DECLARE
    wide text;
BEGIN
    FOREACH wide IN ARRAY '{job, job_default, attempt, attempt_default, change, change_default}'::text[] LOOP
        EXECUTE format('CREATE TRIGGER gone AFTER DELETE ON penstock.%I REFERENCING OLD TABLE AS gone FOR EACH STATEMENT
                        WHEN (current_setting(''penstock.moving'', true) IS DISTINCT FROM ''yes'')
                        EXECUTE FUNCTION penstock.gone()', wide);
    END LOOP;
END $$;

-- Note the horizon once a day; the caller is alone with the days.
CREATE FUNCTION penstock.mark_feed() RETURNS void LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
    UPDATE penstock.feed SET older = newer, newer = pg_snapshot_xmin(pg_current_snapshot())::text::bigint, marked_at = now()
    WHERE marked_at < now() - interval '1 day';
    DELETE FROM penstock.feed_floor WHERE xid < (SELECT max(xid) FROM penstock.feed_floor);
$$;

-- As it was, but that rows which move stay in the feed.
CREATE OR REPLACE FUNCTION penstock.add_day(day date, most integer DEFAULT 1000) RETURNS boolean LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET penstock.moving = 'yes'
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
    PERFORM penstock.mark_feed();
    RETURN true;
END $$;

-- As it was, but that whoever follows the feed and has not had what goes is told so.
CREATE OR REPLACE FUNCTION penstock.drop_day(day date) RETURNS boolean LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_bitmapscan = on
AS $$
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
END $$;

-- ── Reading ────────────────────────────────────────────────────────────────────────────────────────────────────────────

-- What happened after a place in the feed (a transaction; in it the number of a record, 0 for jobs; of these the id) and
-- below a horizon, in order. Jobs of a transaction come before its records: nothing happens to a job that is not there yet.
CREATE FUNCTION penstock.events(of_tenant text, after_xid bigint, after_seq bigint, after_id uuid, horizon bigint, most integer)
RETURNS TABLE (xid bigint, seq bigint, id uuid, at timestamptz, kind text, name text, what text, queue text, type text,
               status text, attempt integer, worker text, actor text, error text)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
-- BRIN is read by bitmap scans alone.
SET enable_seqscan = off SET enable_bitmapscan = on SET enable_sort = on SET jit = off
AS $$
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
               e.status, e.attempt, e.worker, e.actor, e.error
        FROM (
            -- IS TRUE: of the indexes only the one on `xid` may be taken.
            (SELECT j.xid, 0::bigint AS seq, j.id, j.created_at AS at, 'job'::text AS kind, j.id::text AS name, 'enqueued'::text AS what,
                    j.queue, j.type, NULL::text AS status, NULL::integer AS attempt, NULL::text AS worker, NULL::text AS actor,
                    NULL::text AS error, NULL::uuid AS job_id
             FROM penstock.job j
             WHERE (j.tenant = of_tenant) IS TRUE AND j.xid >= lowest AND j.xid < beyond
               AND (j.xid, 0, j.id) > (after_xid, after_seq, after_id)
             ORDER BY j.xid, j.id LIMIT most)
            UNION ALL
            (SELECT a.xid, a.seq, nobody, a.ended_at, 'job', a.job_id::text, a.outcome,
                    NULL, NULL, a.status, a.number, a.worker, NULL, a.error, a.job_id
             FROM penstock.attempt a
             WHERE (a.tenant = of_tenant) IS TRUE AND a.xid >= lowest AND a.xid < beyond
               AND (a.xid, a.seq) > (after_xid, after_seq)
             ORDER BY a.xid, a.seq LIMIT most)
            UNION ALL
            (SELECT c.xid, c.seq, nobody, c.at, c.kind, c.name, c.verb,
                    CASE c.kind WHEN 'queue' THEN c.name END, NULL, c.status, NULL, NULL, c.actor, NULL,
                    CASE c.kind WHEN 'job' THEN c.name::uuid END
             FROM penstock.change c
             WHERE (c.tenant = of_tenant) IS TRUE AND c.xid >= lowest AND c.xid < beyond
               AND (c.xid, c.seq) > (after_xid, after_seq)
             ORDER BY c.xid, c.seq LIMIT most)
            ORDER BY 1, 2, 3 LIMIT most
        ) e
        -- LIMIT keeps it a look-up per event, in the one partition that the job's id belongs to.
        LEFT JOIN LATERAL (SELECT j.queue, j.type FROM penstock.job j WHERE j.tenant = of_tenant AND j.id = e.job_id LIMIT 1) j ON true
        ORDER BY e.xid, e.seq, e.id;
        GET DIAGNOSTICS found = ROW_COUNT;
        most := most - found;
        lowest := beyond;
        width := width * 32;
    END LOOP;
END $$;
