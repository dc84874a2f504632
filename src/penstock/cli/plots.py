"""Small plots of plain text, for terminals."""

from __future__ import annotations

from collections.abc import Sequence

_HEIGHTS = "▁▂▃▄▅▆▇█"
_WIDTHS = " ▏▎▍▌▋▊▉█"


def sparkline(values: Sequence[float]) -> str:
    """A block for each value, from nothing to the highest of them."""
    most = max(values, default=0)
    return "".join(_HEIGHTS[_eighths(value, most) - 1] if value > 0 else " " for value in values)


def _eighths(value: float, most: float) -> int:
    return max(1, min(8, round(8 * value / most)))


def bar(share: float, width: int) -> str:
    """A bar that is full at 1, as wide as `width` characters whatever the share."""
    eighths = round(8 * width * max(0.0, min(1.0, share)))
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_WIDTHS[rest] if rest else "")).ljust(width)
