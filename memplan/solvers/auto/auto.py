"""The default: a portfolio on the available cores. Its answer is the fastest, proven as far as requested.

    rounding               the residency program in fractions, made whole: a first answer in a second
    rk-rotor               if the graph is a chain; on the largest rotor, if rounding finds none
    second pass            below the minimum memory of a single backward pass: backward in two passes
    search                 from the traced order, except on the largest
    residency              the residency program in whole numbers
    search from others     from the best of these answers, and of the start that the caller has
    search, more           with other random numbers, one for each core beyond two
    search elsewhere       likewise, if all that has left most of a limit by default, while it helps
    bounds                 alongside, in a separate thread, until the members end

On a machine with links to the host the members are others: with_transfers.py.

Minimises what its solvers do, the simulated time within the device's budget, on any graph. If the baseline
fits, no operation has a faster execution variant and there are no links, the baseline is the answer. All
members end once the best is proven to be within `gap` of the fastest there can be (solvers/incumbent.py),
like a MILP solver's search; else with all moves, or the time, by default that of stopping.py. As many
members run at a time as there are cores, in the order above; with one core the first search has two thirds of
a time limit. Annealing from the traced order is as good as from a dynamic program's answer on graphs of
hundreds of operations; on larger ones, and close to the minimum memory, the other has a head start. With
`gap` 0 and time for all moves the same problem gives an answer of the same time: with nothing proven, the
same answer; else the answer is the best when a clock or a bound ends the search. Without a time limit, the
search is compiled, once on a machine, by another process alongside the residency program and rk-rotor. With
patience (solvers/incumbent.py) members end when it is over, and if the search is not compiled rk-rotor
answers, or else others, if they can.
A budget below the minimum memory is refused at once; what can be reached is then searched for two
seconds, by rk-rotor if the search is not compiled and that finds less than the baseline takes.

    members.py           members in parallel: one that fails costs its own answer alone
    stopping.py          the time limit by default, restarts, and what is said if nothing is proven
    with_transfers.py    the members if tensors can be transferred: joint, and others alongside
    workers.py           members in worker processes, for large graphs; worker.py, their side

The choice of members was made for memplan; references and complexities are the solvers' own, in their
packages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from threading import Event

from joblib import cpu_count

from ...graphs.machine import Machine
from ...planner.bounds import minimum_memory, minimum_memory_once
from ...planner.schedule.schedule import Schedule
from ...planner.schedule.sequence import runs_of
from ...planner.simulator.simulate import figures_of
from ..bounds.lower_bounds import file_order, prove
from ..bounds.offload.offload_bound import moves
from ..bounds.residency.residency import TracedOrder
from ..candidates import baseline_candidate, device_limit, fastest_baseline
from ..clock import Clock
from ..offloading.joint import joint
from ..problem import (
    Bound,
    InfeasibleError,
    NotAcceptedError,
    NotFoundError,
    Options,
    Problem,
    SolverResult,
    Status,
)
from ..recomputation.checkpointing import rotor
from ..recomputation.rockmate import rk_rotor
from ..recomputation.rounding import rounding
from ..recomputation.search import search
from ..recomputation.search.compiling import CODES
from ..recomputation.search.rounds import at_hand, load
from ..recomputation.second_pass import second_pass
from ..settings import SolverSettings, gap_setting, seed_setting, setting, workers_setting
from ..workers.precompile import precompile
from . import members as portfolio
from . import with_transfers as auto_moving
from .members import Awaited, Cancelled, Found, Member, Outcomes
from .smallest import refusal_of
from .stopping import Restarts, default_seconds, ending

NAME = "auto"

_log = logging.getLogger(__name__)

_MOST_LINES = 8

_UNCOMPILED = "rk-rotor"
"""The member that answers first if nothing is compiled."""
_LOOK_SECONDS = 2.0
"""Seconds to search for the least memory, if the budget is refused anyway."""

_START_SECONDS = 10.0
"""The most that a start may take without a time limit; of larger graphs for each 10,000 operations."""

_REPLICAS = 4
"""Replicas of every second search, the first included.

