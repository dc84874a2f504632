"""Who may do what: tokens, their scopes, and how they are checked."""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import secrets
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from time import monotonic
from typing import TypeVar

import msgspec
from msgspec import Struct

from penstock.coalesce import Coalesce
from penstock.core import bounds
from penstock.core.codec import JsonText, decode
from penstock.core.errors import (
    Conflict,
    EntryConflict,
    InvalidInput,
    NotFound,
    PenstockError,
    TokenNotFound,
    Unauthorized,
)
from penstock.core.limits import Rate
from penstock.core.ports import Store
from penstock.core.registry import ALL_TENANTS, Audited, Entry, PutEntry

KIND = "token"
"""What tokens are called as entries and in the audit trail."""
PREFIX = "pst_"
"""How secrets begin that we make, so that scanners of code and logs can find them."""

_LEAST_CHARS, _MOST_CHARS = 16, 512
_SENDABLE = re.compile(r"[!-~]+")
_MOST_REMEMBERED = 10_000
_MOST_TRIES = 20
_SEEN_EVERY = timedelta(minutes=1)
_NOT_KNOWN = "this token is not known: it never was, has expired, or was revoked"

Value = TypeVar("Value")

logger = logging.getLogger("penstock.access")


class Scope(StrEnum):
    PRODUCE = "produce"
    """Enqueue jobs, and look at those whose id one knows."""
    WORK = "work"
    """Lease, settle and send heartbeats."""
    READ = "read"
    """Look at everything."""
    OPERATE = "operate"
    """Cancel, redrive, pause, set queues and schedules."""
    ADMIN = "admin"
    """All of it, and tokens."""


class Token(Struct, frozen=True):
    """A token as people may see it: never its secret."""

    id: str
    tenant: str
    """`*` for a token of the service itself, which names the tenant with each request."""
    name: str
    scopes: tuple[Scope, ...]
    created_at: datetime
    created_by: str
    expires_at: datetime | None = None
    last_seen_at: datetime | None = None
    rate: Rate | None = None
    replaced_by: str | None = None
    """The token that takes its place, while it still works beside it."""

    def allows(self, scope: Scope) -> bool:
        return scope in self.scopes or Scope.ADMIN in self.scopes


class _Found(Struct, frozen=True):
    """A token and the digest under which it was found."""

    digest: str
    token: Token


