"""Markdown tables of what `plan bench` found, for benchmarks/results/.

python benchmarks/tables.py rows.csv …            a line for each graph and budget, solvers across
python benchmarks/tables.py --full rows.csv …     a line for each row: overhead, peak, seconds, gap
python benchmarks/tables.py --summary rows.csv …  a line for each solver
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from math import inf
from pathlib import Path

from memplan.comparison.file import read_rows
from memplan.comparison.summary import best_bounds, best_times, is_best, median_rows, solver_names, standings
from memplan.comparison.trials import UNKNOWN, Outcome, Row

WORDS = {
    Outcome.INFEASIBLE: "–",
    Outcome.NOT_FOUND: "none",
    Outcome.NOT_ACCEPTED: "n/a",
    Outcome.TIMEOUT: "timeout",
    Outcome.FAULT: "fault",
}


def wide(rows: Sequence[Row]) -> Iterator[str]:
    """Overheads in percent, the best in bold, and what the bounds leave room for."""
    names, best, bounds = solver_names(rows), best_times(rows), best_bounds(rows)
    solvers = list(names.values())
    yield head(["graph", "budget", "bound (any order)", "bound (file's order)", *solvers])
    for place in dict.fromkeys(row.place for row in rows):
        here = [row for row in median_rows(rows) if row.place == place]
        cells = {names[row.contestant]: cell(row, is_best(row, best)) for row in here}
        known, baseline = bounds.get(place, UNKNOWN), here[0].baseline_time
        limits = [bound_cell(bound, baseline) for bound in (known.lower, known.file_order or known.lower)]
        yield line(
            [here[0].graph, here[0].budget_text, *limits, *(cells.get(solver, "") for solver in solvers)]
        )


def bound_cell(bound: float | None, baseline_time: float) -> str:
    if bound is None:
        return ""
    return "impossible" if bound == inf else f"{100 * (bound / baseline_time - 1):.1f}"


def cell(row: Row, best: bool) -> str:
    if row.overhead_percent is None:
        return WORDS[Outcome(row.outcome)]
    overhead = f"{row.overhead_percent + 0.0:.1f}"
    return f"**{overhead}**" if best else overhead


def full(rows: Sequence[Row]) -> Iterator[str]:
    names = solver_names(rows)
    yield head(["graph", "budget", "solver", "overhead %", "peak / budget %", "seconds", "gap %", "status"])
    for row in rows:
        figures = (row.overhead_percent, row.peak_percent_of_budget, row.seconds, row.gap_percent)
        cells = ["" if figure is None else f"{figure + 0.0:.1f}" for figure in figures]
        solver = names[row.contestant]
        yield line([row.graph, row.budget_text, solver, *cells, row.status or row.outcome])


def summary(rows: Sequence[Row]) -> Iterator[str]:
    found = standings(rows)
    common = found[0].common if found else 0
    yield head(["solver", "rows", "solved", "best", f"overhead % (mean of {common})", "gap %", "seconds"])
    for one in found:
        means = ["" if mean is None else f"{mean + 0.0:.1f}" for mean in (one.overhead, one.gap, one.seconds)]
        yield line([one.solver, str(one.rows), str(one.solved), str(one.wins), *means])


def head(cells: Sequence[str]) -> str:
    return f"{line(cells)}\n|{'---|' * len(cells)}"


def line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("tables", nargs="+", type=Path, metavar="rows.csv")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--summary", action="store_true")
    options = parser.parse_args()
    rows = [row for path in options.tables for row in read_rows(path).values()]
    form = full if options.full else summary if options.summary else wide
    print("\n".join(form(rows)))


if __name__ == "__main__":
    main()
