"""Which jobs: the filter's options, shared by all commands that have one, and what they say in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from penstock.cli.words import Moment, local
from penstock.core.job import Cause, Status

NAMES = ("statuses", "queue", "type", "key", "schedule", "cause", "created_from", "created_before")


def filter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(
        (
            click.option(
                "-s", "--status", "statuses", multiple=True, type=click.Choice([*map(str, Status)]),
                help="In this state; give it several times for several.",
            ),
            click.option("-q", "--queue", metavar="NAME", help="In this queue."),
            click.option("-t", "--type", metavar="NAME", help="Of this type."),
            click.option("--key", help="With this key."),
            click.option("--schedule", metavar="NAME", help="Made by this schedule."),
            click.option("--cause", type=click.Choice([*map(str, Cause)]), help="Ended for this cause."),
            click.option(
                "--since", "created_from", type=Moment(before_now=True),
                help="Created since this time, or so long ago: 2h, 7d.",
            ),
            click.option(
                "--before", "created_before", type=Moment(before_now=True),
                help="Created before this time, or longer ago.",
            ),
        )
    ):  # fmt: skip
        command = option(command)
    return command


def taken(options: dict[str, Any]) -> dict[str, Any]:
    """Take the filter's options out of a command's: the conditions that were given."""
    given = {name: options.pop(name) for name in NAMES}
    return {name: value for name, value in given.items() if value is not None and value != ()}


def in_words(conditions: Mapping[str, Any]) -> str:
    """The predicate: `in state dead or held, in queue emails`."""
    phrases = {
        "statuses": lambda given: f"in state {_either(given)}",
        "queue": lambda given: f"in queue {given}",
        "type": lambda given: f"of type {given}",
        "key": lambda given: f"with key {given!r}",
        "schedule": lambda given: f"made by schedule {given}",
        "cause": lambda given: f"that ended for the cause {given}",
        "created_from": lambda given: f"created since {local(given)}",
        "created_before": lambda given: f"created before {local(given)}",
    }
    return ", ".join(phrases[name](conditions[name]) for name in NAMES if name in conditions)


def _either(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last
