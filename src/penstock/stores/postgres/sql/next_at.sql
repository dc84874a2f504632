-- When time alone may next let a job out. $1 tenant, $2 queues.
-- For each queue: its settings, what is used up of its rate, and its earliest jobs, one row a key with a rate of its own
-- in use (`key_full_until`) and one for all others.
SELECT q.settings, q.full_until, u.full_until AS key_full_until, min(r.run_at) AS run_at
FROM penstock.queue q
JOIN penstock.ready r ON r.tenant = q.tenant AND r.queue = q.name AND NOT r.blocked
LEFT JOIN penstock.key_use u ON u.tenant = q.tenant AND u.queue = q.name AND u.key = r.key
WHERE q.tenant = $1 AND q.name = ANY ($2) AND NOT q.paused
GROUP BY q.tenant, q.name, u.full_until
