"""Lists of indices, stored as compressed sparse rows: 4 bytes an entry instead of a Python object."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Adjacency:
    """Row `i` holds `columns[start[i]:start[i + 1]]`.

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

    def __len__(self) -> int:
        return len(self.start) - 1

    def __getitem__(self, row: int) -> Indices:
        return self.columns[self.start[row] : self.start[row + 1]]

    def __iter__(self) -> Iterator[list[int]]:
        start = self.start.tolist()
        columns = self.columns.tolist()
        return (columns[start[i] : start[i + 1]] for i in range(len(self)))

    def lists(self) -> list[list[int]]:
        """The rows as Python lists: what a loop over single entries reads fastest."""
        return list(self)

    def counts(self) -> NDArray[np.int64]:
        return np.diff(self.start)

    def rows(self) -> NDArray[np.int64]:
        """The row of every entry, shape (entries,)."""
        return np.repeat(np.arange(len(self)), self.counts())

    def transpose(self, width: int) -> Adjacency:
        """Row `j` of the result lists, in increasing order, the rows that hold column `j` (< width)."""
        order = np.argsort(self.columns, kind="stable")
        start = np.zeros(width + 1, np.int64)
        np.cumsum(np.bincount(self.columns, minlength=width), out=start[1:])
        return Adjacency(start, self.rows()[order].astype(np.int32))
