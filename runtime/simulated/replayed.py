"""What PyTorch's caching allocator takes from a device for the blocks of a schedule."""

from __future__ import annotations

from ...planner.addresses.lifetimes import Lifetimes
from .caching import CachingAllocator, Chunk

_TURNS = 2
"""The second finds the segments of the first, as all that follow do."""


def reserved(rows: Lifetimes) -> int:
    """Bytes of its segments at most, with its default settings and room for all: what lies free between
    blocks counts. What is always there comes first, as weights do."""
    allocator = CachingAllocator(2 * int(rows.size.sum()) + 2**30)
    held: dict[tuple[int, int], Chunk] = {}
    begins: list[list[int]] = [[] for _ in range(rows.turn)]
    ends: list[list[tuple[int, int]]] = [[] for _ in range((_TURNS + 2) * rows.turn)]
    for row in range(len(rows.size)):
        if int(rows.end[row] - rows.start[row]) >= rows.turn:
            held[row, -1] = allocator.malloc(int(rows.size[row]))
        else:
            begins[int(rows.start[row])].append(row)
    for turn in range(_TURNS):
        for step in range(rows.turn):
            now = turn * rows.turn + step
            for key in ends[now]:
                allocator.free(held.pop(key))
            for row in begins[step]:
                held[row, turn] = allocator.malloc(int(rows.size[row]))
                ends[now + int(rows.end[row] - rows.start[row])].append((row, turn))
    return allocator.reserved_peak
