"""Run a solver: the simulator checks and times its answer, which then gets its lower bounds.

    name ──catalogue.py──▶ module ──solve(problem, options)──▶ SolverResult
    SolverResult ──simulate, lower_bounds──▶ ValidatedSolution

The problem is the same for all: the least time of an iteration, the period in the steady state, with at most
`budget` bytes on the device (solvers/problem.py). A solver's own figures are not believed: those of its
schedule are the simulator's. `optimal` is a time that reaches the bound, or the solver's claim for its own
formulation.

A solver's bug costs no result. A schedule that breaks a rule or the budget is skipped (solvers/skipped.py):
if it was the answer, the baseline replaces it if it fits, else nothing was found. A lower bound that the
schedule refutes is dropped. Both are reported in the solution's notes, as internal errors.

Read catalogue.py first: which solvers there are, what each accepts, how other packages add theirs. Besides
the solver's own time this costs one simulation, and `bound_seconds` for the bounds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, replace
from functools import partial
from operator import index
from time import perf_counter
from typing import Any

import numpy as np

from ...graphs.errors import InputError, MemplanError
from ...graphs.graph import Graph, Phase
from ...graphs.machine import Machine
from ...graphs.units import duration, format_bytes
from ...planner.baseline import baseline_schedule
from ...planner.bounds import minimum_memory, minimum_memory_once
from ...planner.errors import InvalidScheduleError
from ...planner.schedule.schedule import Schedule, Verb
from ...planner.simulator.simulate import Figures, figures_of
from ...planner.variants import uses_host
from ..allowed import Restriction, restrict
from ..bounds.lower_bounds import ALL_OPERATIONS, lower_bounds, proofs_of_none
from ..candidates import device_limit
from ..clock import Clock
from ..incumbent import PROVEN, Incumbent
from ..problem import (
    Bound,
    InfeasibleError,
    NotAcceptedError,
    NotFoundError,
    Options,
    Problem,
    SolverResult,
    Status,
    ValidatedSolution,
)
from ..settings import declared, parse_settings
from ..skipped import INTERNAL_ERROR, collecting, skipping
from .arena import TRY_SHARE, in_arena
from .catalogue import GROUP, Entry, entries, entry, module_of
from .overlapping import refuse_addresses, solve_overlapping
from .warm_start import solve_from, start_figures

__all__ = ["GROUP", "Entry", "entries", "entry", "solve", "solve_or_unpin"]

_log = logging.getLogger(__name__)

SAME = 1e-9
"""The relative difference up to which a bound is not above a time: sums of seconds are rounded."""

BOUND_SECONDS = 10.0
"""The most that is spent on lower bounds by default."""


def solve(
    name: str,
    problem: Problem,
    time_limit: float | None = None,
    settings: Mapping[str, str] | None = None,
    report: Callable[[str], None] = lambda _line: None,
    bound_seconds: float = BOUND_SECONDS,
    *,
    addresses: bool = False,
    race: Incumbent | None = None,
    start: Schedule | None = None,
) -> ValidatedSolution:
    """Run a solver; the simulator checks and times its answer.

    time_limit: seconds.
    settings: the solver's options as text.
    report: takes lines of progress.
    bound_seconds: the most that is then spent on lower bounds; 0 for none but the time of all operations.
    addresses: the budget holds the whole arena in which the copies have their addresses (arena.py).
    race: receives schedules and bounds as they are found.
    start: a schedule within the budget: the answer is never slower (warm_start.py).

    Raises InputError (name, settings, allow, start), InfeasibleError, NotAcceptedError.
    """
    _check_problem(problem)
    try:
        index(problem.budget)
    except TypeError:
        raise InputError(f"budget {problem.budget!r} is not a whole number of bytes") from None
    # What the problem does not allow is taken out of graph and machine, so no solver need know of it.
    restriction = restrict(problem)
    start = None if start is None else _restricted(restriction, start)
    graph = problem.graph
    _log.info(
        "%s: solving %s, %s operations, within %s, %s",
        *(name, graph.name, f"{len(graph.operations):,}", format_bytes(problem.budget)),
        "without a time limit" if time_limit is None else f"in at most {duration(time_limit)}",
    )
    with collecting() as skipped:
        solve_one = partial(
            _solve, name, settings=settings or {}, report=report, addresses=addresses, start=start
        )
        try:
            if graph.operations.comm:
                if addresses:
                    refuse_addresses()
                module = module_of(entry(name))
                chosen = parse_settings(name, module.Settings, settings or {})
                options = Options(time_limit, chosen, report, race=race or Incumbent(), start=start)
                search = getattr(module, "overlapped", None)
                found = solve_overlapping(restriction.problem, options, bound_seconds, solve_one, search)
            else:
                found = solve_one(restriction.problem, time_limit, bound_seconds, race or Incumbent())
        except InfeasibleError as refusal:
            _log.info("%s: %s", name, refusal)
            refusal.notes = (*refusal.notes, *skipped)
            if refusal.schedule is not None:
                refusal.schedule = restriction.original(refusal.schedule)
            restriction.explain(refusal)
            raise
        except NotAcceptedError as error:
            raise restriction.not_accepted(error) from None
    found = replace(found, notes=(*found.notes, *skipped))
    figures = found.figures
    _log.info(
        "%s: %s, peak %s, lower bound %s, %s, after %s",
        *(name, duration(figures.time), format_bytes(figures.peak), duration(found.lower_bound or 0.0)),
        *(found.status.value, duration(found.seconds)),
    )
    return found if restriction.problem is restriction.whole else _of_whole(restriction, found)


def _restricted(restriction: Restriction, start: Schedule) -> Schedule:
    """Return a start as a schedule of the restricted problem. Raises InputError if it uses more than that."""
    try:
        start = restriction.restricted(start)
        if restriction.changes:
            start_figures(restriction.problem, start)
    except InputError as error:
        left_out = "it does not go with allow, which leaves out what it uses: " if restriction.changes else ""
        raise InputError(f"{left_out}{error}") from None
    return start


def _of_whole(restriction: Restriction, found: ValidatedSolution) -> ValidatedSolution:
    """Return a solution of the restricted problem as one of the whole, which it is: it does less than it may.

    The simulator validates it on the whole problem's graph and machine too.
    """
    schedule, whole = restriction.original(found.schedule), restriction.whole
    figures = figures_of(whole.graph, schedule, budget=device_limit(whole), machine=whole.machine)
    return replace(found, schedule=schedule, figures=figures, machine=whole.machine)


def _solve(
    name: str,
    problem: Problem,
    time_limit: float | None,
    bound_seconds: float,
    race: Incumbent | None = None,
    *,
    settings: Mapping[str, str],
    report: Callable[[str], None],
    addresses: bool,
    start: Schedule | None,
) -> ValidatedSolution:
    race = race or Incumbent()
    machine = problem.machine or problem.graph.machine
    if problem.graph.tensors.spread:
        _accept_sharded(name, machine, addresses=addresses)
    module = module_of(entry(name))
    chosen = parse_settings(name, module.Settings, settings)
    known = None if start is None else start_figures(problem, start)
    begin, race.clock = perf_counter(), Clock(time_limit)
    options = Options(time_limit, chosen, report, race=race, start=start)
    asked, layout = problem, None

    def for_less(less: Problem) -> SolverResult:
        limit = None if time_limit is None else TRY_SHARE * time_limit
        return sound(less, replace(options, time_limit=limit, race=Incumbent(), start=None))[0]

    def sound(asked: Problem, options: Options) -> tuple[SolverResult, Figures]:
        with skipping(name):
            answer: SolverResult = module.solve(asked, options)
            return answer, _figures(asked, answer)
        # Reached only if `skipping` has swallowed a schedule that breaks a rule.
        return _baseline(name, asked)

    try:
        if start is None or known is None:
            answer, figures = sound(problem, options)
        else:
            gap = getattr(chosen, "gap", None) or 0.0
            answer, figures = solve_from(start, known, gap, race, lambda: sound(problem, options))
        if addresses:
            answer, asked, layout = in_arena(name, problem, answer, for_less, report)
    except InfeasibleError as refusal:
        refusal.seconds = perf_counter() - begin
        proven = [] if refusal.proven_infeasible else proofs_of_none(problem, bound_seconds)
        refusal.add_details(minimum_memory_once(problem.graph, machine), proven, problem)
        if problem.allow is None and not problem.graph.operations.recompute.any():
            refusal.advise("nothing of this graph may be recomputed")
        raise
    seconds = perf_counter() - begin
    if addresses:
        figures = _figures(asked, answer)
    notes = list(answer.notes)
    options.race.found(figures.time, name)
    # Nobody waits for bounds who has ended the search, or has the gap asked for.
    enough = answer.interrupted or answer.status is Status.WITHIN_GAP
    bounds = _bounds(
        name, problem, answer=answer, figures=figures, seconds=0.0 if enough else bound_seconds, notes=notes
    )
    options.race.proved(bounds[0].seconds, bounds[0].name)
    lower_bound = bounds[0].seconds
    proven = figures.time <= lower_bound * (1.0 + PROVEN)
    status = answer.status
    if status is Status.WITHIN_GAP and len(notes) > len(answer.notes):
        status = Status.FEASIBLE  # the gap may have been to a bound that was dropped
    return ValidatedSolution(
        solver=name,
        schedule=answer.schedule,
        figures=figures,
        lower_bound=lower_bound,
        status=Status.OPTIMAL if proven else status,
        seconds=seconds,
        settings=asdict(chosen),
        interrupted=answer.interrupted,
        bounds=bounds,
        notes=tuple(notes),
        layout=layout,
        budget=asked.budget,
        machine=problem.machine,
        effort=answer.effort,
        policy=answer.policy,
        ending="" if proven else answer.ending,
    )


def _check_problem(problem: object) -> None:
    """Raise InputError for anything but a problem with a graph, such as a file's name."""
    wanted = "memplan.solve('auto', memplan.Problem(memplan.load_graph('g.json'), budget)), budget in bytes"
    if not isinstance(problem, Problem):
        raise InputError(f"the problem is {problem!r:.60}: {wanted}")
    if not isinstance(problem.graph, Graph):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError(f"the problem's graph is {problem.graph!r:.60}: {wanted}")


