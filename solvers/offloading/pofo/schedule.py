"""Conversion of POFO's segments to runs, and to the tensors offloaded between uses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from itertools import pairwise

from ....graphs.machine import Link, Memory
from ....planner.residency.prefetch_placement import start_times
from ....planner.residency.residency import Residency, TensorUse
from ....planner.schedule.sequence import prune
from ...chains.options import without_options
from ...chains.problem import ChainProblem
from ...chains.runs import Move, Pass, sequence
from ...chains.table import ChainTable
from ..layers.absences import uses_of
from ..layers.runs import first_backward
from .segments import Segment


def decided(
    segments: Sequence[Segment], table: ChainTable, chained: ChainProblem
) -> tuple[list[Move], set[int]]:
    """Return the moves of a row of segments, and the tensors that it offloads."""
    forward: list[Move] = []
    backward: list[list[Move]] = []
    offloaded: set[int] = set()
    for segment in segments:
        first, end = segment.first, segment.end
        if end == chained.blocks:
            backward.append(list(without_options(table.moves(segment.memory, first, end - 1))))
        elif segment.saved:
            forward.append((Pass.SAVE, first))
            backward.append([(Pass.BACKWARD, first)])
        else:
            forward += [(Pass.ADVANCE, b) for b in range(first, end)]
            backward.append(list(without_options(table.moves(segment.memory, first, end - 1))))
        if segment.sent:
            before = chained.chain.blocks[first - 1].output if first else None
            offloaded |= {before} if before is not None else set()
            offloaded |= chained.runs[first].saved if segment.saved else set()
    return [*forward, *(move for moves in reversed(backward) for move in moves)], offloaded


def residence(
    chained: ChainProblem, moves: Iterable[Move], offloaded: AbstractSet[int], link: Link | None = None
) -> Residency:
    """Return the residency of a choice: each tensor is offloaded between the two uses that lie farthest
    apart.

    Unless its copy would end, by this link, when backward has begun: what the program counts in the backlog
    then is still on the device, and needed first.
    """
    graph = chained.graph
    runs = prune(graph, sequence(chained.chain, chained.runs, moves))
    starts = start_times(graph, runs)
    turn, (device, _host) = first_backward(graph, runs), uses_of(graph, runs)
    gaps = [
        (max((starts[b] - starts[a + 1], a) for a, b in pairwise(device[x]))[1], x)
        for x in offloaded & device.keys()
        if len(device[x]) > 1
    ]
    away: dict[TensorUse, Memory] = {}
    sent = 0.0
    for position, x in sorted(gaps):
        ready = max(sent, starts[position + 1])
        ready += link.seconds(float(graph.tensors.bytes[x])) if link else 0.0
        if link is None or ready <= starts[turn]:
            away[x, position], sent = Memory.HOST, ready
    return Residency(runs, away)
