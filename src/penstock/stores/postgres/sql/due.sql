-- How schedules stand. $1 tenant (null: all of them), $2 now (null: the database's).
SELECT
    coalesce($2, now()) AS now,
    ARRAY (
        SELECT DISTINCT tenant FROM penstock.schedule
        WHERE tenant = coalesce($1, tenant) AND next_fire_at <= coalesce($2, now()) ORDER BY tenant
    ) AS tenants,
    (
        SELECT min(next_fire_at) FROM penstock.schedule
        WHERE tenant = coalesce($1, tenant) AND next_fire_at > coalesce($2, now())
    ) AS next_fire_at
