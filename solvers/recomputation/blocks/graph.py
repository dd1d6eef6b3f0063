"""A block as a training graph of its own, for Rk-Checkmate: forward, a loss that stands for all later blocks,
backward.

    block's input ─▶ forward ─▶ output ─▶ loss ─▶ gradients from later blocks ─▶ backward

What is there anyway and the block's input are inputs here, which count no bytes; the loss reads the output
and takes no time; what must be there behind the block's backward is a result. The chain's last block has the
loss itself in it. Times are given, since blocks that are alike are solved once. Linear in the edges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ....graphs.draft import Draft
from ....graphs.graph import Graph, Kind, Mode, Phase
from ....planner.schedule.sequence import Run, in_plain_mode
from .option import Option, option_of
from .placed import PlacedBlock


@dataclass(frozen=True)
class BlockGraph:
    """places: per operation of `graph`, its place in the block; None for the loss that was put in."""

    block: PlacedBlock
    graph: Graph
    places: tuple[int | None, ...]

    def option(self, runs: Sequence[Run]) -> Option:
        """The option that a sequence of this graph's runs is."""
        behind = self._turning_point(runs)
        parts = (runs[:behind], runs[behind:])
        forward, backward = (
            [(place, mode) for o, mode in part if (place := self.places[o]) is not None] for part in parts
        )
        return option_of(self.block, forward, backward)

    def sequence(self, option: Option) -> list[Run]:
        """The option's runs behind a forward part in which everything runs once."""
        operation = {place: o for o, place in enumerate(self.places)}
        forward = [o for o, place in enumerate(self.places) if place is None or place < self.block.forwards]
        return in_plain_mode(forward) + [(operation[place], mode) for place, mode in option.backward]

    def _turning_point(self, runs: Sequence[Run]) -> int:
        """Where the backward part begins."""
        for position, (operation, _mode) in enumerate(runs):
            place = self.places[operation]
            if place is None or (place >= self.block.forwards and self.block.is_last):
                return position
        return len(runs)


def block_graph(block: PlacedBlock, seconds: Sequence[float]) -> BlockGraph:
    """seconds: per place."""
    graph, columns = block.graph, block.graph.operations
    draft = Draft(graph.name)
    number: dict[int, int] = {}
    places: list[int | None] = []

    def tensor(x: int) -> int:
        if x not in number:
            kind = Kind.INPUT if x in block.given or x in block.inputs else Kind.ACTIVATION
            number[x] = draft.tensor(graph.tensors.name[x], int(graph.tensors.bytes[x]), kind)
        return number[x]

    def tensors(row: Sequence[int]) -> tuple[int, ...]:
        return tuple(tensor(x) for x in row if x not in block.given)

    def add(place: int) -> None:
        operation = block.members[place]
        row = graph.operation(operation)
        scale = seconds[place] / row.time if row.time else 1.0
        modes = [
            replace(m, time=m.time * scale, writes=tensors(m.writes), reads_host=tensors(m.reads_host))
            for m in row.modes
        ]
        places.append(place)
        draft.operation(
            row.name,
            time=seconds[place],
            reads=[tensor(x) for x in row.reads],
            writes=tensors(row.writes),
            mutates=[tensor(x) for x in row.mutates],
            phase=Phase(int(columns.phase[operation])),
            workspace=row.workspace,
            recompute=row.recompute,
            modes=[mode for mode in modes if _is_on_device(mode)],
        )

    whole = range(block.forwards), range(block.forwards, len(block.members))
    needed = {place for place, _mode in option_of(block, *map(in_plain_mode, whole)).forward}
    for place in sorted(needed):
        add(place)
    if not block.is_last:
        places.append(None)
        draft.operation(
            "loss",
            time=0.0,
            reads=[tensor(x) for x in sorted(block.outputs)],
            writes=[tensor(x) for x in sorted(block.entering)],
            phase=Phase.LOSS,
            recompute=False,
        )
    for place in whole[1]:
        add(place)
    results = [tensor(x) for x in block.after if x not in block.given]
    return BlockGraph(block, draft.graph(results), tuple(places))


def _is_on_device(mode: Mode) -> bool:
    return not (mode.on_host or mode.reads_host)
