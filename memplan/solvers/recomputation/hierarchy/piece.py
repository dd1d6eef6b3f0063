"""A cluster's operations and tensors in numbers of their own, so that identical clusters are equal objects.

The whole graph is a piece, and `part` cuts a piece out of a piece. Tensors that are always resident are left
out: the batch and persistent tensors. What a forward operation that can't be recomputed has made is separate:
no pass can drop and remake it, it is kept from when it is made to its last use. Linear in the edges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ....graphs.graph import Graph
from ...stages.slots import DeviceVariant, variants_of


@dataclass(frozen=True)
class Piece:
    """A subgraph with its own numbers.

    Per operation, in the order in which they run, forward ones first:

    variants: execution variants on the device, the baseline one first; their `writes` are tensors of the
        piece.
    reads: the tensors of the piece it reads or changes.
    once: it can't be recomputed.
    until: nor can it after the first run of this operation, as what it touches changes then.
    early: it belongs to the cluster's first pass, whatever is requested of that (it runs once, draws random
        numbers, adds to what no run remakes, or nobody reads what it makes).
    fixes, uses: tensors that it makes and that no run remakes; those of them that it reads.

    Per tensor:

    sizes: bytes.
    producers: the operations of the piece that contribute to it, none if it is in `fixes`.
    outside: something outside contributes too.
    output: read outside.
    result: must exist at the end of the iteration.
    """

    forward: int
    variants: tuple[tuple[DeviceVariant, ...], ...]
    reads: tuple[tuple[int, ...], ...]
    once: tuple[bool, ...]
    until: tuple[int, ...]
    early: tuple[bool, ...]
    fixes: tuple[tuple[int, ...], ...]
    uses: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]
    producers: tuple[tuple[int, ...], ...]
    outside: tuple[bool, ...]
    output: tuple[bool, ...]
    result: tuple[bool, ...]

    @property
    def operations(self) -> int:
        return len(self.variants)

    @property
    def enough_bytes(self) -> int:
        """Bytes within which the piece runs in any variants: all its tensors, and the largest workspace."""
        return sum(self.sizes) + max((v.workspace for row in self.variants for v in row), default=0)

    @cached_property
    def whole(self) -> list[int]:
        """Contributions, as bits, that a tensor's readers wait for, per tensor.

        All from outside the piece are one bit, above those of the piece's own.
        """
        rows = zip(self.producers, self.outside, strict=True)
        return [(1 << (len(producers) + outside)) - 1 for producers, outside in rows]

    @cached_property
    def readers(self) -> list[list[int]]:
        """Operations of the piece that read a tensor, per tensor."""
        rows: list[list[int]] = [[] for _ in self.sizes]
        for operation, reads in enumerate(self.reads):
            for x in reads:
                rows[x].append(operation)
        return rows

    def shared(self, tensor: int) -> bool:
        """Tell whether a tensor is shared between the piece and what is outside."""
        return self.outside[tensor] or self.output[tensor]


@dataclass(frozen=True)
class Subgraph:
    """A piece of a larger one.

    operations, tensors: their numbers there.
    """

    piece: Piece
    operations: tuple[int, ...]
    tensors: tuple[int, ...]


def whole(graph: Graph, forward: Sequence[int], rest: Sequence[int], after: Sequence[int] = ()) -> Subgraph:
    """Return the graph as one piece; operations and tensors are the graph's.

    Each list is in an order in which eager PyTorch could run it.

    forward: what may be recomputed.
    rest: the loss and the backward part.
    after: what follows when nothing is recomputed any more.
    """
    once, changes = _run_once(graph, forward, rest)
    excluded = graph.resident.copy()
    for operation in forward:
        if operation in once:
            excluded[graph.operations.writes[operation]] = True
    order = (*forward, *rest, *after)
    number = {operation: index for index, operation in enumerate(order)}
    reads = [[x for x in graph.input_lists[o] if not excluded[x]] for o in order]
    # A variant that leaves out a fixed tensor is none: no later run could make it.
    variants = [_making(variants_of(graph, o), excluded) for o in order]
    # Made by a forward operation that runs once, so on the device until its last use.
    fixed = excluded & ~graph.resident
    fixes = [[x for x in row[0].writes if fixed[x]] for row in variants[: len(forward)]]
    fixes += [[]] * (len(order) - len(forward))
    uses = [[x for x in graph.input_lists[o] if fixed[x]] for o in order]
    rows = zip(reads, variants, fixes, uses, strict=True)
    used = list(
        dict.fromkeys(
            x for r, w, f, u in rows for x in (*r, *w[0].writes, *f, *u) if fixed[x] or not excluded[x]
        )
    )
    local = {x: index for index, x in enumerate(used)}
    producers = [() if fixed[x] else tuple(number[o] for o in graph.producers[x].tolist()) for x in used]
    results = set(graph.results)
    read = {x for row in reads for x in row}
    idle = [not any(x in read or x in results for x in w[0].writes) for w in variants]
    random = graph.operations.random
    remade = {x: index for x, index in local.items() if not fixed[x]}
    piece = Piece(
        forward=len(forward),
        variants=tuple(tuple(_renamed(variant, remade) for variant in row) for row in variants),
        reads=tuple(tuple(local[x] for x in row) for row in reads),
        once=tuple(o in once for o in order),
        # The first change counts; numbers grow in running order.
        until=tuple(min((number[c] for c in changes.get(o, ())), default=len(order)) for o in order),
        early=tuple(o in once or bool(random[o]) or idle[i] or bool(fixes[i]) for i, o in enumerate(order)),
        fixes=tuple(tuple(local[x] for x in row) for row in fixes),
        uses=tuple(tuple(local[x] for x in row) for row in uses),
        sizes=tuple(int(graph.tensors.bytes[x]) for x in used),
        producers=tuple(producers),
        outside=(False,) * len(used),
        output=(False,) * len(used),
        result=tuple(x in results for x in used),
    )
    return Subgraph(piece, order, tuple(used))


def part(piece: Piece, forward: Sequence[int], backward: Sequence[int]) -> Subgraph:
    """Return some operations of a piece, each list in the order in which they run, as a separate piece."""
    order = (*forward, *backward)
    number = {operation: index for index, operation in enumerate(order)}
    rows = [(*piece.reads[o], *piece.variants[o][0].writes, *piece.fixes[o], *piece.uses[o]) for o in order]
    used = list(dict.fromkeys(x for row in rows for x in row))
    local = {x: index for index, x in enumerate(used)}
    producers = [tuple(number[o] for o in piece.producers[x] if o in number) for x in used]
    cut = Piece(
        forward=len(forward),
        variants=tuple(tuple(_renamed(variant, local) for variant in piece.variants[o]) for o in order),
        reads=tuple(tuple(local[x] for x in piece.reads[o]) for o in order),
        once=tuple(piece.once[o] for o in order),
        until=tuple(_until(order, number, piece.until[o]) for o in order),
        early=tuple(piece.early[o] for o in order),
        fixes=tuple(tuple(local[x] for x in piece.fixes[o]) for o in order),
        uses=tuple(tuple(local[x] for x in piece.uses[o]) for o in order),
        sizes=tuple(piece.sizes[x] for x in used),
        producers=tuple(producers),
        outside=tuple(
            piece.outside[x] or len(own) < len(piece.producers[x])
            for x, own in zip(used, producers, strict=True)
        ),
        output=tuple(piece.output[x] or any(o not in number for o in piece.readers[x]) for x in used),
        result=tuple(piece.result[x] for x in used),
    )
    return Subgraph(cut, order, tuple(used))


def _making(variants: Sequence[DeviceVariant], excluded: NDArray[np.bool_]) -> list[DeviceVariant]:
    """Return the variants that make all that is left out of the piece, as that has no other run."""
    left_out = {x for x in variants[0].writes if excluded[x]}
    return [variant for variant in variants if left_out <= set(variant.writes)]


def _renamed(variant: DeviceVariant, local: Mapping[int, int]) -> DeviceVariant:
    return replace(variant, writes=tuple(local[x] for x in variant.writes if x in local))


def _until(order: Sequence[int], number: Mapping[int, int], change: int) -> int:
    """Return the operation of the subgraph after whose first run a change in the whole graph comes."""
    if change in number:
        return number[change]
    later = next((at for at, operation in enumerate(order) if operation > change), len(order))
    # Not −1: the operation that touches the tensor precedes the change, in this part too.
    return later - 1 if later < len(order) else later


def _run_once(
    graph: Graph, forward: Sequence[int], rest: Sequence[int]
) -> tuple[set[int], dict[int, list[int]]]:
    """Return the operations that run once, and the later changes of what others touch.

    An operation runs once if the graph forbids recomputation, if it changes a tensor in place, or if it
    touches a tensor that `forward` changes later. The second result maps an operation to those of `rest` that
    later change what it touches.
    """
    once = {o for o, may_recompute in enumerate(graph.operations.recompute.tolist()) if not may_recompute}
    ahead, later = set(forward), set(rest)
    changes: dict[int, list[int]] = {}
    for x, row in enumerate(graph.mutators.lists()):
        once.update(row)
        for change in row:
            # After a later change in place, a recomputation would read or redo the wrong version.
            users = [o for o in (*graph.consumers[x].tolist(), *graph.producers[x].tolist()) if o < change]
            once.update(users if change in ahead else ())
            for o in users if change in later else ():
                changes.setdefault(o, []).append(change)
    return once, changes
