"""What an error is, apart from whom it hit: ids, numbers, addresses and names are taken out, and the rest is hashed.

One table of rules makes the Python function and the SQL of Spark and of DuckDB. The patterns keep to what all three
engines read alike: ASCII classes, no look-around, no \\b (Java's knows more letters than the others').
"""

from __future__ import annotations

import re
from collections.abc import Callable
from hashlib import sha256

from msgspec import Struct

TRACE = "\n\nTraceback (most recent call last):"
MOST_READ = 1000
MOST_KEPT = 300

TYPE = r"^([A-Za-z_][A-Za-z0-9_.]*)(?::|$)"
"""`ValueError: …`, `requests.exceptions.Timeout`, `bad_arguments: …`; not `lease lost: …`."""
FRAME = r"(?s)^.*File \"(?:[^\"\n]*[/\\])?([^\"\n/\\]+)\", line [0-9]+, in ([A-Za-z0-9_<>.]+)"
"""The last frame of a traceback: where it was raised. Its line is left out: it moves with every deploy."""


class Rule(Struct, frozen=True):
    """What is taken out, and what is put there; `$1` is what the first group found."""

    pattern: str
    by: str


RULES = (
    # Other clients send a bare traceback: all but its last line is left out.
    Rule(r"(?s)^Traceback \(most recent call last\):.*\n([^\n]+)$", "$1"),
    # An opening quote does not follow a letter: can't, won't.
    Rule(r"(^|[^A-Za-z0-9_])'[^'\n]*'", "$1<str>"),
    Rule(r'(^|[^A-Za-z0-9_])"[^"\n]*"', "$1<str>"),
    Rule(r"[A-Za-z][A-Za-z0-9+.-]*://[^ \t\r\n\"'<>(),;\[\]{}]+", "<url>"),
    Rule(r"[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+", "<email>"),
    Rule(r"[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?(Z|[+-][0-9]{2}:?[0-9]{2})?)?", "<time>"),
    Rule(r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}", "<uuid>"),
    Rule(r"(^|[ \t\r\n(=:,\[])[A-Za-z]:(\\[A-Za-z0-9._@%+~ -]+)+", "$1<path>"),
    Rule(r"(^|[ \t\r\n(=:,\[])~?(/[A-Za-z0-9._@%+~-]+){2,}/?", "$1<path>"),
    Rule(r"[0-9]{1,3}(\.[0-9]{1,3}){3}(:[0-9]+)?", "<host>"),
    Rule(r"[0-9a-fA-F]{1,4}(:[0-9a-fA-F]{0,4}){3,7}", "<host>"),
    Rule(r"[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+:[0-9]+", "<host>"),
    Rule(r"[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*\.(com|org|net|internal|local|example|invalid|lan)([^A-Za-z0-9]|$)", "<host>$3"),
    # Numbers, hex numbers and ids of letters and digits are one and the same: an id may have only digits by chance.
    Rule(r"0[xX][0-9a-fA-F]+", "<n>"),
    Rule(r"[0-9]+(\.[0-9]+)?[eE][+-][0-9]+", "<n>"),
    Rule(r"[0-9a-fA-F]{8,}", "<n>"),
    Rule(r"[A-Za-z_]*[0-9]+[A-Za-z_]+[0-9][A-Za-z0-9_]*", "<n>"),
    Rule(r"[0-9]+", "<n>"),
    Rule(r"[+-]?<n>([.,]?<n>)*", "<n>"),
    Rule(r"[ \t\r\n]+", " "),
)  # fmt: skip

_COMPILED = tuple(
    (re.compile(rule.pattern, re.ASCII), re.sub(r"\$([0-9])", r"\\\1", rule.by)) for rule in RULES
)


class Failure(Struct, frozen=True):
    """An error, as all of its kind look."""

    fingerprint: str
    """16 hexadecimal digits; the same for the same type, frame and text."""
    error_type: str
    """Empty if the text does not begin with one."""
    top_frame: str
    """`file.py in function`; empty without a traceback."""
    text: str


def normalise(error: str) -> str:
    """What an error says, with a word in <> for everything that differs from one time to the next."""
    text = error.partition(TRACE)[0][:MOST_READ]
    for pattern, by in _COMPILED:
        text = pattern.sub(by, text)
    return text.strip(" ")[:MOST_KEPT]


def error_type(text: str) -> str:
    found = re.search(TYPE, text, re.ASCII)
    return found[1] if found else ""


def top_frame(error: str) -> str:
    found = re.search(FRAME, error, re.ASCII)
    return f"{found[1]} in {found[2]}" if found else ""


def failure(error: str) -> Failure:
    text, frame = normalise(error), top_frame(error)
    kind = error_type(text)
    return Failure(sha256(f"{kind}\n{frame}\n{text}".encode()).hexdigest()[:16], kind, frame, text)


# ── The same in SQL ───────────────────────────────────────────────────────────────────────────────


def _spark_text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return f"'{escaped}'"


def _duckdb_text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def text_spark(error: str) -> str:
    """The normalised text, as Spark's SQL."""
    made = f"substring(substring_index({error}, {_spark_text(TRACE)}, 1), 1, {MOST_READ})"
    for rule in RULES:
        made = f"regexp_replace({made}, {_spark_text(rule.pattern)}, {_spark_text(rule.by)})"
    return f"substring(trim({made}), 1, {MOST_KEPT})"


def text_duckdb(error: str) -> str:
    """The normalised text, as DuckDB's SQL."""
    made = f"substring(split_part({error}, {_duckdb_text(TRACE)}, 1), 1, {MOST_READ})"
    for rule in RULES:
        by = re.sub(r"\$([0-9])", r"\\\1", rule.by)
        made = f"regexp_replace({made}, {_duckdb_text(rule.pattern)}, {_duckdb_text(by)}, 'g')"
    return f"substring(trim({made}), 1, {MOST_KEPT})"


def type_spark(text: str) -> str:
    return f"regexp_extract({text}, {_spark_text(TYPE)}, 1)"


def type_duckdb(text: str) -> str:
    return f"regexp_extract({text}, {_duckdb_text(TYPE)}, 1)"


def _frame(extract: Callable[[int], str]) -> str:
    return f"CASE WHEN {extract(1)} = '' THEN '' ELSE concat({extract(1)}, ' in ', {extract(2)}) END"


def frame_spark(error: str) -> str:
    return _frame(lambda group: f"regexp_extract({error}, {_spark_text(FRAME)}, {group})")


def frame_duckdb(error: str) -> str:
    return _frame(lambda group: f"regexp_extract({error}, {_duckdb_text(FRAME)}, {group})")


def fingerprint_spark(kind: str, frame: str, text: str) -> str:
    return f"substring(sha2(concat({kind}, '\\n', {frame}, '\\n', {text}), 256), 1, 16)"


def fingerprint_duckdb(kind: str, frame: str, text: str) -> str:
    return f"substring(sha256(concat({kind}, chr(10), {frame}, chr(10), {text})), 1, 16)"
