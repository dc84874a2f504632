"""Logging in and out, keys, the palette, themes and times, live updates."""

from __future__ import annotations

import re

from playwright.sync_api import BrowserContext, Page, expect

from dashboard.conftest import Served, Watch, log_in, shot, violations


def test_a_token_logs_in_and_is_nowhere_in_the_page(
    context: BrowserContext, served: Served, watch: Watch
) -> None:
    watch.expected.append("401")
    page = context.new_page()
    page.goto(f"{served.url}/ui/queues")
    shot(page, "login")
    page.get_by_label("Token").fill("pst_this-is-not-a-token")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_contain_text("not known")
    assert violations(page) == []
    page.get_by_label("Token").fill(served.token)
    page.get_by_label("Token").press("Enter")
    expect(page.get_by_role("heading", level=1)).to_contain_text("Queues")
    [cookie] = [one for one in context.cookies() if one["name"] == "penstock_session"]
    assert cookie["httpOnly"]
    assert cookie["sameSite"] == "Strict"
    assert served.token not in cookie["value"]
    kept = page.evaluate("JSON.stringify({...localStorage}) + document.documentElement.outerHTML")
    assert served.token not in kept
    page.get_by_role("button", name=re.compile("Logged in as")).click()
    page.get_by_role("menuitem", name="Log out").click()
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    assert page.request.get(f"{served.url}/v1/stats").status == 401


def test_keys_go_everywhere(page: Page, served: Served) -> None:
    page.goto(f"{served.url}/ui/")
    expect(page.get_by_role("navigation", name="Screens")).to_be_visible()
    page.keyboard.press("g")
    page.keyboard.press("q")
    expect(page.get_by_role("heading", level=1)).to_contain_text("Queues")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard")).to_contain_text("Go to Jobs")
    shot(page, "help")
    assert violations(page) == []
    page.keyboard.press("Escape")
    page.keyboard.press("Control+k")
    page.get_by_role("combobox", name="Go to").fill("jobs: dead")
    shot(page, "palette")
    assert violations(page) == []
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{served.url}/ui/jobs?state=dead")


def test_theme_and_time_zone_are_kept(page: Page, served: Served) -> None:
    page.goto(f"{served.url}/ui/queues")
    page.get_by_role("button", name="Theme").click()
    page.get_by_role("menuitemradio", name="Dark").click()
    page.get_by_role("button", name="Local").click()
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    expect(page.get_by_role("button", name="UTC")).to_be_visible()


def test_what_happens_is_shown_as_it_happens_unless_paused(page: Page, served: Served) -> None:
    page.goto(f"{served.url}/ui/queues")
    state = page.locator(".live")
    expect(state).to_contain_text("Live")
    served.enqueue("later", queue="live-a", delay=3600)
    expect(page.get_by_role("link", name="live-a")).to_be_visible()
    state.click()
    expect(state).to_contain_text("Paused")
    served.enqueue("later", queue="live-b", delay=3600)
    state.click()
    expect(page.get_by_role("link", name="live-b")).to_be_visible()


def test_who_may_only_read_is_offered_nothing_else(context: BrowserContext, served: Served) -> None:
    made = (
        served.api.post("/v1/tokens", json={"name": "reader", "scopes": ["read"]}).raise_for_status().json()
    )
    log_in(context, served, made["secret"])
    page = context.new_page()
    page.goto(f"{served.url}/ui/queues")
    page.get_by_role("checkbox", name="Select emails").check()
    expect(page.get_by_role("button", name="Pause", exact=True)).to_be_disabled()
    page.goto(f"{served.url}/ui/tokens")
    expect(page.get_by_text("needs the scope admin")).to_be_visible()
