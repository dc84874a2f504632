"""`penstock queues`, and the settings as people type them."""

from __future__ import annotations

import json
from typing import Any

import click
import pytest

from penstock import Queue, Rate, Retry
from penstock.cli.settings import read_settings, told_setting
from penstock.core.settings import QueueSettings


async def busy(queue: Queue) -> None:
    await queue.enqueue_many([{"type": "t", "queue": "emails"}] * 3 + [{"type": "t", "queue": "reports"}])
    await queue.lease("emails", worker="w")


class TestQueues:
    def test_lists_what_is_in_each_state_and_what_is_paused(self, run: Any, told: Any, ask: Any) -> None:
        ask(busy)
        run("queues", "pause", "reports", "--reason", "month's end")
        emails, reports = told("queues", "list")
        assert (emails["counts"]["queued"], emails["counts"]["running"]) == (2, 1)
        assert emails["oldest_run_at"] is not None
        assert (emails["settings"]["paused"], reports["settings"]["paused"]) == (False, True)
        [title, *rows] = [line.split() for line in run("queues", "list", "-o", "table").stdout.splitlines()]
        assert title == ["queue", "queued", "oldest", "due", "running", "succeeded", "dead", "held"]
        assert [row[:3] for row in rows][1] == ["reports", "paused", "1"]

    def test_shows_one_with_its_settings_and_who_changed_them(self, run: Any, told: Any) -> None:
        run("queues", "set", "emails", "rate=100/60s", "--reason", "their limit")
        [change] = told("queues", "show", "emails")["history"]
        assert (change["verb"], change["reason"]) == ("configure", "their limit")
        out = run("queues", "show", "emails", "-o", "table").stdout
        assert "rate = 100/60s; because: their limit" in out

    def test_a_name_nobody_has_used_is_3_and_says_which_there_are(self, run: Any) -> None:
        run("enqueue", "t", "-q", "emails")
        done = run("queues", "show", "emials")
        assert done.exit_code == 3
        assert "there are emails" in done.stderr

    def test_says_of_a_name_nobody_has_used_that_it_is_new(self, run: Any) -> None:
        run("enqueue", "t", "-q", "emails")
        for arguments in (["pause", "emials"], ["set", "emails2", "fair=true"], ["resume", "emials3"]):
            done = run("queues", *arguments)
            assert done.exit_code == 0
            assert f"there was no queue {arguments[1]!r} until now; there are emails" in done.stderr
        assert run("queues", "pause", "emails", "emials").stderr == ""

    def test_pauses_and_resumes_several(self, run: Any, ask: Any) -> None:
        assert run("queues", "pause", "a", "b").stdout == "a is paused\nb is paused\n"
        assert ask(lambda queue: queue.queue("b")).settings.paused
        run("queues", "resume", "a", "b")
        assert not ask(lambda queue: queue.queue("b")).settings.paused

    def test_sets_some_and_leaves_the_rest(self, run: Any, told: Any) -> None:
        run("queues", "set", "emails", "max_concurrency=5", "fair=yes")
        settings = told("queues", "set", "emails", "max-concurrency=none", "lease_seconds=2m")["settings"]
        assert (settings["max_concurrency"], settings["fair"], settings["lease_seconds"]) == (None, True, 120)
        assert (
            "fair                     true"
            in run("queues", "set", "emails", "fair=true", "-o", "table").stdout
        )

    def test_every_setting_is_named_in_the_help(self, run: Any) -> None:
        out = run("queues", "set", "--help").stdout
        assert [name for name in QueueSettings.__struct_fields__ if f" {name}=" not in out] == []

    @pytest.mark.parametrize(
        ("setting", "says"),
        [
            ("speed=5", "there is no setting 'speed'"),
            ("max_concurrency", "name=value"),
            ("max_concurrency=many", "a whole number"),
            ("max_concurrency=0", "invalid_input"),
            ("rate=fast", "100/60s"),
            ("rate=5/s,brust=2", "burst="),
            ("retry=never", "fixed,base=30s"),
            ("retry=fixed", "fixed,base=30s"),
            ("retry=fixed,base=x", "base="),
            ("fair=perhaps", "true or false"),
            ("lease_seconds=long", "30s"),
            ("on_exhausted=explode", "invalid_input"),
        ],
    )
    def test_a_wrong_setting_is_2_says_how_it_goes_and_changes_nothing(
        self, run: Any, told: Any, setting: str, says: str
    ) -> None:
        done = run("queues", "set", "emails", setting)
        assert (done.exit_code, done.stdout) == (2, "")
        assert says in done.stderr
        assert told("queues", "list") == []


class TestSettings:
    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("rate=100/60s", Rate(100, 60)),
            ("rate=100/min,burst=20", Rate(100, 60, 20)),
            ("rate=5/s", Rate(5, 1)),
            ("rate=7", Rate(7, 1)),
            ("rate=none", None),
            ("retry=fixed,base=30s", Retry.fixed(30)),
            ("retry=linear,base=10,cap=5m", Retry.linear(10, cap=300)),
            ("retry=exponential", Retry.exponential()),
            ("retry=exponential,base=1s,factor=3,cap=1h,jitter=0.5", Retry.exponential(1, factor=3, cap=3600, jitter=0.5)),
            ("max_depth=100_000", 100_000),
            ("retention_seconds=30d", 30 * 86_400),
            ("paused=off", False),
        ],
    )  # fmt: skip
    def test_are_read(self, text: str, value: object) -> None:
        assert read_settings([text]) == {text.partition("=")[0]: value}

    def test_are_told_the_way_they_can_be_typed(self) -> None:
        for settings in (
            QueueSettings(),
            QueueSettings(
                True, 5, 1, Rate(100, 60, 20), Rate(5, 0.5), True, 8, Retry.linear(3), lease_seconds=90.0,
                retention_seconds=1.5,
            ),
        ):  # fmt: skip
            typed = [f"{name}={told_setting(getattr(settings, name))}" for name in settings.__struct_fields__]
            assert QueueSettings().changed(read_settings(typed)) == settings

    def test_of_no_name_are_refused(self) -> None:
        with pytest.raises(click.UsageError, match="there are paused, max_concurrency"):
            read_settings(["x=1"])


def test_json_of_a_pipe_is_one_line(run: Any) -> None:
    run("enqueue", "t")
    out = run("queues", "list").stdout
    assert out.count("\n") == 1
    json.loads(out)