class Access:
    """The tokens in a store. One per process: it remembers for a moment what it has looked up."""

    def __init__(self, store: Store, *, remember_seconds: float = 2.0) -> None:
        self._store = store
        self._remember_seconds = remember_seconds
        # Bad tokens have a place of their own, so that a flood of them drives no good one out.
        self._good: dict[str, tuple[_Found | None, float]] = {}
        self._bad: dict[str, tuple[_Found | None, float]] = {}
        self._seen_again_at: dict[str, float] = {}
        self._changes = 0
        self._closed = False
        self._look_up = Coalesce(self._looked_up)
        self._note_seen = Coalesce(self._noted_seen)

    async def close(self) -> None:
        """Wait until it is written down when tokens were last seen; to be called before the store is closed."""
        self._closed = True
        await self._note_seen.close()

    # ── Checking ──────────────────────────────────────────────────────────────────────────────────

    async def check(self, secret: str) -> Token:
        """The token that a caller sent; Unauthorized if there is none such, or no longer."""
        if not secret:
            raise Unauthorized("no token was sent")
        if len(secret) > _MOST_CHARS:
            raise Unauthorized(_NOT_KNOWN)
        return await self.check_digest(digest_of(secret))

    async def check_digest(self, digest: str) -> Token:
        """The same, for whoever keeps a secret's digest: a session goes on for as long as its token does."""
        found, until = self._good.get(digest) or self._bad.get(digest) or (None, 0.0)
        if monotonic() >= until:
            found = await self._look_up(digest)
        if found is None or not hmac.compare_digest(found.digest, digest):
            raise Unauthorized(_NOT_KNOWN)
        await self._saw(found)
        return found.token

    async def _looked_up(self, digests: list[str]) -> list[_Found | None]:
        asked_at, changes, wanted = monotonic(), self._changes, list(dict.fromkeys(digests))
        found: dict[str, _Found] = {}
        for entry in await self._store.entries(None, KIND, wanted):
            token = _token(entry)
            first = found.get(entry.name)
            # A secret that people chose may be in use twice; then it is whoever's it was first.
            if first is None or token.created_at < first.token.created_at:
                found[entry.name] = _Found(entry.name, token)
        lasting = await self._how_long([one.token for one in found.values()])
        if changes == self._changes:  # else we have changed one meanwhile, perhaps one of these
            for digest in wanted:
                one = found.get(digest)
                seconds = self._remember_seconds
                if one is not None:
                    seconds = min(seconds, lasting.get(one.token.id, seconds))
                _keep(self._bad if one is None else self._good, digest, (one, asked_at + seconds))
                (self._good if one is None else self._bad).pop(digest, None)
        return [found.get(digest) for digest in digests]

    async def _how_long(self, tokens: Sequence[Token]) -> dict[str, float]:
        """For how many seconds each of those goes on that expire, by the store's time."""
        ends = {token.id: token.expires_at for token in tokens if token.expires_at is not None}
        if not ends:
            return {}
        now = await self._store.now()
        return {token_id: (at - now).total_seconds() for token_id, at in ends.items()}

    async def _saw(self, found: _Found) -> None:
        """See to it that it is written down when a token was last seen: now and then, and nobody waits for it."""
        now = monotonic()
        if self._closed or now < self._seen_again_at.get(found.digest, 0.0):
            return
        _keep(self._seen_again_at, found.digest, now + _SEEN_EVERY.total_seconds())
        noted = await self._note_seen.put((found.token.tenant, found.digest))
        noted.add_done_callback(lambda future: future.cancelled() or future.exception())

    async def _noted_seen(self, seen: list[tuple[str, str]]) -> list[None]:
        try:
            now = await self._store.now()
            for tenant in sorted({tenant for tenant, _ in seen}):
                digests = [digest for whose, digest in seen if whose == tenant]
                entries = await self._store.entries(tenant, KIND, digests)
                # Under its version, and skipped if that is another by now: a token that was revoked must stay so.
                puts = [_seen_at(entry, now) for entry in entries if _is_long_unseen(_token(entry), now)]
                if puts:
                    await self._store.put_entries(tenant, puts)
        except Exception as error:
            logger.warning("when %d tokens were last seen could not be written down: %s", len(seen), error)
        return [None] * len(seen)

    # ── Managing ──────────────────────────────────────────────────────────────────────────────────

    async def create(
        self,
        tenant: str,
        name: str,
        scopes: Iterable[str],
        *,
        actor: str,
        expires_in: float | None = None,
        rate: Rate | None = None,
        secret: str | None = None,
    ) -> tuple[Token, str]:
        """A new token and its secret, which nobody can look up later.

        Whoever gives a secret that is in use in this tenant gets its token, as it is: doing it twice is harmless.
        """
        _tenant(tenant)
        bounds.text("name", name, bounds.NAME_CHARS, 1)
        _actor(actor)
        given = _scopes(scopes)
        if expires_in is not None:
            bounds.number("expires_in", expires_in, 1, bounds.LONGEST_SECONDS)
        if secret is not None:
            _check_secret(secret)
            if (known := await self._known(tenant, secret)) is not None:
                return known, secret
        secret = secret or _new_secret()
        now = await self._store.now()
        until = None if expires_in is None else now + timedelta(seconds=expires_in)
        token = Token(_new_id(), tenant, name, given, now, actor, until, rate=rate)
        [answer] = await self._put(tenant, [_made(token, secret, actor)])
        if isinstance(answer, EntryConflict):  # somebody was first, or we were and did not hear of it
            known = await self._known(tenant, secret)
            if known is None:
                raise EntryConflict(KIND, token.id)
            return known, secret
        return token, secret

    async def rotate(
        self, tenant: str, token_id: str, *, actor: str, overlap_seconds: float = 86_400
    ) -> tuple[Token, str]:
        """A new token in the place of one, which goes on for a while beside it."""
        _actor(actor)
        bounds.number("overlap_seconds", overlap_seconds, 0, bounds.LONGEST_SECONDS)
        entry, old = await self._to_be_replaced(tenant, token_id)
        now = await self._store.now()
        until = None if old.expires_at is None else now + (old.expires_at - old.created_at)
        token = Token(_new_id(), tenant, old.name, old.scopes, now, actor, until, rate=old.rate)
        secret = _new_secret()
        end = now + timedelta(seconds=overlap_seconds)
        # Both in one call, and so in one transaction: nobody is left without a token that works.
        _, answer = await self._put(
            tenant, [_made(token, secret, actor, replaces=old.id), _replaced(entry, token, end, actor)]
        )
        try:
            for _ in range(_MOST_TRIES):
                if not isinstance(answer, PenstockError) or await self._was_replaced(old, by=token):
                    return token, secret
                entry, old = await self._to_be_replaced(tenant, token_id)
                [answer] = await self._put(tenant, [_replaced(entry, token, end, actor)])
            raise EntryConflict(KIND, token_id)
        except (NotFound, Conflict):
            await self.revoke(tenant, token.id, actor=actor, reason=f"{token_id} could not be replaced")
            raise

    async def revoke(self, tenant: str, token_id: str, *, actor: str, reason: str | None = None) -> Token:
        """End a token. Other processes may let it in for as long as they remember it, and no longer."""
        _actor(actor)
        if reason is not None:
            bounds.text("reason", reason)
        for _ in range(_MOST_TRIES):
            entry, token = await self._find(tenant, token_id)
            audit = Audited(token.id, "revoked", actor, reason, _detail(token))
            [answer] = await self._put(
                tenant, [PutEntry(KIND, entry.name, None, version=entry.version, audit=audit)]
            )
            if not isinstance(answer, PenstockError):
                return token
        raise EntryConflict(KIND, token_id)

    async def tokens(self, tenant: str) -> list[Token]:
        """The tokens of a tenant, oldest first."""
        found = [_token(entry) for entry in await self._store.entries(_tenant(tenant), KIND)]
        return sorted(found, key=lambda token: (token.created_at, token.id))

    async def _put(self, tenant: str, puts: Sequence[PutEntry]) -> list[Entry | PenstockError | None]:
        """Change tokens, and forget what was remembered of them."""
        answers = await self._store.put_entries(tenant, puts)
        self._changes += 1
        for put in puts:
            self._good.pop(put.name, None)
            self._bad.pop(put.name, None)
        return answers

    async def _find(self, tenant: str, token_id: str) -> tuple[Entry, Token]:
        # A tenant has few tokens, and they are changed seldom: going through them needs no second index to be kept.
        for entry in await self._store.entries(_tenant(tenant), KIND):
            token = _token(entry)
            if token.id == token_id:
                return entry, token
        raise TokenNotFound(token_id)

    async def _to_be_replaced(self, tenant: str, token_id: str) -> tuple[Entry, Token]:
        entry, token = await self._find(tenant, token_id)
        if token.replaced_by is not None:
            raise Conflict(
                f"token {token_id} was replaced by {token.replaced_by}; rotate that one",
                token_id=token_id,
                replaced_by=token.replaced_by,
            )
        return entry, token

    async def _was_replaced(self, old: Token, *, by: Token) -> bool:
        """Whether it was done after all: a store that has lost its connection tries again, and meets its own change."""
        [trail] = await self._store.history(old.tenant, [(KIND, old.id)])
        if isinstance(trail, PenstockError):
            return False
        told = [decode(change.detail) for change in trail.changes if change.detail is not None]
        return any(detail.get("replaced_by") == by.id for detail in told)

    async def _known(self, tenant: str, secret: str) -> Token | None:
        """The token that a secret belongs to, if there is one; it must not be another tenant's."""
        found = await self._store.entries(None, KIND, [digest_of(secret)])
        if any(entry.tenant != tenant for entry in found):
            raise InvalidInput("secret", "not be in use by another tenant", f"{len(secret)} characters")
        return _token(found[0]) if found else None


