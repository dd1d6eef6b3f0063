"""The results of a comparison as tables of text, for a terminal and for a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import inf
from statistics import fmean
from typing import NamedTuple, TypeVar

from ..graphs.units import duration
from .best_known import Beaten
from .changes import Change, Verdict
from .paired import FEWEST, Paired, paired
from .profiles import TARGETS, Curve, performance_profiles, times_to_gap
from .published import Match
from .summary import (
    OVERHEAD_SHIFT,
    PENALTY,
    PROVEN,
    SECONDS_SHIFT,
    Standing,
    best_bounds,
    best_times,
    by_seed,
    geometric_mean,
    is_best,
    median,
    median_rows,
    refuted,
    solver_names,
    standings,
)
from .trials import Bounds, Outcome, Place, Row


class Table(NamedTuple):
    """A table of text. Its last column has names, of any length. hint: explanation of the other columns."""

    title: str
    heads: list[str]
    rows: list[list[str]]
    hint: str = ""


R = TypeVar("R")

Column = tuple[str, Callable[[R], str]]
"""A head, and a function of a row that returns its cell."""


def make_table(title: str, columns: list[Column[R]], rows: Iterable[R], hint: str = "") -> Table:
    """Return the table of columns, each declared once."""
    cells = [[cell(row) for _head, cell in columns] for row in rows]
    return Table(title, [head for head, _cell in columns], cells, hint)


class Remark(NamedTuple):
    """A line below the tables. good: whether it is good news rather than an error."""

    text: str
    good: bool


_WORDS = {
    Outcome.INFEASIBLE: "-",
    Outcome.NOT_FOUND: "none",
    Outcome.NOT_ACCEPTED: "n/a",
    Outcome.TIMEOUT: "timeout",
    Outcome.FAULT: "failed",
}
_UNFOUND = (Outcome.INFEASIBLE, Outcome.NOT_FOUND)
LEGEND = (
    "overhead in % of the baseline's time, of seeds best/median/worst; * best; - none by this solver; "
    "x infeasible (proven); xb infeasible (proven) unless a backward operation runs twice; none: not found "
    "in time; n/a: graph not accepted"
)


_FACTORS = (1.0, 1.01, 1.02, 1.05, 1.1, 1.2, 1.5, 2.0)
_SECONDS = tuple(digit * 10.0**k for k in range(-1, 6) for digit in (1, 3))
NODES_SHIFT = 10.0
"""Shift of geometric means of search tree nodes, so that trees of one node do not dominate."""
_CHANGES = 20
"""Maximum number of rows of a verdict that are printed."""


def matrices(rows: Sequence[Row]) -> Iterator[Table]:
    """Yield a table per graph: solvers down, budgets across. LEGEND explains the words."""
    for graph in dict.fromkeys(row.sha256 for row in rows):
        yield _matrix([row for row in rows if row.sha256 == graph])


def solver_table(rows: Sequence[Row]) -> Table:
    """Return the table of the solvers' figures. rows: at least one."""
    found = standings(rows)
    common = found[0].common
    mean = "geo. mean"
    columns: list[Column[Standing]] = [
        ("rows", lambda one: str(one.rows)),
        ("solved", lambda one: str(one.solved)),
        ("best", lambda one: str(one.wins)),
        (f"overhead ({common})", lambda one: _percent(one.overhead)),
        (mean, lambda one: _percent(one.overhead_geometric)),
        ("gap", lambda one: _percent(one.gap)),
        ("time", lambda one: _seconds(one.seconds)),
        (mean, lambda one: _seconds(one.seconds_geometric)),
        ("PAR10", lambda one: _seconds(one.par10)),
        ("solver", lambda one: one.solver),
    ]
    hint = (
        f"overhead: the mean of the {common} problems that every one of them solved; "
        "gap, time: means over the problems that each solver solved; "
        "geo. mean: geometric mean of the column before, shifted by "
        f"{OVERHEAD_SHIFT:g} points and {SECONDS_SHIFT:g} s; PAR10: mean time, with {PENALTY:g} time limits "
        "for each problem without a schedule, unless it is proven that there is none; with several seeds the "
        "median's row counts"
    )
    return make_table("", columns, found, hint)


