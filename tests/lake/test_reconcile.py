"""Of which days the store is asked, of those that the lake knows nothing of."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.lake.reconcile import unknown_days

POSTGRES = {"xid": 9, "floor": 5, "feed": "f", "system": "7/5"}
LOG = {"xid": 9, "floor": 0, "feed": "f", "system": "log/main"}
CUT = {**LOG, "floor": 5}
"""Of which some had left when the lake began."""
KNOWN = ["2026-01-03", "2026-01-05"]


@pytest.mark.parametrize("offset", [POSTGRES, LOG, CUT, {**LOG, "logs": [LOG, CUT]}])
def test_each_day_once_when_it_is_over(offset: dict[str, Any]) -> None:
    assert unknown_days(offset, KNOWN, "2026-01-02", "2026-01-06") == ["2026-01-02", "2026-01-04"]
    assert unknown_days(offset, KNOWN, "2026-01-06", "2026-01-06") == []


@pytest.mark.parametrize("offset", [POSTGRES, LOG, {**LOG, "logs": [LOG, LOG]}])
def test_all_of_them_when_all_is_looked_at(offset: dict[str, Any]) -> None:
    found = unknown_days(offset, KNOWN, None, "2026-01-06")
    assert (found[0], found[-3:]) == ("1970-01-01", ["2026-01-01", "2026-01-02", "2026-01-04"])


@pytest.mark.parametrize("offset", [CUT, {**LOG, "logs": [LOG, CUT]}])
def test_a_log_still_has_jobs_that_came_in_before_what_it_tells_of(offset: dict[str, Any]) -> None:
    """Jobs that wait or are dead stay; that they came in is no longer told, and so in no lake that began later."""
    assert unknown_days(offset, KNOWN, None, "2026-01-06") == []
