"""Processes that die, or must: killed, crashed, out of memory, cancelled, orphaned, closed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from penstock.worker import children
from penstock.worker.execution import How
from penstock.worker.processes import ProcessPool
from support import process_handlers as handlers
from support.processes import PATIENCE_SECONDS, Started, exists, gone, leased, result, run

TESTS = Path(__file__).parents[1]


@pytest.fixture(params=["descriptor", "thread"])
async def pool(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ProcessPool]:
    """A pool that is told of its children's ends by descriptors, as on Linux, and one that has a thread wait for each."""
    if request.param == "thread":
        monkeypatch.setattr(children, "_pidfd_open", None)
    pool = ProcessPool(most=2)
    yield pool
    await pool.close()


class TestDeath:
    async def test_by_kill_9_is_a_failure_and_the_next_job_has_a_new_process(self, pool: ProcessPool) -> None:
        started = Started(pool, handlers.wait)
        pid = await started.reported()
        os.kill(pid, signal.SIGKILL)
        ending = await started.task
        assert (ending.how, ending.retry) == (How.NACK, True)
        assert ending.error == "the process that ran it died: signal 9 (SIGKILL), perhaps out of memory"
        assert not exists(pid)  # nor is there a zombie
        assert await result(pool, handlers.pid) != pid

    @pytest.mark.parametrize(
        ("handler", "payload", "told"),
        [
            (handlers.die, {"number": int(signal.SIGSEGV)}, "signal 11 (SIGSEGV)"),
            (handlers.die, {"number": int(signal.SIGRTMIN) + 3}, f"signal {signal.SIGRTMIN + 3} (unknown)"),
            (handlers.leave, {"code": 3}, "exit code 3"),
            (handlers.leave, {"code": 0}, "exit code 0"),
        ],
    )
    async def test_is_told_by_its_signal_or_exit_code(
        self, pool: ProcessPool, handler: handlers.Decorated, payload: dict[str, Any], told: str
    ) -> None:
        ending = await run(pool, handler, **payload)
        assert (ending.how, ending.error) == (How.NACK, f"the process that ran it died: {told}")

    async def test_while_idle_harms_nobody(self, pool: ProcessPool) -> None:
        pid = await result(pool, handlers.pid)
        os.kill(pid, signal.SIGKILL)  # the pool cannot know yet: the next job is sent to a dead process
        assert await result(pool, handlers.pid) != pid

    async def test_before_the_first_job_is_a_failure(
        self, pool: ProcessPool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(children, "BOOT", "raise SystemExit(7)  # {fd}")
            ending = await run(pool, handlers.pid)
        assert (ending.how, ending.error) == (How.NACK, "the process that was to run it died: exit code 7")
        assert await result(pool, handlers.add, a=1) == {"sum": 3}

    async def test_of_the_interpreter_is_a_failure(
        self, pool: ProcessPool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(children, "_python", lambda: "/nowhere/python")
            ending = await run(pool, handlers.pid)
        assert ending.how is How.NACK
        assert "no process could be started for it" in (ending.error or "")
        assert await result(pool, handlers.add, a=1) == {"sum": 3}

    async def test_takes_what_the_handler_had_started_along(self, pool: ProcessPool) -> None:
        started = Started(pool, handlers.wait_with_company)
        pid, other = await started.reported()
        os.kill(pid, signal.SIGKILL)
        assert (await started.task).how is How.NACK
        assert await gone(other)

    @pytest.mark.parametrize(
        "handler",
        [
            handlers.write_into_every_descriptor,
            handlers.close_every_descriptor,
            handlers.close_every_descriptor_and_hog,
        ],
    )
    async def test_is_what_comes_of_meddling_with_the_line(
        self, pool: ProcessPool, handler: handlers.Decorated
    ) -> None:
        ending = await run(pool, handler)
        assert ending.how is How.NACK
        assert "the process that ran it died" in (ending.error or "")
        assert await result(pool, handlers.add, a=1) == {"sum": 3}

    @pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
    async def test_of_a_fork_is_its_own(self, pool: ProcessPool) -> None:
        before = await result(pool, handlers.pid)
        assert await result(pool, handlers.fork_and_return) == "the child"
        assert await result(pool, handlers.pid) == before


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS does not enforce limits on memory")
class TestMemoryCap:
    async def test_makes_what_goes_beyond_a_failure_of_the_attempt(self, pool: ProcessPool) -> None:
        ending = await run(pool, handlers.take_mb, mb=400)
        assert (ending.how, ending.retry) == (How.NACK, True)
        assert (ending.error or "").startswith("MemoryError")

    async def test_leaves_what_is_below_alone(self, pool: ProcessPool) -> None:
        assert await result(pool, handlers.take_mb, mb=100) == 100 * 1_048_576

    async def test_replaces_a_process_that_is_full(self, pool: ProcessPool) -> None:
        first = await result(pool, handlers.hoard_mb, mb=1)
        ending = await run(pool, handlers.hoard_mb, mb=400)
        assert (ending.error or "").startswith("MemoryError")
        assert await result(pool, handlers.hoard_mb, mb=1) != first

    async def test_is_not_for_handlers_without_one(self, pool: ProcessPool) -> None:
        most = 1_000_000
        await run(pool, handlers.take_mb, mb=400)
        assert len(await result(pool, handlers.letters, times=most)) == most


class TestCancel:
    @pytest.mark.parametrize("handler", [handlers.wait, handlers.spin, handlers.wait_stubbornly])
    async def test_kills_the_process_and_is_over_when_it_is_gone(
        self, pool: ProcessPool, handler: handlers.Decorated
    ) -> None:
        started = Started(pool, handler)
        pid = await started.reported()
        assert await started.cancelled()
        assert not exists(pid)
        assert await result(pool, handlers.add, a=1) == {"sum": 3}

    async def test_kills_what_the_handler_had_started_as_well(self, pool: ProcessPool) -> None:
        started = Started(pool, handlers.wait_with_company)
        _, other = await started.reported()
        assert await started.cancelled()
        assert await gone(other)

    async def test_twice_still_waits_until_the_process_is_gone(self, pool: ProcessPool) -> None:
        started = Started(pool, handlers.wait_stubbornly)
        pid = await started.reported()
        started.task.cancel()
        await asyncio.sleep(0)  # it waits for the process now
        assert await started.cancelled()
        assert not exists(pid)

    async def test_while_a_process_starts_leaves_none_behind(self, pool: ProcessPool) -> None:
        task = asyncio.create_task(pool.run(handlers.wait.handler, leased({})))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert pool.pids == set()

    async def test_while_waiting_for_a_place_gives_the_place_to_the_next(self, tmp_path: Path) -> None:
        pool = ProcessPool(most=1)
        fifo = tmp_path / "fifo"
        os.mkfifo(fifo)
        first = Started(pool, handlers.wait_for, fifo=str(fifo))
        await first.reported()
        second, third = Started(pool, handlers.wait), Started(pool, handlers.pid)
        await asyncio.sleep(0)
        assert await second.cancelled()
        fifo.write_bytes(b"go on")
        assert (await third.task).how is How.ACK
        await pool.close()


class TestClose:
    async def test_ends_busy_processes_and_gives_their_jobs_back(self) -> None:
        pool = ProcessPool(most=2)
        busy = Started(pool, handlers.wait_stubbornly)
        pids = {await busy.reported(), await result(pool, handlers.pid)}
        assert pool.pids == pids
        other = Started(pool, handlers.wait)
        await other.reported()
        waiting = Started(pool, handlers.pid)
        await asyncio.sleep(0)
        await pool.close()
        assert [(await run.task).how for run in (busy, other, waiting)] == [How.RELEASE] * 3
        assert not any(map(exists, pids))

    async def test_ends_idle_processes(self) -> None:
        pool = ProcessPool()
        pid = await result(pool, handlers.pid)
        await pool.close()
        assert not exists(pid)

    async def test_while_a_process_starts_leaves_none_behind(self) -> None:
        pool = ProcessPool()
        starting = Started(pool, handlers.wait)
        await asyncio.sleep(0)
        await pool.close()
        assert (await starting.task).how is How.RELEASE
        assert pool.pids == set()

    async def test_can_be_repeated_and_lets_nothing_start_afterwards(self) -> None:
        pool = ProcessPool()
        await pool.close()
        await pool.close()
        with pytest.raises(RuntimeError, match="closed"):
            await pool.run(handlers.pid.handler, leased({}))


WORKER = """
import asyncio
from penstock.worker import children
from penstock.worker.processes import ProcessPool
from support import process_handlers as handlers
from support.processes import Started, result

async def main():
    pool = ProcessPool(most=5)
    runs = [Started(pool, handler) for handler in (handlers.wait, handlers.spin, handlers.wait_stubbornly)]
    for run in runs:
        print(await run.reported(), flush=True)
    print(await result(pool, handlers.pid), flush=True)
    OTHERWISE
    await asyncio.gather(*(run.task for run in runs))

asyncio.run(main())
"""

MAIN = """
import asyncio, sys
from penstock.worker.handlers import make_handler
from penstock.worker.processes import ProcessPool
from support.processes import leased

def double(number: int) -> int:
    return number * 2

async def main():
    pool = ProcessPool()
    ending = await pool.run(make_handler("double", double, runs="process"), leased({"number": 21}))
    await pool.close()
    print(ending.result or ending.error)

GUARD
    asyncio.run(main())
"""


def python(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    return subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.PIPE, text=True, env=environment, **options
    )


class TestWorker:
    @pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's")
    async def test_that_is_killed_leaves_no_orphan(self) -> None:
        assert await self.orphans_gone(WORKER.replace("OTHERWISE", "await result(pool, handlers.hog)"), 5)

    async def test_that_is_killed_leaves_no_orphan_where_only_the_line_tells(self) -> None:
        untold = "import penstock.worker.child as child; child._die_with_the_worker = int; main(line)"
        patch = f"children.BOOT = children.BOOT.replace('main(line)', '{untold}')"
        assert await self.orphans_gone(
            WORKER.replace("    OTHERWISE\n", "").replace("async def main", f"{patch}\nasync def main"), 4
        )

    async def orphans_gone(self, code: str, children: int) -> bool:
        with python("-c", code) as worker:
            assert worker.stdout is not None
            pids = [int(await asyncio.to_thread(worker.stdout.readline)) for _ in range(children)]
            assert all(map(exists, pids))
            worker.kill()
            worker.stdout.close()
        return all([await gone(pid) for pid in pids])

    @pytest.mark.parametrize(
        ("guard", "expected"),
        [('if __name__ == "__main__":', "42"), ("if True:", "RuntimeError: a child process imports")],
    )
    async def test_may_define_handlers_in_its_main_module_as_spawn_allows(
        self, tmp_path: Path, guard: str, expected: str
    ) -> None:
        script = tmp_path / "program.py"
        script.write_text(MAIN.replace("GUARD", guard))
        with python(str(script)) as program:
            said, _ = await asyncio.to_thread(program.communicate, timeout=PATIENCE_SECONDS)
        assert said.startswith(expected)

    async def test_cannot_have_them_in_a_main_module_that_spawn_cannot_import(self) -> None:
        with python("-c", MAIN.replace("GUARD", "if True:"), stderr=subprocess.PIPE) as program:
            _, said = await asyncio.to_thread(program.communicate, timeout=PATIENCE_SECONDS)
        assert (
            "TypeError: double (double) cannot run in a process of its own: the program's main module" in said
        )
