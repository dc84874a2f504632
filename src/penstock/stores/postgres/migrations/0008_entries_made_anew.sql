-- old workers may keep running: yes
--
-- An entry dropped and made anew in one call was not seen by a call that had waited for it: its drop took the new one away and
-- wrote nothing down, and its guard was held against nothing.
CREATE OR REPLACE FUNCTION penstock.put_entries(
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
            -- Whoever waited for a row that then was dropped, and made anew, has not found the new one: its snapshot is older.
            CONTINUE WHEN NOT is_held AND EXISTS (
                SELECT FROM penstock.entry e
                WHERE e.name = one.name AND (e.kind = one.kind) IS TRUE AND (e.tenant = of_tenant) IS TRUE
            );
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
