-- Lease the next jobs of a queue without limits: highest priority, oldest run_at, lowest id, whatever nobody else is
-- taking at this moment. Nothing is taken, and the caller told so, while something is overdue or if the queue is governed.
-- $1 tenant, $2 queue, $3 now (null: the database's), $4 limit, $5 tokens, $6 worker, $7 seconds (null: the queue's),
-- $8 a time up to which the caller knows of no lease that has run out unnoticed, $9 and $10 between which ids what was asked
-- is looked up (a job outside comes without): so the tables of all other days are not even opened.
WITH clock AS (SELECT coalesce($3, now()) AS now),
q AS (
    SELECT governed, paused, seconds,
           -- The earliest of each within bounds: asked whether one exists, the planner would read the whole table, and
           -- without bounds it would step over the dead rows of all leases that were settled in time.
           coalesce(
               (SELECT until FROM penstock.lease
                WHERE tenant = $1 AND until > $8 AND until <= clock.now ORDER BY until LIMIT 1),
               (SELECT start_by FROM penstock.ready
                WHERE tenant = $1 AND start_by IS NOT NULL AND start_by <= clock.now AND leases = 0 ORDER BY start_by LIMIT 1),
               (SELECT start_by FROM penstock.parked
                WHERE tenant = $1 AND start_by IS NOT NULL AND start_by <= clock.now AND status = 'waiting'
                ORDER BY start_by LIMIT 1)
           ) IS NOT NULL AS overdue
    FROM penstock.queue, clock
    WHERE tenant = $1 AND name = $2
),
picked AS (
    -- By ctid: the rows are locked and never updated, and no join order can be got wrong.
    DELETE FROM penstock.ready
    WHERE ctid = ANY (ARRAY (
        SELECT r.ctid
        FROM (SELECT FROM q WHERE NOT governed AND NOT paused AND NOT overdue) open,
             (SELECT priority, floor FROM penstock.lane WHERE tenant = $1 AND queue = $2 ORDER BY priority DESC) l,
        LATERAL (
            SELECT ctid FROM penstock.ready
            WHERE tenant = $1 AND queue = $2 AND priority = l.priority AND run_at >= l.floor AND run_at <= (SELECT now FROM clock) AND NOT blocked
              -- Whoever is changing this ordering key may be letting another job in: then leave this one for now.
              AND (ordering_key IS NULL
                   OR pg_try_advisory_xact_lock(hashtextextended($1 || ' order ' || $2 || ' ' || ordering_key, 0)))
            ORDER BY run_at, id
            LIMIT $4
            FOR UPDATE SKIP LOCKED
        ) r
        LIMIT $4
    ))
    RETURNING *
),
numbered AS (SELECT *, row_number() OVER (ORDER BY priority DESC, run_at, id) AS place FROM picked),
leased AS (
    INSERT INTO penstock.lease (tenant, id, queue, priority, run_at, key, ordering_key, scheduled_at, is_parent, is_unique, start_by,
                                attempts, leases, error, token, worker, taken_at, until, seconds)
    SELECT n.tenant, n.id, n.queue, n.priority, n.run_at, n.key, n.ordering_key, n.scheduled_at, n.is_parent, n.is_unique, n.start_by,
           n.attempts + 1, n.leases + 1, n.error, ($5::text[])[n.place], $6, clock.now,
           clock.now + make_interval(secs => coalesce($7, q.seconds)), coalesce($7, q.seconds)
    FROM numbered n, q, clock
    RETURNING *
),
counted AS (
    INSERT INTO penstock.tally (tenant, queue, queued, running)
    SELECT $1, $2, -count(*), count(*) FROM picked HAVING count(*) > 0
)
-- No more columns than the caller does not know already: half of what a lease costs the caller is reading them.
SELECT clock.now, q.governed, q.overdue, l.id, l.priority, l.run_at, l.key, l.scheduled_at, l.start_by, l.attempts, l.leases, l.error,
       l.token, l.until, l.seconds,
       j.type IS NULL AS outside, j.type, j.payload, j.schedule, j.run_at AS asked_run_at, j.options, j.created_at
FROM clock CROSS JOIN q
LEFT JOIN (
    -- LIMIT keeps it a look-up per job: flattened, a planner that believes the table small reads all of it each time.
    leased l LEFT JOIN LATERAL (
        SELECT * FROM penstock.job j WHERE j.tenant = $1 AND j.id = l.id AND j.id >= $9 AND j.id < $10 LIMIT 1
    ) j ON true
) ON true
