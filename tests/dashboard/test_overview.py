"""The landing page: what it says, and that what it complains of is cured from there."""

from __future__ import annotations

import re
from typing import Any

from playwright.sync_api import Page, Route, expect

from dashboard.conftest import Served, looked_at, shot, violations


def changed(page: Page, path: str, change: Any) -> None:
    """Let the page see an answer of the service that was changed on its way."""

    def through(route: Route) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, json=change(answer.json()))

    page.route(re.compile(rf"/v1/{path}(\?|$)"), through)


def test_it_says_how_the_queues_do(page: Page, served: Served) -> None:
    told = served.until(
        "/v1/overview", lambda told: any(one["kind"] == "rising" for one in told["attention"])
    )
    page.goto(f"{served.url}/ui/")
    expect(page.locator(".health")).to_be_visible()
    for label in ("Queued", "Running", "Oldest due", "Done a minute", "Failing", "Workers"):
        expect(page.locator(".stat-label").get_by_text(label, exact=True)).to_be_visible()
    expect(page.locator(".need").filter(has_text="TimeoutError is rising")).to_be_visible()
    expect(page.get_by_role("row").filter(has_text="emails")).to_be_visible()
    expect(page.locator(".u-legend")).to_contain_text("failed")
    assert told["queues"]
    looked_at(page, "overview")


def test_a_failure_is_redriven_in_two_clicks(page: Page, served: Served) -> None:
    served.enqueue("over", 7, queue="over")
    jobs = served.fail("over", "OverError: the valve is stuck")
    served.until(
        "/v1/overview", lambda told: any(one["title"].startswith("OverError") for one in told["attention"])
    )
    page.goto(f"{served.url}/ui/")
    page.locator(".need").filter(has_text="OverError is rising").get_by_role("button", name="Redrive").click()
    dialog = page.get_by_role("dialog")
    act = dialog.get_by_role("button", name="Redrive 7 jobs")
    expect(act).to_be_enabled()
    shot(page, "redrive")
    assert violations(page) == []
    act.click()
    expect(dialog).to_contain_text("7 jobs of OverError came back")
    shot(page, "redriven")
    assert {served.status(job) for job in jobs} == {"queued"}
    dialog.get_by_role("link", name="Show all bulk operations").click()
    expect(page).to_have_url(f"{served.url}/ui/bulk")
    [operation] = [
        one for one in served.api.get("/v1/bulk").json()["operations"] if one["filter"]["queue"] == "over"
    ]
    assert operation["changed"] == 7
    assert operation["per_second"] == 100


def test_the_span_and_a_zoom_are_in_the_address(page: Page, served: Served) -> None:
    page.goto(f"{served.url}/ui/")
    page.get_by_role("group", name="Span").get_by_role("button", name="6h").click()
    expect(page).to_have_url(re.compile(r"span=6h"))
    plot = page.locator(".u-over")
    box = plot.bounding_box()
    assert box is not None
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.6, y)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.95, y, steps=4)
    page.mouse.up()
    expect(page).to_have_url(re.compile(r"from=\d+&to=\d+"))
    page.get_by_role("button", name=re.compile(r"\d\d:\d\d – \d\d:\d\d")).click()
    expect(page).not_to_have_url(re.compile("from="))


def test_a_moment_is_marked(page: Page, served: Served) -> None:
    page.goto(f"{served.url}/ui/")
    page.get_by_role("button", name="Mark now").click()
    page.get_by_role("dialog").get_by_label("What happened").fill("deployed 4f2a91c")
    page.keyboard.press("Enter")
    expect(page.get_by_role("list", name="Markers")).to_contain_text("deployed 4f2a91c")
    kinds = {one["text"]: one["kind"] for one in served.api.get("/v1/markers").json()["markers"]}
    assert kinds["deployed 4f2a91c"] == "deploy"


def test_a_long_pause_is_ended_from_here(page: Page, served: Served) -> None:
    served.enqueue("later", queue="long-paused", delay=3600)
    served.api.post("/v1/queues/long-paused/pause", json={}).raise_for_status()
    paused = {
        "level": "warning",
        "kind": "paused",
        "subject": "long-paused",
        "title": "long-paused is paused",
        "detail": "1 job waits",
    }
    changed(page, "overview", lambda told: {**told, "attention": [paused]})
    page.goto(f"{served.url}/ui/")
    page.locator(".need").get_by_role("button", name="Resume").click()
    page.get_by_role("dialog").get_by_role("button", name="Resume").click()
    served.until("/v1/queues/long-paused", lambda told: not told["settings"]["paused"])


def test_before_there_is_anything_it_says_what_to_do(page: Page, served: Served) -> None:
    changed(page, "overview", lambda told: {**told, "queues": [], "attention": [], "level": "ok"})
    page.goto(f"{served.url}/ui/")
    expect(page.get_by_text("penstock enqueue hello")).to_be_visible()
    looked_at(page, "overview-empty")
