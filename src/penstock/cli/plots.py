"""Small plots of plain text, for terminals."""

from __future__ import annotations

from collections.abc import Sequence

_HEIGHTS = "▁▂▃▄▅▆▇█"
_WIDTHS = " ▏▎▍▌▋▊▉█"
_SHADES = " ░▒▓█"


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


def columns(values: Sequence[float], height: int, width: int = 2) -> list[str]:
    """A column for each value, the highest as high as `height` lines; the lines from the top down."""
    most = max(values, default=0) or 1
    eighths = [0 if value <= 0 else max(1, round(8 * height * value / most)) for value in values]
    return [
        "".join((" " + _HEIGHTS)[max(0, min(8, each - 8 * line))] * width for each in eighths)
        for line in reversed(range(height))
    ]


def shades(values: Sequence[float], most: float, width: int = 2) -> str:
    """A field for each value, the darker the nearer to `most`; only nothing is blank."""
    steps = len(_SHADES) - 1
    return "".join(
        _SHADES[0 if value <= 0 else max(1, min(steps, round(steps * value / most)))] * width
        for value in values
    )
