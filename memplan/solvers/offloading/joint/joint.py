"""Joint recomputation and offloading on any graph: what is kept, recomputed or moved, and where updates run.

    graph ──drops──▶ runs ──fill──▶ what stays ──slots──▶ state ──assemble, replay──▶ seconds
              ▲                         ▲                   ▲
              start: shares and kinds ──┘         anneal: a few tensors or an update at a time

Minimises the steady-state period itself, by the rules of the simulator, within the device's budget and the
host's capacity. Two phases share the time: greedy starts over how much is recomputed and how many updates
run on the CPU, some as a linear program advises; then annealing of the best, or of a schedule that is known,
from another solver or the caller. Nothing is proven here; the gap is to the bounds.

Assumed: links both ways. First runs keep traced order, but for updates, or that of the other solver's
schedule. A tensor can be recomputed in the slots of slots.py, and once more wherever that schedule
does so. Tensors move whole. No paper has this: the method is memplan's own, explained in docs/offloading.md.

    drops.py      begin here: which activations a start recomputes, and the runs that follow
    state.py      a point of the search: decisions, and what they come to; timeline.py, its runs; parts.py,
                  what a tensor adds, derived once for equivalent tensors (equivalent.py); aggregates.py, the
                  tables of all
    first.py      a schedule in a moment, for those who can't wait
    start.py      greedy starts; fill.py, what stays on the device; disk_spill.py, what goes on to the disk;
                  lp_guide.py, what the offloading program in fractions advises
    update_order.py when updates on the CPU take place: in backward's order, or late
    warm_start.py from another solver's schedule, or a start, to a state; alternatives.py, positions at which
                  collectives overlap with computations
    anneal.py     moves from there; slots.py and recompute_moves.py, those that change what is recomputed;
                  stalls.py, where the device waits
    planner/residency/assembly.py, from a state to the steps of its schedule; planner/replay, their period

Per evaluation O(steps · iterations) in compiled code: 0.4 ms for 1,300 operations and 2,600 transfers and
deletes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf

from ....graphs.machine import Machine
from ....graphs.units import duration
from ....planner.bounds import minimum_memory, time_bound
from ....planner.residency.from_schedule import recover_residency
from ....planner.schedule.schedule import Schedule
from ....planner.simulator.simulate import simulate
from ...candidates import baseline_candidate, device_limit
from ...clock import Clock
from ...problem import (
    InfeasibleError,
    NotAcceptedError,
    NotFoundError,
    Options,
    Problem,
    SolverResult,
    Status,
)
from ...settings import SolverSettings, setting
from .anneal import Anneal, part_of
from .compiling import load
from .drops import Drops
from .start import Starts, other_modes
from .warm_start import Opening, opened

NAME = "joint"

_START_SHARE = 0.5
"""Share of the time limit for the starts."""

_ADVICE_SHARE, _ADVICE_SECONDS = 0.25, 20.0
"""Share of the time limit for the offloading program that advises starts; and seconds at most."""

_FIRST_SHARE = 0.15
"""Share of the annealing for each start if there are several; the best of their results continues. If there
are seven or more, each has an equal share, and so has the best."""

_READ_SHARE = 0.1
"""Share of the time limit. After it no further schedule is read if one is there to start from, and no more
shifts are sought for that one's transfers."""

_MOST_MOVES, _MOST_RUNS, _MOST_CHOICES = 200_000, 50_000_000, 60
"""Limits that replace a time limit: moves of the annealing, runs that they replay, and starts."""

_ENOUGH = 1e-6
"""A schedule this close to the time of all operations is the fastest."""


_IDLE_PART, _IDLE_FROM = 0.3, 0.5
"""Part of the annealing without a faster schedule that ends it, once so much of it is over, if nobody has
asked for its time. Only of annealings with recomputation: they are cold from the beginning (anneal.py)."""

_FASTER = 1e-4
"""Relative gain that counts as faster there."""


@dataclass(frozen=True)
class Settings(SolverSettings):
    """Settings of joint."""

    moves: int = setting(
        200,
        "moves of the annealing for each possible offload interval if no time limit ends it; "
        "200,000 in all at most, fewer on large graphs",
        least=0,
    )
    seed: int = setting(0, "seed of the random numbers")


def solve(problem: Problem, options: Options) -> SolverResult:
    machine = require_links(NAME, problem)
    baseline = baseline_if_fastest(problem)
    if baseline is not None:
        return baseline
    load(options)
    clock, limit, drops = options.clock(), device_limit(problem), Drops(problem.graph, machine.links.peers)
    found_before = partial(options.race.found, who=NAME)
    starts = Starts(drops, machine, limit, lambda: _go_on(clock, starts, options), found_before)
    with clock.until_interrupted():
        starts.search(clock.part(_ADVICE_SHARE, _ADVICE_SECONDS).left)
    openings = list[Opening]()
    for start in starts.found:
        each = opened(problem, [start.residency], drops, lambda: True)
        openings += [] if each is None else [each]
        if clock.interrupted and openings:  # the answer is wanted at once, and the best start is the first
            break
    seconds = min((outcome.seconds for _state, outcome in openings), default=inf)
    if options.start is not None and options.race.best < seconds and not clock.interrupted:
        known = recover_residency(problem.graph, options.start)
        each = opened(problem, [known], drops, lambda: clock.share >= _START_SHARE + _READ_SHARE)
        openings += [] if each is None else [each]
    if not openings:
        clock.raise_if_interrupted()
        raise _refusal(problem, limit, starts)
    seconds = min(outcome.seconds for _state, outcome in openings)
    options.report(f"{NAME}: searching, best {duration(seconds)}")
    found = _annealed(problem, options, clock, openings)
    return SolverResult.of_heuristic(found, clock, time_bound(problem.graph))


