"""`plan pareto`: the curve of time against memory of a graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from math import inf
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from ..comparison.file import append_row, prepare, read_rows
from ..comparison.pareto import Point, next_budget, points
from ..comparison.run import run
from ..comparison.trials import Instance, Outcome, Row, Trial, contender, instance
from ..graphs.files.files import load_graph
from ..graphs.folders.scratch import Scratch
from ..graphs.units import duration, format_bytes
from ..planner.bounds import minimum_memory, offloads
from ..planner.budget import Budget, spelled
from ..solvers.registry import run as registry
from .bench.arguments import budgets_argument, check_budgets
from .exits import Exit
from .help import PlanCommand
from .options import (
    FILE,
    bound_time_option,
    output_options,
    settings_option,
    solver_option,
    table_option,
    time_limit_option,
    with_gap,
    writable_as,
)
from .parameter_types import DOCUMENT
from .pareto_page import write_budgets
from .printing.output import Output, table
from .splits import whole_graph

BARS = 30
"""Columns of the longest bar."""


@click.command(cls=PlanCommand)
@click.argument("graph", type=DOCUMENT)
@click.option(
    "--points",
    "count",
    type=click.IntRange(1, 2**20),
    default=12,
    show_default=True,
    metavar="N",
    help="Number of budgets to solve, in all; they are chosen adaptively.",
)
@click.option(
    "--budgets",
    callback=budgets_argument,
    metavar="B,B",
    help="Budgets to solve, and no others, as --budget of `plan solve`.  [default: chosen by what was found]",
)
@solver_option
@time_limit_option("Time of the search for each budget.  [default: as long as the solver takes]")
@bound_time_option("Time, at most, for the lower bounds at each budget; 0 for none.", registry.BOUND_SECONDS)
@click.option(
    "--gap",
    metavar="0.5%|0.005",
    help="Optimality gap at which to stop, as --gap of `plan solve`.  [default: the solver's]",
)
@settings_option()
@table_option(
    "the answers, .csv, each as it comes; a file that has some is gone on from.  [default: answers are "
    "printed, not saved]"
)
@click.option(
    "--report",
    "page",
    type=FILE,
    callback=writable_as(".html"),
    help="Page with a slider over the budgets: curve, schedule, next command, .html.  [default: none]",
)
@output_options
def pareto(
    graph: Path,
    count: int,
    budgets: list[Budget],
    solver: str,
    time_limit: float | None,
    bound_time: float,
    gap: str | None,
    settings: dict[str, str],
    destination: Path | None,
    page: Path | None,
    output: Output,
) -> None:
    """Find how GRAPH gets slower as memory shrinks: a schedule and a lower bound at each of many budgets.

    The .csv is a table of `plan bench`: `plan report --bench` draws it.

    \b
    plan pareto graph.yaml -o curve.csv
    plan report schedule.json --graph graph.yaml --bench curve.csv -o report.html
    plan pareto graph.yaml --report curve.html
    """
    on, who = instance(graph), contender(solver, with_gap(settings, gap))
    check_budgets(budgets, [on])
    known = read_rows(destination).values() if destination else ()
    # Rows of another solver, setting or limit are of another curve.
    rows = [row for row in known if row.key == Trial(on, _bytes(row.budget), who, time_limit).key]
    if rows:
        output.note(f"{len(rows)} budgets are in {destination} already")
    if destination:
        prepare(destination)
    min_memory, interrupted = minimum_memory(whole_graph(graph, output)), False
    asked = _given(on, rows, budgets) if budgets else _chosen(on, rows, count, min_memory)
    kept = None if page is None else Path(click.get_current_context().with_resource(Scratch("pareto")))
    try:
        total = len(budgets) or count
        with output.progress("solving") as progress:
            for budget in asked:
                progress(len(rows), max(total, len(rows) + 1), f"at {format_bytes(on.bytes_of(budget))}")
                file = kept and kept / f"{on.bytes_of(budget)}.json"
                # With `rows`: bounds that an earlier answer has are not computed twice.
                with closing(run([Trial(on, budget, who, time_limit, file)], 1, bound_time, rows)) as solved:
                    rows += solved
                if destination:
                    append_row(destination, rows[-1])
    except KeyboardInterrupt:
        interrupted = True
    if page and kept:
        write_budgets(page, graph, kept, output, found=points(on, rows), who=who)
    _tell(on, rows, min_memory, interrupted, output, saved=destination is not None)


def _given(on: Instance, rows: list[Row], budgets: list[Budget]) -> Iterator[Budget]:
    there = {row.budget for row in rows}
    return (budget for budget in budgets if on.bytes_of(budget) not in there)


def _chosen(on: Instance, rows: list[Row], count: int, min_memory: int) -> Iterator[Budget]:
    """Yield budgets, each chosen by the rows that exist when it is requested."""
    while len(rows) < count and (budget := next_budget(on, points(on, rows), min_memory)):
        yield _bytes(budget)


def _bytes(size: int) -> Budget:
    return Budget(str(size), size=size)


def _tell(
    on: Instance, rows: list[Row], min_memory: int, interrupted: bool, output: Output, *, saved: bool
) -> None:
    found = points(on, rows)
    document = {
        "graph": on.graph,
        "baseline_time": on.baseline_time,
        "baseline_peak": on.baseline_peak,
        "min_memory": min_memory,
        "points": [_document(on, one) for one in found],
        "interrupted": interrupted,
    }
    output.result(document, _lines(on, found, rows, min_memory, output))
    if interrupted:
        output.note(f"interrupted: {len(rows)} budgets are solved")
        raise SystemExit(Exit.INTERRUPTED)
    if not (saved or output.as_json):
        output.note("answers are not saved: give -o curve.csv")


def _document(on: Instance, point: Point) -> dict[str, Any]:
    """Return a point for JSON.

    Null means nothing found, or not known. A bound is "inf" if there is no schedule.
    """
    there = point.time < inf
    return {
        "budget": point.budget,
        "time": point.time if there else None,
        "peak": point.peak if there else None,
        "overhead": point.time / on.baseline_time - 1.0 if there and on.baseline_time else None,
        "lower_bound": "inf" if point.bound == inf else point.bound or None,
        "gap": None if point.gap_percent is None else point.gap_percent / 100.0,
    }


def _lines(
    on: Instance, found: Sequence[Point], rows: Sequence[Row], min_memory: int, output: Output
) -> Iterator[Text]:
    yield Text(f"{on.graph}: baseline {duration(on.baseline_time)}, peak {spelled(on.baseline_peak)}", "bold")
    most = max((one.time for one in found if one.time < inf), default=0.0) - on.baseline_time
    heads = ["budget", "of peak", "time", "overhead", "bound", "gap", ""]
    bar = "█" if output.blocks else "#"
    yield from table(heads, (_cells(on, one, most, bar) for one in reversed(found)))
    kind = "with" if offloads(load_graph(on.path).machine) else "without"
    yield Text(f"the minimum memory {kind} offloading is {spelled(min_memory)}", style="dim")
    for row in rows:
        if row.outcome in (Outcome.FAULT, Outcome.TIMEOUT, Outcome.NOT_ACCEPTED):
            yield Text(f"{format_bytes(row.budget)}: {row.message}", style="red")


def _cells(on: Instance, point: Point, most: float, bar: str) -> list[str]:
    """Return the cells of a point's row.

    most: seconds above the baseline's time that the longest bar stands for.
    """
    head = [format_bytes(point.budget), f"{point.budget / on.baseline_peak:.1%}"]
    if point.time == inf:
        return [*head, "none", "", "impossible" if point.bound == inf else "", "", ""]
    above = point.time - on.baseline_time
    return [
        *head,
        duration(point.time),
        f"{above / on.baseline_time:+z.2%}" if on.baseline_time else "",
        duration(point.bound) if point.bound else "",
        "" if point.gap_percent is None else f"{point.gap_percent:.2f}%",
        bar * round(BARS * above / most) if most > 0.0 else "",
    ]
