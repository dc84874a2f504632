"""From a URL to a Queue."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

from penstock.core.errors import InvalidInput, UnknownStore
from penstock.core.ports import Store
from penstock.queue import Queue
from penstock.stores.memory import MemoryStore
from penstock.stores.wakeups import from_url

KNOWN = "memory://, file:, s3://, gs://, az://, postgresql:// and http(s)://"


@dataclass(frozen=True, slots=True)
class Address:
    """Where a store is."""

    url: str
    migrates: bool = False
    """Whether its schema is ours to bring up to date: the embedded server is nobody else's."""
    close: Callable[[], None] = lambda: None
    """Let go of a server that was started for it."""


def locate(url: str | None, data_dir: Path = Path(".penstock")) -> Address:
    """The URL given, or PENSTOCK_URL, or a PostgreSQL of our own in `data_dir`, started if need be."""
    url = url or os.environ.get("PENSTOCK_URL")
    if url is not None:
        return Address(url)
    try:
        from penstock.stores.postgres.embedded import start
    except ModuleNotFoundError as error:
        raise UnknownStore(
            "the embedded server", f'{KNOWN}; it comes with pip install "penstock[embedded]" ({error})'
        ) from None
    server = start(data_dir)
    return Address(server.url, migrates=True, close=server.close)


def connect(
    url: str = "memory://", *, tenant: str = "default", actor: str = "app", migrates: bool = False
) -> Queue:
    """Open the store a URL names. `memory://` keeps jobs in this process, `postgresql://…` in a database.

    `file:///path` (or `file:./path`) is a log in a folder of this machine; `s3://bucket/prefix`, `gs://…` and `az://…` is
    one in a bucket. With `?shards=8` a new one is eight logs, so that queues do not wait for each other; `window=50ms` has
    writes wait for company, and `poll=30s` has a program at rest look more seldom (docs/log.md).
    `https://…` (or `http://…`) is a Penstock service; the variable PENSTOCK_TOKEN is the token to show there.
    `postgresql://…?pooled=true` is for a URL that leads to a transaction-mode pooler. The variable PENSTOCK_WAKEUPS says
    how workers are woken: `redis://…`, `none://` (they poll), or the `postgresql://…` of the database behind the pooler.
    With `migrates` the schema is brought up to date at the first call.
    """
    return Queue(_store(url, migrates), tenant=tenant, actor=actor)


def _store(url: str, migrates: bool) -> Store:
    match url.partition(":")[
        0
    ].lower():  # not urlsplit: what it says of a URL that is none may be the password
        case "memory":
            return MemoryStore()
        case "postgresql" | "postgres":
            try:
                from penstock.stores.postgres.store import PostgresStore
            except ModuleNotFoundError as error:
                raise UnknownStore(
                    url, f'{KNOWN}, postgresql:// with pip install "penstock[postgres]" ({error})'
                ) from None
            address, pooled = _without(url, "pooled")
            wakeups = os.environ.get("PENSTOCK_WAKEUPS") or address
            return PostgresStore(
                address, pooled=pooled == "true", wakeups=from_url(wakeups), migrates=migrates
            )
        case "http" | "https":
            return _remote(url)
        case "file" | "s3" | "gs" | "az" | "memory+log" as scheme:
            return _log(url, scheme)
        case _:
            raise UnknownStore(url, KNOWN)


SLOWLY, IN_A_BUCKET = {"file": 2.0, "memory+log": 1.0}, 8.0
"""How much more seldom idle programs ask of a log; in a bucket each request costs money."""


def _log(url: str, scheme: str) -> Store:
    from penstock.stores.log.backings import open_backing
    from penstock.stores.log.compacting import Tended
    from penstock.stores.log.options import read_options
    from penstock.stores.log.shards import ShardedLogStore

    url, options = read_options(url)
    try:
        backing = open_backing(url)
    except ModuleNotFoundError as error:
        raise UnknownStore(url, f'{KNOWN}, buckets with pip install "penstock[object]" ({error})') from None
    # A log in memory is seen by no other process.
    tend = None if scheme == "memory+log" else partial(Tended, url)
    return ShardedLogStore(
        backing,
        options.shards,
        cadence=SLOWLY.get(scheme, IN_A_BUCKET),
        tend=tend,
        window=options.window,
        poll=options.poll,
    )


def _remote(url: str) -> Store:
    try:
        from penstock.stores.remote.store import RemoteStore
    except ModuleNotFoundError as error:
        raise UnknownStore(url, f'{KNOWN}, the last with pip install "penstock[remote]" ({error})') from None
    token = os.environ.get("PENSTOCK_TOKEN")
    if not token:
        raise InvalidInput("PENSTOCK_TOKEN", "be set to a token that the service knows", token)
    return RemoteStore(url, token)


def _without(url: str, option: str) -> tuple[str, str | None]:
    """A URL without one option of its query, and that option's value."""
    address, _, query = url.partition("?")  # not urlunsplit: that makes file:./path absolute
    given = parse_qsl(query, keep_blank_values=True)
    rest = urlencode([(name, value) for name, value in given if name != option])
    return f"{address}?{rest}" if rest else address, dict(given).get(option)
