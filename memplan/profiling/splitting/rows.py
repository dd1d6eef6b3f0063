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
    before, after: the region's rows that the tensor does not have, before its first and after its last. The
        logits of all tokens but the last, `logits[:-1]`, have one row less.
    """

    start: int
    stop: int
    inner: int = 1
    before: int = 0
    after: int = 0

    def rows(self, shape: Shape) -> int:
        """Return how many rows a shape has; 0 if an index would be in two of them."""
        count = prod(shape[self.start : self.stop])
        return 0 if count % self.inner else count // self.inner

    def region_rows(self, shape: Shape) -> int:
        """Return how many rows the region has; 0 as `rows`."""
        own = self.rows(shape)
        return own and self.before + own + self.after

    def span(self, shape: Shape, first: int, rows: int) -> range:
        """Return which rows of a shape are among so many of the region's from the first."""
        # The region's rows start `before` rows ahead of the tensor's.
        begin = max(first - self.before, 0)
        return range(begin, max(begin, min(first + rows - self.before, self.rows(shape))))

    def moved(self, before: int, after: int) -> Along:
        """Return the same rows in a region with so many more before and after."""
        return self._replace(before=self.before + before, after=self.after + after)

    @property
    def dimensions(self) -> range:
        return range(self.start, self.stop)

    def trimmed(self, shape: Shape) -> Along:
        """Return the same rows over the fewest dimensions, so that equal rows compare equal."""
        rows = self.rows(shape)
        start, stop = self.start, self.start + 1
        while start < self.stop - 1 and shape[start] == 1:
            start, stop = start + 1, start + 2
        # Until the dimensions hold a whole number of indices per row.
        while stop < self.stop and prod(shape[start:stop]) % rows:
            stop += 1
        return self._replace(start=start, stop=stop, inner=prod(shape[start:stop]) // rows)

    @property
    def is_plain(self) -> bool:
        """Whether each index is one row, and the region has no others."""
        return self.inner == 1 and not self.before and not self.after

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
            # A run that ends within a dimension is a block only if the outer ones have one index.
            if left % taken or (size % taken and prod(shape[self.start : dimension]) > 1):
                return None
            sizes[dimension], left = taken, left // taken
        return tuple(sizes) if left == 1 else None

    def piece(self, tensor: Tensor, first: int, rows: int) -> Tensor:
        """Return a view of what is among so many of the region's rows from the first. Only for blocks."""
        span = self.span(tensor.shape, first, rows)
        block = self.block(tensor.shape, len(span))
        assert block is not None
        first = span.start * self.inner
        for dimension in reversed(range(self.start, self.stop)):
            first, begin = divmod(first, tensor.shape[dimension])
            if block[dimension] < tensor.shape[dimension]:
                tensor = tensor.narrow(dimension, begin, block[dimension])
        return tensor


def regrouped(shape: Shape, along: Along, other: Shape) -> Along | None:
    """Return where the same rows are in another shape of the same elements in row-major order."""
    before, rows = prod(shape[: along.start]), along.rows(shape)
    start, reached = 0, 1
    # The same number of elements before the rows puts them at the same place in memory.
    while reached < before and start < len(other):
        reached *= other[start]
        start += 1
    if reached != before:
        return None
    for stop in range(start + 1, len(other) + 1):
        count = prod(other[start:stop])
        if count and count % rows == 0:
            there = along._replace(start=start, stop=stop, inner=count // rows)
            return there.trimmed(other)
    return None
