-- Take or keep an office for a while; no row if another holds it. $1 office, $2 holder, $3 seconds, $4 now (null: the database's).
INSERT INTO penstock.leader AS l (office, holder, until)
VALUES ($1, $2, coalesce($4, now()) + make_interval(secs => $3))
ON CONFLICT (office) DO UPDATE SET holder = excluded.holder, until = excluded.until
WHERE l.holder = excluded.holder OR l.until <= coalesce($4, now())
RETURNING office
