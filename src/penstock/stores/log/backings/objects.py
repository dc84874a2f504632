"""Buckets (S3, GCS, Azure) through obstore, by its synchronous calls in threads of our own.

Its asynchronous ones can abort the interpreter when a program ends. It does not survive a fork, which `Threads`
notices. It repeats no write: an answer "exists already" to a repeated one may be about our own object.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from random import Random
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import msgspec
import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotFoundError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import AzureStore, GCSStore, S3Store

from penstock.core.errors import InvalidInput, StoreUnavailable
from penstock.stores.log.backings import Backing, Found, Objects, Tape, checked_key, checked_tape
from penstock.stores.log.backings.counting import new_count
from penstock.stores.log.backings.numbered import ObjectTape
from penstock.stores.log.backings.probe import probe
from penstock.stores.log.backings.resolving import Put, create
from penstock.stores.log.backings.threads import Answer, Threads
from penstock.stores.log.errors import StorageGone, StorageRefused

if TYPE_CHECKING:
    from obstore import PutMode, UpdateVersion
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

THREADS = 40
"""Thirty-two fetches at once, and room for a write beside them."""
DEADLINE_SECONDS = 30.0
REQUEST_SECONDS = 10
CLOCK_GOOD_FOR_SECONDS = 300.0
CLOCK_JUMP_SECONDS = 0.5
_NO_RETRIES: RetryConfig = {"max_retries": 0}
_RETRIES: RetryConfig = {"max_retries": 4, "retry_timeout": timedelta(seconds=15)}
_BUCKET_GONE = re.compile("NoSuchBucket|ContainerNotFound|bucket does not exist", re.IGNORECASE)
_REFUSED = re.compile("ExpiredToken|InvalidToken|InvalidAccessKeyId|SignatureDoesNotMatch|AccessDenied")
_SECRET = re.compile("^(AWS|AZURE|GOOGLE)_.*(SECRET|KEY|TOKEN|SAS)", re.IGNORECASE)
"""Variables whose values an error must not repeat."""
_DELETED_AT_ONCE = 1000
LISTED_AT_ONCE = 1000
_ABSENT = (NotFoundError, FileNotFoundError)
"""obstore declares the one and raises the other."""


class BucketObjects(Objects):
    """Objects of a bucket below a prefix. `reading` may repeat its requests, `writing` must not."""

    def __init__(
        self,
        name: str,
        reading: ObjectStore,
        writing: ObjectStore,
        *,
        secrets: Sequence[str] = (),
        no_store: bool = False,
    ) -> None:
        self._name, self._reading, self._writing = name, reading, writing
        self._secrets = [secret for secret in secrets if len(secret) > 3]
        self._attributes = {"Cache-Control": "no-store"} if no_store else None
        self._threads = Threads(name, THREADS)
        self._choices = Random()
        self._clock: _Clock | None = None
        self.requests = new_count()
        """What was sent. Reads that the library repeats by itself count once."""

    async def create(self, key: str, data: bytes) -> bool:
        checked_key(key)

        async def put() -> Put:
            self.requests["put"] += 1
            return await self._threads.run(self._put, key, data)

        return await self._resolved(put, lambda: self.get(key), key, data)

    async def get(self, key: str) -> bytes | None:
        found = await self.read(key)
        return None if found is None else found[0]

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        self.requests["get"] += 1
        found = await self._run(
            lambda: bytes(obstore.get_range(self._reading, checked_key(key), start=start, length=length))
        )
        if found is None:
            raise KeyError(key)
        return found

    async def head(self, key: str) -> Found | None:
        self.requests["get"] += 1
        meta = await self._run(lambda: obstore.head(self._reading, checked_key(key)))
        return None if meta is None else Found(key, meta["size"], meta["last_modified"])

    async def read(self, key: str) -> tuple[bytes, str] | None:
        self.requests["get"] += 1
        return await self._run(self._read, checked_key(key))

    async def replace(self, key: str, data: bytes, version: str | None) -> str | None:
        checked_key(key)
        written: list[str] = []

        async def swap() -> Put:
            self.requests["put"] += 1
            answer = await self._threads.run(self._conditional, key, data, _mode(version))
            if isinstance(answer, Put):
                return answer
            written.append(answer)
            return Put.WON

        async def changed_to() -> bytes | None:
            """What is there instead of the version given; None while that is still there."""
            found = await self.read(key)
            if (found and found[1]) == version:
                return None
            if found is not None and found[0] == data:
                written.append(found[1])
                return data
            return b"" if data else b"other"

        won = await self._resolved(swap, changed_to, key, data)
        return written[-1] if won else None

    async def list(self, prefix: str, *, after: str = "", most: int | None = None) -> list[Found]:
        found = await self._run(_listed, self._reading, prefix.strip("/"), after, most) or []
        self.requests["list"] += 1 + len(found) // LISTED_AT_ONCE
        return found

    async def delete(self, keys: Sequence[str]) -> None:
        paths = [checked_key(key) for key in keys]
        for start in range(0, len(paths), _DELETED_AT_ONCE):
            self.requests["delete"] += 1
            await self._run(self._delete, paths[start : start + _DELETED_AT_ONCE])

    async def now(self) -> datetime:
        if self._clock is None or not self._clock.is_good():
            self._clock = await self._look_at_clock()
        return self._clock.now()

    async def close(self) -> None:
        self._threads.close()

    async def _resolved(
        self,
        put: Callable[[], Awaitable[Put]],
        get: Callable[[], Awaitable[bytes | None]],
        key: str,
        data: bytes,
    ) -> bool:
        return await create(
            put,
            get,
            data,
            store=self._name,
            key=key,
            deadline_seconds=DEADLINE_SECONDS,
            choices=self._choices,
        )

    async def _look_at_clock(self) -> _Clock:
        """The store dates what is written to it: that is its clock, to the second."""
        key = f"clock/{secrets.token_hex(8)}"
        sent_at = datetime.now(UTC)
        self.requests["put"] += 1
        await self._run(lambda: obstore.put(self._reading, key, b"", use_multipart=False))
        answered_at = datetime.now(UTC)
        found = await self.head(key)
        await self.delete([key])
        if found is None:
            raise StoreUnavailable(self._name, "an object was gone right after it was written")
        return _Clock(sent_at, answered_at, found.modified)

    async def _run(self, function: Callable[..., Answer], *args: Any) -> Answer | None:
        """Its answer; None if the object is not there."""
        try:
            return await self._threads.run(function, *args)
        except _ABSENT as error:
            if _BUCKET_GONE.search(str(error)):
                raise self._refusal(error) from None
            return None
        except BaseError as error:
            raise self._refusal(error) from None

    # What follows runs in a thread.

    def _put(self, key: str, data: bytes) -> Put:
        written = self._conditional(key, data, "create")
        return written if isinstance(written, Put) else Put.WON

    def _conditional(self, key: str, data: bytes, mode: PutMode) -> str | Put:
        try:
            result = obstore.put(
                self._writing, key, data, mode=mode, use_multipart=False, attributes=self._attributes
            )
        except (AlreadyExistsError, PreconditionError):  # which of them it is differs from store to store
            return Put.REFUSED
        except _ABSENT as error:
            if isinstance(mode, dict) and not _BUCKET_GONE.search(str(error)):
                return Put.REFUSED  # what was to be replaced is not there
            raise self._refusal(error) from None
        except BaseError as error:
            refusal = self._refusal(error)
            if isinstance(refusal, StorageRefused | StorageGone):
                raise refusal from None
            return Put.UNKNOWN
        return _version(result["e_tag"], result["version"])

    def _read(self, key: str) -> tuple[bytes, str]:
        result = obstore.get(self._reading, key)
        return bytes(result.bytes()), _version(result.meta["e_tag"], result.meta["version"])

    def _delete(self, keys: Sequence[str]) -> None:
        try:
            obstore.delete(self._reading, keys)
        except _ABSENT as error:
            if _BUCKET_GONE.search(str(error)):
                raise
            for key in keys:  # one of them was absent, and the others may not have been looked at
                try:
                    obstore.delete(self._reading, key)
                except _ABSENT:
                    pass

    def _refusal(self, error: Exception) -> StoreUnavailable:
        text = str(error)
        reason = self._shown(text)
        if isinstance(error, PermissionDeniedError | UnauthenticatedError) or _REFUSED.search(text):
            return StorageRefused(self._name, reason)
        if isinstance(error, _ABSENT) or _BUCKET_GONE.search(text):
            return StorageGone(self._name, reason)
        return StoreUnavailable(self._name, reason)

    def _shown(self, text: str) -> str:
        """The first line of what obstore said, without what may be a credential."""
        line = text.strip().partition("\n")[0]
        line = re.sub(r"\?[^\s\"')]+", "?…", line)
        for secret in self._secrets:
            line = line.replace(secret, "…")
        return line if len(line) <= 300 else f"{line[:300]}…"


class _Clock:
    """How far a store's clock is from this machine's: its date is cut to the second, and came from between two times."""

    def __init__(self, sent_at: datetime, answered_at: datetime, dated: datetime) -> None:
        least = (dated - answered_at).total_seconds()
        most = (dated - sent_at).total_seconds() + (0.001 if dated.microsecond else 1.0)
        self._off = 0.0 if least <= 0 <= most else (least + most) / 2
        self._since = time.monotonic()
        self._wall_ahead = time.time() - self._since

    def is_good(self) -> bool:
        """Not for long, and not once this machine's clock was set."""
        now = time.monotonic()
        jump = abs(time.time() - now - self._wall_ahead)
        return now - self._since < CLOCK_GOOD_FOR_SECONDS and jump < CLOCK_JUMP_SECONDS

    def now(self) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=self._off)


