-- When time alone may next let a job out, or something run out: never later than the truth. $1 tenant, $2 queues, $3 now (null: the database's).
-- A row for each queue, with its settings, what is used up of its rate, and its earliest run_at; and one for leases and deadlines.
WITH clock AS (SELECT coalesce($3, now()) AS now)
SELECT clock.now, q.settings, q.full_until, first.run_at
FROM clock, penstock.queue q
CROSS JOIN LATERAL (
    SELECT min(h.run_at) AS run_at
    FROM penstock.lane l,
    LATERAL (
        SELECT r.run_at FROM penstock.ready r
        WHERE r.tenant = $1 AND r.queue = q.name AND r.priority = l.priority AND r.run_at >= l.floor AND NOT r.blocked
        ORDER BY r.run_at LIMIT 1
    ) h
    WHERE l.tenant = $1 AND l.queue = q.name
) first
WHERE q.tenant = $1 AND q.name = ANY ($2) AND NOT q.paused
UNION ALL
SELECT clock.now, NULL, NULL, least(
    (SELECT min(until) FROM penstock.lease WHERE tenant = $1),
    (SELECT min(start_by) FROM penstock.ready WHERE tenant = $1 AND leases = 0 AND start_by IS NOT NULL),
    (SELECT min(start_by) FROM penstock.parked WHERE tenant = $1 AND status = 'waiting' AND start_by IS NOT NULL))
FROM clock