def solve_or_unpin(
    name: str,
    problem: Problem,
    time_limit: float | None = None,
    settings: Mapping[str, str] | None = None,
    report: Callable[[str], None] = lambda _line: None,
    bound_seconds: float = BOUND_SECONDS,
    *,
    addresses: bool = False,
    race: Incumbent | None = None,
    start: Schedule | None = None,
) -> ValidatedSolution:
    """Run a solver as `solve` does; if no schedule's copies fit what can be pinned, run it without pinning.

    The second run has as much time, and looks for a schedule that pins nothing, at the pageable rates of the
    machine's links. A note says so.
    """
    arguments = (time_limit, settings, report, bound_seconds)
    try:
        return solve(name, problem, *arguments, addresses=addresses, race=race, start=start)
    except (InfeasibleError, NotAcceptedError) as error:
        machine = problem.machine or problem.graph.machine
        pins = machine is not None and machine.pinned is not None and problem.allows("offload")
        unpinned = machine.without_pinned() if machine is not None and pins else None
        if (
            machine is None
            or unpinned is None
            or (isinstance(error, InfeasibleError) and error.proven_infeasible)
        ):
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


def _accept_sharded(name: str, machine: Machine | None, *, addresses: bool) -> None:
    """Refuse what is not there for graphs of sharded training. Raises NotAcceptedError, InputError."""
    if not entry(name).sharded:
        able = ", ".join(each.name for each in entries() if each.sharded)
        raise NotAcceptedError(f"{name} does not plan sharded training: use one of {able}")
    if machine is None or machine.links.peers is None:
        raise InputError(
            "the graph is sharded, the machine has no network between ranks: give it "
            "links: {peers: {rate: 45GB/s, latency: 30us, ranks: 8}}"
        )
    if addresses:
        raise InputError("addresses of sharded schedules are not supported: leave --static-layout out")


