"""What users say with `.option(…)`: always text, and by names whose case does not matter."""

from __future__ import annotations

import os
from collections.abc import Mapping

from penstock.core.errors import InvalidInput


def url(options: Mapping[str, str]) -> str:
    """The store: the option, or PENSTOCK_URL as it was when Spark's driver started. Executors are told."""
    given = options.get("url") or os.environ.get("PENSTOCK_URL")
    if not given:
        raise InvalidInput("url", "be given, as an option or in PENSTOCK_URL", None)
    return given


def number(options: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    text = options.get(name)
    if text is None:
        return default
    try:
        if least <= (given := int(text)) <= most:
            return given
    except ValueError:
        pass
    raise InvalidInput(name, f"be a whole number from {least:,} to {most:,}", text)


def flag(options: Mapping[str, str], name: str) -> bool:
    text = options.get(name, "false").lower()
    if text not in ("true", "false"):
        raise InvalidInput(name, "be true or false", text)
    return text == "true"


def names(options: Mapping[str, str], name: str) -> tuple[str, ...]:
    """A list with commas."""
    return tuple(part.strip() for part in options.get(name, "").split(",") if part.strip())