class BucketBacking(Backing):
    """A prefix of a bucket."""

    def __init__(self, name: str, objects: BucketObjects) -> None:
        self._name, self._objects = name, objects
        self._tapes: dict[str, ObjectTape] = {}
        self._is_ready = False

    @property
    def name(self) -> str:
        return self._name

    @property
    def objects(self) -> Objects:
        return self._objects

    @property
    def requests(self) -> Counter[str]:
        return self._objects.requests

    def tape(self, name: str) -> Tape:
        if name not in self._tapes:
            self._tapes[name] = ObjectTape(
                self._objects, checked_tape(name), store=self._name, ready=self.ready
            )
        return self._tapes[name]

    async def ready(self) -> None:
        if not self._is_ready:
            await probe(self._objects, self._name)
            self._is_ready = True

    async def close(self) -> None:
        await self._objects.close()


def bucket(url: str) -> BucketBacking:
    """`s3://bucket/prefix?endpoint=…&region=…`, `gs://bucket/prefix`, `az://container/prefix?account=…`.

    Credentials come from where the providers' own tools look for them (AWS_*, GOOGLE_*, AZURE_*), or from the
    URL, before an @. They appear in no error and no log.
    """
    parts = urlsplit(url)
    if not parts.hostname:
        raise InvalidInput(
            "url", f"name a bucket, as {parts.scheme}://bucket/prefix does", parts.scheme + "://"
        )
    prefix = parts.path.strip("/")
    name = f"{parts.scheme}://{_host(parts)}" + (f"/{prefix}" if prefix else "")
    secrets = [unquote(secret) for secret in (parts.username, parts.password) if secret]
    secrets += [value for variable, value in os.environ.items() if _SECRET.search(variable)]
    reading, writing = (_store(parts, prefix, retries) for retries in (_RETRIES, _NO_RETRIES))
    return BucketBacking(
        name, BucketObjects(name, reading, writing, secrets=secrets, no_store=parts.scheme == "gs")
    )


