-- Insights of a tenant by name. $1 tenant, $2 names.
SELECT name, as_of, body FROM penstock.insight WHERE tenant = $1 AND name = ANY ($2::text[]) ORDER BY name
