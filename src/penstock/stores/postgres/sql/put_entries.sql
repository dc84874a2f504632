-- Make, replace or drop entries; see the function. $1 tenant, $2 now (null: the database's), then one array per column.
SELECT * FROM penstock.put_entries($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
