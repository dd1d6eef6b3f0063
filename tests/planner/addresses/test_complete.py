"""The complete search against enumeration: a layout wherever there is one, a proof wherever there is none."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memplan.planner.addresses.addresses import lay_out
from memplan.planner.addresses.complete import FOUND, LIMIT, LOWEST, NONE, RANK, Tried, search
from memplan.planner.addresses.first_fit import place
from memplan.planner.addresses.layout import Layout
from memplan.planner.addresses.lifetimes import Lifetimes
from memplan.planner.addresses.sections import Sections


@st.composite
def lifetimes(draw: st.DrawFn, most: int = 6, steps: int = 7) -> Lifetimes:
    """Draw copies that are not always resident; some are when the iteration ends."""
    arc = st.tuples(st.integers(0, steps - 1), st.integers(1, steps - 1), st.integers(1, 6))
    start, span, size = np.array(sorted(draw(st.lists(arc, min_size=1, max_size=most))), np.int64).T
    return Lifetimes(np.arange(len(size)), size.copy(), start.copy(), start + span, steps)


def smallest(rows: Lifetimes) -> int:
    """Return the least arena: first fit in the order of an optimal layout's offsets is optimal."""
    sizes = set[int]()
    for order in permutations(range(len(rows.size))):
        offsets = np.zeros(len(rows.size), np.int64)
        place(np.array(order), rows.size, rows.start, rows.end, rows.steps, offsets)
        sizes.add(int((offsets + rows.size).max()))
    return min(sizes)


def tried(rows: Lifetimes, capacity: int, choice: int, decisions: int = 10**6) -> Tried:
    count = len(rows.size)
    return search(
        rows,
        Sections.of(rows),
        capacity,
        np.random.default_rng(count).permutation(count),
        choice=choice,
        decisions=decisions,
        effort=10**9,
        weight=np.zeros(count),
    )


@settings(max_examples=30, deadline=None)
@given(lifetimes(), st.sampled_from((LOWEST, RANK)))
def test_it_finds_the_least_arena_and_proves_that_none_is_less(rows: Lifetimes, choice: int) -> None:
    least = smallest(rows)
    for capacity in range(int(rows.size.max()), least):
        assert tried(rows, capacity, choice).end == NONE
    for capacity in (least, least + 1):
        found = tried(rows, capacity, choice)
        layout = Layout(rows, found.offsets)
        assert found.end == FOUND
        assert layout.overlap() is None
        assert layout.size <= capacity


@pytest.mark.scripts
@settings(max_examples=300, deadline=None)
@given(lifetimes(most=7, steps=9), st.sampled_from((LOWEST, RANK)))
def test_more_copies_in_more_steps(rows: Lifetimes, choice: int) -> None:
    least = smallest(rows)
    assert tried(rows, least, choice).end == FOUND
    assert tried(rows, least - 1, choice).end == NONE


@given(lifetimes(most=12, steps=20))
def test_sections_have_the_pairs_that_share_a_step(rows: Lifetimes) -> None:
    sections = Sections.of(rows)
    held = [
        set(sections.own[sections.own_start[i] : sections.own_start[i + 1]].tolist())
        for i in range(len(rows.size))
    ]
    for i, own in enumerate(held):
        for j, others in enumerate(held):
            assert bool(own & others) == (i == j or rows.meet(i, j))
    for s in range(sections.number):
        members = sections.members[sections.member_start[s] : sections.member_start[s + 1]].tolist()
        assert members == [i for i, own in enumerate(held) if s in own]


def test_an_arena_that_is_proven_to_be_the_least_has_that_bound() -> None:
    for seed in range(20):
        random = np.random.default_rng(seed)
        start, span = random.integers(0, 8, 6), random.integers(1, 8, 6)
        rows = Lifetimes(np.arange(6), random.integers(1, 6, 6), start, start + span, 8)
        layout = lay_out(rows)
        assert layout.size == layout.least == smallest(rows)
        assert layout.least >= layout.bound


def test_a_limit_is_no_proof() -> None:
    """Two pairs, of which each copy of one is beside each of the other."""
    columns = ([0, 1, 2, 3], [1, 2, 1, 2], [0, 0, 1, 2], [2, 3, 4, 4])
    rows = Lifetimes(*(np.array(column, np.int64) for column in columns), steps=5)
    assert tried(rows, int(rows.live().max()), RANK, decisions=0).end == LIMIT
