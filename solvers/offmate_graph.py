"""From a training graph to the steps, groups and options of O-ILP.

The blocks are those of the graph's chain (graphs/structure.py). An update behind the backward part moves to
where its gradient is complete and its weight no longer read, if nothing forbids it; what stays behind runs in
steps of its own. Gradients that are results, and tensors that several blocks share, stay on the device.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from ..graphs.graph import Graph, Kind, Phase
from ..graphs.structure import Chain
from ..graphs.valid_order import is_valid_order
from ..planner.schedule import PLAIN
from ..planner.sequence import in_plain_mode
from .chain_runs import block_runs
from .offmate_iteration import Carried, Group, Iteration, Parcel
from .offmate_options import block_options
from .rk_rotor_blocks import placed_blocks


def iteration_of(
    graph: Graph, chain: Chain, copy_seconds: float, options: int, proceed: Callable[[], bool]
) -> Iteration:
    """copy_seconds: for a byte, out and back. options: the most a block."""
    chain = updates_moved(graph, chain)
    after = _chunks(graph, chain)
    parcels = _parcels(graph)
    gradients = {x for parcel in parcels for x in parcel.gradients}
    placed = placed_blocks(graph, chain, block_runs(graph, chain))
    blocks = block_options(placed, gradients, copy_seconds, options, proceed)
    order = [block.forward for block in chain.blocks]
    order += [block.backward for block in reversed(chain.blocks)] + after
    touched = _touched_in(graph, order)
    base, carried = _beside(graph, chain, touched, gradients, len(order))
    seconds = graph.operations.time
    return Iteration(
        tuple(blocks),
        _groups(graph, parcels, touched, order),
        tuple(base),
        carried,
        tuple(float(sum(seconds[o] for o in chunk if not _is_update(graph, o))) for chunk in after),
        tuple(tuple(in_plain_mode(chunk)) for chunk in after),
    )


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
        if _is_update(graph, operation) and needs and needs <= place.keys():
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


def _is_update(graph: Graph, operation: int) -> bool:
    return graph.operations.phase[operation] == Phase.UPDATE


def _chunks(graph: Graph, chain: Chain) -> list[tuple[int, ...]]:
    """What runs behind all, in steps that need no more persistent bytes than the largest block."""
    sizes, persistent = graph.tensors.bytes, graph.persistent

    def of(operations: Iterable[int]) -> set[int]:
        return {x for o in operations for x in _inputs(graph, o) if persistent[x]}

    most = max(sum(sizes.item(x) for x in of(b.forward + b.backward)) for b in chain.blocks)
    chunks: list[list[int]] = []
    there: set[int] = set()
    for operation in chain.after:
        needs = of([operation])
        if not chunks or (needs - there and sum(sizes.item(x) for x in there | needs) > most):
            chunks.append([])
            there = set()
        there |= needs
        chunks[-1].append(operation)
    return [tuple(chunk) for chunk in chunks]


def _parcels(graph: Graph) -> list[Parcel]:
    """Weights and states that may move; one that changes anywhere but in one update stays on the device."""
    kind, sizes = graph.tensors.kind, graph.tensors.bytes
    still = (Kind.PARAMETER, Kind.BUFFER)
    parcels = [
        Parcel((x,), bytes=sizes.item(x))
        for x in range(len(graph.tensors))
        if kind[x] in still and not len(graph.mutators[x]) and len(graph.consumers[x])
    ]
    for operation in range(len(graph.operations)):
        changed = graph.mutate_lists[operation]
        if not _is_update(graph, operation) or not changed:
            continue
        whole = all(len(graph.mutators[x]) == 1 for x in changed)
        weights = tuple(x for x in changed if kind[x] == Kind.PARAMETER)
        if not whole or not weights:
            continue
        modes = graph.operations.modes.get(operation, ())
        host = [(mode.time, number) for number, mode in enumerate(modes, start=1) if mode.on_host]
        reads = dict.fromkeys(graph.read_lists[operation])
        seconds, mode = min(host, default=(0.0, PLAIN))
        own = all(x in changed or not graph.resident[x] for x in reads)
        parcels.append(
            Parcel(
                weights,
                tuple(x for x in changed if x not in weights),
                tuple(x for x in reads if not graph.resident[x]),
                (operation, PLAIN),
                (operation, mode) if host and own else None,
                seconds,
                sum(sizes.item(x) for x in weights),
            )
        )
    return parcels


def _touched_in(graph: Graph, order: Sequence[Sequence[int]]) -> dict[int, list[int]]:
    """Per tensor the steps that touch it, growing."""
    touched: dict[int, list[int]] = {}
    for step, operations in enumerate(order):
        for x in {x for o in operations for x in (*_inputs(graph, o), *graph.operations.writes[o].tolist())}:
            touched.setdefault(x, []).append(step)
    return touched


def _beside(
    graph: Graph, chain: Chain, touched: Mapping[int, list[int]], gradients: set[int], steps: int
) -> tuple[list[int], tuple[Carried, ...]]:
    """Per step the bytes that the blocks' options don't count; and what may leave in between.

    Shared tensors stay for the whole iteration, others from one touch to the next; results to the end.
    """
    half = len(chain.blocks)
    base = [sum(graph.tensors.bytes.item(x) for x in chain.shared) + _fixed_bytes(graph)] * steps
    results = set(graph.results)
    carried: dict[tuple[int, int], list[int]] = defaultdict(list)
    for x, at in touched.items():
        if graph.resident[x] or x in chain.shared:
            continue
        size = graph.tensors.bytes.item(x)
        if x in gradients:
            for step in at[:-1]:  # at the last, its update: 4.14
                base[step] += size
            for made, needed in pairwise(at):
                if needed > made + 1:
                    carried[made, needed].append(x)
            continue
        late = [step for step in at if step >= half or step == at[0]]
        late += [steps] if x in results else []
        for made, needed in pairwise(late):
            if made >= half or needed >= 2 * half:
                for step in range(made + 1, needed):
                    base[step] += size
    return base, tuple(
        Carried(sum(graph.tensors.bytes.item(x) for x in tensors), *span, tuple(tensors))
        for span, tensors in carried.items()
    )


def _fixed_bytes(graph: Graph) -> int:
    """Batch, and persistent tensors that don't move."""
    moving = {x for parcel in _parcels(graph) for x in (*parcel.weights, *parcel.states)}
    return sum(graph.tensors.bytes.item(x) for x in graph.resident.nonzero()[0].tolist() if x not in moving)


