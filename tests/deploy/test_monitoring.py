"""What the dashboard and the alerts ask Prometheus for is what the service and the workers really tell it."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg
import pytest
import yaml  # type: ignore[import-untyped]
from prometheus_client.parser import text_string_to_metric_families

from penstock import Penstock
from penstock.app.running import worker_beside
from penstock.core.commands import Ack, Nack, Settled
from penstock.core.errors import LeaseLost
from penstock.core.job import JobId, LeaseToken, Status
from penstock.server.metrics import ServiceMetrics
from penstock.worker.execution import How
from support.postgres import server_url
from support.system import program

DEPLOY = Path(__file__).parents[2] / "deploy"
ALERTS = DEPLOY / "prometheus/alerts.yaml"
CASES = Path(__file__).parent / "alerts.yaml"

FROM_PROMETHEUS = {"instance", "job", "le"}
"""Labels that are not ours: Prometheus adds them, or a histogram has them."""
VALUES = {"status": [str(each) for each in Status], "outcome": [str(each) for each in How]}
WORDS = {"and", "or", "unless", "bool", "offset", "by", "without", "on", "ignoring"}


def promtool(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(program("promtool")), *arguments], capture_output=True, text=True, check=False, **options
    )


# ── What is told ──────────────────────────────────────────────────────────────────────────────────


@cache
def told() -> tuple[str, str]:
    """What the service and a worker tell when each thing that they count has happened once."""
    return asyncio.run(_tell())


async def _tell() -> tuple[str, str]:
    app = Penstock("memory://")

    @app.job(name="a", queue="q")
    async def a() -> None:
        pass

    async with app:
        async with worker_beside(app, {"scheduler": False}) as worker:
            await (await a.enqueue()).result(timeout=30)
            worker.metrics.unknown.add(type="b")
        service = ServiceMetrics()
        service.submitted("q")
        service.replayed("q")
        service.leased("q")
        id, token = JobId("id"), LeaseToken("t")
        service.settled(Ack(id, token), Settled(id, Status.SUCCEEDED, None), "q")
        service.settled(Nack(id, token, "x"), Settled(id, Status.QUEUED, None), "q")
        service.settled(Nack(id, token, "x"), Settled(id, Status.DEAD, None), "q")
        service.settled(Ack(id, token), LeaseLost(id), "q")
        service.request("GET", "/v1/jobs", 200, 0.1)
        return (await service.render(app.queue.store)).decode(), worker.metrics.text()


@cache
def labels_of() -> dict[str, set[str]]:
    """Every name that can be asked for, and its labels."""
    labels: dict[str, set[str]] = defaultdict(set, up=set())
    for text in told():
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels[sample.name] |= set(sample.labels)
    return dict(labels)


# ── What is asked ─────────────────────────────────────────────────────────────────────────────────


class Asked(NamedTuple):
    """What an expression of PromQL is made of."""

    metrics: set[str]
    matchers: list[tuple[str, str, str]]
    """Metric, label, and what the label is compared with."""
    groupings: set[str]


def parse(expression: str) -> Asked:
    texts: list[str] = []

    def put_away(found: re.Match[str]) -> str:
        texts.append(found[0][1:-1])
        return f'"{len(texts) - 1}"'

    left = re.sub(r'"(?:\\.|[^"\\])*"', put_away, expression)
    matchers = [
        (metric, label, texts[int(number)])
        for metric, inside in re.findall(r"(\w+)\{([^}]*)\}", left)
        for label, number in re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*"(\d+)"', inside)
    ]
    left = re.sub(r"\{[^}]*\}|\[[^\]]*\]", "", left)
    grouping = r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)"
    groupings = {label.strip() for inside in re.findall(grouping, left) for label in inside.split(",")}
    words = re.findall(r"\b[a-zA-Z_]\w*\b(?!\s*\()", re.sub(grouping, "", left))
    return Asked(set(words) - WORDS, matchers, groupings)


def alerts() -> list[dict[str, Any]]:
    [group] = yaml.safe_load(ALERTS.read_text())["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    return rules


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DEPLOY / "grafana/penstock.json").read_text())
    return found


def expressions() -> Iterator[tuple[str, str]]:
    for rule in alerts():
        yield rule["alert"], rule["expr"]
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", []):
            yield f"panel {panel['title']}", target["expr"]
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            yield f"variable {variable['name']}", variable["definition"].split("(")[1].rpartition(",")[0]
    for trigger in yaml.safe_load((DEPLOY / "kubernetes/keda.example.yaml").read_text())["spec"]["triggers"]:
        yield "KEDA", trigger["metadata"]["query"]


def wrong(expression: str) -> list[str]:
    """What an expression asks for and nobody tells."""
    known, asked = labels_of(), parse(expression)
    if missing := asked.metrics - known.keys():
        return [f"no metric {name}" for name in sorted(missing)]
    found = [
        f"{metric} has no label {label}"
        for metric, label, _ in asked.matchers
        if label not in known[metric] | FROM_PROMETHEUS
    ]
    there = FROM_PROMETHEUS.union(*(known[name] for name in asked.metrics))
    found += [f"nothing has a label {label}" for label in sorted(asked.groupings - there)]
    for metric, label, value in asked.matchers:
        values = VALUES.get(label, [])
        if values and not metric.startswith("penstock_http_"):
            found += [f"{label} is never {each}" for each in value.split("|") if each not in values]
    return found


ASKED = list(expressions())


@pytest.mark.parametrize("number", range(len(ASKED)), ids=[f"{n}-{ASKED[n][0]}" for n in range(len(ASKED))])
def test_what_is_asked_for_is_told(number: int) -> None:
    assert parse(ASKED[number][1]).metrics, "an expression about nothing is not understood"
    assert wrong(ASKED[number][1]) == []


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("sum(rate(penstock_jobs_sent_total[5m]))", "no metric penstock_jobs_sent_total"),
        ("penstock_workers or penstock_missing > 0", "no metric penstock_missing"),
        ('penstock_workers{queue="q"}', "penstock_workers has no label queue"),
        ("sum by (tenant, colour) (penstock_workers)", "nothing has a label colour"),
        ('penstock_queue_depth{status="queued|done"}', "status is never done"),
        ('penstock_worker_attempts_total{outcome="failed"}', "outcome is never failed"),
    ],
)
def test_what_nobody_tells_is_noticed(expression: str, said: str) -> None:
    assert wrong(expression) == [said]


def test_what_the_store_holds_is_never_summed_over_instances() -> None:
    """Each instance tells the same; a sum of them would be as many times too large."""
    for name, expression in ASKED:
        if not name.startswith("variable"):
            for found in re.finditer(
                r"(\w+)\s*(?:by \([^)]*\) )?\((?:delta\()?penstock_(queue|workers)", expression
            ):
                assert found[1] == "max", f"{name}: {expression}"


class TestAlerts:
    def test_each_says_what_to_do(self) -> None:
        for rule in alerts():
            assert set(rule["annotations"]) == {"summary", "what_to_do"}, rule["alert"]
            assert len(rule["annotations"]["what_to_do"]) > 30
            assert rule["labels"]["severity"] in ("warning", "critical")

    def test_name_labels_that_are_left(self) -> None:
        for rule in alerts():
            named = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
            assert named <= (parse(rule["expr"]).groupings or FROM_PROMETHEUS), rule["alert"]

    def test_each_has_a_case_in_which_it_fires(self) -> None:
        cases = yaml.safe_load(CASES.read_text())["tests"]
        samples = [
            sample for case in cases for each in case["promql_expr_test"] for sample in each["exp_samples"]
        ]
        fired = set(re.findall(r'alertname="(\w+)"', "".join(sample["labels"] for sample in samples)))
        assert fired == {rule["alert"] for rule in alerts()}

    def test_go_by_the_jobs_of_the_configuration(self) -> None:
        config = yaml.safe_load((DEPLOY / "prometheus/prometheus.yaml").read_text())
        jobs = {job["job_name"] for job in config["scrape_configs"]}
        named = {
            value for rule in alerts() for _, label, value in parse(rule["expr"]).matchers if label == "job"
        }
        assert named
        assert named <= jobs


class TestPromtool:
    @pytest.mark.parametrize(
        "arguments", [("check", "config", "prometheus.yaml"), ("check", "rules", "alerts.yaml")]
    )
    def test_takes_the_configuration(self, arguments: tuple[str, ...]) -> None:
        checked = promtool(*arguments, cwd=DEPLOY / "prometheus")
        assert checked.returncode == 0, checked.stdout + checked.stderr

    def test_sees_the_alerts_fire_when_they_should(self) -> None:
        tested = promtool("test", "rules", str(CASES))
        assert tested.returncode == 0, tested.stdout + tested.stderr

    @pytest.mark.parametrize("who", [0, 1], ids=["service", "worker"])
    def test_finds_nothing_wrong_with_what_is_told(self, who: int) -> None:
        checked = promtool("check", "metrics", input=told()[who])
        assert (checked.returncode, checked.stderr) == (0, "")


class TestDashboard:
    def test_shows_each_panel_once_and_in_its_place(self) -> None:
        panels = dashboard()["panels"]
        assert len({panel["id"] for panel in panels}) == len(panels)
        taken: set[tuple[int, int]] = set()
        for panel in panels:
            at = panel["gridPos"]
            cells = {
                (x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
            }
            assert not cells & taken, panel["title"]
            assert at["x"] + at["w"] <= 24
            taken |= cells

    def test_asks_the_source_that_people_choose(self) -> None:
        assert {
            target["datasource"]["uid"]
            for panel in dashboard()["panels"]
            for target in panel.get("targets", [])
        } == {"${datasource}"}

    def test_legends_name_labels_that_are_left(self) -> None:
        for panel in dashboard()["panels"]:
            for target in panel.get("targets", []):
                named = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
                assert named <= (parse(target["expr"]).groupings or FROM_PROMETHEUS), panel["title"]


async def test_the_query_for_scaling_by_the_database_runs() -> None:
    [query] = re.findall(
        r'^ *# +query: "(.*)"$', (DEPLOY / "kubernetes/keda.example.yaml").read_text(), re.MULTILINE
    )
    connection = await asyncpg.connect(server_url())
    try:
        assert isinstance(await connection.fetchval(query), int)
    finally:
        await connection.close()
