"""Which block of a chain each backward operation belongs to.

Blocks run backward from the last to the first, so operation o can be in block k only if what it reads is
there then: gradients from blocks >= k, tensors inside block k, the block's input x_{k-1} and output x_k.
Each operation gets the last block (the first to run backward) that

    k <= the least block of the backward operations it reads from
    k <= the block inside which the forward tensors lie that it reads
    k <= i + 1 if it reads no more of the forward part than the cut x_i between blocks i and i + 1

and if it then still reads a tensor from elsewhere, the blocks between must be one. An operation
that depends on none of this (constants) goes to the first block to run backward that reads it. Changes in
place stay on their side of every other use. Linear in the edges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..graph import Graph

_ANY = 1 << 60


@dataclass(frozen=True)
class ForwardBlocks:
    """The forward part as cut into `count` blocks. block: per operation, -1 outside the forward part.

    owner: per tensor, the block inside which it is made, -1 for what is there anyway or made by the loss
    and what follows it (`after_loss`). cut: tensor x_i -> i.
    """

    count: int
    block: Sequence[int]
    owner: Sequence[int]
    cut: dict[int, int]
    after_loss: Sequence[int]


def backward_blocks(
    graph: Graph, forward: ForwardBlocks, backward: Sequence[int]
) -> tuple[dict[int, int], list[tuple[int, int]]]:
    """Return the block of each backward operation (in traced order), and the ranges of blocks that must be
    one."""
    assignment = _Assignment(graph, forward, backward)
    for operation in backward:
        assignment.place(operation)
    for operation in reversed(backward):
        if assignment.block[operation] == _ANY:
            assignment.place_late(operation)
    return assignment.block, assignment.ranges


class _Assignment:
    def __init__(self, graph: Graph, forward: ForwardBlocks, backward: Sequence[int]) -> None:
        self.graph, self.forward = graph, forward
        self.block: dict[int, int] = {}
        self.ranges: list[tuple[int, int]] = []
        # Per tensor the least block of its contributions so far: the first moment at which it may be
        # complete.
        self.made: dict[int, int] = {
            x: forward.count - 1 for o in forward.after_loss for x in graph.operations.writes[o].tolist()
        }
        changed = {x for o in backward for x in graph.mutate_lists[o]}
        # used: per tensor that is changed later, the least block of its uses so far. changed: that of its
        # change.
        self.used: dict[int, int] = {}
        for x in changed:
            users: list[int] = graph.consumers[x].tolist()
            inside = (forward.block[o] for o in users if forward.block[o] >= 0)
            # A block's forward may be recomputed right before its backward: the change must come after that.
            self.used[x] = min(inside, default=forward.count - 1)
        self.changed: dict[int, int] = {}

    def place(self, operation: int) -> None:
        graph, forward = self.graph, self.forward
        inside: list[int] = []
        cuts: list[int] = []
        limit = self._limit_of_changes(operation)
        for x in graph.input_lists[operation]:
            if x in self.made:
                limit = min(limit, self.made[x])
            elif x in forward.cut:
                cuts.append(forward.cut[x])
            elif forward.owner[x] >= 0:
                inside.append(forward.owner[x])
        wanted = max(inside) if inside else min(cuts) + 1 if cuts else self._free(operation)
        block = min(limit, wanted)
        self.block[operation] = block
        if inside or cuts:
            # Cut i is block i's output and block i + 1's input: both ends of the range are widened for
            # either.
            first = min([block, *inside, *(cut + 1 for cut in cuts)])
            last = max([block, *inside, *cuts])
            if first < last:
                self.ranges.append((first, last))
        for x, _bit in graph.contributions(operation):
            # A sum is complete with its last contribution, in the least block.
            self.made[x] = min(block, self.made.get(x, _ANY))
        for x in graph.input_lists[operation]:
            if x in self.used:
                self.used[x] = min(block, self.used[x])
        for x in graph.mutate_lists[operation]:
            self.changed[x] = block

    def _limit_of_changes(self, operation: int) -> int:
        limits = [self.used[x] for x in self.graph.mutate_lists[operation]]
        if self.changed:
            limits += [self.changed[x] for x in self.graph.read_lists[operation] if x in self.changed]
        return min(limits, default=_ANY)

    def _free(self, operation: int) -> int:
        """Return the block of an operation that the chain does not limit.

        Any block; but the last, whose backward runs first, if the operation reads what is changed later.
        """
        awaited = any(x in self.used for x in self.graph.read_lists[operation])
        return self.forward.count - 1 if awaited else _ANY

    def place_late(self, operation: int) -> None:
        # Those too that change the tensor before others read it.
        users = (o for x, _bit in self.graph.contributions(operation) for o in self.graph.users[x].tolist())
        self.block[operation] = max((self.block.get(o, 0) for o in users), default=0)
