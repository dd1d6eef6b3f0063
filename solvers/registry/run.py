"""How a solver is run and judged: its answer passes the simulator and gets its lower bounds.

    name ──catalogue.py──▶ module ──solve(problem, options)──▶ Answer ──simulate, lower_bounds──▶ Solution

The problem is the same for all: the least time of an iteration, the period in the steady state, with at most
`budget` bytes on the device (solvers/problem.py). A solver's own figures are not believed: those of its
schedule are the simulator's, and a schedule that breaks a rule or the budget is the solver's fault
(SolverFaultError), as is a lower bound that its schedule refutes. `optimal` is a time that reaches the
bound, or the solver's claim for its own formulation.

Read catalogue.py first: who there is, what each accepts, how other packages add theirs. Beside the solver's
own time this costs one simulation, and `bound_seconds` for the bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from time import perf_counter
from typing import Any

from ...graphs.errors import InputError, MemplanError
from ...planner.bounds import once_floor
from ...planner.errors import InvalidScheduleError
from ...planner.simulator.simulate import Figures, figures_of
from ..bounds.lower_bounds import PROVEN, lower_bounds, proofs_of_none
from ..candidates import device_limit
from ..problem import (
    Answer,
    Bound,
    InfeasibleError,
    NotAcceptedError,
    Options,
    Problem,
    Solution,
    Status,
)
from ..race import Race
from ..settings_text import parse_settings
from .arena import in_arena
from .catalogue import GROUP, Entry, entries, entry, module_of

__all__ = ["GROUP", "Entry", "SolverFaultError", "entries", "entry", "solve", "solve_or_unpin"]

BOUND_SECONDS = 10.0
"""The most that is spent on lower bounds unless told otherwise."""


class SolverFaultError(Exception):
    """A solver's answer breaks a rule or the budget: the solver's fault, not the input's."""


def solve(
    name: str,
    problem: Problem,
    time_limit: float | None = None,
    settings: Mapping[str, str] | None = None,
    report: Callable[[str], None] = lambda _line: None,
    bound_seconds: float = BOUND_SECONDS,
    *,
    addresses: bool = False,
    race: Race | None = None,
) -> Solution:
    """Run a solver and let the simulator judge its answer.

    time_limit: seconds. settings: the solver's options as text. report: takes lines of progress.
    bound_seconds: the most that is then spent on lower bounds; 0 for none but the time of all operations.
    addresses: the budget holds the whole arena in which the copies have their addresses (arena.py).
    race: is told of schedules and bounds as they are found.
    Raises InputError (name, settings), InfeasibleError, NotAcceptedError, SolverFaultError.
    """
    machine = problem.machine or problem.graph.machine
    if machine is not None and machine.unpinned and (field := _direct_access(problem)):
        raise InputError(
            f"operations of the graph use host memory ({field}): it must be pinned, the machine pins none"
        )
    module = module_of(entry(name))
    chosen = parse_settings(name, module.Settings, settings or {})
    start = perf_counter()
    options = Options(time_limit, chosen, report, race=race or Race())
    asked, layout = problem, None

    def for_less(less: Problem) -> Answer:
        return module.solve(less, replace(options, race=Race()))

    try:
        answer: Answer = module.solve(problem, options)
        if addresses:
            answer, asked, layout = in_arena(name, problem, answer, for_less, report)
    except InfeasibleError as refusal:
        refusal.seconds = perf_counter() - start
        proven = [] if refusal.hopeless else proofs_of_none(problem, bound_seconds)
        refusal.tell(once_floor(problem.graph, machine), proven)
        raise
    seconds = perf_counter() - start
    figures = _judge(name, asked, answer)
    notes = list(answer.notes)
    options.race.found(figures.time, name)
    enough = answer.interrupted or answer.status is Status.WITHIN_GAP
    bounds = _bounds(name, problem, answer, figures, 0.0 if enough else bound_seconds, notes)
    options.race.proved(bounds[0].seconds, bounds[0].name)
    lower_bound = bounds[0].seconds
    proven = figures.time <= lower_bound * (1.0 + PROVEN)
    return Solution(
        name,
        answer.schedule,
        figures,
        lower_bound,
        Status.OPTIMAL if proven else answer.status,
        seconds,
        asdict(chosen),
        answer.interrupted,
        bounds,
        tuple(notes),
        layout,
        asked.budget,
        problem.machine,
        answer.effort,
    )


