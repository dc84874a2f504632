-- Jobs as they stand, oldest first. $1 tenant, $2 ids.
SELECT n.*
FROM unnest($2::uuid[]) AS wanted (id)
-- LIMIT keeps it a look-up per job, in the one partition that its id belongs to.
CROSS JOIN LATERAL (SELECT * FROM penstock.job_now n WHERE n.tenant = $1 AND n.id = wanted.id LIMIT 1) n
ORDER BY n.id
