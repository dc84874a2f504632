"""Buckets (S3, GCS, Azure) through obstore, by its synchronous calls in threads of our own.

Its asynchronous ones can abort the interpreter when a program ends. It does not survive a fork, which `Threads`
notices. It repeats no write: an answer "exists already" to a repeated one may be about our own object.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import cache
from random import Random
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import msgspec
import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import AzureStore, GCSStore, S3Store

from penstock.core.errors import InvalidInput, StoreUnavailable
from penstock.stores.log.backings import Backing, Found, Objects, Tape, checked_key, checked_tape
from penstock.stores.log.backings.clocks import StoreClock
from penstock.stores.log.backings.counting import new_count
from penstock.stores.log.backings.numbered import ObjectTape
from penstock.stores.log.backings.probe import probe
from penstock.stores.log.backings.refusals import ABSENT, is_of_bucket, known_secrets, refusal, shown
from penstock.stores.log.backings.resolving import Put, create
from penstock.stores.log.backings.threads import Answer, Threads
from penstock.stores.log.errors import StorageGone, StorageRefused
from penstock.stores.log.options import NAMES

if TYPE_CHECKING:
    from obstore import PutMode, UpdateVersion
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

THREADS = 40
"""Thirty-two fetches at once, and room for a write beside them."""
DEADLINE_SECONDS = 30.0
REQUEST_SECONDS = 10.0
"""So long a request is waited for; one that moves much may take longer, as long as it moves."""
SLOWEST_BYTES_PER_SECOND = 128 * 1024
"""What a line is good for at least: what is written at that rate comes to its end."""
LONGEST_READ_SECONDS = 900.0
"""However steadily it moves."""
_NO_RETRIES: RetryConfig = {"max_retries": 0}
_RETRIES: RetryConfig = {"max_retries": 4, "retry_timeout": timedelta(seconds=15)}
_DELETED_AT_ONCE = 1000
LISTED_AT_ONCE = 1000


class BucketObjects(Objects):
    """Objects of a bucket below a prefix. `reading` may repeat its requests; `writing`, given how long one may take, must not."""

    def __init__(
        self,
        name: str,
        reading: ObjectStore,
        writing: Callable[[float], ObjectStore],
        *,
        secrets: Sequence[str] = (),
        no_store: bool = False,
    ) -> None:
        self._name, self._reading, self._writing = name, reading, cache(writing)
        self._writing(REQUEST_SECONDS)  # what is wrong with the credentials is told at once
        self._secrets = [secret for secret in secrets if len(secret) > 3]
        self._attributes = {"Cache-Control": "no-store"} if no_store else None
        self._threads = Threads(name, THREADS)
        self._choices = Random()
        self._clock = StoreClock(name, self._write_date, self._read_date)
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
        return await self._clock.now()

    async def close(self) -> None:
        await self._clock.close()
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
            deadline_seconds=DEADLINE_SECONDS + _write_seconds(len(data)) - REQUEST_SECONDS,
            choices=self._choices,
        )

    async def _write_date(self) -> str:
        """The store dates what is written to it: that is its clock, to the second."""
        key = f"clock/{secrets.token_hex(8)}"
        await self.create(key, b"")  # whatever the answers: it is there now, and was not when we began
        return key

    async def _read_date(self, key: str) -> datetime:
        try:
            found = await self.head(key)
        finally:
            with suppress(StoreUnavailable):  # what is left behind is empty, and nobody reads it
                await self.delete([key])
        if found is None:
            raise StoreUnavailable(self._name, "an object was gone right after it was written")
        return found.modified

    async def _run(self, function: Callable[..., Answer], *args: Any) -> Answer | None:
        """Its answer; None if the object is not there."""
        try:
            return await self._threads.run(function, *args)
        except ABSENT as error:
            if is_of_bucket(error):
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
            writing = self._writing(_write_seconds(len(data)))
            result = obstore.put(
                writing, key, data, mode=mode, use_multipart=False, attributes=self._attributes
            )
        except (AlreadyExistsError, PreconditionError):  # which of them it is differs from store to store
            return Put.REFUSED
        except ABSENT as error:
            if isinstance(mode, dict) and not is_of_bucket(error):
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
        except ABSENT as error:
            if is_of_bucket(error):
                raise
            for key in keys:  # one of them was absent, and the others may not have been looked at
                try:
                    obstore.delete(self._reading, key)
                except ABSENT:
                    pass

    def _refusal(self, error: Exception) -> StoreUnavailable:
        # Those of the environment may be others by now, and stores are made when they are needed.
        return refusal(self._name, error, [*self._secrets, *known_secrets()])


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
    """`s3://bucket/prefix?endpoint=…&region=…`, `gs://bucket/prefix?endpoint=…`, `az://container/prefix?account=…&endpoint=…`.

    Credentials come from where the providers' own tools look for them (AWS_*, GOOGLE_*, AZURE_*), or, but for gs://, from
    the URL, before an @. They appear in no error and no log. Google's are a key file (GOOGLE_APPLICATION_CREDENTIALS),
    a token (GOOGLE_BEARER_TOKEN), or whatever the machine is in Google's cloud.
    """
    parts = urlsplit(url)
    if not parts.hostname:
        raise InvalidInput(
            "url", f"name a bucket, as {parts.scheme}://bucket/prefix does", parts.scheme + "://"
        )
    if parts.scheme == "gs" and parts.username is not None:
        raise InvalidInput(
            "url", "carry no credentials; let GOOGLE_APPLICATION_CREDENTIALS name a key file", "gs://…@…"
        )
    prefix = parts.path.strip("/")
    name = f"{parts.scheme}://{_host(parts)}" + (f"/{prefix}" if prefix else "")
    secrets = [unquote(secret) for secret in (parts.username, parts.password) if secret]
    secrets += known_secrets()
    # How much there is to read is not known before; but whether more of it comes is.
    read_limits: ClientConfig = {
        "timeout": timedelta(seconds=LONGEST_READ_SECONDS),
        "read_timeout": timedelta(seconds=REQUEST_SECONDS),
    }
    reading = _store(parts, prefix, _RETRIES, read_limits)

    def writing(seconds: float) -> ObjectStore:
        return _store(parts, prefix, _NO_RETRIES, {"timeout": timedelta(seconds=seconds)})

    return BucketBacking(
        name, BucketObjects(name, reading, writing, secrets=secrets, no_store=parts.scheme == "gs")
    )


def _write_seconds(size: int) -> float:
    """How long a write may take. Doubled and doubled again, because each length needs connections of its own."""
    seconds = REQUEST_SECONDS
    while seconds * SLOWEST_BYTES_PER_SECOND < size:
        seconds *= 2
    return seconds


def _store(parts: SplitResult, prefix: str, retries: RetryConfig, limits: ClientConfig) -> ObjectStore:
    known = {"s3": {"endpoint", "region"}, "gs": {"endpoint"}, "az": {"endpoint", "account"}}[parts.scheme]
    options = dict(parse_qsl(parts.query))
    if unknown := sorted(options.keys() - known):
        raise InvalidInput("url", f"have no options but {', '.join([*sorted(known), *NAMES])}", unknown[0])
    endpoint = options.get("endpoint")
    client: ClientConfig = {
        **limits,
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
    try:
        store: ObjectStore = make(
            _host(parts), prefix=prefix or None, config=given, client_options=client, retry_config=retries
        )
    except BaseError as error:  # of an account that is not named, a key file that is none
        place = f"{parts.scheme}://{_host(parts)}"
        raise StorageRefused(place, shown(str(error), known_secrets())) from None
    except ValueError:  # of a prefix that no object can have
        raise InvalidInput("url", "have no empty part, . or .. in the prefix of its bucket", prefix) from None
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
