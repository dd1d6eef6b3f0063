"""A block as a separate training graph (checkmate/part.py).

What is resident anyway and the block's input are inputs, which count no bytes. The loss reads the output and
makes the gradients from later blocks. What must exist after the block's backward is a result. The chain's
last block has the loss itself in it. Times are given, since identical blocks are solved once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ....graphs.draft import Draft
from ....graphs.graph import Kind, Operation
from ....planner.schedule.sequence import in_plain_mode
from ..checkmate.part import Loss, PartGraph, Rows, part_graph
from .option import option_of
from .placed import PlacedBlock


def block_graph(block: PlacedBlock, seconds: Sequence[float]) -> PartGraph:
    """Write a block as a training graph. Operations that nothing of the block needs are left out.

    seconds: per position.
    """
    graph = block.graph
    draft = Draft(graph.name)
    number: dict[int, int] = {}

    def tensor(x: int) -> int:
        if x not in number:
            kind = Kind.INPUT if x in block.given or x in block.inputs else Kind.ACTIVATION
            number[x] = draft.tensor(graph.tensors.name[x], int(graph.tensors.bytes[x]), kind)
        return number[x]

    def every(row: Iterable[int]) -> tuple[int, ...]:
        return tuple(tensor(x) for x in row)

    def counted(row: Iterable[int]) -> tuple[int, ...]:
        return every(x for x in row if x not in block.given)

    def operation(position: int) -> Operation:
        row = graph.operation(block.members[position])
        scale = seconds[position] / row.time if row.time else 1.0
        modes = tuple(
            replace(mode, time=mode.time * scale, writes=counted(mode.writes))
            for mode in row.modes
            if not mode.uses_host
        )
        return row._replace(
            time=seconds[position],
            reads=every(row.reads),
            writes=counted(row.writes),
            mutates=every(row.mutates),
            modes=modes,
        )

    def rows(positions: Iterable[int]) -> Rows:
        return [(position, operation(position)) for position in positions]

    whole = range(block.forwards), range(block.forwards, len(block.members))
    needed = {position for position, _mode in option_of(block, *map(in_plain_mode, whole)).forward}
    forward = rows(sorted(needed))
    loss = None if block.is_last else Loss(every(sorted(block.outputs)), every(sorted(block.entering)))
    backward = rows(whole[1])
    return part_graph(draft, forward, loss, backward, counted(block.after))
