"""The tables that `plan bench` prints: solvers over all rows, then graph by graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import Any

from rich.text import Text

from ..comparison.best_known import Beaten
from ..comparison.published import Match
from ..comparison.summary import best_bounds, best_times, is_best, refuted, solver_names, standings
from ..comparison.trials import Bounds, Outcome, Place, Row
from .figures import duration
from .output import table

_WORDS = {
    Outcome.INFEASIBLE: "-",
    Outcome.NOT_FOUND: "none",
    Outcome.NOT_ACCEPTED: "n/a",
    Outcome.TIMEOUT: "timeout",
    Outcome.FAULT: "fault",
}
_UNFOUND = (Outcome.INFEASIBLE, Outcome.NOT_FOUND)
LEGEND = (
    "overhead in % of the plain time; * best; - infeasible for the solver; x proven impossible; "
    "xb unless a backward operation runs twice; none: not found in time; n/a: graph not accepted"
)


def comparison_lines(
    rows: Sequence[Row], matched: Sequence[Match], records: Sequence[Beaten] = ()
) -> Iterator[Text]:
    """Nothing where there are no rows."""
    if not rows:
        return
    for graph in dict.fromkeys(row.sha256 for row in rows):
        yield from _matrix([row for row in rows if row.sha256 == graph])
        yield Text()
    yield Text(LEGEND, style="dim")
    yield Text()
    yield from _solvers(rows)
    if matched:
        yield Text()
        yield from _published(matched)
    yield from map(_record, records)
    for row in rows:
        if row.outcome in (Outcome.FAULT, Outcome.TIMEOUT):
            yield Text(f"{_where(row)}: {row.message}", style="red")
    for row, faster in refuted(rows):
        bound = f"the lower bound {row.lower_bound:.6g} s is wrong, {faster.solver} takes {faster.time:.6g} s"
        yield Text(f"{_where(row)}: {bound}", style="red")


def _where(row: Row) -> str:
    return f"{row.solver} on {row.graph} at {row.budget_text.strip()}"


def _matrix(rows: Sequence[Row]) -> Iterator[Text]:
    """Solvers down, budgets across."""
    names, best, bounds = solver_names(rows), best_times(rows), best_bounds(rows)
    budgets = {row.budget: row.budget_text.strip() for row in rows}
    cells = {(names[row.solver, row.settings], row.budget): _cell(row, best, bounds) for row in rows}
    yield Text(f"{rows[0].graph}: {rows[0].operations:,} operations, {rows[0].tensors:,} tensors", "bold")
    lines = ([*(cells.get((name, budget), "") for budget in budgets), name] for name in names.values())
    yield from table([*budgets.values(), "solver"], lines, indent=2)


def _cell(row: Row, best: Mapping[Place, float], bounds: Mapping[Place, Bounds]) -> str:
    if row.overhead_percent is None and bounds[row.place].lower == inf:
        return "x "
    if row.outcome in _UNFOUND and bounds[row.place].backward_once == inf:
        return "xb "
    if row.overhead_percent is None:
        return _WORDS[Outcome(row.outcome)] + " "
    return f"{row.overhead_percent + 0.0:.2f}" + ("*" if is_best(row, best) else " ")


def _solvers(rows: Sequence[Row]) -> Iterator[Text]:
    found = standings(rows)
    heads = ["rows", "solved", "best", f"overhead ({found[0].common})", "gap", "time", "solver"]
    yield from table(
        heads,
        (
            [
                str(one.rows),
                str(one.solved),
                str(one.wins),
                _percent(one.overhead),
                _percent(one.gap),
                "" if one.seconds is None else duration(one.seconds),
                one.solver,
            ]
            for one in found
        ),
    )
    yield Text(
        f"overhead: the mean of the {found[0].common} problems that every one of them solved; "
        "gap, time: means of its own",
        style="dim",
    )


def _published(matched: Iterable[Match]) -> Iterator[Text]:
    heads = ["budget", "published", "time", "by", "ours", "time", "by", "as good", "graph"]
    yield from table(heads, (_published_cells(match) for match in matched))


def _published_cells(match: Match) -> list[str]:
    theirs, ours = match.published, match.ours
    return [
        f"{match.percent:g}%",
        "none" if theirs.overhead is None else f"{theirs.overhead:.1f}%",
        "" if theirs.seconds is None else duration(theirs.seconds),
        theirs.method,
        "none" if ours is None else _percent(ours.overhead_percent),
        "" if ours is None else duration(ours.seconds),
        "" if ours is None else ours.solver,
        "yes" if match.at_least_as_good else "no",
        match.graph,
    ]


def match_document(match: Match) -> dict[str, Any]:
    """Overheads in percent."""
    ours = match.ours
    return {
        "graph": match.graph,
        "budget_percent": match.percent,
        "method": match.published.method or None,
        "overhead_percent": match.published.overhead,
        "seconds": match.published.seconds,
        "solver": ours and ours.solver,
        "our_overhead_percent": ours and ours.overhead_percent,
        "our_seconds": ours and ours.seconds,
        "at_least_as_good": match.at_least_as_good,
    }


def _record(beaten: Beaten) -> Text:
    row, best = beaten.row, beaten.best
    before = f"{duration(best.time)} by {best.solver} on {best.date}"
    line = f"{_where(row)}: best known, {duration(row.time or 0.0)} where it was {before}"
    wrong = f"; below the bound on record, {best.bound} s: one of them is wrong" if beaten.refuted else ""
    return Text(f"{line}{wrong}", style="red" if wrong else "green")


def record_document(beaten: Beaten) -> dict[str, Any]:
    """Times in seconds."""
    row, best = beaten.row, beaten.best
    return {
        "graph": row.graph,
        "budget": row.budget,
        "solver": row.solver,
        "time": row.time,
        "best_time": best.time,
        "best_solver": best.solver,
        "faster_percent": beaten.faster_percent,
        "refuted": beaten.refuted,
    }


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value + 0.0:.2f}%"
