-- Tenants for whom a sweep has something to do. $1 their names and $2 their queues, $3 until when each queue's ended jobs
-- may go, $4 now. At rest it is the only thing a sweep asks, however many tenants there are.
SELECT t.tenant
FROM (SELECT DISTINCT unnest($1::text[]) AS tenant) t
WHERE EXISTS (SELECT FROM penstock.lease l WHERE l.tenant = t.tenant AND l.until <= $4)
   OR EXISTS (SELECT FROM penstock.ready r WHERE r.tenant = t.tenant AND r.start_by IS NOT NULL AND r.start_by <= $4 AND r.leases = 0)
   OR EXISTS (SELECT FROM penstock.parked p WHERE p.tenant = t.tenant AND p.start_by IS NOT NULL AND p.start_by <= $4 AND p.status = 'waiting')
   OR EXISTS (SELECT FROM penstock.request q WHERE q.tenant = t.tenant AND q.until <= $4)
   OR EXISTS ( -- a floor above the oldest job that may be leased, which only a race puts there
    SELECT FROM penstock.lane k
    CROSS JOIN LATERAL (
        SELECT run_at FROM penstock.ready r
        WHERE r.tenant = k.tenant AND r.queue = k.queue AND r.priority = k.priority AND NOT r.blocked
        ORDER BY run_at, id LIMIT 1
    ) o
    WHERE k.tenant = t.tenant AND k.floor > o.run_at
)
UNION
SELECT q.tenant
FROM unnest($1::text[], $2::text[], $3::timestamptz[]) AS q (tenant, name, until)
WHERE EXISTS (SELECT FROM penstock.tally y WHERE y.tenant = q.tenant AND y.queue = q.name OFFSET 1)
   OR EXISTS (
    SELECT FROM penstock.done d
    WHERE d.tenant = q.tenant AND d.queue = q.name AND d.ended_at <= q.until
      AND NOT EXISTS (SELECT FROM penstock.edge e WHERE e.tenant = d.tenant AND e.parent_id = d.id)
)
ORDER BY 1
