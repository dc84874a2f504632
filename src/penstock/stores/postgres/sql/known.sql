-- Which of these jobs there are. A job is where its state is kept: what was asked may outlive it, until its day is dropped.
-- $1 tenant, $2 ids.
SELECT w.id
FROM unnest($2::uuid[]) AS w (id)
WHERE coalesce(
    (SELECT id FROM penstock.ready s WHERE s.tenant = $1 AND s.id = w.id),
    (SELECT id FROM penstock.lease s WHERE s.tenant = $1 AND s.id = w.id),
    (SELECT id FROM penstock.parked s WHERE s.tenant = $1 AND s.id = w.id),
    (SELECT id FROM penstock.done s WHERE s.tenant = $1 AND s.id = w.id)
) IS NOT NULL
