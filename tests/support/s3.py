"""A small server that speaks S3, correct because it is one thread, with as much bad weather as a test asks for.

    python tests/support/s3.py --put 40 150 --get 15 60     (milliseconds: median and 99th percentile)

As a program it prints its address and serves until its input is closed; for each line of it, it says how many requests
there were so far, by method.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
import threading
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from hashlib import md5
from random import Random
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

BUCKET = "queue"
FAULTS = ("500 before", "500 after", "503", "409", "cut before", "cut after", "late", "slow")


@dataclass
class Weather:
    """How the server behaves. Latencies are (median, 99th percentile) in seconds, lognormal."""

    put: tuple[float, float] = (0, 0)
    get: tuple[float, float] = (0, 0)
    faults: dict[str, float] = field(default_factory=dict)
    """How often which of FAULTS happens to a write."""
    late_seconds: float = 0.2
    slow_seconds: float = 0.2
    keeps_conditions: bool = True
    seed: int = 1


class S3:
    """The server: objects in memory, `requests` counted by method, `next` the faults of the writes to come."""

    def __init__(self, weather: Weather | None = None) -> None:
        self.weather = weather or Weather()
        self.objects: dict[str, tuple[bytes, datetime]] = {}
        self.buckets = {BUCKET}
        self.requests: Counter[str] = Counter()
        self.next: deque[str] = deque()
        self.refuses: str | None = None
        """An error code that every request is answered with, as if credentials had expired."""
        self.ahead = timedelta(0)
        """How far its clock is from this machine's."""
        self.landed_late = 0
        self.port = 0
        self._choices = Random(self.weather.seed)
        self._later: set[asyncio.Task[None]] = set()

    def url(self, prefix: str = "jobs") -> str:
        return f"s3://key:secret@{BUCKET}/{prefix}?endpoint=http%3A%2F%2F127.0.0.1%3A{self.port}&region=us-east-1"

    async def serve(self, started: threading.Event, stop: asyncio.Event) -> None:
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0, limit=1 << 20)
        self.port = server.sockets[0].getsockname()[1]
        started.set()
        await stop.wait()
        server.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(
            ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError
        ):  # the last: at the end
            while head := await reader.readuntil(b"\r\n\r\n"):
                line, *fields = head.decode("latin-1").rstrip().split("\r\n")
                method, target, _ = line.split(" ")
                headers = {
                    name.lower(): value.strip() for name, _, value in (one.partition(":") for one in fields)
                }
                if headers.get("expect") == "100-continue":
                    writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                answer = await self._answer(method, target, headers, body)
                if answer is None:
                    break
                status, more, content = answer
                shown = {
                    "Date": format_datetime(datetime.now(UTC), usegmt=True),
                    "Content-Length": str(len(content)),
                    **more,
                }
                writer.write(
                    f"HTTP/1.1 {status}\r\n".encode()
                    + "".join(f"{name}: {value}\r\n" for name, value in shown.items()).encode()
                    + b"\r\n"
                    + (b"" if method == "HEAD" else content)
                )
                await writer.drain()
        writer.close()

    async def _answer(
        self, method: str, target: str, headers: dict[str, str], body: bytes
    ) -> tuple[str, dict[str, str], bytes] | None:
        parts = urlsplit(target)
        bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        self.requests["LIST" if "list-type" in query else method] += 1
        await self._wait(self.weather.put if method == "PUT" else self.weather.get)
        if self.refuses is not None:
            return _error("403 Forbidden", self.refuses)
        if bucket not in self.buckets:
            return _error("404 Not Found", "NoSuchBucket")
        match method:
            case "PUT":
                return await self._put(key, headers, body)
            case "GET" | "HEAD" if key:
                return self._get(key, headers)
            case "GET":
                return self._list(query)
            case "DELETE":
                self.objects.pop(key, None)
                return "204 No Content", {}, b""
            case "POST" if "delete" in query:
                keys = [one.partition("</Key>")[0] for one in body.decode().split("<Key>")[1:]]
                for one in keys:
                    self.objects.pop(one, None)
                rows = "".join(f"<Deleted><Key>{one}</Key></Deleted>" for one in keys)
                return "200 OK", {}, f"<DeleteResult>{rows}</DeleteResult>".encode()
            case _:
                return _error("400 Bad Request", "NotImplemented")

    async def _put(
        self, key: str, headers: dict[str, str], body: bytes
    ) -> tuple[str, dict[str, str], bytes] | None:
        fault = self._fault()
        match fault:
            case "500 before":
                return _error("500 Internal Server Error", "InternalError")
            case "503":
                return _error("503 Slow Down", "SlowDown")
            case "409":
                return _error("409 Conflict", "ConditionalRequestConflict")
            case "cut before":
                return None
            case "late":
                task = asyncio.create_task(self._land_late(key, headers, body))
                self._later.add(task)
                task.add_done_callback(self._later.discard)
                return _error("500 Internal Server Error", "InternalError")
            case "slow":
                await asyncio.sleep(self.weather.slow_seconds)
        written = self._write(key, headers, body)
        match fault:
            case "500 after":
                return _error("500 Internal Server Error", "InternalError")
            case "cut after":
                return None
            case _:
                return written

    def _write(self, key: str, headers: dict[str, str], body: bytes) -> tuple[str, dict[str, str], bytes]:
        held = self.objects.get(key)
        if self.weather.keeps_conditions:
            if headers.get("if-none-match") == "*" and held is not None:
                return _error("412 Precondition Failed", "PreconditionFailed")
            if (expected := headers.get("if-match")) is not None:
                if held is None:
                    return _error("404 Not Found", "NoSuchKey")
                if expected != _etag(held[0]):
                    return _error("412 Precondition Failed", "PreconditionFailed")
        self.objects[key] = (body, datetime.now(UTC) + self.ahead)
        return "200 OK", {"ETag": _etag(body)}, b""

    def _get(self, key: str, headers: dict[str, str]) -> tuple[str, dict[str, str], bytes]:
        held = self.objects.get(key)
        if held is None:
            return _error("404 Not Found", "NoSuchKey")
        data, modified = held
        shown = {
            "ETag": _etag(data),
            "Last-Modified": format_datetime(modified, usegmt=True),
            "Content-Type": "application/octet-stream",
        }
        if given := headers.get("range"):
            first, _, last = given.removeprefix("bytes=").partition("-")
            start, stop = int(first), min(int(last or len(data)) + 1, len(data))
            shown["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
            return "206 Partial Content", shown, data[start:stop]
        return "200 OK", shown, data

    def _list(self, query: dict[str, str]) -> tuple[str, dict[str, str], bytes]:
        after = query.get("continuation-token") or query.get("start-after", "")
        prefix, most = query.get("prefix", ""), int(query.get("max-keys", 1000))
        keys = sorted(key for key in self.objects if key.startswith(prefix) and key > after)
        page = keys[:most]
        rows = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(self.objects[key][0])}</Size>"
            f"<ETag>{escape(_etag(self.objects[key][0]))}</ETag>"
            f"<LastModified>{self.objects[key][1]:%Y-%m-%dT%H:%M:%S.000Z}</LastModified></Contents>"
            for key in page
        )
        more = len(keys) > len(page)
        token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
        return (
            "200 OK",
            {"Content-Type": "application/xml"},
            f"<ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated><KeyCount>{len(page)}</KeyCount>"
            f"{token}{rows}</ListBucketResult>".encode(),
        )

    async def _land_late(self, key: str, headers: dict[str, str], body: bytes) -> None:
        await asyncio.sleep(self._choices.random() * self.weather.late_seconds)
        self.landed_late += self._write(key, headers, body)[0].startswith("200")

    def _fault(self) -> str | None:
        if self.next:
            return self.next.popleft()
        drawn = self._choices.random()
        for fault, share in self.weather.faults.items():
            drawn -= share
            if drawn < 0:
                return fault
        return None

    async def _wait(self, latency: tuple[float, float]) -> None:
        median, worst = latency
        if median:
            await asyncio.sleep(median * math.exp(self._choices.gauss(0, math.log(worst / median) / 2.326)))


def _error(status: str, code: str) -> tuple[str, dict[str, str], bytes]:
    return status, {"Content-Type": "application/xml"}, f"<Error><Code>{code}</Code></Error>".encode()


def _etag(data: bytes) -> str:
    return f'"{md5(data, usedforsecurity=False).hexdigest()}"'


@contextmanager
def running_s3(weather: Weather | None = None) -> Iterator[S3]:
    """A server in a thread of its own."""
    server = S3(weather)
    started = threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    def run() -> None:
        loop.run_until_complete(server.serve(started, stop))
        loop.run_until_complete(_cancel_the_rest())
        loop.close()

    thread = threading.Thread(target=run, name="s3")
    thread.start()
    started.wait()
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()


async def _cancel_the_rest() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--put", nargs=2, type=float, default=(0, 0))
    parser.add_argument("--get", nargs=2, type=float, default=(0, 0))
    given = parser.parse_args()
    weather = Weather(
        put=(given.put[0] / 1000, given.put[1] / 1000), get=(given.get[0] / 1000, given.get[1] / 1000)
    )
    with running_s3(weather) as server:
        print(server.url(), flush=True)
        for _ in sys.stdin:
            print(json.dumps(server.requests), flush=True)


if __name__ == "__main__":
    main()
