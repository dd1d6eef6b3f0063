"""The smallest budget and the largest batch: against solvers whose limits are known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import log2

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memplan.graphs.generators import chain
from memplan.graphs.graph import Graph
from memplan.graphs.machine import Links, Machine
from memplan.planner.baseline import baseline, baseline_schedule
from memplan.planner.bounds import minimum_memory
from memplan.planner.schedule.schedule import Schedule
from memplan.planner.simulator.simulate import Figures, simulate
from memplan.sizing.trial import (
    LARGEST,
    TOLERANCE,
    BatchTrial,
    Known,
    Solve,
    given_batches,
    largest_batch,
    minimum_of,
    smallest_budget,
    trial,
)
from memplan.solvers.problem import InfeasibleError, Problem
from memplan.solvers.registry import run as registry

GRAPH = chain(6, seed=1)
BASELINE = baseline(GRAPH)


def unused() -> tuple[Figures, float]:
    return BASELINE, 0.0


NOWHERE = Machine()


def reaching(least: int) -> Solve:
    """A solver that has the plain schedule for every budget of at least `least` bytes."""
    return lambda graph, budget: baseline_schedule(graph) if budget >= least else None


def rotor(graph: Graph, budget: int) -> Schedule | None:
    try:
        return registry.solve("rotor", Problem(graph, budget), bound_seconds=0.0).schedule
    except InfeasibleError:
        return None


def fits_up_to(limit: int, asked: list[int]) -> Callable[[int], BatchTrial]:
    def attempt(batch: int) -> BatchTrial:
        asked.append(batch)
        schedule = baseline_schedule(GRAPH) if batch <= limit else None
        return BatchTrial(batch, 100, 0, unused, schedule, BASELINE if schedule else None)

    return attempt


# ── the largest batch ───────────────────────────────────────────────────────────────────────────────


@given(st.integers(0, LARGEST))
def test_the_largest_batch_is_found_in_few_questions(limit: int) -> None:
    asked: list[int] = []
    tried = list(largest_batch(fits_up_to(limit, asked)))
    largest = max((one.batch for one in tried if one.schedule), default=0)
    assert largest <= limit < max(largest + 1, (1 + TOLERANCE) * largest)
    assert len(asked) <= log2(max(limit, 1)) + log2(1 / TOLERANCE) + 3
    assert len(set(asked)) == len(asked)


@given(st.integers(1, 50), st.integers(0, 200))
def test_a_search_starts_where_it_may(start: int, limit: int) -> None:
    asked: list[int] = []
    tried = list(largest_batch(fits_up_to(limit, asked), start))
    assert min(asked) == start
    largest = max((one.batch for one in tried if one.schedule), default=0)
    assert largest <= limit
    assert limit < max(start, largest + 1, (1 + TOLERANCE) * largest)


def test_no_batch_above_the_largest_is_tried() -> None:
    asked: list[int] = []
    tried = list(largest_batch(fits_up_to(2 * LARGEST, asked)))
    assert tried[-1].batch == max(asked) == LARGEST


def test_given_batches_grow_until_one_is_hopeless() -> None:
    def attempt(batch: int) -> BatchTrial:
        return BatchTrial(batch, 100, 30 * batch, unused)

    assert [one.batch for one in given_batches(attempt, [8, 1, 4, 2, 4])] == [1, 2, 4]


def test_what_host_and_disk_cannot_hold_stays_on_the_device() -> None:
    graph = chain(6, seed=1, parameters=True)
    resident = int(graph.tensors.bytes[graph.resident].sum())
    persistent = int(graph.tensors.bytes[graph.persistent].sum())
    assert persistent
    minimums = [
        minimum_of(graph, Machine(None, host, disk, links))
        for host, disk, links in (
            (0, 0, Links()),
            (0, None, Links(1e9, 1e9)),
            (persistent // 2, None, Links(1e9, 1e9)),
            (persistent // 2, persistent // 4, Links(1e9, 1e9, 1e9, 1e9)),
            (persistent // 2, None, Links(1e9, 1e9, 1e9, 1e9)),
            (None, None, Links(1e9, 1e9)),
        )
    ]
    movable = minimum_memory(graph, Machine(links=Links(1e9, 1e9)))
    assert minimums[0] == minimum_memory(graph, NOWHERE) >= resident
    held = [resident, resident - persistent // 2, resident - persistent // 2 - persistent // 4]
    assert minimums[1:4] == [max(movable, rest) for rest in held]
    assert minimums[4:] == [movable, movable]


# ── the smallest budget ─────────────────────────────────────────────────────────────────────────────


def test_below_the_floor_nobody_is_asked() -> None:
    min_memory = minimum_memory(GRAPH, NOWHERE)
    found = trial(GRAPH, NOWHERE, 1, min_memory - 1, lambda _graph, _budget: pytest.fail("asked"))
    assert found.proven_infeasible
    assert found.figures is None
    assert found.samples_per_second is None
    assert found.min_memory == min_memory


@settings(max_examples=40)
@given(st.floats(0, 1))
def test_a_plain_schedule_needs_its_peak_however_it_is_asked_for(part: float) -> None:
    """Its least budget is its peak: one question at most is needed to see that the rest fails."""
    asked: list[int] = []

    def solve(graph: Graph, budget: int) -> Schedule | None:
        asked.append(budget)
        return baseline_schedule(graph) if budget >= BASELINE.peak else None

    first = trial(GRAPH, NOWHERE, 3, BASELINE.peak + int(part * 10**9), solve)
    *_worse, best = smallest_budget(GRAPH, NOWHERE, first, solve)
    assert best.budget == BASELINE.peak
    assert best.figures == BASELINE
    assert best.samples_per_second == pytest.approx(3 / BASELINE.time)
    assert all(budget < BASELINE.peak for budget in asked[1:])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("tolerance", [TOLERANCE, 0.001])
def test_as_small_as_the_solver_can_reach(seed: int, tolerance: float) -> None:
    """Rotor names its least budget when it refuses one: the oracle."""
    graph = chain(8, seed=seed)
    min_memory = minimum_memory(graph, NOWHERE)
    with pytest.raises(InfeasibleError) as refusal:
        registry.solve("rotor", Problem(graph, min_memory - 1))
    least = refusal.value.least
    assert least is not None
    first = trial(graph, NOWHERE, 1, baseline(graph).peak, rotor)
    found = list(smallest_budget(graph, NOWHERE, first, rotor, tolerance))
    budgets = [one.budget for one in found]
    assert budgets == sorted(budgets, reverse=True)
    assert least <= budgets[-1] <= (1 + tolerance) * least + 1
    for one in found:
        assert one.schedule is not None
        assert simulate(graph, one.schedule, budget=one.budget).figures == one.figures


# ── what is known of other batches ──────────────────────────────────────────────────────────────────


def scaled(graph: Graph, factor: int) -> Graph:
    """A batch so many times as large."""
    return replace(graph, tensors=replace(graph.tensors, bytes=factor * graph.tensors.bytes))


def test_a_schedule_of_one_batch_answers_for_another() -> None:
    known, asked = Known(), list[int]()

    def solve(graph: Graph, budget: int) -> Schedule | None:
        asked.append(budget)
        return rotor(graph, budget)

    answer = known.before(NOWHERE, solve)
    least = int(0.8 * BASELINE.peak)
    assert answer(GRAPH, BASELINE.peak) is not None
    assert asked == []
    first = answer(GRAPH, least)
    assert asked == [least]
    assert answer(scaled(GRAPH, 3), 3 * least) is first
    assert answer(scaled(GRAPH, 3), 3 * BASELINE.peak) is not first
    assert asked == [least]
    assert answer(chain(5, seed=1), 1) is None
    assert asked == [least, 1]


def test_the_faster_of_solver_and_known() -> None:
    known = Known()
    known.add(GRAPH, baseline_schedule(GRAPH))
    slow = rotor(GRAPH, int(0.8 * BASELINE.peak))
    assert slow is not None
    found = known.alongside(NOWHERE, lambda _graph, _budget: slow)(GRAPH, BASELINE.peak)
    assert found is not None
    assert simulate(GRAPH, found).figures.time == BASELINE.time < simulate(GRAPH, slow).figures.time