def paired_tables(rows: Sequence[Row]) -> Iterator[Table]:
    """Yield the table of signed-rank tests; nothing if only one solver has schedules to compare."""
    found = paired(rows)
    if not found:
        return
    columns: list[Column[Paired]] = [
        ("faster", lambda one: str(one.faster)),
        ("slower", lambda one: str(one.slower)),
        ("equal", lambda one: str(one.equal)),
    ]
    if max(one.faster + one.slower for one in found) >= FEWEST:
        columns.append(("p", lambda one: f"{one.p:.2g}"))
        columns.append(("Holm", lambda one: f"{one.corrected:.2g}"))
        hint = (
            "Wilcoxon's signed-rank test of the schedules' times, two-sided; a schedule counts as faster "
            f"than none; Holm: corrected for {len(found)} tests"
        )
    else:
        hint = f"a schedule counts as faster than none; a test needs {FEWEST} problems that differ"
    columns.append(("solver", lambda one: one.against))
    title = f"{found[0].solver} against each other solver"
    yield make_table(title, columns, found, hint)


def effort_tables(rows: Sequence[Row]) -> Iterator[Table]:
    """Yield the table of exact searches: gaps to their own bounds, and nodes. Nothing if none ran."""
    rows = [row for row in median_rows(rows) if row.own_gap_percent is not None]
    names = solver_names(rows)
    cells: list[list[str]] = []
    for contestant, name in names.items():
        own = [row for row in rows if row.contestant == contestant]
        gaps = [row.own_gap_percent or 0.0 for row in own]
        nodes = [float(row.nodes) for row in own if row.nodes is not None]
        mean = geometric_mean(nodes, NODES_SHIFT)
        closed = sum(gap <= 100 * PROVEN for gap in gaps)
        texts = "" if mean is None else f"{mean:,.1f}", "" if not nodes else f"{max(nodes):,.0f}"
        cells.append([str(len(own)), str(closed), _percent(fmean(gaps)), _percent(max(gaps)), *texts, name])
    if cells:
        heads = ["solved", "closed", "own gap", "most", "nodes", "most", "solver"]
        hint = (
            "exact searches: own gap to what each has proven for its own formulation: mean and most; closed: "
            f"where it is 0; nodes of its trees: geometric mean, shifted by {NODES_SHIFT:g}, and most"
        )
        yield Table("", heads, cells, hint)


def curve_tables(rows: Sequence[Row]) -> Iterator[Table]:
    """Yield the profiles as tables. Nothing if a single solver competes, or if there is no bound."""
    profiles = performance_profiles(rows)
    if len(profiles) > 1:
        title = f"problems solved within a factor of the fastest, of {profiles[0].problems}"
        yield _curves(title, profiles, _FACTORS, "")
    curves = times_to_gap(rows, TARGETS[-1])
    last = max((step for curve in curves for step in curve.steps), default=0.0)
    if last:
        title = f"problems within {TARGETS[-1]:.0%} of the bound after some time, of {curves[0].problems}"
        ends = next(place for place, seconds in enumerate(_SECONDS, 1) if seconds >= last)
        # As many columns as fit, up to the first by which all steps have come.
        yield _curves(title, curves, _SECONDS[max(0, ends - len(_FACTORS)) : ends], " s")


def published_tables(matched: Sequence[Match]) -> Iterator[Table]:
    columns: list[Column[Match]] = [
        ("budget", lambda match: f"{match.percent:g}%"),
        ("published", lambda match: _percent(match.published.overhead, 1) or "none"),
        ("time", lambda match: _seconds(match.published.seconds)),
        ("by", lambda match: match.published.method),
        ("memplan", lambda match: _percent(match.solved.overhead_percent) if match.solved else "none"),
        ("time", lambda match: _seconds(match.solved.seconds) if match.solved else ""),
        ("by", lambda match: match.solved.solver if match.solved else ""),
        ("as good", lambda match: "yes" if match.at_least_as_good else "no"),
        ("graph", lambda match: match.graph),
    ]
    if matched:
        good = sum(match.at_least_as_good for match in matched)
        yield make_table("", columns, matched, f"as good as published, or better: {good} of {len(matched)}")


def change_tables(found: Sequence[Change]) -> Iterator[Table]:
    """Yield the table of changes: the number of rows of each verdict, then those that have changed most."""
    if not found:
        return
    counts = Counter(change.verdict for change in found)
    cells: list[list[str]] = []
    for verdict in (Verdict.WORSE, Verdict.BETTER):
        moved = [change for change in found if change.verdict is verdict]
        # Rows that gained or lost a schedule have no percentage, and come first.
        moved.sort(key=lambda change: -abs(inf if change.percent is None else change.percent))
        cells += [_change_cells(change) for change in moved[:_CHANGES]]
    title = "against the earlier table: " + ", ".join(f"{counts[v]} {v}" for v in Verdict)
    left = counts[Verdict.WORSE] + counts[Verdict.BETTER] - len(cells)
    hint = f"and {left} more that are worse or better" if left else ""
    yield Table(title, ["", "was", "is", "longer", "row"] if cells else [], cells, hint)


