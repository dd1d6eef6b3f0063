"""Random problems for every solver, and all that can be said against what a solver answers.

Small enough for a hundred a second; the graphs have everything that a solver without transfers may meet.
Odder ones, with machines: odd_graphs.py.
More of them than fit in a test run: benchmarks/fuzz.py --only solvers.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import gcd
from random import Random
from time import perf_counter

import numpy as np
from memplan.graphs.generators import chain, layered, unet
from memplan.graphs.graph import Graph, Phase
from memplan.graphs.machine import Links, Machine
from memplan.planner.baseline import baseline
from memplan.planner.bounds import minimum_memory, minimum_memory_once
from memplan.planner.schedule.schedule import Schedule, Verb
from memplan.solvers.candidates import device_limit
from memplan.solvers.problem import (
    InfeasibleError,
    NotAcceptedError,
    NotFoundError,
    Problem,
    ValidatedSolution,
)
from memplan.solvers.registry import run as registry
from numba.core.event import TimingListener, install_listener
from small_graphs import small_graph
from strategies import Case, random_graph
from training_graphs import training
from two_replays import disagreement
from weights_only import weights_only

SAME = 1e-9
"""Relative difference up to which two times are the same."""

PROVEN = 1e-6
"""Relative difference up to which a bound is not above a time."""

PATIENT_SECONDS = 10.0
"""The most that a busy machine takes to start a process for HiGHS and to solve a program of a few columns."""

PROGRAMS = ("checkmate", "rk-checkmate", "h-ilp", "hiremate", "rockmate")
FINE = 1e-7
"""Of the budget: what their backends tell from nothing (checkmate_model.ROOM, with a margin)."""


def random_problem(seed: int) -> Problem:
    """A graph of 1 to some 40 operations; a budget from just below the floor to just above the plain peak."""
    random = Random(seed)
    graph = _graph(random)
    low, high = minimum_memory(graph), baseline(graph).peak
    edge = random.choice((low - 1, low, low, high - 1, high, high + 1))
    return Problem(graph, max(0, edge if random.random() < 0.3 else random.randint(low, high)))


def _graph(random: Random) -> Graph:
    kind, seed = random.randrange(12), random.randrange(10**9)
    if kind < 2:
        return small_graph(random)
    if kind < 4:
        return random_graph(random, random.randint(2, 12))
    if kind < 5:
        return chain(
            random.randint(2, 8),
            seed=seed,
            uniform=random.random() < 0.3,
            parameters=random.random() < 0.5,
            fast_forward=random.random() < 0.5,
        )
    if kind < 6:
        return unet(random.randint(1, 2), seed=seed)
    if kind < 8:
        return layered(random.randint(2, 20), seed=seed, width=random.randint(1, 8))
    update = random.choice(("none", "end", "early"))
    return training(random.choice((1, 1, 2, 3)), seed, skip=random.choice((0.0, 0.4)), update=update)


def warm_up(solvers: Sequence[str]) -> None:
    """Compile what is compiled at the first use, before anything is timed."""
    graphs = chain(8), training(3, 0, skip=0.4, update="end"), weights_only(Random(0), 3)
    for graph, machine in ((graphs[0], None), *((graph, Machine(links=Links(300, 300))) for graph in graphs)):
        budget = (minimum_memory(graph, machine) + 4 * baseline(graph).peak) // 5
        for solver in solvers:
            with suppress(Exception):
                registry.solve(solver, Problem(graph, budget, machine), 0.2, bound_seconds=0.2)


@dataclass(frozen=True)
class Verdict:
    """What a solver made of a problem. outcome: "ok", or the name of its refusal.

    time, peak, lower_bound: of the schedule. faults: what it must not do, one line each.
    """

    solver: str
    outcome: str
    seconds: float
    time: float | None = None
    peak: int | None = None
    lower_bound: float | None = None
    faults: tuple[str, ...] = ()


def verdict(solver: str, problem: Problem, time_limit: float, bound_seconds: float = 10.0) -> Verdict:
    """Solve, and hold the answer against the rules; a refusal too. Warnings are faults."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", ResourceWarning)
        one = _verdict(solver, problem, time_limit, bound_seconds)
    reported = tuple(f"warns: {str(warning.message).splitlines()[0]}" for warning in heard)
    return replace(one, faults=one.faults + reported[:1])


