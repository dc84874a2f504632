"""Brings the schema `penstock` of a database up to date: numbered files of plain SQL, each applied once, in order.

SchemaError
├── SchemaTooNew            the database is ahead of this package, and not by harmless steps
├── SchemaTooOld            the database is behind this package
├── MigrationChanged        what was applied is not what this package has
├── MigrationFailed         the database refused a migration
└── MigrationInvalid        a file in the folder is not a migration
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import TypeAlias

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from penstock.core.errors import PenstockError
from penstock.stores.postgres.loaded import stamp_anew

logger = logging.getLogger("penstock.postgres")

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record] | PoolConnectionProxy[asyncpg.Record]"

FOLDER: Traversable = files("penstock.stores.postgres") / "migrations"
FILE_NAME = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")
FIRST_LINE = re.compile(r"-- old workers may keep running: (yes|no)\n")

PREPARE = """\
-- Names in a migration are written in full, so that no search path of a role changes what they mean.
SET LOCAL search_path = pg_catalog, pg_temp;
SET LOCAL statement_timeout = 0;
-- Waiting for another migration is harmless; waiting for a table in use, with a line forming behind, is not.
SET LOCAL lock_timeout = 0;
-- The letters "penstock" as a number. Held to the end of the transaction, so that a pooler does not matter.
SELECT pg_advisory_xact_lock(x'70656e73746f636b'::bigint);
SET LOCAL lock_timeout = DEFAULT;
-- Not IF NOT EXISTS: that needs the right to create schemas even where an administrator has made this one.
DO $$ BEGIN
    IF to_regnamespace('penstock') IS NULL THEN
        CREATE SCHEMA penstock;
    END IF;
    IF to_regclass('penstock.migration') IS NULL THEN
        CREATE TABLE penstock.migration (
            number     integer     PRIMARY KEY,
            name       text        NOT NULL,
            checksum   text        NOT NULL,
            -- What the file's first line says: whoever does not know the file has to be told by the database.
            old_workers_may_run boolean NOT NULL,
            applied_at timestamptz NOT NULL DEFAULT now()
        );
    END IF;
END $$;
"""


class SchemaError(PenstockError):
    """The database's schema and this package do not fit, or cannot be made to. Act on the message."""

    code = "schema_error"


class SchemaTooNew(SchemaError):
    """A newer Penstock has changed this database so that this version may not use it. Upgrade the package here."""

    code = "schema_too_new"

    def __init__(self, unfit: str, known: str) -> None:
        super().__init__(
            f"the database has the migration {unfit}, beside which old workers may not run, "
            f"but this version of penstock knows none after {known}; "
            "upgrade the package: pip install --upgrade penstock",
            unfit=unfit,
            known=known,
        )


class SchemaTooOld(SchemaError):
    """This database lacks migrations that this version needs. Run `penstock migrate`, then start again."""

    code = "schema_too_old"

    def __init__(self, pending: str) -> None:
        super().__init__(
            f"the database lacks the migrations {pending}; run `penstock migrate`", pending=pending
        )


class MigrationChanged(SchemaError):
    """A migration is not the one that was applied. Put the file back and write a new migration; nothing was changed.

    In development, where the data may go, `DROP SCHEMA penstock CASCADE` and migrate again.
    """

    code = "migration_changed"

    def __init__(self, migration: str) -> None:
        super().__init__(
            f"the migration {migration} is not the one that was applied to this database; "
            "restore the file, or install the version of penstock that applied it",
            migration=migration,
        )


class MigrationFailed(SchemaError):
    """The database refused a migration. Nothing of it was kept, those before it were; remove the cause and migrate again."""

    code = "migration_failed"

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(f"could not apply the migration {place}: {reason}", place=place, reason=reason)


class MigrationInvalid(SchemaError):
    """A file in the folder of migrations is not one. Correct the file; the database was not touched."""

    code = "migration_invalid"

    def __init__(self, file: str, must: str) -> None:
        super().__init__(f"the file {file} must {must}", file=file, must=must)


@dataclass(frozen=True, slots=True)
class Migration:
    """One file: a step forward that is never changed once released."""

    number: int
    name: str
    sql: str
    checksum: str
    old_workers_may_run: bool

    @property
    def label(self) -> str:
        return _label(self.number, self.name)

    @property
    def statements(self) -> str:
        """The file and its entry in the list. The entry is first: applied twice, it is the one to fail."""
        may_run = str(self.old_workers_may_run).lower()
        entry = f"{self.number}, '{self.name}', '{self.checksum}', {may_run}"
        body = self.sql.rstrip()
        end = "" if body.endswith(";") else "\n;"
        columns = "number, name, checksum, old_workers_may_run"
        return f"INSERT INTO penstock.migration ({columns}) VALUES ({entry});\n\n{body}{end}\n"


@dataclass(frozen=True, slots=True)
class Applied:
    """What the database remembers of a migration."""

    number: int
    name: str
    checksum: str
    old_workers_may_run: bool


def load(folder: Traversable = FOLDER) -> list[Migration]:
    """All migrations of a folder, in order."""
    paths = sorted(
        (path for path in folder.iterdir() if path.name.endswith(".sql")), key=lambda path: path.name
    )
    return [_read(path, number) for number, path in enumerate(paths, start=1)]


