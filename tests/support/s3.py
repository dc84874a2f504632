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
from typing import TypeVar
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

BUCKET = "queue"
Answer = tuple[str, dict[str, str], bytes]
"""Status, headers, content."""
Held = tuple[bytes, datetime]
"""An object, and when it was written."""
PART_BYTES = 1 << 15
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
    bytes_per_second: float = 0
    """How much the line lets through, each way; 0: as much as there is."""
    keeps_conditions: bool = True
    seed: int = 1


class S3:
    """The server: objects in memory, `requests` counted by method, `next` the faults of the writes to come."""

    def __init__(self, weather: Weather | None = None) -> None:
        self.weather = weather or Weather()
        self.objects: dict[str, Held] = {}
        self.buckets = {BUCKET}
        self.requests: Counter[str] = Counter()
        self.next: deque[str] = deque()
        self.refuses: str | None = None
        """An error code that every request is answered with, as if credentials had expired."""
        self.refuses_only: set[str] | None = None
        """By method; None: all of them."""
        self.refuses_with = ""
        """What it says beside code and message."""
        self.repeats = False
        """Whether its message repeats, carelessly, what it was shown."""
        self.ahead = timedelta(0)
        """How far its clock is from this machine's."""
        self.landed_late = 0
        self._parts: dict[str, dict[int, bytes]] = {}
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
                body = await self._body(reader, int(headers.get("content-length", 0)))
                answer = await self._answer(method, target, headers, body)
                if answer is None:
                    break
                status, more, content = answer
                shown = {
                    "Date": format_datetime(datetime.now(UTC), usegmt=True),
                    "Content-Length": str(len(content)),
                    **more,
                }
                await self._send(
                    writer,
                    f"HTTP/1.1 {status}\r\n".encode()
                    + "".join(f"{name}: {value}\r\n" for name, value in shown.items()).encode()
                    + b"\r\n"
                    + (b"" if method == "HEAD" else content),
                )
        writer.close()

    async def _body(self, reader: asyncio.StreamReader, length: int) -> bytes:
        if not self.weather.bytes_per_second:
            return await reader.readexactly(length)
        body = b""
        while len(body) < length:
            body += (part := await reader.readexactly(min(PART_BYTES, length - len(body))))
            await asyncio.sleep(len(part) / self.weather.bytes_per_second)
        return body

    async def _send(self, writer: asyncio.StreamWriter, answer: bytes) -> None:
        at_once = PART_BYTES if self.weather.bytes_per_second else len(answer)
        for start in range(0, len(answer), at_once):
            part = answer[start : start + at_once]
            if self.weather.bytes_per_second:
                await asyncio.sleep(len(part) / self.weather.bytes_per_second)
            writer.write(part)
            await writer.drain()

    async def _answer(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Answer | None:
        parts = urlsplit(target)
        bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        self.requests["LIST" if "list-type" in query else method] += 1
        await self._wait(self.weather.put if method == "PUT" else self.weather.get)
        is_meant = self.refuses_only is None or method in self.refuses_only
        if is_meant and (refusal := self._refusal(headers)) is not None:
            return refusal
        if bucket not in self.buckets:
            return error("404 Not Found", "NoSuchBucket")
        if "uploads" in query or "uploadId" in query:
            return self._in_parts(method, key, query, headers, body)
        match method:
            case "PUT":
                return await self._put(key, headers, body)
            case "GET" | "HEAD" if key:
                return self._get(key, headers)
            case "GET":
                return self._list(query)
            case "DELETE":
                return self._delete(key)
            case "POST" if "delete" in query:
                keys = [one.partition("</Key>")[0] for one in body.decode().split("<Key>")[1:]]
                for one in keys:
                    self.objects.pop(one, None)
                rows = "".join(f"<Deleted><Key>{one}</Key></Deleted>" for one in keys)
                return "200 OK", {}, f"<DeleteResult>{rows}</DeleteResult>".encode()
            case _:
                return error("400 Bad Request", "NotImplemented")

    def _refusal(self, headers: dict[str, str]) -> Answer | None:
        if self.refuses is None:
            return None
        said = headers.get("authorization", "") if self.repeats else ""
        return error("403 Forbidden", self.refuses, said, self.refuses_with)

    def _delete(self, key: str) -> Answer:
        self.objects.pop(key, None)
        return "204 No Content", {}, b""

    async def _put(self, key: str, headers: dict[str, str], body: bytes) -> Answer | None:
        fault = self._fault()
        match fault:
            case "500 before":
                return error("500 Internal Server Error", "InternalError")
            case "503":
                return error("503 Slow Down", "SlowDown")
            case "409":
                return error("409 Conflict", "ConditionalRequestConflict")
            case "cut before":
                return None
            case "late":
                task = asyncio.create_task(self._land_late(key, headers, body))
                self._later.add(task)
                task.add_done_callback(self._later.discard)
                return error("500 Internal Server Error", "InternalError")
            case "slow":
                await asyncio.sleep(self.weather.slow_seconds)
        written = self._write(key, headers, body)
        match fault:
            case "500 after":
                return error("500 Internal Server Error", "InternalError")
            case "cut after":
                return None
            case _:
                return written

    def _in_parts(
        self, method: str, key: str, query: dict[str, str], headers: dict[str, str], body: bytes
    ) -> Answer:
        """A large object: begun, sent in parts, and there once it is ended."""
        if "uploads" in query:
            name = str(len(self._parts))
            self._parts[name] = {}
            answer = (
                f"<InitiateMultipartUploadResult><UploadId>{name}</UploadId></InitiateMultipartUploadResult>"
            )
            return "200 OK", {}, answer.encode()
        parts = self._parts[query["uploadId"]]
        if method == "PUT":
            parts[int(query["partNumber"])] = body
            return "200 OK", {"ETag": etag(body)}, b""
        shown = self._write(key, headers, b"".join(parts[number] for number in sorted(parts)))[1]
        answer = (
            f"<CompleteMultipartUploadResult><ETag>{shown['ETag']}</ETag></CompleteMultipartUploadResult>"
        )
        return "200 OK", shown, answer.encode()

    def _write(self, key: str, headers: dict[str, str], body: bytes) -> Answer:
        held = self.objects.get(key)
        if self.weather.keeps_conditions and (unmet := self._unmet(held, headers)) is not None:
            return unmet
        self.objects[key] = (body, datetime.now(UTC) + self.ahead)
        return "200 OK", self._named(self.objects[key]), b""

    def _unmet(self, held: Held | None, headers: dict[str, str]) -> Answer | None:
        """The answer to a write whose condition does not hold."""
        if headers.get("if-none-match") == "*" and held is not None:
            return error("412 Precondition Failed", "PreconditionFailed")
        if (expected := headers.get("if-match")) is not None:
            if held is None:
                return error("404 Not Found", "NoSuchKey")
            if expected != etag(held[0]):
                return error("412 Precondition Failed", "PreconditionFailed")
        return None

    def _named(self, held: Held) -> dict[str, str]:
        """The headers that say which version this is."""
        return {"ETag": etag(held[0])}

    def _get(self, key: str, headers: dict[str, str]) -> Answer:
        held = self.objects.get(key)
        if held is None:
            return error("404 Not Found", "NoSuchKey")
        data, modified = held
        shown = {
            **self._named(held),
            "Last-Modified": format_datetime(modified, usegmt=True),
            "Content-Type": "application/octet-stream",
        }
        if given := headers.get("range"):
            first, _, last = given.removeprefix("bytes=").partition("-")
            start, stop = int(first), min(int(last or len(data)) + 1, len(data))
            shown["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
            return "206 Partial Content", shown, data[start:stop]
        return "200 OK", shown, data

    def _list(self, query: dict[str, str]) -> Answer:
        after = query.get("continuation-token") or query.get("start-after", "")
        prefix, most = query.get("prefix", ""), int(query.get("max-keys", 1000))
        keys = sorted(key for key in self.objects if key.startswith(prefix) and key > after)
        folders: set[str] = set()
        if delimiter := query.get("delimiter"):  # all on one page
            deep = [key for key in keys if delimiter in key[len(prefix) :]]
            folders = {prefix + key[len(prefix) :].partition(delimiter)[0] + delimiter for key in deep}
            keys = sorted(set(keys) - set(deep))
        page = keys[:most]
        rows = "".join(
            f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>"
            for folder in sorted(folders)
        ) + "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(self.objects[key][0])}</Size>"
            f"<ETag>{escape(etag(self.objects[key][0]))}</ETag>"
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


Server = TypeVar("Server", bound=S3)


def error(status: str, code: str, said: str = "", beside: str = "") -> Answer:
    """An answer as the services give it, on several lines."""
    text = f"<?xml version='1.0' encoding='UTF-8'?>\n<Error><Code>{code}</Code><Message>{said}</Message>{beside}</Error>"
    return status, {"Content-Type": "application/xml"}, text.encode()


def etag(data: bytes) -> str:
    return f'"{md5(data, usedforsecurity=False).hexdigest()}"'


@contextmanager
def running_s3(weather: Weather | None = None) -> Iterator[S3]:
    with serving(S3(weather)) as server:
        yield server


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    """A server in a thread of its own."""
    started = threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    def run() -> None:
        loop.run_until_complete(server.serve(started, stop))
        loop.run_until_complete(_cancel_the_rest())
        loop.close()

    thread = threading.Thread(target=run, name="bucket")
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
