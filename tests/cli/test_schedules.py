"""`penstock schedules`."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

PUT = [
    "schedules",
    "put",
    "morning",
    "--cron",
    "0 9 * * 1-5",
    "--tz",
    "Europe/Paris",
    "--type",
    "report.write",
]


class TestSchedules:
    def test_is_made_and_tells_its_next_five_runs(self, run: Any, told: Any) -> None:
        made = told(*PUT, "--payload", '{"kind": "daily"}', "--queue", "reports")
        assert (made["cron"], made["tz"]) == ("0 9 * * 1-5", "Europe/Paris")
        assert (made["job"]["payload"], made["job"]["queue"]) == ({"kind": "daily"}, "reports")
        runs = [datetime.fromisoformat(text) for text in made["next"]]
        assert len(runs) == 5
        assert runs == sorted(set(runs))
        out = run("schedules", "show", "morning", "-o", "table").stdout
        assert out.count("09:00 in Europe/Paris") == 5
        assert "report.write in reports" in out
        [line] = run("schedules", "list", "-o", "table").stdout.splitlines()[1:]
        assert line.split()[:7] == ["morning", "0", "9", "*", "*", "1-5", "Europe/Paris"]

    def test_changed_keeps_what_is_not_given(self, run: Any, told: Any) -> None:
        run(*PUT, "--payload", '{"kind": "daily"}', "--key", "acme", "--missed", "all")
        changed = told("schedules", "put", "morning", "--tz", "UTC", "--priority", "3")
        assert (changed["cron"], changed["tz"], changed["missed"]) == ("0 9 * * 1-5", "UTC", "all")
        job = changed["job"]
        assert (job["payload"], job["key"], job["priority"]) == ({"kind": "daily"}, "acme", 3)
        out = run("schedules", "show", "morning", "-o", "table").stdout
        assert "put  by" in out
        assert out.splitlines()[-1].rpartition("; ")[2].strip() == "tz = UTC"

    def test_runs_now_once_and_fires_as_before(self, run: Any, told: Any) -> None:
        before = told(*PUT, "--payload", "[1]")["next_fire_at"]
        id = run("schedules", "run", "morning").stdout.strip()
        job = told("jobs", "show", id)
        assert (job["schedule"], job["payload"], job["status"]) == ("morning", [1], "queued")
        assert [one["id"] for one in told("jobs", "list", "--schedule", "morning")] == [id]
        assert told("schedules", "show", "morning")["next_fire_at"] == before
        again = told("schedules", "run", "morning", "-o", "json")
        assert again["id"] != id
        assert again["duplicate"] is None

    def test_rests_and_goes_on(self, run: Any, told: Any) -> None:
        run(*PUT)
        assert run("schedules", "pause", "morning", "--reason", "holidays").stdout == "morning is paused\n"
        shown = told("schedules", "show", "morning")
        assert (shown["paused"], shown["next"]) == (True, [])
        assert shown["history"][-1]["reason"] == "holidays"
        assert "morning fires in" in run("schedules", "resume", "morning").stdout

    def test_is_dropped(self, run: Any, told: Any) -> None:
        run(*PUT)
        assert run("schedules", "drop", "morning").stdout == "morning is gone\n"
        assert told("schedules", "list") == []

    @pytest.mark.parametrize("verb", ["show", "pause", "resume", "run", "drop"])
    def test_that_is_not_there_is_3(self, run: Any, verb: str) -> None:
        done = run("schedules", verb, "evening")
        assert (done.exit_code, done.stdout) == (3, "")
        assert "schedule_not_found" in done.stderr

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (["--cron", "0 9 * * *"], "--cron and --type are needed"),
            (["--type", "t"], "--cron and --type are needed"),
            (["--cron", "61 * * * *", "--type", "t"], "invalid_input"),
            (["--cron", "* * * * *", "--type", "t", "--tz", "Mars/Olympus"], "time zone"),
            (["--cron", "* * * * *", "--type", "t", "--payload", "{"], "is no JSON"),
        ],
    )
    def test_that_is_wrong_is_2(self, run: Any, arguments: list[str], says: str) -> None:
        done = run("schedules", "put", "wrong", *arguments)
        assert (done.exit_code, done.stdout) == (2, "")
        assert says in done.stderr
