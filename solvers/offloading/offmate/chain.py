"""A chain whose updates stand where the gradients are complete and the weights no longer read."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from ....graphs.graph import Graph, Phase
from ....graphs.structure.chain import Chain
from ....graphs.structure.valid_order import is_valid_order


def updates_moved(graph: Graph, chain: Chain) -> Chain:
    """The chain with the updates behind it moved into the blocks, where that gives a valid order."""
    place: dict[int, tuple[int, int]] = {}
    for number in reversed(range(len(chain.blocks))):
        block = chain.blocks[number]
        place.update(dict.fromkeys(block.forward, (-len(chain.blocks), -1)))
        place.update({o: (-number, index) for index, o in enumerate(block.backward)})
    moved: dict[tuple[int, int], list[int]] = defaultdict(list)
    for operation in chain.after:
        needs = _before(graph, operation)
        if graph.operations.phase[operation] == Phase.UPDATE and needs and needs <= place.keys():
            last = max(place[o] for o in needs)
            if last[1] >= 0:
                moved[last].append(operation)
    rows = [list(block.backward) for block in chain.blocks]
    for (number, index), operations in sorted(moved.items(), key=lambda item: item[0][1], reverse=True):
        rows[-number][index + 1 : index + 1] = operations
    gone = {o for operations in moved.values() for o in operations}
    blocks = tuple(replace(block, backward=tuple(row)) for block, row in zip(chain.blocks, rows, strict=True))
    better = Chain(blocks, chain.shared, tuple(o for o in chain.after if o not in gone))
    return better if is_valid_order(graph, better.order()) else chain


def _before(graph: Graph, operation: int) -> set[int]:
    """What must have run: makers and changers of what it reads, all other users of what it changes."""
    needs: set[int] = set()
    for x in graph.read_lists[operation]:
        needs.update(graph.producers[x].tolist())
        needs.update(graph.mutators[x].tolist())
    for x in graph.mutate_lists[operation]:
        needs.update(graph.consumers[x].tolist(), graph.mutators[x].tolist())
    return needs - {operation}
