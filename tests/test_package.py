"""What `import penstock` brings along, and what it offers."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import penstock
from penstock.core import errors
from penstock.core.errors import PenstockError

ROOT = Path(__file__).parents[1]

NEVER = {
    "click", "rich", "asyncpg", "psycopg", "sqlalchemy", "pydantic", "fastapi", "starlette", "uvicorn", "httpx",
    "redis", "opentelemetry", "boto3", "obstore", "pyarrow", "pyspark", "django", "mcp", "pytest", "hypothesis",
}  # fmt: skip
"""Packages of the extras there are or will be, and of the tests."""


def modules_after(statement: str) -> set[str]:
    """The modules that a fresh interpreter holds after a statement."""
    code = f"{statement}; import json, sys; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def extras() -> set[str]:
    """The packages that only an extra installs, by the name they are imported under."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = (need for needs in project["optional-dependencies"].values() for need in needs)
    names = {re.split(r"[^A-Za-z0-9_.-]", need)[0].lower().replace("-", "_") for need in wanted}
    return names - {"penstock"}


@pytest.fixture(scope="module")
def loaded() -> set[str]:
    return modules_after("from penstock import *")


class TestImport:
    def test_alone_brings_nothing_in(self) -> None:
        """So that `penstock --help` comes at once; names are imported when they are first asked for."""
        loaded = modules_after("import penstock")
        assert [name for name in loaded if name.startswith("penstock.")] == []
        assert "asyncio" not in loaded

    def test_names_are_found_when_they_are_asked_for(self) -> None:
        assert {name for name in penstock.__all__ if getattr(penstock, name) is None} == set()
        assert {*penstock._HOME_OF} == {*penstock.__all__} <= {*dir(penstock)}
        with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
            penstock.nonsense  # noqa: B018

    def test_brings_the_package_in(self, loaded: set[str]) -> None:
        assert {"penstock", "penstock.queue", "penstock.core.machine", "penstock.stores.memory"} <= loaded

    def test_pulls_in_no_optional_package(self, loaded: set[str]) -> None:
        packages = {name.partition(".")[0] for name in loaded}
        assert packages & (NEVER | extras()) == set()

    def test_pulls_in_neither_the_command_line_nor_the_test_tools_nor_postgres(
        self, loaded: set[str]
    ) -> None:
        others = ("penstock.cli", "penstock.testing", "penstock.stores.postgres")
        assert [name for name in loaded if name.startswith(others)] == []

    def test_the_test_tools_need_nothing_more(self) -> None:
        packages = {name.partition(".")[0] for name in modules_after("import penstock.testing")}
        assert packages & (NEVER | extras()) == set()


class TestNames:
    def test_are_sorted_and_named_once(self) -> None:
        assert penstock.__all__ == sorted(set(penstock.__all__))

    @pytest.mark.parametrize("name", penstock.__all__)
    def test_can_be_imported(self, name: str) -> None:
        assert getattr(penstock, name).__module__.startswith("penstock.")

    def test_hold_every_error_there_is(self) -> None:
        declared = {
            name
            for name, value in vars(errors).items()
            if isinstance(value, type) and issubclass(value, PenstockError)
        }
        assert declared <= set(penstock.__all__)

    def test_hold_everything_that_the_package_imports_for_its_users(self) -> None:
        public = {
            name
            for name, value in vars(penstock).items()
            if not name.startswith("_") and getattr(value, "__module__", "").startswith("penstock.")
        }
        assert public == set(penstock.__all__)

    def test_there_is_a_version(self) -> None:
        assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+|(a|b|rc)\d+)?", penstock.__version__)

    def test_types_travel_with_the_package(self) -> None:
        assert (Path(penstock.__file__).parent / "py.typed").exists()
