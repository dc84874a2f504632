"""One attempt: from a leased job to how it ended. It runs alike in the event loop, in a thread and in another process."""

from __future__ import annotations

import asyncio
import logging
import traceback
from contextvars import ContextVar
from enum import StrEnum
from functools import cache
from typing import Any

from msgspec import Struct

from penstock.core import bounds
from penstock.core.codec import JsonText
from penstock.core.errors import InvalidInput
from penstock.worker.arguments import to_json
from penstock.worker.context import Discard, GiveUp, JobContext, RetryAfter, Snooze, current
from penstock.worker.handlers import Handler


class How(StrEnum):
    ACK = "ack"
    NACK = "nack"
    RELEASE = "release"
    SNOOZE = "snooze"
    DISCARD = "discard"


class Ending(Struct, frozen=True):
    """How an attempt ended; plain enough to cross a pipe."""

    how: How
    result: JsonText | None = None
    error: str | None = None
    retry: bool = True
    delay_seconds: float | None = None
    logs: str | None = None


async def run(handler: Handler, context: JobContext) -> Ending:
    """Run a handler; it ends one way or another, unless it is cancelled. One that is not async blocks this thread.

    Call it in a task of its own: what the handler sets in its context is nobody else's.
    """
    logs = begin(context)
    try:
        value = handler.function(**_arguments(handler, context))
        if handler.is_async:
            value = await value
        return _acked(value, logs)
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        return failed(error, logs)
    finally:
        _end()


def run_blocking(handler: Handler, context: JobContext) -> Ending:
    """Run a handler that is not async, in this thread."""
    logs = begin(context)
    try:
        return _acked(handler.function(**_arguments(handler, context)), logs)
    except BaseException as error:
        return failed(error, logs)
    finally:
        _end()


def begin(context: JobContext) -> Logs:
    """From here on what is logged belongs to this attempt."""
    _catch()
    logs = Logs()
    current.set(context)
    _logs.set(logs)
    return logs


def _end() -> None:
    current.set(None)
    _logs.set(None)


def failed(error: BaseException, logs: Logs | None = None) -> Ending:
    """How an attempt ends that raised."""
    kept = None if logs is None else logs.text()
    match error:
        case RetryAfter(seconds=seconds):
            return Ending(How.NACK, error=_said(error), delay_seconds=seconds, logs=kept)
        case GiveUp():
            return Ending(How.NACK, error=_said(error), retry=False, logs=kept)
        case Snooze(seconds=seconds):
            return Ending(How.SNOOZE, delay_seconds=seconds, logs=kept)
        case Discard():
            return Ending(How.DISCARD, error=_said(error), logs=kept)
        case BadArguments() | BadResult():
            return Ending(How.NACK, error=_said(error), retry=False, logs=kept)
        case _:
            return Ending(How.NACK, error=told(error), logs=kept)


class BadArguments(Exception):
    """The payload does not fit the handler's signature; no attempt ever will."""


class BadResult(Exception):
    """What the handler returned is not JSON, or too large."""


def _arguments(handler: Handler, context: JobContext) -> dict[str, Any]:
    try:
        arguments = handler.arguments.load(context.job.payload)
    except InvalidInput as error:
        raise BadArguments(f"bad_arguments: {error.message}") from None
    if handler.arguments.context is not None:
        arguments[handler.arguments.context] = context
    return arguments


def _acked(value: Any, logs: Logs) -> Ending:
    if value is None:
        return Ending(How.ACK, logs=logs.text())
    try:
        result = to_json(value, field="result", limit=bounds.RESULT_BYTES)
    except InvalidInput as error:
        raise BadResult(f"bad_result: {error.message}") from None
    return Ending(How.ACK, result=result, logs=logs.text())


def _said(error: BaseException) -> str:
    return bounds.error_text(error)


def told(error: BaseException) -> str:
    """An exception as people want to read it: what it is first, then where it came from, both within the bounds."""
    try:
        lines = traceback.format_exception(error)
        last = "".join(traceback.format_exception_only(error)).strip()
        trace = "".join(lines).strip()
    except Exception as broken:  # an exception whose own text raises
        return bounds.error_text(
            f"{type(error).__name__} (its text cannot be shown: {type(broken).__name__})"
        )
    return bounds.error_text(f"{last}\n\n{trace}")


# ── What handlers log ─────────────────────────────────────────────────────────────────────────────


class Logs:
    """The lines one attempt has logged, as far as they fit; the first ones are kept, and how many were left out is said."""

    __slots__ = ("_left_out", "_lines", "_room")

    def __init__(self) -> None:
        self._lines: list[str] | None = None  # most attempts log nothing
        self._room = bounds.LOG_CHARS - 100
        self._left_out = 0

    def add(self, line: str) -> None:
        if len(line) > self._room:
            self._left_out += 1
            return
        self._room -= len(line) + 1
        if self._lines is None:
            self._lines = []
        self._lines.append(line)

    def text(self) -> str | None:
        lines = self._lines or []
        if self._left_out:
            lines = [*lines, f"… [{self._left_out} more lines did not fit]"]
        return "\n".join(lines) if lines else None


_logs: ContextVar[Logs | None] = ContextVar("penstock_logs", default=None)


_formatter = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")


@cache
def _catch() -> None:
    """See every record that is made, from now on, and keep those made for an attempt.

    Where records are made, and not as a handler: a handler on the root logger would keep `logging.basicConfig` from
    working, and warnings from being shown where nobody has set logging up.
    """
    make = logging.getLogRecordFactory()

    def make_and_keep(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make(*args, **kwargs)
        logs = _logs.get()
        if logs is not None:
            try:
                logs.add(_formatter.format(record))
            except Exception:
                logs.add(f"{record.levelname} {record.name}: a message that cannot be formatted")
        return record

    logging.setLogRecordFactory(make_and_keep)
