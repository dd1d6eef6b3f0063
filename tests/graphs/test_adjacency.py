"""Rows in columns beside the same as lists."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from memplan.graphs.adjacency import Adjacency

WIDTH = 6


def tables(width: int, least: int = 0, most: int = 8) -> st.SearchStrategy[list[list[int]]]:
    """Rows of numbers below `width`, none twice in a row."""
    row = st.lists(st.integers(0, width - 1), unique=True)
    return st.lists(row, min_size=least, max_size=most)


@given(tables(WIDTH))
def test_transposed(rows: list[list[int]]) -> None:
    turned = Adjacency.of(rows).transpose(WIDTH)
    assert turned.lists() == [[i for i, row in enumerate(rows) if x in row] for x in range(WIDTH)]


@given(st.integers(0, 8).flatmap(lambda count: st.tuples(*[tables(WIDTH, count, count)] * 2)))
def test_joined(both: tuple[list[list[int]], list[list[int]]]) -> None:
    joined = Adjacency.of(both[0]).joined(Adjacency.of(both[1]))
    assert joined.lists() == [list(dict.fromkeys(a + b)) for a, b in zip(*both, strict=True)]


@given(tables(WIDTH), tables(9, WIDTH, WIDTH))
def test_through(rows: list[list[int]], others: list[list[int]]) -> None:
    met = Adjacency.of(rows).through(Adjacency.of(others))
    assert met.lists() == [[x for k in row for x in others[k]] for row in rows]
