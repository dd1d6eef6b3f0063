"""The default: a portfolio on the cores at hand; the fastest of its answers.

    line 0   search, from the file's order
    line 1   the rounded residency program, and rk-rotor where the graph is a chain; search from the better
    line 2…  search with other random numbers

On a machine with links to the host the lines are others: moving.py.

Minimises what its solvers do, the simulated time within the device's budget, on any graph; where the plain
schedule fits, no operation has a faster way and there are no links, that is the answer. Each line has a core
of its own; with one core, line 1 has a third of the time and line 0 the rest. Annealing from the file's order
is as good as from a dynamic program's answer on graphs of hundreds of operations; on larger ones, and close
to the least memory, the second line has a head start. Given enough time for all moves, the same problem gives
the same answer; with a time limit, what is best by then. Without one, the search is compiled, once on a
machine, beside the residency program and rk-rotor. A budget below the floor on memory is refused at
once; what can be reached is then looked for in seconds, where the search is compiled.

    lines.py     lines side by side: one that fails costs its own answer alone
    moving.py    the lines where tensors can move, then joint from the fastest
    process.py   lines as processes, for large graphs; child.py, the other side

The choice of lines is ours; references and complexities are the solvers' own, in their rooms.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from threading import Event
from time import monotonic

from joblib import cpu_count

from ...graphs.machine import Machine
from ...planner.bounds import memory_floor, time_bound
from ...planner.schedule.sequence import runs_of
from ..bounds.offload.offload_bound import moves
from ..bounds.residency.schedule import residency_schedule
from ..candidates import Candidate, device_limit, judged, plain_candidate
from ..problem import Answer, InfeasibleError, NotAcceptedError, NotFoundError, Options, Problem, Status
from ..recomputation.rockmate import rk_rotor
from ..recomputation.search import search
from ..recomputation.search.instance import instance_of
from ..recomputation.search.rounds import at_hand, load
from ..settings_text import check_workers
from ..stages.slots import has_faster_ways
from . import lines as portfolio
from . import moving as auto_moving
from .lines import Cancelled, Line

NAME = "auto"

_MOST_LINES = 8
_LOOK_SECONDS = 2.0
"""For the least memory, where the budget is refused anyway."""

_RESIDENCY_OPERATIONS = 2000
"""Up to this size the residency program in whole numbers is worth a try."""


@dataclass(frozen=True)
class Settings:
    """workers: cores to use, 0 for those at hand, up to 8. moves, seed: as of search."""

    workers: int = 0
    moves: int = 1500
    seed: int = 0

    def __post_init__(self) -> None:
        check_workers(self.workers, 0)
        search.Settings(self.moves, self.seed)


def solve(problem: Problem, options: Options) -> Answer:
    settings: Settings = options.settings or Settings()
    workers = settings.workers or min(_MOST_LINES, cpu_count())
    machine = problem.machine or problem.graph.machine or Machine()
    floor = memory_floor(problem.graph, machine)
    if device_limit(problem) < floor:
        least = None if moves(machine) else _least(problem, options, settings)
        raise InfeasibleError(NAME, device_limit(problem), least, floor)
    if moves(machine):
        return auto_moving.solve(problem, options, NAME, workers)
    plain = plain_candidate(problem.graph)
    if plain.peak <= device_limit(problem) and not has_faster_ways(problem.graph):
        return Answer(plain.schedule, Status.OPTIMAL, time_bound(problem.graph))
    stop, loaded = Event(), Event()
    lines = _lines(problem, options, settings, workers, loaded)

    def have_it_loaded() -> None:
        try:
            load(instance_of(problem.graph), options)
        except BaseException:
            stop.set()
            raise
        finally:
            loaded.set()

    if options.time_limit is not None:  # compiling is not to take from it
        have_it_loaded()
    outcomes = portfolio.run(problem, lines, workers, stop, have_it_loaded)
    if not outcomes.answers:
        raise _refusal(outcomes.refusals, outcomes.faults)
    cut_short = any(answer.status == Status.FEASIBLE for answer, _figures in outcomes.answers)
    status = Status.FEASIBLE if cut_short else Status.HEURISTIC
    fastest = outcomes.fastest
    notes = (*fastest.notes, *outcomes.faults)
    return replace(fastest, status=status, interrupted=outcomes.interrupted, notes=notes)


def _least(problem: Problem, options: Options, settings: Settings) -> int | None:
    """The least memory that annealing reaches in a moment, bytes."""
    if len(problem.graph.operations) > _RESIDENCY_OPERATIONS or not at_hand():
        return None
    seconds = min(_LOOK_SECONDS, inf if options.time_limit is None else options.time_limit)
    chosen = search.Settings(settings.moves, settings.seed)
    try:
        search.solve(problem, replace(options, settings=chosen, time_limit=seconds))
    except InfeasibleError as refusal:
        return refusal.least
    return None


def _refusal(refusals: list[InfeasibleError], faults: list[str]) -> InfeasibleError:
    """The one that names the smallest budget, else the one that proves most."""
    best = min(refusals, key=lambda refusal: (refusal.least is None, refusal.least or 0))
    if isinstance(best, NotFoundError):
        found = [
            each.found for each in refusals if isinstance(each, NotFoundError) and each.found is not None
        ]
        refusal = NotFoundError(NAME, best.budget, best.floor, min(found, default=None))
    else:
        refusal = InfeasibleError(NAME, best.budget, best.least, best.floor)
    refusal.notes = tuple(faults)
    return refusal


def _lines(problem: Problem, options: Options, settings: Settings, workers: int, loaded: Event) -> list[Line]:
    """loaded: the search is at hand; the residency program and rk-rotor don't wait for it."""
    seconds = options.time_limit
    shares = [2 / 3, 1 / 3] if workers == 1 else [1.0] * workers
    lines: list[Line] = []
    for number, share in enumerate(shares):
        chosen = search.Settings(settings.moves, settings.seed + number)
        limit = None if seconds is None else share * seconds
        own = replace(options, settings=chosen, time_limit=limit)
        name = "search from the file's order" if number != 1 else "search from residency and rk-rotor"
        solver = _from_file if number != 1 else _from_others
        lines.append(Line(name, partial(_solved, partial(solver, loaded), problem, own)))
    return lines


