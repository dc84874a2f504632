-- Remove what is left of earlier jobs, so that their ids can be used anew. $1 tenant, $2 ids.
WITH given AS (SELECT * FROM unnest($2::uuid[]) AS g (id)),
attempts AS (DELETE FROM penstock.attempt a USING given g WHERE a.tenant = $1 AND a.job_id = g.id),
changes AS (DELETE FROM penstock.change c USING given g WHERE c.tenant = $1 AND c.kind = 'job' AND c.name = g.id::text)
DELETE FROM penstock.job j USING given g WHERE j.tenant = $1 AND j.id = g.id
