"""Spark for tests: a small one, quick to start, or the reason why there is none."""

from __future__ import annotations

from typing import Any

from support.system import _lack

WITHOUT = "the lake's packages are not installed (make .venv/.lake)"

_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
QUICK = {"JDK_JAVA_OPTIONS": _JAVA}
"""The same for every Java that a process starts."""

SMALL = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": _JAVA,
    "spark.executor.extraJavaOptions": _JAVA,
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


def start(master: str, **conf: str) -> Any:
    from penstock.lake.session import session

    spark = session(master, app_name="tests", **{**SMALL, **conf})
    spark.sparkContext.setLogLevel("OFF")
    return spark
