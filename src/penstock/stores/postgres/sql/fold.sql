-- Fold what statements have counted into one row a queue. $1 tenant.
WITH taken AS (DELETE FROM penstock.tally WHERE tenant = $1 RETURNING *)
INSERT INTO penstock.tally
SELECT tenant, queue, sum(waiting), sum(queued), sum(running), sum(succeeded), sum(dead), sum(held), sum(cancelled)
FROM taken GROUP BY tenant, queue