On most graphs they find more, on some a hotter search without them does.
"""

_BOUND_SECONDS = 30.0
"""The most that bounds may take alongside the members, likewise."""

_MOST_RESTARTS = 6
"""Most searches with other random numbers after those that every solve has."""

_RESIDENCY_OPERATIONS = 2000
"""Most operations for which the residency program in whole numbers is tried."""

_WAIT_SECONDS = 0.1
"""Seconds between looks at whether the time is over."""

_LARGEST_OPERATIONS = 20_000
"""Operations above which rk-rotor's options take too long, and the search from traced order finds little."""


@dataclass(frozen=True)
class Settings(SolverSettings):
    """Settings of auto."""

    gap: float = gap_setting(
        0.005,
        "relative gap to the bound for any schedule at which the search may stop; 0: it is proven to be the "
        "fastest, or the search goes on to its end",
    )
    workers: int = workers_setting(0, "cores to use; 0: those that are available, up to 8")
    moves: int = setting(1500, "moves of search, for each operation of the graph", least=1)
    seed: int = seed_setting()


def overlapped(problem: Problem, options: Options, known: Sequence[tuple[Schedule, float]]) -> SolverResult:
    """Improve schedules of a graph with collectives, on a machine with links."""
    own = joint.Settings(seed=options.chosen(Settings).seed)
    return joint.improved(problem, replace(options, settings=own), known)


def solve(problem: Problem, options: Options) -> SolverResult:
    settings = options.chosen(Settings)
    workers = settings.workers or min(_MOST_LINES, cpu_count())
    machine = problem.machine or problem.graph.machine or Machine()
    min_memory = minimum_memory(problem.graph, machine)
    if device_limit(problem) < min_memory:
        raise refusal_of(NAME, problem, _least(problem, options, settings))
    if moves(machine):
        own = settings.moves, settings.seed, settings.gap
        return auto_moving.solve(problem, options, NAME, workers, *own)
    baseline = baseline_candidate(problem.graph)
    if (fastest := fastest_baseline(problem, baseline)) is not None:
        _log.info("the baseline fits: nothing is searched")
        options.race.found(baseline.time, "traced order")
        return fastest
    stop, loaded, race, clock = Event(), Event(), options.race, options.clock()
    limited = options.time_limit is not None
    if not limited and settings.gap:
        default = default_seconds(len(problem.graph.operations))
        options, race.clock = replace(options, time_limit=default, by_default=True), clock

    def have_it_loaded() -> None:
        """Compile and load the search, unless the race is over before. Its time does not count."""
        try:
            if not limited:
                precompile(CODES, options.report, lambda: race.within(settings.gap))
            if not race.within(settings.gap):
                load(options)
        except BaseException:
            stop.set()
            raise
        finally:
            if options.by_default and options.time_limit is not None:
                clock.begin_limit(options.time_limit)
            loaded.set()

    if limited:  # compiling is not to take from it
        have_it_loaded()
    bounds, traced, proved = list[Bound](), TracedOrder(), Event()
    seconds = _BOUND_SECONDS * _scale(problem)
    seconds = seconds if options.time_limit is None else min(seconds, options.time_limit)

    def tell(bound: Bound) -> None:
        bounds.append(bound)
        if bound.general:
            race.proved(bound.seconds, bound.name)

    def proving(cancelled: Cancelled) -> None:
        try:
            prove(problem, tell, seconds, cancelled, traced)
        finally:
            proved.set()

    def await_bounds(cancelled: Cancelled) -> None:
        """Wait for the bound for any order, if the best is within the gap of that for the traced order."""
        limit = race.best / (1.0 + settings.gap)
        while any(bound.seconds >= limit for bound in bounds):
            if proved.wait(_WAIT_SECONDS) or cancelled():
                break

    def run(lines: list[Member], meanwhile: Callable[[], None], *, proves: bool = True) -> Outcomes:
        prover = proving if proves else None
        return portfolio.run(
            problem,
            lines,
            workers,
            stop,
            meanwhile=meanwhile,
            race=race,
            gap=settings.gap,
            prove=prover,
            clock=clock,
        )

    if limited:
        clock = options.clock()
    known = partial(_lines, loaded=loaded, clock=clock, traced=traced, await_bounds=await_bounds)
    lines = known(problem, options, settings, workers)
    outcomes = Outcomes()
    _log.info("%d at a time of %s", workers, ", ".join(line.name for line in lines))
    if race.patience < inf and not at_hand():
        # Of all members and bounds rk-rotor has least to compile; it does not accept every graph.
        first = [line for line in lines if line.name == _UNCOMPILED]
        with suppress(portfolio.PortfolioError):
            outcomes = run(first, lambda: None, proves=False)
        if not outcomes.answers:
            outcomes = run([line for line in lines if not line.name.startswith(search.NAME)], lambda: None)
    if not outcomes.answers:
        outcomes = run(lines, have_it_loaded)
    if not outcomes.answers:
        raise refusal_of(NAME, problem, outcomes.refusals, outcomes.faults)
    cut_short = any(answer.status == Status.FEASIBLE for answer, _figures in outcomes.answers)
    status = Status.FEASIBLE if cut_short else Status.HEURISTIC
    if race.enough(outcomes.seconds, settings.gap):
        status = Status.WITHIN_GAP
    fastest = outcomes.fastest
    return replace(
        fastest,
        status=status,
        ending="" if status is Status.WITHIN_GAP else ending(race),
        interrupted=outcomes.interrupted,
        bounds=(*fastest.bounds, *bounds),
        notes=(*fastest.notes, *outcomes.faults),
    )


