"""The options by which a command that runs for long is told how to log."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from penstock.logs import set_up_logging


def logging_options(command: Callable[..., None]) -> Callable[..., None]:
    """How a command that runs for long logs."""

    @functools.wraps(command)
    def run(log_level: str, log_format: Any, **options: Any) -> None:
        set_up_logging(log_level, log_format)
        command(**options)

    levels = click.Choice(["debug", "info", "warning", "error"])
    level = click.option(
        "--log-level", default="info", show_default=True, type=levels, help="How much to log."
    )
    form = click.option(
        "--log-format", default="auto", show_default=True, type=click.Choice(["auto", "json", "text"]),
        help="Text for people (on a terminal), JSON for programs.",
    )  # fmt: skip
    return level(form(run))
