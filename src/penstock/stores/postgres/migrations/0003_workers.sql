-- old workers may keep running: yes
--
-- What a handler logged goes with its attempt; and what only one process at a time should do has an office, held for a while.

ALTER TABLE penstock.attempt ADD COLUMN logs text;

CREATE TABLE penstock.leader (
    office text        PRIMARY KEY,
    holder text        NOT NULL,
    until  timestamptz NOT NULL
) WITH (fillfactor = 50);
