"""How a handler is found in another process: by the name of its module and its name there."""

from __future__ import annotations

import sys
from importlib import import_module
from operator import attrgetter
from types import FunctionType
from typing import Any

from penstock.worker.handlers import Handler, Runs, make_handler


def name_of(handler: Handler) -> tuple[str, str]:
    """The module and name another process can find a handler by. Raises TypeError if there is none."""
    function = handler.function
    module, qualname = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(qualname, str):
        raise _cannot(handler, "it has no name there: make it a function of a module")
    if "<lambda>" in qualname:
        raise _cannot(handler, "a lambda has no name there: make it a function of a module")
    if "<locals>" in qualname:
        raise _cannot(handler, "it is defined inside another function: move it to its module's top level")
    if module == "__main__" and main() == (None, None):
        raise _cannot(handler, "the program's main module cannot be imported there: move it to a module")
    if module not in sys.modules:
        raise _cannot(handler, f"there is no imported module {module!r}")
    try:
        bound = attrgetter(qualname)(sys.modules[module])
    except AttributeError:
        raise _cannot(handler, f"the module {module!r} has no {qualname!r}") from None
    decorated = _handler_in(bound)
    if (bound if decorated is None else decorated.function) is not function:
        raise _cannot(handler, f"{qualname!r} in {module!r} is something else")
    return module, qualname


def find(module: str, qualname: str) -> Handler:
    """The handler of that name, in the process that is to run it. A plain function will do."""
    bound = attrgetter(qualname)(import_module(module))
    found = _handler_in(bound)
    if found is not None:
        return found
    if not isinstance(bound, FunctionType):
        raise TypeError(f"{qualname!r} in {module!r} is not a handler but a {type(bound).__name__}")
    return make_handler(qualname, bound, runs=Runs.PROCESS)


def main() -> tuple[str | None, str | None]:
    """How multiprocessing's spawn would import the main module again: by name, or from its file; or not at all."""
    module = sys.modules["__main__"]
    name = getattr(getattr(module, "__spec__", None), "name", None)
    if name is not None:
        # The __main__ of a package runs the package: spawn does not import it a second time.
        return (None, None) if name.split(".")[-1] == "__main__" else (name, None)
    path = getattr(module, "__file__", None)
    return None, path


def _handler_in(bound: Any) -> Handler | None:
    """A decorated function is an object that has its handler, or is it."""
    found = bound if isinstance(bound, Handler) else getattr(bound, "handler", None)
    return found if isinstance(found, Handler) else None


def _cannot(handler: Handler, why: str) -> TypeError:
    shown = getattr(handler.function, "__qualname__", None) or repr(handler.function)
    return TypeError(f"{shown} ({handler.name}) cannot run in a process of its own: {why}")
