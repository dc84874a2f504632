"""`penstock doctor`: finds what is wrong, says what to do, and ends with 1 for a problem alone."""

from __future__ import annotations

import asyncio
import json
import os
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from penstock import Queue
from penstock.cli import doctor as command
from penstock.cli.exits import Exit
from penstock.core.promises import LAKE, Promise, encode
from penstock.core.registry import ALL_TENANTS, PutEntry
from penstock.stores.postgres import health
from penstock.stores.postgres.store import PostgresStore
from penstock.stores.wakeups.polling import NoWakeups
from support.postgres import server_url


def found(done: Any) -> dict[str, list[tuple[str, str]]]:
    findings: dict[str, list[tuple[str, str]]] = {}
    for finding in json.loads(done.stdout):
        text = f"{finding['message']} → {finding['advice']}"
        findings.setdefault(finding["check"], []).append((finding["level"], text))
    return findings


@pytest.fixture
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "OVERDUE_SECONDS", -1.0)


def test_all_is_well_but_what_the_tests_have_switched_off(run: Any) -> None:
    run("enqueue", "t")  # a job that has just come in is no trouble
    done = run("doctor", PENSTOCK_WAKEUPS="")
    assert done.exit_code == 0, done.stdout
    findings = found(done)
    assert {
        "python",
        "packages",
        "extras",
        "store",
        "clock",
        "schema",
        "postgresql",
        "queues",
        "schedules",
    } <= set(findings)
    assert findings["wake-ups"] == [("ok", "postgres: listening and sending → None")]
    troubled = {check for check, all_of_it in findings.items() for level, _ in all_of_it if level != "ok"}
    assert troubled == {"durability"}
    assert "synchronous_commit is off" in findings["durability"][0][1]


def test_reads_line_by_line(run: Any) -> None:
    out = run("doctor", "-o", "table").stdout
    assert [line.split()[0] for line in out.splitlines() if line[:1].strip()][:3] == ["ok", "ok", "ok"]
    assert "→ set synchronous_commit = on" in out


def test_a_queue_that_nobody_serves_is_named(run: Any, no_patience: None) -> None:
    run("enqueue", "t", "-q", "emails")
    [(level, text)] = found(run("doctor"))["queues"]
    assert level == "warning"
    assert "emails: 1 queued" in text
    assert "penstock worker" in text
    run("queues", "pause", "emails")
    [(_, text)] = found(run("doctor"))["queues"]
    assert "penstock queues resume emails" in text


def test_a_queue_with_a_job_that_runs_is_served_by_somebody(run: Any, ask: Any, no_patience: None) -> None:
    async def work(queue: Queue) -> None:
        await queue.enqueue_many([{"type": "t", "queue": "emails"}] * 2)
        await queue.lease("emails", worker="by hand")

    ask(work)
    assert found(run("doctor"))["queues"][0][0] == "ok"


def test_a_schedule_that_nobody_fires_is_a_problem(run: Any) -> None:
    async def put_off() -> None:
        connection = await asyncpg.connect(server_url())
        past = "to_jsonb(to_char(now() - interval '2 hours', 'YYYY-MM-DD\"T\"HH24:MI:SSTZH:TZM'))"
        await connection.execute(
            f"UPDATE penstock.schedule SET body = jsonb_set(body::jsonb, '{{next_fire_at}}', {past})::json"
        )
        await connection.close()

    run("schedules", "put", "morning", "--cron", "* * * * *", "--type", "t")
    asyncio.run(put_off())
    done = run("doctor")
    assert done.exit_code == 1
    [(level, text)] = found(done)["schedules"]
    assert level == "problem"
    assert "morning should have fired 2 h ago" in text
    assert "penstock scheduler" in text


