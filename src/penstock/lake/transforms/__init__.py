"""The tables of the lake as functions: DataFrames in, a DataFrame out, nothing read or written.

A function's positional parameters are named for the tables it takes; what else it may be told is by keyword, and
`as_of` is the time up to which the facts are known.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame

from penstock.lake.transforms.anomalies import anomalies
from penstock.lake.transforms.capacity import capacity, capacity_plan
from penstock.lake.transforms.failures import failure_days, failure_hours, failures
from penstock.lake.transforms.figures import daily, hourly, merge, queue_hours, usage
from penstock.lake.transforms.flows import flow_jobs, flows
from penstock.lake.transforms.schedules import schedules
from penstock.lake.transforms.silver import attempts, jobs, once
from penstock.lake.transforms.slo import slo

__all__ = ["BY_DAY", "GOLD", "SILVER", "Transform", "compute", "inputs", "merge", "once", "told"]

Transform = Callable[..., DataFrame]

SILVER: Mapping[str, Transform] = {"attempts": attempts, "jobs": jobs}

BY_DAY: Mapping[str, Transform] = {
    "hourly": hourly,
    "failure_hours": failure_hours,
    "failure_days": failure_days,
    "queue_hours": queue_hours,
    "flow_jobs": flow_jobs,
}
"""Those that can be made of some days' facts alone, kept by day and put beside those of other days.

`failure_hours`, `failure_days`, `queue_hours` and `flow_jobs` are no tables of gold but what some are made from, so that a run
need not read every error, histogram and job again.
"""

GOLD: Mapping[str, Transform] = {
    "hourly": hourly,
    "daily": daily,
    "failures": failures,
    "capacity": capacity,
    "capacity_plan": capacity_plan,
    "slo": slo,
    "anomalies": anomalies,
    "flows": flows,
    "schedules": schedules,
    "usage": usage,
}
"""In an order in which each comes after those it takes."""


def inputs(transform: Transform) -> tuple[str, ...]:
    """The tables that a transform takes, in order."""
    parameters = inspect.signature(transform).parameters.values()
    return tuple(one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD)


def told(transform: Transform, **known: Any) -> dict[str, Any]:
    """Of what is known, that which a transform may be told by keyword."""
    parameters = inspect.signature(transform).parameters
    return {name: value for name, value in known.items() if name in parameters}


def compute(name: str, tables: Mapping[str, DataFrame], *, as_of: datetime, **options: Any) -> DataFrame:
    """One table from those given; what it takes and is not given is made from what is."""
    transform = {**SILVER, **BY_DAY, **GOLD}[name]
    taken = [tables[one] if one in tables else compute(one, tables, as_of=as_of) for one in inputs(transform)]
    return transform(*taken, **told(transform, as_of=as_of), **options)
