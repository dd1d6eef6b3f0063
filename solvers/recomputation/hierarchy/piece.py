"""A cluster's operations and tensors in numbers of their own, so that clusters alike are equal objects.

The whole graph is a piece, and `part` cuts a piece out of a piece. Tensors that are there anyway are left
out: the batch, persistent tensors, and what a forward operation that can't run again has made, which is
kept from its making to its last use. Linear in the edges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ....graphs.graph import Graph
from ...stages.slots import Way, ways_of

OUTSIDE = 1 << 62
"""The bit that stands for all contributions from outside the piece."""


@dataclass(frozen=True)
class Piece:
    """Per operation, in the order in which they run, forward ones first:

    ways: how it can run on the device, the plain way first; their `writes` are tensors of the piece.
    reads: the tensors of the piece it reads or changes. once: it can't run again. early: it belongs to the
    cluster's first pass, whatever is asked of that (it runs once, draws random numbers, or nobody reads
    what it makes). keeps: bytes that it makes and that stay, being left out here.

    Per tensor: size: bytes. makers: the operations of the piece that contribute to it. outside: something
    outside contributes too. output: read outside. result: must be there at the end of the iteration.
    """

    forward: int
    ways: tuple[tuple[Way, ...], ...]
    reads: tuple[tuple[int, ...], ...]
    once: tuple[bool, ...]
    early: tuple[bool, ...]
    keeps: tuple[int, ...]
    sizes: tuple[int, ...]
    makers: tuple[tuple[int, ...], ...]
    outside: tuple[bool, ...]
    output: tuple[bool, ...]
    result: tuple[bool, ...]

    @property
    def operations(self) -> int:
        return len(self.ways)

    @cached_property
    def whole(self) -> list[int]:
        """Per tensor: all contributions that its readers wait for, as bits."""
        rows = zip(self.makers, self.outside, strict=True)
        return [(1 << len(makers)) - 1 | (OUTSIDE if outside else 0) for makers, outside in rows]

    @cached_property
    def readers(self) -> list[list[int]]:
        """Per tensor: the operations of the piece that read it."""
        rows: list[list[int]] = [[] for _ in self.sizes]
        for operation, reads in enumerate(self.reads):
            for x in reads:
                rows[x].append(operation)
        return rows

    def shared(self, tensor: int) -> bool:
        """It lies between the piece and what is outside."""
        return self.outside[tensor] or self.output[tensor]


@dataclass(frozen=True)
class Part:
    """A piece of a larger one. operations, tensors: their numbers there."""

    piece: Piece
    operations: tuple[int, ...]
    tensors: tuple[int, ...]


def whole(graph: Graph, forward: Sequence[int], rest: Sequence[int], after: Sequence[int] = ()) -> Part:
    """The graph as one piece. forward: what may run again. rest: the loss and the backward part. after: what
    follows, when nothing runs again any more.

    Each in an order in which plain PyTorch could run it; operations and tensors are the graph's.
    """
    once = _run_once(graph, set(after))
    away = graph.resident.copy()
    for operation in forward:
        if operation in once:
            away[graph.operations.writes[operation]] = True
    order = (*forward, *rest, *after)
    number = {operation: index for index, operation in enumerate(order)}
    reads = [[x for x in graph.input_lists[o] if not away[x]] for o in order]
    ways = [_making(ways_of(graph, o), away) for o in order]
    used = list(
        dict.fromkeys(x for o, r in enumerate(reads) for x in (*r, *ways[o][0].writes) if not away[x])
    )
    local = {x: index for index, x in enumerate(used)}
    makers = [tuple(number[o] for o in graph.producers[x].tolist()) for x in used]
    results = set(graph.results)
    read = {x for row in reads for x in row}
    idle = [not any(x in read or x in results for x in w[0].writes) for w in ways]
    random = graph.operations.random
    piece = Piece(
        forward=len(forward),
        ways=tuple(tuple(_renamed(way, local) for way in row) for row in ways),
        reads=tuple(tuple(local[x] for x in row) for row in reads),
        once=tuple(o in once for o in order),
        early=tuple(o in once or bool(random[o]) or idle[i] for i, o in enumerate(order)),
        keeps=tuple(
            int(graph.tensors.bytes[graph.operations.writes[o]].sum())
            if o in once and i < len(forward)
            else 0
            for i, o in enumerate(order)
        ),
        sizes=tuple(int(graph.tensors.bytes[x]) for x in used),
        makers=tuple(makers),
        outside=(False,) * len(used),
        output=(False,) * len(used),
        result=tuple(x in results for x in used),
    )
    return Part(piece, order, tuple(used))


def part(piece: Piece, forward: Sequence[int], backward: Sequence[int]) -> Part:
    """Some operations of a piece, each list in the order in which they run, as a piece of their own."""
    order = (*forward, *backward)
    number = {operation: index for index, operation in enumerate(order)}
    used = list(dict.fromkeys(x for o in order for x in (*piece.reads[o], *piece.ways[o][0].writes)))
    local = {x: index for index, x in enumerate(used)}
    makers = [tuple(number[o] for o in piece.makers[x] if o in number) for x in used]
    cut = Piece(
        forward=len(forward),
        ways=tuple(tuple(_renamed(way, local) for way in piece.ways[o]) for o in order),
        reads=tuple(tuple(local[x] for x in piece.reads[o]) for o in order),
        once=tuple(piece.once[o] for o in order),
        early=tuple(piece.early[o] for o in order),
        keeps=tuple(piece.keeps[o] for o in order),
        sizes=tuple(piece.sizes[x] for x in used),
        makers=tuple(makers),
        outside=tuple(
            piece.outside[x] or len(own) < len(piece.makers[x]) for x, own in zip(used, makers, strict=True)
        ),
        output=tuple(piece.output[x] or any(o not in number for o in piece.readers[x]) for x in used),
        result=tuple(piece.result[x] for x in used),
    )
    return Part(cut, order, tuple(used))


def _making(ways: Sequence[Way], away: NDArray[np.bool_]) -> list[Way]:
    """Those that make all that is left out of the piece: it is there from its only run on."""
    left_out = {x for x in ways[0].writes if away[x]}
    return [way for way in ways if left_out <= set(way.writes)]


def _renamed(way: Way, local: Mapping[int, int]) -> Way:
    return replace(way, writes=tuple(local[x] for x in way.writes if x in local))


def _run_once(graph: Graph, after: AbstractSet[int]) -> set[int]:
    """What can't run again: it must not, it changes a tensor, or it touches one that changes later."""
    once = {o for o, may_recompute in enumerate(graph.operations.recompute.tolist()) if not may_recompute}
    mutators = graph.mutators.lists()
    once.update(o for row in mutators for o in row)
    changed = {x: max(o for o in row if o not in after) for x, row in enumerate(mutators) if set(row) - after}
    for x, last in changed.items():
        users: list[int] = [*graph.consumers[x].tolist(), *graph.producers[x].tolist()]
        once.update(o for o in users if o < last)
    return once
