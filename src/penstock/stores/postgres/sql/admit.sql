-- Let the first job of each ordering key in, if none of them runs or is held before it; keep the others back.
-- The caller holds the lock of each key. $1 tenant, $2 queues, $3 ordering keys.
WITH given AS (SELECT DISTINCT queue, ordering_key FROM unnest($2::text[], $3::text[]) AS g (queue, ordering_key)),
first AS (
    SELECT g.queue, g.ordering_key, h.id
    FROM given g
    LEFT JOIN LATERAL (
        SELECT id, true AS queued, scheduled_at FROM penstock.ready r
        WHERE r.tenant = $1 AND r.queue = g.queue AND r.ordering_key = g.ordering_key
        UNION ALL
        SELECT id, false, scheduled_at FROM penstock.parked p
        WHERE p.tenant = $1 AND p.queue = g.queue AND p.ordering_key = g.ordering_key AND p.status = 'held'
        ORDER BY scheduled_at, id LIMIT 1
    ) h ON h.queued AND NOT EXISTS (
        SELECT FROM penstock.lease l
        WHERE l.tenant = $1 AND l.queue = g.queue AND l.ordering_key = g.ordering_key
    )
)
UPDATE penstock.ready r SET blocked = r.id IS DISTINCT FROM f.id
FROM first f
WHERE r.tenant = $1 AND r.queue = f.queue AND r.ordering_key = f.ordering_key
  AND r.blocked <> (r.id IS DISTINCT FROM f.id)
RETURNING r.queue, r.priority, r.run_at, r.blocked
