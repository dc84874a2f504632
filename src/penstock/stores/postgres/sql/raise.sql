-- Let claims start where the last one ended: everything before has been taken. $1 tenant, $2 queue, $3 priority, $4 floor.
UPDATE penstock.lane SET floor = $4 WHERE tenant = $1 AND queue = $2 AND priority = $3 AND floor < $4
