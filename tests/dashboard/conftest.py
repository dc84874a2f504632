"""A real `penstock dev`, and Debian's Chromium looking at it. What a page must never do fails every test: see `page`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from support.system import program

ROOT = Path(__file__).parents[2]
SHOTS = os.environ.get("PENSTOCK_SCREENSHOTS")
"""Where to put screenshots, if anywhere."""


class Served:
    """The service under test: where it is, and the API as a program sees it."""

    def __init__(self, url: str, token: str, data: Path) -> None:
        self.url = url
        self.token = token
        self.data = data
        self.api = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=30)

    def enqueue(self, type: str, count: int = 1, **options: Any) -> list[str]:
        jobs = [{"type": type, "payload": {"n": n}, **options} for n in range(count)]
        answer = self.api.post("/v1/jobs/batch", json={"jobs": jobs}).raise_for_status().json()
        return [job["id"] for job in answer["jobs"]]

    def fail(self, queue: str, error: str, **options: Any) -> list[str]:
        """Let all that is due there fail; for good unless `retry` says otherwise."""
        leased = (
            self.api.post(f"/v1/queues/{queue}/lease", json={"worker_id": "clumsy", "limit": 50})
            .raise_for_status()
            .json()["jobs"]
        )
        for one in leased:
            body = {"token": one["token"], "error": error, "retry": False, **options}
            self.api.post(f"/v1/jobs/{one['job']['id']}/nack", json=body).raise_for_status()
        return [one["job"]["id"] for one in leased]

    def status(self, job: str) -> Any:
        return self.api.get(f"/v1/jobs/{job}").raise_for_status().json()["status"]

    def until(self, path: str, is_so: Callable[[Any], bool]) -> Any:
        """Ask until it is so."""
        end = time.monotonic() + 20
        while not is_so(told := self.api.get(path).raise_for_status().json()):
            assert time.monotonic() < end, f"{path} went on to answer {json.dumps(told)[:500]}"
            time.sleep(0.05)
        return told


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    data = tmp_path_factory.mktemp("dashboard")
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", "dev", "--port", "0", "--data", str(data / "db")],
        stdout=subprocess.PIPE, text=True, cwd=data, env={name: value for name, value in os.environ.items() if name != "PENSTOCK_URL"},
    )  # fmt: skip
    assert process.stdout is not None
    try:
        greeting = ""
        while "curl" not in greeting:
            line = process.stdout.readline()
            assert line, f"penstock dev ended early: {greeting}"
            greeting += line
        url = re.search(r"up at (\S+)", greeting)
        token = re.search(r"token\s+(\S+)", greeting)
        code = re.search(r"#code=(\S+)", greeting)
        assert url is not None
        assert token is not None
        assert code is not None
        served = Served(url[1], token[1], data / "db")
        with served.api:
            _fill(served)
            yield served
    finally:
        process.terminate()
        process.wait(20)
        process.stdout.close()


def _fill(served: Served) -> None:
    """A fleet with something in every state that a screen shows."""
    served.until("/v1/figures", lambda told: told["counted_since"] is not None)  # then failures are seen
    served.enqueue("hello", 30, payload={"name": "Ada"})
    served.enqueue("mail.send", 60, queue="emails", key="acme")
    served.enqueue("report.daily", 5, queue="reports", delay=3600)
    served.api.post("/v1/queues/reports/pause", json={"reason": "month end"}).raise_for_status()
    big = {"type": "import", "queue": "imports", "payload": {"id": 0, "exact": "BIG", "price": 1.5}}
    served.api.post(
        "/v1/jobs", content=json.dumps(big).replace('"BIG"', "9007199254740993").encode()
    ).raise_for_status()
    leased = (
        served.api.post("/v1/queues/emails/lease", json={"worker_id": "mailer", "limit": 12})
        .raise_for_status()
        .json()
    )
    for n, one in enumerate(leased["jobs"]):
        error = f'Traceback (most recent call last):\n  File "mail.py", line 7\nTimeoutError: smtp-{n % 3} did not answer'
        body = {"token": one["token"], "error": error, "retry": False}
        served.api.post(f"/v1/jobs/{one['job']['id']}/nack", json=body).raise_for_status()
    served.api.post(
        "/v1/queues/emails/lease", json={"worker_id": "mailer", "limit": 3, "lease_seconds": 3600}
    ).raise_for_status()
    served.api.put(
        "/v1/queues/emails", json={"max_concurrency": 20, "rate": {"limit": 100, "per": 60}}
    ).raise_for_status()
    served.until("/v1/stats", lambda told: told["counts"].get("succeeded", 0) >= 30)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One for each module, not for all: while it is open a loop runs in this thread, and async tests elsewhere cannot."""
    chromium = program("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


class Watch:
    """What a page did that it must not: errors in its console, and requests that leave the machine."""

    def __init__(self) -> None:
        self.wrongs: list[str] = []
        self.requests: list[str] = []
        self.expected: list[str] = []
        """Texts of console errors that a test means to cause."""

    def over(self, context: BrowserContext, url: str) -> None:
        def asked(request: Any) -> None:
            self.requests.append(request.url)
            if not request.url.startswith((url, "data:", "blob:")):
                self.wrongs.append(f"a request to {request.url}")

        def said(message: Any) -> None:
            if message.type in ("error", "warning") and not any(
                text in message.text for text in self.expected
            ):
                self.wrongs.append(f"{message.type}: {message.text}")

        context.on("request", asked)
        context.on("console", said)
        context.on("weberror", lambda error: self.wrongs.append(f"uncaught: {error.error}"))


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def context(browser: Browser, served: Served, watch: Watch) -> Iterator[BrowserContext]:
    context = browser.new_context(viewport={"width": 1360, "height": 860}, reduced_motion="reduce")
    context.set_default_timeout(10_000)
    watch.over(context, served.url)
    yield context
    for page in context.pages:  # an answer that a test alters may be on its way
        page.unroute_all(behavior="ignoreErrors")
    context.close()
    assert not watch.wrongs


@pytest.fixture
def page(context: BrowserContext, served: Served) -> Page:
    """A page that is logged in."""
    log_in(context, served)
    return context.new_page()


def log_in(context: BrowserContext, served: Served, token: str | None = None) -> None:
    answer = httpx.post(
        f"{served.url}/ui/session",
        json={"token": token or served.token},
        headers={"Penstock-Page": "1", "Origin": served.url},
    ).raise_for_status()
    context.add_cookies(
        [{"name": name, "value": value, "url": served.url} for name, value in answer.cookies.items()]
    )


def shot(page: Page, name: str) -> None:
    """A screenshot, where they are wanted."""
    if SHOTS:
        page.screenshot(path=f"{SHOTS}/{name}.png")


def looked_at(page: Page, name: str) -> None:
    """Readable for everyone: light, dark, and on a phone, where nothing is wider than it."""
    themes: tuple[tuple[Literal["light", "dark"], str], ...] = (("light", ""), ("dark", "-dark"))
    for theme, suffix in themes:
        page.emulate_media(color_scheme=theme, reduced_motion="reduce")
        expect(page.locator("html")).to_have_attribute("data-theme", theme)
        shot(page, f"{name}{suffix}")
        assert violations(page) == []
    page.set_viewport_size({"width": 390, "height": 800})
    shot(page, f"{name}-phone")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert violations(page) == []


AXE = ROOT / "frontend" / "node_modules" / "axe-core" / "axe.min.js"


def violations(page: Page) -> list[str]:
    """What axe-core finds wrong with what the page shows."""
    page.evaluate(
        AXE.read_text()
    )  # the policy of the page lets no script tag in, and that is as it should be
    found = page.evaluate("axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa']})")
    return [
        f"{one['id']}: {one['help']}: {[node['html'][:160] + node['failureSummary'] for node in one['nodes'][:3]]}"
        for one in found["violations"]
    ]
