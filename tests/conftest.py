"""What every test leaves as it found it."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _logging_is_put_back() -> Iterator[None]:
    """Commands that run in this process set logging up for themselves; the next test has not asked for that."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    for handler in [handler for handler in root.handlers if handler not in handlers]:
        root.removeHandler(handler)
