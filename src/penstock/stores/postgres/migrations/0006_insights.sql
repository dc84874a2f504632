-- old workers may keep running: yes
--
-- What the lake found out, for the service and people to read: the newest run's answers, one row per tenant and table.
CREATE TABLE penstock.insight (
    tenant       text        COLLATE "C" NOT NULL,
    name         text        COLLATE "C" NOT NULL,
    as_of        timestamptz NOT NULL,                 -- what happened before is in it
    body         json        NOT NULL,
    published_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant, name)
);