@pytest.fixture
def pinned(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Somebody with a transaction open: its process id."""
    monkeypatch.setattr(health, "LONG_SECONDS", 0)
    with asyncio.Runner() as runner:
        connection = runner.run(asyncpg.connect(server_url(), server_settings={"application_name": "lunch"}))
        runner.run(connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM penstock.job"))
        yield connection.get_server_pid()
        runner.run(connection.close())


def test_who_keeps_dead_rows_from_being_removed_is_named(url: str, run: Any, pinned: int) -> None:
    lunch = [text for _, text in found(run("doctor"))["vacuum"] if "lunch" in text]
    assert len(lunch) == 1
    assert f"→ end it with SELECT pg_terminate_backend({pinned})" in lunch[0]


def test_wake_ups_that_do_not_work_are_a_warning(run: Any) -> None:
    done = run("doctor", PENSTOCK_WAKEUPS="postgresql://nobody@127.0.0.1:1/nowhere")
    assert found(done)["wake-ups"][0][0] == "warning"
    assert done.exit_code == 0


def test_a_clock_that_differs_is_a_warning(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "SKEW_SECONDS", -1.0)
    assert found(run("doctor"))["clock"][0][0] == "warning"


def test_a_store_that_refuses_is_a_problem_and_the_rest_is_told_all_the_same(run: Any) -> None:
    done = run("doctor", "--url", f"{server_url()}_of_dreams")
    assert done.exit_code == 1
    findings = found(done)
    assert findings["python"][0][0] == "ok"
    assert findings["store"][0][0] == "problem"


def test_without_any_store_none_is_made(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PENSTOCK_URL", raising=False)
    done = run("doctor", PENSTOCK_URL="")
    assert done.exit_code == 1
    assert "penstock dev" in found(done)["store"][0][1]
    assert list(tmp_path.iterdir()) == []


class TestALog:
    """In a folder or a bucket."""

    @pytest.fixture
    def folder(self, run: Any, tmp_path: Path) -> Path:
        folder = tmp_path / "queue"
        assert run("enqueue", "t", "--url", f"file:{folder}").exit_code == 0
        return folder

    def test_that_is_not_there_is_a_problem_and_not_made(self, run: Any, tmp_path: Path) -> None:
        done = run("doctor", "--url", f"file:{tmp_path}/quueue")
        assert done.exit_code == 1
        [(level, text)] = found(done)["store"]
        assert level == "problem"
        assert f"there is no log in {tmp_path}/quueue yet; look at its name" in text
        assert list(tmp_path.iterdir()) == []

    def test_that_may_be_written_is_fine(self, run: Any, folder: Path) -> None:
        done = run("doctor", "--url", f"file:{folder}")
        assert done.exit_code == 0
        assert found(done)["folder"] == [("ok", f"{folder} may be written → None")]

    @pytest.mark.parametrize("refusing", [".", "s00/log", "s00/log/00000000000000000001.log"])
    def test_that_may_not_be_written_is_a_problem(
        self, run: Any, folder: Path, refusing: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        named = folder / refusing
        assert named.exists()
        monkeypatch.setattr(
            os, "access", lambda path, mode: Path(path) != named
        )  # nothing is refused to root
        done = run("doctor", "--url", f"file:{folder}")
        assert done.exit_code == 1
        [(level, text)] = found(done)["folder"]
        assert level == "problem"
        assert text.startswith(f"{named} may not be written by ")
        assert f"→ give this user the right to write {folder} and all that is in it" in text


class TestLakes:
    LONG_AGO = datetime(2026, 1, 2, tzinfo=UTC)

    def promised(self, run: Any, **promised: Any) -> list[tuple[str, str]]:
        made = Promise(place="/lake", run=1, since=self.LONG_AGO, **promised)

        async def put() -> None:
            async with Queue(PostgresStore(server_url(), wakeups=NoWakeups())) as queue:
                await queue.store.put_entries(ALL_TENANTS, [PutEntry(LAKE, "abc", encode(made))])

        asyncio.run(put())
        return found(run("doctor")).get("lake", [])

    def test_one_that_has_not_run_holds_up_retention_until_it_is_forgotten(self, run: Any) -> None:
        [(level, text)] = self.promised(run, told_at=self.LONG_AGO, exported_until=self.LONG_AGO)
        assert level == "warning"
        assert "the lake in /lake has not run since 2026-01-02 00:00 UTC" in text
        assert "no job that ended after 2026-01-02 00:00 UTC leaves" in text
        assert "penstock lake run --lake /lake" in text
        assert "penstock lake forget abc" in text
        assert run("lake", "forget", "xyz").exit_code == Exit.NOT_FOUND
        assert run("lake", "forget").exit_code == 2
        done = run("lake", "forget", "abc")
        assert done.exit_code == 0, done.output
        assert "abc in /lake: the store waits for it no longer" in done.stdout
        assert "lake" not in found(run("doctor"))
        assert "no promise was held" in run("lake", "forget", "--all").stderr

    def test_one_that_came_to_no_end_or_is_in_doubt_is_told_of(self, run: Any) -> None:
        [(level, text)] = self.promised(run)
        assert (level, "was begun 2026-01-02 00:00 UTC and no run has come" in text) == ("warning", True)
        now = datetime.now(UTC)
        [(level, text)] = self.promised(
            run, told_at=now, exported_until=self.LONG_AGO, doubts=("2026-01-02",)
        )
        assert (level, "does not have what the store has of 2026-01-02" in text) == ("problem", True)
        [(level, text)] = self.promised(run, told_at=now, exported_until=now)
        assert (level, "has everything until" in text) == ("ok", True)
        elsewhere = {"feed": "f", "system": "s", "xid": 1}
        [(level, text)] = self.promised(run, told_at=now, exported_until=now, offset=elsewhere)
        assert (level, "that of another database, of which this one is a copy" in text) == ("warning", True)


def test_every_extra_is_looked_for() -> None:
    declared = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert set(command.EXTRAS) == set(declared["optional-dependencies"]) - {"all", "cli"}
