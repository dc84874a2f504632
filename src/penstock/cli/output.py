"""What commands print: tables for people, JSON, JSON lines and CSV for programs. rich is imported for tables alone."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

from penstock.cli.tables import GAP, Needs, needs, widths

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.table import Table
    from rich.text import Text

Plain = dict[str, Any]
FORMATS = ("table", "wide", "json", "jsonl", "csv")
COLOURS = {
    "succeeded": "green", "ok": "green", "running": "cyan", "waiting": "dim", "cancelled": "dim",
    "held": "yellow", "paused": "yellow", "warning": "yellow", "dead": "red", "problem": "bold red",
    "failed": "red", "lost": "red",
}  # fmt: skip


def output_option(*formats: str) -> Callable[[Any], Any]:
    """`-o`: how to print; what is not given is a table on a terminal and JSON in a pipe."""
    return click.option(
        "-o", "--output", type=click.Choice(formats or FORMATS), callback=_resolved,
        help="How to print. By default a table on a terminal, JSON in a pipe.",
    )  # fmt: skip


def _resolved(ctx: click.Context, param: click.Parameter, value: str | None) -> str:
    return value or ("table" if sys.stdout.isatty() else "json")


# ── For programs ──────────────────────────────────────────────────────────────────────────────────


def plain(value: object) -> Any:
    """A value of Penstock as JSON can say it."""
    return msgspec.to_builtins(value)


def as_json(value: object) -> str:
    # Indented for eyes, one line for programs.
    return json.dumps(plain(value), ensure_ascii=False, indent=2 if sys.stdout.isatty() else None)


def print_json(value: object) -> None:
    click.echo(as_json(value))


class _Lines:
    """Rows as they come, so that a million of them need no memory."""

    def __init__(self, output: str) -> None:
        self._output = output
        self._writer: csv.DictWriter[str] | None = None
        self._count = 0

    def write(self, row: Plain) -> None:
        row = plain(row)
        if self._output == "csv":
            if self._writer is None:
                self._writer = csv.DictWriter(sys.stdout, list(row))
                self._writer.writeheader()
            self._writer.writerow({name: _csv_cell(value) for name, value in row.items()})
            return
        text = json.dumps(row, ensure_ascii=False)
        click.echo(text if self._output == "jsonl" else f"{',' if self._count else '['}{text}")
        self._count += 1

    def end(self) -> None:
        if self._output == "json":
            click.echo("]" if self._count else "[]")
        sys.stdout.flush()  # while there is somebody to tell that it cannot be written


def _csv_cell(value: object) -> object:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list | tuple) else value


# ── For people ────────────────────────────────────────────────────────────────────────────────────


class Column(NamedTuple):
    title: str
    cell: Callable[[Any], object]
    wide: bool = False
    """Shown by `-o wide` alone."""
    right: bool = False
    whole: bool = False
    """Never wrapped: what people copy, and words that say all."""
    spare: int = 0
    """What goes first where there is little room: the highest. See `tables`."""


def now() -> datetime:
    return datetime.now(UTC)


def console(*, wide: bool = False) -> Console:
    """Where tables go. In a pipe, and if asked for all there is, nothing is wrapped; NO_COLOR is honoured by rich itself."""
    from rich.console import Console

    width = None if sys.stdout.isatty() and not wide else 10_000
    return Console(highlight=False, markup=False, emoji=False, width=width)


def clean(value: object) -> str:
    """Text that cannot steer a terminal: payloads and errors come from anywhere."""
    return "".join(
        char if char.isprintable() or char == "\n" else char.encode("unicode_escape").decode()
        for char in str(value).replace("\t", "    ")
    )


def coloured(value: object) -> Text:
    """A text in the colour that its first word has everywhere."""
    from rich.text import Text

    shown = clean(value)
    return Text(shown, style=COLOURS.get(shown.partition(" ")[0], ""))


def table(columns: Sequence[Column], items: Iterable[Any], *, wide: bool = False) -> Fitted:
    shown = [column for column in columns if wide or not column.wide]
    return Fitted(shown, [[_cell(column.cell(item)) for column in shown] for item in items], whole=wide)


class Fitted:
    """A table that fits where it is printed. What it leaves out it names; one that is `whole` leaves out and cuts nothing."""

    def __init__(self, columns: Sequence[Column], rows: Sequence[Sequence[Text]], *, whole: bool) -> None:
        self._columns, self._rows, self._whole = columns, rows, whole

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        from rich.text import Text

        asked = [
            needs(
                column.title,
                [row[place].plain for row in self._rows],
                spare=column.spare,
                firm=column.whole or column.right,
            )
            for place, column in enumerate(self._columns)
        ]
        found = None if self._whole else widths(asked, options.max_width)
        yield self._table(asked, found)
        if found is None:
            return
        out = [
            self._columns[place].title
            for place, one in enumerate(asked)
            if one.natural and place not in found
        ]
        if out:
            yield Text(f"no room for: {', '.join(out)}", style="dim")

    def _table(self, asked: Sequence[Needs], found: Mapping[int, int] | None) -> Table:
        from rich.table import Table

        made = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
        shown = range(len(self._columns)) if found is None else sorted(found)
        for place in shown:
            column = self._columns[place]
            width = None if found is None else found[place]
            made.add_column(
                column.title,
                justify="right" if column.right else "left",
                no_wrap=column.whole,
                width=width,
                min_width=asked[place].natural if column.whole and width is None else None,
                overflow="fold" if width is None or width >= asked[place].least else "ellipsis",
            )
        for row in self._rows:
            made.add_row(*(row[place] for place in shown))
        return made


def _cell(value: object) -> Text:
    from rich.text import Text

    return value if isinstance(value, Text) else coloured("" if value is None else value)


def show_list(
    items: Sequence[Any],
    output: str,
    columns: Sequence[Column],
    *,
    empty: str,
    as_plain: Callable[[Any], Plain] = plain,
) -> None:
    """Print a list, in the format asked for; with nothing in it a person is told so."""
    if output in ("table", "wide"):
        if items:
            wide = output == "wide"
            console(wide=wide).print(table(columns, items, wide=wide))
        else:
            click.echo(empty, err=True)
        return
    if output == "json":
        print_json([as_plain(item) for item in items])
        return
    lines = _Lines(output)
    for item in items:
        lines.write(as_plain(item))
    lines.end()


async def stream(items: AsyncIterable[Any], output: str, as_plain: Callable[[Any], Plain]) -> None:
    """Print rows for programs as they come."""
    lines = _Lines(output)
    async for item in items:
        lines.write(as_plain(item))
    lines.end()


def facts(pairs: Mapping[str, object]) -> Table:
    """Names and values below each other; what is None is left out."""
    from rich.table import Table
    from rich.text import Text

    made = Table.grid(padding=(0, 2))
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in pairs.items():
        if value is not None:
            made.add_row(name, value if isinstance(value, Text) else coloured(value))
    return made


def heading(text: str) -> Text:
    from rich.text import Text

    return Text(clean(text), style="bold")


def indented(text: str) -> Any:
    from rich.padding import Padding
    from rich.text import Text

    return Padding(Text(clean(text)), (0, 0, 0, 2), expand=False)


def pretty(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)


def hint(text: str) -> None:
    """What to do next, for people alone: never in what a program reads."""
    if sys.stderr.isatty():
        click.secho(text, err=True, dim=True)
