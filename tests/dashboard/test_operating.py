"""Workers, schedules, flows, bulk operations, insights, tokens, audit and system: each action done, its effect seen by the API."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Coroutine
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from dashboard.conftest import Served, shot, violations
from penstock.stores.postgres.embedded import start
from penstock.stores.postgres.store import PostgresStore
from support.insights import published


@pytest.fixture(scope="session")
def fleet(served: Served) -> dict[str, str]:
    """What these screens show; the id of a flow that has failed half-way."""
    api = served.api
    api.put(
        "/v1/schedules/nightly",
        json={
            "cron": "0 3 * * *",
            "tz": "Europe/Paris",
            "job": {"type": "hello", "payload": {"name": "Night"}},
        },
    ).raise_for_status()
    api.post("/v1/schedules/nightly/run").raise_for_status()
    [first] = served.enqueue("shop.order", queue="flows", max_attempts=1)
    parts = served.enqueue("shop.pack", 3, queue="flows", parents=[first], max_attempts=1)
    [last] = served.enqueue("shop.send", queue="flows", parents=parts)
    for _ in range(3):
        for one in api.post("/v1/queues/flows/lease", json={"worker_id": "shop"}).json()["jobs"]:
            path, token = f"/v1/jobs/{one['job']['id']}", {"token": one["token"]}
            if one["job"]["type"] == "shop.pack" and "failed" not in locals():
                failed = one["job"]["id"]
                api.post(
                    f"{path}/nack", json={**token, "error": "ValueError: no box is large enough"}
                ).raise_for_status()
            else:
                api.post(f"{path}/ack", json=token).raise_for_status()
    bulk = {"action": "cancel", "filter": {"queue": "imports"}, "dry_run": False, "reason": "imported twice"}
    api.post("/v1/bulk", json=bulk).raise_for_status()
    api.post("/v1/tokens", json={"name": "billing", "scopes": ["produce", "read"]}).raise_for_status()
    apart(_publish(served))
    return {"flow": first, "failed": failed, "last": last}


async def _publish(served: Served) -> None:
    """As the lake does it: in the store itself."""
    server = start(served.data)
    store = PostgresStore(server.url)
    try:
        await published(store)
    finally:
        await store.close()
        server.close()


def apart(work: Coroutine[Any, Any, None]) -> None:
    """Playwright has an event loop in this thread: ours runs in another."""
    thread = threading.Thread(target=asyncio.run, args=(work,))
    thread.start()
    thread.join()


def look(page: Page, served: Served, path: str, title: str) -> None:
    page.goto(f"{served.url}/ui{path}")
    expect(page.get_by_role("heading", level=1)).to_contain_text(title)
    expect(page.locator(".skeleton")).to_have_count(0)


PLACES = {
    "workers": "/workers", "schedules": "/schedules", "schedule": "/schedules/nightly", "flows": "/flows", "bulk": "/bulk",
    **{f"insights-{tab}": f"/insights?tab={tab}" for tab in ("load", "latency", "slo", "capacity", "anomalies", "schedules", "usage")},
    "tokens": "/tokens", "audit": "/audit", "system": "/system",
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("name", [*PLACES, "flow", "flow-time"])
@pytest.mark.usefixtures("fleet")
def test_it_looks_well_with_something_in_it(
    page: Page, served: Served, fleet: dict[str, str], name: str
) -> None:
    path = PLACES.get(name) or f"/flows/{fleet['flow']}{'?as=time' if name == 'flow-time' else ''}"
    page.goto(f"{served.url}/ui{path}")
    expect(page.locator(".skeleton")).to_have_count(0)
    expect(page.locator(".empty")).to_have_count(0)
    expect(page.get_by_role("alert")).to_have_count(0)
    shot(page, name)
    assert violations(page) == []
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size({"width": 390, "height": 800})
    shot(page, f"{name}-phone-dark")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert violations(page) == []


LATE_ANSWER_TO_DELETE = """() => {
    const ask = window.fetch;
    window.fetch = async (...what) => {
        const answer = await ask(...what);
        if (what[1]?.method === "DELETE") await new Promise((go) => setTimeout(go, 1500));
        return answer;
    };
}"""
"""Later than the event that tells of it, and than the second between two looks of the page at what is gone."""


def test_a_schedule_is_run_paused_edited_and_dropped(
    page: Page, served: Served, fleet: dict[str, str]
) -> None:
    look(page, served, "/schedules", "Schedules")
    page.get_by_role("button", name="New schedule").click()
    page.get_by_label("Name").fill("hourly")
    page.get_by_label("Cron").fill("5 * * * *")
    page.get_by_label("Job type").fill("hello")
    page.get_by_label("Payload").fill('{"name": 9007199254740993}')
    page.get_by_role("button", name="Save").click()
    served.until("/v1/schedules", lambda told: "hourly" in [one["name"] for one in told["schedules"]])
    assert "9007199254740993" in served.api.get("/v1/schedules/hourly").text
    page.get_by_role("link", name="hourly").click()
    page.get_by_role("button", name="Pause").click()
    served.until("/v1/schedules/hourly", lambda told: told["paused"])
    page.get_by_role("button", name="Resume").click()
    served.until("/v1/schedules/hourly", lambda told: not told["paused"])
    page.get_by_role("button", name="Run now").click()
    served.until("/v1/jobs?schedule=hourly", lambda told: len(told["jobs"]) == 1)
    page.get_by_role("button", name="More").click()
    page.get_by_role("menuitem", name="Drop").click()
    page.get_by_role("dialog").get_by_role("textbox").first.fill("hourly")
    page.evaluate(LATE_ANSWER_TO_DELETE)
    page.get_by_role("button", name="Drop it").click()
    expect(page.get_by_role("heading", name="Schedules")).to_be_visible()
    served.until("/v1/schedules", lambda told: "hourly" not in [one["name"] for one in told["schedules"]])


def test_a_flow_comes_back_from_where_it_failed(page: Page, served: Served, fleet: dict[str, str]) -> None:
    look(page, served, f"/flows/{fleet['flow']}", "Flow")
    assert served.api.get(f"/v1/jobs/{fleet['last']}").json()["status"] == "cancelled"
    page.get_by_role("button", name="Retry from where it failed").click()
    page.get_by_role("button", name="Redrive 1 job").click()
    served.until(f"/v1/jobs/{fleet['failed']}", lambda told: told["status"] == "queued")
    served.until(f"/v1/jobs/{fleet['last']}", lambda told: told["status"] == "waiting")


def test_a_worker_is_quietened_and_goes_on(page: Page, served: Served) -> None:
    look(page, served, "/workers", "Workers")
    page.get_by_role("button", name=re.compile("^What .* should do")).click()
    page.get_by_role("menuitem", name="Take nothing new").click()
    served.until("/v1/workers", lambda told: told["workers"][0].get("quiet"))
    expect(page.get_by_text("quiet", exact=True)).to_be_visible()
    page.get_by_role("button", name="Go on").click()
    served.until("/v1/workers", lambda told: not told["workers"][0].get("quiet"))


def test_a_token_is_made_shown_once_and_revoked(page: Page, served: Served) -> None:
    look(page, served, "/tokens", "Tokens")
    page.get_by_role("button", name="New token").click()
    page.get_by_label("Name").fill("nightly-export")
    page.get_by_label("read look at everything").check()
    page.get_by_role("button", name="Make the token").click()
    secret = page.locator(".secret code").inner_text()
    assert secret.startswith("pst_")
    page.get_by_role("button", name="I have kept it").click()
    assert secret not in page.content()
    page.get_by_role("button", name="What to do with nightly-export").click()
    page.get_by_role("menuitem", name="Revoke").click()
    page.get_by_role("dialog").get_by_role("textbox").first.fill("nightly-export")
    page.get_by_role("button", name="Revoke it").click()
    served.until("/v1/tokens", lambda told: "nightly-export" not in [one["name"] for one in told["tokens"]])


@pytest.mark.usefixtures("fleet")
def test_a_capacity_plan_is_applied(page: Page, served: Served) -> None:
    look(page, served, "/insights?tab=capacity", "Insights")
    page.get_by_role("button", name="Apply").click()
    page.get_by_role("button", name="Set it").click()
    served.until("/v1/queues/emails", lambda told: told["settings"]["lease_seconds"] == 45)


@pytest.mark.usefixtures("fleet")
def test_the_audit_log_leads_to_what_was_changed(page: Page, served: Served) -> None:
    look(page, served, "/audit", "Audit")
    page.get_by_role("link", name="nightly").first.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("nightly")
