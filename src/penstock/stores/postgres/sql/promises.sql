-- What lakes have promised, body by name (null where there is none), and by which names they know this database. One row.
SELECT (SELECT json_object_agg(e.name, e.body) FROM penstock.entry e WHERE e.kind = 'lake' AND e.tenant = '*')::text AS promises,
       f.id AS feed, s.system_identifier || '/' || d.oid AS system
FROM penstock.feed f, pg_control_system() s, pg_database d
WHERE d.datname = current_database()
