-- Publish insights, where there are none any more. $1 tenants, $2 names, $3 as of when, $4 bodies.
INSERT INTO penstock.insight (tenant, name, as_of, body)
SELECT * FROM unnest($1::text[], $2::text[], $3::timestamptz[], $4::json[])
