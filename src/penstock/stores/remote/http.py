"""Asks a service over HTTP, and asks again for as long as that is safe and its patience lasts."""

from __future__ import annotations

import asyncio
import re
import weakref
from io import BytesIO
from random import Random
from urllib.parse import urlsplit

import aiohttp
import msgspec
from msgspec import Struct

from penstock.core.errors import InvalidInput, PenstockError, StoreUnavailable
from penstock.stores.wakeups import Backoff

AGAIN_SECONDS = (0.05, 2.0)
ANSWER_SECONDS = 60.0
CONNECT_SECONDS = 5.0
REST_SECONDS = 30.0
"""How long an unused connection is kept: less than services, and what stands before them, keep theirs. A request on one
that is being closed would be lost, and nobody could say whether it was heard."""
LARGE_BYTES = 1_048_576
"""Larger bodies go out in pieces, with turns for others between them."""
DEFAULT_TENANT = "default"

_TOKEN = re.compile(r"[\x21-\x7e]{1,1024}\Z")


class Problem(Struct):
    """An error of a service, as far as it concerns us."""

    code: str
    detail: str
    facts: dict[str, object] | None = None


_problem = msgspec.json.Decoder(Problem)


class _Failed(Exception):
    """One try failed. `harmless` says that it certainly changed nothing, so that anything may be asked again."""

    def __init__(self, error: PenstockError, *, harmless: bool, wait_seconds: float = 0.0) -> None:
        super().__init__(error.message)
        self.error = error
        self.harmless = harmless
        self.wait_seconds = wait_seconds


class _Connector(aiohttp.TCPConnector):
    """Says nothing of connections that a program leaves open when it ends: the system closes them."""

    def __del__(self, _warnings: object = None) -> None: ...


class Http:
    """One service, seen from one event loop. The connections are opened when first needed, and reused.

    The token is in no error, no log line and no repr.
    """

    def __init__(self, url: str, token: str, patience_seconds: float, random: Random) -> None:
        self.url = _checked_url(url)
        self.name = f"the service at {self.url}"
        if _TOKEN.match(token) is None:
            raise InvalidInput(
                "the token", "be 1 to 1,024 visible ASCII characters", f"{len(token):,} characters"
            )
        self._token = token
        self._patience_seconds = patience_seconds
        self._random = random
        self._session: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        return f"Http({self.url!r})"

    async def ask(
        self, verb: str, body: bytes, *, tenant: str = DEFAULT_TENANT, repeatable: bool, patient: bool = True,
        seconds: float = ANSWER_SECONDS,
    ) -> bytes:  # fmt: skip
        """What the service answers to a verb of the store.

        What is not `repeatable` is sent again only if it certainly was not carried out: the service could not be
        reached at all, or had no allowance left for the caller.
        """
        clock = asyncio.get_running_loop().time
        until = clock() + (self._patience_seconds if patient else 0.0)
        for pause in Backoff(self._random, *AGAIN_SECONDS):
            try:
                return await self._once(verb, body, tenant, seconds)
            except _Failed as failed:
                wait = max(pause, failed.wait_seconds)
                if not (repeatable or failed.harmless) or clock() + wait > until:
                    raise failed.error from failed.__cause__
            await asyncio.sleep(wait)
        raise AssertionError("back-off never ends")

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _once(self, verb: str, body: bytes, tenant: str, seconds: float) -> bytes:
        headers = {} if tenant == DEFAULT_TENANT else {"Penstock-Tenant": tenant}
        data = body if len(body) <= LARGE_BYTES else BytesIO(body)
        try:
            async with (
                asyncio.timeout(seconds),
                self._opened().post(
                    f"{self.url}/v1/store/{verb}", data=data, headers=headers, allow_redirects=False
                ) as response,
            ):
                sent = await response.read()
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise _Failed(self._unavailable(error), harmless=True) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _Failed(self._unavailable(error), harmless=False) from error
        if response.status < 300:
            return sent
        told = self._told(response.status, sent)
        match response.status:
            case 429:
                raise _Failed(told, harmless=True, wait_seconds=_retry_after(response))
            case 502 | 503 | 504:
                raise _Failed(told, harmless=False, wait_seconds=_retry_after(response))
        raise told

    def _opened(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        if self._session is None or self._loop is not loop:
            self._loop = loop
            self._session = aiohttp.ClientSession(
                connector=_Connector(keepalive_timeout=REST_SECONDS),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={
                    "Authorization": f"Bearer {self._token}",
                    "Content-Type": "application/json",
                    "User-Agent": "penstock",
                },
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
            )
            weakref.finalize(self, self._session.detach)  # the same for the session
        return self._session

    def _unavailable(self, error: Exception) -> StoreUnavailable:
        return StoreUnavailable(self.name, str(error) or "no answer in time")

    def _told(self, status: int, sent: bytes) -> PenstockError:
        try:
            problem = _problem.decode(sent)
        except msgspec.MsgspecError:
            return StoreUnavailable(
                self.name, f"it answered with status {status}, and not as a Penstock service does"
            )
        return PenstockError.from_code(problem.code, problem.detail, problem.facts or {})


def _checked_url(url: str) -> str:
    """The URL to put paths behind. What may be secret in it is refused, not repeated."""
    parts = urlsplit(url)
    shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidInput("url", "be http://host… or https://host…", shown)
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise InvalidInput(
            "url", "have no user, password or query in it; the token goes into PENSTOCK_TOKEN", shown
        )
    return shown.rstrip("/")


def _retry_after(response: aiohttp.ClientResponse) -> float:
    try:
        return max(0.0, float(response.headers.get("Retry-After", "0")))
    except ValueError:  # a date: our own back-off is as good
        return 0.0
