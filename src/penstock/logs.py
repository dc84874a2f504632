"""How a program that Penstock starts logs: a JSON object per line for machines, readable text for a person at a terminal.

A record that is logged inside a job says which. Library code only ever uses the standard `logging`, and none of this
is in force before `set_up_logging` is called: programs with a set-up of their own keep it.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

from penstock.telemetry import spans
from penstock.worker.context import current

Format = Literal["auto", "json", "text"]

# Up to the last @: a password may hold one that should have been escaped.
_PASSWORD = re.compile(r"(?P<before>\b[a-z][a-z0-9+.-]*://[^\s/:@]*:)[^\s'\"]*(?=@)", re.IGNORECASE)
_PASSWORD_OPTION = re.compile(r"(?P<before>\b(?:ssl)?(?:password|passwd|pwd)=)[^\s&;'\"]+", re.IGNORECASE)

# What every record has; anything else was given as `extra`.
_USUAL = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def set_up_logging(
    level: int | str = logging.INFO, format: Format = "auto", *, stream: TextIO | None = None
) -> None:
    """Log to stderr: as text if that is a terminal, otherwise as JSON, unless `format` says which.

    It takes over the root logger. Called again, it replaces what it did before.
    """
    out = sys.stderr if stream is None else stream
    is_text = out.isatty() if format == "auto" else format == "text"
    handler = _Handler(out)
    handler.setFormatter(TextFormatter() if is_text else JsonFormatter())
    root = logging.getLogger()
    for other in list(root.handlers):
        if isinstance(other, _Handler):
            root.removeHandler(other)
    root.addHandler(handler)
    root.setLevel(level.upper() if isinstance(level, str) else level)


class _Handler(logging.StreamHandler[TextIO]):
    """Ours, to be known again."""


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON. An exception is one field, however many lines it has."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": _moment(record).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": without_passwords(record.getMessage()),
        }
        for name, value in vars(record).items():
            if name not in _USUAL and name not in fields:
                fields[name] = without_passwords(value) if isinstance(value, str) else value
        fields |= about_the_job()
        if error := _error_of(self, record):
            fields["exception"] = without_passwords(error)
        if record.stack_info:
            fields["stack"] = without_passwords(record.stack_info)
        try:
            return json.dumps(fields, ensure_ascii=False, allow_nan=False, default=_shown, skipkeys=True)
        except (ValueError, RecursionError):  # some extra contains itself, or is no number
            return json.dumps({name: _shown(value) for name, value in fields.items()}, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """A record as a person wants to read it: what happened first, then where it belongs."""

    def format(self, record: logging.LogRecord) -> str:
        at = _moment(record).astimezone().strftime("%H:%M:%S.%f")[:-3]
        line = f"{at} {record.levelname:<7} {record.name}: {record.getMessage()}"
        if where := " ".join(f"{name}={value}" for name, value in about_the_job().items()):
            line = f"{line}  [{where}]"
        more = (_error_of(self, record), record.stack_info)
        return without_passwords("\n".join([line, *filter(None, more)]))


def about_the_job() -> dict[str, Any]:
    """Which job this code runs for, and in which trace; empty where there is neither."""
    found: dict[str, Any] = {}
    context = current.get()
    if context is not None:
        job = context.job
        found = {
            "job_id": job.id,
            "job_type": job.type,
            "attempt": context.attempt,
            "tenant": job.tenant,
            "queue": job.queue,
        }
        if job.lease is not None:
            found["worker"] = job.lease.worker
    if (ids := spans().ids()) is not None:
        found["trace_id"], found["span_id"] = ids
    return found


def without_passwords(text: str) -> str:
    """The text with the passwords of the URLs in it struck out."""
    if "://" in text or "=" in text:
        text = _PASSWORD.sub(r"\g<before>***", text)
        text = _PASSWORD_OPTION.sub(r"\g<before>***", text)
    return text


def _moment(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


def _error_of(formatter: logging.Formatter, record: logging.LogRecord) -> str | None:
    if record.exc_info and record.exc_info[0] is not None:
        return formatter.formatException(record.exc_info)
    return record.exc_text or None


def _shown(value: object) -> str:
    """What JSON has no word for. Whatever it is, the rest of the line is worth having."""
    try:
        return without_passwords(str(value))
    except Exception:
        return f"<{type(value).__name__}>"
