"""Every screen opens: without an error, without a request elsewhere, and readable for everyone; light, dark and on a phone."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from dashboard.conftest import ROOT, Served, Watch, looked_at

SCREENS = re.findall(r'path: "([^":]+)", title: "([^"]+)"', (ROOT / "frontend/src/screens.ts").read_text())


@pytest.mark.parametrize(("path", "title"), SCREENS)
def test_each_screen_opens_and_is_accessible(page: Page, served: Served, path: str, title: str) -> None:
    page.goto(f"{served.url}/ui{path}")
    expect(page.get_by_role("heading", level=1)).to_contain_text(title)
    expect(page.locator(".skeleton")).to_have_count(0)
    name = path.strip("/") or "overview"
    if path == "/parts":
        expect(page.locator(".u-legend")).to_be_visible()
    looked_at(page, name)


def test_the_page_comes_in_few_requests(page: Page, served: Served, watch: Watch) -> None:
    page.goto(f"{served.url}/ui/")
    expect(page.get_by_role("navigation", name="Screens")).to_be_visible()
    files = [url for url in watch.requests if "/v1/" not in url and "/ui/session" not in url]
    assert len(files) <= 6


def test_the_built_files_fit_the_budget() -> None:
    static = ROOT / "src/penstock/server/static"
    built = [file for file in Path(static).iterdir() if not file.name.startswith(".")]
    assert built, "the page is not built: make ui"
    assert sum(len(gzip.compress(file.read_bytes(), 9)) for file in built) <= 120_000


def test_a_failure_with_all_its_badges_fits_a_phone(page: Page, served: Served) -> None:
    """It is new, and rising: which it is in the tests depends on the time of day."""
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto(f"{served.url}/ui/failures")
    titles = page.locator(".table .row.tight")
    expect(titles.first).to_be_visible()
    titles.first.evaluate(
        """title => title.insertAdjacentHTML("beforeend", '<span class="badge">rising</span>'.repeat(4))"""
    )
    expect(titles.first.locator("span.badge", has_text="rising").nth(3)).to_be_attached()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
