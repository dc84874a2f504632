"""Probes and metrics over real connections.

Requests are made by blocking code in the worker's own event loop, so each of them shows that a blocked loop answers too.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import re
import socket
import time
from collections.abc import AsyncIterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock import InvalidInput, Penstock, StoreUnavailable
from penstock.app.running import run_worker
from penstock.testing import memory_queue
from penstock.worker import listener, proc
from penstock.worker.listener import listening, parse_address
from penstock.worker.metrics import Metrics
from penstock.worker.worker import Stopped, Worker
from support.working import LONG, Work, until


class Reply(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    body: str

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def ask(address: str, path: str, method: str = "GET") -> Reply:
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=LONG)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return Reply(response.status, response.headers, response.read().decode())
    finally:
        connection.close()


def send_raw(address: str, *parts: bytes) -> bytes:
    """Everything that comes back, until the other side hangs up."""
    host, _, port = address.rpartition(":")
    received = b""
    with socket.create_connection((host, int(port)), timeout=LONG) as connection:
        try:
            for part in parts:
                connection.sendall(part)
            while part := connection.recv(65_536):
                received += part
        except ConnectionError:
            pass  # it hung up while we were still talking
    return received


@pytest.fixture
def worker() -> Worker:
    """One that does not run: its loops show themselves when the test says so."""
    return Worker(memory_queue(), {}, name="w1")


@pytest.fixture
async def address(worker: Worker) -> AsyncIterator[str]:
    async with listening(worker, "127.0.0.1:0") as address:
        assert address is not None
        yield address


class TestLivez:
    def test_says_that_the_worker_is_alive(self, address: str) -> None:
        reply = ask(address, "/livez")
        assert reply.status == 200
        assert reply.json["alive"] is True
        assert reply.json["late"] == []

    def test_says_which_loop_is_late(self, worker: Worker, address: str) -> None:
        worker.fed_at = time.monotonic() - 3_600
        reply = ask(address, "/livez")
        assert reply.status == 503
        assert (reply.json["alive"], reply.json["late"]) == (False, ["feeding"])
        assert reply.json["last_seen_seconds_ago"]["feeding"] >= 3_600
        worker._keeper.passed_at = worker.fed_at
        assert ask(address, "/livez").json["late"] == ["feeding", "keeper"]

    def test_lets_a_worker_that_stops_take_its_time(self, worker: Worker, address: str) -> None:
        worker.fed_at = time.monotonic() - 3_600
        worker.stop()
        assert ask(address, "/livez").status == 200

    async def test_a_store_that_is_away_does_not_make_it_dead(self, monkeypatch: pytest.MonkeyPatch) -> None:
        queue = memory_queue()
        away = asyncio.Event()

        async def lease(*_: object) -> Any:
            away.set()
            raise StoreUnavailable("the store", "it is away")

        monkeypatch.setattr(queue.store, "lease", lease)
        worker = Worker(queue, {})
        running = asyncio.create_task(worker.run())
        await asyncio.wait_for(away.wait(), LONG)
        worker.fed_at = time.monotonic() - 3_600

        async def is_alive() -> bool:
            return worker.is_alive()

        await until(is_alive)
        assert not worker.has_reached_store
        assert worker.metrics.lease_failures.value() >= 1
        worker.stop()
        assert await running is Stopped.DRAINED


class TestReadyz:
    async def test_follows_the_worker(
        self, app: Penstock, work: Work, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        started, may_end = asyncio.Event(), asyncio.Event()

        @app.job(name="a")
        async def a() -> None:
            started.set()
            await may_end.wait()

        async with work(listen="127.0.0.1:0") as running:
            [address] = re.findall(r"http://([\d.]+:\d+):", caplog.text)
            handle = await a.enqueue()
            await asyncio.wait_for(started.wait(), LONG)
            reply = ask(address, "/readyz")
            assert (reply.status, reply.json) == (200, {"ready": True})
            running.worker.stop()
            reply = ask(address, "/readyz")
            assert (reply.status, reply.json) == (503, {"ready": False, "reason": "it is stopping"})
            may_end.set()
            await handle.result(timeout=LONG)
            await asyncio.wait_for(running.task, LONG)
        with pytest.raises(ConnectionRefusedError):
            ask(address, "/readyz")

    def test_waits_for_the_store(self, address: str) -> None:
        reply = ask(address, "/readyz")
        assert reply.status == 503
        assert reply.json == {"ready": False, "reason": "the store was not reached yet"}


class TestRequests:
    def test_head_has_no_body(self, address: str) -> None:
        got, head = ask(address, "/livez"), ask(address, "/livez", "HEAD")
        assert head.status == 200
        assert head.body == ""
        assert abs(int(head.headers["Content-Length"]) - len(got.body)) < 5  # the ages differ
        assert head.headers["Connection"] == "close"

    @pytest.mark.parametrize(
        ("method", "path", "status"),
        [
            ("GET", "/", 404),
            ("GET", "/livez/", 404),
            ("GET", "/livez?verbose=1", 200),
            ("POST", "/livez", 405),
            ("POST", "/jobs", 404),
        ],
    )
    def test_anything_else_is_not_there(self, address: str, method: str, path: str, status: int) -> None:
        assert ask(address, path, method).status == status

    @pytest.mark.parametrize(
        "request_line",
        [b"nonsense", b"GET /livez", b"GET livez HTTP/1.1", b"get /livez HTTP/1.1", b"\x16\x03\x01\x02"],
    )
    def test_what_is_no_request_is_refused(self, address: str, request_line: bytes) -> None:
        assert send_raw(address, request_line + b"\r\n\r\n").startswith(b"HTTP/1.1 400 ")
        assert ask(address, "/livez").status == 200

    def test_a_huge_request_is_cut_off(self, address: str) -> None:
        line = b"X: " + b"x" * 1_000 + b"\r\n"
        reply = send_raw(address, b"GET /livez HTTP/1.1\r\n", *[line] * 5_000)
        assert b"200 OK" not in reply
        assert ask(address, "/livez").status == 200

    def test_a_slow_request_is_cut_off(self, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(listener, "REQUEST_SECONDS", 0.05)
        assert send_raw(address, b"GET /livez HTTP/1.1\r\n") == b""

    def test_many_that_sit_there_keep_no_probe_out(
        self, address: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(listener, "MOST_CONNECTIONS", 5)
        with sitting(address, 20):
            assert ask(address, "/livez").status == 200

    def test_half_a_request_is_refused(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=LONG) as connection:
            connection.sendall(b"GET /livez")
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(100).startswith(b"HTTP/1.1 400 ")

    async def test_ending_waits_for_nobody(self, worker: Worker) -> None:
        async with listening(worker, "127.0.0.1:0") as address:
            assert address is not None
            with sitting(address, 3) as connections:
                ask(address, "/livez")  # by then the others are connected as well
                stopped = address
        with pytest.raises(ConnectionRefusedError):
            ask(stopped, "/livez")
        assert len(connections) == 3


@contextmanager
def sitting(address: str, count: int) -> Any:
    """Connections that say half a word, and nothing more."""
    host, _, port = address.rpartition(":")
    connections = [socket.create_connection((host, int(port)), timeout=LONG) for _ in range(count)]
    try:
        for connection in connections:
            connection.sendall(b"GE")
        yield connections
    finally:
        for connection in connections:
            connection.close()


class TestAddresses:
    @pytest.mark.parametrize(
        ("text", "parsed"),
        [
            ("127.0.0.1:9100", ("127.0.0.1", 9100)),
            ("localhost:0", ("localhost", 0)),
            ("[::1]:9100", ("::1", 9100)),
            (":9100", (None, 9100)),
        ],
    )
    def test_are_understood(self, text: str, parsed: tuple[str | None, int]) -> None:
        assert parse_address(text) == parsed

    @pytest.mark.parametrize(
        "text", ["", "9100", "::1:9100", "host:http", "host:65536", "http://host:80", "host:"]
    )
    def test_or_refused(self, text: str) -> None:
        with pytest.raises(InvalidInput, match=re.escape("127.0.0.1:9100")):
            parse_address(text)

    async def test_all_addresses_of_this_machine(self, worker: Worker) -> None:
        async with listening(worker, ":0") as address:
            assert address is not None
            assert ask(f"127.0.0.1:{address.rpartition(':')[2]}", "/livez").status == 200

    async def test_ipv6(self, worker: Worker) -> None:
        if not has_ipv6():
            pytest.skip("this machine has no ::1")
        async with listening(worker, "[::1]:0") as address:
            assert address is not None
            assert address.startswith("[::1]:")
            assert ask(address, "/livez").status == 200

    async def test_one_that_is_taken_is_an_error_at_once(self, worker: Worker, address: str) -> None:
        with pytest.raises(OSError, match="in use"):
            async with listening(worker, address):
                pass

    async def test_none_is_no_listener(self, worker: Worker) -> None:
        async with listening(worker, None) as address:
            assert address is None

    async def test_the_log_says_where(self, worker: Worker, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.INFO):
            async with listening(worker, "127.0.0.1:0") as address:
                pass
        assert f"http://{address}" in caplog.text


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


class TestMetrics:
    def test_are_text_that_prometheus_reads(self, worker: Worker, address: str) -> None:
        worker.metrics.leased.add(1_234_567, queue='a"b\\c\nd')
        worker.metrics.run_seconds.observe((("type", "a"),), 0.2)
        reply = ask(address, "/metrics")
        assert reply.status == 200
        assert reply.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        families = {family.name: family for family in text_string_to_metric_families(reply.body)}
        [sample] = families["penstock_worker_jobs_leased"].samples
        assert (sample.labels, sample.value) == ({"queue": 'a"b\\c\nd'}, 1_234_567)
        buckets = {
            sample.labels["le"]: sample.value
            for sample in families["penstock_worker_run_seconds"].samples
            if sample.name.endswith("_bucket")
        }
        assert (buckets["0.1"], buckets["0.25"], buckets["+Inf"]) == (0, 1, 1)

    def test_are_named_as_is_the_custom(self, worker: Worker) -> None:
        worker.metrics.ended.add(queue="q", type="t", outcome="ack")
        text = worker.metrics.text()
        kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
        assert len(kinds) == text.count("# TYPE ") == text.count("# HELP "), "each is declared once"
        for name, kind in kinds.items():
            assert re.fullmatch(r"(penstock_worker|process)_[a-z_]+", name)
            assert name.endswith("_total") is (kind == "counter"), name

    def test_tell_how_the_loops_and_the_wakeups_are(self, worker: Worker) -> None:
        worker.fed_at = time.monotonic() - 100
        found = samples(worker.metrics)
        assert found["penstock_worker_feeding_age_seconds"] >= 100
        assert found["penstock_worker_keeper_age_seconds"] < 100
        assert found["penstock_worker_wakeups_healthy"] == 1
        assert found["penstock_worker_ready"] == 0
        assert found["penstock_worker_leases_lost_total"] == 0, "there before the first is lost"

    async def test_count_what_happened(self, app: Penstock, work: Work) -> None:
        @app.job(name="a")
        async def a() -> None:
            pass

        async with work() as running:
            for _ in range(3):
                await (await a.enqueue()).result(timeout=LONG)
            found = samples(running.worker.metrics)
        assert found["penstock_worker_attempts_total"] == 3
        assert found["penstock_worker_ready"] == 1
        assert found["penstock_worker_pickup_seconds_count"] == 3


def samples(metrics: Metrics) -> dict[str, float]:
    """Values by name; of those with labels, the last."""
    families = text_string_to_metric_families(metrics.text())
    return {sample.name: sample.value for family in families for sample in family.samples}


class TestTheProcess:
    def test_tells_what_it_uses(self) -> None:
        found = {name: value for name, _, value, _ in proc.readings()}
        assert found["process_cpu_seconds_total"] > 0
        if Path("/proc/self/stat").exists():
            assert 1_000_000 < found["process_resident_memory_bytes"] < found["process_virtual_memory_bytes"]
            assert found["process_open_fds"] >= 3
            assert 0 < time.time() - found["process_start_time_seconds"] < 86_400

    def test_tells_what_it_can_without_proc(self, tmp_path: Path) -> None:
        assert "process_cpu_seconds_total" in [name for name, *_ in proc.readings(tmp_path)]


async def test_a_wrong_address_stops_the_worker_before_it_starts(app: Penstock) -> None:
    with pytest.raises(InvalidInput, match="listen"):
        await run_worker(app, listen="everywhere", handle_signals=False)