def remarks(rows: Sequence[Row], records: Sequence[Beaten]) -> Iterator[Remark]:
    """Yield the records that are beaten, then solvers that need what is not allowed, and errors."""
    for beaten in records:
        yield _record(beaten)
    refused = (row for row in rows if row.allow and row.outcome == Outcome.NOT_ACCEPTED)
    for line in dict.fromkeys(f"{row.solver} on {row.graph}: {row.message}" for row in refused):
        yield Remark(line, False)
    for row in rows:
        if row.outcome in (Outcome.FAULT, Outcome.TIMEOUT):
            yield Remark(f"{_where(row)}: {row.message}", False)
    for row, faster in refuted(rows):
        bound = f"the lower bound {row.lower_bound:.6g} s is wrong, {faster.solver} takes {faster.time:.6g} s"
        yield Remark(f"{_where(row)}: {bound}", False)


def _where(row: Row) -> str:
    return f"{row.solver} on {row.graph} at {row.budget_text.strip()}"


def _matrix(rows: Sequence[Row]) -> Table:
    names, best, bounds = solver_names(rows), best_times(rows), best_bounds(rows)
    budgets = {row.budget: row.budget_text.strip() for row in rows}
    cells = {
        (names[seeds[0].contestant], seeds[0].budget): _cell(seeds, best, bounds) for seeds in by_seed(rows)
    }
    title = f"{rows[0].graph}: {rows[0].operations:,} operations, {rows[0].tensors:,} tensors"
    lines = [[*(cells.get((name, budget), "") for budget in budgets), name] for name in names.values()]
    return Table(title, [*budgets.values(), "solver"], lines)


def _cell(seeds: Sequence[Row], best: Mapping[Place, float], bounds: Mapping[Place, Bounds]) -> str:
    """Return a cell of a matrix; with several seeds it has the best, the median and the worst."""
    row = seeds[0]
    if row.solved and len(seeds) > 1:
        # by_seed sorts them: the first is the best, the last the worst.
        return "/".join(_word(one) for one in (row, median(seeds), seeds[-1])) + _mark(row, best)
    # A bound of ∞ is a proof, from whichever row it comes.
    if row.overhead_percent is None and bounds[row.place].lower == inf:
        return "x "
    if row.outcome in _UNFOUND and bounds[row.place].backward_once == inf:
        return "xb "
    return _word(row) + _mark(row, best)


def _word(row: Row) -> str:
    if row.overhead_percent is None:
        return _WORDS[Outcome(row.outcome)]
    return f"{row.overhead_percent:z.2f}"  # z: not "-0.00"


def _mark(row: Row, best: Mapping[Place, float]) -> str:
    return "*" if is_best(row, best) else " "


def _curves(title: str, curves: Sequence[Curve], places: Sequence[float], unit: str) -> Table:
    heads = [*(f"{place:g}{unit}" for place in places), "solver"]
    return Table(
        title, heads, [[*(f"{curve.share(place):.0%}" for place in places), curve.solver] for curve in curves]
    )


def _change_cells(change: Change) -> list[str]:
    row, percent = change.row, change.percent
    seed = "" if row.seed is None else f", seed {row.seed}"
    how = "" if percent is None else f"{percent:+z.2f}%"
    was, now = (
        "" if one is None else one.outcome if one.overhead_percent is None else _percent(one.overhead_percent)
        for one in (change.old, change.new)
    )
    return [change.verdict.value, was, now, how, f"{_where(row)}{seed}"]


def _record(beaten: Beaten) -> Remark:
    row, best = beaten.row, beaten.best
    before = f"{duration(best.time)} by {best.solver} on {best.date}"
    faster = f"{beaten.faster_percent:.2g}% faster"
    line = f"{_where(row)}: best known, {duration(row.time or 0.0)}, {faster} than {before}"
    wrong = f"; below the bound on record, {best.bound} s: one of them is wrong" if beaten.refuted else ""
    return Remark(f"{line}{wrong}", not wrong)


def _seconds(value: float | None) -> str:
    return "" if value is None else duration(value)


def _percent(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:z.{digits}f}%"
