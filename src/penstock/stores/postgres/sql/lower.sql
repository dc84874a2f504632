-- Let claims start low enough for jobs that were put into the line behind its beginning.
-- $1 tenant, then queues, priorities and run_ats of jobs that may be leased now or later.
UPDATE penstock.lane l SET floor = m.run_at
FROM (
    SELECT queue, priority, min(run_at) AS run_at
    FROM unnest($2::text[], $3::smallint[], $4::timestamptz[]) AS g (queue, priority, run_at) GROUP BY queue, priority
) m
WHERE l.tenant = $1 AND l.queue = m.queue AND l.priority = m.priority AND l.floor > m.run_at
