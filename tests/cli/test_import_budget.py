"""Help comes at once: it imports nothing that only some command needs."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest

from penstock.cli.main import COMMANDS, main

HEAVY = (
    "rich",
    "asyncpg",
    "fastapi",
    "starlette",
    "uvicorn",
    "aiohttp",
    "redis",
    "opentelemetry",
    "pydantic",
)
MOST_MODULES = 350
"""Those of Python, click and msgspec included."""


def imported(*arguments: str) -> set[str]:
    code = f"""
import sys
from penstock.cli.main import main
main({list(arguments)!r}, standalone_mode=False)
print("\\n".join(sys.modules), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout
    return set(done.stderr.split())


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["jobs", "--help"], ["jobs", "list", "--help"]]
)
def test_help_imports_no_heavy_package(arguments: list[str]) -> None:
    modules = imported(*arguments)
    assert not {module for module in modules if module.partition(".")[0] in HEAVY}
    assert len(modules) < MOST_MODULES


def test_help_of_all_imports_no_command() -> None:
    commands = {where.partition(":")[0] for section in COMMANDS.values() for where, _ in section.values()}
    assert not imported("--help") & commands


def test_every_command_is_there_and_has_help() -> None:
    context = click.Context(main)
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        assert command is not None
        assert command.name == name
        for each in command.commands.values() if isinstance(command, click.Group) else [command]:
            assert each.help, (name, each.name)
