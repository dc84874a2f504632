-- Settle as succeeded the leases whose token is live and whose end concerns nobody else (no children, no unique or ordering key);
-- the caller takes the others the long way. $1 tenant, $2 now (null: the database's), $3 ids, $4 tokens, $5 results, $6 logs.
WITH clock AS (SELECT coalesce($2, now()) AS now),
given AS (
    SELECT g.*, l.ctid AS lease
    FROM unnest($3::uuid[], $4::text[], $5::text[], $6::text[]) AS g (id, token, result, logs),
    LATERAL (
        SELECT l.ctid FROM penstock.lease l
        WHERE (l.tenant = $1) IS TRUE AND l.id = g.id AND l.token = g.token
          AND (l.until > (SELECT now FROM clock)) IS TRUE  -- IS TRUE: only the index on `id` may be taken
          AND NOT l.is_parent AND NOT l.is_unique AND l.ordering_key IS NULL
        FOR UPDATE
    ) l
),
settled AS (
    DELETE FROM penstock.lease WHERE ctid = ANY (ARRAY (SELECT lease FROM given)) RETURNING *
),
ended AS (
    INSERT INTO penstock.done (tenant, id, status, queue, run_at, start_by, attempts, leases, progress, ended_at)
    SELECT tenant, id, 'succeeded', queue, run_at, start_by, attempts, leases, progress, clock.now FROM settled, clock
),
told AS (
    INSERT INTO penstock.attempt (tenant, job_id, number, worker, token, started_at, ended_at, outcome, status, run_at, result, logs)
    SELECT s.tenant, s.id, s.leases, s.worker, s.token, s.taken_at, clock.now, 'succeeded', 'succeeded', s.run_at, g.result, g.logs
    FROM clock, given g, LATERAL (SELECT * FROM settled s WHERE s.id = g.id) s
),
counted AS (
    INSERT INTO penstock.tally (tenant, queue, running, succeeded)
    SELECT $1, queue, -count(*), count(*) FROM settled GROUP BY queue
)
SELECT id, queue FROM settled
