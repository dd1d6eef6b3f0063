"""The memory curve of a schedule, drawn with block characters."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from ..graphs.units import format_bytes

_EIGHTHS = " ▁▂▃▄▅▆▇█"
_MARGIN = 13


def draw(
    curve: NDArray[np.int64], budget: int | None, *, width: int, height: int = 12, blocks: bool = True
) -> Iterator[Text]:
    """Lines of a chart: bytes upwards, steps to the right, each column the largest of its steps.

    curve: bytes, shape (steps,). blocks: False where only ASCII can be shown.
    """
    columns = max(10, min(width - _MARGIN - 1, len(curve)))
    edges = np.linspace(0, len(curve), columns + 1).astype(np.int64)[:-1]
    tops = np.maximum.reduceat(curve, edges)
    ceiling = max(int(tops.max(initial=1)), budget or 0, 1)
    budget_row = None if budget is None else max(0, -(-budget * height // ceiling) - 1)
    for row in reversed(range(height)):
        filled = np.clip(tops * height / ceiling - row, 0, 1)
        cells = "".join(_cell(float(part), blocks) for part in filled)
        if row == budget_row:
            rule = "─" if blocks else "-"
            cells = "".join(rule if cell == " " else cell for cell in cells)
            label = "budget"
        else:
            label = format_bytes(ceiling) if row == height - 1 else ""
        yield Text.assemble(f"{label:>{_MARGIN - 2}} ", "│ " if blocks else "| ", cells)
    yield Text(f"{'0 B':>{_MARGIN - 2}} {'└' if blocks else '+'}{('─' if blocks else '-') * (columns + 1)}")
    steps = f"{len(curve):,} steps"
    yield Text(f"{'':{_MARGIN}}{steps:>{columns}}")


def _cell(part: float, blocks: bool) -> str:
    if not blocks:
        return "#" if part >= 0.5 else " "
    return _EIGHTHS[round(part * 8)]
