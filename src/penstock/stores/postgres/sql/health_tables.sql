-- Size and dead rows of each table of the queue.
SELECT s.relname AS name, s.n_live_tup AS live, s.n_dead_tup AS dead, pg_relation_size(s.relid) AS bytes,
       pg_indexes_size(s.relid) AS index_bytes, greatest(s.last_vacuum, s.last_autovacuum) AS vacuumed_at
FROM pg_stat_user_tables s
WHERE s.schemaname = 'penstock'
ORDER BY s.relname