def solve_or_unpin(
    name: str,
    problem: Problem,
    time_limit: float | None = None,
    settings: Mapping[str, str] | None = None,
    report: Callable[[str], None] = lambda _line: None,
    bound_seconds: float = BOUND_SECONDS,
    *,
    addresses: bool = False,
    race: Race | None = None,
) -> Solution:
    """As `solve`. Where nothing is found whose copies fit what can be pinned, it is asked once more, with as
    much time, for a schedule that pins nothing, at the pageable rates of the machine's links; a note says so.
    """
    arguments = (time_limit, settings, report, bound_seconds)
    try:
        return solve(name, problem, *arguments, addresses=addresses, race=race)
    except (InfeasibleError, NotAcceptedError) as error:
        machine = problem.machine or problem.graph.machine
        unpinned = None if machine is None or machine.pinned is None else machine.without_pinned()
        if machine is None or unpinned is None or (isinstance(error, InfeasibleError) and error.hopeless):
            raise
        report(f"{name}: with nothing pinned")
        try:
            found = solve(name, replace(problem, machine=unpinned), *arguments, addresses=addresses)
        except MemplanError:
            raise error from None
        if not found.figures.host_peak:
            return replace(found, machine=problem.machine)
        line = (
            f"no schedule was found whose copies fit host.pinned ({machine.pinned:,} bytes): this one pins "
            "nothing, its copies take the links' pageable rates"
        )
        return replace(found, notes=(line, *found.notes))


def _direct_access(problem: Problem) -> str | None:
    """The field of a mode by which the device uses host memory."""
    modes = [mode for of in problem.graph.operations.modes.values() for mode in of]
    fields = {
        "reads_host": [mode.reads_host for mode in modes],
        "writes_host": [m.writes_host for m in modes],
    }
    return next((field for field, rows in fields.items() if any(rows)), None)


def _bounds(
    name: str, problem: Problem, answer: Answer, figures: Figures, seconds: float, notes: list[str]
) -> tuple[Bound, ...]:
    """The largest that holds for every schedule, then those that hold for fewer and are larger, growing.

    notes: takes a line for each bound that could not be computed. Raises SolverFaultError where the schedule
    is faster than the first.
    """
    claimed = [Bound(answer.lower_bound, name, "any")] if answer.lower_bound is not None else []
    computed = lower_bounds(problem, answer.schedule, figures.time, seconds, notes)
    found = sorted([*answer.bounds, *claimed, *computed], key=lambda bound: bound.seconds)
    best = max((bound for bound in found if bound.general), key=lambda bound: bound.seconds)
    if best.seconds > figures.time * (1.0 + PROVEN):
        raise SolverFaultError(
            f"the lower bound {best.seconds:.9g} s of {best.name} is above the {figures.time:.9g} s "
            "of a schedule that holds"
        )
    largest = {replace(bound, seconds=0.0, name=""): bound for bound in found}.values()

    def says_more(bound: Bound) -> bool:
        others = (other for other in largest if other is not bound and other.covers(bound))
        return all(bound.seconds > other.seconds * (1.0 + PROVEN) for other in others)

    more = (bound for bound in largest if not bound.general and says_more(bound))
    return replace(best, seconds=min(best.seconds, figures.time)), *more


def settings_of(name: str) -> dict[str, Any]:
    """A solver's settings with their defaults. Imports the solver."""
    return asdict(module_of(entry(name)).Settings())


def chosen_settings(name: str, settings: Mapping[str, str]) -> dict[str, Any]:
    """All settings of a solver, these among them as given. Raises InputError. Imports the solver."""
    return asdict(parse_settings(name, module_of(entry(name)).Settings, settings))


def _judge(name: str, problem: Problem, answer: Answer) -> Figures:
    try:
        limit, machine = device_limit(problem), problem.machine
        return figures_of(problem.graph, answer.schedule, budget=limit, machine=machine)
    except InvalidScheduleError as error:
        raise SolverFaultError(f"the schedule that {name} gave is refused: {error}") from error
