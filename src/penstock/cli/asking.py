"""The options that say what a job is asked to be: shared by `enqueue` and `schedules put`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from penstock.cli.words import Duration


def job_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Each is a field of NewJob; what is not given is None, and the queue's settings decide."""
    for option in reversed(
        (
            click.option("-q", "--queue", metavar="NAME", help="The queue; `default` unless given."),
            click.option("--priority", type=int, help="Higher is more urgent."),
            click.option("--max-attempts", type=int, help="By default, what its queue is set to."),
            click.option("--key", help="Whose job it is within its queue: limits per key and fair turns."),
            click.option("--ordering-key", help="Jobs that share it run one at a time, in order."),
            click.option("--unique-key", help="While a job with it is active, no second one is made."),
            click.option("--expires-in", type=Duration(), help="Cancelled unless it has begun by then."),
            click.option(
                "--header", "headers", multiple=True, metavar="NAME=VALUE", callback=_headers,
                help="What travels with it beside the payload.",
            ),
        )
    ):  # fmt: skip
        command = option(command)
    return command


def _headers(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> dict[str, str] | None:
    pairs = [each.partition("=") for each in given]
    for name, equals, _ in pairs:
        if not (name and equals):
            raise click.BadParameter("say it as name=value", ctx, param)
    return {name: value for name, _, value in pairs} or None


def job_asked(payload: tuple[Any] | None, **options: Any) -> dict[str, Any]:
    """The fields that were given."""
    asked = {name: value for name, value in options.items() if value is not None}
    return asked if payload is None else {**asked, "payload": payload[0]}
