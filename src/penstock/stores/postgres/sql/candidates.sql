-- Jobs of a governed queue that may be among the next, key by key, best key first; the rules choose among them.
-- $1 tenant, $2 queue, $3 now, $4 limit, $5 keys that may not be served now, $6 whether turns count.
WITH RECURSIVE keys (key) AS (
    (SELECT key FROM penstock.ready WHERE tenant = $1 AND queue = $2 AND NOT blocked AND key IS NOT NULL ORDER BY key LIMIT 1)
    UNION ALL
    SELECT (SELECT r.key FROM penstock.ready r
            WHERE r.tenant = $1 AND r.queue = $2 AND NOT r.blocked AND r.key > k.key ORDER BY r.key LIMIT 1)
    FROM keys k WHERE k.key IS NOT NULL
),
heads AS (
    SELECT k.key, h.id, h.priority, h.run_at, coalesce(u.turn, 0) AS turn
    FROM (SELECT key FROM keys WHERE key IS NOT NULL AND NOT key = ANY ($5::text[])) k
    CROSS JOIN LATERAL (
        SELECT id, priority, run_at FROM penstock.ready r
        WHERE r.tenant = $1 AND r.queue = $2 AND r.key = k.key AND NOT r.blocked AND r.run_at <= $3
        ORDER BY priority DESC, run_at, id LIMIT 1
    ) h
    LEFT JOIN penstock.key_use u ON u.tenant = $1 AND u.queue = $2 AND u.key = k.key
),
best AS (
    SELECT key FROM heads ORDER BY priority DESC, CASE WHEN $6 THEN turn ELSE 0 END, run_at, id LIMIT $4
)
SELECT c.id
FROM best b CROSS JOIN LATERAL (
    SELECT id FROM penstock.ready r
    WHERE r.tenant = $1 AND r.queue = $2 AND r.key = b.key AND NOT r.blocked AND r.run_at <= $3
    ORDER BY priority DESC, run_at, id LIMIT $4
) c
UNION ALL
(SELECT r.id
 FROM (SELECT priority FROM penstock.lane WHERE tenant = $1 AND queue = $2 ORDER BY priority DESC) l,
 LATERAL (
     SELECT id FROM penstock.ready
     WHERE tenant = $1 AND queue = $2 AND priority = l.priority AND run_at <= $3 AND NOT blocked AND key IS NULL
     ORDER BY run_at, id LIMIT $4
 ) r
 LIMIT $4)
