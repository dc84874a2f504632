-- Remove entries whose time is over and allowances that have long been full again. $1 now (null: the database's), $2 how many
-- of each at most. What somebody is changing stays: it may be no longer what it was.
WITH entries AS (
    DELETE FROM penstock.entry
    WHERE ctid = ANY (ARRAY (
        SELECT e.ctid FROM penstock.entry e
        WHERE e.expires_at IS NOT NULL AND e.expires_at <= coalesce($1, now())
        ORDER BY e.expires_at LIMIT $2
        FOR UPDATE SKIP LOCKED
    ))
)
DELETE FROM penstock.allowance
WHERE ctid = ANY (ARRAY (
    SELECT a.ctid FROM penstock.allowance a
    WHERE a.kept_until <= coalesce($1, now())
    ORDER BY a.kept_until LIMIT $2
    FOR UPDATE SKIP LOCKED
))
