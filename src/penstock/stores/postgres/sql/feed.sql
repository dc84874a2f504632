-- Whose feed this is, the transactions from which on all of it is kept, and those up to which all of it is known. The
-- name is also the server's and the database's: a dump takes the schema elsewhere, where other transactions are counted.
SELECT to_hex(hashtextextended(f.id || ' ' || s.system_identifier || '/' || d.oid, 0)) AS name,
       (SELECT max(xid) FROM penstock.feed_floor) AS floor,
       pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS horizon
FROM penstock.feed f, pg_control_system() s, pg_database d
WHERE d.datname = current_database()
