"""Log-in of the dashboard: a cookie stands for a token, and is worth what the token is worth at the moment.

The cookie is a random id. The store keeps its digest and the digest of the token, never a secret: a revoked token ends its
sessions with it, and nothing in the page or the cookie lets anybody in elsewhere. Requests that change something must
come from the page itself: they carry a header that other sites cannot send, and name no other origin.
"""

from __future__ import annotations

import secrets
from time import monotonic
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request

from penstock import __version__
from penstock.access import Access, Scope, Token, digest_of
from penstock.core.codec import JsonText
from penstock.core.errors import EntryConflict, Forbidden, PenstockError, Unauthorized
from penstock.core.ports import Store
from penstock.core.registry import Audited, PutEntry
from penstock.server.operation import Call, Operation

KIND = "session"
CODE_KIND = "session-code"
"""Codes that open one session each, so that no token is ever in an address."""
COOKIE = "penstock_session"
GUARD = "penstock-page"
"""The header that the page sends and a form of another site cannot."""
SESSION_SECONDS = 7 * 86_400
CODE_SECONDS = 86_400
REMEMBER_SECONDS = 2.0
_MOST_REMEMBERED = 10_000
_SAFE = ("GET", "HEAD", "OPTIONS")


class _Kept(Struct, frozen=True):
    """What the entry of a session or a code holds."""

    token: str
    """The digest of the token that it stands for."""


class Sessions:
    """The sessions in a store. It remembers for a moment what it has looked up."""

    def __init__(self, store: Store, access: Access) -> None:
        self._store = store
        self._access = access
        self._known: dict[str, tuple[str, str, float]] = {}

    async def begin(self, secret: str) -> tuple[Token, str]:
        """A new session for a token's secret: the token, and what the cookie is to hold."""
        token = await self._access.check(secret)
        return token, await self._begun(token, digest_of(secret))

    async def begin_by_code(self, code: str) -> tuple[Token, str]:
        """A new session for a code, which is used up by it."""
        found = await self._store.entries(None, CODE_KIND, [digest_of(code)])
        if not found:
            raise Unauthorized("this code is not known: it was used, or is too old; log in with a token")
        kept = msgspec.json.decode(found[0].body, type=_Kept)
        used = PutEntry(CODE_KIND, found[0].name, None, version=found[0].version)
        [answer] = await self._store.put_entries(found[0].tenant, [used])
        if isinstance(answer, PenstockError):
            raise Unauthorized("this code was used a moment ago; log in with a token")
        token = await self._access.check_digest(kept.token)
        return token, await self._begun(token, kept.token)

    async def code(self, secret: str) -> str:
        """A code that opens one session for this token, once, within a day."""
        token = await self._access.check(secret)
        code = secrets.token_urlsafe(24)
        await self._put(token, CODE_KIND, code, digest_of(secret), CODE_SECONDS)
        return code

    async def check(self, request: Request) -> Token:
        """The token that a request's cookie stands for; refused where the request may come from elsewhere."""
        session = request.cookies.get(COOKIE)
        if not session or len(session) > 200:
            raise Unauthorized("no token was sent; send it as `Authorization: Bearer …`")
        if request.method not in _SAFE:
            from_this_page(request)
        digest = digest_of(session)
        tenant, token_digest, until = self._known.get(digest, ("", "", 0.0))
        if monotonic() >= until:
            tenant, token_digest = await self._looked_up(digest)
        token = await self._access.check_digest(token_digest)
        if token.tenant != tenant:
            raise Unauthorized("this session is not known; log in again")
        return token

    async def end(self, request: Request) -> None:
        """Log out; a session that is not there has ended already."""
        session = request.cookies.get(COOKIE)
        if not session:
            return
        from_this_page(request)
        digest = digest_of(session)
        self._known.pop(digest, None)
        for entry in await self._store.entries(None, KIND, [digest]):
            await self._store.put_entries(entry.tenant, [PutEntry(KIND, digest, None)])

    async def _looked_up(self, digest: str) -> tuple[str, str]:
        found = await self._store.entries(None, KIND, [digest])
        if not found:
            self._known.pop(digest, None)
            raise Unauthorized("this session has ended; log in again")
        kept = msgspec.json.decode(found[0].body, type=_Kept)
        if len(self._known) >= _MOST_REMEMBERED:
            self._known.clear()
        self._known[digest] = found[0].tenant, kept.token, monotonic() + REMEMBER_SECONDS
        return found[0].tenant, kept.token

    async def _begun(self, token: Token, token_digest: str) -> str:
        session = secrets.token_urlsafe(32)
        audit = Audited(token.id, "logged_in", f"token:{token.name}")
        await self._put(token, KIND, session, token_digest, SESSION_SECONDS, audit)
        return session

    async def _put(
        self, token: Token, kind: str, secret: str, token_digest: str, seconds: float, audit: Audited | None = None
    ) -> None:  # fmt: skip
        body = JsonText(msgspec.json.encode(_Kept(token_digest)).decode())
        put = PutEntry(kind, digest_of(secret), body, 0, seconds, audit)
        [answer] = await self._store.put_entries(token.tenant, [put])
        if isinstance(answer, PenstockError):
            raise EntryConflict(kind, token.id) from answer