def _verdict(solver: str, problem: Problem, time_limit: float, bound_seconds: float) -> Verdict:
    start, worked, compiling = perf_counter(), _processor_seconds(), TimingListener()
    try:
        with install_listener("numba:compile", compiling):
            found = registry.solve(solver, problem, time_limit, bound_seconds=bound_seconds)
    except Exception as error:
        seconds = perf_counter() - start
        faults = tuple(_refusal_faults(solver, problem, error, seconds, time_limit))
        return Verdict(solver, type(error).__name__, seconds, faults=faults)
    figures, limit = found.figures, device_limit(problem)
    min_memory = minimum_memory(problem.graph, problem.machine)
    faults = list[str]()
    difference = disagreement(Case(problem.graph, found.schedule, problem.budget, problem.machine))
    if difference is not None:
        faults.append(f"the replays differ: {difference}")
    if figures.peak > limit:
        faults.append(f"its peak {figures.peak} is over the budget {limit}")
    if figures.peak < min_memory:
        faults.append(f"its peak {figures.peak} is below the floor {min_memory}")
    if found.lower_bound is not None and found.lower_bound > figures.time * (1 + PROVEN):
        faults.append(f"its bound {found.lower_bound} is above its time {figures.time}")
    faults += [f"a fault in part: {line}" for line in found.notes]
    moves = bool((found.schedule.verbs >= Verb.OFFLOAD).any())
    filed, once = in_file_order(found.schedule), backward_runs_once(problem.graph, found.schedule)
    for bound in found.bounds:
        holds = (filed or bound.order == "any") and (bound.transfers or not moves)
        if holds and (once or bound.backward_again) and bound.seconds > figures.time * (1 + PROVEN):
            faults.append(f"{bound} does not hold: it takes {figures.time}")
    once_bytes = minimum_memory_once(problem.graph, problem.machine)
    if filed and once and once_bytes is not None and figures.peak < once_bytes:
        faults.append(f"its peak {figures.peak} is below the once-floor {once_bytes}")
    taken = min(found.seconds, _processor_seconds() - worked)
    if taken - (compiling.duration if compiling.done else 0.0) > 2 * time_limit + 5:
        faults.append(f"it took {found.seconds:.1f} s, its limit was {time_limit:g} s")
    return Verdict(solver, "ok", found.seconds, figures.time, figures.peak, found.lower_bound, tuple(faults))


def _processor_seconds() -> float:
    """Of this process and its children: on a busy machine time passes without."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def in_file_order(schedule: Schedule) -> bool:
    """Whether the first runs keep it."""
    first_runs = list(dict.fromkeys(step.target for step in schedule if step.verb == Verb.COMPUTE))
    return first_runs == sorted(first_runs)


def backward_runs_once(graph: Graph, schedule: Schedule) -> bool:
    runs = schedule.targets[schedule.verbs == Verb.COMPUTE]
    counts = np.bincount(runs, minlength=len(graph.operations))
    return int(counts[graph.operations.phase >= Phase.BACKWARD].max(initial=0)) <= 1


def _refusal_faults(
    solver: str, problem: Problem, error: Exception, seconds: float, time_limit: float
) -> Iterator[str]:
    graph, limit, min_memory = (
        problem.graph,
        device_limit(problem),
        minimum_memory(problem.graph, problem.machine),
    )
    if isinstance(error, NotAcceptedError):
        entry = registry.entry(solver)
        if entry.accepts.startswith("any graph") and not entry.needs_links:
            yield f"takes any graph, but not this one: {error}"
        return
    if not isinstance(error, InfeasibleError):
        yield f"{type(error).__name__}: {error}"
        return
    if limit >= baseline(graph).peak:
        yield f"refuses a budget in which the plain schedule fits: {error}"
    yield from (f"a fault in part: {note}" for note in error.notes)
    if error.min_memory != min_memory:
        yield f"names the floor {error.min_memory}, it is {min_memory}"
    if (
        isinstance(error, NotFoundError)
        and seconds < 0.5 * time_limit
        and not _too_fine(solver, graph, limit)
    ):
        yield f"gave up after {seconds:.2f} s of {time_limit:g} s: {error}"
    if error.least is None:
        return
    if error.least <= limit:
        yield f"names a least budget of {error.least}, and refuses {limit}"
    machine = problem.machine or graph.machine
    if machine is not None:
        machine = replace(machine, device_capacity=None)
    named = Problem(graph, error.least, machine)
    try:
        patient = max(20 * time_limit, PATIENT_SECONDS)
        recomputed = _found_in(solver, named, 2 * time_limit) or _solved(solver, named, patient)
        if recomputed.figures.peak > error.least:
            yield f"its peak {recomputed.figures.peak} is over the least budget that it named, {error.least}"
    except Exception as refusal:
        if _too_fine(solver, graph, error.least):
            return
        yield f"does not reach the least budget that it named, {error.least}: {refusal}"


def _too_fine(solver: str, graph: Graph, limit: int) -> bool:
    """Sizes are too far apart for the backend of an integer program to tell all of them from nothing."""
    workspaces = (mode.workspace for modes in graph.operations.modes.values() for mode in modes)
    quantum = gcd(*graph.tensors.bytes.tolist(), *graph.operations.workspace.tolist(), *workspaces)
    return solver in PROGRAMS and quantum < FINE * limit


def _found_in(solver: str, problem: Problem, seconds: float) -> ValidatedSolution | None:
    """None where it did not find any in this time, on a machine that may be busy."""
    with suppress(NotFoundError):
        return _solved(solver, problem, seconds)
    return None


def _solved(solver: str, problem: Problem, seconds: float) -> ValidatedSolution:
    return registry.solve(solver, problem, seconds, bound_seconds=0)


def contradictions(problem: Problem, verdicts: Iterable[Verdict]) -> Iterator[str]:
    """Where one solver's answer proves another's bound, or the floor, wrong."""
    verdicts = list(verdicts)
    solved = [(one.time, one.solver) for one in verdicts if one.time is not None]
    if not solved:
        return
    best, fastest = min(solved)
    if device_limit(problem) < minimum_memory(problem.graph, problem.machine):
        yield f"{fastest} has a schedule below the floor"
    for one in verdicts:
        if one.lower_bound is not None and one.lower_bound > best * (1 + PROVEN):
            yield f"{one.solver} claims the bound {one.lower_bound}, {fastest} takes {best}"
