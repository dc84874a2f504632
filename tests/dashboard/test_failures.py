"""Failures by what they have in common, and all of their jobs brought back."""

from __future__ import annotations

import re

from playwright.sync_api import BrowserContext, Page, expect

from dashboard.conftest import Served, log_in, looked_at, shot, violations
from dashboard.test_overview import changed

OLD = {
    "fingerprint": "feedfacefeedface", "error_type": "OldError", "top_frame": "old.py in go", "text": "OldError: long ago",
    "first_seen": "2026-01-01T00:00:00Z", "last_seen": "2026-01-02T00:00:00Z", "count": 1234, "count_24h": 0, "trend": 0.0,
    "is_new": False, "queues": ["attic"], "types": ["dust"], "sample_jobs": ["019a8c1e-0000-7000-8000-000000000000"],
}  # fmt: skip


def test_groups_are_listed_and_looked_into(page: Page, served: Served) -> None:
    served.until("/v1/failures?queue=emails", lambda told: told["failures"])
    page.goto(f"{served.url}/ui/failures")
    row = page.get_by_role("row").filter(has_text="TimeoutError")
    expect(row).to_contain_text("mail.send")
    expect(row).to_contain_text("rising")
    shot(page, "failures-listed")
    row.get_by_role("link", name="TimeoutError").click()
    expect(page).to_have_url(re.compile(r"/failures/[0-9a-f]+$"))
    expect(page.get_by_role("group", name="Traceback")).to_contain_text('File "mail.py", line 7')
    expect(page.locator(".u-legend")).to_be_visible()
    looked_at(page, "failure")
    page.get_by_role("link", name="Jobs like these").click()
    expect(page).to_have_url(re.compile(r"state=dead&q=queue%3Aemails\+type%3Amail.send"))
    expect(page.locator("tbody tr")).to_have_count(12)


def test_a_group_is_redriven_at_a_pace_and_its_count_falls(page: Page, served: Served) -> None:
    served.enqueue("paced", 3, queue="paced")
    jobs = served.fail("paced", "PacedError: not so fast")
    served.enqueue("paced", 1, queue="paced")
    [other] = served.fail("paced", "OtherError: leave me be")
    served.until("/v1/failures?queue=paced", lambda told: len(told["failures"]) == 2)
    page.goto(f"{served.url}/ui/failures?queue=paced")
    expect(page.locator("tbody tr")).to_have_count(2)
    row = page.get_by_role("row").filter(has_text="PacedError")
    row.get_by_role("button", name="Redrive").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("3jobs are dead or held because of PacedError")
    dialog.get_by_label("Jobs a second").fill("0")
    expect(dialog.get_by_role("alert")).to_contain_text("above 0")
    dialog.get_by_label("Jobs a second").fill("50")
    dialog.get_by_label("Reason").fill("the valve is open")
    dialog.get_by_role("button", name="Redrive 3 jobs").click()
    expect(dialog).to_contain_text("3 jobs of PacedError came back.")
    assert {served.status(job) for job in jobs} == {"queued"}
    assert served.status(other) == "dead"
    [operation] = [
        one for one in served.api.get("/v1/bulk").json()["operations"] if one["filter"]["queue"] == "paced"
    ]
    assert (operation["per_second"], operation["reason"]) == (50, "the valve is open")
    dialog.get_by_role("button", name="Close").last.click()
    row.get_by_role("button", name="Redrive").click()
    expect(dialog).to_contain_text("There is nothing to bring back")
    expect(dialog.get_by_role("button", name="Redrive 0 jobs")).to_be_disabled()


def test_who_may_only_read_cannot_redrive(context: BrowserContext, served: Served) -> None:
    served.until("/v1/failures?queue=emails", lambda told: told["failures"])
    made = served.api.post("/v1/tokens", json={"name": "onlooker", "scopes": ["read"]}).json()
    log_in(context, served, made["secret"])
    page = context.new_page()
    page.goto(f"{served.url}/ui/failures?queue=emails")
    button = page.get_by_role("button", name="Redrive")
    expect(button).to_be_disabled()
    expect(button).to_have_attribute("title", re.compile("Needs the scope operate"))


def test_what_the_lake_has_kept_is_shown_too(page: Page, served: Served) -> None:
    offer = {"name": "failures", "about": "", "rows": 1}
    changed(page, "insights", lambda _: {"as_of": "2026-01-03T00:00:00Z", "insights": [offer]})
    page.route(
        "**/v1/insights/failures?*",
        lambda route: route.fulfill(
            json={"name": "failures", "as_of": "2026-01-03T00:00:00Z", "rows": [OLD], "left_out": 0}
        ),
    )
    page.goto(f"{served.url}/ui/failures")
    older = page.get_by_role("region", name="Older failures")
    expect(older).to_contain_text("long ago")
    shot(page, "failures-older")
    older.get_by_role("link", name="OldError").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("OldError")
    expect(page.get_by_text("1,234")).to_be_visible()
    assert violations(page) == []