def _known(problem: Problem, options: Options) -> list[Found]:
    """Return the start as an answer, from which the search may go on."""
    if options.start is None:
        return []
    figures = figures_of(problem.graph, options.start, budget=device_limit(problem), machine=problem.machine)
    return [(SolverResult(options.start, Status.FEASIBLE), figures)]


def _least(problem: Problem, options: Options, settings: Settings) -> list[InfeasibleError]:
    """Return errors with the schedule of least memory found in a moment.

    With links joint finds it, else annealing, or rk-rotor if that is not compiled. If rk-rotor finds no
    less than the baseline takes, and no time limit says otherwise, annealing is compiled.
    """
    if len(problem.graph.operations) > _RESIDENCY_OPERATIONS:
        return []
    seconds = min(_LOOK_SECONDS, inf if options.time_limit is None else options.time_limit)
    own = replace(options, settings=None, time_limit=seconds)
    annealed = replace(own, settings=search.Settings(settings.moves, settings.seed))
    if moves(problem.machine or problem.graph.machine or Machine()):
        return _refused(joint.solve, problem, own)
    if at_hand():
        return _refused(search.solve, problem, annealed)
    found = _refused(rk_rotor.solve, problem, own)
    peak = baseline_candidate(problem.graph).peak
    if options.time_limit is not None or any((each.smallest or peak) < peak for each in found):
        return found
    return _refused(search.solve, problem, annealed)  # compiled now: the next try would have to


def _refused(
    solver: Callable[[Problem, Options], SolverResult], problem: Problem, options: Options
) -> list[InfeasibleError]:
    try:
        solver(problem, options)
    except InfeasibleError as refusal:
        return [refusal]
    except NotAcceptedError:  # no chain
        return []
    return []


