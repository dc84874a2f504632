"""What goes wrong before a command gets to work: one line on stderr, a code that says which, never a traceback."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from penstock.cli.exits import Exit, exit_of
from penstock.core.errors import Forbidden, JobFailed, LeaseLost, PenstockError, RateLimited, StoreUnavailable
from penstock.stores.postgres.connected import Connected
from penstock.stores.postgres.embedded import EmbeddedError
from penstock.stores.postgres.migrate import SchemaTooNew
from support.postgres import server_url


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


def test_a_folder_that_becomes_a_store_is_told_once(run: Any, tmp_path: Path) -> None:
    url = f"file:{tmp_path}/queue?poll=1s"
    assert run("queues", "list", "--url", url).stderr == f"penstock: making a store in {tmp_path}/queue\n"
    assert run("queues", "list", "--url", url).stderr == ""
    (tmp_path / "notes.txt").touch()
    assert "making" not in run("queues", "list", "--url", f"file:{tmp_path}").stderr


@pytest.mark.parametrize("url", ["bogus://somewhere", "no url at all", "postgresql://host:many/"])
def test_a_url_that_names_no_store_is_2(run: Any, url: str) -> None:
    assert refused(run, url).exit_code == 2


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
    ],
)
def test_each_refusal_has_its_code(error: PenstockError, code: Exit) -> None:
    assert exit_of(error) is code


def test_an_unknown_command_is_2(run: Any) -> None:
    assert run("jobz").exit_code == 2
    assert "Did you mean 'jobs'?" in run("jobz").stderr
    assert run("jobs", "lst").exit_code == 2
