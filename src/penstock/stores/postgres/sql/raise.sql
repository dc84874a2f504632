-- Let claims start where the last one ended, or at the first job that it had to leave to others.
-- The caller holds the lane. $1 tenant, $2 queue, $3 priority, $4 floor.
UPDATE penstock.lane l SET floor = least($4, (
    SELECT r.run_at FROM penstock.ready r
    WHERE r.tenant = $1 AND r.queue = $2 AND r.priority = $3 AND r.run_at >= l.floor AND NOT r.blocked
    ORDER BY r.run_at, r.id LIMIT 1
))
WHERE tenant = $1 AND queue = $2 AND priority = $3 AND floor < $4
