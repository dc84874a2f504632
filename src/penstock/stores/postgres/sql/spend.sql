-- Take from allowances; see the function. $1 tenant, $2 now (null: the database's), $3 names, $4 costs, $5 rates, $6 bursts.
SELECT * FROM penstock.spend($1, $2, $3, $4, $5, $6)
