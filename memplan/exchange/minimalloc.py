"""MiniMalloc's problems: a table of buffers with their lifetimes, for which addresses are sought.

    id,lower,upper,size     a buffer of `size` bytes from the moment `lower` to just before `upper`

Its own names for the columns are understood: `begin` and `start` for `lower`, `end` for the last moment of a
lifetime (`upper` is the one after), `buffer` and `buffer_id` for `id`. An `offset`, which solutions have, is
ignored. Alignments, gaps and hints are refused: the graph could not say them.

The graph has an operation for each moment at which a buffer begins or ends. It writes the buffers that begin
then, and reads those that are used for the last time. None can be recomputed, and each reads a tensor of no
bytes of the one before. So there is one schedule with the file's memory; only addresses are to be chosen.

Reference: Moffitt, MiniMalloc: A Lightweight Memory Allocator for Hardware-Accelerated Machine Learning,
ASPLOS 2023, doi:10.1145/3623278.3624752; github.com/google/minimalloc.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from ..graphs.draft import Draft
from ..graphs.files.documents import read_bytes
from ..graphs.graph import Graph
from .formats import Options
from .nodes import whole
from .pickles import text_of

_MOST_BYTES = 2**28
_NAMES = {"begin": "lower", "start": "lower", "end": "upper", "buffer": "id", "buffer_id": "id"}
_COLUMNS = ("id", "lower", "upper", "size")
_FEWEST = 2
"""Lines of a table: its head and a buffer."""
_NEUTRAL = {"alignment": ("", "1"), "gaps": ("",), "hint": ("", "-1")}
"""Columns that may only have these values."""


class _Buffer(NamedTuple):
    """A buffer of `size` bytes, live in the moments lower to upper − 1."""

    name: str
    lower: int
    upper: int
    size: int


def read(path: Path, options: Options) -> Graph:
    """Return the graph of a table. Raises ValueError or InputError.

    A moment takes a second unless the options say otherwise.
    """
    try:
        lines = read_bytes(path, _MOST_BYTES).decode("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise ValueError("is not text") from None
    try:
        cells = [row for row in csv.reader(lines) if row]
    except csv.Error as error:
        raise ValueError(f"is no table: {error}") from None
    if len(cells) < _FEWEST:
        raise ValueError("is no table: it has no head, or no buffer")
    buffers = _buffers([name.strip() for name in cells[0]], cells[1:])
    name = path.name.removesuffix(".csv")
    return _graph(Draft(name), buffers, options.time_unit or 1.0, {"kind": "minimalloc", "file": path.name})


def _buffers(head: list[str], cells: list[list[str]]) -> list[_Buffer]:
    names = [_NAMES.get(name, name) for name in head]
    for column in _COLUMNS:
        if names.count(column) != 1:
            raise ValueError(
                f"is no problem of MiniMalloc: its head is {','.join(head)}, not id,lower,upper,size"
            )
    # The last moment of a lifetime, not the one after.
    beyond = int("end" in head)
    found: list[_Buffer] = []
    for place, row in enumerate(cells, start=1):
        if len(row) != len(head):
            raise ValueError(f"buffer {place} has {len(row)} cells, of {len(head)} columns")
        said = dict(zip(names, (cell.strip() for cell in row), strict=True))
        for column, neutral in _NEUTRAL.items():
            if said.get(column, "") not in neutral:
                raise ValueError(
                    f"buffer {said['id']}: {column} {said[column]} is not supported: leave it out"
                )
        lower, upper, size = (_number(said[column], said["id"], column) for column in _COLUMNS[1:])
        if lower >= upper + beyond:
            raise ValueError(f"buffer {said['id']}: it ends at {said['upper']}, before it begins at {lower}")
        found.append(_Buffer(said["id"], lower, upper + beyond, size))
    return found


def _number(text: str, name: str, column: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(f"buffer {name}: {column} must be a whole number, not {text_of(text)}")
    return whole(int(text), column)


def _graph(draft: Draft, buffers: list[_Buffer], unit: float, source: dict[str, str]) -> Graph:
    moments = sorted({moment for one in buffers for moment in (one.lower, one.upper)})
    place = {moment: index for index, moment in enumerate(moments)}
    begin, end = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
    for one in buffers:
        tensor = draft.tensor(one.name, one.size)
        begin[place[one.lower]].append(tensor)
        end[place[one.upper] - 1].append(tensor)
    before: list[int] = []
    for index, (moment, after) in enumerate(pairwise(moments)):
        following = draft.tensor(f"after {moment}", 0)
        draft.operation(
            f"at {moment}",
            time=(after - moment) * unit,
            reads=before + [tensor for tensor in end[index] if tensor not in begin[index]],
            writes=[*begin[index], following],
            recompute=False,
        )
        before = [following]
    return draft.graph(source=source)
