"""`penstock insights`, on a store in which a run of the lake was published."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from penstock import Queue
from penstock.cli import insights
from penstock.cli.output import Column, table
from penstock.cli.plots import bar, sparkline
from support.insights import FINGERPRINT, REFUSED, published

QUESTIONS = ["failures", "capacity", "slo", "anomalies", "latency", "schedules", "usage", "flows"]


@pytest.fixture(autouse=True)
def run_of_the_lake(ask: Any) -> None:
    ask(lambda queue: published(queue.store))


async def some_dead(queue: Queue) -> None:
    await queue.enqueue_many([{"type": "email.send", "queue": "emails", "max_attempts": 1}] * 4)
    for number, held in enumerate(await queue.lease("emails", worker="w", limit=4)):
        await queue.nack(held, "ValueError: no" if number == 3 else REFUSED.replace("42", str(number)))


async def counts(queue: Queue) -> dict[str, int]:
    return {str(status): count for status, count in (await queue.queue("emails")).counts.items() if count}


class TestLooking:
    @pytest.mark.parametrize("name", QUESTIONS)
    def test_every_question_has_a_table_a_wide_one_and_json(self, run: Any, told: Any, name: str) -> None:
        answer = told("insights", name)
        assert (answer["name"], answer["as_of"]) == (name, "2026-03-02T12:00:00Z")
        assert answer["rows"]
        for output in ("table", "wide"):
            done = run("insights", name, "-o", output)
            assert done.exit_code == 0
            assert len(done.stdout.splitlines()) > len(answer["rows"])
            assert "as of 2026-03-0" in done.stderr

    def test_failures_are_told_with_what_to_name_them_by(self, run: Any) -> None:
        out = run("insights", "failures", "-o", "table").stdout
        assert FINGERPRINT in out
        assert "ConnectionError: <host> refused job <n>" in out
        assert "×2.5" in out

    def test_sample_jobs_below_each_other_leave_room_for_the_rest(self) -> None:
        sample = Column("sample jobs", lambda row: "\n".join(row), whole=True)
        screen = Console(width=60, file=StringIO())
        screen.print(table([Column("error", lambda row: "no route to host"), sample], [["a" * 36] * 5]))
        assert "no route to host" in screen.file.getvalue()  # type: ignore[attr-defined]

    def test_capacity_shows_the_week(self, run: Any) -> None:
        [*_, week] = run("insights", "capacity", "-o", "table").stdout.splitlines()
        name, load = week.split(maxsplit=1)
        assert name == "emails"
        assert load[0] == "▁"
        assert load[-1] == "█"
        assert len(load) == 84

    def test_latency_shows_three_days_whatever_the_limit(self, run: Any) -> None:
        out = run("insights", "latency", "--limit", "1", "-o", "table").stdout
        [*_, emails, reports] = out.splitlines()
        assert emails.split() == ["emails", "█"]
        assert reports.split() == ["reports"]

    @pytest.mark.parametrize("width", [60, 80, 120])
    def test_plots_are_no_wider_than_the_terminal(
        self, told: Any, width: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        capacity, latency = told("insights", "capacity"), told("insights", "latency")
        monkeypatch.setattr(insights, "console", lambda: Console(width=width))
        for plot, answer in ((insights._weeks, capacity), (insights._hours, latency)):
            screen = Console(width=width, file=StringIO())
            screen.print(plot(answer["rows"]))
            lines = screen.file.getvalue().splitlines()  # type: ignore[attr-defined]
            assert len(lines) == 1 + len({row["queue"] for row in answer["rows"] if row.get("load", True)})

    def test_can_be_narrowed_down(self, told: Any) -> None:
        assert {row["queue"] for row in told("insights", "latency")["rows"]} == {"emails", "reports"}
        assert {row["queue"] for row in told("insights", "latency", "--queue", "emails")["rows"]} == {
            "emails"
        }
        assert told("insights", "usage", "--type", "other")["rows"] == []

    def test_a_tenant_without_any_is_3_and_says_what_to_do(self, run: Any) -> None:
        done = run("insights", "slo", PENSTOCK_TENANT="other")
        assert done.exit_code == 3
        assert "penstock lake run" in done.stderr


class TestRedrive:
    def test_counts_first(self, run: Any, told: Any, ask: Any) -> None:
        ask(some_dead)
        assert told("insights", "redrive", FINGERPRINT) == {"dry_run": True, "matched": 3, "is_exact": True}
        assert run("insights", "redrive", FINGERPRINT, "-o", "table").stdout.startswith(
            "would redrive 3 jobs"
        )
        assert ask(counts) == {"dead": 4}

    def test_brings_the_jobs_of_that_failure_back(self, run: Any, ask: Any) -> None:
        ask(some_dead)
        done = run("insights", "redrive", FINGERPRINT, "--yes", "-o", "table")
        assert done.stdout == f"redriven 3 of 3 jobs of {FINGERPRINT}\n"
        assert ask(counts) == {"dead": 1, "queued": 3}

    def test_one_that_nobody_knows_is_3(self, run: Any) -> None:
        assert run("insights", "redrive", "0123456789abcdef", "--yes").exit_code == 3


class TestApply:
    def test_tells_first_and_sets_when_asked_to(self, run: Any, ask: Any) -> None:
        out = run("insights", "apply", "emails", "-o", "table").stdout
        assert "none → 20" in out
        assert "30 → 45" in out
        assert ask(lambda queue: queue.queue("emails")).settings.max_concurrency is None
        assert run("insights", "apply", "emails", "--yes").exit_code == 0
        settings = ask(lambda queue: queue.queue("emails")).settings
        assert (settings.max_concurrency, settings.lease_seconds) == (20, 45)


class TestPlots:
    def test_a_sparkline_goes_from_nothing_to_the_highest(self) -> None:
        assert sparkline([0, 1, 4, 8]) == " ▁▄█"
        assert sparkline([]) == ""
        assert sparkline([0, 0]) == "  "

    @pytest.mark.parametrize(
        ("share", "shown"), [(0, "    "), (0.5, "██  "), (1, "████"), (7, "████"), (0.28, "█▏  ")]
    )
    def test_a_bar_is_as_wide_as_it_is_asked_to_be(self, share: float, shown: str) -> None:
        assert bar(share, 4) == shown
