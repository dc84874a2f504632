-- The changes to these subjects, in order. $1 tenant, $2 kinds, $3 names.
SELECT c.*
FROM unnest($2::text[], $3::text[]) AS wanted (kind, name)
CROSS JOIN LATERAL (
    SELECT * FROM penstock.change c WHERE c.tenant = $1 AND c.kind = wanted.kind AND c.name = wanted.name OFFSET 0
) c
ORDER BY c.seq
