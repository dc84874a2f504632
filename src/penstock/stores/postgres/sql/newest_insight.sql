-- As of when the newest insight is that is published; null where there is none.
SELECT max(as_of) FROM penstock.insight
