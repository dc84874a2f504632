"""What runs a type of job: the function, and how it is to be run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from penstock.worker.arguments import Arguments


class Runs(StrEnum):
    """Where a handler runs."""

    LOOP = "loop"
    """In the worker's event loop: async functions, by default."""
    THREAD = "thread"
    """In a thread: plain functions, by default. It cannot be stopped from outside; `ctx.cancelled` asks it to."""
    PROCESS = "process"
    """In a process of its own that can be killed: for work that computes, leaks or crashes."""


@dataclass(frozen=True, slots=True)
class Handler:
    """A function and how it is to be run."""

    name: str
    """The type of the jobs it runs."""
    function: Callable[..., Any]
    arguments: Arguments
    runs: Runs
    timeout_seconds: float | None = None
    memory_mb: int | None = None
    """The most memory its process may have; only where it runs in a process."""
    max_jobs_per_child: int | None = None
    """After so many jobs its process is replaced by a fresh one."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What its jobs ask for unless their enqueuer says otherwise: queue, retry, max_attempts, …"""
    is_async: bool = False


def make_handler(
    name: str,
    function: Callable[..., Any],
    *,
    runs: Runs | str | None = None,
    timeout_seconds: float | None = None,
    memory_mb: int | None = None,
    max_jobs_per_child: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> Handler:
    """A handler, with what was not said worked out from the function."""
    is_async = inspect.iscoroutinefunction(function)
    where = (Runs.LOOP if is_async else Runs.THREAD) if runs is None else Runs(runs)
    if where is Runs.LOOP and not is_async:
        raise TypeError(
            f"{function.__qualname__} is not async and would block the worker's event loop: "
            "let it run in a thread or a process"
        )
    if where is not Runs.PROCESS and (memory_mb is not None or max_jobs_per_child is not None):
        raise TypeError(f'{function.__qualname__}: memory_mb and max_jobs_per_child need runs="process"')
    arguments = Arguments(function)
    return Handler(
        name,
        function,
        arguments,
        where,
        timeout_seconds,
        memory_mb,
        max_jobs_per_child,
        dict(options or {}),
        is_async,
    )