async def migrate(
    target: str | Connection,
    folder: Traversable = FOLDER,
    *,
    on_applied: Callable[[Migration], object] = lambda _: None,
) -> list[Migration]:
    """Apply what is pending, one transaction each, and say what was applied by this call.

    Any number of processes may call it at once. A database that is up to date is only read. The connection
    must not be in a transaction. `on_applied` hears of each migration as soon as it is kept. A database that was loaded
    from a dump has its history stamped anew.
    """
    if isinstance(target, str):
        # No statement cache: behind a pooler a prepared statement may be gone, or somebody else's.
        connection = await asyncpg.connect(target, statement_cache_size=0)
        try:
            return await migrate(connection, folder, on_applied=on_applied)
        finally:
            await connection.close()
    known = load(folder)
    applied = []
    for each in await _pending(target, known):
        if await _apply(target, each, known):
            applied.append(each)
            on_applied(each)
    if stamped := await stamp_anew(target):
        logger.warning(
            "this database was loaded from a dump: %d rows of its history were ahead of this server and have been stamped "
            "anew. A lake of the database that it came from is not this one's; begin a new one", stamped,
        )  # fmt: skip
    return applied


async def pending(connection: Connection, folder: Traversable = FOLDER) -> list[Migration]:
    """What `migrate` would apply. Refuses a database that it would refuse."""
    return await _pending(connection, load(folder))


async def check(connection: Connection, folder: Traversable = FOLDER) -> None:
    """Refuse a database whose schema this version cannot work on.

    A newer one will do if each of its migrations says that old workers may keep running: in a rolling deploy some
    of them start again after the database was migrated.
    """
    if lacking := await pending(connection, folder):
        raise SchemaTooOld(", ".join(each.label for each in lacking))


def script(migrations: Sequence[Migration]) -> str:
    """The SQL that `migrate` would run, for `psql -v ON_ERROR_STOP=1` or a person with the rights."""
    return "\n".join(
        f"-- {each.label}\nBEGIN ISOLATION LEVEL READ COMMITTED;\n{PREPARE}{each.statements}COMMIT;\n"
        for each in migrations
    )


def _read(path: Traversable, number: int) -> Migration:
    # As text, so that a checkout with other line ends has the same checksums.
    sql = path.read_text(encoding="utf-8")
    named = FILE_NAME.fullmatch(path.name)
    if named is None or int(named[1]) != number:
        raise MigrationInvalid(
            path.name, f"be named {number:04}_name.sql: numbers count from 0001, without gaps"
        )
    declared = FIRST_LINE.match(sql)
    if declared is None:
        raise MigrationInvalid(
            path.name, "begin with the line `-- old workers may keep running: yes` (or no)"
        )
    checksum = sha256(sql.encode()).hexdigest()
    return Migration(number, named[2], sql, checksum, old_workers_may_run=declared[1] == "yes")


async def _apply(connection: Connection, migration: Migration, known: Sequence[Migration]) -> bool:
    """Apply one migration, unless somebody else has done so meanwhile."""
    try:
        async with _transaction(connection):
            await connection.execute(PREPARE)
            if migration not in _compare(await _applied(connection), known):
                return False
            await connection.execute(migration.statements)
            return True
    except asyncpg.PostgresConnectionError:
        raise
    except asyncpg.PostgresError as error:
        raise MigrationFailed(_place(migration, error), str(error)) from error


async def _pending(connection: Connection, known: Sequence[Migration]) -> list[Migration]:
    async with _transaction(connection):
        return _compare(await _applied(connection), known)


@asynccontextmanager
async def _transaction(connection: Connection) -> AsyncIterator[None]:
    try:
        # Read committed, whatever the role's default: what the last holder of the lock did must be seen.
        async with connection.transaction(isolation="read_committed"):
            yield
    except asyncpg.InterfaceError as error:
        # asyncpg cannot end a transaction whose connection is gone, and says so instead of why it is gone.
        if connection.is_closed():
            raise asyncpg.ConnectionDoesNotExistError("the connection was closed by the server") from error
        raise


async def _applied(connection: Connection) -> list[Applied]:
    if await connection.fetchval("SELECT to_regclass('penstock.migration') IS NULL"):
        return []
    rows = await connection.fetch(
        "SELECT number, name, checksum, old_workers_may_run FROM penstock.migration ORDER BY number"
    )
    return [Applied(**row) for row in rows]


def _compare(applied: Sequence[Applied], known: Sequence[Migration]) -> list[Migration]:
    """The migrations not applied yet. What was applied must begin as what is known does, and go on harmlessly."""
    for each in applied:
        if each.number > len(known) and not each.old_workers_may_run:
            newest = known[-1].label if known else "the empty schema"
            raise SchemaTooNew(_label(each.number, each.name), newest)
    for was, now in zip(applied, known, strict=False):
        if (was.number, was.checksum) != (now.number, now.checksum):
            raise MigrationChanged(now.label)
    return list(known[len(applied) :])


def _place(migration: Migration, error: asyncpg.PostgresError) -> str:
    """The migration, and the line of its file where the database says that the error is."""
    position: str | None = getattr(error, "position", None)
    if position is None:
        return migration.label
    before = migration.statements[: int(position) - 1].partition("\n\n")[2]
    line = before.count("\n") + 1
    return f"{migration.label}, line {line}"


def _label(number: int, name: str) -> str:
    return f"{number:04}_{name}"
