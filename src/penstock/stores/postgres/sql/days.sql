-- The days that have tables of their own, oldest first, and whether each is over and no job of it is left. $1 today.
SELECT d.day, CASE WHEN d.day < $1::date THEN NOT penstock.day_is_needed(d.day) ELSE false END AS is_over
FROM (
    SELECT to_date(right(c.relname, 8), 'YYYYMMDD') AS day
    FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = 'penstock.job'::regclass AND c.relname ~ '^job_[0-9]{8}$'
) d
ORDER BY d.day
