"""`plan solve`: a fast schedule within a budget, validated by the simulator before it is reported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from math import inf
from pathlib import Path
from typing import Any

import click

from ..graphs.errors import InputError
from ..graphs.files.files import load_graph
from ..graphs.graph import Graph
from ..graphs.machine import Machine
from ..graphs.units import format_bytes
from ..planner.baseline import baseline
from ..planner.bounds import least_memory
from ..planner.budget import Budget, device_budget, spelled
from ..planner.report import Report
from ..planner.schedule.file import save_schedule
from ..solvers.allowed import TECHNIQUES
from ..solvers.incumbent import Incumbent
from ..solvers.problem import (
    Bound,
    InfeasibleError,
    NotAcceptedError,
    Problem,
    Status,
    Technique,
    ValidatedSolution,
)
from ..solvers.registry import run as registry
from .exits import Exit
from .options import (
    FILE,
    allow_argument,
    bound_time_option,
    budget_option,
    chosen_machine,
    destination_option,
    machine_option,
    output_options,
    reserve_argument,
    settings_option,
    solver_option,
    table_argument,
    time_limit_option,
    with_gap,
)
from .parameter_types import DOCUMENT
from .phases import Phases
from .printing.figures import (
    arena_document,
    arena_rows,
    duration,
    graph_row,
    launch_rows,
    minimum_document,
    minimum_rows,
    report_document,
    report_rows,
)
from .printing.output import Output, Row, labelled
from .printing.output_files import Destination, destination_of, write_out
from .printing.race_log import RaceLog, write_csv

_SOLVING = "solving"

_CLAIMS = {
    Status.OPTIMAL: "optimal for its formulation",
    Status.FEASIBLE: "the best found so far",
    Status.WITHIN_GAP: "proven within the gap",
    Status.HEURISTIC: "heuristic",
}


@click.command()
@click.argument("graph", type=DOCUMENT)
@budget_option
@solver_option
@time_limit_option(
    "Time of the search, in seconds or with a unit.  [default: the solver's; auto's is some ten seconds "
    "for 500 operations, up to two minutes for thousands]"
)
@click.option(
    "--gap",
    metavar="0.5%|0.005",
    help="Stop once proven to be so close to the fastest schedule; 0: go on to the end. The same as "
    "--set gap=, of solvers that have it.  [default: the solver's; auto's is 0.5%]",
)
@settings_option()
@click.option(
    "--allow",
    callback=allow_argument,
    metavar="WORD,WORD",
    help=f"Techniques that the schedule may use, of {', '.join(TECHNIQUES)}; the last two need offload.  "
    "[default: all]",
)
@bound_time_option(
    "Time for lower bounds, at most, after solving; 0 for none. Those for --gap come on top.",
    registry.BOUND_SECONDS,
)
@click.option(
    "--static-layout/--no-static-layout",
    "addresses",
    default=None,
    help="Fit an arena with an address for each tensor into the budget, not live bytes alone.  [default: "
    "as the "
    "graph was measured, with addresses on CUDA]",
)
@click.option(
    "--reserve",
    callback=reserve_argument,
    metavar="SIZE",
    help="Bytes of the budget to leave free, for the device's context.  [default: what libraries kept of the "
    "device where the graph was measured]",
)
@machine_option
@destination_option("GRAPH.schedule.json in the working folder")
@click.option(
    "--log",
    "log_path",
    type=FILE,
    callback=table_argument,
    metavar="FILE.csv",
    help="File for the search: when which schedule and bound was found, and by what.  [default: none]",
)
@output_options
def solve(
    graph: Path,
    budget: Budget | None,
    solver: str,
    time_limit: float | None,
    gap: str | None,
    settings: dict[str, str],
    allow: tuple[Technique, ...] | None,
    bound_time: float,
    addresses: bool | None,
    reserve: Budget | None,
    machine_path: Path | None,
    destination: Path | None,
    log_path: Path | None,
    output: Output,
) -> None:
    """Find a fast schedule of GRAPH within a memory budget.

    Without --budget the device's capacity is the budget, where the machine has one. Ctrl-C ends the search:
    the best schedule so far is written, and the exit code is 130.

    \b
    plan solve graph.yaml --budget 12GB
    plan solve graph.yaml --budget 60% --solver rk-rotor --time-limit 30
    """
    race, phases = Incumbent(), Phases()
    registry.entry(solver)
    settings = with_gap(settings, gap)
    to = destination_of(destination, graph, ".schedule.json")
    _spare(to, graph, machine_path)
    with phases.of("reading the graph"):
        loaded = load_graph(graph)
    machine = chosen_machine(machine_path, output) or loaded.machine
    with phases.of("simulating the baseline"):
        reference = baseline(loaded)
    if budget is not None:
        budget.check_meant(least_memory(loaded))
    wanted = _within(machine, budget, reference.peak, loaded.resident_bytes, output)
    if wanted is None:
        raise InputError(f"{graph} names no device capacity: give a --budget, like 12GB or 60%")
    whole = wanted.bytes_of(reference.peak, loaded.resident_bytes)
    if reserve is None:
        free = 0 if wanted.size is None else int(loaded.source.get("constant", 0))
    else:
        reserve.check_reserve_meant(least_memory(loaded))
        free = reserve.size or 0
    if free and free >= whole:
        raise InputError(f"--reserve {free:,} B leaves nothing of the budget, {whole:,} B")
    problem = Problem(loaded, whole - free, machine, allow)
    if line := _mixed_times(loaded, machine_path, machine):
        output.note(line)
    if addresses is None:
        addresses = str(loaded.source.get("device", "cpu")) != "cpu"
    try:
        with output.logged(f"{solver}: solving for {format_bytes(problem.budget)}") as (report, above):
            race.listen = log = RaceLog(above, sentences=not output.on_terminal)
            with phases.of(_SOLVING):
                solution = _solved(solver, problem, time_limit, settings, report, bound_time, addresses, race)
            log.close()
        phases.divide(_SOLVING, solution.seconds, "validating and bounding the schedule")
    except InfeasibleError as error:
        write_out(log_path, lambda path: write_csv(path, race.history)).tell()
        output.document(_infeasible(error))
        for line in error.notes:
            output.note(line)
        phases.tell(time_limit, output)
        raise
    outcome = Report(solution.figures, reference, solution.lower_bound)
    with phases.of("writing the schedule"):
        written = write_out(to, lambda path: _write(path, problem, solution, outcome))
    logged = write_out(log_path, lambda path: write_csv(path, race.history))
    output.result(
        {
            **report_document(outcome, problem.budget),
            **minimum_document(loaded, machine),
            "solver": _provenance(solution),
            "status": solution.status.value,
            "solve_seconds": solution.seconds,
            "bounds": [_bound_document(bound, solution.figures.time) for bound in solution.bounds],
            "effort": solution.effort and asdict(solution.effort),
            "interrupted": solution.interrupted,
            "notes": list(solution.notes),
            "arena": arena_document(solution.layout),
            "reserve": free,
            "schedule": written.name,
        },
        labelled(
            [
                graph_row(loaded),
                ("budget", wanted.echo(reference.peak, loaded.resident_bytes)),
                *([("reserve", f"{spelled(free)}, {spelled(problem.budget)} are left")] if free else []),
                *([] if allow is None else [("allowed", ", ".join(allow) or "nothing")]),
                ("solver", f"{solver}: {_CLAIMS[solution.status]}, {duration(solution.seconds)}"),
                *report_rows(outcome, problem.budget, machine or loaded.machine),
                *arena_rows(solution.layout, problem.budget),
                *launch_rows(loaded, solution.schedule),
                *(_bound_row(bound, solution) for bound in solution.bounds[1:]),
                *minimum_rows(loaded, machine),
                *written.row("schedule"),
            ]
        ),
    )
    for line in solution.notes:
        output.note(line)
    written.tell()
    logged.tell()
    phases.tell(time_limit, output)
    if solution.interrupted:
        output.note("interrupted: this is the best schedule so far")
        raise SystemExit(Exit.INTERRUPTED)


def _spare(to: Destination, *inputs: Path | None) -> None:
    """Raise InputError if the schedule would overwrite a file it is made from."""
    if not to.printed and to.path.resolve() in {path.resolve() for path in inputs if path}:
        raise InputError(f"{to.path}: -o would write over the input of that name")


def _mixed_times(graph: Graph, machine_path: Path | None, machine: Machine | None) -> str | None:
    """Return a note if operations were measured on the CPU and --machine has a device with links."""
    on_cpu = graph.source.get("device") == "cpu" and "measured" in graph.source
    if machine_path is None or machine is None or not on_cpu or machine.links.d2h is None:
        return None
    return (
        f"operation times were measured on cpu, links are those of {machine_path}: `plan profile` on that "
        "machine, or with --gpu NAME, gives times that go together"
    )


def _within(
    machine: Machine | None, budget: Budget | None, plain_peak: int, resident: int, output: Output
) -> Budget | None:
    """Return the budget, or the device's capacity if that is less or no budget is given."""
    capacity = device_budget(machine)
    if budget is None or capacity is None or budget.bytes_of(plain_peak, resident) <= (capacity.size or 0):
        return budget or capacity
    output.note(f"{budget.text} is above {capacity.echo(plain_peak, resident)}, which holds instead")
    return capacity


