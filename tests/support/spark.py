"""Spark for tests: a small one, quick to start, or the reason why there is none."""

from __future__ import annotations

import os
from typing import Any

import pytest

from support.system import _lack

WITHOUT = "the lake's packages are not installed (make .venv/.lake)"

SMALL = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
}
"""What makes tiny queries quick."""


def need_spark() -> None:
    """Skip, or fail where CI has promised it, if there is no Spark or no Java."""
    try:
        import pyspark  # noqa: F401

        from penstock.lake.java import JavaMissing, find_java
    except ModuleNotFoundError:
        _lack(WITHOUT)
    try:
        find_java()
    except JavaMissing as error:
        _lack(str(error))


def need_slow_spark() -> None:
    """The same for a test that starts a Spark of its own: only where all are asked for."""
    if os.environ.get("PENSTOCK_TEST_SPARK") != "all":
        pytest.skip("starts a Spark of its own; PENSTOCK_TEST_SPARK=all runs it")
    need_spark()


def start(master: str, **conf: str) -> Any:
    from penstock.lake.session import session

    spark = session(master, app_name="tests", **{**SMALL, **conf})
    spark.sparkContext.setLogLevel("OFF")
    return spark
