"""What Azure refuses, asked of Azurite: a wrong key, permissions that do not suffice, tokens that have expired, no container."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from urllib.parse import SplitResult, parse_qsl, urlsplit, urlunsplit
from uuid import uuid4

import pytest

from penstock.connecting import connect
from penstock.core.errors import StoreUnavailable
from penstock.stores.log.backings import Backing, open_backing
from penstock.stores.log.errors import StorageGone, StorageRefused
from support.buckets import AZURE_ACCOUNT, BUCKET, shared_access

DAY = timedelta(days=1)
WRONG_KEY = "c2VjcmV0LXRoYXQtb3BlbnMtbm90aGluZw=="
Open = Callable[[str], Backing]


@pytest.fixture
def parts(azurite: str) -> SplitResult:
    """The URL of an empty place."""
    return urlsplit(azurite)._replace(path=f"/{uuid4()}")


@pytest.fixture
async def backing(parts: SplitResult) -> AsyncIterator[Backing]:
    """What whoever holds the account's key sees."""
    backing = open_backing(urlunsplit(parts))
    await backing.ready()
    await backing.tape("s00").append(b"one")
    yield backing
    await backing.close()


@asynccontextmanager
async def opened(parts: SplitResult, netloc: str) -> AsyncIterator[Backing]:
    backing = open_backing(urlunsplit(parts._replace(netloc=netloc)))
    yield backing
    await backing.close()


async def refused(attempt: Awaitable[object]) -> str:
    """What is said of it, which no credential is part of."""
    with pytest.raises(StorageRefused, match="check permissions and credentials") as raised:
        await attempt
    said = str(raised.value)
    assert raised.value.__cause__ is None
    assert "sig=" not in said
    assert "\n" not in said
    return said


async def test_a_wrong_key_is_told_without_it(backing: Backing, parts: SplitResult) -> None:
    async with opened(parts, f"{AZURE_ACCOUNT}:{WRONG_KEY}@{BUCKET}") as wrong:
        for attempt in (
            wrong.objects.create("new", b""),
            wrong.objects.get("PROBED"),
            wrong.objects.list(""),
            wrong.objects.delete(["PROBED"]),
        ):
            assert WRONG_KEY not in await refused(attempt)
    assert await backing.objects.get("PROBED") is not None


class TestSharedAccess:
    """Tokens that let their bearer do so much for so long, from the environment."""

    @pytest.fixture(autouse=True)
    def _environment(self, parts: SplitResult, monkeypatch: pytest.MonkeyPatch) -> None:
        self.netloc = f"{AZURE_ACCOUNT}@{BUCKET}"
        self.monkeypatch = monkeypatch

    def given(self, permissions: str, lasts: timedelta) -> str:
        token = shared_access(permissions, datetime.now(UTC) + lasts)
        self.monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", token)
        return dict(parse_qsl(token))["sig"]

    async def test_one_that_suffices_is_all_it_takes(self, backing: Backing, parts: SplitResult) -> None:
        self.given("rwdlc", DAY)
        async with opened(parts, self.netloc) as other:
            assert await other.tape("s00").append(b"two") == 2
        assert await backing.tape("s00").read(1) == [(2, b"two")]

    async def test_one_that_has_expired_is_told_and_it_goes_on_with_another(
        self, backing: Backing, parts: SplitResult
    ) -> None:
        secret = self.given("rwdlc", -DAY)
        async with opened(parts, self.netloc) as expired:
            for attempt in (expired.tape("s00").append(b"two"), expired.tape("s00").read(0)):
                assert secret not in await refused(attempt)
        self.given("rwdlc", DAY)
        async with opened(parts, self.netloc) as renewed:
            assert await renewed.tape("s00").append(b"two") == 2

    async def test_one_for_reading_reads_and_does_not_write(
        self, backing: Backing, parts: SplitResult
    ) -> None:
        secret = self.given("rl", DAY)
        async with opened(parts, self.netloc) as reader:
            assert await reader.tape("s00").read(0) == [(1, b"one")]
            assert secret not in await refused(reader.tape("s00").append(b"two"))
            assert secret not in await refused(reader.objects.delete(["PROBED"]))
        assert await backing.tape("s00").append(b"two") == 2

    async def test_a_queue_says_so_too(self, parts: SplitResult) -> None:
        self.given("rwdlc", -DAY)
        async with connect(urlunsplit(parts._replace(netloc=self.netloc))) as queue:
            said = await refused(queue.enqueue("a"))
            assert await refused(queue.queues())
        assert "<Code>AuthorizationFailure</Code>" in said


async def test_a_container_that_is_not_there_is_told(parts: SplitResult) -> None:
    user = parts.netloc.rpartition("@")[0]
    async with opened(parts, f"{user}@no-such-container") as lost:
        for attempt in (lost.objects.create("new", b""), lost.objects.get("any"), lost.objects.list("")):
            with pytest.raises(StorageGone, match="check its name") as raised:
                await attempt
            assert isinstance(raised.value, StoreUnavailable)
