"""From `module:app` on the command line to the app."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from types import TracebackType

import click

from penstock import Penstock
from penstock.cli.exits import Exit


def load_app(target: str) -> Penstock:
    """The app that `module:name` names; without a name, the only one in the module."""
    module_name, _, name = target.partition(":")
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)  # as `python -m` does, and people expect
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name and module_name.startswith(error.name):
            raise click.UsageError(
                f"no module {module_name!r} here; run this where it can be imported, or set PYTHONPATH"
            ) from None
        # The module is there, and what is wrong is in it, or in what it imports: our own lines are nobody's concern.
        traceback.print_exception(error.with_traceback(_theirs(error.__traceback__)))
        click.echo(f"penstock: {module_name} cannot be imported: the error above is its own", err=True)
        raise SystemExit(Exit.FAILED) from None
    if name:
        found = getattr(module, name, None)
        if not isinstance(found, Penstock):
            raise click.UsageError(
                f"{target} is {'not there' if found is None else 'no Penstock'}; make one: {name} = Penstock()"
            )
        return found
    apps = {id(value): value for value in vars(module).values() if isinstance(value, Penstock)}
    if len(apps) != 1:
        raise click.UsageError(f"{module_name} has {len(apps)} apps; say which: {module_name}:app")
    return apps.popitem()[1]


def _theirs(trace: TracebackType | None) -> TracebackType | None:
    """The part of a traceback behind ours and the importing; nothing for what has no lines of its own, such as bad syntax."""
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if name not in (__file__, importlib.__file__) and not name.startswith("<frozen importlib"):
            break
        trace = trace.tb_next
    return trace
