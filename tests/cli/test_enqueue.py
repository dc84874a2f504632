"""`penstock enqueue`: the id, the options, and waiting for the end."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from penstock import Job, Queue


def job(ask: Any, done: Result) -> Job:
    """The job whose id a command printed."""
    found: Job = ask(lambda queue: queue.get(done.stdout.strip()))
    return found


class TestEnqueue:
    def test_prints_the_id_alone_so_that_a_script_can_keep_it(self, run: Any, ask: Any) -> None:
        done = run(
            "enqueue", "email.send", '{"to": "ada"}', "--queue", "emails", "--priority", "7", "--key", "acme"
        )
        assert (done.exit_code, done.stderr) == (0, "")
        made = job(ask, done)
        assert (made.type, made.queue, made.payload, made.priority) == (
            "email.send",
            "emails",
            '{"to":"ada"}',
            7,
        )
        assert made.asked.key == "acme"

    def test_reads_the_payload_from_standard_input(self, run: Any, ask: Any) -> None:
        done = run("enqueue", "t", "-", input='["ü", null]')
        assert job(ask, done).payload == '["ü",null]'

    def test_null_is_a_payload_and_none_is_an_empty_object(self, run: Any, ask: Any) -> None:
        for given, kept in ((["null"], "null"), ([], "{}")):
            done = run("enqueue", "t", *given)
            assert job(ask, done).payload == kept

    def test_runs_later_by_a_delay_or_at_a_time_that_is_local_unless_it_says_otherwise(
        self, run: Any, ask: Any
    ) -> None:
        later = job(ask, run("enqueue", "t", "--delay", "1h30m"))
        assert later.run_at - later.created_at == timedelta(minutes=90)
        for text, at in (
            ("2030-01-31T09:00+01:00", datetime(2030, 1, 31, 8, tzinfo=UTC)),
            ("2030-01-31T09:00", datetime(2030, 1, 31, 9).astimezone(UTC)),
        ):
            assert job(ask, run("enqueue", "t", "--run-at", text)).run_at == at

    def test_says_when_another_job_stands_for_it(self, run: Any) -> None:
        first, second = (run("enqueue", "t", "--unique-key", "one") for _ in range(2))
        assert first.stdout == second.stdout
        assert "unique_key" in second.stderr
        assert (
            json.loads(run("enqueue", "t", "--unique-key", "one", "-o", "json").stdout)["duplicate"]
            == "unique_key"
        )

    def test_names_parents_and_headers(self, run: Any, ask: Any) -> None:
        parent = run("enqueue", "t").stdout.strip()
        done = run("enqueue", "t", "--parent", parent, "--header", "trace=1=2")
        made = job(ask, done)
        assert (made.asked.parents, made.asked.headers, made.status) == (
            (parent,),
            '{"trace":"1=2"}',
            "waiting",
        )

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (["t", '{"to": '], "is no JSON"),
            (["t", "--delay", "soon"], "is no duration"),
            (["t", "--run-at", "tomorrow"], "is no time"),
            (["t", "--header", "lonely"], "name=value"),
            (["t", "--priority", "99999"], "invalid_input"),
            (["a type with spaces"], "invalid_input"),
            (["t", "--run-at", "2030-01-01", "--delay", "1m"], "not be given together"),
            ([], "Missing argument 'TYPE'"),
        ],
        ids=str,
    )
    def test_refuses_wrong_input_with_2_and_says_what_is_wrong(
        self, run: Any, arguments: list[str], says: str
    ) -> None:
        done = run("enqueue", *arguments)
        assert (done.exit_code, done.stdout) == (2, "")
        assert says in done.stderr

    def test_says_in_its_help_and_in_the_readme_that_the_code_is_not_looked_at(self, run: Any) -> None:
        out = " ".join(run("enqueue", "--help").stdout.split())
        assert "The code of the handler is not looked at" in out
        readme = " ".join((Path(__file__).parents[2] / "README.md").read_text().split())
        assert "`penstock enqueue` does not look at the code" in readme

    def test_a_key_used_with_another_body_is_refused_with_4(self, run: Any) -> None:
        run("enqueue", "t", "1", "--idempotency-key", "k")
        done = run("enqueue", "t", "2", "--idempotency-key", "k")
        assert (done.exit_code, done.stdout) == (4, "")
        assert "idempotency_conflict" in done.stderr

    def test_is_in_the_tenant_asked_for(self, run: Any, ask: Any) -> None:
        id = run("enqueue", "t", PENSTOCK_TENANT="shop").stdout.strip()
        assert ask(lambda queue: queue.for_tenant("shop").get(id)).tenant == "shop"
        assert run("jobs", "show", id).exit_code == 3


async def ended(queue: Queue, key: str, *, error: str | None = None) -> None:
    """A job with this idempotency key that has ended: whoever enqueues it again waits no longer."""
    await queue.enqueue("t", idempotency_key=key)
    [leased] = await queue.lease(worker="w")
    await (queue.ack(leased, {"sum": 3}) if error is None else queue.nack(leased, error, retry=False))


class TestWait:
    def test_prints_the_result(self, run: Any, ask: Any) -> None:
        ask(lambda queue: ended(queue, "good"))
        done = run("enqueue", "t", "--idempotency-key", "good", "--wait")
        assert (done.exit_code, json.loads(done.stdout)) == (0, {"sum": 3})

    def test_of_a_job_that_failed_ends_with_1_and_its_error(self, run: Any, ask: Any) -> None:
        ask(lambda queue: ended(queue, "bad", error="ValueError: \x1b[31mno\nsecond line"))
        done = run("enqueue", "t", "--idempotency-key", "bad", "--wait", "5")
        assert (done.exit_code, done.stdout) == (1, "")
        assert "ended dead (refused)" in done.stderr
        assert "\\x1b[31mno\nsecond line" in done.stderr

    def test_of_a_job_that_takes_longer_ends_with_1_and_leaves_it_alone(self, run: Any, told: Any) -> None:
        done = run("enqueue", "t", "--wait", "0")
        assert (done.exit_code, done.stdout) == (1, "")
        assert "still queued" in done.stderr
        assert [job["status"] for job in told("jobs", "list")] == ["queued"]

    def test_says_at_once_when_no_worker_takes_its_queue(self, run: Any, ask: Any) -> None:
        done = run("enqueue", "t", "--queue", "emials", "--wait", "0")
        assert "no worker that shows itself takes jobs of the queue emials" in done.stderr
        ask(lambda queue: ended(queue, "good"))
        assert "no worker" not in run("enqueue", "t", "--idempotency-key", "good", "--wait").stderr

    def test_in_json_tells_the_whole_job(self, told: Any, ask: Any) -> None:
        ask(lambda queue: ended(queue, "good"))
        whole = told("enqueue", "t", "--idempotency-key", "good", "-o", "json", "--wait")
        assert (whole["status"], whole["result"], whole["attempts"]) == ("succeeded", {"sum": 3}, 1)
