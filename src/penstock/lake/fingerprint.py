"""The fingerprints of errors as SQL of Spark and of DuckDB, from the same rules as the Python of `core.fingerprint`."""

from __future__ import annotations

import re
from collections.abc import Callable

from penstock.core.fingerprint import (
    FRAME,
    MOST_KEPT,
    MOST_READ,
    RULES,
    TRACE,
    TYPE,
    Failure,
    Rule,
    error_type,
    failure,
    normalise,
    top_frame,
)

__all__ = [
    "FRAME", "MOST_KEPT", "MOST_READ", "RULES", "TRACE", "TYPE", "Failure", "Rule", "error_type", "failure",
    "fingerprint_duckdb", "fingerprint_spark", "frame_duckdb", "frame_spark", "normalise", "text_duckdb", "text_spark",
    "top_frame", "type_duckdb", "type_spark",
]  # fmt: skip


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
