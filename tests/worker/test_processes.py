"""Handlers in processes of their own: what goes in, what comes out, and which process it is."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.core import bounds
from penstock.core.codec import JsonText
from penstock.core.commands import Parent
from penstock.core.job import JobId, Status
from penstock.core.retry import Retry
from penstock.worker.context import JobContext, current
from penstock.worker.execution import How
from penstock.worker.handlers import make_handler
from penstock.worker.processes import ProcessPool
from support import process_handlers as handlers
from support.processes import Started, exists, gone, leased, result, run


@pytest.fixture
async def pool() -> AsyncIterator[ProcessPool]:
    pool = ProcessPool(most=2)
    yield pool
    await pool.close()


class TestRun:
    async def test_gives_arguments_and_returns_the_result(self, pool: ProcessPool) -> None:
        assert await result(pool, handlers.add, a=40) == {"sum": 42}

    async def test_runs_async_handlers(self, pool: ProcessPool) -> None:
        assert await result(pool, handlers.add_later, a=1, on="2030-12-24") == "1 on 24.12.2030"

    async def test_runs_in_another_process(self, pool: ProcessPool) -> None:
        assert await result(pool, handlers.pid) != os.getpid()

    async def test_refuses_bad_arguments_as_in_process(self, pool: ProcessPool) -> None:
        ending = await run(pool, handlers.add, a="many")
        assert (ending.how, ending.retry) == (How.NACK, False)
        assert ending.error is not None
        assert ending.error.startswith("bad_arguments")

    async def test_tells_the_handler_of_its_job_and_its_parents(self, pool: ProcessPool) -> None:
        parents = (
            Parent(JobId("p"), Status.SUCCEEDED, JsonText("[1]")),
            Parent(JobId("q"), Status.DEAD, None),
        )
        job = leased({}, parents, headers=JsonText('{"trace":"abc"}'), retry=Retry.fixed(60))
        ending = await pool.run(handlers.about.handler, job)
        assert json.loads(ending.result or "") == {
            "id": "job",
            "attempt": 2,
            "headers": {"trace": "abc"},
            "parents": [["p", "succeeded", [1]], ["q", "dead", None]],
        }

    async def test_carries_the_largest_result_and_payload(self, pool: ProcessPool) -> None:
        most = bounds.RESULT_BYTES - 2  # the quotes
        assert await result(pool, handlers.letters, times=most) == "x" * most
        assert (
            await result(pool, handlers.length, text="y" * (bounds.PAYLOAD_BYTES - 100))
            == bounds.PAYLOAD_BYTES - 100
        )

    async def test_refuses_a_larger_result(self, pool: ProcessPool) -> None:
        ending = await run(pool, handlers.letters, times=bounds.RESULT_BYTES)
        assert ending.error is not None
        assert ending.error.startswith("bad_result")

    @pytest.mark.parametrize("handler", [handlers.fail, handlers.fail_later])
    async def test_tells_of_an_exception_with_its_traceback(
        self, pool: ProcessPool, handler: handlers.Decorated
    ) -> None:
        ending = await run(pool, handler)
        assert (ending.how, ending.retry) == (How.NACK, True)
        assert ending.error is not None
        assert ending.error.startswith("ValueError: no such thing\n\nTraceback")
        assert "process_handlers.py" in ending.error

    async def test_tells_of_an_exception_that_cannot_be_pickled(self, pool: ProcessPool) -> None:
        ending = await run(pool, handlers.fail_unpicklably)
        assert "Unpicklable: cannot be pickled" in (ending.error or "")

    @pytest.mark.parametrize(
        ("how", "expected"),
        [
            ("retry", (How.NACK, "busy", True, 7)),
            ("give up", (How.NACK, "hopeless", False, None)),
            ("snooze", (How.SNOOZE, None, True, 9)),
            ("discard", (How.DISCARD, "done already", True, None)),
        ],
    )
    async def test_ends_as_the_handler_says(
        self, pool: ProcessPool, how: str, expected: tuple[Any, ...]
    ) -> None:
        ending = await run(pool, handlers.end_by, how=how)
        assert (ending.how, ending.error, ending.retry, ending.delay_seconds) == expected

    @pytest.mark.parametrize("how", ["exit", "interrupt"])
    async def test_survives_what_would_end_a_program(self, pool: ProcessPool, how: str) -> None:
        before = await result(pool, handlers.pid)
        assert (await run(pool, handlers.end_by, how=how)).how is How.NACK
        assert await result(pool, handlers.pid) == before

    async def test_takes_an_async_handler_that_cancels_itself_for_failed(self, pool: ProcessPool) -> None:
        ending = await run(pool, handlers.end_by_cancel)
        assert ending.how is How.NACK
        assert "CancelledError" in (ending.error or "")


class TestProgress:
    async def test_is_told_in_the_event_loops_thread_and_the_last_value_is_never_lost(
        self, pool: ProcessPool
    ) -> None:
        told: list[Any] = []

        def report(value: Any) -> None:
            asyncio.get_running_loop()
            told.append(value["at"])

        await run(pool, handlers.count_to, report, most=5_000)
        assert told == sorted(told)
        assert told[-1] == 5_000
        assert len(told) < 1_000  # told now and then

    async def test_that_was_held_back_is_told_while_the_handler_goes_on(
        self, pool: ProcessPool, tmp_path: Path
    ) -> None:
        fifo = tmp_path / "fifo"
        os.mkfifo(fifo)
        started = Started(pool, handlers.tell_and_wait, fifo=str(fifo))
        while await started.reported() != "second":
            pass
        assert not started.task.done()
        fifo.write_bytes(b"go on")
        assert (await started.task).how is How.ACK

    async def test_that_is_not_json_fails_where_it_is_told(self, pool: ProcessPool) -> None:
        ending = await run(pool, handlers.progress_of_no_kind)
        assert "progress" in (ending.error or "")

    async def test_whose_reporting_fails_does_not_harm_the_job(
        self, pool: ProcessPool, caplog: pytest.LogCaptureFixture
    ) -> None:
        def report(value: Any) -> None:
            raise OSError("full")

        assert (await run(pool, handlers.count_to, report, most=1)).how is How.ACK
        assert "could not be told" in caplog.text


class TestLogs:
    async def test_are_kept_with_the_attempt_and_passed_on(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)  # before the child starts: it takes the worker's levels over
        jobs: list[JobContext | None] = []

        def keep_the_job(record: logging.LogRecord) -> bool:
            jobs.append(current.get())
            return True

        caplog.handler.addFilter(keep_the_job)
        pool = ProcessPool()
        ending = await run(pool, handlers.say, words=["one", "two"])
        await pool.close()
        lines = (ending.logs or "").splitlines()
        assert [line.split(" ", 2)[2] for line in lines] == [
            "INFO tests.handlers: said one",
            "INFO tests.handlers: said two",
        ]
        mine = [record for record in caplog.records if record.name == "tests.handlers"]
        assert [(record.levelname, record.getMessage(), record.funcName) for record in mine] == [
            ("INFO", "said one", "say"),
            ("INFO", "said two", "say"),
        ]
        assert mine[0].process != os.getpid()
        assert {job.id for job in jobs if job is not None} == {"job"}

    async def test_that_are_not_unicode_are_kept_too(self, pool: ProcessPool) -> None:
        ending = await run(pool, handlers.say_oddly)
        assert ending.how is How.ACK
        assert "a lone surrogate: \\ud800" in (ending.logs or "")

    async def test_are_passed_on_within_bounds(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)
        pool = ProcessPool()
        await run(pool, handlers.chatter, times=20_000)
        await pool.close()
        passed = sum(record.name == "tests.handlers" for record in caplog.records)
        said = [record.getMessage() for record in caplog.records if record.name == "penstock.worker.child"]
        left_out = sum(int(text.partition(" ")[0].replace(",", "")) for text in said)
        assert left_out > 0
        assert passed + left_out == 20_000

    async def test_said_just_before_a_crash_are_not_lost(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)
        pool = ProcessPool()
        ending = await run(pool, handlers.log_and_crash)
        await pool.close()
        assert (ending.logs or "").endswith("word 99")


class TestReuse:
    async def test_gives_the_next_job_of_any_handler_to_the_same_process(self, pool: ProcessPool) -> None:
        first = await result(pool, handlers.pid)
        await result(pool, handlers.add, a=1)
        assert await result(pool, handlers.pid) == first

    async def test_replaces_a_process_after_so_many_jobs(self, pool: ProcessPool) -> None:
        pids = [await result(pool, handlers.pid_twice) for _ in range(2)]
        assert await gone(pids[0])  # whether or not there is another job
        pids += [await result(pool, handlers.pid_twice) for _ in range(3)]
        assert pids[0] == pids[1] != pids[2] == pids[3] != pids[4]

    async def test_counts_the_jobs_of_other_handlers_too(self, pool: ProcessPool) -> None:
        others = [await result(pool, handlers.pid) for _ in range(2)]
        assert await result(pool, handlers.pid_twice) not in others

    async def test_keeps_processes_with_another_memory_cap_apart(self, pool: ProcessPool) -> None:
        free, capped = await result(pool, handlers.pid), await result(pool, handlers.pid_capped)
        assert free != capped
        assert await result(pool, handlers.pid) == free
        assert await result(pool, handlers.pid_capped) == capped

    async def test_makes_room_for_another_memory_cap(self) -> None:
        pool = ProcessPool(most=1)
        free = await result(pool, handlers.pid)
        assert await result(pool, handlers.pid_capped) != free
        assert not exists(free)
        await pool.close()

    async def test_leaves_no_signal_handler_and_no_alarm_to_the_next_job(self, pool: ProcessPool) -> None:
        await result(pool, handlers.catch_sigterm)
        await result(pool, handlers.set_alarm)
        assert all((await result(pool, handlers.signals)).values())
        assert await result(pool, handlers.alarm) == 0

    async def test_queues_up_for_a_place_in_order(self, tmp_path: Path) -> None:
        pool = ProcessPool(most=2)
        fifos = [tmp_path / str(number) for number in range(6)]
        for fifo in fifos:
            os.mkfifo(fifo)
        started = [Started(pool, handlers.wait_for, fifo=str(fifo)) for fifo in fifos]
        pids = [await started[0].reported(), await started[1].reported()]
        for number in range(2, 6):  # each that ends lets in the next in line
            fifos[number - 2].write_bytes(b"go on")
            pids.append(await started[number].reported())
        for fifo in fifos[4:]:
            fifo.write_bytes(b"go on")
        endings = [await run.task for run in started]
        assert all(ending.how is How.ACK for ending in endings)
        assert len(set(pids)) == 2
        await pool.close()


class TestInheritance:
    async def test_is_neither_of_signal_handlers_nor_of_blocked_signals(self) -> None:
        pool = ProcessPool()
        before = signal.signal(signal.SIGUSR1, lambda number, frame: None)
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
        try:
            assert all((await result(pool, handlers.signals)).values())
        finally:
            signal.signal(signal.SIGUSR1, before)
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            await pool.close()

    async def test_is_not_of_descriptors(self, pool: ProcessPool) -> None:
        high = 200
        os.dup2(0, high, inheritable=True)
        try:
            assert await result(pool, handlers.is_open, descriptor=high) is False
        finally:
            os.close(high)

    async def test_is_of_the_output(self, pool: ProcessPool, capfd: pytest.CaptureFixture[str]) -> None:
        await result(pool, handlers.print_out, text="seen")
        assert capfd.readouterr().out == "seen\n"


def local() -> Callable[[], None]:
    def inner() -> None: ...

    return inner


def shadowed() -> None: ...


original, shadowed = shadowed, lambda: None


class Greeter:
    def greet(self) -> None: ...


class TestCheck:
    @pytest.mark.parametrize(
        ("function", "why"),
        [
            (lambda: None, "a lambda"),
            (local(), "inside another function"),
            (original, "is something else|no imported module"),
            (Greeter().greet, "is something else|no imported module"),
        ],
    )
    async def test_refuses_what_another_process_cannot_find(
        self, pool: ProcessPool, function: Callable[..., Any], why: str
    ) -> None:
        handler = make_handler("test", function, runs="process")
        with pytest.raises(TypeError, match=f"cannot run in a process of its own: .*({why})"):
            ProcessPool.check(handler)
        with pytest.raises(TypeError, match="cannot run in a process"):
            await pool.run(handler, leased({}))

    def test_refuses_what_has_no_name(self) -> None:
        handler = make_handler("test", handlers.plain, runs="process")
        nameless = functools.partial(handlers.plain, word="x")
        object.__setattr__(handler, "function", nameless)
        with pytest.raises(TypeError, match="no name"):
            ProcessPool.check(handler)

    async def test_finds_decorated_functions_handlers_and_plain_functions(self, pool: ProcessPool) -> None:
        assert await result(pool, handlers.add, a=1) == {"sum": 3}
        assert await result(pool, handlers.bare, word="Penstock") == "penstock"
        plain = make_handler("another name", handlers.plain, runs="process")
        assert await result(pool, plain, word="Penstock") == "PENSTOCK"

    async def test_a_module_that_cannot_be_imported_there_fails_the_attempt_only(
        self, pool: ProcessPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = tmp_path / "works_once.py"
        source.write_text("def work() -> None: ...\n")
        monkeypatch.syspath_prepend(tmp_path)
        import works_once  # type: ignore[import-not-found]

        handler = make_handler("test", works_once.work, runs="process")
        source.write_text("raise RuntimeError('not here')\n")
        try:
            ending = await run(pool, handler)
        finally:
            del sys.modules["works_once"]
        assert ending.how is How.NACK
        assert ending.error is not None
        assert ending.error.startswith("RuntimeError: not here\n\nTraceback")
        assert "works_once.py" in ending.error
        assert await result(pool, handlers.add, a=1) == {"sum": 3}
