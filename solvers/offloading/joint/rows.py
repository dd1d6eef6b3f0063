"""Rows of many tensors in one array, with room to grow: those of one are replaced, the others stay."""

from __future__ import annotations

from typing import Any

import numpy as np

_SPARE = 2
"""Spare rows when the rows of a tensor are moved."""


class Rows:
    """An array of the rows of many tensors.

    field: of the rows, −1 in those that are not used.
    """

    def __init__(self, dtype: np.dtype[Any], field: str, tensors: int) -> None:
        self._rows, self._field, self._end = np.zeros(64, dtype), field, 0
        self._start, self._room = [0] * tensors, [0] * tensors

    @property
    def used(self) -> Any:
        """Return a view of all rows in use, with some unused ones among them."""
        return self._rows[: self._end]

    def put(self, tensor: int, rows: Any) -> None:
        start, room = self._start[tensor], self._room[tensor]
        if room:
            self._rows[self._field][start : start + room] = -1
        if len(rows) > room:
            start = self._place(tensor, len(rows) + _SPARE)
        self._rows[start : start + len(rows)] = rows

    def _place(self, tensor: int, room: int) -> int:
        start, self._end = self._end, self._end + room
        if self._end > len(self._rows):
            self._rows = np.concatenate([self._rows, np.zeros(self._end, self._rows.dtype)])
        self._rows[self._field][start : self._end] = -1
        self._start[tensor], self._room[tensor] = start, room
        return start
