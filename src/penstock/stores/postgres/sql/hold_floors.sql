-- Keep claims from raising the floor until we are done, and say where it is above them now: jobs come in behind it that no claim can
-- see yet. Shared, so that those who bring jobs do not wait for each other. $1 tenant, then queues, priorities and run_ats.
WITH late AS (
    SELECT queue, priority, min(run_at) AS run_at
    FROM unnest($2::text[], $3::smallint[], $4::timestamptz[]) AS g (queue, priority, run_at) GROUP BY queue, priority
)
SELECT l.floor > late.run_at AS above
FROM late JOIN penstock.lane l ON l.tenant = $1 AND l.queue = late.queue AND l.priority = late.priority
ORDER BY l.queue, l.priority
FOR SHARE OF l
