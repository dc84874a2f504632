-- Put every floor where the oldest job that may be leased is: what fell below one by a race is found again. $1 tenant.
UPDATE penstock.lane l SET floor = o.run_at
FROM penstock.lane k
CROSS JOIN LATERAL (
    SELECT run_at FROM penstock.ready r
    WHERE r.tenant = k.tenant AND r.queue = k.queue AND r.priority = k.priority AND NOT r.blocked
    ORDER BY run_at, id LIMIT 1
) o
WHERE k.tenant = $1 AND l.tenant = k.tenant AND l.queue = k.queue AND l.priority = k.priority AND l.floor > o.run_at
