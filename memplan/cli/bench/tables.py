"""Output of `plan bench`: its tables as lines, its findings as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rich.text import Text

from ...comparison.best_known import Beaten
from ...comparison.changes import Change, Verdict
from ...comparison.published import Match
from ...comparison.tables import (
    LEGEND,
    Table,
    change_tables,
    curve_tables,
    effort_tables,
    matrices,
    paired_tables,
    published_tables,
    remarks,
    solver_table,
)
from ...comparison.trials import Row
from ..printing.output import table

_STYLES = {Verdict.BETTER.value: "green", Verdict.WORSE.value: "red"}


def comparison_lines(
    rows: Sequence[Row],
    matched: Sequence[Match],
    records: Sequence[Beaten] = (),
    moved: Sequence[Change] = (),
) -> Iterator[Text]:
    """Yield the lines of all tables, none if there are no rows."""
    if not rows:
        return
    for one in matrices(rows):
        yield from _lines(one)
        yield Text()
    yield Text(LEGEND, style="dim")
    if rows[0].allow:
        yield Text(f"allowed: {rows[0].allow.replace(',', ', ')}", style="dim")
    yield Text()
    yield from _lines(solver_table(rows))
    yield from _apart(
        [
            *paired_tables(rows),
            *effort_tables(rows),
            *curve_tables(rows),
            *published_tables(matched),
            *change_tables(moved),
        ]
    )
    for remark in remarks(rows, records):
        yield Text(remark.text, style="green" if remark.good else "red")


def _apart(tables: Iterable[Table]) -> Iterator[Text]:
    for one in tables:
        yield Text()
        yield from _lines(one)


def _lines(one: Table) -> Iterator[Text]:
    if one.title:
        yield Text(one.title, "bold")
    # The first line is of the heads; verdicts are in the first column.
    styles = ["", *(_STYLES.get(row[0], "") for row in one.rows)]
    if one.heads:
        for line, style in zip(table(one.heads, one.rows, indent=2 * bool(one.title)), styles, strict=True):
            line.stylize(style)
            yield line
    if one.hint:
        yield Text(one.hint, style="dim")


def match_document(match: Match) -> dict[str, Any]:
    """Return a match with a published result for JSON. Overheads in percent."""
    solved = match.solved
    return {
        "graph": match.graph,
        "budget_percent": match.percent,
        "method": match.published.method or None,
        "overhead_percent": match.published.overhead,
        "seconds": match.published.seconds,
        "solver": solved and solved.solver,
        "our_overhead_percent": solved and solved.overhead_percent,
        "our_seconds": solved and solved.seconds,
        "at_least_as_good": match.at_least_as_good,
    }


def record_document(beaten: Beaten) -> dict[str, Any]:
    """Return a beaten record for JSON. Times in seconds."""
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