def _lines(
    problem: Problem,
    options: Options,
    settings: Settings,
    workers: int,
    *,
    loaded: Event,
    clock: Clock,
    traced: TracedOrder,
    await_bounds: Callable[[Cancelled], None],
) -> list[Member]:
    """Return the portfolio's members, in the order in which they start.

    loaded: set when the search is compiled; the residency program and rk-rotor don't wait for it.
    clock: of the time limit; of one by default it begins when the search is loaded.
    traced: takes the bound that rounding needs, for the thread of bounds.
    await_bounds: waits for the bound for any order, while it may prove the best to be near enough.
    """
    total, race = options.time_limit, options.race
    starts = Awaited(_known(problem, options))

    def solved(
        share: float,
        solver: Callable[[Options], SolverResult],
        cancelled: Cancelled,
        chosen: search.Settings | None,
    ) -> SolverResult:
        left = None if total is None else max(0.0, min(share * total, clock.left))
        return solver(replace(options, settings=chosen, time_limit=left, cancelled=cancelled))

    def start(name: str, share: float, solver: Callable[[Problem, Options], SolverResult]) -> Member:
        """Return a member that runs the solver, with a time limit; search from others waits for it."""

        def solve(own: Options) -> SolverResult:
            limit = inf if own.time_limit is None else own.time_limit
            if own.by_default or own.time_limit is None:
                limit = min(limit, _START_SECONDS * _scale(problem))
            return solver(problem, replace(own, time_limit=limit))

        # What ends by itself is not hurried by a limit that nobody has asked for.
        part = 1.0 if options.by_default else share
        return starts.line(name, lambda cancelled: solved(part, solve, cancelled, None))

    def line(name: str, share: float, solver: Callable[[Options], SolverResult], number: int = 0) -> Member:
        chosen = search.Settings(settings.moves, settings.seed + number, 1 if number % 2 else _REPLICAS)
        return Member(name, lambda cancelled: solved(share, solver, cancelled, chosen))

    def once_loaded(own: Options, own_clock: Clock) -> Options:
        """Return the options of a search, with the time that is left once it is loaded."""
        loaded.wait()
        if own.time_limit is None or not own.by_default:
            return replace(own, time_limit=own_clock.limit)
        return replace(own, time_limit=max(0.0, min(own.time_limit, clock.left)))

    def from_file(own: Options) -> SolverResult:
        return search.solve(problem, once_loaded(own, own.clock()))

    restarts = Restarts(race, clock)

    def elsewhere(own: Options) -> SolverResult:
        if not restarts.begin():
            raise KeyboardInterrupt
        return from_file(own)

    def from_others(own: Options) -> SolverResult:
        own_clock = own.clock()
        found = starts.all(own.cancelled)
        if large:  # a search of so many operations takes long to begin, and more memory than all else
            await_bounds(own.cancelled)
        if race.within(settings.gap):  # another member has it
            raise KeyboardInterrupt
        own = once_loaded(own, own_clock)
        if not found:
            return search.solve(problem, own)
        return search.improved(problem, own, runs_of(found[0][0].schedule))

    alone = workers == 1
    share = 1 / 12 if alone else 1 / 4
    large = len(problem.graph.operations) > _LARGEST_OPERATIONS
    if large:
        rest = line("search from others", 1.0, from_others, 1)
        return [start("rounding", 2 * share, partial(_rounding_or_rotor, traced=traced)), rest]
    first = start("rounding", share, partial(_rounding, traced=traced))
    lines = [first, start("rk-rotor", share, rk_rotor.solve)]
    min_memory = minimum_memory_once(problem.graph, problem.machine)
    if min_memory is not None and device_limit(problem) < min_memory:
        lines.append(start("second pass", 2 * share, second_pass.solve))
    lines.append(line("search", 2 / 3 if alone else 1.0, from_file))
    if len(problem.graph.operations) <= _RESIDENCY_OPERATIONS:
        lines.append(start("residency", share, _residency))
    lines.append(line("search from others", 1.0, from_others, 1))
    lines += [line("search, more", 1.0, from_file, number) for number in range(2, workers)]
    if not options.by_default:
        return lines
    others = range(max(2, workers), max(2, workers) + _MOST_RESTARTS)
    return lines + [line("search elsewhere", 1.0, elsewhere, number) for number in others]


def _scale(problem: Problem) -> float:
    return max(1.0, len(problem.graph.operations) / 10_000)


def _rounding(problem: Problem, options: Options, traced: TracedOrder) -> SolverResult:
    try:
        return rounding.solve(problem, options, traced)
    finally:
        traced.end()


def _rounding_or_rotor(problem: Problem, options: Options, traced: TracedOrder) -> SolverResult:
    """Solve with rounding, and only if that finds nothing with rotor: its Python would slow down bounds."""
    clock = options.clock()
    try:
        return _rounding(problem, options, traced)
    except (NotAcceptedError, NotFoundError):
        return rotor.solve(problem, replace(options, time_limit=clock.limit))


def _residency(problem: Problem, options: Options) -> SolverResult:
    found = file_order(problem, options.time_limit or 0.0, options.cancelled).schedule
    if found is None:
        raise NotAcceptedError("the rounded residency program found no schedule")
    return SolverResult(found.schedule, Status.HEURISTIC)
