-- Who keeps vacuum from cleaning up, oldest first: sessions with an open snapshot or transaction, prepared transactions,
-- replication slots. No query text: it may hold secrets.
SELECT 'session' AS kind, a.pid::text AS name, coalesce(a.application_name, '') AS application, a.usename::text AS username,
       coalesce(a.state, '') AS state, extract(epoch FROM clock_timestamp() - a.xact_start)::float8 AS seconds
FROM pg_stat_activity a
WHERE a.xact_start IS NOT NULL AND a.pid <> pg_backend_pid() AND a.datname = current_database()
  AND (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL)
UNION ALL
SELECT 'prepared transaction', p.gid, '', p.owner::text, 'prepared', extract(epoch FROM clock_timestamp() - p.prepared)::float8
FROM pg_prepared_xacts p WHERE p.database = current_database()
UNION ALL
SELECT 'replication slot', s.slot_name::text, coalesce(s.plugin::text, ''), '', CASE WHEN s.active THEN 'active' ELSE 'inactive' END,
       NULL
FROM pg_replication_slots s WHERE s.xmin IS NOT NULL OR s.catalog_xmin IS NOT NULL
ORDER BY seconds DESC NULLS LAST