def _groups(
    graph: Graph, parcels: Sequence[Parcel], touched: Mapping[int, list[int]], order: Sequence[Sequence[int]]
) -> tuple[Group, ...]:
    """Parcels with the same steps, together."""
    step_of = {o: step for step, operations in enumerate(order) for o in operations}
    rows: dict[tuple[tuple[int, ...], int | None, bool], list[Parcel]] = defaultdict(list)
    for parcel in parcels:
        last = None if parcel.update is None else step_of[parcel.update[0]]
        uses = sorted({step for x in parcel.weights for step in touched[x]})
        rows[tuple(uses), last, parcel.host_run is not None].append(parcel)
    return tuple(_group(graph, uses, last, each) for (uses, last, _host), each in rows.items())


def _group(graph: Graph, uses: tuple[int, ...], last: int | None, parcels: Sequence[Parcel]) -> Group:
    columns = graph.operations

    def size(tensors: Iterable[int]) -> int:
        return sum(graph.tensors.bytes.item(x) for x in tensors)

    return Group(
        sum(parcel.bytes for parcel in parcels),
        uses,
        last,
        sum(size(parcel.gradients) for parcel in parcels),
        sum(size(parcel.states) for parcel in parcels),
        float(sum(columns.time[parcel.update[0]] for parcel in parcels if parcel.update)),
        float(sum(parcel.host_seconds for parcel in parcels)) if parcels[0].host_run else None,
        tuple(parcels),
    )


def _inputs(graph: Graph, operation: int) -> list[int]:
    return graph.read_lists[operation] + graph.mutate_lists[operation]
