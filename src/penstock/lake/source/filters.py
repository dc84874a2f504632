"""Spark's filters as conditions of SQL. What does not translate exactly is left to Spark."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct

from penstock.core.errors import InvalidInput

_COMPARE = {
    "EqualTo": "=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
}
_LONGEST_IN = 1_000


class Condition(Struct, frozen=True):
    """A condition on one column: a comparison, IN, or whether it is null."""

    column: str
    operator: str
    values: tuple[Any, ...] = ()

    def sql(self, kinds: dict[str, str]) -> str:
        """With texts compared by their bytes, as Spark does it, whatever the database's collation."""
        column = quoted(self.column)
        match self.operator:
            case "IS NULL" | "IS NOT NULL":
                return f"{column} {self.operator}"
            case "IN":
                return f"{column} IN ({', '.join(map(literal, self.values))})"
            case _:
                collated = ' COLLATE "C"' if kinds[self.column] == "string" and self.operator != "=" else ""
                return f"{column}{collated} {self.operator} {literal(self.values[0])}"


def translated(filters: Iterable[Any], kinds: dict[str, str]) -> tuple[list[Condition], list[Any]]:
    """What of Spark's filters translates, on columns of these types, and the filters that do not."""
    conditions, rest = [], []
    for one in filters:
        condition = _condition(one, kinds)
        if condition is None:
            rest.append(one)
        else:
            conditions.append(condition)
    return conditions, rest


def _condition(one: Any, kinds: dict[str, str]) -> Condition | None:
    name = type(one).__name__
    path: tuple[str, ...] = getattr(one, "attribute", ())
    if len(path) != 1 or path[0] not in kinds:
        return None
    column = path[0]
    if name == "IsNull":
        return Condition(column, "IS NULL")
    if name == "IsNotNull":
        return Condition(column, "IS NOT NULL")
    if name == "In":
        values = tuple(one.value)
        fits = 0 < len(values) <= _LONGEST_IN and all(_fits(value, kinds[column]) for value in values)
        return Condition(column, "IN", values) if fits else None
    if name in _COMPARE and _fits(one.value, kinds[column]):
        return Condition(column, _COMPARE[name], (one.value,))
    return None


def _fits(value: object, kind: str) -> bool:
    """Whether a value means the same to PostgreSQL as it does to Spark on a column of this type."""
    match kind:
        case "string":
            return type(value) is str and "\0" not in value
        case "int" | "bigint":
            return type(value) is int
        case "boolean":
            return type(value) is bool
        case "timestamp":
            return isinstance(value, datetime) and value.utcoffset() is not None
        case _:
            return False


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def literal(value: object) -> str:
    """A value as SQL says it. The driver that reads fastest takes no parameters."""
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case datetime():
            return f"'{value.astimezone(UTC).isoformat()}'::timestamptz"
        case str() if "\0" not in value:
            # E'…' reads the same whatever standard_conforming_strings says.
            return "E'" + value.replace("\\", "\\\\").replace("'", "''") + "'"
        case _:
            raise InvalidInput("a value", "be text, a number, a truth value or a time", value)
