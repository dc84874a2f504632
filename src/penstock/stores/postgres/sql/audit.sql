-- What people and tokens changed, newest first. $1 tenant, $2 before which number (null: from the newest on), $3 limit.
SELECT c.*
FROM penstock.change c
WHERE c.tenant = $1 AND c.seq < coalesce($2, 9223372036854775807) AND c.actor NOT LIKE 'rule:%'
ORDER BY c.seq DESC
LIMIT $3
