"""From `module:app` on the command line to the app."""

from __future__ import annotations

import importlib
import os
import sys

import click

from penstock import Penstock


def load_app(target: str) -> Penstock:
    """The app that `module:name` names; without a name, the only one in the module."""
    module_name, _, name = target.partition(":")
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)  # as `python -m` does, and people expect
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise  # the module is there; what it imports is not
        raise click.UsageError(
            f"no module {module_name!r} here; run this where it can be imported, or set PYTHONPATH"
        ) from None
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
