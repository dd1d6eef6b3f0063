"""The bytes of a region while a piece runs, from the sizes of its blocks, before it has been run."""

from __future__ import annotations

from collections.abc import Mapping

from ...program.program import values_read
from .region import Region, made_by
from .rows import Along
from .rules import WHOLE


def piece_bytes(region: Region, outputs: tuple[int, ...], rows: int, workspace: Mapping[int, int]) -> int:
    """Return the bytes that a region takes above its inputs, its results included.

    rows: of a piece.
    workspace: by operation of the program, what its call takes above its inputs and results.
    """
    program = region.program
    share = rows / region.rows
    calls = region.calls
    last: dict[int, int] = {}
    for i, call in enumerate(calls):
        for value in (*values_read(call), *made_by(call)):
            last[program.values[value].storage] = i
    by_call = {id(program.operations[i].call): i for i in (*region.recomputed, *region.members)}
    sizes: dict[int, int] = {}
    total = sum(program.storages[program.values[value].storage].bytes for value in outputs)
    live = most = 0
    for i, call in enumerate(calls):
        found = region.patterns[next(made_by(call))]
        operation = by_call.get(id(call))
        if operation is not None:
            made = zip(call.outputs, found.outputs, strict=True)
            for value, part in made:
                if value is None:
                    continue
                x = program.values[value].storage
                summed = found.accumulate is not None and value in outputs
                # A term that is added straight into its sum takes no bytes: `total` has the sum.
                size = program.storages[x].bytes * (share if isinstance(part, Along) else not summed)
                sizes[x] = 0 if part is WHOLE and value in outputs else int(size)
                live += sizes[x]
            most = max(most, live + int(workspace.get(operation, 0) * share))
        for x in [x for x in sizes if last[x] == i]:
            live -= sizes.pop(x)
    return total + most