def _bounds(
    name: str, problem: Problem, answer: SolverResult, figures: Figures, seconds: float, notes: list[str]
) -> tuple[Bound, ...]:
    """Return the largest bound that holds for every schedule, then larger ones that hold for fewer, growing.

    notes: takes a line for each bound that could not be computed, or that the schedule refutes.
    """
    claimed = [Bound(answer.lower_bound, name, "any")] if answer.lower_bound is not None else []
    computed = lower_bounds(problem, answer.schedule, figures.time, seconds, notes)
    every = sorted([*answer.bounds, *claimed, *computed], key=lambda bound: bound.seconds)
    # A bound can be refuted only by a schedule of its class.
    own = _class_of(problem.graph, answer.schedule)
    refuted = [bound for bound in every if bound.covers(own) and bound.seconds > figures.time * (1.0 + SAME)]
    notes += [
        f"{INTERNAL_ERROR}the lower bound {bound.seconds:.9g} s of {bound.name} was dropped: it is above the "
        f"{figures.time:.9g} s of a schedule that holds"
        for bound in refuted
    ]
    found = [bound for bound in every if bound not in refuted]
    general = (bound for bound in found if bound.general)
    best = max(general, key=lambda bound: bound.seconds, default=Bound(0.0, ALL_OPERATIONS, "any"))
    # Bounds are sorted by seconds, so the largest of each class of schedules is left.
    largest = {replace(bound, seconds=0.0, name="", by=""): bound for bound in found}.values()

    def says_more(bound: Bound) -> bool:
        others = (other for other in largest if other is not bound and other.covers(bound))
        return all(bound.seconds > other.seconds * (1.0 + PROVEN) for other in others)

    more = (bound for bound in largest if not bound.general and says_more(bound))
    return replace(best, seconds=min(best.seconds, figures.time)), *more


