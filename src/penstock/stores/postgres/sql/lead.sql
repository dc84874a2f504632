-- Take or keep an office for a while; no row if another holds it. $1 office, $2 holder, $3 seconds, $4 now (null: the database's).
INSERT INTO penstock.leader AS l (office, holder, until)
SELECT $1::text, $2::text, coalesce($4, now()) + make_interval(secs => $3)
-- Looked at before it is touched: a whole fleet asks every few seconds, and an upsert locks the row even to refuse.
WHERE NOT EXISTS (SELECT FROM penstock.leader WHERE office = $1 AND holder <> $2 AND until > coalesce($4, now()))
ON CONFLICT (office) DO UPDATE SET holder = excluded.holder, until = excluded.until
WHERE l.holder = excluded.holder OR l.until <= coalesce($4, now())
RETURNING office
