"""The command line on a real PostgreSQL: in this process for the many small facts, as a process for the stories."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import pytest
from click.testing import CliRunner, Result

from penstock import Queue
from penstock.cli.main import main
from penstock.stores.postgres.store import PostgresStore
from penstock.stores.wakeups.polling import NoWakeups
from support.postgres import emptied, server_url


class Run(Protocol):
    def __call__(self, *arguments: str, input: str | None = None, **environment: str) -> Result: ...


@pytest.fixture
def url() -> str:
    """An empty store."""
    asyncio.run(emptied())
    return server_url()


@pytest.fixture
def run(url: str) -> Run:
    """`penstock …` in this process, as in a pipe."""

    def invoke(*arguments: str, input: str | None = None, **environment: str) -> Result:
        env = {"PENSTOCK_URL": url, "PENSTOCK_WAKEUPS": "none://", "PENSTOCK_TENANT": None, **environment}
        result = CliRunner().invoke(main, arguments, input=input, env=env)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert "Traceback" not in result.output
        return result

    return invoke


@pytest.fixture
def told(run: Run) -> Callable[..., Any]:
    """What a command that goes well says in JSON."""

    def tell(*arguments: str, **options: Any) -> Any:
        result = run(*arguments, **options)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    return tell


@pytest.fixture
def ask(url: str) -> Callable[[Callable[[Queue], Awaitable[Any]]], Any]:
    """Ask the store itself."""

    def asked(what: Callable[[Queue], Awaitable[Any]]) -> Any:
        async def within() -> Any:
            async with Queue(PostgresStore(url, wakeups=NoWakeups()), actor="test") as queue:
                return await what(queue)

        return asyncio.run(within())

    return asked


@pytest.fixture
def penstock(url: str) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`penstock …` as a process of its own."""

    def call(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "penstock", *arguments],
            capture_output=True, text=True, check=False, env={**os.environ, "PENSTOCK_URL": url}, **options,
        )  # fmt: skip

    return call
