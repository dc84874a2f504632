"""Jobs that hang together by their parents, and what decided when the last of them ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from penstock.lake.tables import FLOWS, ddl

_JOB = ("tenant", "job_id")

FLOW_JOBS: Mapping[str, str] = {
    "tenant": "string",
    "job_id": "string",
    "created_at": "timestamp",
    "ended_at": "timestamp",
    "status": "string",
    "parents": "array<string>",
    "day": "string",
}

WORST_FIRST = ("active", "held", "dead", "cancelled", "succeeded")


def flow_jobs(jobs: DataFrame) -> DataFrame:
    """One row per job that has parents, or is one's parent on the day it was made: what `flows` needs of a day's jobs."""
    children = jobs.where(F.size("parents") > 0).select(*FLOW_JOBS)
    # By hash: few jobs are somebody's parent, and to find them all others would be sorted too.
    parents = _named(children).distinct().hint("shuffle_hash")
    return children.unionByName(
        jobs.where(F.size("parents") == 0).join(parents, [*_JOB, "day"]).select(*FLOW_JOBS)
    )


def flows(flow_jobs: DataFrame, jobs: DataFrame) -> DataFrame:
    """One row per flow; its root is the oldest of its jobs.

    The critical path goes from the job that ended last to the parent that ended last, and so on to one without
    parents: to be done earlier, something on it must be. Parents that are not among the jobs are left out.

    Whose flow a job is in cannot be said by a join; so each tenant's flows, and they only, pass through Python.
    """
    found = jobs.join(F.broadcast(strangers(flow_jobs)), list(_JOB), "left_semi").select(*FLOW_JOBS)
    members = flow_jobs.unionByName(found).drop("day")
    return members.groupBy("tenant").applyInArrow(_flows_of_a_tenant, ddl(FLOWS)).select(*FLOWS)


def strangers(flow_jobs: DataFrame) -> DataFrame:
    """One row per parent of another day than its children, which only all jobs can tell of. Most often there are none."""
    return _named(flow_jobs).select(*_JOB).distinct().join(flow_jobs.select(*_JOB), list(_JOB), "left_anti")


def _named(children: DataFrame) -> DataFrame:
    return children.select("tenant", F.explode("parents").alias("job_id"), "day")


def _flows_of_a_tenant(members: Any) -> Any:
    import pyarrow as pa

    rows = members.to_pylist()
    schema = pa.schema([
        ("tenant", pa.string()), ("root_id", pa.string()), ("jobs", pa.int32()),
        ("began_at", pa.timestamp("us", "UTC")), ("ended_at", pa.timestamp("us", "UTC")),
        ("critical_ms", pa.int64()), ("critical_path", pa.list_(pa.string())), ("status", pa.string()),
    ])  # fmt: skip
    return pa.Table.from_pylist([_flow(flow) for flow in together(rows)], schema=schema)


def together(rows: list[dict[str, Any]]) -> Iterator[dict[str, dict[str, Any]]]:
    """The rows of each flow, by job: those that parents connect, directly or not."""
    jobs = {row["job_id"]: row for row in rows}
    head = {job_id: job_id for job_id in jobs}

    def find(job_id: str) -> str:
        while head[job_id] != job_id:
            head[job_id] = head[head[job_id]]
            job_id = head[job_id]
        return job_id

    for job_id, row in jobs.items():
        row["parents"] = [parent for parent in row["parents"] if parent in jobs]
        for parent in row["parents"]:
            one, other = sorted((find(job_id), find(parent)))
            head[other] = one
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for job_id, row in jobs.items():
        found.setdefault(find(job_id), {})[job_id] = row
    for flow in found.values():
        if len(flow) > 1:
            yield flow


def _flow(flow: dict[str, dict[str, Any]]) -> dict[str, Any]:
    statuses = {row["status"] for row in flow.values()}
    status = next((worst for worst in WORST_FIRST if worst in statuses), "active")
    ended = [row for row in flow.values() if row["ended_at"] is not None]
    path: list[str] = []
    while ended:
        last = max(ended, key=lambda row: (row["ended_at"], row["job_id"]))
        path.append(last["job_id"])
        ended = [flow[parent] for parent in last["parents"] if flow[parent]["ended_at"] is not None]
    critical = flow[path[0]]["ended_at"] - flow[path[-1]]["created_at"] if path else None
    return {
        "tenant": next(iter(flow.values()))["tenant"],
        "root_id": min(flow),
        "jobs": len(flow),
        "began_at": min(row["created_at"] for row in flow.values()),
        "ended_at": None if status == "active" else flow[path[0]]["ended_at"],
        "critical_ms": 0 if critical is None else (critical.days * 86_400 + critical.seconds) * 1000 + critical.microseconds // 1000,
        "critical_path": path[::-1],
        "status": status,
    }  # fmt: skip
