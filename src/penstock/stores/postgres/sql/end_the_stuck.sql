-- End our own sessions that hold a transaction open while their process says nothing: it is stopped, or gone unheard.
-- First find them, then end them: PostgreSQL may check conditions in any order, and the last of them must not be tried on all.
WITH stuck AS MATERIALIZED (
    SELECT pid
    FROM pg_stat_activity
    WHERE datname = current_database() AND usename = current_user AND application_name = 'penstock'
      AND pid <> pg_backend_pid() AND wait_event = 'ClientRead' AND xact_start IS NOT NULL
      AND state_change < clock_timestamp() - interval '4 seconds'
)
SELECT pid FROM stuck WHERE pg_terminate_backend(pid);
