"""A group of commands whose modules are imported when they are called, so that help comes at once."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import click

from penstock.cli.exits import refused, refused_elsewhere
from penstock.core.errors import PenstockError

Sections = Mapping[str, Mapping[str, tuple[str, str]]]
"""Heading → name → (`module:attribute`, what help says of it)."""


class LazyGroup(click.Group):
    """Its help needs the table alone. Whatever Penstock refuses in a command ends it with one line, never a traceback."""

    def __init__(self, *args: Any, sections: Sections, **options: Any) -> None:
        super().__init__(*args, **options)
        self._sections = sections
        self._table = {name: entry for commands in sections.values() for name, entry in commands.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._table:
            return None
        module_name, _, attribute = self._table[cmd_name][0].partition(":")
        try:
            command = getattr(import_module(module_name), attribute)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.startswith("penstock"):
                raise
            raise click.UsageError(
                f'{cmd_name} needs the package {error.name!r}: pip install "penstock[all]"'
            ) from None
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self._table and (close := get_close_matches(name, self._table, n=1)):
            ctx.fail(f"No such command {name!r}. Did you mean {close[0]!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, self._table))
        for heading, commands in self._sections.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), about) for name, (_, about) in commands.items()])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except PenstockError as error:
            raise refused(error) from error
        except Exception as error:
            if (known := refused_elsewhere(error)) is None:
                raise
            raise known from error
