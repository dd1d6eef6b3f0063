"""The best schedule and bound known of a graph and budget: `best: [{graph, sha256, budget, bytes, time, …}]`.

Times are the simulator's, in seconds. A graph is identified by its content, so a copy under another name has
the same record.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path
from typing import Any, cast

from ..graphs.errors import InputError
from ..graphs.files.documents import read_document, write_document
from .summary import SAME
from .trials import Place, Row, gap

OPEN_PERCENT = 1.0
"""Optimality gap above which an improvement may be found."""


@dataclass(frozen=True)
class Best:
    """The record of a graph and budget.

    budget: as requested; bytes: in bytes.
    time: seconds of the schedule.
    bound: lower bound of any schedule, seconds.
    solver, seconds: of finding the schedule.
    commit, date: of the last change to the record.
    """

    graph: str
    sha256: str
    budget: str
    bytes: int
    time: float
    bound: float | None
    solver: str
    seconds: float
    commit: str
    date: str

    @property
    def place(self) -> Place:
        return self.sha256, self.bytes, ""

    @property
    def gap_percent(self) -> float | None:
        return gap(self.time, self.bound)

    @property
    def is_open(self) -> bool:
        return self.gap_percent is None or self.gap_percent > OPEN_PERCENT


@dataclass(frozen=True)
class Beaten:
    """A row that is faster than the record.

    refuted: it is below the recorded bound too, so one of them is wrong.
    """

    row: Row
    best: Best

    @property
    def faster_percent(self) -> float:
        return 100.0 * (1 - (self.row.time or 0.0) / self.best.time)

    @property
    def refuted(self) -> bool:
        return (self.row.time or 0.0) < (self.best.bound or 0.0) * (1 - SAME)


def load_best(path: Path) -> dict[Place, Best]:
    """Read the records of a file. Raises InputError if it is not a file of records."""
    document = read_document(path)
    try:
        found = [_read(one) for one in cast(Any, document)["best"]]
    except (KeyError, TypeError, ValueError, OverflowError):
        raise InputError(f"{path}: not a record of best known results") from None
    return {one.place: one for one in found}


def save_best(known: Mapping[Place, Best], path: Path) -> None:
    """Write the records by graph, the largest budget first. Raises InputError."""
    order = sorted(known.values(), key=lambda one: (one.graph, one.sha256, -one.bytes))
    write_document({"best": [asdict(one) for one in order]}, path)


def beaten(rows: Iterable[Row], known: Mapping[Place, Best]) -> list[Beaten]:
    """Return the fastest row for each graph and budget at which one is faster than the best known."""
    found: dict[Place, Beaten] = {}
    for row in rows:
        best = known.get(row.place)
        if best is not None and row.solved and row.time is not None and row.time < best.time * (1 - SAME):
            before = found.get(row.place)
            if before is None or row.time < (before.row.time or inf):
                found[row.place] = Beaten(row, best)
    return list(found.values())


def joined(known: Mapping[Place, Best], rows: Iterable[Row], commit: str, date: str) -> dict[Place, Best]:
    """Return the records updated by the rows; each graph keeps the name that it had. date: year-month-day."""
    result = dict(known)
    for row in rows:
        best = result.get(row.place)
        # ∞ says that there is no schedule: a record of a schedule can't have it.
        bound = None if row.lower_bound == inf else row.lower_bound
        if row.solved and row.time is not None and (best is None or row.time < best.time * (1 - SAME)):
            bound = max((x for x in (bound, best and best.bound) if x is not None), default=None)
            known_as = best.graph if best else row.graph
            found = known_as, row.sha256, row.budget_text.strip(), row.budget, row.time
            result[row.place] = Best(*found, bound, row.solver, row.seconds, commit, date)
        elif best is not None and bound is not None and bound > (best.bound or 0.0) * (1 + SAME):
            result[row.place] = replace(best, bound=bound, commit=commit, date=date)
    return result


def revision() -> str:
    """Return the commit of the checkout that this code runs from, '' if it is not a checkout."""
    root = Path(__file__).resolve().parents[2]
    git = ["git", "-C", str(root), "rev-parse", "--show-toplevel", "--short", "HEAD"]
    try:
        lines = subprocess.run(git, capture_output=True, check=True, text=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        return ""
    # The package may lie in another project's checkout, whose commit says nothing of it.
    return lines[1] if Path(lines[0]) == root else ""


def _read(one: Mapping[str, Any]) -> Best:
    bound = None if one["bound"] is None else float(one["bound"])
    best = Best(
        graph=str(one["graph"]),
        sha256=str(one["sha256"]),
        budget=str(one["budget"]),
        bytes=int(one["bytes"]),
        time=float(one["time"]),
        bound=bound,
        solver=str(one["solver"]),
        seconds=float(one["seconds"]),
        commit=str(one["commit"]),
        date=str(one["date"]),
    )
    if not (0 < best.time < inf and best.bytes > 0):
        raise ValueError
    return best
