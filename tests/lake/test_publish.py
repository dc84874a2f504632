"""Gold on its way back into the store, and what is read from it there. No JVM: DuckDB makes the gold."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

pytest.importorskip("duckdb", reason="the lake's packages are not installed")
pytest.importorskip("pyarrow")

from lake.gold import gold, lake_of, table
from penstock.connecting import connect
from penstock.core import bounds
from penstock.core.errors import InvalidInput, NotFound
from penstock.core.histogram import percentile
from penstock.insights import QUESTIONS, ask, offers
from penstock.lake import demo
from penstock.lake.fleet import LARGEST
from penstock.lake.manifest import Lake
from penstock.lake.publish import CHOICES, insights, publish, publish_lake
from penstock.lake.tables import GOLD
from penstock.stores.memory import MemoryStore
from support.postgres import emptied, server_url

END = datetime(2026, 3, 2, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("bronze")
    demo.write(folder, 2_000, 30, 11, END)
    return gold(folder, END)


@pytest.fixture(scope="module")
def tenant(made: dict[str, Any]) -> str:
    """Who has most to tell."""
    tenants: list[str] = made["hourly"]["tenant"].to_pylist()
    return Counter(tenants).most_common(1)[0][0]


def of(made: dict[str, Any], name: str, tenant: str) -> list[dict[str, Any]]:
    return [row for row in made[name].to_pylist() if row["tenant"] == tenant]


def empty() -> dict[str, Any]:
    return {name: table(name, []) for name in GOLD}


def hour(at: datetime, **more: Any) -> dict[str, Any]:
    counts = dict.fromkeys((column for column, kind in GOLD["hourly"].items() if kind == "bigint"), 1)
    return {
        "tenant": "t",
        "queue": "q",
        "type": "a",
        "hour": at,
        "wait_hist": {},
        "run_hist": {},
        **counts,
        **more,
    }


async def test_every_tenant_gets_every_table_as_of_the_same_moment(made: dict[str, Any]) -> None:
    store = MemoryStore()
    number = await publish(store, made, END)
    tenants = set(made["usage"]["tenant"].to_pylist())
    assert len(tenants) > 1
    assert number == len(tenants) * (len(GOLD) + 1)
    for tenant in tenants:
        told = await offers(store, tenant)
        assert told.as_of == END
        rows = {one.name: one.rows for one in told.insights}
        assert rows.keys() == QUESTIONS.keys()
        assert rows["failures"] == len(of(made, "failures", tenant))
        for name in QUESTIONS:
            assert (await ask(store, tenant, name)).as_of == END


async def test_what_is_read_is_what_was_in_gold(made: dict[str, Any], tenant: str) -> None:
    store = MemoryStore()
    await publish(store, made, END)
    counted = {row["fingerprint"]: row["count"] for row in of(made, "failures", tenant)}
    told = await ask(store, tenant, "failures")
    assert {row["fingerprint"]: row["count"] for row in told.rows} == counted
    assert [row["count_24h"] for row in told.rows] == sorted(
        (row["count_24h"] for row in told.rows), reverse=True
    )
    plans = {row["queue"]: row["concurrency"] for row in of(made, "capacity_plan", tenant)}
    capacity = await ask(store, tenant, "capacity")
    assert {row["queue"]: row["concurrency"] for row in capacity.rows} == plans
    loads = {(row["queue"], row["hour_of_week"]): row["offered_load"] for row in of(made, "capacity", tenant)}
    assert all(
        row["load"][at] == loads.get((row["queue"], at), 0) for row in capacity.rows for at in range(168)
    )
    used = await ask(store, tenant, "usage")
    assert sum(row["jobs"] for row in used.rows) == sum(row["jobs"] for row in of(made, "usage", tenant))


async def test_percentiles_are_those_of_all_types_of_a_queue_together(
    made: dict[str, Any], tenant: str
) -> None:
    store = MemoryStore()
    await publish(store, made, END)
    together: dict[tuple[str, datetime], Counter[int]] = {}
    for row in of(made, "hourly", tenant):
        if row["hour"] >= END - timedelta(days=14):
            together.setdefault((row["queue"], row["hour"]), Counter()).update(dict(row["run_hist"]))
    told = await ask(store, tenant, "latency")
    found = {(row["queue"], datetime.fromisoformat(row["hour"])): row for row in told.rows}
    assert found.keys() == together.keys()
    for place, counts in together.items():
        assert found[place]["attempts"] == counts.total()
        expected = percentile(counts, 0.95)
        assert found[place]["run_p95_ms"] == (
            expected if expected is None else pytest.approx(expected, rel=1e-3)
        )
    hours = [row["hour"] for row in told.rows]
    assert hours == sorted(hours, reverse=True)


async def test_can_be_narrowed_down_to_a_queue_or_a_type(made: dict[str, Any], tenant: str) -> None:
    store = MemoryStore()
    await publish(store, made, END)
    queue = of(made, "slo", tenant)[0]["queue"]
    told = await ask(store, tenant, "slo", queue=queue)
    assert {row["queue"] for row in told.rows} == {queue}
    failure = of(made, "failures", tenant)[0]
    told = await ask(store, tenant, "failures", type=failure["types"][0])
    assert failure["fingerprint"] in {row["fingerprint"] for row in told.rows}
    assert all(failure["types"][0] in row["types"] for row in told.rows)
    with pytest.raises(InvalidInput, match="flows are not kept by queue"):
        await ask(store, tenant, "flows", queue=queue)


async def test_a_limit_says_how_much_it_leaves_out(made: dict[str, Any], tenant: str) -> None:
    store = MemoryStore()
    await publish(store, made, END)
    told = await ask(store, tenant, "usage", limit=3)
    assert len(told.rows) == 3
    assert told.left_out == len(of(made, "usage", tenant)) - 3


async def test_only_recent_hours_are_published() -> None:
    rows = [hour(END - timedelta(days=13)), hour(END - timedelta(days=15)), hour(END - timedelta(hours=1))]
    store = MemoryStore()
    await publish(store, {**empty(), "hourly": table("hourly", rows)}, END)
    told = await ask(store, "t", "hourly")
    assert [datetime.fromisoformat(row["hour"]) for row in told.rows] == [rows[2]["hour"], rows[0]["hour"]]
    assert told.left_out == 1


async def test_a_body_is_cut_to_what_the_store_takes_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "INSIGHT_BYTES", 20_000)
    rows = [hour(END - timedelta(hours=at), wait_hist=dict.fromkeys(range(50), 1)) for at in range(200)]
    found = {one.name: one for one in insights({**empty(), "hourly": table("hourly", rows)}, END)}
    assert 10_000 < len(found["hourly"].body.encode()) <= 20_000
    store = MemoryStore()
    await store.put_insights(list(found.values()))
    told = await ask(store, "t", "hourly")
    assert told.left_out == 200 - len(told.rows) > 0
    assert datetime.fromisoformat(told.rows[0]["hour"]) == END


async def test_an_hour_is_published_with_all_its_types_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Percentiles are told of all types of an hour together: with some of them left out they would be others."""
    rows = [hour(END - timedelta(hours=at), type=type, run_hist={1: 1}) for at in range(5) for type in "abc"]
    tables = {**empty(), "hourly": table("hourly", rows)}
    whole, recent = CHOICES["hourly"], MemoryStore()
    monkeypatch.setattr("penstock.lake.publish.CHOICES", {**CHOICES, "hourly": replace(whole, most=8)})
    await publish(recent, tables, END)
    assert [row["attempts"] for row in (await ask(recent, "t", "latency")).rows] == [3, 3]
    assert (await ask(recent, "t", "hourly")).left_out == 9
    monkeypatch.undo()
    [one] = [one for one in insights(tables, END) if one.name == "hourly"]
    monkeypatch.setattr(bounds, "INSIGHT_BYTES", len(one.body) * 8 // 15)
    small = MemoryStore()
    await publish(small, tables, END)
    assert {row["attempts"] for row in (await ask(small, "t", "latency")).rows} == {3}


async def test_tenants_that_a_run_does_not_tell_of_any_more_have_no_answers() -> None:
    store = MemoryStore()
    demo = [hour(END, tenant="acme"), hour(END, tenant="default")]
    await publish(store, {**empty(), "hourly": table("hourly", demo)}, END)
    own = [hour(END, tenant="default")]
    await publish(store, {**empty(), "hourly": table("hourly", own)}, END + timedelta(hours=1))
    assert (await offers(store, "acme")).as_of is None
    assert len((await ask(store, "default", "hourly")).rows) == 1


async def test_what_is_over_does_not_stay() -> None:
    store = MemoryStore()
    anomaly = {
        "tenant": "t", "queue": "q", "hour": END, "metric": "arrivals", "value": 9.0, "expected": 1.0, "score": 8.0,
        "direction": "high",
    }  # fmt: skip
    hours = table("hourly", [hour(END)])
    await publish(store, {**empty(), "hourly": hours, "anomalies": table("anomalies", [anomaly])}, END)
    assert len((await ask(store, "t", "anomalies")).rows) == 1
    await publish(store, {**empty(), "hourly": hours}, END + timedelta(hours=1))
    assert (await ask(store, "t", "anomalies")).rows == []


async def test_an_older_run_is_refused_and_half_a_run_too(made: dict[str, Any], tenant: str) -> None:
    store = MemoryStore()
    await publish(store, made, END)
    with pytest.raises(InvalidInput, match="no older"):
        await publish(store, made, END - timedelta(hours=1))
    with pytest.raises(ValueError, match="flows, slo are not given"):
        await publish(store, {name: made[name] for name in GOLD if name not in ("slo", "flows")}, END)
    assert (await ask(store, tenant, "slo")).as_of == END


async def test_who_has_nothing_yet_is_told_what_to_do() -> None:
    store = MemoryStore()
    assert (await offers(store, "nobody")).as_of is None
    with pytest.raises(NotFound, match="penstock lake run"):
        await ask(store, "nobody", "slo")
    with pytest.raises(NotFound, match="there are anomalies, capacity"):
        await ask(store, "nobody", "weather")


@pytest.fixture
def lake(made: dict[str, Any], tmp_path: Path) -> Lake:
    return lake_of(made, tmp_path / "lake", END)


async def test_a_lake_is_published_from_its_files_under_the_name_its_tenant_has_there(
    made: dict[str, Any], lake: Lake
) -> None:
    await emptied()
    manifest, renamed = lake.manifest(), {LARGEST: "default"}
    tenants = set(made["usage"]["tenant"].to_pylist())
    assert publish_lake(server_url(), lake, manifest, renamed=renamed) == len(tenants) * (len(GOLD) + 1)
    memory = MemoryStore()
    await publish(memory, made, END)
    async with connect(server_url()) as queue:
        for name in QUESTIONS:
            told, expected = await ask(queue.store, "default", name), await ask(memory, LARGEST, name)
            assert sorted(map(repr, told.rows)) == sorted(map(repr, expected.rows))
        assert (await offers(queue.store, LARGEST)).as_of is None
    assert publish_lake(server_url(), lake, manifest, renamed=renamed) == 0
    assert publish_lake(server_url(), lake, manifest) > 0, "under other names it is something else"


def test_every_table_has_its_choice() -> None:
    assert CHOICES.keys() == GOLD.keys()