def _solved(
    solver: str,
    problem: Problem,
    time_limit: float | None,
    settings: dict[str, str],
    report: Callable[[str], None],
    bound_time: float,
    addresses: bool,
    race: Incumbent,
) -> ValidatedSolution:
    try:
        return registry.solve_or_unpin(
            solver, problem, time_limit, settings, report, bound_time, addresses=addresses, race=race
        )
    except NotAcceptedError as error:
        takes_any = (e for e in registry.entries() if e.accepts.startswith("any graph") and not e.needs_links)
        others = [entry.name for entry in takes_any]
        raise NotAcceptedError(f"{error} (solvers for any graph: {', '.join(others)})") from error


def _write(path: Path, problem: Problem, solution: ValidatedSolution, outcome: Report) -> None:
    save_schedule(
        path,
        problem.graph,
        solution.schedule,
        budget=solution.budget,
        machine=solution.machine or Machine(),
        solver=_provenance(solution),
        predicted=outcome.predicted(),
        addresses=solution.layout and solution.layout.record(),
    )


def _provenance(solution: ValidatedSolution) -> dict[str, Any]:
    return {
        "name": solution.solver,
        "options": solution.settings,
        "seconds": solution.seconds,
        "status": solution.status.value,
    }


def _bound_row(bound: Bound, solution: ValidatedSolution) -> Row:
    """Return the row of a bound that does not hold for all schedules: this schedule may beat it."""
    time = solution.figures.time
    scope = {"any": "any order", "file": "traced order"}[bound.order]
    scope += "" if bound.transfers else ", no transfers"
    scope += "" if bound.backward_again else ", backward once"
    scope += f", {bound.form}" if bound.form else ""
    ways = ["in another order"] if bound.order == "file" else []
    ways += [] if bound.backward_again else ["with backward repeated"]
    ways += ["in another form"] if bound.form else []
    gap = f"beaten {' or '.join(ways)}"
    if bound.seconds <= time:
        gap = f"gap {(time - bound.seconds) / time:.1%}"
    seconds = "no schedule" if bound.seconds == inf else duration(bound.seconds)
    return "", f"{seconds} ({scope}), {gap}"


def _bound_document(bound: Bound, time: float) -> dict[str, Any]:
    """Return a bound for JSON.

    time: seconds of the schedule.
    seconds: null if no such schedule exists.
    """
    exists = bound.seconds < inf
    gap = (time - bound.seconds) / time if time and exists else 0.0
    return {
        "order": bound.order,
        "transfers": bound.transfers,
        "backward_again": bound.backward_again,
        "form": bound.form,
        "name": bound.name,
        "seconds": bound.seconds if exists else None,
        "gap": gap if exists else None,
    }


def _infeasible(error: InfeasibleError) -> dict[str, Any]:
    least = {"budget": error.budget, "least_budget": error.least}
    minimums = {"min_memory": error.min_memory, "min_memory_once": error.min_memory_once}
    return {
        "status": "no-schedule",
        "solver": {"name": error.solver},
        **least,
        **minimums,
        "bounds": [_bound_document(bound, inf) for bound in error.bounds],
        "notes": list(error.notes),
        "message": str(error),
    }
