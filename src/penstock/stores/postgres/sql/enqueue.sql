-- Enqueue jobs that concern no other job, all at once; those whose id is taken are left out.
-- $1 tenant, $2 now (null: the database's), then one array per column.
WITH clock AS (SELECT coalesce($2, now()) AS now),
given AS (
    SELECT * FROM unnest($3::uuid[], $4::text[], $5::text[], $6::json[], $7::smallint[], $8::text[], $9::timestamptz[],
                         $10::interval[], $11::json[])
        AS g (id, queue, type, payload, priority, key, run_at, delay, options)
),
asked AS (
    INSERT INTO penstock.job (tenant, id, queue, type, payload, priority, key, run_at, options, created_at, scheduled_at)
    SELECT $1, id, queue, type, payload, priority, key, run_at, options, clock.now,
           coalesce(run_at, clock.now + delay, clock.now)
    FROM given, clock
    ON CONFLICT DO NOTHING
    RETURNING id, queue, priority, key, scheduled_at
),
lined_up AS (
    INSERT INTO penstock.ready (tenant, id, queue, priority, run_at, key, scheduled_at)
    SELECT $1, id, queue, priority, scheduled_at, key, scheduled_at FROM asked
),
lowered AS (
    -- Also where nothing is to be lowered, if the job is late: a claim may be about to raise the floor above it.
    UPDATE penstock.lane l SET floor = least(l.floor, m.run_at)
    FROM clock, (SELECT queue, priority, min(scheduled_at) AS run_at FROM asked GROUP BY queue, priority) m
    WHERE l.tenant = $1 AND l.queue = m.queue AND l.priority = m.priority
      AND (l.floor > m.run_at OR m.run_at < clock.now - interval '1 second')
),
counted AS (
    INSERT INTO penstock.tally (tenant, queue, queued) SELECT $1, queue, count(*) FROM asked GROUP BY queue
)
SELECT id FROM asked
