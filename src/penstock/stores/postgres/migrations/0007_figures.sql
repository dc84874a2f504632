-- old workers may keep running: yes
--
-- The feed also tells when an attempt began, and when a first one could have: what waits and runs are counted from. And jobs
-- in a state are found quickly, however many there are in others: for those who look at all this.
DROP FUNCTION penstock.events(text, bigint, bigint, uuid, bigint, integer);

CREATE FUNCTION penstock.events(of_tenant text, after_xid bigint, after_seq bigint, after_id uuid, horizon bigint, most integer)
RETURNS TABLE (xid bigint, seq bigint, id uuid, at timestamptz, kind text, name text, what text, queue text, type text,
               status text, attempt integer, worker text, actor text, error text,
               started_at timestamptz, ready_at timestamptz)
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
END $$;

-- ── Finding ────────────────────────────────────────────────────────────────────────────────────────────────────────────

-- Jobs in a rare state are found among those in it, and not by going through all there are. None of these costs a job that
-- succeeds anything, nor does the last unless a schedule made it.
CREATE INDEX parked_by_status ON penstock.parked (tenant, status, id);
CREATE INDEX ready_blocked ON penstock.ready (tenant, queue, run_at) WHERE blocked;
CREATE INDEX done_cancelled ON penstock.done (tenant, id) WHERE status = 'cancelled';
CREATE INDEX job_of_schedule ON penstock.job (tenant, schedule, id) WHERE schedule IS NOT NULL;
