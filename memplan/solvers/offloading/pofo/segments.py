"""The choices of POFO's program: segments of a chain, the state after each, and the residency they make."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ....graphs.machine import Link, Memory
from ....planner.residency.prefetch_placement import start_times
from ....planner.residency.residency import Residency, TensorUse
from ....planner.schedule.sequence import prune
from ...chains.options import without_options
from ...chains.problem import ChainProblem
from ...chains.runs import Move, Pass, sequence
from ...chains.table import ChainTable
from ..layers.offload_intervals import uses_of
from ..layers.runs import first_backward

Values = NDArray[np.float64]
"""Seconds by K and Q, both in slots."""


class Input(IntEnum):
    """The place in which a segment's input is counted."""

    FREE = 0
    KEPT = 1
    SENT = 2


@dataclass(frozen=True)
class Segment:
    """A segment: blocks first … end-1. saved: (a). sent: what it keeps is offloaded. memory: slots for
    Rotor's program in (b) and in the last segment."""

    first: int
    end: int
    saved: bool
    sent: bool
    memory: int


@dataclass(frozen=True, eq=False)
class Transition:
    """One way to run a segment.

    seconds: of the segment, by the slots that K and Q leave free. kept, backlog: what is added to K and Q.
    served: of the backlog while it runs. after: the state of block `end`'s input.
    extra: slots in addition to K and Q while the segment's backward runs.
    """

    seconds: Values
    end: int
    saved: bool
    sent: bool
    kept: int
    backlog: int
    served: int
    after: Input
    extra: int

    def backlog_after(self, before: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the backlog after the segment.

        A saved block's data is ready at its end, an input at its start.
        """
        if self.saved:
            return np.maximum(0, before - self.served) + self.backlog
        return np.maximum(0, before + self.backlog - self.served)


def decided(
    segments: Sequence[Segment], table: ChainTable, chained: ChainProblem
) -> tuple[list[Move], set[int]]:
    """Return the moves of a row of segments, and the tensors that it offloads."""
    forward: list[Move] = []
    backward: list[list[Move]] = []
    offloaded: set[int] = set()
    for segment in segments:
        first, end = segment.first, segment.end
        # The last segment's backward follows at once: its moves are Rotor's, forward and backward.
        if end == chained.blocks:
            backward.append(list(without_options(table.moves(segment.memory, first, end - 1))))
        elif segment.saved:
            forward.append((Pass.SAVE, first))
            backward.append([(Pass.BACKWARD, first)])
        else:
            forward += [(Pass.ADVANCE, b) for b in range(first, end)]
            backward.append(list(without_options(table.moves(segment.memory, first, end - 1))))
        # What a sent segment keeps: its input, and for (a) all that its backward reads.
        if segment.sent:
            before = chained.chain.blocks[first - 1].output if first else None
            offloaded |= {before} if before is not None else set()
            offloaded |= chained.runs[first].saved if segment.saved else set()
    return [*forward, *(move for moves in reversed(backward) for move in moves)], offloaded


def choice_residency(
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
        # The longest gap between two uses, from the end of the run a to the start of b.
        (max((starts[b] - starts[a + 1], a) for a, b in pairwise(device[x]))[1], x)
        for x in offloaded & device.keys()
        if len(device[x]) > 1
    ]
    offloads: dict[TensorUse, Memory] = {}
    sent = 0.0
    # The link is one queue: copies go out in the order in which tensors are last used before their gap.
    for position, x in sorted(gaps):
        ready = max(sent, starts[position + 1])
        ready += link.seconds(float(graph.tensors.bytes[x])) if link else 0.0
        # One that isn't sent leaves the link as it was: `sent` stays.
        if link is None or ready <= starts[turn]:
            offloads[x, position], sent = Memory.HOST, ready
    return Residency(runs, offloads)
