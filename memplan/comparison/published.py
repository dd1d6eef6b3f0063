"""Published results for public graphs, to compare rows with.

A document {"rows": [{"graph": name, "budget_percent": 80, method: [overhead %, peak %, seconds] | null, …}]};
percentages are of the baseline's time and peak, seconds may be null. A row may have "peak_bytes": its
budget is a share of those instead, as where a paper counts another peak.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from ..graphs.errors import InputError
from ..graphs.files.documents import read_document
from ..planner.budget import Budget, parse_budget
from .trials import Row

ROUNDING = 0.05
"""Rounding of published percentages, which have one decimal, in percentage points."""


@dataclass(frozen=True)
class Published:
    """The best published result within the budget.

    method: empty if there is none. overhead: percent. peak: bytes that the budget is a share of, None for the
    baseline's.
    """

    method: str = ""
    overhead: float | None = None
    seconds: float | None = None
    peak: int | None = None


@dataclass(frozen=True)
class Match:
    """A graph and budget with a published result.

    solved: memplan's fastest row, None if no solver found a schedule.
    """

    graph: str
    percent: float
    published: Published
    solved: Row | None

    @property
    def at_least_as_good(self) -> bool:
        """Whether memplan's row is at most the rounding slower, or the only one within the budget."""
        # If nothing was published within the budget, any answer is as good.
        if self.published.overhead is None or self.solved is None:
            return self.published.overhead is None
        return (self.solved.overhead_percent or 0.0) <= self.published.overhead + ROUNDING


def load_published(path: Path) -> dict[tuple[str, float], Published]:
    """Read published results by graph name and percentage. Raises InputError."""
    document = read_document(path)
    try:
        rows = cast(Any, document)["rows"]
        return {(str(row["graph"]), float(row["budget_percent"])): _best(row) for row in rows}
    except (KeyError, TypeError, ValueError, IndexError, OverflowError):
        raise InputError(f"{path}: not a table of published results") from None


def published_budgets(graph: str, published: Mapping[tuple[str, float], Published]) -> list[Budget]:
    """Return the budgets for which there are published results of a graph, the largest first."""
    shares = sorted(((at[1], one.peak) for at, one in published.items() if at[0] == graph), reverse=True)
    texts = (f"{int(percent * peak / 100)}B" if peak else f"{percent:g}%" for percent, peak in shares)
    return [parse_budget(text) for text in texts]


def matches(rows: Iterable[Row], published: Mapping[tuple[str, float], Published]) -> list[Match]:
    """Match rows with the published results of the same graph and budget."""
    fastest: dict[tuple[str, float], Row | None] = {}
    peaks = {graph: one.peak for (graph, _percent), one in published.items()}
    for row in rows:
        peak = peaks.get(row.graph) or row.baseline_peak
        # Rounded: a budget in whole bytes is not exactly its percentage.
        place = row.graph, round(100 * row.budget / peak, 2) if peak else 0.0
        if place in published:
            known = fastest.setdefault(place, None)
            if row.time is not None and (known is None or row.time < (known.time or 0.0)):
                fastest[place] = row
    return [Match(*place, published[place], solved) for place, solved in fastest.items()]


def _best(row: Mapping[str, Any]) -> Published:
    peak = None if row.get("peak_bytes") is None else int(row["peak_bytes"])
    within: list[Published] = []
    for method, result in row.items():
        if isinstance(result, list):
            overhead, needed, taken = cast(list[Any], result)
            seconds = None if taken is None else float(taken)
            if float(needed) <= float(row["budget_percent"]) + ROUNDING:
                within.append(Published(method, float(overhead), seconds, peak))
    none = Published(peak=peak)
    return min(within, key=lambda one: (one.overhead or 0.0, one.seconds or 0.0), default=none)
