"""A graph solved as a command's options ask: validated by the simulator, with figures to print."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import wraps
from math import inf
from pathlib import Path
from typing import Any

import click

from ..graphs.errors import InputError
from ..graphs.files.documents import write_document
from ..graphs.folders.cache import user_cache
from ..graphs.folders.private import PrivateFolder
from ..graphs.graph import Graph
from ..graphs.machine import Machine
from ..graphs.units import format_bytes
from ..planner.baseline import whole_baseline
from ..planner.bounds import least_memory
from ..planner.budget import Budget, device_budget, spelled
from ..planner.report import Report
from ..planner.schedule.file import schedule_to_document
from ..planner.schedule.schedule import Schedule
from ..solvers.bounds.certificate import certificate_of
from ..solvers.incumbent import Incumbent
from ..solvers.problem import (
    InfeasibleError,
    NotAcceptedError,
    Problem,
    Status,
    Technique,
    ValidatedSolution,
)
from ..solvers.registry import run as registry
from ..solvers.registry.kept import keep_for_retry, kept_schedule
from ..solvers.registry.warm_start import without_start
from .next_command import command_within
from .options import (
    FILE,
    Decorator,
    allow_option,
    bound_time_option,
    budget_option,
    machine_option,
    reserve_argument,
    settings_option,
    solver_option,
    time_limit_option,
    with_gap,
)
from .phases import Phases
from .printing.bounds import bound_document, bound_row
from .printing.figures import (
    arena_document,
    arena_rows,
    duration,
    launch_rows,
    minimum_document,
    minimum_rows,
    policy_row,
    report_document,
    report_rows,
)
from .printing.output import Output, Row
from .printing.race_log import RaceLog
from .printing.search_state import SearchState
from .replay import schedule_of_graph

_SOLVING = "solving"

_CLAIMS = {
    Status.OPTIMAL: "optimal for its formulation",
    Status.FEASIBLE: "the best found so far",
    Status.WITHIN_GAP: "proven within the gap",
    Status.HEURISTIC: "heuristic",
}


@dataclass(frozen=True)
class Search:
    """Choices of a command's options for a solver.

    machine_path: of --machine.
    addresses: of --static-layout; None for what the graph's device needs.
    start: file of a schedule that is known.
    """

    budget: Budget | None
    solver: str
    time_limit: float | None
    settings: dict[str, str]
    allow: tuple[Technique, ...] | None
    bound_time: float
    addresses: bool | None
    reserve: Budget | None
    machine_path: Path | None
    start: Path | None = None


_OPTIONS: tuple[Decorator, ...] = (
    solver_option,
    time_limit_option(
        "Time of the search, in seconds or with a unit.  [default: the solver's; auto's is 20 s at most for "
        "500 operations, two minutes for 3,000 and more, twelve for 60,000]"
    ),
    click.option(
        "--gap",
        metavar="0.5%|0.005",
        help="Stop once proven to be so close to the fastest schedule; 0: once proven to be the fastest. The "
        "same as --set gap=, of solvers that have it.  [default: the solver's; auto's is 0.5%]",
    ),
    settings_option(),
    allow_option,
    bound_time_option(
        "Time for lower bounds, at most, after solving; 0 for none. Those for --gap come on top.",
        registry.BOUND_SECONDS,
    ),
    click.option(
        "--static-layout/--no-static-layout",
        "addresses",
        default=None,
        help="Fit an arena with an address for each tensor into the budget, not live bytes alone.  [default: "
        "as the graph was measured, with addresses on CUDA; none for ranks that communicate]",
    ),
    click.option(
        "--reserve",
        callback=reserve_argument,
        metavar="SIZE",
        help="Bytes of the budget to leave free, for the device's context.  [default: what libraries kept of "
        "the device where the graph was measured]",
    ),
    click.option(
        "--start",
        type=FILE,
        metavar="SCHEDULE",
        help="Schedule of the same graph within the budget, from which the search starts: the answer is "
        "never slower.  [default: none]",
    ),
)


def search_options(budget: str, machine: str) -> Decorator:
    """Return what adds the budget and all that a solver may be asked for to a command with a `search`.

    budget, machine: defaults of --budget and --machine, in words.
    """

    def add(function: Callable[..., None]) -> Callable[..., None]:
        @wraps(function)
        def command(*args: Any, gap: str | None, settings: dict[str, str], **options: Any) -> None:
            # Refused before any file is read, since measuring takes minutes.
            registry.entry(options["solver"])
            asked = {name: options.pop(name) for name in Search.__dataclass_fields__ if name != "settings"}
            function(*args, search=Search(settings=with_gap(settings, gap), **asked), **options)

        made: Callable[..., None] = command
        # click lists options in reverse order of decoration: the budget is first in --help.
        for option in (*reversed(_OPTIONS), machine_option(machine), budget_option(budget)):
            made = option(made)
        return made

    return add


@dataclass(frozen=True)
class Found:
    """A validated solution and what it was asked for.

    budget: as it was asked for.
    peak: bytes of which a share is.
    free: bytes of it that --reserve leaves free.
    """

    search: Search
    problem: Problem
    solution: ValidatedSolution
    report: Report
    budget: Budget
    peak: int
    free: int

    def save(self, path: Path) -> None:
        """Write the schedule. Raises InputError."""
        write_document(self.schedule_document(), path)

    def certificate(self) -> Any:
        """Return what proves the solution's claims. Raises InputError."""
        seconds = self.search.bound_time
        return certificate_of(self.problem, self.solution, self.schedule_document(), seconds)

    def schedule_document(self) -> dict[str, Any]:
        """Return the schedule as a plan-schedule/1."""
        solution = self.solution
        return schedule_to_document(
            self.problem.graph,
            solution.schedule,
            budget=solution.budget,
            machine=solution.machine or Machine(),
            solver=self._provenance(),
            predicted=self.report.predicted(),
            addresses=solution.layout and solution.layout.record(),
        )

    def document(self) -> dict[str, Any]:
        """Return what `--json` prints, but the file."""
        solution = self.solution
        return {
            **report_document(self.report, self.problem.budget),
            **minimum_document(self.problem.graph, self.problem.machine),
            "solver": self._provenance(),
            "status": solution.status.value,
            "solve_seconds": solution.seconds,
            "bounds": [bound_document(bound, solution.figures.time) for bound in solution.bounds],
            "effort": solution.effort and asdict(solution.effort),
            "ending": solution.ending,
            "interrupted": solution.interrupted,
            "notes": list(solution.notes),
            "arena": arena_document(solution.layout),
            "reserve": self.free,
            "allow": None if self.search.allow is None else list(self.search.allow),
        }

    def rows(self) -> Iterator[Row]:
        """Yield the rows for people, but the graph's and the file's."""
        graph, machine, within = self.problem.graph, self.problem.machine, self.problem.budget
        solution = self.solution
        yield "budget", self.budget.echo(self.peak, graph.resident_bytes)
        if self.free:
            yield "reserve", f"{spelled(self.free)}, {spelled(within)} are left"
        if self.search.allow is not None:
            yield "allowed", ", ".join(self.search.allow) or "nothing"
        ending = f" ({solution.ending})" if solution.ending else ""
        yield "solver", f"{solution.solver}: {_CLAIMS[solution.status]}, {duration(solution.seconds)}{ending}"
        yield from policy_row(self._provenance())
        limit = "what is left" if self.free else "the budget"
        yield from report_rows(self.report, within, machine or graph.machine, limit)
        yield from arena_rows(solution.layout, within)
        yield from launch_rows(graph, solution.schedule)
        # The first holds for all schedules, and is the gap of report_rows.
        yield from (bound_row(bound, solution.figures.time) for bound in solution.bounds[1:])
        yield from minimum_rows(graph, machine)

    def _provenance(self) -> dict[str, Any]:
        solution = self.solution
        return {
            "name": solution.solver,
            "options": solution.settings,
            "seconds": solution.seconds,
            "status": solution.status.value,
            **({"policy": solution.policy} if solution.policy else {}),
            **({"bound_by": self.report.bound_by} if self.report.bound_by else {}),
        }


