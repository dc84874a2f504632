-- One of these insights that is published as of a later time. $1 tenants, $2 names, $3 as of when.
SELECT given.as_of AS given, i.as_of AS there
FROM unnest($1::text[], $2::text[], $3::timestamptz[]) AS given (tenant, name, as_of)
JOIN penstock.insight i ON i.tenant = given.tenant AND i.name = given.name AND i.as_of > given.as_of
LIMIT 1
