"""A lake whose database has moved: by pg_upgrade for real, and by a copy beside it, which looks the same to a lake."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from penstock.cli.main import main
from penstock.connecting import connect
from penstock.core import promises
from penstock.core.registry import ALL_TENANTS
from penstock.lake import keeping
from penstock.lake.errors import LakeOfAnother, StoreRestored
from penstock.lake.manifest import Lake, new_manifest, source_of
from penstock.lake.source import Ask, open_reader
from penstock.stores.postgres.embedded.programs import INSTALLATION, PACKAGE, environment, server_user
from penstock.stores.postgres.migrate import migrate
from support.postgres import server_url
from support.spark import WITHOUT

pytest.importorskip("pyarrow", reason=WITHOUT)

from penstock.lake.adopting import adopt
from penstock.lake.tables import EVENTS

OURS, COPY = "penstock_moves", "penstock_moved"


@pytest.fixture
async def url() -> AsyncIterator[str]:
    """A database of its own, on a server on which it can be copied."""
    await on_server(
        f"DROP DATABASE IF EXISTS {COPY}", f"DROP DATABASE IF EXISTS {OURS}", f"CREATE DATABASE {OURS}"
    )
    url = urlsplit(server_url())._replace(path=f"/{OURS}").geturl()
    await migrate(url)
    yield url
    await on_server(f"DROP DATABASE IF EXISTS {COPY} WITH (FORCE)", f"DROP DATABASE {OURS} WITH (FORCE)")


async def on_server(*statements: str) -> None:
    await on_this(server_url(), *statements)


async def on_this(url: str, *statements: str) -> None:
    connection = await asyncpg.connect(url)
    for statement in statements:
        await connection.execute(statement)
    await connection.close()


async def copied() -> str:
    """The database once more, as it is now; of the same feed, and another database to PostgreSQL."""
    await on_server(f"CREATE DATABASE {COPY} TEMPLATE {OURS}")
    return urlsplit(server_url())._replace(path=f"/{COPY}").geturl()


async def put(url: str, *payloads: int) -> None:
    async with connect(url, actor="test") as queue:
        await queue.enqueue_many([queue.new("t", {"n": n}) for n in payloads])


def taken_in(url: str, lake: Lake) -> list[int]:
    """What a run does, without Spark: what came since, and how far the lake is then."""
    reader = open_reader(url)
    found = lake.find()
    there = reader.horizon()
    manifest = found or new_manifest(source_of(there), reader.first())
    lake.check_source(manifest, there)
    manifest = replace(manifest, run=keeping.check_in(url, lake, manifest))
    ask = Ask("events", tuple(EVENTS))
    slices = reader.between(dict(manifest.offset), there, ask, 1)
    rows = [row for slice in slices for batch in reader.read(ask, slice) for row in batch.to_pylist()]
    lake.commit(replace(manifest, offset=there))
    return [row["xid"] for row in rows if row["kind"] == "job"]


async def run(url: str, lake: Lake) -> int:
    return len(await asyncio.to_thread(taken_in, url, lake))


def penstock(*arguments: str, url: str, lake: Lake) -> Any:
    return CliRunner().invoke(
        main, ["lake", *arguments], env={"PENSTOCK_URL": url, "PENSTOCK_LAKE": lake.place}
    )


async def test_goes_on_where_its_database_has_moved_to(url: str, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    await put(url, 1, 2, 3)
    assert await run(url, lake) == 3
    await put(url, 4)
    moved = await copied()
    await put(moved, 5)
    with pytest.raises(LakeOfAnother, match=r"moved to another server \(pg_upgrade\): penstock lake adopt"):
        await run(moved, lake)
    before = lake.manifest()
    told = await asyncio.to_thread(penstock, "adopt", url=moved, lake=lake)
    assert (told.exit_code, lake.manifest()) == (0, before), told.output
    assert f"feed {before.source['feed']}: from the server {before.source['system']} to" in told.stdout
    done = await asyncio.to_thread(penstock, "adopt", "--yes", url=moved, lake=lake)
    assert done.exit_code == 0, done.output
    async with connect(moved) as queue:
        [promise] = promises.read(await queue.store.entries(ALL_TENANTS, promises.LAKE)).values()
    assert promise.offset["system"] == lake.manifest().source["system"], "the store knows it for its own"
    assert await run(moved, lake) == 2
    with pytest.raises(LakeOfAnother):
        await run(url, lake)
    again = await asyncio.to_thread(penstock, "adopt", "--yes", url=moved, lake=lake)
    assert "of this very database already" in again.stdout


async def test_a_copy_from_before_the_last_run_is_refused(url: str, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    await put(url, 1)
    await run(url, lake)
    moved = await copied()
    await run(url, lake)
    before = lake.manifest()
    with pytest.raises(StoreRestored, match="has made 2 runs over this store, and the store knows of 1"):
        await asyncio.to_thread(adopt, moved, lake)
    assert lake.manifest() == before


async def test_another_feed_is_another_history(url: str, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    await run(url, lake)
    with pytest.raises(LakeOfAnother, match="dumped, loaded and stamped anew is another one"):
        await asyncio.to_thread(adopt, server_url(), lake)


def test_where_there_is_no_lake_no_store_is_made(tmp_path: Path) -> None:
    told = penstock("adopt", url=f"file:{tmp_path}/queue", lake=Lake(tmp_path / "lake"))
    assert told.exit_code == 3
    assert "there is no lake" in told.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["adopt", "publish"])
def test_where_there_is_no_store_none_is_made(tmp_path: Path, command: str) -> None:
    lake = Lake(tmp_path / "lake")
    lake.commit(new_manifest({"feed": "f", "system": "s"}, {"xid": 1, "floor": 0}))
    told = penstock(command, url=f"file:{tmp_path}/queue", lake=lake)
    assert told.exit_code != 0
    assert "must have something in it" in told.stderr
    assert not (tmp_path / "queue").exists()


@pytest.mark.long
async def test_after_pg_upgrade_nothing_is_skipped_and_nothing_read_twice(tmp_path: Path) -> None:
    with TemporaryDirectory(prefix="penstock-tests-") as name:
        folder, lake = Path(name), Lake(tmp_path / "lake")
        folder.chmod(0o755)  # noqa: ASYNC240
        old, new = Cluster(folder / "old"), Cluster(folder / "new")
        with old.running() as url:
            await on_this(url, "CREATE DATABASE penstock")
            url = urlsplit(url)._replace(path="/penstock").geturl()
            await migrate(url)
            await put(url, *range(10))
            assert await run(url, lake) == 10
            await put(url, 10, 11)
        new.upgrade_from(old)
        with new.running() as url:
            url = urlsplit(url)._replace(path="/penstock").geturl()
            await put(url, 12)
            with pytest.raises(LakeOfAnother):
                await run(url, lake)
            await asyncio.to_thread(adopt, url, lake)
            assert await run(url, lake) == 3
            assert await run(url, lake) == 0


class Cluster:
    """A PostgreSQL as administrators have it, run by a user who is not root."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder, self.user = folder, server_user(folder)
        if self.user.uid is not None and self.user.gid is not None:
            os.chown(folder, self.user.uid, self.user.gid)
        self.data = folder / "data"
        self.programs = _all_programs(folder.parent)
        self._run(
            "initdb", "-D", self.data, "-U", "penstock", "--auth=trust", "--locale=C", "--encoding=UTF8", "-N"
        )

    @contextmanager
    def running(self) -> Iterator[str]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        options = f"-p {port} -k {self.folder} -c listen_addresses=127.0.0.1"
        self._run("pg_ctl", "-D", self.data, "-w", "-l", self.folder / "log", "-o", options, "start")
        try:
            yield f"postgresql://penstock@127.0.0.1:{port}/postgres"
        finally:
            self._run("pg_ctl", "-D", self.data, "-w", "-m", "fast", "stop")

    def upgrade_from(self, old: Cluster) -> None:
        both = ("-b", old.programs, "-B", self.programs, "-d", old.data, "-D", self.data)
        self._run("pg_upgrade", "-U", "penstock", *both, "--socketdir", self.folder)

    def _run(self, program: str, *arguments: str | Path) -> None:
        # Not through pipes: a server that is started would keep them open.
        with (self.folder / f"{program}.out").open("w+") as told:
            done = subprocess.run(
                [self.programs / program, *arguments], cwd=self.folder, env=environment(), stdout=told, stderr=told,
                user=self.user.uid, group=self.user.gid, extra_groups=None if self.user.uid is None else [], check=False,
            )  # fmt: skip
            told.seek(0)
            assert done.returncode == 0, told.read()


def _all_programs(folder: Path) -> Path:
    """Those of the package; as a copy that everybody can run, for the embedded server copies only its own."""
    spec = importlib.util.find_spec(PACKAGE)
    assert spec is not None
    assert spec.submodule_search_locations
    package = Path(spec.submodule_search_locations[0])
    copy = folder / "programs"
    if not copy.exists():
        shutil.copytree(package / INSTALLATION, copy / PACKAGE / INSTALLATION)
        libraries = package.with_name(f"{PACKAGE}.libs")
        if libraries.exists():
            shutil.copytree(libraries, copy / libraries.name)
        for path in (copy, *copy.rglob("*")):
            path.chmod(0o755)
    return copy / PACKAGE / INSTALLATION / "bin"
