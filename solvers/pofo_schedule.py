"""From POFO's segments to runs, and which tensors are away between which uses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from itertools import pairwise

from ..graphs.machine import Memory
from ..planner.demand import start_times
from ..planner.residence import Place, Residence
from ..planner.sequence import prune
from .chain_runs import Move, Pass, sequence
from .chains import ChainProblem
from .pofo_table import Segment
from .rotor_table import RotorTable


def decided(
    segments: Sequence[Segment], table: RotorTable, chained: ChainProblem
) -> tuple[list[Move], set[int]]:
    """The moves of a row of segments, and the tensors that it offloads."""
    forward: list[Move] = []
    backward: list[list[Move]] = []
    offloaded: set[int] = set()
    for segment in segments:
        first, end = segment.first, segment.end
        if end == chained.blocks:
            backward.append(list(table.moves(segment.memory, first, end - 1)))
        elif segment.saved:
            forward.append((Pass.SAVE, first))
            backward.append([(Pass.BACKWARD, first)])
        else:
            forward += [(Pass.ADVANCE, b) for b in range(first, end)]
            backward.append(list(table.moves(segment.memory, first, end - 1)))
        if segment.sent:
            before = chained.chain.blocks[first - 1].output if first else None
            offloaded |= {before} if before is not None else set()
            offloaded |= chained.runs[first].saved if segment.saved else set()
    return [*forward, *(move for moves in reversed(backward) for move in moves)], offloaded


def residence(chained: ChainProblem, moves: Iterable[Move], offloaded: AbstractSet[int]) -> Residence:
    """Each offloaded tensor is away between the two uses that lie farthest apart."""
    graph = chained.graph
    runs = prune(graph, sequence(chained.chain, chained.runs, moves))
    starts = start_times(graph, runs)
    uses: dict[int, list[int]] = {x: [] for x in offloaded}
    for position, (operation, mode) in enumerate(runs):
        made = {x for x, _bit in graph.contributions(operation, mode)}
        for x in made.union(graph.read_lists[operation], graph.mutate_lists[operation]) & offloaded:
            uses[x].append(position)
    away: dict[Place, Memory] = {}
    for x, positions in uses.items():
        gaps = [(starts[b] - starts[a + 1], a) for a, b in pairwise(positions)]
        if gaps:
            away[x, max(gaps)[1]] = Memory.HOST
    return Residence(runs, away)