def solve_graph(
    graph: Graph,
    name: Path,
    search: Search,
    machine: Machine | None,
    race: Incumbent,
    phases: Phases,
    output: Output,
) -> Found:
    """Solve a graph, and show the progress.

    name: the file of the graph, for errors.
    machine: the graph's, or that of --machine.
    race: receives schedules and bounds as they are found.

    Raises InputError, NotAcceptedError, InfeasibleError.
    """
    with phases.of("simulating the baseline"):
        reference = whole_baseline(graph)
    budget = search.budget
    if budget is not None:
        budget.check_meant(least_memory(graph))
    peak = reference.peak
    wanted = _within(machine, budget, peak, graph.resident_bytes, output)
    if wanted is None:
        raise InputError(f"{name} names no device capacity: give a --budget, like 12GB or 60%")
    whole = wanted.bytes_of(peak, graph.resident_bytes)
    if search.reserve is None:
        # A share is of tensors' bytes; of a size in bytes libraries take their part first.
        free = 0 if wanted.size is None else int(graph.source.get("constant", 0))
    else:
        search.reserve.check_reserve_meant(least_memory(graph))
        free = search.reserve.size or 0
    if free and free >= whole:
        raise InputError(f"--reserve {free:,} B leaves nothing of the budget, {whole:,} B")
    # From here on budgets are bytes of tensors alone; `_answered` adds `free` to what users see.
    problem = Problem(graph, whole - free, machine, search.allow)
    start = None if search.start is None else schedule_of_graph(search.start, graph, name).schedule
    if line := _mixed_times(graph, search.machine_path, machine):
        output.note(line)
    try:
        line = f"{search.solver}: solving for {format_bytes(problem.budget)}"
        with output.logged(line, SearchState(graph, race), search.time_limit) as (report, above):
            race.listen = log = RaceLog(above)
            with phases.of(_SOLVING):
                solution = _solved(problem, search, start, report, race)
            log.close()
        # The solver's own clock ends before the phase does.
        phases.divide(_SOLVING, solution.seconds, "validating and bounding the schedule")
    except InfeasibleError as refusal:
        for line in refusal.notes:
            output.note(line)
        phases.tell(search.time_limit, output)
        error = _answered(refusal, problem, search=search, budget=wanted, peak=peak, free=free)
        error.problem = problem
        raise error from None
    return Found(
        search=search,
        problem=problem,
        solution=solution,
        report=Report(solution.figures, reference, solution.lower_bound, solution.bounds[0].by),
        budget=wanted,
        peak=peak,
        free=free,
    )


