"""The two screens that the others are written after: what they show, and what they do, checked through the API."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from dashboard.conftest import Served, shot, violations


def test_a_queue_is_paused_with_a_reason_and_resumed(page: Page, served: Served) -> None:
    served.enqueue("later", queue="to-pause", delay=3600)
    page.goto(f"{served.url}/ui/queues")
    page.get_by_role("checkbox", name="Select to-pause").check()
    page.get_by_role("button", name="Pause", exact=True).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Reason").fill("incident 42")
    shot(page, "queue-pause")
    assert violations(page) == []
    dialog.get_by_role("button", name="Pause").click()
    row = page.get_by_role("row").filter(has_text="to-pause")
    expect(row).to_contain_text("paused")
    assert served.api.get("/v1/queues/to-pause").json()["settings"]["paused"] is True
    [change] = served.api.get("/v1/queues/to-pause/history").json()["changes"]
    assert change["reason"] == "incident 42"
    page.get_by_role("button", name="Resume", exact=True).first.click()
    expect(row).not_to_contain_text("paused")


def test_queues_sort_and_the_address_says_so(page: Page, served: Served) -> None:
    page.goto(f"{served.url}/ui/queues")
    page.get_by_role("button", name="Dead").click()
    expect(page).to_have_url(re.compile("sort=-dead"))
    expect(page.locator("tbody tr").first).to_contain_text("emails")


def test_the_search_narrows_suggests_and_is_in_the_address(page: Page, served: Served) -> None:
    page.goto(f"{served.url}/ui/jobs")
    expect(page.get_by_role("combobox", name="Search jobs")).to_be_visible()
    page.keyboard.press("/")
    expect(page.get_by_role("combobox", name="Search jobs")).to_be_focused()
    page.keyboard.type("queue:ema")
    expect(page.get_by_role("option", name="queue:emails")).to_be_visible()
    shot(page, "jobs-suggestions")
    assert violations(page) == []
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("q=queue%3Aemails"))
    page.get_by_role("button", name=re.compile("^dead")).click()
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(12)
    expect(rows.first).to_contain_text("TimeoutError")
    expect(page.get_by_role("button", name=re.compile("^dead"))).to_contain_text("12")
    page.reload()
    expect(rows).to_have_count(12)
    page.go_back()
    expect(page).not_to_have_url(re.compile("state=dead"))


def test_what_cannot_be_understood_is_said(page: Page, served: Served) -> None:
    page.goto(f"{served.url}/ui/jobs?q=colour:red")
    expect(page.get_by_role("alert")).to_contain_text("no qualifier “colour”")


def test_numbers_are_shown_exactly(page: Page, served: Served) -> None:
    page.goto(f"{served.url}/ui/jobs?q=type:import")
    expect(page.locator("tbody tr")).to_contain_text("9007199254740993")


def test_pages_follow_one_another(page: Page, served: Served) -> None:
    served.enqueue("paged", 60, queue="paged", delay=3600)
    page.goto(f"{served.url}/ui/jobs?q=queue:paged")
    expect(page.locator("tbody tr")).to_have_count(50)
    page.get_by_role("button", name="Older").click()
    expect(page.locator("tbody tr")).to_have_count(10)
    page.get_by_role("button", name="Newest").click()
    expect(page.locator("tbody tr")).to_have_count(50)


def test_rows_are_moved_through_and_selected_by_keys(page: Page, served: Served) -> None:
    served.enqueue("keyed", 3, queue="keyed", delay=3600)
    page.goto(f"{served.url}/ui/jobs?q=queue:keyed")
    expect(page.locator("tbody tr")).to_have_count(3)
    for key in ("j", "j", "x"):
        page.keyboard.press(key)
    expect(page.locator("tbody tr").nth(1)).to_have_class("chosen")
    page.keyboard.press("c")
    page.get_by_role("dialog").get_by_role("button", name="Cancel 1 job").click()
    served.until("/v1/jobs?queue=keyed&status=cancelled", lambda told: len(told["jobs"]) == 1)
    expect(page.locator("tbody tr").nth(1)).to_contain_text("cancelled")


def test_all_that_match_are_cancelled_after_the_predicate_was_told(page: Page, served: Served) -> None:
    served.enqueue("bulky", 120, queue="bulky", delay=3600)
    served.enqueue("spared", 2, queue="bulky", delay=3600)
    page.goto(f"{served.url}/ui/jobs?q=queue:bulky+type:bulky")
    page.get_by_role("checkbox", name="Select all on this page").check()
    page.get_by_role("button", name="Select all that match").click()
    shot(page, "jobs-selected")
    page.get_by_role("button", name="Cancel", exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("120")
    expect(dialog).to_contain_text("in queue bulky, of type bulky")
    act = dialog.get_by_role("button", name="Cancel 120 jobs")
    expect(act).to_be_disabled()
    dialog.get_by_label("Type 120").fill("120")
    shot(page, "jobs-bulk")
    assert violations(page) == []
    act.click()
    done = served.until(
        "/v1/bulk",
        lambda told: any(
            one["state"] == "done" and one["filter"]["queue"] == "bulky" for one in told["operations"]
        ),
    )
    [operation] = [one for one in done["operations"] if one["filter"]["queue"] == "bulky"]
    assert operation["changed"] == 120
    assert len(served.api.get("/v1/jobs?type=spared&status=queued").json()["jobs"]) == 2


def test_types_are_suggested_as_they_were_met_in_the_queue_named(page: Page, served: Served) -> None:
    served.until("/v1/types", lambda told: any(one["type"] == "mail.send" for one in told["types"]))
    page.goto(f"{served.url}/ui/jobs?state=held")
    page.get_by_role("combobox", name="Search jobs").fill("queue:emails type:")
    expect(page.get_by_role("option", name="type:mail.send")).to_be_visible()
    expect(page.get_by_role("option", name="type:hello")).to_have_count(0)


def test_a_page_of_jobs_is_exported_as_it_was_sent(page: Page, served: Served) -> None:
    page.goto(f"{served.url}/ui/jobs?q=type:import")
    expect(page.locator("tbody tr")).to_have_count(1)
    for kind in ("JSON", "CSV"):
        page.get_by_role("button", name="Export").click()
        with page.expect_download() as begun:
            page.get_by_role("menuitem", name=f"This page as {kind}").click()
        assert begun.value.suggested_filename == f"jobs.{kind.lower()}"
        assert "9007199254740993" in begun.value.path().read_text()


def test_columns_that_are_not_wanted_stay_away(page: Page, served: Served) -> None:
    page.goto(f"{served.url}/ui/jobs")
    header = page.get_by_role("columnheader", name="Worker")
    expect(header).to_be_visible()
    page.get_by_role("button", name="Columns").click()
    page.get_by_role("menuitemcheckbox", name="Worker").click()
    expect(header).to_have_count(0)
    page.reload()
    expect(page.get_by_role("columnheader", name="Queue")).to_be_visible()
    expect(header).to_have_count(0)
