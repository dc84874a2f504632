-- The attempts of these jobs, in order. $1 tenant, $2 ids.
SELECT a.*
FROM unnest($2::uuid[]) AS wanted (id)
-- OFFSET keeps it a look-up per job, in the one partition that its id belongs to.
CROSS JOIN LATERAL (SELECT * FROM penstock.attempt a WHERE a.tenant = $1 AND a.job_id = wanted.id OFFSET 0) a
ORDER BY a.seq
