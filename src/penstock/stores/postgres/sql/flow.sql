-- Everything whose fate may hang on these jobs: their descendants, and the parents of those. $1 tenant, $2 ids.
WITH RECURSIVE below (id) AS (
    SELECT unnest($2::uuid[])
    UNION
    SELECT e.child_id FROM below b JOIN penstock.edge e ON e.tenant = $1 AND e.parent_id = b.id
)
SELECT id FROM below
UNION
SELECT e.parent_id FROM below b JOIN penstock.edge e ON e.tenant = $1 AND e.child_id = b.id