def from_this_page(request: Request) -> None:
    """Forbidden, unless the request was sent by the page that this service served."""
    if GUARD not in request.headers:
        raise Forbidden(
            f"what a session changes must come from the page: send the header `{GUARD.title()}: 1`"
        )
    if request.headers.get("sec-fetch-site") == "same-origin":
        return
    origin = urlsplit(request.headers.get("origin", "")).netloc
    own = (request.headers.get("host"), request.headers.get("x-forwarded-host"))
    if not origin or origin not in own:
        raise Forbidden(f"what a session changes must come from this service's own page, not from {origin!r}")


# ── Over HTTP ─────────────────────────────────────────────────────────────────────────────────────

Secret = Annotated[str, Meta(min_length=1, max_length=512)]


class LoginRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A token, or a code that stands for one."""

    token: Secret | None = None
    code: Secret | None = None


class SessionAnswer(Struct, frozen=True):
    """Who is logged in, and what they may do."""

    name: str
    tenant: str
    """`*`: the page names the tenant with each request."""
    scopes: tuple[Scope, ...]
    version: str


async def log_in(call: Call) -> SessionAnswer:
    """Exchange a token for a cookie that stands for it."""
    from_this_page(call.request)
    sessions, body = call.service.sessions, call.body
    if body.code is not None:
        token, session = await sessions.begin_by_code(body.code)
    else:
        token, session = await sessions.begin(body.token or "")
    call.headers["Set-Cookie"] = _cookie(call.request, session, SESSION_SECONDS)
    call.headers["Cache-Control"] = "no-store"
    return _answer(token)


async def who(call: Call) -> SessionAnswer:
    """Who is logged in."""
    assert call.caller.token is not None
    call.headers["Cache-Control"] = "no-store"
    return _answer(call.caller.token)


async def log_out(call: Call) -> None:
    """End the session."""
    await call.service.sessions.end(call.request)
    call.headers["Set-Cookie"] = _cookie(call.request, "", 0)


def _answer(token: Token) -> SessionAnswer:
    return SessionAnswer(token.name, token.tenant, token.scopes, __version__)


def _cookie(request: Request, session: str, seconds: int) -> str:
    path = request.scope.get("root_path") or "/"
    # Whoever ends TLS in front of us says so; to believe it when it is not true makes the cookie stricter, no more.
    is_https = "https" in (request.url.scheme, request.headers.get("x-forwarded-proto"))
    secure = "; Secure" if is_https else ""
    return f"{COOKIE}={session}; Path={path}; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"


OPERATIONS = (
    Operation("POST", "/ui/session", log_in, "Log in", SessionAnswer, None, LoginRequest, tag="Dashboard"),
    Operation("GET", "/ui/session", who, "Say who is logged in", SessionAnswer, tuple(Scope), tag="Dashboard"),
    Operation("DELETE", "/ui/session", log_out, "Log out", None, None, status=204, tag="Dashboard"),
)  # fmt: skip
