-- Write down what was asked; those whose id is taken are left out. $1 tenant, $2 created_at, then one array per column.
INSERT INTO penstock.job (tenant, id, queue, type, payload, priority, key, schedule, run_at, options, scheduled_at, created_at)
SELECT $1, g.*, $2
FROM unnest($3::uuid[], $4::text[], $5::text[], $6::json[], $7::smallint[], $8::text[], $9::text[], $10::timestamptz[],
            $11::json[], $12::timestamptz[]) AS g
ON CONFLICT DO NOTHING
RETURNING id
