"""Logging in by cookie: what it is worth, what ends it, and that no other site can use it. And the page's own files."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from penstock.access import Access
from penstock.core.ports import Store
from penstock.server import dashboard
from penstock.server.sessions import Sessions

PAGE = {"Penstock-Page": "1", "Sec-Fetch-Site": "same-origin"}


@pytest.fixture
async def browser(url: str, token: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client with nothing but a session's cookie."""
    async with httpx.AsyncClient(base_url=url) as client:
        (await client.post("/ui/session", json={"token": token}, headers=PAGE)).raise_for_status()
        yield client


async def test_a_session_is_worth_what_its_token_is(browser: httpx.AsyncClient, token: str) -> None:
    assert (await browser.get("/ui/session")).json()["scopes"] == ["admin"]
    assert (await browser.get("/v1/queues")).status_code == 200
    made = await browser.post("/v1/jobs", json={"type": "a"}, headers=PAGE)
    assert made.status_code == 201
    assert token not in str(browser.cookies.get("penstock_session"))


async def test_the_cookie_is_for_this_site_and_no_script(url: str, token: str) -> None:
    async with httpx.AsyncClient(base_url=url) as client:
        plain = await client.post("/ui/session", json={"token": token}, headers=PAGE)
        assert {"HttpOnly", "SameSite=Strict"} <= set(plain.headers["set-cookie"].split("; "))
        assert "Secure" not in plain.headers["set-cookie"]
        tls = await client.post(
            "/ui/session", json={"token": token}, headers={**PAGE, "X-Forwarded-Proto": "https"}
        )
        assert "Secure" in tls.headers["set-cookie"].split("; ")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Penstock-Page": "1"},
        {"Penstock-Page": "1", "Origin": "https://elsewhere.example"},
        {"Penstock-Page": "1", "Origin": "null"},
        {"Penstock-Page": "1", "Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-origin"},
    ],
)
async def test_what_another_site_sends_changes_nothing(
    browser: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    refused = await browser.post("/v1/queues/q/pause", json={}, headers=headers)
    assert refused.status_code == 403
    assert (await browser.delete("/ui/session", headers=headers)).status_code == 403
    assert (await browser.get("/v1/queues")).json() == {"queues": []}


async def test_a_session_ends_with_its_token_and_by_logging_out(
    browser: httpx.AsyncClient, store: Store, url: str, token: str
) -> None:
    async with httpx.AsyncClient(base_url=url) as other:
        (await other.post("/ui/session", json={"token": token}, headers=PAGE)).raise_for_status()
        cookie = other.cookies["penstock_session"]
        (await other.delete("/ui/session", headers=PAGE)).raise_for_status()
        assert (
            await other.get("/v1/queues", headers={"Cookie": f"penstock_session={cookie}"})
        ).status_code == 401
        access = Access(store)
        [ada] = await access.tokens("default")
        await access.revoke("default", ada.id, actor="tests")
        assert (await browser.get("/v1/queues")).status_code == 401


async def test_a_code_opens_one_session(store: Store, url: str, token: str) -> None:
    code = await Sessions(store, Access(store)).code(token)
    async with httpx.AsyncClient(base_url=url) as client:
        first = await client.post("/ui/session", json={"code": code}, headers=PAGE)
        assert first.json()["name"] == "ada"
        again = await client.post("/ui/session", json={"code": code}, headers=PAGE)
        assert again.status_code == 401


async def test_sessions_are_for_the_service_alone_to_see(api: httpx.AsyncClient, token: str) -> None:
    for kind in ("session", "session-code"):
        refused = await api.post("/v1/store/entries", json={"kind": kind, "names": None, "whose": "tenant"})
        assert refused.status_code == 403


async def test_the_page_works_at_any_depth_and_under_any_prefix(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dashboard, "_file", {"index.html": b'<base href="./">', "app-1.js": b"1"}.get)
    async with httpx.AsyncClient(base_url=url) as client:
        assert (await client.get("/")).headers["location"] == "ui/"
        for path, base in [
            ("/ui/", "./"),
            ("/ui/jobs", "./"),
            ("/ui/jobs/1", "../"),
            ("/ui/queues/a%2Fb", "../"),
        ]:
            page = await client.get(path)
            assert page.text == f'<base href="{base}">'
            assert page.headers["cache-control"] == "no-cache"
            assert "default-src 'self'" in page.headers["content-security-policy"]
        part = await client.get("/ui/assets/app-1.js", headers={"Accept-Encoding": "identity"})
        assert "immutable" in part.headers["cache-control"]
        for missing in ("/ui/assets/index.html", "/ui/assets/other.js"):
            assert (await client.get(missing)).status_code == 404


async def test_where_the_page_is_not_built_it_says_how(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard, "_file", lambda name: None)
    async with httpx.AsyncClient(base_url=url) as client:
        told = await client.get("/ui/jobs/1")
        assert told.status_code == 503
        assert "make ui" in told.text
