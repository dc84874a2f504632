-- The entries of a kind. $1 tenant (null: everyone's), $2 kind, $3 now (null: the database's).
(
    SELECT e.* FROM penstock.entry e
    WHERE $1::text IS NOT NULL AND e.kind = $2 AND e.tenant = $1 AND (e.expires_at > coalesce($3, now())) IS NOT FALSE
    ORDER BY e.kind, e.tenant  -- as the index gives them
)
UNION ALL
(
    SELECT e.* FROM penstock.entry e
    WHERE $1::text IS NULL AND e.kind = $2 AND (e.expires_at > coalesce($3, now())) IS NOT FALSE
    ORDER BY e.kind, e.tenant
)
