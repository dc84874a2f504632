"""A small server that speaks to obstore as Google Cloud Storage does, by its XML API, with the bad weather of `s3.py`.

As there, it is correct because it is one thread. What differs: a condition names a generation, which is the time of the
write in microseconds; every request shows a bearer token; what is absent cannot be deleted.

No emulator that can be installed does: of sixteen who create one object some let all sixteen win.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest

from support.s3 import BUCKET, S3, Answer, Held, Weather, error, etag, serving

TOKEN = "ya29.secret-of-the-test"


class GCS(S3):
    """The server. Who asks it needs `access_to()` in the environment."""

    def __init__(self, weather: Weather | None = None) -> None:
        super().__init__(weather)
        self.token = TOKEN
        """The one that counts; all others have expired."""
        self._latest = datetime.min.replace(tzinfo=UTC)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def url(self, prefix: str = "jobs") -> str:
        return f"gs://{BUCKET}/{prefix}?endpoint={self.endpoint.replace(':', '%3A').replace('/', '%2F')}"

    def _refusal(self, headers: dict[str, str]) -> Answer | None:
        if self.refuses == "AccessDenied":
            return error("403 Forbidden", "AccessDenied")
        if self.refuses is not None or headers.get("authorization") != f"Bearer {self.token}":
            # The same for a token that has expired, that is unknown, or that is missing; careless, it repeats what it got.
            return error("401 Unauthorized", "AuthenticationRequired", headers.get("authorization", ""))
        return None

    def _write(self, key: str, headers: dict[str, str], body: bytes) -> Answer:
        if "if-match" in headers or "if-none-match" in headers:
            return error("400 Bad Request", "NotImplemented")  # these are conditions for reading
        answer = super()._write(key, headers, body)
        if answer[0].startswith("200"):
            # No two writes have one generation, however quick they are.
            self._latest = max(self.objects[key][1], self._latest + timedelta(microseconds=1))
            self.objects[key] = (body, self._latest)
            return answer[0], self._named(self.objects[key]), b""
        return answer

    def _unmet(self, held: Held | None, headers: dict[str, str]) -> Answer | None:
        expected = headers.get("x-goog-if-generation-match")
        if expected is None or int(expected) == (0 if held is None else generation(held)):
            return None
        return error("412 Precondition Failed", "PreconditionFailed")

    def _named(self, held: Held) -> dict[str, str]:
        return {
            "ETag": etag(held[0]),
            "x-goog-generation": str(generation(held)),
            "x-goog-metageneration": "1",
            "x-goog-stored-content-length": str(len(held[0])),
        }

    def _delete(self, key: str) -> Answer:
        return super()._delete(key) if key in self.objects else error("404 Not Found", "NoSuchKey")


def generation(held: Held) -> int:
    return int(held[1].timestamp() * 1_000_000)


@contextmanager
def running_gcs(weather: Weather | None = None) -> Iterator[GCS]:
    """A server, and the environment that whoever asks it needs."""
    with serving(GCS(weather)) as server, pytest.MonkeyPatch.context() as environment:
        environment.setenv("GOOGLE_BEARER_TOKEN", server.token)
        yield server


def access_to(server: GCS) -> dict[str, str]:
    """What the environment says to a lake."""
    return {
        "GOOGLE_BASE_URL": server.endpoint,
        "GOOGLE_BEARER_TOKEN": server.token,
        "GOOGLE_ALLOW_HTTP": "true",
    }
