-- old workers may keep running: yes
--
-- What is kept besides jobs: entries by kind and name, allowances that are spent, and the audit log of what people changed.

-- The key begins with the name, the index with the kind: the one finds a token by its digest, whoever's it is, the other
-- lists; and a planner that believes the table empty has one index only for each.
CREATE TABLE penstock.entry (
    tenant     text        COLLATE "C" NOT NULL,
    kind       text        COLLATE "C" NOT NULL,
    name       text        COLLATE "C" NOT NULL,
    version    bigint      NOT NULL,
    body       json        NOT NULL,
    changed_at timestamptz NOT NULL,
    expires_at timestamptz,
    PRIMARY KEY (name, kind, tenant)
) WITH (fillfactor = 70);

CREATE INDEX entry_of_kind ON penstock.entry (kind, tenant);
CREATE INDEX entry_expires_at ON penstock.entry (expires_at) WHERE expires_at IS NOT NULL;

-- Unlogged, so that a request which spends waits for no disk: after a crash of the server every allowance is full.
CREATE UNLOGGED TABLE penstock.allowance (
    tenant     text             NOT NULL,
    name       text             COLLATE "C" NOT NULL,
    remaining  double precision NOT NULL,
    at         timestamptz      NOT NULL,
    kept_until timestamptz      NOT NULL,  -- by then it has been full for an hour at least; it is none the worse for being gone
    PRIMARY KEY (tenant, name)
) WITH (fillfactor = 50);

CREATE INDEX allowance_kept_until ON penstock.allowance (kept_until);

CREATE INDEX change_audit ON penstock.change (tenant, seq) WHERE actor NOT LIKE 'rule:%';

-- Make, replace or (without a body) drop entries, each under its guard (null: none; 0: it must be new), and write down who did it.
-- Answers each in its place: with its version, 0 for one that was dropped, null for one that was refused.
CREATE FUNCTION penstock.put_entries(
    of_tenant text, given_now timestamptz, kinds text[], names text[], bodies json[], guards bigint[],
    seconds double precision[], untils timestamptz[],
    audit_names text[], verbs text[], actors text[], reasons text[], details json[]
) RETURNS TABLE (place bigint, put_version bigint, put_at timestamptz, put_until timestamptz) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    moment  timestamptz := coalesce(given_now, now());
    one     record;
    there   penstock.entry;
    is_held boolean;
    had     bigint;
    told    bigint[] := '{}';
BEGIN
    -- By name, as everyone does, so that no two wait for each other; of one name in the order given.
    FOR one IN
        SELECT *
        FROM unnest(kinds, names, bodies, guards, seconds, untils, audit_names, verbs, actors, reasons, details)
            WITH ORDINALITY AS g (kind, name, body, guard, seconds, until, audit_name, verb, actor, reason, detail, place)
        ORDER BY g.name COLLATE "C", g.kind COLLATE "C", g.place
    LOOP
        place := one.place;
        LOOP
            -- IS TRUE: only the key may be taken.
            SELECT * INTO there FROM penstock.entry e
            WHERE e.name = one.name AND (e.kind = one.kind) IS TRUE AND (e.tenant = of_tenant) IS TRUE
            FOR UPDATE;
            is_held := FOUND;
            had := CASE WHEN is_held AND (there.expires_at > moment) IS NOT FALSE THEN there.version ELSE 0 END;
            put_version := CASE WHEN one.guard <> had THEN NULL WHEN one.body IS NULL THEN 0 ELSE had + 1 END;
            put_at := moment;
            put_until := coalesce(one.until, moment + make_interval(secs => one.seconds));
            EXIT WHEN put_version IS NULL;
            IF put_version > 0 AND NOT is_held THEN
                INSERT INTO penstock.entry (tenant, kind, name, version, body, changed_at, expires_at)
                VALUES (of_tenant, one.kind, one.name, put_version, one.body, put_at, put_until)
                ON CONFLICT DO NOTHING;
                EXIT WHEN FOUND;
                CONTINUE;  -- somebody was first: look at what is there now
            END IF;
            IF put_version > 0 THEN
                UPDATE penstock.entry e
                SET version = put_version, body = one.body, changed_at = put_at, expires_at = put_until
                WHERE e.name = one.name AND (e.kind = one.kind) IS TRUE AND (e.tenant = of_tenant) IS TRUE;
            ELSE
                DELETE FROM penstock.entry e
                WHERE e.name = one.name AND (e.kind = one.kind) IS TRUE AND (e.tenant = of_tenant) IS TRUE;
            END IF;
            EXIT;
        END LOOP;
        -- Whoever drops what is not there has changed nothing.
        IF one.actor IS NOT NULL AND (put_version > 0 OR put_version = 0 AND had > 0) THEN
            told := told || one.place;
        END IF;
        RETURN NEXT;
    END LOOP;
    -- In the order given, while everything is still held.
    INSERT INTO penstock.change (tenant, kind, name, at, verb, actor, reason, detail)
    SELECT of_tenant, g.kind, g.name, moment, g.verb, g.actor, g.reason, g.detail
    FROM unnest(kinds, audit_names, verbs, actors, reasons, details)
        WITH ORDINALITY AS g (kind, name, verb, actor, reason, detail, place)
    WHERE g.place = ANY (told)
    ORDER BY g.place;
END
$$;

-- Take from allowances, each as a whole or not at all. Answers each in its place.
CREATE FUNCTION penstock.spend(
    of_tenant text, given_now timestamptz, names text[], costs double precision[], rates double precision[],
    bursts double precision[]
) RETURNS TABLE (place bigint, granted boolean, remains double precision, wait_seconds double precision)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    moment timestamptz;
    one    record;
    there  penstock.allowance;
BEGIN
    -- By name, as everyone does, so that no two wait for each other; of one name in the order given.
    FOR one IN
        SELECT *
        FROM unnest(names, costs, rates, bursts) WITH ORDINALITY AS g (name, cost, rate, burst, place)
        ORDER BY g.name COLLATE "C", g.place
    LOOP
        LOOP
            SELECT * INTO there FROM penstock.allowance a WHERE a.tenant = of_tenant AND a.name = one.name FOR UPDATE;
            EXIT WHEN FOUND;
            moment := coalesce(given_now, clock_timestamp());
            INSERT INTO penstock.allowance (tenant, name, remaining, at, kept_until)
            VALUES (of_tenant, one.name, one.burst, moment, moment)
            ON CONFLICT DO NOTHING;
        END LOOP;
        -- Only now that nobody else can spend: the lock may have been waited for. It never goes back behind what others saw.
        moment := greatest(there.at, coalesce(given_now, clock_timestamp()));
        place := one.place;
        remains := least(one.burst, there.remaining + one.rate * extract(epoch FROM moment - there.at)::double precision);
        granted := one.cost <= remains;
        wait_seconds := CASE WHEN granted THEN 0 ELSE (one.cost - remains) / one.rate END;
        IF granted THEN  -- who is refused writes nothing: a flood of them must not wear out the row
            remains := remains - one.cost;
            UPDATE penstock.allowance a
            SET remaining = remains, at = moment,
                -- By the hour: it is indexed, and a change of it would write to all indexes of the row.
                kept_until = date_trunc('hour', moment + make_interval(secs => (one.burst - remains) / one.rate), 'UTC')
                             + interval '2 hours'
            WHERE a.tenant = of_tenant AND a.name = one.name;
        END IF;
        RETURN NEXT;
    END LOOP;
END
$$;
