"""Rows: what a region is split along, as one or several neighbouring dimensions of each of its tensors.

A language model has the same rows as `[batch * tokens, vocabulary]` and as `[batch, tokens, vocabulary]`.
They are counted in row-major order, so a piece is a run of rows in both, and a block of the tensor in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from torch import Tensor

Shape = Sequence[int]


class Along(NamedTuple):
    """The dimensions of a tensor that rows are counted over: from start to before stop.

    inner: neighbouring indices of these dimensions that are one row. Rows of `[batch, tokens]` along the
        batch are `tokens` neighbours each in `[batch * tokens]`.
    """

    start: int
    stop: int
    inner: int = 1

    def rows(self, shape: Shape) -> int:
        """Return how many rows a shape has; 0 if an index would be in two of them."""
        count = prod(shape[self.start : self.stop])
        return 0 if count % self.inner else count // self.inner

    @property
    def dimensions(self) -> range:
        return range(self.start, self.stop)

    def trimmed(self, shape: Shape) -> Along:
        """Return the same rows over the fewest dimensions, so that equal rows compare equal."""
        rows = self.rows(shape)
        start, stop = self.start, self.start + 1
        while start < self.stop - 1 and shape[start] == 1:
            start, stop = start + 1, start + 2
        while stop < self.stop and prod(shape[start:stop]) % rows:
            stop += 1
        return Along(start, stop, prod(shape[start:stop]) // rows)

    def shifted(self, by: int) -> Along:
        return self._replace(start=self.start + by, stop=self.stop + by)

    def block(self, shape: Shape, rows: int) -> tuple[int, ...] | None:
        """Return the shape of a run of so many rows from a multiple of it; None if it is no block.

        rows: the last run may have less; then all but the first dimension with more than one index are whole.
        """
        sizes, left = list(shape), rows * self.inner
        for dimension in reversed(range(self.start, self.stop)):
            size = sizes[dimension]
            taken = min(left, size)
            if left % taken or (size % taken and prod(shape[self.start : dimension]) > 1):
                return None
            sizes[dimension], left = taken, left // taken
        return tuple(sizes) if left == 1 else None

    def piece(self, tensor: Tensor, first: int, rows: int) -> Tensor:
        """Return a view of so many rows from the first. Only for rows that are a block."""
        block = self.block(tensor.shape, rows)
        assert block is not None
        first *= self.inner
        for dimension in reversed(range(self.start, self.stop)):
            first, begin = divmod(first, tensor.shape[dimension])
            if block[dimension] < tensor.shape[dimension]:
                tensor = tensor.narrow(dimension, begin, block[dimension])
        return tensor


def regrouped(shape: Shape, along: Along, other: Shape) -> Along | None:
    """Return where the same rows are in another shape of the same elements in row-major order."""
    before, rows = prod(shape[: along.start]), along.rows(shape)
    start, reached = 0, 1
    while reached < before and start < len(other):
        reached *= other[start]
        start += 1
    if reached != before:
        return None
    for stop in range(start + 1, len(other) + 1):
        count = prod(other[start:stop])
        if count and count % rows == 0:
            return Along(start, stop, count // rows).trimmed(other)
    return None
