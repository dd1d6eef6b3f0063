"""Measured rows, in a CSV file that a later run goes on with: one line a case, written once it is done."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter

from figure import Case, Figure, Values
from memplan.solvers.problem import InfeasibleError, NotAcceptedError

COLUMNS = ("figure", "case", "ours", "wall", "date")


@dataclass(frozen=True)
class Row:
    """wall: seconds that all of it took."""

    figure: str
    case: str
    own: Values
    wall: float
    date: str


def spelled(given: Values) -> str:
    return json.dumps(dict(given))


def load(path: Path) -> dict[tuple[str, str], Row]:
    """By figure and case; the last line of a case counts."""
    if not path.exists():
        return {}
    with path.open(newline="") as lines:
        found = (
            Row(line["figure"], line["case"], json.loads(line["ours"]), float(line["wall"]), line["date"])
            for line in csv.DictReader(lines)
        )
        return {(row.figure, row.case): row for row in found}


def append(path: Path, row: Row) -> None:
    new = not path.exists()
    with path.open("a", newline="") as lines:
        writer = csv.writer(lines)
        if new:
            writer.writerow(COLUMNS)
        writer.writerow((row.figure, row.case, json.dumps(row.own), f"{row.wall:.2f}", row.date))


def measured(figure: Figure, case: Case, seconds: float) -> Row:
    """Where a solver has no answer, its message is the row's."""
    start = perf_counter()
    try:
        own = figure.measure(case.given, seconds)
    except (InfeasibleError, NotAcceptedError) as error:
        own = {"no answer": str(error)}
    wall = perf_counter() - start
    return Row(figure.name, spelled(case.given), own, wall, datetime.now(UTC).date().isoformat())


def missing(figure: Figure, known: dict[tuple[str, str], Row]) -> Iterator[Case]:
    return (case for case in figure.cases if (figure.name, spelled(case.given)) not in known)
