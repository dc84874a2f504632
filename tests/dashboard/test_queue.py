"""One queue's page: how it does, and everything about it that can be set."""

from __future__ import annotations

import json
import re

from playwright.sync_api import Page, Route, expect

from dashboard.conftest import Served, Watch, looked_at, shot, violations
from dashboard.test_overview import changed


def test_it_says_how_the_queue_does(page: Page, served: Served) -> None:
    page.goto(f"{served.url}/ui/queues/emails")
    for label in ("Queued", "Oldest due", "In and out a minute", "Drained", "Running", "Failing"):
        expect(page.locator(".stat-label").get_by_text(label, exact=True)).to_be_visible()
    expect(page.locator(".facts")).to_contain_text("100 in 1 min")
    expect(page.get_by_role("region", name="Changes")).to_contain_text("max_concurrency: 20")
    expect(page.get_by_text("No worker takes this queue")).to_be_visible()
    expect(page.locator(".u-legend")).to_be_visible()
    expect(page.locator(".skeleton")).to_have_count(0)
    looked_at(page, "queue")
    page.locator(".states").get_by_role("link", name=re.compile("dead")).click()
    expect(page).to_have_url(re.compile("state=dead&q=queue%3Aemails"))


def test_who_serves_it_is_named_and_latency_told(page: Page, served: Served) -> None:
    served.until(
        "/v1/figures?queue=default",
        lambda told: told["queues"] and told["queues"][0]["run"]["p50_ms"] is not None,
    )
    page.goto(f"{served.url}/ui/queues/default")
    expect(page.locator(".latencies")).to_contain_text(re.compile(r"Run\s*\d"))
    expect(page.locator(".states").nth(1)).to_contain_text("busy")


def test_it_is_paused_and_resumed_by_key(page: Page, served: Served) -> None:
    served.enqueue("later", queue="keyed-pause", delay=3600)
    page.goto(f"{served.url}/ui/queues/keyed-pause")
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    page.keyboard.press("p")
    page.get_by_role("dialog").get_by_label("Reason").fill("pump 3 leaks")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_contain_text("paused")
    expect(page.get_by_role("region", name="Changes")).to_contain_text("pump 3 leaks")
    assert served.api.get("/v1/queues/keyed-pause").json()["settings"]["paused"]
    page.locator(".page-head").get_by_role("button", name="Resume").click()
    expect(page.locator("h1")).not_to_contain_text("paused")
    assert not served.api.get("/v1/queues/keyed-pause").json()["settings"]["paused"]


def test_every_setting_can_be_changed(page: Page, served: Served) -> None:
    served.enqueue("later", queue="tuned", delay=3600)
    page.goto(f"{served.url}/ui/queues/tuned")
    expect(page.get_by_role("button", name="Settings")).to_be_visible()
    page.keyboard.press("e")
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("button", name="Nothing changed")).to_be_disabled()
    given = {
        "Target, seconds": "5", "Lease, seconds": "45", "Kept, seconds": "3600", "Jobs at once": "8", "At once per key": "2",
        "Depth": "1000", "Starts": "10", "Starts per key": "3", "Attempts": "7", "First after, seconds": "9",
    }  # fmt: skip
    for label, value in given.items():
        dialog.get_by_label(label, exact=True).fill(value)
    dialog.get_by_label("in seconds").first.fill("60")
    dialog.get_by_label("Keys", exact=True).select_option("true")
    dialog.get_by_label("Then").select_option("hold")
    dialog.get_by_label("Retries").select_option("linear")
    dialog.get_by_label("Reason").fill("load test")
    shot(page, "queue-settings")
    assert violations(page) == []
    dialog.get_by_role("button", name="Set 12 things").click()
    expect(dialog).to_have_count(0)
    settings = served.api.get("/v1/queues/tuned").json()["settings"]
    assert settings["retry"] | {"base": 9, "kind": "linear"} == settings["retry"]
    assert settings | {
        "target_seconds": 5, "lease_seconds": 45, "retention_seconds": 3600, "max_concurrency": 8, "max_concurrency_per_key": 2,
        "max_depth": 1000, "rate": {"limit": 10, "per": 60, "burst": 1}, "rate_per_key": {"limit": 3, "per": 1, "burst": 1},
        "fair": True, "max_attempts": 7, "on_exhausted": "hold",
    } == settings  # fmt: skip
    expect(page.get_by_role("region", name="Changes")).to_contain_text("load test")


def test_what_the_service_refuses_is_said_in_the_dialog(page: Page, served: Served, watch: Watch) -> None:
    watch.expected.append("422")
    page.goto(f"{served.url}/ui/queues/imports")
    page.get_by_role("button", name="Settings").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Attempts").fill("0")
    with page.expect_response(re.compile("/v1/queues/imports$")) as answer:
        dialog.get_by_role("button", name="Set 1 thing").click()
    assert answer.value.status == 422
    expect(dialog.get_by_role("alert")).to_contain_text("max_attempts")


def test_a_capacity_plan_is_applied(page: Page, served: Served) -> None:
    plan = {"queue": "imports", "concurrency": 12, "lease_seconds": 40.0, "expected_wait_ms": 150.0, "utilisation": 0.7, "why": "the peak is on Monday"}  # fmt: skip
    sizing = {"max_concurrency": 12, "lease_seconds": 40.0}
    sent: list[bool] = []

    def applied(route: Route) -> None:
        sent.append(json.loads(route.request.post_data or "{}")["dry_run"])
        before = {"max_concurrency": None, "lease_seconds": 30.0}
        route.fulfill(json={"queue": "imports", "as_of": "2026-01-03T00:00:00Z", "before": before, "after": sizing, "why": "", "dry_run": sent[-1]})  # fmt: skip

    changed(page, "insights", lambda _: {"as_of": "2026-01-03T00:00:00Z", "insights": [{"name": "capacity", "about": "", "rows": 1}]})  # fmt: skip
    page.route(
        "**/v1/insights/capacity?*",
        lambda route: route.fulfill(
            json={"name": "capacity", "as_of": "2026-01-03T00:00:00Z", "rows": [plan]}
        ),
    )
    page.route("**/v1/insights/capacity/imports/apply", applied)
    page.goto(f"{served.url}/ui/queues/imports")
    expect(page.get_by_text("the peak is on Monday")).to_be_visible()
    page.get_by_role("button", name="Apply").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("no limit")
    expect(dialog).to_contain_text("12")
    shot(page, "queue-plan")
    dialog.get_by_role("button", name="Apply").click()
    expect(dialog).to_have_count(0)
    assert sent == [True, False]


def test_all_that_waits_in_it_is_cancelled_and_brought_back_as_a_whole(page: Page, served: Served) -> None:
    served.enqueue("flood", 4, queue="flooded")
    served.fail("flooded", "FloodError: too much")
    served.enqueue("flood", 3, queue="flooded", delay=3600)
    page.goto(f"{served.url}/ui/queues/flooded")
    for item, count, action, became in (
        ("Cancel all that wait", 3, "Cancel", "cancelled"),
        ("Redrive all dead and held", 4, "Redrive", "queued"),
    ):
        page.get_by_role("button", name="More").click()
        page.get_by_role("menuitem", name=item).click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("in queue flooded")
        dialog.get_by_role("button", name=f"{action} {count} jobs").click()
        expect(dialog).to_have_count(0)
        expect(page.locator(".states").get_by_role("link", name=f"{count} {became}")).to_be_visible()
        assert served.api.get("/v1/queues/flooded").json()["counts"][became] == count
