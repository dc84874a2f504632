"""How a table fits a terminal: what is wrapped, cut or left out, and in which order, where there is not enough room."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

GAP = 2
SHORT = 12
"""What is no longer than this is never wrapped."""
CUT = 10
"""So much is left of words that are longer, if need be."""


class Needs(NamedTuple):
    """The room that a column asks for."""

    natural: int
    """With all of it on one line."""
    least: int
    """With lines that end where words do."""
    cut: int
    """With long words cut off."""
    spare: int = 0
    """Those with the highest are left out first; those with 0 never."""


def widths(asked: Sequence[Needs], room: int) -> Mapping[int, int] | None:
    """The width of each column that is shown, by its place; None if those that must be shown do not fit."""
    least = {place: one.least for place, one in enumerate(asked) if one.natural}
    if _total(least) > room:
        least = {place: asked[place].cut for place in least}
    for place in sorted(least, key=lambda place: -asked[place].spare):
        if _total(least) <= room:
            break
        if asked[place].spare == 0:
            return None
        del least[place]
    found = {place: asked[place].natural for place in least}
    while _total(found) > room:  # the widest gives way first
        widest = max((place for place in found if found[place] > least[place]), key=found.__getitem__)
        found[widest] -= 1
    return found


def _total(columns: Mapping[int, int]) -> int:
    return sum(columns.values()) + GAP * (len(columns) - 1)


def needs(title: str, cells: Sequence[str], *, spare: int, firm: bool) -> Needs:
    """Of a column with this title. One that is firm is neither wrapped nor cut, but for its title."""
    longest = max((len(line) for cell in cells for line in cell.split("\n")), default=0)
    word = max((len(word) for cell in cells for word in cell.split()), default=0)
    least = longest if firm else min(longest, max(SHORT, word))
    cut = CUT if not firm and word > SHORT else least
    heading = max(map(len, title.split()), default=0)
    return Needs(max(longest, len(title)), max(least, heading), max(cut, heading), spare)
