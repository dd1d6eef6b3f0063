"""From fractions to whole tensors: subset sums against enumeration, Algorithm 8's promises, CPU updates."""

from __future__ import annotations

from itertools import chain, combinations, pairwise, permutations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memplan.solvers.offloading.o_ilp import subset_sum
from memplan.solvers.offloading.o_ilp.subset_sum import nearest, select
from memplan.solvers.offloading.o_ilp.tensors import Rounding, intervals
from memplan.solvers.offloading.offmate.schedule import HostUpdate, start_steps

SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=9)


def sums(sizes: list[int]) -> list[int]:
    subsets = chain.from_iterable(combinations(sizes, n) for n in range(len(sizes) + 1))
    return [sum(subset) for subset in subsets]


@given(SIZES, st.floats(-5, 400))
def test_select_is_the_least_subset_at_or_above(sizes: list[int], target: float) -> None:
    chosen = sum(sizes[i] for i in select(sizes, target))
    assert chosen == min((s for s in sums(sizes) if s >= target), default=sum(sizes))


@given(SIZES, st.floats(0, 400))
def test_nearest(sizes: list[int], target: float) -> None:
    chosen = sum(sizes[i] for i in nearest(sizes, target))
    assert abs(chosen - target) == min(abs(s - target) for s in sums(sizes))


def test_with_many_sums_it_is_near(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subset_sum, "MOST", 200)
    random = Random(1)
    sizes = [random.randint(1, 10**9) for _ in range(40)]
    target = sum(sizes) * 0.37
    chosen = sum(sizes[i] for i in select(sizes, target))
    assert target <= chosen <= target + 40 * sum(sizes) / 200


@st.composite
def gaps(draw: st.DrawFn) -> tuple[list[int], list[float], list[float]]:
    """Sizes, and what a program could want: stored is total minus at most what left before."""
    sizes = draw(SIZES)
    total, steps = float(sum(sizes)), draw(st.integers(1, 8))
    left = [0.0]
    for _ in range(steps):
        left.append(min(total, left[-1] + draw(st.floats(0, 1)) * total * 0.6))
    stored = [total, *(total - draw(st.floats(0, 1)) * gone for gone in left[1:])]
    return sizes, stored, left


@given(gaps())
def test_at_least_as_much_is_gone_as_wanted(case: tuple[list[int], list[float], list[float]]) -> None:
    sizes, stored, left = case
    found = intervals(sizes, stored, left)
    noise = 1e-5 * sum(sizes)
    for step, wanted in enumerate(stored):
        there = sum(sizes) - sum(sizes[a.item] for a in found if a.gone <= step <= a.back)
        assert there <= wanted + noise
    for item in range(len(sizes)):
        mine = sorted((a for a in found if a.item == item), key=lambda a: a.gone)
        assert all(a.out < a.gone <= a.back for a in mine)
        assert all(a.back < b.gone for a, b in pairwise(mine))
        assert len({a.out for a in mine}) <= 1


def test_a_wish_that_is_no_subset_is_handed_on() -> None:
    """Four groups of one tensor each want half of it away: two of them are, entirely."""
    rounding = Rounding()
    wishes = [rounding.wish("gap", [10], [5.0, 7.0]) for _ in range(4)]
    offloaded = [wish for wish in wishes if wish != [10.0, 10.0]]
    assert len(offloaded) == 2
    assert all(wish == pytest.approx([0.0, 4.0]) for wish in offloaded)


def lateness(order: list[int], updates: list[HostUpdate]) -> float:
    """The most that an update ends behind its deadline, one step a second; a cycle of 10 steps."""
    now, worst = 0.0, -1e9
    for number in order:
        update = updates[number]
        now = max(now, update.release + 1.0) + update.seconds
        worst = max(worst, now - (update.deadline + 10))
    return worst


@pytest.mark.parametrize("seed", range(40))
def test_updates_that_are_all_there_go_by_their_deadlines(seed: int) -> None:
    """With one release, earliest deadline first is the order of the least lateness."""
    random = Random(seed)
    updates = [HostUpdate(5, random.randint(0, 4), random.uniform(0.1, 1.5)) for _ in range(5)]
    order = [number for _step, number in start_steps(updates, [1.0] * 10)]
    best = min(lateness(list(each), updates) for each in permutations(range(5)))
    assert lateness(order, updates) == pytest.approx(best)


@given(st.lists(st.tuples(st.integers(4, 9), st.integers(0, 3), st.floats(0.1, 4.0)), max_size=8))
def test_updates_start_behind_their_gradients_in_order(rows: list[tuple[int, int, float]]) -> None:
    placed = start_steps([HostUpdate(*row) for row in rows], [1.0] * 10)
    assert sorted(number for _step, number in placed) == list(range(len(rows)))
    steps = [step for step, _number in placed]
    assert steps == sorted(steps)
    assert all(rows[number][0] < step <= 10 for step, number in placed)
