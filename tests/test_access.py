"""Tokens: made, checked, rotated and revoked, on a store in memory and on PostgreSQL."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from penstock import access as access_module
from penstock.access import Access, Scope, Token
from penstock.core.codec import JsonText, decode
from penstock.core.errors import (
    Conflict,
    InvalidInput,
    StoreUnavailable,
    TokenNotFound,
    Unauthorized,
)
from penstock.core.limits import Rate
from penstock.core.ports import Store
from penstock.core.registry import ALL_TENANTS, Entry, PutEntry
from penstock.queue import Queue
from penstock.testing import START, FakeClock
from support.stores import STORES

CHOSEN = "a-secret-that-somebody-chose"
LONG = 3600.0


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["memory", "postgres"])
async def store(request: pytest.FixtureRequest, clock: FakeClock) -> AsyncIterator[Store]:
    store = STORES[request.param](clock)
    yield store
    await store.close()


@pytest.fixture
async def opened(store: Store) -> AsyncIterator[Callable[[float], Access]]:
    """Makes Accesses that are closed before the store is, as in a process of its own each."""
    made: list[Access] = []

    def open_one(remember_seconds: float) -> Access:
        made.append(Access(store, remember_seconds=remember_seconds))
        return made[-1]

    yield open_one
    for one in made:
        await one.close()


@pytest.fixture
async def access(opened: Callable[[float], Access]) -> Access:
    """One that remembers nothing."""
    return opened(0)


@pytest.fixture
async def steady(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """What the process measures its memory by, to be moved."""
    clock = FakeClock()
    monkeypatch.setattr(access_module, "monotonic", lambda: clock.now().timestamp())
    return clock


@pytest.fixture
def look_ups(asked: list[tuple[str | None, int]]) -> Callable[[], list[int]]:
    """How many digests were looked up in each call to the store so far."""
    return lambda: [number for tenant, number in asked if tenant is None]


@pytest.fixture
def asked(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str | None, int]]:
    """Whose entries the store was asked for by name, and how many, call by call."""
    calls: list[tuple[str | None, int]] = []
    entries = store.entries

    async def counted(tenant: str | None, kind: str, names: Sequence[str] | None = None) -> list[Entry]:
        if names is not None:
            calls.append((tenant, len(names)))
        return await entries(tenant, kind, names)

    monkeypatch.setattr(store, "entries", counted)
    return calls


async def make(access: Access, *scopes: str, **given: Any) -> tuple[Token, str]:
    tenant, name = given.pop("tenant", "acme"), given.pop("name", "CI")
    return await access.create(tenant, name, scopes or ["produce"], actor="ada", **given)


async def told(store: Store, tenant: str = "acme") -> list[tuple[str, str, str, Any]]:
    """The audit log, oldest first: which token, what, who, and the detail."""
    lines = (await store.audit(tenant, limit=100)).lines
    assert {line.kind for line in lines} <= {"token"}
    return [
        (line.name, line.change.verb, line.change.actor, line.change.detail and decode(line.change.detail))
        for line in reversed(lines)
    ]


class TestCreate:
    async def test_a_token_says_all_of_itself_but_its_secret(self, access: Access) -> None:
        token, secret = await make(access, "work", "produce", expires_in=60, rate=Rate(5, burst=10))
        assert token == Token(
            id=token.id,
            tenant="acme",
            name="CI",
            scopes=(Scope.PRODUCE, Scope.WORK),
            created_at=START,
            created_by="ada",
            expires_at=START + timedelta(seconds=60),
            rate=Rate(5, burst=10),
        )
        assert re.fullmatch(r"tok_[0-9a-f]{16}", token.id)
        assert re.fullmatch(r"pst_[\w-]{43}", secret)
        assert await access.tokens("acme") == [token]

    async def test_no_two_are_alike(self, access: Access) -> None:
        (one, first), (other, second) = await make(access), await make(access)
        assert one.id != other.id
        assert first != second

    async def test_the_secret_is_kept_nowhere_and_its_digest_not_in_the_trail(
        self, access: Access, store: Store
    ) -> None:
        token, secret = await make(access)
        await access.check(secret)
        rotated, new = await access.rotate("acme", token.id, actor="ada")
        await access.revoke("acme", token.id, actor="ada")
        kept = repr(await store.entries(None, "token"))
        seen = repr(
            [await told(store), await Queue(store, tenant="acme").history(token.id, "token"), rotated]
        )
        for one in (secret, new):
            digest = hashlib.sha256(one.encode()).hexdigest()
            assert one not in kept + seen + repr(access) + repr(vars(access))
            assert digest not in seen
        assert hashlib.sha256(new.encode()).hexdigest() in kept

    async def test_is_told_in_the_audit_trail(self, access: Access, store: Store) -> None:
        token, _ = await make(access, "read", "admin")
        detail = {"name": "CI", "scopes": ["read", "admin"]}
        assert await told(store) == [(token.id, "created", "ada", detail)]

    @pytest.mark.parametrize("scopes", [["read", "write"], ["Read"], [""], [], "read", [None]])
    async def test_refuses_scopes_that_there_are_not_and_lists_those_there_are(
        self, access: Access, scopes: Any
    ) -> None:
        with pytest.raises(InvalidInput, match=r"scopes must be .*produce, work, read, operate, admin"):
            await access.create("acme", "CI", scopes, actor="ada")
        assert await access.tokens("acme") == []

    async def test_a_scope_named_twice_is_one(self, access: Access) -> None:
        assert (await make(access, "work", "read", "work"))[0].scopes == (Scope.WORK, Scope.READ)

    @pytest.mark.parametrize(
        ("given", "field"),
        [
            ({"tenant": "no such/ name"}, "tenant"),
            ({"tenant": "**"}, "tenant"),
            ({"name": ""}, "name"),
            ({"name": "x" * 200}, "name"),
            ({"expires_in": 0}, "expires_in"),
        ],
    )
    async def test_refuses_what_is_outside_its_limits(
        self, access: Access, given: dict[str, Any], field: str
    ) -> None:
        with pytest.raises(InvalidInput, match=f"^{field} must"):
            await make(access, **given)

    async def test_the_service_itself_may_have_one(self, access: Access) -> None:
        token, secret = await make(access, "admin", tenant=ALL_TENANTS)
        assert await access.check(secret) == token
        assert await access.tokens("acme") == []


class TestChosenSecret:
    async def test_is_good(self, access: Access) -> None:
        token, secret = await make(access, secret=CHOSEN)
        assert secret == CHOSEN
        assert await access.check(CHOSEN) == token

    @pytest.mark.parametrize(
        "secret", ["fifteen-letters", "", "x" * 513, "sixteen chars or", "Grüße-und-Küsse!"]
    )
    async def test_is_refused_without_being_repeated(self, access: Access, secret: str) -> None:
        with pytest.raises(InvalidInput, match="secret must be 16 to 512") as refused:
            await make(access, secret=secret)
        assert not secret or secret not in f"{refused.value} {refused.value.facts}"
        assert await access.tokens("acme") == []

    async def test_put_again_gives_the_same_token(self, access: Access, store: Store) -> None:
        first = await make(access, "admin", secret=CHOSEN)
        assert await make(access, "read", secret=CHOSEN) == first
        assert len(await told(store)) == 1

    async def test_put_by_many_at_once_makes_one_token(self, access: Access) -> None:
        made = await asyncio.gather(*(make(access, secret=CHOSEN) for _ in range(5)))
        assert len({token.id for token, _ in made}) == 1
        assert await access.tokens("acme") == [made[0][0]]

    async def test_is_refused_where_another_tenant_has_it(self, access: Access) -> None:
        token, _ = await make(access, secret=CHOSEN)
        with pytest.raises(InvalidInput, match="not be in use by another tenant") as refused:
            await make(access, secret=CHOSEN, tenant="other")
        assert CHOSEN not in f"{refused.value} {refused.value.facts}"
        assert await access.check(CHOSEN) == token

    async def test_was_asked_for_too_early_and_is_good_all_the_same(
        self, opened: Callable[[float], Access]
    ) -> None:
        access = opened(LONG)
        with pytest.raises(Unauthorized):
            await access.check(CHOSEN)
        await make(access, secret=CHOSEN)
        await access.check(CHOSEN)


class TestCheck:
    @pytest.mark.parametrize("secret", ["", "pst_", "pst_" + "x" * 43, "\0", "é", "\ud800", "x" * 100_000])
    async def test_nobody_gets_in_with_anything_else(self, access: Access, secret: str) -> None:
        await make(access)
        with pytest.raises(Unauthorized) as refused:
            await access.check(secret)
        assert secret in ("", "é") or secret not in str(refused.value)

    async def test_the_digest_and_the_id_are_no_secrets(self, access: Access) -> None:
        token, secret = await make(access)
        for one in (token.id, hashlib.sha256(secret.encode()).hexdigest(), f" {secret}", secret[:-1]):
            with pytest.raises(Unauthorized):
                await access.check(one)

    async def test_expired_it_is_no_good(self, access: Access, clock: FakeClock) -> None:
        token, secret = await make(access, expires_in=60)
        clock.advance(seconds=59)
        assert (await access.check(secret)).id == token.id
        clock.advance(seconds=1)
        with pytest.raises(Unauthorized):
            await access.check(secret)
        assert await access.tokens("acme") == []

    async def test_is_remembered_for_a_while(
        self, opened: Callable[[float], Access], steady: FakeClock, look_ups: Callable[[], list[int]]
    ) -> None:
        access = opened(2)
        _, secret = await make(access)
        for sent in (secret, "pst_" + "x" * 43):
            looked = len(look_ups())
            for _ in range(3):
                await asyncio.gather(access.check(sent), return_exceptions=True)
            assert len(look_ups()) == looked + 1
            steady.advance(seconds=2)
            await asyncio.gather(access.check(sent), return_exceptions=True)
            assert len(look_ups()) == looked + 2

    async def test_is_not_remembered_for_longer_than_it_lives(
        self, opened: Callable[[float], Access], steady: FakeClock, clock: FakeClock
    ) -> None:
        access = opened(LONG)
        _, secret = await make(access, expires_in=60)
        for moved in (clock, steady):
            moved.advance(seconds=50)
        await access.check(secret)
        for moved in (clock, steady):
            moved.advance(seconds=10)
        with pytest.raises(Unauthorized):
            await access.check(secret)

    async def test_many_at_once_are_looked_up_together(
        self, access: Access, look_ups: Callable[[], list[int]]
    ) -> None:
        made = [await make(access) for _ in range(3)]
        sent = [secret for _, secret in made]
        checks = (access.check(secret) for secret in [*sent, "bad", *sent])
        answers = await asyncio.gather(*checks, return_exceptions=True)
        tokens = [token for token, _ in made]
        assert answers[:3] == answers[4:] == tokens
        assert isinstance(answers[3], Unauthorized)
        assert look_ups() == [4]

    async def test_a_flood_of_bad_ones_fills_no_memory_and_drives_no_good_one_out(
        self,
        opened: Callable[[float], Access],
        monkeypatch: pytest.MonkeyPatch,
        look_ups: Callable[[], list[int]],
    ) -> None:
        monkeypatch.setattr(access_module, "_MOST_REMEMBERED", 3)
        access = opened(LONG)
        _, secret = await make(access)
        await access.check(secret)
        for number in range(10):
            with pytest.raises(Unauthorized):
                await access.check(f"bad-{number}")
        assert len(access._bad) == 3
        looked = len(look_ups())
        await access.check(secret)
        assert len(look_ups()) == looked

    @pytest.mark.parametrize(("first", "second"), [("acme", "zebra"), ("zebra", "acme")])
    async def test_of_a_secret_in_use_twice_it_is_the_first(
        self, access: Access, store: Store, first: str, second: str
    ) -> None:
        """Which takes two who choose the same at the same moment."""
        token, _ = await make(access, secret=CHOSEN, tenant=first)
        [entry] = await store.entries(first, "token")
        later = replace(token, tenant=second, created_at=START + timedelta(seconds=1))
        body = JsonText(msgspec.json.encode(later).decode())
        await store.put_entries(second, [PutEntry("token", entry.name, body)])
        assert await access.check(CHOSEN) == token


class TestRevoke:
    async def test_it_is_no_good_from_then_on(self, access: Access, store: Store) -> None:
        token, secret = await make(access)
        assert await access.revoke("acme", token.id, actor="bob", reason="leaked") == token
        with pytest.raises(Unauthorized):
            await access.check(secret)
        assert await access.tokens("acme") == []
        assert (await told(store))[1:] == [
            (token.id, "revoked", "bob", {"name": "CI", "scopes": ["produce"]})
        ]
        [_, line] = (await Queue(store, tenant="acme").history(token.id, "token")).changes
        assert line.reason == "leaked"

    async def test_holds_at_once_where_it_was_done_and_elsewhere_when_it_is_forgotten(
        self, opened: Callable[[float], Access], steady: FakeClock, look_ups: Callable[[], list[int]]
    ) -> None:
        here, there = opened(2), opened(2)
        token, secret = await make(here)
        for access in (here, there):
            await access.check(secret)
        await here.revoke("acme", token.id, actor="ada")
        with pytest.raises(Unauthorized):
            await here.check(secret)
        steady.advance(seconds=2)
        looked = len(look_ups())
        for _ in range(2):
            with pytest.raises(Unauthorized):
                await there.check(secret)
        assert len(look_ups()) == looked + 1

    async def test_a_look_up_that_was_under_way_is_not_remembered(
        self, opened: Callable[[float], Access], store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        access = opened(LONG)
        token, secret = await make(access)
        looked, go_on, entries = asyncio.Event(), asyncio.Event(), store.entries

        async def slow(tenant: str | None, kind: str, names: Any = None) -> list[Entry]:
            found = await entries(tenant, kind, names)
            if names is not None and tenant is None:
                looked.set()
                await go_on.wait()
            return found

        monkeypatch.setattr(store, "entries", slow)
        checking = asyncio.create_task(access.check(secret))
        await looked.wait()
        await access.revoke("acme", token.id, actor="ada")
        go_on.set()
        await checking  # it was good when it was looked up
        with pytest.raises(Unauthorized):
            await access.check(secret)

    @pytest.mark.parametrize("verb", ["revoke", "rotate"])
    async def test_what_is_not_there_or_anothers_is_not_found(self, access: Access, verb: str) -> None:
        token, secret = await make(access)
        change = getattr(access, verb)
        for tenant, token_id in [("acme", "tok_0"), ("other", token.id), (ALL_TENANTS, token.id)]:
            with pytest.raises(TokenNotFound, match=token_id):
                await change(tenant, token_id, actor="ada")
        assert await access.check(secret) == token
        await access.revoke("acme", token.id, actor="ada")
        with pytest.raises(TokenNotFound):
            await change("acme", token.id, actor="ada")


class TestRotate:
    async def test_the_new_one_has_all_of_the_old_and_a_fresh_life(
        self, access: Access, clock: FakeClock
    ) -> None:
        old, _ = await make(access, "work", "read", expires_in=1000, rate=Rate(5))
        now = clock.advance(seconds=900)
        new, secret = await access.rotate("acme", old.id, actor="bob")
        assert new == Token(
            new.id, "acme", "CI", old.scopes, now, "bob", now + timedelta(seconds=1000), rate=Rate(5)
        )
        assert new.id != old.id
        assert await access.check(secret) == new

    @pytest.mark.parametrize(("lives", "lasts"), [(None, 60), (1000, 60), (30, 30)])
    async def test_the_old_one_goes_on_for_the_overlap_and_never_longer_than_it_would_have(
        self, access: Access, clock: FakeClock, lives: float | None, lasts: float
    ) -> None:
        old, secret = await make(access, expires_in=lives)
        new, _ = await access.rotate("acme", old.id, actor="ada", overlap_seconds=60)
        clock.advance(seconds=lasts - 1)
        still = await access.check(secret)
        assert (still.id, still.replaced_by) == (old.id, new.id)
        assert still.expires_at == START + timedelta(seconds=lasts)
        clock.advance(seconds=1)
        with pytest.raises(Unauthorized):
            await access.check(secret)
        assert old.id not in [token.id for token in await access.tokens("acme")]

    async def test_without_overlap_the_old_one_ends_at_once(self, opened: Callable[[float], Access]) -> None:
        access = opened(LONG)
        old, secret = await make(access)
        await access.check(secret)
        _, new = await access.rotate("acme", old.id, actor="ada", overlap_seconds=0)
        await access.check(new)
        with pytest.raises(Unauthorized):
            await access.check(secret)

    async def test_is_told_of_both(self, access: Access, store: Store) -> None:
        old, _ = await make(access)
        new, _ = await access.rotate("acme", old.id, actor="bob")
        what = {"name": "CI", "scopes": ["produce"]}
        assert await told(store) == [
            (old.id, "created", "ada", what),
            (new.id, "created", "bob", what | {"replaces": old.id}),
            (old.id, "rotated", "bob", what | {"replaced_by": new.id}),
        ]

    async def test_one_that_was_replaced_is_not_replaced_again(self, access: Access) -> None:
        old, _ = await make(access)
        new, _ = await access.rotate("acme", old.id, actor="ada")
        with pytest.raises(Conflict, match=f"{old.id} was replaced by {new.id}"):
            await access.rotate("acme", old.id, actor="ada")
        assert {token.id for token in await access.tokens("acme")} == {old.id, new.id}

    async def test_of_many_who_rotate_at_once_one_does(self, access: Access) -> None:
        old, _ = await make(access)
        rotations = (access.rotate("acme", old.id, actor="ada") for _ in range(4))
        answers = await asyncio.gather(*rotations, return_exceptions=True)
        [won] = [answer for answer in answers if not isinstance(answer, BaseException)]
        assert all(type(answer) is Conflict for answer in answers if isinstance(answer, BaseException))
        assert {token.id for token in await access.tokens("acme")} == {old.id, won[0].id}

    async def test_of_a_token_that_is_revoked_meanwhile_leaves_nothing_behind(
        self, access: Access, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        old, _ = await make(access)
        other = Access(store)
        put = store.put_entries

        async def late(tenant: str, commands: Sequence[PutEntry]) -> Any:
            monkeypatch.setattr(store, "put_entries", put)
            await other.revoke("acme", old.id, actor="bob")
            return await put(tenant, commands)

        monkeypatch.setattr(store, "put_entries", late)
        with pytest.raises(TokenNotFound):
            await access.rotate("acme", old.id, actor="ada")
        assert await access.tokens("acme") == []


class TestLostReplies:
    """A store that has lost its connection tries again, and meets what it has done itself."""

    @pytest.fixture(autouse=True)
    def twice(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        put = store.put_entries

        async def put_twice(tenant: str, commands: Sequence[PutEntry]) -> Any:
            await put(tenant, commands)
            return await put(tenant, commands)

        monkeypatch.setattr(store, "put_entries", put_twice)

    async def test_a_token_is_made_all_the_same(self, access: Access) -> None:
        token, secret = await make(access)
        assert await access.check(secret) == token

    @pytest.mark.parametrize("overlap", [0, 60])
    async def test_a_token_is_replaced_all_the_same(self, access: Access, overlap: float) -> None:
        old, _ = await make(access)
        new, secret = await access.rotate("acme", old.id, actor="ada", overlap_seconds=overlap)
        assert await access.check(secret) == new


class TestLastSeen:
    async def test_is_written_down_once_a_minute_and_not_audited(
        self,
        opened: Callable[[float], Access],
        store: Store,
        clock: FakeClock,
        steady: FakeClock,
    ) -> None:
        _, secret = await make(opened(0), expires_in=1000)
        seen = []
        for _ in range(5):  # each in a process that knows nothing of the others
            access = opened(0)
            for _ in range(2):
                await access.check(secret)
            await access.close()
            [token] = await access.tokens("acme")
            assert token.last_seen_at is not None
            seen.append((token.last_seen_at - START).total_seconds())
            for moved in (clock, steady):
                moved.advance(seconds=25)
        assert seen == [0, 0, 0, 75, 75]
        [entry] = await store.entries("acme", "token")
        assert entry.version == 3
        assert entry.expires_at == START + timedelta(seconds=1000)
        assert len(await told(store)) == 1

    async def test_one_process_asks_once_a_minute_only(
        self, opened: Callable[[float], Access], steady: FakeClock, asked: list[tuple[str | None, int]]
    ) -> None:
        access = opened(LONG)
        _, secret = await make(access)
        for _ in range(5):
            await access.check(secret)
            await access._note_seen.close()  # waits for what is under way
            access._note_seen._closed = False
            steady.advance(seconds=25)
        assert asked == [
            (None, 1),
            ("acme", 1),
            ("acme", 1),
        ]  # the check; and what was there at 0 and at 75 s

    async def test_keeps_nobody_waiting_and_undoes_no_revocation(
        self, access: Access, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        token, secret = await make(access)
        about_to, go_on, put = asyncio.Event(), asyncio.Event(), store.put_entries

        async def held_up(tenant: str, commands: Sequence[PutEntry]) -> Any:
            if commands[0].audit is None:
                about_to.set()
                await go_on.wait()
            return await put(tenant, commands)

        monkeypatch.setattr(store, "put_entries", held_up)
        assert await access.check(secret) == token
        await about_to.wait()
        await access.revoke("acme", token.id, actor="ada")
        go_on.set()
        await access.close()
        with pytest.raises(Unauthorized):
            await access.check(secret)
        assert await access.tokens("acme") == []

    async def test_costs_no_rotation_its_effect(
        self, access: Access, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        old, secret = await make(access)
        put = store.put_entries

        async def seen_meanwhile(tenant: str, commands: Sequence[PutEntry]) -> Any:
            monkeypatch.setattr(store, "put_entries", put)
            other = Access(store)
            await other.check(secret)
            await other.close()
            return await put(tenant, commands)

        monkeypatch.setattr(store, "put_entries", seen_meanwhile)
        new, _ = await access.rotate("acme", old.id, actor="ada", overlap_seconds=60)
        still = await access.check(secret)
        assert (still.replaced_by, still.last_seen_at) == (new.id, START)

    async def test_fails_no_request_when_it_cannot_be_written(
        self,
        access: Access,
        store: Store,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        token, secret = await make(access)

        async def broken(tenant: str, commands: Sequence[PutEntry]) -> Any:
            raise StoreUnavailable("PostgreSQL", "gone")

        monkeypatch.setattr(store, "put_entries", broken)
        with caplog.at_level(logging.WARNING, "penstock.access"):
            assert await access.check(secret) == token
            await access.close()
        assert "last seen could not be written down" in caplog.text
        assert secret not in caplog.text

    async def test_checks_go_on_after_it_was_closed(self, access: Access) -> None:
        token, secret = await make(access)
        await access.close()
        assert await access.check(secret) == token


class TestAllows:
    async def test_what_it_names_and_everything_if_it_may_administer(self, access: Access) -> None:
        worker, _ = await make(access, "work")
        admin, _ = await make(access, "admin")
        assert [scope for scope in Scope if worker.allows(scope)] == [Scope.WORK]
        assert all(map(admin.allows, Scope))


async def test_a_store_that_is_away_is_told_apart_from_a_bad_token(
    access: Access, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> list[Entry]:
        raise StoreUnavailable("PostgreSQL", "gone")

    _, secret = await make(access)
    monkeypatch.setattr(store, "entries", broken)
    with pytest.raises(StoreUnavailable):
        await access.check(secret)
    monkeypatch.undo()
    await access.check(secret)