def _class_of(graph: Graph, schedule: Schedule) -> Bound:
    """Return the smallest class of schedules that surely contains this one, as a bound that names it."""
    runs = schedule.targets[schedule.verbs == Verb.COMPUTE]
    firsts = runs[np.sort(np.unique(runs, return_index=True)[1])]
    backward = runs[graph.operations.phase[runs] >= Phase.BACKWARD]
    return Bound(
        0.0,
        "",
        "file" if bool((np.diff(firsts) > 0).all()) else "any",
        transfers=bool((schedule.verbs >= Verb.OFFLOAD).any()) or uses_host(graph),
        backward_again=len(np.unique(backward)) < len(backward),
    )


def settings_of(name: str) -> dict[str, Any]:
    """Return a solver's settings with their defaults. Imports the solver."""
    return asdict(module_of(entry(name)).Settings())


def declarations_of(name: str) -> dict[str, dict[str, str]]:
    """Return what each declared setting of a solver means (help) and may be (values). Imports the solver."""
    found = {each.name: declared(each) for each in fields(module_of(entry(name)).Settings)}
    return {key: {"help": each.help, "values": each.range()} for key, each in found.items() if each}


def chosen_settings(name: str, settings: Mapping[str, str]) -> dict[str, Any]:
    """Return all settings of a solver, with these values. Raises InputError. Imports the solver."""
    return asdict(parse_settings(name, module_of(entry(name)).Settings, settings))


def _figures(problem: Problem, answer: SolverResult) -> Figures:
    """Simulate an answer. Raises InvalidScheduleError if the schedule breaks a rule or the budget."""
    limit, machine = device_limit(problem), problem.machine
    return figures_of(problem.graph, answer.schedule, budget=limit, machine=machine)


def _baseline(name: str, problem: Problem) -> tuple[SolverResult, Figures]:
    """Return the baseline schedule. Raises NotFoundError if it does not fit."""
    answer = SolverResult(baseline_schedule(problem.graph), Status.HEURISTIC)
    try:
        return answer, _figures(problem, answer)
    except InvalidScheduleError:
        min_memory = minimum_memory(problem.graph, problem.machine)
        raise NotFoundError(name, device_limit(problem), min_memory) from None
