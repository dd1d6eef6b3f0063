"""The peak memory of a program in its own order, each tensor freed after its last use."""

from __future__ import annotations

from collections.abc import Sequence

from ...graphs.graph import Kind
from ..program.program import Operation, Program


def peak(program: Program, taken: Sequence[int]) -> tuple[int, int]:
    """Return the peak in bytes above what is resident all the time, and the operation at which it is.

    taken: per operation the bytes above its inputs while it runs, its results included.
    """
    sizes = [storage.bytes for storage in program.storages]
    last = {x: len(taken) for x in program.results}
    for i, operation in reversed(list(enumerate(program.operations))):
        for x in (*operation.reads, *operation.writes):
            last.setdefault(x, i)
    live, most, where = 0, 0, 0
    for i, operation in enumerate(program.operations):
        made = sum(sizes[x] for x in operation.writes)
        if live + max(made, taken[i]) > most:
            most, where = live + max(made, taken[i]), i
        live += made
        passing = {*operation.reads, *operation.writes}
        live -= sum(sizes[x] for x in passing if last[x] == i and program.storages[x].kind >= Kind.ACTIVATION)
    return most, where


def footprint(program: Program, operation: Operation, taken: int) -> int:
    """Return the bytes of what an operation reads and of what it takes above: no plan of it gets by with
    less.
    """
    return sum(program.storages[x].bytes for x in operation.reads) + taken
