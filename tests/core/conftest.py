"""What the tests of the machine share."""

from __future__ import annotations

from datetime import datetime

import pytest

from penstock.core.groups import Group
from penstock.core.ordering import Lane


@pytest.fixture
def no_endless_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lane that goes round in circles fails its test instead of hanging it."""
    steps = iter(range(500_000))
    listing = Lane._list

    def counted(lane: Lane, group: Group, now: datetime) -> None:
        if next(steps, None) is None:
            raise AssertionError("the lane goes round in circles")
        listing(lane, group, now)

    monkeypatch.setattr(Lane, "_list", counted)