# ── Secrets ───────────────────────────────────────────────────────────────────────────────────────


def _new_secret() -> str:
    return f"{PREFIX}{secrets.token_urlsafe(32)}"


def _new_id() -> str:
    """What people call a token by; it says nothing about the secret."""
    return f"tok_{secrets.token_hex(8)}"


def digest_of(secret: str) -> str:
    """What is stored. A plain hash will do: there is nothing to try out in 32 random bytes."""
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()


def _check_secret(secret: object) -> None:
    """The secret must not be in the error, so bounds.text will not do."""
    must = f"be {_LEAST_CHARS} to {_MOST_CHARS} letters, digits or signs of ASCII, without spaces"
    if not isinstance(secret, str):
        raise InvalidInput("secret", must, type(secret))
    if not _LEAST_CHARS <= len(secret) <= _MOST_CHARS:
        raise InvalidInput("secret", must, f"{len(secret)} characters")
    if not _SENDABLE.fullmatch(secret):
        raise InvalidInput("secret", must, "other characters")


# ── Input ─────────────────────────────────────────────────────────────────────────────────────────


def _tenant(tenant: str) -> str:
    return tenant if tenant == ALL_TENANTS else bounds.name("tenant", tenant)


def _actor(actor: str) -> str:
    return bounds.text("actor", actor, bounds.NAME_CHARS, 1)


