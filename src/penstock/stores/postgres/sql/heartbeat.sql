-- Extend leases whose token is live. $1 tenant, $2 now (null: the database's), $3 ids, $4 tokens, $5 seconds, $6 progress.
UPDATE penstock.lease l
SET seconds = coalesce(g.seconds, l.seconds),
    until = coalesce($2, now()) + make_interval(secs => coalesce(g.seconds, l.seconds)),
    progress = coalesce(g.progress, l.progress)
FROM unnest($3::uuid[], $4::text[], $5::double precision[], $6::text[]) AS g (id, token, seconds, progress)
WHERE (l.tenant = $1) IS TRUE AND l.id = g.id AND l.token = g.token AND (l.until > coalesce($2, now())) IS TRUE  -- IS TRUE: only the index on `id` may be taken
RETURNING l.id, l.until, l.cancel_requested
