-- What happened after a place in the feed, and up to where that is all; one row without an event if nothing did.
-- In one statement, so that the horizon is that of the very snapshot that is read. $1 tenant, $2 to $4 the place, $5 limit.
SELECT h.horizon, e.*
FROM (SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS horizon) h
LEFT JOIN LATERAL penstock.events($1, $2, $3, $4, h.horizon, $5) e ON true
ORDER BY e.xid, e.seq, e.id
