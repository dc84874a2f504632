-- How many index entries were read for each job that left the line: near 1 when healthy, and growing with the dead rows
-- that a claim must step over. Null before anything was leased.
SELECT i.idx_tup_read::float8 / nullif(t.n_tup_del, 0) AS read_per_job
FROM pg_stat_user_indexes i JOIN pg_stat_user_tables t USING (relid)
WHERE i.schemaname = 'penstock' AND i.indexrelname = 'ready_next'
