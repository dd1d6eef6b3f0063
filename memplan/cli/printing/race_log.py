"""Progress of a search as MILP solvers print it: a line when incumbent or bound has moved; also as CSV."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from io import StringIO
from math import inf
from pathlib import Path

from ...graphs.cells import cell_text
from ...graphs.errors import InputError
from ...graphs.files.documents import write_whole
from ...solvers.incumbent import IncumbentState

_EVERY_SECONDS = 0.5
"""Minimum seconds between lines, except the last."""

_HEADS = ("seconds", "best", "bound", "gap", "source")
_WIDTHS = (7, 10, 10, 8)


class RaceLog:
    """Callback for standings that passes lines to `write` if they show anything new.

    Call `close` at the end.
    """

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._shown, self._next = [""], 0.0
        self._waiting: IncumbentState | None = None

    def __call__(self, standing: IncumbentState) -> None:
        self._waiting = standing
        if standing.elapsed >= self._next:
            self.close()

    def close(self) -> None:
        """Show the last standing."""
        standing, self._waiting = self._waiting, None
        if standing is None:
            return
        cells = [f"{standing.elapsed:.1f}", *map(_time, (standing.best, standing.bound)), _gap(standing.gap)]
        # Without the seconds, which always differ.
        if cells[1:] != self._shown:
            if not self._next:
                self._write(_line(_HEADS))
            self._write(_line([*cells, standing.who]))
            self._shown, self._next = cells[1:], standing.elapsed + _EVERY_SECONDS


def write_csv(path: Path, history: Iterable[IncumbentState]) -> None:
    """Write the history as CSV. Raises InputError if it can't be written.

    Columns: seconds since the start, seconds of the incumbent and of the bound, gap as a share, source. A
    cell is empty if there is no value.
    """
    text = StringIO(newline="")
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(("seconds", "best", "bound", "gap", "who"))
    for standing in history:
        figures = (standing.best, standing.bound, standing.gap)
        # repr: all digits, so that a table of runs compares exactly.
        known = ("" if figure == inf else repr(figure) for figure in figures)
        lines.writerow((f"{standing.elapsed:.3f}", *known, cell_text(standing.who)))
    try:
        write_whole(text.getvalue().encode(), path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None


def _line(cells: Iterable[str]) -> str:
    *figures, who = cells
    return "  ".join([*(cell.rjust(width) for cell, width in zip(figures, _WIDTHS, strict=True)), who])


def _time(seconds: float) -> str:
    """Format seconds like '1.3604 s': five digits, in the unit that fits."""
    if not 0.0 < seconds < inf:
        return "-"
    factor, unit = next(((f, u) for f, u in ((1.0, "s"), (1e-3, "ms")) if seconds >= f), (1e-6, "us"))
    return f"{seconds / factor:#.5g} {unit}"


def _gap(gap: float) -> str:
    return "-" if gap == inf else f"{gap:z.2%}"
