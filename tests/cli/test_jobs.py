"""`penstock jobs`: looking, and changing one or many."""

from __future__ import annotations

import csv
import io
import json
import re
from datetime import timedelta
from typing import Any

import pytest

from penstock import Queue


async def some(queue: Queue, number: int, /, **options: Any) -> list[str]:
    answers = await queue.enqueue_many([{"type": "email.send", "queue": "emails", **options}] * number)
    return [answer.id for answer in answers]  # type: ignore[union-attr]


async def dead(queue: Queue, /, error: str = "ValueError: no", **options: Any) -> str:
    [id] = await some(queue, 1, max_attempts=2, **options)
    for _ in range(2):
        [leased] = await queue.lease("emails", worker="host:1")
        await queue.nack(leased, error, retry_in=0)
    return id


class TestList:
    def test_newest_first_and_only_what_matches(self, told: Any, ask: Any) -> None:
        first, second = ask(lambda queue: some(queue, 2))
        other = ask(lambda queue: some(queue, 1, queue="reports", type="report.write", key="acme"))[0]
        assert [job["id"] for job in told("jobs", "list")] == [other, second, first]
        assert [job["id"] for job in told("jobs", "list", "--queue", "emails")] == [second, first]
        assert [job["id"] for job in told("jobs", "list", "-t", "report.write", "--key", "acme")] == [other]
        assert told("jobs", "list", "--status", "dead", "--status", "held") == []
        assert len(told("jobs", "list", "--since", "1h")) == 3
        assert told("jobs", "list", "--before", "1h") == []

    def test_goes_on_where_it_stopped(self, told: Any, ask: Any) -> None:
        ids = list(reversed(ask(lambda queue: some(queue, 5))))
        assert [job["id"] for job in told("jobs", "list", "--limit", "2")] == ids[:2]
        assert [job["id"] for job in told("jobs", "list", "--limit", "2", "--after", ids[1])] == ids[2:4]

    @pytest.mark.parametrize("output", ["json", "jsonl", "csv", "table"])
    def test_all_are_all_however_many_pages_that_takes(
        self, run: Any, ask: Any, output: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ids = set(ask(lambda queue: some(queue, 5)))
        monkeypatch.setattr("penstock.cli.jobs.MOST_LISTED", 2)
        out = run("jobs", "list", "--all", "-o", output).stdout
        match output:
            case "json":
                found = [job["id"] for job in json.loads(out)]
            case "jsonl":
                found = [json.loads(line)["id"] for line in out.splitlines()]
            case "csv":
                found = [row["id"] for row in csv.DictReader(io.StringIO(out))]
            case _:
                found = [line.split()[0] for line in out.splitlines()[1:]]
        assert len(found) == 5
        assert set(found) == ids

    def test_none_at_all_is_an_empty_list_to_programs_and_a_sentence_to_people(self, run: Any) -> None:
        assert json.loads(run("jobs", "list", "--all").stdout) == []
        done = run("jobs", "list", "-o", "table", "-q", "emails")
        assert (done.stdout, done.stderr) == ("", "no jobs in queue emails\n")

    def test_a_table_says_what_a_job_waits_for(self, run: Any, ask: Any) -> None:
        ask(lambda queue: some(queue, 1, delay=timedelta(hours=2)))
        ask(lambda queue: dead(queue))
        [title, failed, later] = run("jobs", "list", "-o", "table").stdout.splitlines()
        assert title.split() == ["id", "type", "queue", "status", "attempts", "when"]
        assert "dead" in failed
        assert "in 1 h 59 m" in later
        assert "ValueError: no" in run("jobs", "list", "-o", "wide").stdout

    @pytest.mark.parametrize(
        "wrong", [["--status", "done"], ["--limit", "0"], ["--after", "x"], ["-o", "xml"], ["--since", "x"]]
    )
    def test_wrong_usage_is_2(self, run: Any, wrong: list[str]) -> None:
        assert run("jobs", "list", *wrong).exit_code == 2


class TestShow:
    def test_tells_a_life_line_by_line(self, run: Any, ask: Any) -> None:
        id = ask(lambda queue: dead(queue, payload={"to": "ada"}, key="acme"))
        run("jobs", "redrive", id, "--reason", "the server is back")
        out = run("jobs", "show", id, "-o", "table").stdout
        told = [line.split() for line in out.splitlines()]
        assert ["status", "queued"] in told
        assert ["attempts", "0", "of", "2"] in told
        assert ["key", "acme"] in told
        assert '"to": "ada"' in out
        after = out.partition("timeline")[2]
        assert re.search(r"failed +attempt 1 after .*, by host:1", after)
        assert "again at once" in after
        assert "the job is dead" in after
        assert "the job is queued; because: the server is back" in after
        order = [after.index(word) for word in ("enqueued", "attempt 1", "attempt 2", "redrive")]
        assert order == sorted(order)

    def test_in_json_has_the_payload_and_the_history_but_no_token(self, run: Any, ask: Any) -> None:
        id = ask(lambda queue: dead(queue, payload={"to": "ada"}))
        run("jobs", "redrive", id)

        async def leased(queue: Queue) -> str:
            [one] = await queue.lease("emails", worker="host:2")
            return one.token

        token = ask(leased)
        out = run("jobs", "show", id).stdout
        job = json.loads(out)
        assert (job["payload"], job["worker"]) == ({"to": "ada"}, "host:2")
        assert [(one["kind"], one.get("outcome") or one["verb"]) for one in job["history"]] == [
            ("attempt", "failed"), ("attempt", "failed"), ("change", "redrive"),
        ]  # fmt: skip
        assert job["history"][2]["actor"].startswith("cli:")
        assert token not in out
        assert '"token"' not in out

    def test_nothing_in_a_job_can_steer_the_terminal(self, run: Any, ask: Any) -> None:
        id = ask(lambda queue: dead(queue, error="\x1b]0;owned\x07 [bold]no[/]", payload="\x9b31m"))
        for output in ("table", "json"):
            assert not {"\x1b", "\x07", "\x9b"} & set(
                run("jobs", "show", id, "-o", output).stdout.replace("\x9b", "")
            )
        assert "[bold]no[/]" in run("jobs", "show", id, "-o", "table").stdout
        assert "\x9b" not in run("jobs", "show", id, "-o", "table").stdout

    def test_of_no_job_is_3_and_of_no_id_2(self, run: Any) -> None:
        missing = run("jobs", "show", "0199aaaa-0000-7000-8000-000000000000")
        assert (missing.exit_code, missing.stdout) == (3, "")
        assert missing.stderr.count("\n") == 1
        assert "job_not_found" in missing.stderr
        assert run("jobs", "show", "17").exit_code == 2


class TestChange:
    def test_cancels_those_named(self, told: Any, ask: Any) -> None:
        ids = ask(lambda queue: some(queue, 2))
        assert [one["status"] for one in told("jobs", "cancel", *ids, "--reason", "wrong address")] == [
            "cancelled"
        ] * 2
        [change] = ask(lambda queue: queue.history(ids[0])).changes
        assert (change.verb, change.reason) == ("cancel", "wrong address")
        assert change.actor.startswith("cli:")

    def test_does_what_can_be_done_and_ends_with_the_worst_of_the_rest(self, run: Any, ask: Any) -> None:
        [good] = ask(lambda queue: some(queue, 1))
        ended = ask(lambda queue: dead(queue, priority=1))
        done = run("jobs", "cancel", good, ended, "0199aaaa-0000-7000-8000-000000000000")
        assert done.exit_code == 4
        assert [one["job_id"] for one in json.loads(done.stdout)] == [good]
        assert [line.rpartition(" ")[2] for line in done.stderr.splitlines()] == [
            "(not_allowed)",
            "(job_not_found)",
        ]

    def test_brings_those_named_back_with_what_failed_because_of_them(self, run: Any, ask: Any) -> None:
        id = ask(lambda queue: dead(queue))
        out = run("jobs", "redrive", id, "-o", "table").stdout
        assert id in out
        assert "queued" in out

    def test_a_filter_only_says_what_it_would_do(self, run: Any, told: Any, ask: Any) -> None:
        ask(lambda queue: some(queue, 3))
        done = run("jobs", "cancel", "--queue", "emails", "--type", "email.send", "-o", "table")
        assert done.exit_code == 0
        assert done.stdout == (
            "would cancel 3 jobs in state waiting, queued, running or held, in queue emails, of type email.send\n"
        )
        assert told("jobs", "cancel", "--queue", "emails")["matched"] == 3
        assert {job["status"] for job in told("jobs", "list")} == {"queued"}

    def test_a_filter_with_yes_does_it(self, run: Any, told: Any, ask: Any) -> None:
        id = ask(lambda queue: dead(queue))
        ask(lambda queue: some(queue, 2, queue="other"))
        done = run(
            "jobs",
            "redrive",
            "--status",
            "dead",
            "--queue",
            "emails",
            "--yes",
            "-o",
            "table",
            "--reason",
            "up again",
        )
        assert (done.exit_code, done.stdout) == (0, "redriven 1 of 1 job in state dead, in queue emails\n")
        assert told("jobs", "show", id)["history"][-1]["reason"] == "up again"
        assert told("jobs", "cancel", "--queue", "other", "--yes")["changed"] == 2
        assert {job["status"] for job in told("jobs", "list", "-q", "other")} == {"cancelled"}

    def test_how_far_it_has_come_is_told_page_by_page(
        self, ask: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        heard: list[int] = []
        ask(lambda queue: some(queue, 5))
        monkeypatch.setattr("penstock.core.bounds.MOST_LISTED", 2)
        ask(lambda queue: queue.cancel_matching(progress=heard.append, queue="emails"))
        assert heard == [2, 4, 5]

    def test_what_somebody_cancelled_comes_back_only_if_asked_for(self, told: Any, ask: Any) -> None:
        [id] = ask(lambda queue: some(queue, 1))
        told("jobs", "cancel", id)
        assert told("jobs", "redrive", "-q", "emails", "--yes")["changed"] == 0
        assert told("jobs", "redrive", "-q", "emails", "--status", "cancelled", "--yes")["changed"] == 1

    def test_refusals_of_many_are_told_and_end_with_4(self, run: Any, ask: Any) -> None:
        ask(lambda queue: dead(queue))
        done = run("jobs", "cancel", "--status", "dead", "--yes")
        assert done.exit_code == 4
        assert json.loads(done.stdout)["refused"][0]["code"] == "not_allowed"
        assert "not_allowed" in done.stderr

    @pytest.mark.parametrize(
        "arguments", [[], ["--yes"], ["0199aaaa-0000-7000-8000-000000000000", "-q", "emails"]]
    )
    def test_all_jobs_is_never_what_was_meant(self, run: Any, ask: Any, arguments: list[str]) -> None:
        ask(lambda queue: some(queue, 1))
        done = run("jobs", "cancel", *arguments)
        assert (done.exit_code, done.stdout) == (2, "")
        assert ask(lambda queue: queue.queue("emails")).counts["queued"] == 1
