"""Rows of a tensor: pieces are blocks in row-major order, the same in each shape of the same elements."""

from __future__ import annotations

from math import prod

import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from memplan.profiling.splitting.rows import Along, regrouped

SHAPES = st.lists(st.integers(1, 4), min_size=1, max_size=4)


@st.composite
def places(draw: st.DrawFn) -> tuple[list[int], Along]:
    shape = draw(SHAPES)
    start = draw(st.integers(0, len(shape) - 1))
    return shape, Along(start, draw(st.integers(start + 1, len(shape))))


def by_rows(tensor: torch.Tensor, along: Along) -> torch.Tensor:
    """Return the tensor as `[before, rows, after]`."""
    return tensor.reshape(prod(tensor.shape[: along.start]), along.rows(tensor.shape), -1)


@given(places(), st.data())
def test_a_piece_is_a_run_of_rows(place: tuple[list[int], Along], data: st.DataObject) -> None:
    shape, along = place
    tensor = torch.arange(prod(shape)).reshape(shape)
    all_rows = along.rows(shape)
    rows = data.draw(st.integers(1, all_rows))
    block = along.block(shape, rows)
    assume(block is not None and all_rows % rows == 0)
    assert block is not None
    for first in range(0, all_rows, rows):
        piece = along.piece(tensor, first, rows)
        assert tuple(piece.shape) == block
        expected = by_rows(tensor, along)[:, first : first + rows]
        assert torch.equal(by_rows(piece, along), expected)
        assert piece.data_ptr() in range(tensor.data_ptr(), tensor.data_ptr() + 8 * tensor.numel())


@given(st.lists(st.integers(1, 5), min_size=1, max_size=3), st.data())
def test_along_one_dimension_each_number_of_rows_is_a_block(shape: list[int], data: st.DataObject) -> None:
    dimension = data.draw(st.integers(0, len(shape) - 1))
    rows = data.draw(st.integers(1, shape[dimension]))
    expected = [rows if place == dimension else size for place, size in enumerate(shape)]
    assert Along(dimension, dimension + 1).block(shape, rows) == tuple(expected)


def test_rows_of_several_dimensions_that_are_no_block() -> None:
    along = Along(0, 2)
    assert along.block((4, 6, 8), 3) == (1, 3, 8)
    assert along.block((4, 6, 8), 12) == (2, 6, 8)
    assert along.block((4, 6, 8), 4) is None  # the second piece would be in two rows of the first dimension
    assert along.block((4, 6, 8), 9) is None
    assert along.block((1, 6, 8), 4) == (1, 4, 8)


@given(places())
def test_trimmed_rows_are_the_same_rows(place: tuple[list[int], Along]) -> None:
    shape, along = place
    trimmed = along.trimmed(shape)
    assert trimmed.rows(shape) == along.rows(shape)
    assert prod(shape[: trimmed.start]) == prod(shape[: along.start])
    assert trimmed.stop - trimmed.start == 1 or 1 not in (shape[trimmed.start], shape[trimmed.stop - 1])


@given(places(), SHAPES)
def test_the_same_rows_are_in_another_shape(place: tuple[list[int], Along], other: list[int]) -> None:
    shape, along = place
    left = prod(shape)
    sizes: list[int] = []
    for size in other:  # another shape of as many elements
        if left % size == 0:
            sizes.append(size)
            left //= size
    sizes.append(left)
    found = regrouped(shape, along, sizes)
    if found is not None:
        tensor = torch.arange(prod(shape))
        assert torch.equal(by_rows(tensor.reshape(shape), along), by_rows(tensor.reshape(sizes), found))
    elif along.rows(shape) > 1:
        ends = [prod(sizes[:count]) for count in range(len(sizes) + 1)]
        before = prod(shape[: along.start])
        assert before not in ends or before * along.rows(shape) not in ends


def test_tokens_of_a_batch_are_rows_of_both_shapes() -> None:
    assert regrouped((8, 50), Along(0, 1), (2, 4, 50)) == Along(0, 2)
    assert regrouped((2, 4, 50), Along(0, 2), (8, 50)) == Along(0, 1)
    assert regrouped((2, 4, 50), Along(1, 2), (8, 50)) is None
