"""A training graph as a chain of blocks, if it is one.

    input ─▶ block 0 ─x_0─▶ block 1 ─x_1─▶ … ─▶ block L-1 with the loss
               ▲ B_0   ◀g_0─  B_1   ◀g_1─ …       B_{L-1}

The forward part is cut wherever one tensor alone crosses (forward_cuts.py), every backward operation goes
to a block (backward_blocks.py), and blocks that the backward part ties together become one. Then this holds:

- a block's forward reads its input x_{b-1}, its own tensors and what is there anyway (batch, persistent
  and shared tensors), so it can be recomputed from its input;
- running the blocks forward, then their backward parts from last to first, then `after`, is a valid order;
- what a block's backward reads from the forward part is its own, its input or its output.

Any graph gives a chain; one that is not a chain gives a single block, and so does one whose changes in place,
or forward operations after backward ones, don't go with the second, or whose parts add to the same tensor.
Near-linear in the edges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..graph import Graph, Phase
from .backward_blocks import ForwardBlocks, backward_blocks
from .forward_cuts import Cuts, forward_cuts
from .valid_order import is_valid_order


@dataclass(frozen=True)
class Block:
    """A block of a chain: operations in the order in which they run. output: the tensor that the next block
    reads; None for the last block, and if the next block reads shared tensors alone."""

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    output: int | None


@dataclass(frozen=True)
class Chain:
    """A graph as a chain of blocks.

    shared: tensors kept from their first producer to their last use.
    after: what runs after all backward operations (updates, buffers copied back).
    """

    blocks: tuple[Block, ...]
    shared: frozenset[int]
    after: tuple[int, ...]

    def joined(self, firsts: Sequence[int]) -> Chain:
        """Return the chain with neighbouring blocks joined. firsts: the first block of each new one."""
        ends = [*firsts[1:], len(self.blocks)]
        blocks = (self.blocks[first:end] for first, end in zip(firsts, ends, strict=True))
        return Chain(tuple(_join(group) for group in blocks), self.shared, self.after)

    def order(self) -> list[int]:
        """Return all operations: the blocks forward, then backward from last to first, then `after`."""
        forward = [operation for block in self.blocks for operation in block.forward]
        backward = [operation for block in reversed(self.blocks) for operation in block.backward]
        return [*forward, *backward, *self.after]


def chain_of(graph: Graph) -> Chain:
    """Return the finest chain of blocks that the graph is, by the rules above."""
    forward, backward, after = _parts(graph)
    loss = np.flatnonzero(graph.operations.phase[forward] == Phase.LOSS)
    # Without a loss the last operation takes its place: no cut comes after it.
    end = int(loss[0]) if len(loss) else max(0, len(forward) - 1)
    cuts = forward_cuts(graph, forward, end, _made_once(graph, forward, end))
    blocks = _forward_blocks(graph, forward, end, cuts)
    assigned, ranges = backward_blocks(graph, blocks, backward.tolist())
    rows: list[tuple[list[int], list[int]]] = [([], []) for _ in range(blocks.count)]
    for operation in map(int, forward):
        rows[blocks.block[operation]][0].append(operation)
    for operation in map(int, backward):
        rows[assigned[operation]][1].append(operation)
    outputs = [None if x < 0 else x for x in cuts.output.tolist()] + [None]
    finest = Chain(
        tuple(Block(tuple(f), tuple(b), x) for (f, b), x in zip(rows, outputs, strict=True)),
        cuts.shared,
        tuple(after.tolist()),
    )
    chain = finest.joined(_firsts(blocks.count, ranges))
    # One block, in traced order, is right for any graph.
    if _made_in_both(graph, forward, backward) or not is_valid_order(graph, chain.order()):
        return _one_block(graph)
    return chain


def _made_in_both(graph: Graph, forward: NDArray[np.int64], backward: NDArray[np.int64]) -> bool:
    """Tell whether some tensor has contributions of both parts."""
    writes = graph.operations.writes
    first, second = (writes.columns[np.isin(writes.rows(), part)] for part in (forward, backward))
    return bool(np.isin(first, second).any())


def _one_block(graph: Graph) -> Chain:
    return Chain((Block(tuple(range(len(graph.operations))), (), None),), frozenset(), ())


def _parts(graph: Graph) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return forward operations (with the loss), backward ones, and those after the last backward one.

    All in traced order. What reads a tensor that the backward part produces belongs to it, whatever its
    phase.
    """
    phase = graph.operations.phase
    is_backward = (phase == Phase.BACKWARD) | (phase == Phase.UPDATE)
    later = np.flatnonzero(phase == Phase.BACKWARD)
    stop = int(later[-1]) + 1 if len(later) else len(phase)
    operations = np.arange(stop)
    # Forward operations that the file has after the first backward one.
    late = operations[(np.cumsum(is_backward[:stop]) > 0) & ~is_backward[:stop]]
    if len(late):
        writes = graph.operations.writes
        made = np.zeros(len(graph.tensors), np.bool_)
        made[writes.columns[is_backward[writes.rows()]]] = True
        for operation in late.tolist():
            if made[graph.operations.reads[operation]].any():
                is_backward[operation] = True
                made[writes[operation]] = True
    part = is_backward[:stop]
    return operations[~part], operations[part], np.arange(stop, len(phase))


