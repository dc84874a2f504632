"""What goes wrong before a command gets to work: one line on stderr, a code that says which, never a traceback."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from inspect import isclass
from pathlib import Path
from typing import Any, NoReturn

import asyncpg
import pytest

from penstock.cli.exits import Exit, exit_of
from penstock.core.errors import (
    Forbidden,
    JobFailed,
    LeaseLost,
    NotFound,
    PenstockError,
    RateLimited,
    StoreUnavailable,
)
from penstock.lake.errors import LakeEdited, LakeMissing
from penstock.lake.keeping import PromiseUnknown
from penstock.stores.log import errors as log_errors
from penstock.stores.log.errors import (
    LogCorrupt,
    LogGap,
    LogStopped,
    LogTooNew,
    NotALog,
    ShardsDiffer,
    StorageRefused,
    StoreNotConditional,
)
from penstock.stores.postgres.connected import Connected
from penstock.stores.postgres.embedded import EmbeddedError
from penstock.stores.postgres.migrate import SchemaTooNew
from penstock.stores.wakeups import UnknownWakeups
from support.postgres import server_url
from support.s3 import running_s3


def refused(run: Any, url: str) -> Any:
    done = run("queues", "list", "--url", url)
    assert done.stdout == ""
    return done


def test_a_store_that_cannot_be_reached_is_5(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(Connected.__init__.__kwdefaults__, "patience_seconds", 0.1)  # type: ignore[arg-type]
    done = refused(run, "postgresql://someone:secret@127.0.0.1:1/there")
    assert done.exit_code == 5
    *trying, last = done.stderr.splitlines()
    assert len(trying) == 1, "that it is tried again is said once"
    assert "PostgreSQL at 127.0.0.1:1 is out of reach" in trying[0]
    assert last.endswith("(store_unavailable)")
    assert "secret" not in done.stderr


def test_a_password_or_a_database_that_is_wrong_is_5(run: Any) -> None:
    for wrong in (re.sub(r"//([^:]+):[^@]*@", r"//\1:wrong@", server_url()), f"{server_url()}_of_dreams"):
        done = refused(run, wrong)
        assert done.exit_code == 5
        assert done.stderr.startswith("penstock: the database refuses: ")
        assert done.stderr.count("\n") == 1


@pytest.fixture(params=["folder", "bucket"])
def nowhere(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[str, str, Callable[[], list[str]]]]:
    """The URL of a place for a log that is not there yet, what it is called, and what is in it."""
    if request.param == "folder":
        name = f"{tmp_path}/queue"
        yield f"file:{name}?poll=1s", name, lambda: [path.name for path in tmp_path.iterdir()]
    else:
        with running_s3() as s3:
            yield s3.url("queue"), "s3://queue/queue", lambda: list(s3.objects)


class TestAPlaceWithoutALog:
    @pytest.mark.parametrize(
        "reading",
        [
            ["jobs", "list"], ["jobs", "show", "x"], ["jobs", "redrive", "x"], ["queues", "list"], ["schedules", "list"],
            ["tokens", "list"], ["workers", "list"], ["insights", "failures"], ["top"], ["compact"],
        ],
        ids=" ".join,
    )  # fmt: skip
    def test_is_3_to_who_only_looks_and_stays_as_it_is(
        self, run: Any, nowhere: tuple[str, str, Callable[[], list[str]]], reading: list[str]
    ) -> None:
        url, name, inside = nowhere
        done = run(*reading, *([url] if reading == ["compact"] else ["--url", url]))
        assert (done.exit_code, done.stdout) == (3, "")
        assert done.stderr == f"penstock: there is no log in {name} yet; look at its name (not_found)\n"
        assert inside() == []

    @pytest.mark.parametrize(
        "putting",
        [
            ["enqueue", "t"], ["queues", "set", "emails", "fair=true"], ["queues", "pause", "emails"],
            ["tokens", "create", "ci", "--scope", "work"],
            ["schedules", "put", "morning", "--cron", "0 9 * * *", "--type", "t"],
        ],
        ids=" ".join,
    )  # fmt: skip
    def test_is_made_by_who_puts_something_in_and_that_is_said_once(
        self, run: Any, nowhere: tuple[str, str, Callable[[], list[str]]], putting: list[str]
    ) -> None:
        url, name, _ = nowhere
        done = run(*putting, "--url", url)
        assert done.exit_code == 0, done.output
        assert f"penstock: made a store in {name}\n" in done.stderr
        again = run("queues", "list", "--url", url)
        assert (again.exit_code, again.stderr) == (0, "")

    def test_is_not_made_by_what_is_refused(
        self, run: Any, nowhere: tuple[str, str, Callable[[], list[str]]]
    ) -> None:
        url, _, inside = nowhere
        done = run("enqueue", "a type with spaces", "--url", url)
        assert done.exit_code == 2
        assert "made a store" not in done.stderr
        assert inside() == []

    def test_that_holds_something_else_is_4_and_one_that_has_lost_its_format_too(
        self, run: Any, tmp_path: Path
    ) -> None:
        (tmp_path / "notes.txt").touch()
        done = run("queues", "list", "--url", f"file:{tmp_path}")
        assert (done.exit_code, "not_a_log" in done.stderr) == (4, True)
        run("enqueue", "t", "--url", f"file:{tmp_path}/queue")
        (tmp_path / "queue/FORMAT").unlink()
        done = run("queues", "list", "--url", f"file:{tmp_path}/queue")
        assert (done.exit_code, "log_corrupt" in done.stderr) == (4, True)

    def test_is_named_without_what_is_secret_in_its_url(self, run: Any) -> None:
        with running_s3() as s3:
            url = s3.url("nolog").replace("s3://", "s3://somebody:topsecret@", 1)
            for arguments in (["compact", url], ["jobs", "list", "--url", url], ["doctor", "--url", url]):
                done = run(*arguments)
                assert "there is no log in s3://queue/nolog yet" in done.output
                assert "topsecret" not in done.output


def test_a_folder_that_may_not_be_read_is_5(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"file:{tmp_path}/queue"
    run("enqueue", "t", "--url", url)

    def refuse(*_: object) -> NoReturn:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "listdir", refuse)  # nothing is refused to root
    monkeypatch.setattr(Path, "read_bytes", refuse)
    for arguments in (["jobs", "list"], ["enqueue", "t"], ["top"]):
        done = run(*arguments, "--url", url)
        assert (done.exit_code, done.stdout) == (5, "")
        assert done.stderr.startswith(f"penstock: {tmp_path}/queue refuses: Permission denied")
    told = run("doctor", "--url", url)
    assert told.exit_code == 1
    assert "storage_refused" in told.stdout


@pytest.mark.parametrize("scheme", ["memory", "memory+log"])
def test_what_would_be_gone_with_the_command_is_not_put_in(run: Any, scheme: str) -> None:
    done = run("enqueue", "t", "--url", f"{scheme}://")
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"{scheme}:// keeps nothing when this command ends" in done.stderr
    assert run("jobs", "list", "--url", f"{scheme}://").exit_code == 0


@pytest.mark.parametrize("output", ["json", "jsonl", "csv", "table", "wide"])
def test_an_answer_that_cannot_be_written_is_1(run: Any, tmp_path: Path, output: str) -> None:
    url = f"file:{tmp_path}/queue"
    run("enqueue", "t", "--url", url)
    command = [sys.executable, "-m", "penstock", "jobs", "list", "--url", url, "-o", output]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "penstock: cannot write the answer: No space left on device\n"


@pytest.mark.parametrize("url", ["bogus://somewhere", "no url at all", "postgresql://host:many/"])
def test_a_url_that_names_no_store_is_2(run: Any, url: str) -> None:
    assert refused(run, url).exit_code == 2


@pytest.mark.parametrize("cut", ["/", "#", "?", "["])
def test_a_password_with_a_sign_that_ends_it_is_not_shown(run: Any, cut: str) -> None:
    url = f"postgresql://somebody:topsecret{cut}x@127.0.0.1:1/there"
    for command in (["queues", "list"], ["migrate"]):
        done = run(*command, "--url", url)
        assert done.exit_code == 2
        assert "cannot read the URL; say it as" in done.stderr
        assert "topsecret" not in done.output
    told = run("doctor", "--url", url)
    assert told.exit_code == 1
    assert "cannot read the URL" in told.stdout
    assert "topsecret" not in told.output


def test_a_url_that_an_app_cannot_read_is_its_own_affair(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("from urllib.parse import urlsplit\nurlsplit('http://[')\n")
    command = [sys.executable, "-m", "penstock", "worker", "shop:app"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "shop.py" in done.stderr
    assert "cannot read the URL" not in done.stderr


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import nowhere\n", "ModuleNotFoundError: No module named 'nowhere'"),
        ("x = (\n", "SyntaxError: '(' was never closed"),
    ],
)
def test_an_app_that_cannot_be_imported_is_shown_its_own_lines_alone(
    tmp_path: Path, source: str, said: str
) -> None:
    (tmp_path / "shop.py").write_text(source)
    command = [sys.executable, "-m", "penstock", "worker", "shop:app"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert said in done.stderr
    assert "shop cannot be imported" in done.stderr
    assert set(re.findall(r'File ".*?([^/"]+)"', done.stderr)) == {"shop.py"}


async def _leave_no_schema(url: str) -> str:
    connection = await asyncpg.connect(url)
    await connection.execute("DROP DATABASE IF EXISTS bare")
    await connection.execute("CREATE DATABASE bare")
    await connection.close()
    return f"{url.rpartition('/')[0]}/bare"


def test_a_database_without_the_tables_is_4_and_says_what_to_do(run: Any) -> None:
    import asyncio

    done = refused(run, asyncio.run(_leave_no_schema(server_url())))
    assert done.exit_code == 4
    assert "penstock migrate" in done.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (JobFailed("id", "dead", "no"), Exit.FAILED),
        (Forbidden("not with this token"), Exit.REFUSED),
        (LeaseLost("id"), Exit.REFUSED),
        (RateLimited("token", 1.0), Exit.REFUSED),
        (SchemaTooNew("9999", "0001"), Exit.REFUSED),
        (EmbeddedError("no"), Exit.UNREACHABLE),
        (StoreUnavailable("PostgreSQL", "no"), Exit.UNREACHABLE),
        (PenstockError("something else"), Exit.FAILED),
        (NotFound("no"), Exit.NOT_FOUND),
        (LakeMissing("./lake"), Exit.NOT_FOUND),
        (PromiseUnknown("abc", []), Exit.NOT_FOUND),
        (LakeEdited("./lake", "by hand"), Exit.REFUSED),
        (NotALog("./queue", "notes.txt"), Exit.REFUSED),
        (ShardsDiffer("./queue", 1, 2), Exit.REFUSED),
        (LogCorrupt("./queue", "FORMAT", "no"), Exit.REFUSED),
        (LogGap("./queue", 1, 2), Exit.REFUSED),
        (LogTooNew("./queue", 2, 1), Exit.REFUSED),
        (LogStopped("./queue", 1, "no"), Exit.REFUSED),
        (StoreNotConditional("./queue", "no"), Exit.REFUSED),
        (StorageRefused("./queue", "no"), Exit.UNREACHABLE),
        (UnknownWakeups("no"), Exit.USAGE),
    ],
    ids=lambda given: given.code if isinstance(given, PenstockError) else None,
)
def test_each_refusal_has_its_code(error: PenstockError, code: Exit) -> None:
    assert exit_of(error) is code


def test_no_error_of_a_log_is_forgotten() -> None:
    raised = [one for one in vars(log_errors).values() if isclass(one) and issubclass(one, PenstockError)]
    found = {one.__name__: exit_of(PenstockError.from_code(one.code, "", {})) for one in raised}
    del found["PenstockError"]
    assert {name for name, code in found.items() if code not in (Exit.REFUSED, Exit.UNREACHABLE)} == set()


def test_an_unknown_command_is_2(run: Any) -> None:
    assert run("jobz").exit_code == 2
    assert "Did you mean 'jobs'?" in run("jobz").stderr
    assert run("jobs", "lst").exit_code == 2
