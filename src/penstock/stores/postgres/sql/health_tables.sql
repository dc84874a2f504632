-- Size and dead rows of each table of the queue, partitions counted with the table they are part of.
SELECT coalesce(p.relname, s.relname) AS name, sum(s.n_live_tup)::bigint AS live, sum(s.n_dead_tup)::bigint AS dead,
       sum(pg_relation_size(s.relid))::bigint AS bytes, sum(pg_indexes_size(s.relid))::bigint AS index_bytes,
       max(greatest(s.last_vacuum, s.last_autovacuum)) AS vacuumed_at
FROM pg_stat_user_tables s
LEFT JOIN pg_inherits i ON i.inhrelid = s.relid
LEFT JOIN pg_class p ON p.oid = i.inhparent
WHERE s.schemaname = 'penstock'
GROUP BY 1
ORDER BY 1
