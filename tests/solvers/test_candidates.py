"""What solvers claim for the baseline if it fits: no solver calls optimal what a faster variant beats."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from random import Random

import pytest
from exact import optimal_time
from golden_table import SETTINGS, freeze_the_clock
from memplan.graphs.generators import chain
from memplan.graphs.graph import Graph, Mode
from memplan.graphs.machine import Links, Machine
from memplan.graphs.transformations.updates import SGD, with_updates
from memplan.planner.baseline import baseline
from memplan.planner.schedule.sequence import in_default_mode
from memplan.solvers.candidates import peak_without
from memplan.solvers.problem import NotAcceptedError, Problem, Status
from memplan.solvers.registry import run as registry

UNLIMITED = 10**12
MiB = 2**20
MACHINE = Machine(links=Links(MiB, MiB))

PROCESSES = ("auto", "moccasin", "hiremate", "rockmate", "h-ilp")
"""Solvers that take seconds."""

SOLVERS = [
    pytest.param(entry.name, marks=[pytest.mark.scripts] if entry.name in PROCESSES else [])
    for entry in registry.entries()
    # Revolve claims the fewest forward executions, not seconds: it never saves two blocks at once.
    if entry.module.startswith(".") and entry.name != "revolve"
]


def with_random_variants(random: Random) -> Graph:
    """A chain of two blocks, two of whose operations have a variant: faster or slower, heavier, partial."""
    graph = chain(2, seed=random.randrange(99))
    modes = dict[int, tuple[Mode, ...]]()
    for o in random.sample(range(len(graph.operations)), 2):
        row = graph.operation(o)
        made = row.writes[: random.choice((1, len(row.writes)))]
        time = row.time * random.choice((0.25, 0.5, 1.5))
        modes[o] = (Mode("variant", time, random.choice((0, row.workspace + MiB)), made),)
    return replace(graph, operations=replace(graph.operations, modes=modes)).share_structure(graph)


@cache
def graphs() -> list[tuple[Graph, float]]:
    """Graphs, each with its least seconds."""
    rows = [with_random_variants(Random(seed)) for seed in range(5)]
    return [(graph, optimal_time(graph, UNLIMITED) or 0.0) for graph in rows]


@pytest.mark.parametrize("solver", SOLVERS)
def test_what_is_called_optimal_with_unlimited_memory_is_the_fastest(
    solver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    freeze_the_clock(monkeypatch)
    machine = MACHINE if registry.entry(solver).needs_links else None
    for graph, best in graphs():
        try:
            problem = Problem(graph, UNLIMITED, machine)
            found = registry.solve(solver, problem, None, SETTINGS.get(solver), bound_seconds=0)
        except NotAcceptedError:
            continue
        assert found.status != Status.OPTIMAL or found.figures.time <= best * (1 + 1e-9)


@cache
def with_updates_on_the_cpu() -> tuple[Problem, float]:
    """Updates that a fast CPU runs alongside backward, and the seconds of a schedule that lets it."""
    graph = with_updates(
        chain(3, seed=1), optimizer=SGD, when="in-backward", device_rate=MiB, host_rate=10**4 * MiB
    )
    problem = Problem(graph, UNLIMITED, Machine(links=Links(10**4 * MiB, 10**4 * MiB)))
    return problem, registry.solve("zero-offload", problem, None, bound_seconds=0).figures.time


@pytest.mark.parametrize("solver", ["rotor", "tw-remat", "pofo", "l2l", "greedy-star", "offload-greedy"])
def test_the_baseline_is_not_called_optimal_if_the_cpu_makes_updates_faster(solver: str) -> None:
    problem, seconds = with_updates_on_the_cpu()
    found = registry.solve(solver, problem, None, bound_seconds=0)
    assert found.figures.time == baseline(problem.graph).time > seconds
    assert found.status == Status.HEURISTIC


def test_tensors_that_stay_count_once() -> None:
    graph = chain(3, seed=1)
    runs = in_default_mode(range(len(graph.operations)))
    sizes = graph.tensors.bytes
    first = graph.operation(0).writes[0]
    without, staying = peak_without(graph, runs, []), peak_without(graph, runs, [], staying=[first])
    assert without == baseline(graph).peak
    assert without <= staying <= without + int(sizes[first])
    everything = range(len(graph.tensors))
    assert peak_without(graph, runs, [], staying=everything) <= int(sizes.sum()) + int(
        graph.operations.workspace.max()
    )
