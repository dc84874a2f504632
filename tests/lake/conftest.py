"""One Spark for all tests of the lake, started by the first that needs it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from support.spark import need_spark, start


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whoever uses the one Spark is a test with Spark: those run by themselves, all others on both cores."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    need_spark()
    # Three tries for each task: without a number Spark tries none again on one machine.
    session = start("local[2,3]", **{"spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse"))})
    yield session
    session.stop()
