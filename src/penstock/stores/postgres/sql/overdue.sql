-- Jobs to which time has done something that nobody has noticed yet. $1 tenant, $2 now.
(SELECT id FROM penstock.lease WHERE tenant = $1 AND until <= $2 ORDER BY until LIMIT 1000)
UNION ALL
(SELECT id FROM penstock.ready WHERE tenant = $1 AND start_by IS NOT NULL AND start_by <= $2 AND leases = 0 ORDER BY start_by LIMIT 1000)
UNION ALL
(SELECT id FROM penstock.parked WHERE tenant = $1 AND start_by IS NOT NULL AND start_by <= $2 AND status = 'waiting' ORDER BY start_by LIMIT 1000)
