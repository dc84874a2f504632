"""What every test leaves as it found it, and what takes long to start and is wanted in several places."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest

from support.buckets import running_azurite

LONG = "PENSTOCK_TEST_LONG"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`make test` is to stay under ten minutes on two cores; CI has the time for all."""
    if not os.environ.get(LONG):
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(pytest.mark.skip(f"takes long, and is run by CI and with {LONG}=1"))


@pytest.fixture(autouse=True)
def _logging_is_put_back() -> Iterator[None]:
    """Commands that run in this process set logging up for themselves; the next test has not asked for that."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    for handler in [handler for handler in root.handlers if handler not in handlers]:
        root.removeHandler(handler)


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a container of Azurite's, for all that want one."""
    with running_azurite(tmp_path_factory.mktemp("azurite")) as url:
        yield url
