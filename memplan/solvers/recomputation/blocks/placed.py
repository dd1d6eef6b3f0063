"""The blocks of a chain, each with what surrounds it, and which of them are identical.

A block's *members* are its forward operations, then its backward ones. Positions among them stand for
operations, so that what is found for one block holds for all identical ones: same operations, sizes, roles of
tensors. Their times may differ: layers that are the same are measured with noise. Linear in the edges.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ....graphs.graph import Graph
from ....graphs.structure.chain import Chain
from ....planner.schedule.sequence import Run
from ...chains.costs import first_producers, written
from ...chains.runs import BlockRuns, last_reader


@dataclass(frozen=True, eq=False)
class PlacedBlock:
    """A block with what surrounds it.

    members: operations of the graph, the first `forwards` of them forward.
    given: tensors that are resident anyway and don't count.
    inputs: the block's input.
    outputs: its output.
    made: what its forward makes, without shared tensors.
    after: contributions, as bits, that exist after its backward.
    entering: gradients that its backward touches, made by later blocks.
    held: its input, if a backward part of an earlier block reads that.
    early: positions of what belongs to the first pass, whatever is saved.
    is_last: no block follows.
    """

    graph: Graph
    members: tuple[int, ...]
    forwards: int
    given: frozenset[int]
    inputs: frozenset[int]
    outputs: frozenset[int]
    made: frozenset[int]
    after: Mapping[int, int]
    entering: frozenset[int]
    held: frozenset[int]
    early: frozenset[int]
    is_last: bool

    def runs(self, positions: Sequence[Run]) -> list[Run]:
        """Return runs of positions as runs of operations."""
        return [(self.members[position], mode) for position, mode in positions]

    @cached_property
    def seconds(self) -> NDArray[np.float64]:
        """Seconds per position."""
        return self.graph.operations.time[list(self.members)]


def placed_blocks(graph: Graph, chain: Chain, runs: Sequence[BlockRuns]) -> list[PlacedBlock]:
    made_in, last = first_producers(graph, chain), last_reader(graph, chain)
    given = frozenset(chain.shared.union(graph.resident.nonzero()[0].tolist()))
    block_of = _blocks_of(chain)
    placed: list[PlacedBlock] = []
    inputs = frozenset[int]()
    for number, (block, run) in enumerate(zip(chain.blocks, runs, strict=True)):
        outputs = frozenset[int]() if block.output is None else frozenset([block.output])
        touched = {x for o in block.backward for x in (*graph.input_lists[o], *written(graph, o))}
        kept = {o for o, _mode in run.save}
        early = (
            # Random operations too: their first draws keep the traced order.
            o not in kept or graph.operations.random.item(o) or not chain.shared.isdisjoint(written(graph, o))
            for o in block.forward
        )
        made = {x for o in block.forward for x in written(graph, o)} - chain.shared
        staying = (touched | made) - given
        placed.append(
            PlacedBlock(
                graph=graph,
                members=block.forward + block.backward,
                forwards=len(block.forward),
                given=given,
                inputs=inputs,
                outputs=outputs,
                made=frozenset(made),
                after={
                    x: _made_by_then(graph, block_of, number, x)
                    for x in sorted(staying)
                    # Read by an earlier block's backward, or (−1) after all blocks.
                    if last.get(x, number) < number
                },
                entering=frozenset(x for x in touched - given if made_in.get(x, number) > number),
                held=frozenset(x for x in inputs if last.get(x, number) < number),
                early=frozenset(position for position, is_early in enumerate(early) if is_early),
                is_last=number == len(runs) - 1,
            )
        )
        inputs = outputs  # of the next block
    return placed


def groups(blocks: Sequence[PlacedBlock]) -> list[list[int]]:
    """Group the numbers of identical blocks, ordered by the first of each."""
    found: dict[Hashable, list[int]] = {}
    for number, block in enumerate(blocks):
        found.setdefault(anonymous(block), []).append(number)
    return list(found.values())


def anonymous(block: PlacedBlock) -> Hashable:
    """Return all that matters of a block but its times and names: tensors are numbered by appearance."""
    graph, columns = block.graph, block.graph.operations
    number: dict[int, int] = {}

    def numbers(tensors: Sequence[int]) -> tuple[int, ...]:
        # By first appearance, so that the numbers depend on the structure alone.
        return tuple(number.setdefault(x, len(number)) for x in tensors)

    rows: list[Hashable] = [
        (
            numbers(graph.read_lists[o]),
            numbers(graph.mutate_lists[o]),
            numbers(written(graph, o)),
            int(columns.workspace[o]),
            bool(columns.recompute[o]),
            bool(columns.random[o]),
            tuple(
                (
                    numbers(mode.writes),
                    numbers(mode.reads_host),
                    numbers(mode.writes_host),
                    mode.workspace,
                    mode.on_host,
                )
                for mode in columns.modes.get(o, ())
            ),
        )
        for o in block.members
    ]
    roles = (block.given, block.inputs, block.outputs, block.made, block.after, block.entering, block.held)
    return (
        block.forwards,
        block.early,
        block.is_last,
        tuple(rows),
        tuple((int(graph.tensors.bytes[x]), *(x in role for role in roles)) for x in number),
    )


def mean_seconds(blocks: Sequence[PlacedBlock]) -> list[float]:
    """Return per position the mean over identical blocks."""
    rows = [block.seconds for block in blocks]
    return (sum(rows[1:], rows[0]) / len(rows)).tolist()


def _blocks_of(chain: Chain) -> dict[int, int]:
    """Return, for each operation outside the forward part, its block; -1 for what runs after all blocks."""
    block = dict.fromkeys(chain.after, -1)
    for number, each in enumerate(chain.blocks):
        block.update(dict.fromkeys(each.backward, number))
    return block


def _made_by_then(graph: Graph, block_of: Mapping[int, int], number: int, x: int) -> int:
    """Return the contributions to tensor x, as bits, that exist once a block's backward part has run."""
    producers: list[int] = graph.producers[x].tolist()
    # Backward runs from the last block: larger numbers have run by then, and all of forward (no entry).
    return sum(1 << k for k, o in enumerate(producers) if block_of.get(o, number) >= number)
