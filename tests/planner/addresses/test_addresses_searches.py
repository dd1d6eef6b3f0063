"""Layouts of published instances, of many copies, and by all searches one after the other."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from memplan.instances.catalogue import entry
from memplan.planner.addresses import reordering
from memplan.planner.addresses.addresses import EFFORT, lay_out, rows_of
from memplan.planner.addresses.first_fit import best_order, place
from memplan.planner.addresses.halving import Way, above_a_strip
from memplan.planner.addresses.lifetimes import Lifetimes
from memplan.planner.addresses.reordering import reorder
from memplan.planner.baseline import baseline_schedule

INSTANCES = Path(__file__).parent / "minimalloc"
"""Six of MiniMalloc's (Moffitt, 2023), Apache-2.0: each has a layout in 1,048,576 bytes."""


def instance(name: str) -> Lifetimes:
    """Read the lower and upper ends of lives, and sizes."""
    columns = np.loadtxt(INSTANCES / f"{name}.1048576.csv", np.int64, delimiter=",", skiprows=1)
    _number, lower, upper, size = columns[np.lexsort((-columns[:, 2], columns[:, 1]))].T
    times = np.unique(columns[:, 1:3])
    start, end = np.searchsorted(times, lower), np.searchsorted(times, upper)
    return Lifetimes(np.arange(len(size)), size.copy(), start, end, len(times))


def random_rows(seed: int, count: int, steps: int) -> Lifetimes:
    random = np.random.default_rng(seed)
    start = np.sort(random.integers(0, steps, count))
    span = np.minimum(1 + random.pareto(0.6, count), steps - 1).astype(np.int64)
    size = 512 * random.choice([1, 3, 48, 64, 100, 128, 192], count)
    return Lifetimes(np.arange(count), size, start, start + span, steps)


@pytest.mark.scripts
@pytest.mark.parametrize("name", "ABEIJK")
def test_published_instances_fit(name: str) -> None:
    layout = lay_out(instance(name), 2**20)
    assert layout.size <= 2**20
    assert layout.overlap() is None


@pytest.mark.scripts
@pytest.mark.parametrize("name", "abcdfghijk")
def test_schedules_of_published_instances_fit(name: str) -> None:
    """Schedules have more steps than the published tables. Of E no layout is found."""
    graph = entry(f"minimalloc-{name}").graph()
    assert lay_out(rows_of(graph, baseline_schedule(graph)), 2**20).size <= 2**20


@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(2, 14))
def test_the_same_copies_meet_in_sections(seed: int, count: int, steps: int) -> None:
    random = np.random.default_rng(seed)
    start = random.integers(0, steps, count)
    end = start + random.integers(1, steps + 1, count)
    rows = Lifetimes(np.arange(count), random.integers(1, 9, count), start, end, steps)
    sections = rows.in_sections()
    assert sections.steps <= steps
    assert (sections.end - sections.start).min() > 0
    assert int(sections.live().max()) == int(rows.live().max())
    for i, j in combinations(range(count), 2):
        assert sections.meet(i, j) == rows.meet(i, j)


def test_an_arena_is_no_larger_than_that_of_ejection_chains_alone() -> None:
    effort = 10**7
    for seed in range(4):
        rows = random_rows(seed, 60, 80)
        bound = int(rows.live().max())
        known = int((best_order(rows)[1] + rows.size).max())
        chains = above_a_strip(rows, Way(known, bound, bound), effort, int(0.005 * bound))
        sizes = [known, *(int((found + rows.size).max()) for found in chains)]
        assert lay_out(rows, effort=effort).size <= min(sizes)


@pytest.mark.scripts
def test_there_is_time_for_better_orders_of_fifteen_thousand_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, rounds = random_rows(0, 15_000, 20_000), 0

    def counted(*args: Any) -> int:
        nonlocal rounds
        rounds += 1
        return place(*args)

    order, offsets = best_order(rows)
    known = int((offsets + rows.size).max())
    monkeypatch.setattr(reordering, "place", counted)
    sizes = [int((found + rows.size).max()) for found in reorder(rows, order, known, 0, EFFORT)]
    assert rounds >= 3
    assert all(size < known for size in sizes)