def _solved(
    solver: Callable[[Problem, Options], Answer], problem: Problem, options: Options, cancelled: Cancelled
) -> Answer:
    return solver(problem, replace(options, cancelled=cancelled))


def _from_file(loaded: Event, problem: Problem, options: Options) -> Answer:
    loaded.wait()
    return search.solve(problem, options)


def _from_others(loaded: Event, problem: Problem, options: Options) -> Answer:
    """Search from the best start that others find, each in a quarter of its time."""
    start = monotonic()
    share = 10.0 if options.time_limit is None else options.time_limit / 4
    starts: list[Candidate] = []
    if len(problem.graph.operations) <= _RESIDENCY_OPERATIONS:
        found = residency_schedule(problem.graph, device_limit(problem), share).schedule
        starts += [found] if found else []
    with suppress(NotAcceptedError, InfeasibleError):
        chain = rk_rotor.solve(problem, replace(options, settings=None, time_limit=share))
        starts.append(judged(problem.graph, chain.schedule))
    loaded.wait()
    rest = _from(options, start)
    if not starts:
        return search.solve(problem, rest)
    fastest = min(starts, key=lambda candidate: candidate.time)
    return search.improved(problem, rest, runs_of(fastest.schedule))


def _from(options: Options, start: float) -> Options:
    """The options with the time that is left since `start`."""
    if options.time_limit is None:
        return options
    return replace(options, time_limit=max(0.0, options.time_limit - (monotonic() - start)))
