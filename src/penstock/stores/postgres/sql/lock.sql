-- Lock jobs where they are now, in the order of their ids so that two callers cannot wait for each other.
-- Says where each was found; a job that moved meanwhile is found elsewhere by the next look. $1 tenant, $2 ids.
WITH ready AS (SELECT id FROM penstock.ready WHERE tenant = $1 AND id = ANY ($2::uuid[]) ORDER BY id FOR UPDATE),
     lease AS (SELECT id FROM penstock.lease WHERE tenant = $1 AND id = ANY ($2::uuid[]) ORDER BY id FOR UPDATE),
     parked AS (SELECT id FROM penstock.parked WHERE tenant = $1 AND id = ANY ($2::uuid[]) ORDER BY id FOR UPDATE),
     done AS (SELECT id FROM penstock.done WHERE tenant = $1 AND id = ANY ($2::uuid[]) ORDER BY id FOR UPDATE)
SELECT id, 'ready' AS place FROM ready
UNION ALL SELECT id, 'lease' FROM lease
UNION ALL SELECT id, 'parked' FROM parked
UNION ALL SELECT id, 'done' FROM done
