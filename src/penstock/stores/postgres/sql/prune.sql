-- Let go of jobs that ended long enough ago and have no children here. $1 tenant, $2 queues, $3 until when, $4 limit,
-- $5 the transaction below which lakes have everything (null: there is none): of what goes, nothing may be above it.
-- A job is gone with its narrow row. What was asked and what happened stay until their day is dropped as a whole, seen by
-- nobody. Only what is in the default partitions is removed here, row by row: they are never dropped, and few ids go there.
WITH gone AS (
    DELETE FROM penstock.done
    WHERE ctid = ANY (ARRAY (
        SELECT d.ctid
        FROM unnest($2::text[], $3::timestamptz[]) AS q (name, until)
        JOIN penstock.done d ON d.tenant = $1 AND d.queue = q.name AND d.ended_at <= q.until
        WHERE NOT EXISTS (SELECT FROM penstock.edge e WHERE e.tenant = $1 AND e.parent_id = d.id)
          -- Not EXISTS: a planner that takes many to have ended would read all of history for it at once.
          AND ($5::bigint IS NULL OR coalesce(
            (SELECT j.xid FROM penstock.job j WHERE j.tenant = $1 AND j.id = d.id AND j.xid >= $5 LIMIT 1),
            (SELECT a.xid FROM penstock.attempt a WHERE a.tenant = $1 AND a.job_id = d.id AND a.xid >= $5 LIMIT 1),
            (SELECT c.xid FROM penstock.change c WHERE c.tenant = $1 AND c.kind = 'job' AND c.name = d.id::text AND c.xid >= $5 LIMIT 1)
          ) IS NULL)
        ORDER BY d.ended_at LIMIT $4
    ))
    RETURNING id, queue, status
),
jobs AS (DELETE FROM penstock.job_default j USING gone g WHERE j.tenant = $1 AND j.id = g.id),
attempts AS (DELETE FROM penstock.attempt_default a USING gone g WHERE a.tenant = $1 AND a.job_id = g.id),
changes AS (DELETE FROM penstock.change_default c USING gone g WHERE c.tenant = $1 AND c.kind = 'job' AND c.name = g.id::text),
edges AS (DELETE FROM penstock.edge e USING gone g WHERE e.tenant = $1 AND e.child_id = g.id),
counted AS (
    INSERT INTO penstock.tally (tenant, queue, succeeded, cancelled)
    SELECT $1, queue, -count(*) FILTER (WHERE status = 'succeeded'), -count(*) FILTER (WHERE status = 'cancelled')
    FROM gone GROUP BY queue
)
SELECT id FROM gone
