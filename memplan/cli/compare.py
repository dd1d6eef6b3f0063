"""`plan compare`: schedules side by side, or the schedules that several solvers find for one graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from ..comparison.tables import Column, Table, make_table
from ..comparison.trial import warm_up
from ..graphs.files.files import graph_digest
from ..graphs.graph import Graph
from ..graphs.machine import Machine
from ..graphs.units import counted, duration, format_bytes, signed
from ..planner.budget import Budget, spelled
from ..planner.report import Report
from ..planner.schedule.schedule import Schedule
from ..solvers.incumbent import Incumbent
from ..solvers.problem import InfeasibleError, NotAcceptedError
from ..solvers.registry.run import BOUND_SECONDS
from .bench.arguments import chosen_contenders
from .help import PlanCommand
from .known_names import completing, solvers
from .options import (
    bound_time_option,
    budget_option,
    chosen_machine,
    machine_option,
    output_options,
    settings_option,
    time_limit_option,
)
from .parameter_types import DOCUMENT
from .phases import Phases
from .printing import breakdown
from .printing.figures import graph_row, report_document
from .printing.output import Output, labelled, table
from .replay import open_schedule, validate_schedule
from .solving import Search, solve_graph
from .splits import whole_graph

_LISTED = 5


@dataclass(frozen=True)
class _Compared:
    """A schedule among those that are compared.

    budget: bytes; None without a limit.
    seconds: of solving; None if the schedule's file records none.
    policy: that the solver has chosen, empty if it has not chosen among policies.
    """

    name: str
    solver: str
    graph: Graph
    schedule: Schedule
    report: Report
    budget: int | None
    seconds: float | None
    policy: str = ""

    @cached_property
    def document(self) -> dict[str, Any]:
        recomputed = breakdown.recomputed(self.graph, self.schedule)
        return {
            "name": self.name,
            "solver": self.solver,
            **report_document(self.report, self.budget),
            "recomputed": len(recomputed),
            "recompute_seconds": sum(float(row["recompute_seconds"]) for row in recomputed),
            "transfers": breakdown.transfers(self.graph, self.schedule),
            "solve_seconds": self.seconds,
        }


@click.command(cls=PlanCommand)
@click.argument("files", metavar="FILES...", type=DOCUMENT, nargs=-1, required=True)
@budget_option("the device's capacity; for schedules their own")
@click.option(
    "--solvers",
    "names",
    metavar="A,B",
    shell_complete=completing(solvers),
    help="Solvers to compare, if FILES is a graph.  [default: none, FILES are schedules]",
)
@time_limit_option("Time of the search for each solver.  [default: 60 s]", default=60.0)
@click.option(
    "--gap",
    metavar="0.5%|0.005",
    help="Optimality gap at which to stop, for solvers that have that setting.  [default: each solver's own]",
)
@settings_option("SOLVER.KEY=VALUE", "one of the solvers")
@bound_time_option("Time, at most, for the lower bounds after each search; 0 for none.", BOUND_SECONDS)
@machine_option("that of the graph")
@output_options
def compare(
    files: Sequence[Path],
    budget: Budget | None,
    names: str | None,
    time_limit: float,
    gap: str | None,
    settings: dict[str, str],
    bound_time: float,
    machine_path: Path | None,
    output: Output,
) -> None:
    """Show FILES, which are schedules, side by side: time, memory, recomputation, transfers.

    Of two schedules it also says which operations only one of them recomputes. If FILES is one graph, the
    solvers of --solvers find schedules of it, and these are compared; none is written (`plan solve` does).
    `plan bench` compares solvers on many graphs and budgets.

    \b
    plan compare model.schedule.json model.schedule.old.json
    plan compare graph.yaml --budget 60% --solvers auto,rotor,checkmate --time-limit 20
    """
    if names is None:
        given = {"--budget": budget, "--gap": gap, "--set": settings or None, "--machine": machine_path}
        if len(files) == 1:
            raise click.UsageError("one file: give two schedules, or a graph with --budget and --solvers A,B")
        if wrong := [option for option, value in given.items() if value is not None]:
            raise click.UsageError(f"{wrong[0]} goes with a graph and --solvers A,B")
        _show([_of_file(path, output) for path in files], [], output)
        return
    if len(files) > 1:
        raise click.UsageError("--solvers compares on one graph: `plan bench` takes several")
    file = files[0]
    graph, machine = whole_graph(file, output), chosen_machine(machine_path, output)
    machine = machine or graph.machine
    found: list[_Compared] = []
    refused: list[tuple[str, InfeasibleError | NotAcceptedError]] = []
    for solver, given, _all in chosen_contenders(names, settings, gap):
        search = Search(
            budget=budget,
            solver=solver,
            time_limit=time_limit,
            settings=dict(given),
            allow=None,
            bound_time=bound_time,
            addresses=False,
            reserve=None,
            machine_path=machine_path,
        )
        # what is compiled at the first use would count as the first solver's time
        warm_up(solver, given, (machine or Machine()).links)
        try:
            one = solve_graph(
                graph, file, search=search, machine=machine, race=Incumbent(), phases=Phases(), output=output
            )
        except (InfeasibleError, NotAcceptedError) as error:
            refused.append((solver, error))
            continue
        solution = one.solution
        row = (graph, solution.schedule, one.report, solution.budget, solution.seconds, solution.policy)
        found.append(_Compared(solver, solver, *row))
    _show(found, refused, output)
    if not found:
        raise refused[0][1]


def _of_file(path: Path, output: Output) -> _Compared:
    held = open_schedule(path, None, output)
    report = held.report(validate_schedule(held, path))
    solver, seconds = held.file.solver.get("name"), held.file.solver.get("seconds")
    return _Compared(
        name=str(path),
        solver=str(solver or "unknown"),
        graph=held.graph,
        schedule=held.file.schedule,
        report=report,
        budget=held.budget,
        seconds=seconds if isinstance(seconds, float) else None,
        policy=str(held.file.solver.get("policy", "")),
    )


def _show(found: Sequence[_Compared], refused: Sequence[tuple[str, Exception]], output: Output) -> None:
    same = len({graph_digest(one.graph) for one in found}) == 1
    fastest = min(found, key=lambda one: one.report.figures.time) if same else None
    if found and not same:
        output.note("the schedules are of different graphs: each has the time and the memory of its own")
    alone = _recomputed_alone(found) if len(found) == 2 and same else {}
    output.result(
        {
            "graph": found[0].graph.name if same else None,
            "compared": [one.document for one in found],
            "fastest": fastest and fastest.name,
            "recomputed_by_one": alone,
            "refused": [{"solver": solver, "message": str(error)} for solver, error in refused],
        },
        _lines(found, refused, alone, same),
    )


def _recomputed_alone(found: Sequence[_Compared]) -> dict[str, list[dict[str, Any]]]:
    """Return for each of two schedules the operations that it recomputes and the other does not."""
    rows = [breakdown.recomputed(one.graph, one.schedule) for one in found]
    names = [{row["operation"] for row in mine} for mine in rows]
    return {
        one.name: [row for row in mine if row["operation"] not in theirs]
        for one, mine, theirs in zip(found, rows, reversed(names), strict=True)
    }


def _lines(
    found: Sequence[_Compared],
    refused: Sequence[tuple[str, Exception]],
    alone: dict[str, list[dict[str, Any]]],
    same: bool,
) -> Iterator[Text]:
    if found and same:
        first = found[0].report.baseline
        yield from labelled(
            [
                graph_row(found[0].graph),
                ("baseline", f"{duration(first.time)}, peak {spelled(first.peak)}"),
            ]
        )
        yield Text("")
    if found:
        shown = _table(found, same)
        yield from table(shown.heads, shown.rows)
    for solver, error in refused:
        yield Text(f"{solver}: {error}", style="red")
    for name, listed in alone.items():
        yield Text("")
        seconds = sum(float(row["recompute_seconds"]) for row in listed)
        number = counted(len(listed), "operation")
        yield Text(f"{number} recomputed by {name} alone, {duration(seconds)}", "bold")
        yield from (
            table(
                [],
                [[duration(row["recompute_seconds"]), row["operation"]] for row in listed[:_LISTED]],
                indent=2,
            )
            if listed
            else ()
        )
        if len(listed) > _LISTED:
            yield Text(f"  … and {len(listed) - _LISTED:,} more")


def _table(found: Sequence[_Compared], same: bool) -> Table:
    """Return the table of schedules. Columns that would be empty are left out."""
    best = min(one.report.figures.time for one in found) if same else None

    def against_best(one: _Compared) -> str:
        slower = one.report.figures.time / best - 1.0 if best else 0.0
        return "" if best is None else f"{slower:+z.2%}" if slower else "fastest"

    def transfers(one: _Compared) -> str:
        moved = sum(row["bytes"] for row in one.document["transfers"].values())
        return format_bytes(moved) if moved else ""

    def recomputed(one: _Compared) -> str:
        return f"{one.document['recomputed']:,}, {duration(one.document['recompute_seconds'])}"

    columns: list[Column[_Compared]] = [
        ("time", lambda one: duration(one.report.figures.time)),
        ("overhead", lambda one: signed(one.report.overhead)),
        ("vs. fastest", against_best),
        ("peak", lambda one: format_bytes(one.report.figures.peak)),
        ("budget", lambda one: "none" if one.budget is None else format_bytes(one.budget)),
        ("recomputed", recomputed),
        ("transfers", transfers),
        ("gap", lambda one: "" if one.report.gap is None else f"{one.report.gap:z.1%}"),
        ("solved in", lambda one: "" if one.seconds is None else duration(one.seconds)),
        ("policy", lambda one: one.policy),
        ("schedule", lambda one: one.name),
    ]
    return make_table("", [(head, cell) for head, cell in columns if any(map(cell, found))], found)
