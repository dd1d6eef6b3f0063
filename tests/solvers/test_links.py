"""Links that were measured at several sizes: all that plans and times copies agrees on their seconds."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from exact_offload import optimum
from memplan.graphs.machine import Link, Links, Machine
from memplan.planner.baseline import baseline
from memplan.planner.bounds import minimum_memory
from memplan.solvers.problem import InfeasibleError, NotAcceptedError, Problem
from memplan.solvers.registry.run import solve
from small_offload import small_training
from strategies import with_measured

MOVING = """
joint offload-greedy offmate pofo lohan memferry stronghold zero-infinity l2l block-swap checkpoint-offload
activation-offload optimizer-offload paged-optimizer
"""
SOLVERS = MOVING.split()
SETTINGS = {"joint": {"moves": "5"}, "offload-greedy": {"moves": "200"}}


def a_problem(seed: int) -> Problem:
    random = Random(seed)
    graph = small_training(random, 3, states=True, host=True)
    machine = Machine(links=Links(Link(2.0, 0.25), Link(2.0, 0.25), 1.0, 1.0))
    low, high = minimum_memory(graph, machine), baseline(graph).peak
    return Problem(graph, low + (high - low) // 2, machine)


def seconds(solver: str, problem: Problem) -> float | None:
    try:
        return solve(solver, problem, None, SETTINGS.get(solver), bound_seconds=0).figures.time
    except (InfeasibleError, NotAcceptedError):
        return None


@pytest.mark.sampled(6)
@pytest.mark.parametrize("solver", SOLVERS)
def test_a_table_on_the_line_of_the_rate_gives_the_same_figures(solver: str) -> None:
    problem = a_problem(3)
    assert problem.machine is not None
    sizes = (1, 4, 16)

    def tabled(link: Link | None) -> Link | None:
        return link and replace(link, measured=tuple((size, link.seconds(float(size))) for size in sizes))

    links = problem.machine.links
    same = Links(*(tabled(link) for link in (links.d2h, links.h2d, links.disk_read, links.disk_write)))
    found, expected = (
        seconds(solver, replace(problem, machine=replace(problem.machine, links=each)))
        for each in (same, links)
    )
    assert found == pytest.approx(expected)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(6))
def test_no_solver_is_faster_than_enumeration_on_any_table(seed: int) -> None:
    """The compiled simulator's seconds decide for `joint` and `offload-greedy`; the simulator times all."""
    problem = a_problem(seed)
    assert problem.machine is not None
    machine = replace(problem.machine, links=with_measured(Random(seed), problem.machine.links))
    assert problem.budget is not None
    best = optimum(problem.graph, machine, problem.budget, states=600)
    answers = [seconds(solver, replace(problem, machine=machine)) for solver in SOLVERS]
    assert any(answer is not None for answer in answers)
    if best.proven:
        assert min(each for each in answers if each is not None) >= best.period * (1 - 1e-7)


@pytest.mark.parametrize("factor", [0.5, 4.0])
def test_links_and_operations_slowed_alike_slow_the_iteration_alike(factor: float) -> None:
    problem = a_problem(1)
    assert problem.machine is not None
    links = with_measured(Random(7), problem.machine.links)
    operations = problem.graph.operations
    modes = {
        operation: tuple(replace(mode, time=factor * mode.time, launch=factor * mode.launch) for mode in each)
        for operation, each in operations.modes.items()
    }
    times = {"time": factor * operations.time, "launch": factor * operations.launch}
    graph = replace(problem.graph, operations=replace(operations, modes=modes, **times))
    each = (links.d2h, links.h2d, links.disk_read, links.disk_write)
    slowed = Links(*(link and link.slowed(factor) for link in each))
    for solver in ("joint", "zero-infinity", "offload-greedy"):
        before = seconds(solver, replace(problem, machine=Machine(links=links)))
        after = seconds(solver, Problem(graph, problem.budget, Machine(links=slowed)))
        assert before is not None
        assert after == pytest.approx(factor * before)
    assert np.all(graph.operations.time >= 0)
