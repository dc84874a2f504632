-- Remove what earlier runs published, in the transaction that publishes anew: a tenant that the new one does not tell of
-- has nothing left.
DELETE FROM penstock.insight
