"""The memory curve of a schedule, drawn with block characters."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from ...graphs.units import format_bytes

_EIGHTHS = " ▁▂▃▄▅▆▇█"
_MARGIN = 12
_BUDGET, _BARS = "red", "cyan"

Mark = tuple[int, str]
"""A place on the curve, and the word for what begins there."""


def draw(
    curve: NDArray[np.int64],
    budget: int | None,
    marks: Sequence[Mark] = (),
    *,
    width: int,
    height: int = 12,
    blocks: bool = True,
) -> Iterator[Text]:
    """Yield the lines of a chart: bytes upwards, time to the right, each column the largest of its places.

    curve: bytes, shape (places,), at least one.
    budget: bytes. It is drawn as a line above the bars, unless the bars would be too small to distinguish.
    blocks: whether block characters can be shown, rather than only ASCII.
    """
    columns = _columns(len(curve), width - _MARGIN - 2)
    edges = np.arange(columns) * len(curve) // columns
    # The largest, not the mean: a peak of one step must be seen.
    tops = np.maximum.reduceat(curve, edges)
    peak = max(int(tops.max()), 1)
    # A budget far above would press the bars into the lowest rows.
    near = budget is not None and peak <= budget <= 2 * peak
    ceiling = budget if budget is not None and near else peak
    rule, corner, wall = ("─", "└", "│") if blocks else ("-", "+", "|")
    if near:
        line = Text.assemble(_label(format_bytes(ceiling)), f"{wall} ", (rule * columns, _BUDGET))
        yield Text.assemble(line, (" budget", _BUDGET)) if len(line) + 7 <= width else line
    for row in reversed(range(height)):
        filled = np.clip(tops * height / ceiling - row, 0, 1)
        cells = "".join(_cell(float(part), blocks) for part in filled).rstrip()
        label = "" if near else format_bytes(ceiling) if row == height - 1 else ""
        if row == height // 2 - 1:
            label = format_bytes(ceiling // 2)
        yield Text.assemble(_label(label), f"{wall} ", (cells, _BARS))
    yield Text(f"{_label('0 B')}{corner}{rule * (columns + 1)}")
    yield Text(_label("") + "  " + _legend(marks, edges, columns))
    if budget is not None and not near:
        yield Text(f"{_label('')}  (the budget, {format_bytes(budget)}, lies far above)")


def _columns(places: int, room: int) -> int:
    """Return as many columns as there is room for, so that each place of a short curve is equally wide."""
    room = max(10, room)
    # A whole number of columns per place.
    return room if places >= room else places * (room // places)


def _label(text: str) -> str:
    return f"{text:>{_MARGIN - 1}} "


def _cell(part: float, blocks: bool) -> str:
    if not blocks:
        return "#" if part >= 0.5 else " "
    return _EIGHTHS[round(part * 8)]


def _legend(marks: Sequence[Mark], edges: NDArray[np.int64], columns: int) -> str:
    """Return the line of the marks' words under their columns; a word that has no room is left out."""
    firsts: list[int] = edges.tolist()
    line = ""
    for place, word in marks:
        # The first of equal edges: a short curve has several columns per place.
        column = bisect_left(firsts, firsts[bisect_right(firsts, place) - 1])
        if column >= len(line) + bool(line) and column + len(word) <= columns:
            line = line.ljust(column) + word
    return line
