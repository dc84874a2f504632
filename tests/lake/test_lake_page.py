"""What docs/lake.md shows is run, in its order; what it lists is what there is."""

from __future__ import annotations

import asyncio
import importlib
import pkgutil
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from penstock import Penstock, Queue
from penstock.core.errors import PenstockError
from support.postgres import EmptyPostgresStore, server_url
from support.spark import WITHOUT

pytest.importorskip("pyspark", reason=WITHOUT)

import penstock.lake
from lake.gold import gold, lake_of
from penstock.lake import demo
from penstock.lake.tables import BRONZE, GOLD, SILVER

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "lake.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
END = datetime(2026, 11, 2, tzinfo=UTC)


@pytest.mark.spark
def test_its_examples_run(spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def begin() -> None:
        async with Queue(EmptyPostgresStore(None)) as queue:
            await queue.enqueue("mail", {"to": "ada"})

    asyncio.run(begin())
    demo.write(tmp_path / "bronze", jobs=200, days=3, seed=4, end=END)
    lake_of(gold(tmp_path / "bronze", END), tmp_path / "lake", END)
    names: dict[str, Any] = {
        "spark": spark, "url": server_url(), "app": Penstock(server_url()), "lake": str(tmp_path / "lake"),
    }  # fmt: skip
    shown = []
    for block in BLOCKS:
        exec(compile(block, "docs/lake.md", "exec"), names)
        shown.append(capsys.readouterr().out)
    columns, errors, seen, drained = shown
    assert "sum(arrivals)" in columns
    assert errors == "[]\n", "nothing has failed yet"
    assert seen == "1001\n"
    assert "succeeded=" in drained
    assert spark.read.format("penstock").option("url", server_url()).load("attempts").count() == 1_001


def test_it_lists_every_table() -> None:
    listed = set(re.findall(r"`(\w+)`", PAGE.split("## What it holds")[1].split("Columns and types")[0]))
    assert {*BRONZE, *SILVER, *GOLD} <= listed


def test_it_tells_of_every_refusal_of_a_run() -> None:
    modules = [
        importlib.import_module(found.name)
        for found in pkgutil.iter_modules(penstock.lake.__path__, "penstock.lake.")
    ]
    codes = {
        one.code
        for module in modules
        for one in vars(module).values()
        if isinstance(one, type) and issubclass(one, PenstockError) and one.code.startswith("lake_")
    }
    told = set(re.findall(r"`(lake_\w+)`", PAGE))
    assert told == codes


def test_every_option_it_lists_is_looked_at() -> None:
    source = "".join(path.read_text() for path in (ROOT / "src/penstock/lake/source").glob("*.py"))
    table = PAGE.split("| option | of |")[1].split("\n\n")[0]
    options = {name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert len(options) > 8
    assert {name for name in options if f'"{name}"' not in source} == set()
    asked = set(re.findall(r'options(?:\.get\(|\[|, )"(\w+)"', source))
    assert asked > {"url", "keyColumns", "onBadRows"}
    assert asked - options == {"startOffset", "endOffset", "path"}, "what is there and not told of"
