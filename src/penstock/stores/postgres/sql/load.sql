-- Jobs as they stand, oldest first. $1 tenant, $2 ids.
SELECT n.* FROM unnest($2::uuid[]) AS wanted (id) JOIN penstock.job_now n ON n.tenant = $1 AND n.id = wanted.id
ORDER BY n.id