def _store(parts: SplitResult, prefix: str, retries: RetryConfig) -> ObjectStore:
    known = {"s3": {"endpoint", "region"}, "gs": {"endpoint"}, "az": {"endpoint", "account"}}[parts.scheme]
    options = dict(parse_qsl(parts.query))
    if unknown := sorted(options.keys() - known):
        raise InvalidInput("url", f"have no options but {', '.join(sorted(known))}", unknown[0])
    endpoint = options.get("endpoint")
    client: ClientConfig = {
        "timeout": timedelta(seconds=REQUEST_SECONDS),
        "connect_timeout": timedelta(seconds=5),
        "allow_http": bool(endpoint and endpoint.startswith("http://")),
    }
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    config: dict[str, str]
    make: Any
    match parts.scheme:
        case "s3":
            make = S3Store
            config = {
                "endpoint": endpoint or "",
                "region": options.get("region", ""),
                "access_key_id": user,
                "secret_access_key": password,
            }
        case "gs":
            make, config = GCSStore, {"base_url": endpoint or ""}
        case _:
            make = AzureStore
            config = {
                "endpoint": endpoint or "",
                "account_name": options.get("account", user),
                "account_key": password,
            }
    given = {option: value for option, value in config.items() if value}
    store: ObjectStore = make(
        _host(parts), prefix=prefix or None, config=given, client_options=client, retry_config=retries
    )
    return store


def _host(parts: SplitResult) -> str:
    """The bucket as it was written: `hostname` would make it lower case."""
    return parts.netloc.rpartition("@")[2]


def _listed(store: ObjectStore, prefix: str, after: str, most: int | None) -> list[Found]:
    found: list[Found] = []
    for page in obstore.list(store, prefix or None, offset=after or None, chunk_size=LISTED_AT_ONCE):
        found += [Found(meta["path"], meta["size"], meta["last_modified"]) for meta in page]
        if most is not None and len(found) >= most:
            break
    return sorted((one for one in found if one.key > after), key=lambda one: one.key)[:most]


def _version(e_tag: str | None, version: str | None) -> str:
    return msgspec.json.encode((e_tag, version)).decode()


def _mode(version: str | None) -> PutMode:
    """What a store compares. A None among it would be refused."""
    if version is None:
        return "create"
    e_tag, number = msgspec.json.decode(version, type=tuple[str | None, str | None])
    update: UpdateVersion = {}
    if e_tag is not None:
        update["e_tag"] = e_tag
    if number is not None:
        update["version"] = number
    return update
