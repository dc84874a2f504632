-- The ordering keys of jobs that have one. $1 tenant, $2 ids.
SELECT queue, ordering_key FROM penstock.ready WHERE tenant = $1 AND id = ANY ($2::uuid[]) AND ordering_key IS NOT NULL
UNION
SELECT queue, ordering_key FROM penstock.lease WHERE tenant = $1 AND id = ANY ($2::uuid[]) AND ordering_key IS NOT NULL
UNION
SELECT queue, ordering_key FROM penstock.parked WHERE tenant = $1 AND id = ANY ($2::uuid[]) AND ordering_key IS NOT NULL
