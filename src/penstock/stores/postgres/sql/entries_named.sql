-- The entries of a kind that have these names. $1 tenant (null: everyone's), $2 kind, $3 now (null: the database's), $4 names.
SELECT e.*
FROM unnest($4::text[]) AS wanted (name)
-- OFFSET keeps it a look-up per name; IS TRUE: only the key may be taken.
CROSS JOIN LATERAL (
    SELECT * FROM penstock.entry e
    WHERE e.name = wanted.name AND (e.kind = $2) IS TRUE AND (e.tenant = $1) IS NOT FALSE
      AND (e.expires_at > coalesce($3, now())) IS NOT FALSE
    OFFSET 0
) e
