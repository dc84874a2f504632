-- What was asked, of jobs that a lease found outside the days it looked at. $1 tenant, $2 ids.
SELECT j.id, j.type, j.payload, j.schedule, j.run_at AS asked_run_at, j.options, j.created_at
FROM unnest($2::uuid[]) AS wanted (id)
CROSS JOIN LATERAL (SELECT * FROM penstock.job j WHERE j.tenant = $1 AND j.id = wanted.id LIMIT 1) j