def _scopes(scopes: Iterable[str]) -> tuple[Scope, ...]:
    """The scopes named, each once and in their order."""
    given = [] if isinstance(scopes, str) else [bounds.member("scopes", scope, Scope) for scope in scopes]
    if not given:
        raise InvalidInput("scopes", f"be a list of some of {', '.join(Scope)}", scopes)
    return tuple(scope for scope in Scope if scope in given)


# ── Entries ───────────────────────────────────────────────────────────────────────────────────────


def _token(entry: Entry) -> Token:
    return msgspec.json.decode(entry.body, type=Token)


def _body(token: Token) -> JsonText:
    return JsonText(msgspec.json.encode(token).decode())


def _detail(token: Token, **more: str | None) -> JsonText:
    """What the audit trail tells of a token: nothing of its secret."""
    told = {"name": token.name, "scopes": token.scopes}
    told |= {name: value for name, value in more.items() if value is not None}
    return JsonText(msgspec.json.encode(told).decode())


def _made(token: Token, secret: str, actor: str, replaces: str | None = None) -> PutEntry:
    audit = Audited(token.id, "created", actor, detail=_detail(token, replaces=replaces))
    return PutEntry(KIND, digest_of(secret), _body(token), 0, audit=audit, expires_at=token.expires_at)


def _replaced(entry: Entry, by: Token, end: datetime, actor: str) -> PutEntry:
    """A token that goes on until then, and never for longer than it would have."""
    old = _token(entry)
    end = end if old.expires_at is None else min(end, old.expires_at)
    ending = msgspec.structs.replace(old, expires_at=end, replaced_by=by.id)
    audit = Audited(old.id, "rotated", actor, detail=_detail(old, replaced_by=by.id))
    return PutEntry(KIND, entry.name, _body(ending), entry.version, audit=audit, expires_at=end)


def _seen_at(entry: Entry, now: datetime) -> PutEntry:
    seen = msgspec.structs.replace(_token(entry), last_seen_at=now)
    return PutEntry(KIND, entry.name, _body(seen), entry.version, expires_at=entry.expires_at)


def _is_long_unseen(token: Token, now: datetime) -> bool:
    return token.last_seen_at is None or now - token.last_seen_at >= _SEEN_EVERY


def _keep(place: dict[str, Value], key: str, value: Value) -> None:
    """Remember the newest, up to a number: who sends ever new ones must not fill the memory."""
    place.pop(key, None)
    place[key] = value
    if len(place) > _MOST_REMEMBERED:
        del place[next(iter(place))]