def _made_once(graph: Graph, forward: NDArray[np.int64], end: int) -> NDArray[np.bool_]:
    """Return per tensor whether it must be kept, because nothing can recompute it.

    Such a tensor is produced by a forward operation that cannot be recomputed, or is changed in place
    later.
    """
    operations = graph.operations
    fixed = ~operations.recompute | (operations.mutates.counts() > 0)
    once = ~graph.resident & (graph.mutators.counts() > 0)
    early = {x for o in map(int, forward) for x in graph.mutate_lists[o]}
    for x in early.union(np.flatnonzero(once).tolist()):
        users = np.union1d(graph.consumers[x], graph.producers[x])
        # Recomputed after the change, such a user would read the new value.
        fixed[users[users < graph.mutators[x].max()]] = True
    for operation in forward[:end][fixed[forward[:end]]].tolist():
        once[operations.writes[operation]] = True
    return once


def _forward_blocks(graph: Graph, forward: NDArray[np.int64], end: int, cuts: Cuts) -> ForwardBlocks:
    operations = len(graph.operations)
    block = np.full(operations, -1, np.int64)
    block[forward] = np.searchsorted(cuts.positions, np.arange(len(forward)))
    owner = np.full(len(graph.tensors), -1, np.int64)
    writes = graph.operations.writes
    within = np.zeros(operations, np.bool_)
    within[forward[:end]] = True
    entries = within[writes.rows()]
    owner[writes.columns[entries]] = block[writes.rows()[entries]]
    owner[list(cuts.shared)] = -1
    crossing = {x: i for i, x in enumerate(cuts.output.tolist()) if x >= 0}
    return ForwardBlocks(
        len(cuts.positions) + 1, block.tolist(), owner.tolist(), crossing, forward[end:].tolist()
    )


def _firsts(count: int, ranges: list[tuple[int, int]]) -> list[int]:
    """Return the first block of each group, if the blocks first … last of each range become one."""
    # A difference array: blocks with a sum above 0 are joined to the one before.
    inside = np.zeros(count + 1, np.int64)
    for first, last in ranges:
        inside[first + 1] += 1
        inside[last + 1] -= 1
    return np.flatnonzero(np.cumsum(inside)[:count] == 0).tolist()


def _join(blocks: Sequence[Block]) -> Block:
    return Block(
        tuple(operation for block in blocks for operation in block.forward),
        tuple(operation for block in reversed(blocks) for operation in block.backward),
        blocks[-1].output,
    )