def improved(problem: Problem, options: Options, known: Iterable[tuple[Schedule, float]]) -> SolverResult:
    """Anneal the fastest of these schedules; the answer is never slower than that.

    known: with their seconds.
    """
    clock, ordered = options.clock(), sorted(known, key=lambda each: each[1])
    if clock.share >= 1.0:
        return SolverResult.of_heuristic(ordered[0][0], clock, time_bound(problem.graph))
    drops = Drops(problem.graph)
    residencies = [recover_residency(problem.graph, schedule) for schedule, _seconds in ordered]
    # What is slower as it is may be faster with collectives that overlap: then all are annealed for a while.
    groups = [[one] for one in residencies] if problem.graph.operations.comm else [residencies]
    tried = [opened(problem, group, drops, lambda: clock.share >= _READ_SHARE) for group in groups]
    openings = [opening for opening in tried if opening]
    found = ordered[0][0]
    if openings:
        annealed = _annealed(problem, options, clock, openings)
        if _seconds(problem, annealed) < ordered[0][1]:
            found = annealed
    return SolverResult.of_heuristic(found, clock, time_bound(problem.graph))


overlapped = improved
"""For graphs with collectives (solvers/registry/overlapping.py)."""


def require_links(name: str, problem: Problem) -> Machine:
    """Return the machine. Raises NotAcceptedError if it cannot move tensors."""
    machine = problem.machine or problem.graph.machine or Machine()
    if not machine.can_transfer:
        raise NotAcceptedError(f"{name} needs a machine with links d2h and h2d: without them use search")
    return machine


def baseline_if_fastest(problem: Problem) -> SolverResult | None:
    if problem.graph.tensors.spread:  # the baseline has no network
        return None
    baseline, bound = baseline_candidate(problem.graph), time_bound(problem.graph)
    if baseline.peak <= device_limit(problem) and baseline.time <= bound * (1 + _ENOUGH):
        return SolverResult(baseline.schedule, Status.OPTIMAL, bound)
    return None


def _annealed(problem: Problem, options: Options, clock: Clock, openings: Sequence[Opening]) -> Schedule:
    """Return the best schedule that annealing finds from there."""
    settings = options.chosen(Settings)
    graph, bound = problem.graph, time_bound(problem.graph)
    anneals = [Anneal(*opening, other_modes(graph), settings.seed) for opening in openings]
    moves = min(
        _MOST_MOVES,
        _MOST_RUNS // max(1, len(graph.operations)),
        settings.moves * max(len(anneal.state.interval_rows) for anneal in anneals),
    )
    begun, idle = clock.share, _Idle(worth=any(anneal.recomputed.optional for anneal in anneals))

    def best() -> Anneal:
        return min(anneals, key=lambda anneal: anneal.best.outcome.seconds)

    def progress() -> float:
        seconds, share = best().best.outcome.seconds, clock.share
        options.race.found(seconds, NAME)
        if not moves or share >= 1.0 or seconds <= bound * (1 + _ENOUGH):
            return 1.0
        by_clock = 0.0 if clock.limit is None else (share - begun) / (1.0 - begun)
        if clock.limit is not None and not options.by_default:
            return by_clock
        done = max(by_clock, sum(anneal.tried for anneal in anneals) / moves)
        return 1.0 if options.by_default and idle.over(seconds, done) else done

    with clock.until_interrupted():
        first = len(anneals) if len(anneals) > 1 and not clock.interrupted else 0
        # A part that ended above 1 would never be over: progress stays at 1.
        part = min(_FIRST_SHARE, 1.0 / (first + 1))
        for number, anneal in enumerate(anneals[:first]):
            anneal.cool(part_of(progress, number * part, (number + 1) * part))
        if not clock.interrupted:
            best().run(part_of(progress, first * part, 1.0))
    anneal = best()
    anneal.restore(anneal.best)
    return anneal.state.schedule(anneal.best.outcome)


def _go_on(clock: Clock, starts: Starts, options: Options) -> bool:
    any_number = clock.limit is not None and not options.by_default
    return clock.share < _START_SHARE and (any_number or starts.tried < _MOST_CHOICES)


class _Idle:
    """Whether an annealing has found nothing for a while. worth: it may end for that."""

    def __init__(self, *, worth: bool) -> None:
        self._worth, self._seconds, self._since = worth, inf, 0.0

    def over(self, seconds: float, done: float) -> bool:
        """Tell whether to end it. seconds: of its best. done: share of the annealing that is over."""
        if seconds < self._seconds * (1.0 - _FASTER):
            self._seconds, self._since = seconds, done
        return self._worth and done >= _IDLE_FROM and done - self._since >= _IDLE_PART


def _seconds(problem: Problem, schedule: Schedule) -> float:
    limit, machine = device_limit(problem), problem.machine
    return simulate(problem.graph, schedule, budget=limit, machine=machine).figures.time


def _refusal(problem: Problem, limit: int, starts: Starts) -> InfeasibleError:
    min_memory = minimum_memory(problem.graph, problem.machine)
    least = None if starts.least == inf else int(starts.least)
    if starts.least <= limit or not starts.complete:
        return NotFoundError(NAME, limit, min_memory, least).holding(starts.leanest)
    return InfeasibleError(NAME, limit, least, min_memory).holding(starts.leanest)