def _answered(
    refusal: InfeasibleError, problem: Problem, search: Search, budget: Budget, peak: int, free: int
) -> InfeasibleError:
    """Return the error in the terms of the command's budget, with the command to try next if one suffices.

    peak: of which shares are. free: bytes of the budget that are left free.
    """
    keep_for_retry(search.solver, problem, refusal, _refused_folder())
    error = refusal.with_extra_bytes(free)
    if budget.size is None and not free:
        error.state_shares(peak)
    # A refusal's budget is of live bytes: in an arena its schedule may not fit.
    suffices = refusal.schedule is not None and not _in_arena(problem.graph, search)
    if suffices and (line := command_within(error.percent or f"{error.smallest}B")):
        kept = " optimize " in line and "within" not in problem.graph.source
        cheap = "the measured graph is kept, so only the solver runs; " if kept else ""
        error.advise(f"{cheap}try: {line}")
    return error


def _refused_folder() -> PrivateFolder:
    """Return the folder of schedules of budgets that refusals named."""
    return user_cache() / "refused"


def _in_arena(graph: Graph, search: Search) -> bool:
    """Tell whether the budget holds the arena with all copies' addresses."""
    if search.addresses is not None:
        return search.addresses
    return str(graph.source.get("device", "cpu")) != "cpu" and not graph.communicates


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
    # Equal is enough, and the user's own words are echoed.
    if budget is None or capacity is None or budget.bytes_of(plain_peak, resident) <= (capacity.size or 0):
        return budget or capacity
    output.note(f"{budget.text} is above {capacity.echo(plain_peak, resident)}, which holds instead")
    return capacity


def _solved(
    problem: Problem,
    search: Search,
    start: Schedule | None,
    report: Callable[[str], None],
    race: Incumbent,
) -> ValidatedSolution:
    addresses = _in_arena(problem.graph, search)
    kept = (
        None if start is not None or addresses else kept_schedule(search.solver, problem, _refused_folder())
    )
    try:
        found = registry.solve_or_unpin(
            search.solver,
            problem,
            time_limit=search.time_limit,
            settings=search.settings,
            report=report,
            bound_seconds=search.bound_time,
            addresses=addresses,
            race=race,
            start=start or kept,
        )
        # The user gave no --start, so no note should speak of one.
        return found if kept is None else replace(found, notes=without_start(found.notes))
    except NotAcceptedError as error:
        takes_any = (e for e in registry.entries() if e.accepts.startswith("any graph") and not e.needs_links)
        others = [entry.name for entry in takes_any]
        raise NotAcceptedError(f"{error} (solvers for any graph: {', '.join(others)})") from error


def refusal_document(error: InfeasibleError) -> dict[str, Any]:
    """Return the details of a refusal for JSON."""
    least = {"budget": error.budget, "least_budget": error.least}
    minimums = {"min_memory": error.min_memory, "min_memory_once": error.min_memory_once}
    return {
        "status": "no-schedule",
        "solver": {"name": error.solver},
        **least,
        **minimums,
        "bounds": [bound_document(bound, inf) for bound in error.bounds],
        "notes": list(error.notes),
    }
