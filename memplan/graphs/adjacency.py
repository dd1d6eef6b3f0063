"""Lists of indices, stored as compressed sparse rows: 4 bytes an entry instead of a Python object."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int32]

_ROWS_AT_A_TIME = 1000


@dataclass(frozen=True, eq=False)
class Adjacency:
    """Rows of numbers in one flat array: row `i` holds `columns[start[i]:start[i + 1]]`.

    start: int64, shape (rows + 1,).  columns: int32, shape (entries,).
    """

    start: NDArray[np.int64]
    columns: Indices

    @staticmethod
    def of(rows: Iterable[Sequence[int]]) -> Adjacency:
        start: list[int] = [0]
        columns: list[int] = []
        for row in rows:
            columns.extend(row)
            start.append(len(columns))
        return Adjacency(np.array(start, np.int64), np.array(columns, np.int32))

    @staticmethod
    def of_pairs(rows: NDArray[np.integer], columns: NDArray[np.integer], count: int) -> Adjacency:
        """Build an adjacency of `count` rows from the row and the column of every entry, rows in increasing
        order."""
        start = np.zeros(count + 1, np.int64)
        np.cumsum(np.bincount(rows, minlength=count), out=start[1:])
        return Adjacency(start, columns.astype(np.int32))

    def __len__(self) -> int:
        return len(self.start) - 1

    def __getitem__(self, row: int) -> Indices:
        # a view: writing to it changes the adjacency
        return self.columns[self.start[row] : self.start[row + 1]]

    def __iter__(self) -> Iterator[list[int]]:
        # Slices of one list cost less than a slice of an array and a tolist for each row. Lists of all
        # entries would take several times the bytes of the arrays.
        for first in range(0, len(self), _ROWS_AT_A_TIME):
            start = self.start[first : first + _ROWS_AT_A_TIME + 1]
            columns, ends = self.columns[start[0] : start[-1]].tolist(), (start - start[0]).tolist()
            yield from (columns[begin:end] for begin, end in pairwise(ends))

    def lists(self) -> list[list[int]]:
        """Return the rows as Python lists, which loops over single entries read fastest."""
        return list(self)

    def counts(self) -> NDArray[np.int64]:
        return np.diff(self.start)

    def rows(self) -> NDArray[np.int64]:
        """Return the row of every entry, shape (entries,)."""
        return np.repeat(np.arange(len(self)), self.counts())

    def take(self, order: Sequence[int]) -> Adjacency:
        """Return these rows, in this order."""
        return Adjacency.of_pairs(np.arange(len(order)), np.asarray(order, np.int32), len(order)).through(
            self
        )

    def transpose(self, width: int) -> Adjacency:
        """Return the transpose: row `j` lists, in increasing order, the rows that hold column `j` (<
        width)."""
        # A stable sort keeps each row of the transpose increasing.
        order = np.argsort(self.columns, kind="stable")
        return Adjacency.of_pairs(self.columns[order], self.rows()[order], width)

    def joined(self, other: Adjacency) -> Adjacency:
        """Join row by row the entries of both, each once, this one's first.

        No row of this one holds any twice.
        """
        if not len(other.columns):
            return self
        rows = np.concatenate([self.rows(), other.rows()])
        columns = np.concatenate([self.columns, other.columns])
        # Stable: in each row this one's entries stay first.
        order = np.argsort(rows, kind="stable")
        rows, columns = rows[order], columns[order]
        _pairs, first = np.unique(rows * (int(columns.max()) + 1) + columns, return_index=True)
        # np.unique sorts by key; the sorted positions of first entries restore the order of entries.
        first.sort()
        return Adjacency.of_pairs(rows[first], columns[first], len(self))

    def through(self, other: Adjacency) -> Adjacency:
        """Return row by row the entries of those rows of the other that it names."""
        counts = other.counts()[self.columns]
        # Per entry, the offset of its row in `other` from that row's position in the result.
        skipped = other.start[self.columns] - (np.cumsum(counts) - counts)
        entries = np.arange(int(counts.sum())) + np.repeat(skipped, counts)
        return Adjacency.of_pairs(np.repeat(self.rows(), counts), other.columns[entries], len(self))
