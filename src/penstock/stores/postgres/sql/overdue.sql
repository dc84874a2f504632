-- Jobs to which time has done something that nobody has noticed yet. $1 tenant, $2 now (null: the database's).
(SELECT id FROM penstock.lease WHERE tenant = $1 AND until <= coalesce($2, now()) ORDER BY until LIMIT 1000)
UNION ALL
(SELECT id FROM penstock.ready WHERE tenant = $1 AND start_by IS NOT NULL AND start_by <= coalesce($2, now()) AND leases = 0 ORDER BY start_by LIMIT 1000)
UNION ALL
(SELECT id FROM penstock.parked WHERE tenant = $1 AND start_by IS NOT NULL AND start_by <= coalesce($2, now()) AND status = 'waiting' ORDER BY start_by LIMIT 1000)
