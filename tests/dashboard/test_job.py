"""One job's page: what became of it, why it waits, and what can be done to it."""

from __future__ import annotations

import re
from typing import Any

from playwright.sync_api import BrowserContext, Page, expect

from dashboard.conftest import Served, looked_at, shot, violations
from dashboard.test_overview import changed


def test_what_failed_is_told_redriven_and_cancelled(page: Page, served: Served) -> None:
    [job] = served.enqueue("twice", queue="twice", max_attempts=2)
    served.fail("twice", "Traceback …\nKeyError: 'first'", retry=True, retry_in=0, logs="began the first")
    served.fail("twice", "Traceback …\nKeyError: 'second'")
    page.goto(f"{served.url}/ui/jobs/{job}")
    attempts = page.locator(".attempt")
    expect(attempts).to_have_count(2)
    expect(attempts.first).to_contain_text("KeyError: 'second'")
    expect(attempts.nth(1)).to_contain_text("#1")
    attempts.nth(1).get_by_text("Logs", exact=True).click()
    expect(attempts.nth(1)).to_contain_text("began the first")
    expect(page.locator(".step-label")).to_contain_text(["Attempt 1", "Attempt 2", "Dead"])
    expect(page.get_by_role("region", name="Why is it dead?")).to_contain_text("KeyError")
    page.keyboard.press("r")
    page.get_by_role("dialog").get_by_label("Reason").fill("the key is there now")
    page.get_by_role("dialog").get_by_role("button", name="Redrive").click()
    expect(page.locator("h1 .pill")).to_have_text("queued")
    assert served.status(job) == "queued"
    expect(page.locator(".steps")).to_contain_text("the key is there now")
    page.keyboard.press("c")
    page.get_by_role("dialog").get_by_role("button", name="Cancel the job").click()
    expect(page.locator("h1 .pill")).to_have_text("cancelled")
    assert served.status(job) == "cancelled"
    looked_at(page, "job")


def test_why_it_does_not_run_is_said(page: Page, served: Served) -> None:
    [job] = served.enqueue("stuck", queue="stuck")
    served.api.post("/v1/queues/stuck/pause", json={"reason": "leak in pump 3"}).raise_for_status()
    page.goto(f"{served.url}/ui/jobs/{job}")
    expect(page.get_by_role("region", name="Why is it not running?")).to_contain_text("leak in pump 3")
    shot(page, "job-queued")
    assert violations(page) == []


def test_a_payload_is_exact_wherever_it_goes(context: BrowserContext, page: Page, served: Served) -> None:
    body = '{"type": "exact", "queue": "exact", "payload": {"exact": 9007199254740993, "price": 1.10}}'
    found = served.api.post("/v1/jobs", content=body.encode()).raise_for_status().json()
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(f"{served.url}/ui/jobs/{found['id']}")
    expect(page.get_by_role("group", name="payload")).to_contain_text("9007199254740993")
    for kind in ("curl", "command", "Python"):
        page.get_by_role("button", name="More").click()
        page.get_by_role("menuitem", name=f"Copy as {kind}").click()
        expect(page.get_by_role("status").filter(has_text="Copied").first).to_be_visible()
        copied = page.evaluate("navigator.clipboard.readText()")
        assert "9007199254740993" in copied
        assert "exact" in copied
    page.get_by_role("button", name="More").click()
    page.get_by_role("menuitem", name="Enqueue it again").click()
    page.get_by_role("dialog").get_by_role("button", name="Enqueue").click()
    expect(page).not_to_have_url(re.compile(found["id"]))
    again = page.url.rpartition("/")[2]
    assert served.api.get(f"/v1/jobs/{again}").json()["payload"]["exact"] == 9007199254740993


def test_neighbours_of_the_list_are_a_key_away(page: Page, served: Served) -> None:
    served.enqueue("row", 3, queue="rows", delay=3600)
    page.goto(f"{served.url}/ui/jobs?q=queue:rows")
    expect(page.locator("tbody tr")).to_have_count(3)
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.get_by_text("1 of 3")).to_be_visible()
    page.keyboard.press("j")
    expect(page.get_by_text("2 of 3")).to_be_visible()
    page.keyboard.press("k")
    expect(page.get_by_text("1 of 3")).to_be_visible()
    page.keyboard.press("u")
    expect(page).to_have_url(re.compile(r"/jobs\?q=queue%3Arows"))


def test_a_job_opened_the_moment_it_is_listed_knows_its_neighbours(page: Page, served: Served) -> None:
    served.enqueue("quick", 2, queue="quick", delay=3600)
    page.add_init_script("""new MutationObserver((_, watching) => {
        const link = document.querySelector("tbody a");
        if (link) { watching.disconnect(); link.click(); }
    }).observe(document, { childList: true, subtree: true });""")
    page.goto(f"{served.url}/ui/jobs?q=queue:quick")
    expect(page.get_by_text("1 of 2")).to_be_visible()


def test_a_flow_is_drawn_and_leads_to_its_jobs(page: Page, served: Served) -> None:
    [first] = served.enqueue("extract", queue="flowing", delay=3600)
    [last] = served.enqueue("load", queue="flowing", parents=[first])
    page.goto(f"{served.url}/ui/jobs/{last}")
    expect(page.get_by_text("Part of a flow of 2 jobs")).to_be_visible()
    expect(page.get_by_role("region", name="Why is it not running?")).to_contain_text(first)
    shot(page, "job-flow")
    assert violations(page) == []
    page.locator(".node-link").filter(has_text="extract").click()
    expect(page).to_have_url(re.compile(first))


def test_what_runs_says_where(page: Page, served: Served) -> None:
    [job] = served.api.get("/v1/jobs?queue=emails&status=running&limit=1").json()["jobs"]
    page.goto(f"{served.url}/ui/jobs/{job['id']}")
    expect(page.locator(".attempt").first).to_contain_text("on mailer")
    expect(page.locator(".strip .tick").first).to_be_visible()
    shot(page, "job-running")


def test_a_job_that_only_the_lake_has_is_shown(page: Page, served: Served) -> None:
    [found] = served.api.get("/v1/jobs?type=hello&status=succeeded&limit=1").json()["jobs"]
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))

    def old(told: Any) -> Any:
        kept = ("id", "type", "queue", "status", "priority", "created_at", "run_at", "ended_at", "attempts")
        return {**{name: told[name] for name in kept}, "source": "lake", "payload": None}

    changed(page, f"jobs/{found['id']}", old)
    page.goto(f"{served.url}/ui/jobs/{found['id']}")
    expect(page.get_by_text("This job has left the store")).to_be_visible()
    expect(page.locator(".steps")).to_contain_text("Succeeded")
    assert not any("/explain" in url or "/flow" in url for url in asked)
    assert violations(page) == []


def test_no_such_job_is_said(page: Page, served: Served, watch: Any) -> None:
    watch.expected.append("404")
    page.goto(f"{served.url}/ui/jobs/019a8c1e-0000-7000-8000-000000000000")
    expect(page.get_by_text("There is no such job")).to_be_visible()
