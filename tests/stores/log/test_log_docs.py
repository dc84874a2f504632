"""The page about the log says what the code does."""

from __future__ import annotations

import re
import subprocess
import sys
from inspect import isclass
from pathlib import Path

import pytest

from penstock.queue import Queue
from penstock.stores.log import cost, errors
from penstock.stores.log.backings.memory import MemoryBacking
from penstock.stores.log.options import NAMES, Options, read_options
from penstock.stores.log.shards import ShardedLogStore
from support.log_costs import tables

PAGE = (Path(__file__).parents[3] / "docs" / "log.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
assert EXAMPLES


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_runs_as_it_stands(number: int, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(EXAMPLES[number])
    done = subprocess.run(
        [sys.executable, "shop.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "queue/FORMAT").exists()


def test_costs_are_those_that_the_doctor_reckons_with() -> None:
    found = re.search(r"<!-- costs: .* -->\n(.*)\n<!-- /costs -->", PAGE, re.DOTALL)
    assert found is not None
    assert found[1].strip() == tables(), "put in what `python -m support.log_costs` prints"


def test_options_are_told_with_what_holds_without_them() -> None:
    rows = dict(re.findall(r"^\| `(\w+)=\w+` \| `(\w+)` \|", PAGE, re.MULTILINE))
    assert set(rows) == set(NAMES)
    assert read_options("s3://b?" + "&".join(f"{name}={text}" for name, text in rows.items()))[1] == Options(
        shards=1
    )


def test_every_error_has_its_cure() -> None:
    told = set(re.findall(r"`(\w+)`", PAGE))
    raised = {
        name
        for name, one in vars(errors).items()
        if isclass(one) and issubclass(one, Exception) and one.__module__ == errors.__name__
    }
    assert raised - told == set()


@pytest.mark.parametrize("per_commit", [1, 10, 50])
async def test_jobs_in_batches_cost_what_is_said(per_commit: int) -> None:
    """As the doctor tells it of a log that has them."""
    store = ShardedLogStore(MemoryBacking())
    queue = Queue(store)
    for _ in range(6):
        await queue.enqueue_many([{"type": "a"} for _ in range(per_commit)])
        leased = await queue.lease(worker="w", limit=per_commit)
        assert len(await queue.settle_many([queue.acked(one) for one in leased])) == per_commit
    used = await store.usage()
    assert used.per_million_jobs(cost.S3_STANDARD) == pytest.approx(
        cost.of_jobs(1_000_000, per_commit).cost(cost.S3_STANDARD)
    )
    await queue.close()
