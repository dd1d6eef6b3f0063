"""The search for small arenas: the smallest there is on small problems, fixed by its arguments."""

from __future__ import annotations

from itertools import permutations
from random import Random
from time import process_time

import numpy as np
import pytest
from memplan.planner.addresses.addresses import lay_out
from memplan.planner.addresses.first_fit import first_fit, place
from memplan.planner.addresses.layout import Layout
from memplan.planner.addresses.lifetimes import Lifetimes
from memplan.planner.addresses.search import _cheapest, within


def random_rows(random: Random, count: int, turn: int, sizes: tuple[int, ...]) -> Lifetimes:
    rows = sorted(
        (random.randrange(turn), random.randint(1, turn), random.choice(sizes)) for _ in range(count)
    )
    start, span, size = np.array(rows, np.int64).reshape(-1, 3).T
    return Lifetimes(np.arange(count), size.copy(), start.copy(), start + span, turn)


def smallest(rows: Lifetimes) -> int:
    """Of all orders: in that of an optimal layout's offsets first fit is no worse."""
    sizes: list[int] = []
    for order in permutations(range(len(rows.size))):
        offsets = np.zeros(len(rows.size), np.int64)
        place(np.array(order), rows.size, rows.start, rows.end, rows.steps, offsets)
        sizes.append(int((offsets + rows.size).max()))
    return min(sizes)


def test_small_arenas_are_the_smallest() -> None:
    for seed in range(40):
        rows = random_rows(Random(seed), 5, 7, (1, 2, 3, 4, 5))
        layout = lay_out(rows, effort=10**7)
        assert layout.overlap() is None
        assert layout.size == smallest(rows), seed


def test_a_copy_goes_where_what_it_meets_weighs_least() -> None:
    for seed in range(200):
        random = Random(seed)
        count, capacity, size = random.randint(0, 5), 12, random.randint(1, 6)
        sizes = np.array([random.randint(1, 4) for _ in range(count)], np.int64)
        offsets = np.array([random.randint(0, capacity - each) for each in sizes.tolist()], np.int64)
        tops, weight = offsets + sizes, np.array([random.randint(1, 3) for _ in range(count)], np.float64)
        low, high = np.argsort(offsets), np.argsort(tops)
        found, least = _cheapest(size, capacity, offsets, tops, weight, low, count, high, count)
        weights = [
            float(weight[(offsets < at + size) & (at < tops)].sum()) for at in range(capacity - size + 1)
        ]
        assert weights[found] == least == min(weights), seed


def cut_board(random: Random) -> Lifetimes:
    """Rectangles that fill 200 steps of 400 bytes without a gap: the bound is reached, if by few layouts."""
    turn = 200
    waiting, done = [(0, turn, 0, 400)], []
    while waiting:
        left, right, low, high = waiting.pop()
        across = random.random() < 0.5
        if across and high - low > 80:
            cut = random.randint(low + 2, high - 2)
            waiting += [(left, right, low, cut), (left, right, cut, high)]
        elif right - left > 30:
            cut = random.randint(left + 1, right - 1)
            waiting += [(left, cut, low, high), (cut, right, low, high)]
        else:
            done.append((left, right, high - low))
    start, end, size = np.array(sorted(done), np.int64).T
    return Lifetimes(np.arange(len(done)), size.copy(), start.copy(), end.copy(), turn)


@pytest.mark.parametrize("seed", range(1, 9))
def test_boards_cut_into_rectangles(seed: int) -> None:
    """Within 1 % of what is possible, where first fit is not."""
    rows = cut_board(Random(seed))
    layout = lay_out(rows, effort=10**8)
    assert layout.bound == 400
    assert layout.overlap() is None
    assert layout.size <= 404 < Layout(rows, first_fit(rows)).size


def test_a_target_is_enough() -> None:
    rows = cut_board(Random(1))
    fitting = Layout(rows, first_fit(rows)).size
    assert lay_out(rows, target=fitting).size == fitting
    assert 400 <= lay_out(rows, target=420).size <= 420


def test_the_same_arguments_give_the_same_layout() -> None:
    rows = cut_board(Random(2))
    one, other = (lay_out(rows, effort=5 * 10**7) for _ in range(2))
    assert one.offsets.tolist() == other.offsets.tolist()


def test_offsets_are_whole_blocks_where_sizes_are() -> None:
    rows = cut_board(Random(3))
    rows = rows._replace(size=512 * rows.size)
    layout = lay_out(rows, effort=10**8)
    assert layout.size < Layout(rows, first_fit(rows)).size
    assert not (layout.offsets % 512).any()


def test_nothing_found_is_none() -> None:
    rows = cut_board(Random(4))
    assert within(rows, 399, 2000, seed=0, hardest=True) is None
    assert within(rows, 399, 2000, seed=0, hardest=False) is None


def test_many_small_copies_do_not_shift_the_large_ones() -> None:
    """Pairs of large copies, each with a few bytes beside that come and go at other times."""
    random = Random(5)
    rows = [(i, i + random.randint(5, 9), 4096) for i in range(0, 96, 2)]
    rows += [(i, i + random.randint(1, 40), random.choice((1, 2, 3))) for i in range(100) for _ in range(2)]
    start, end, size = np.array(sorted(rows), np.int64).T
    few = Lifetimes(np.arange(len(rows)), size.copy(), start.copy(), end.copy(), 140)
    layout = lay_out(few)
    assert layout.overlap() is None
    assert layout.size <= 1.02 * layout.bound


def test_ten_thousand_copies() -> None:
    """A second or two of processor time."""
    random = Random(6)
    starts = sorted(random.randrange(20_000) for _ in range(10_000))
    spans = [min(int(random.paretovariate(0.6)), 19_999) for _ in starts]
    sizes = [512 * random.choice((1, 3, 48, 64, 100, 128, 192)) for _ in starts]
    size, start, span = (np.array(column, np.int64) for column in (sizes, starts, spans))
    began = process_time()
    layout = lay_out(Lifetimes(np.arange(10_000), size, start, start + span, 20_000))
    assert process_time() - began < 20
    assert layout.size < 1.2 * layout.bound
