"""The portfolio on a machine with links: others first, then the joint search from the fastest of them.

    first    joint from its own starts beside offmate, then the others, on the cores at hand
    then     joint from the fastest schedule of these, in the time that is left

So the answer is never slower than any of theirs within the same time. All ends once the best is proven to be
within the gap: the offloading bound for any order is computed beside the first lines. Code that lines need is
compiled once on a machine, by other processes, beside the other lines or before a time limit begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from math import inf
from threading import Event
from time import monotonic

from ...graphs.machine import Machine
from ...planner.bounds import memory_floor
from ...planner.simulator.simulate import figures_of
from ..bounds.lower_bounds import prove
from ..candidates import device_limit
from ..compiling import compile_apart
from ..offloading.joint import compiling, joint
from ..offloading.weight_offload import compiling as greedy_compiling
from ..problem import Answer, Bound, InfeasibleError, NotFoundError, Options, Problem, Status
from ..race import Race
from ..recomputation.search import compiling as search_compiling
from ..registry.catalogue import entry, module_of
from ..settings_text import parse_settings
from . import lines as portfolio
from .lines import Cancelled, Line, Outcomes, told
from .process import LAST_SECONDS, Processes

LINES = {
    "joint": 0.7,
    "offmate": 0.4,
    "offload-greedy": 0.15,
    "search": 0.1,
    "lohan": 0.05,
    "pofo": 0.05,
    "zero-offload": 0.05,
    "zero-infinity": 0.05,
    "memferry": 0.02,
    "stronghold": 0.02,
    "greedy-star": 0.02,
    "l2l": 0.02,
}
"""Solvers, and the share of all time that each may take with two cores and more."""

CODES = {
    "joint": compiling.CODES,
    "offload-greedy": greedy_compiling.CODES,
    "search": search_compiling.CODES,
}
"""What lines need compiled."""

_SECONDS = 100.0
"""What the shares are of where there is no time limit."""

_LINES_SHARE, _LAST_SHARE = 0.8, 0.05
"""Of a time limit: where the lines end, once there is a schedule, and beside a second the most that one takes
to end; what is left is the last search's."""

_BOUND_SHARE = 0.1
"""Of all time, the most that bounds may take beside the lines."""

_PROCESSES = 500
"""From so many operations on the lines are processes: threads would wait for each other's Python."""


def solve(
    problem: Problem, options: Options, name: str, workers: int, moves: int, seed: int, gap: float
) -> Answer:
    """name: whose refusals these are. moves: of search. seed: of all that draw random numbers. gap: to the
    bound for any schedule, where all ends.

    Raises NotFoundError or InfeasibleError where no line finds any.
    """
    stop, race, total, bounds = Event(), options.race, options.time_limit, list[Bound]()
    plain = joint.plain_if_fastest(problem)
    if plain is not None:
        return plain
    if total is not None:  # compiling is not to take from it
        compile_apart((*CODES["joint"], *CODES["offload-greedy"]), options.report, options.cancelled)
    begin = monotonic()
    deadline = inf if total is None else begin + _LINES_SHARE * total
    settings = {
        "joint": {"seed": str(seed)},
        "offload-greedy": {"seed": str(seed)},
        "search": {"moves": str(moves), "seed": str(seed)},
    }
    unit = (_SECONDS if total is None else total) * min(1.0, workers / 2)
    limit_of_bounds = _BOUND_SHARE * (_SECONDS if total is None else total)

    def tell(bound: Bound) -> None:
        bounds.append(bound)
        race.proved(bound.seconds, bound.name)

    def bounded(answer: Answer) -> Answer:
        return replace(answer, bounds=(*answer.bounds, *bounds))

    many = len(problem.graph.operations) >= _PROCESSES and workers > 1
    with ExitStack() as opened:
        last = LAST_SECONDS if total is None else min(LAST_SECONDS, 1.0 + _LAST_SHARE * total)
        run = partial(_run, problem, race)
        if many:
            run = opened.enter_context(Processes(problem, last_seconds=last)).solve

        def line(solver: str, share: float) -> Line:
            def solve(cancelled: Cancelled) -> Answer:
                compile_apart(CODES.get(solver, ()), options.report, cancelled)
                return run(solver, settings.get(solver, {}), share * unit, cancelled)

            return Line(solver, solve)

        lines = [
            line(solver, share)
            for solver, share in LINES.items()
            if solver != "search" or memory_floor(problem.graph, Machine()) <= device_limit(problem)
        ]
        proving = partial(prove, problem, tell, limit_of_bounds) if gap else None
        outcomes = portfolio.run(
            problem, lines, workers, stop, race=race, gap=gap, prove=proving, deadline=deadline
        )
    if not outcomes.answers:
        raise _refusal(problem, name, outcomes)
    if outcomes.interrupted:
        notes = _notes(outcomes)
        return bounded(replace(outcomes.fastest, status=Status.FEASIBLE, interrupted=True, notes=notes))
    if race.enough(outcomes.seconds, gap):
        notes = _notes(outcomes)
        return bounded(replace(outcomes.fastest, status=Status.WITHIN_GAP, interrupted=False, notes=notes))
    left = None if total is None else max(0.0, total - (monotonic() - begin))
    cancelled = partial(race.within, gap)
    rest = replace(options, time_limit=left, settings=joint.Settings(seed=seed), cancelled=cancelled)
    answer = bounded(_improved(problem, rest, outcomes))
    if not race.within(gap):
        return answer
    machine, limit = problem.machine, device_limit(problem)
    seconds = figures_of(problem.graph, answer.schedule, budget=limit, machine=machine).time
    return replace(answer, status=Status.WITHIN_GAP) if race.enough(seconds, gap) else answer


def _run(
    problem: Problem,
    race: Race,
    solver: str,
    settings: Mapping[str, str],
    seconds: float,
    cancelled: Cancelled,
) -> Answer:
    module = module_of(entry(solver))
    chosen = parse_settings(solver, module.Settings, settings)
    return module.solve(problem, Options(seconds, chosen, cancelled=cancelled, race=race))


def _improved(problem: Problem, options: Options, outcomes: Outcomes) -> Answer:
    try:
        known = [(answer.schedule, figures.time) for answer, figures in outcomes.answers]
        answer = joint.improved(problem, options, known)
    except Exception as error:
        return replace(outcomes.fastest, notes=(*_notes(outcomes), told("joint", error)))
    return replace(answer, notes=(*_notes(outcomes), *answer.notes))


def _notes(outcomes: Outcomes) -> tuple[str, ...]:
    return (*(note for answer, _figures in outcomes.answers for note in answer.notes), *outcomes.faults)


def _refusal(problem: Problem, name: str, outcomes: Outcomes) -> InfeasibleError:
    """The one that names the smallest budget; not found where somebody did not finish."""
    floor, limit = memory_floor(problem.graph, problem.machine), device_limit(problem)
    least = min((refusal.least for refusal in outcomes.refusals if refusal.least is not None), default=None)
    unproven = [each.found for each in outcomes.refusals if isinstance(each, NotFoundError)]
    found = min((each for each in (least, *unproven) if each is not None and each > limit), default=None)
    if least is None or least <= limit:
        refusal = NotFoundError(name, limit, floor, found)
    else:
        refusal = InfeasibleError(name, limit, least, floor)
    refusal.notes = tuple(outcomes.faults)
    return refusal
