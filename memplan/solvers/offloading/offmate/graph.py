"""Conversion of a training graph to the steps, groups and options of O-ILP.

The blocks are those of the graph's chain, updates early (layers/early_updates.py); what stays after the
backward part runs in steps of its own. Gradients that are results, and tensors that several blocks share,
stay on the device. What one update changes is a parcel; parcels needed in the same steps are a group.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from ....graphs.graph import Graph, Kind, Phase
from ....graphs.structure.chain import Chain
from ....planner.schedule.schedule import DEFAULT_MODE
from ....planner.schedule.sequence import in_default_mode
from ...chains.runs import block_runs
from ...recomputation.blocks.placed import placed_blocks
from ..layers.early_updates import early_updates
from ..layers.host_variants import variants_on_host
from ..o_ilp.iteration import Carried, Group, Iteration, Parcel
from .options import Asked, block_options


def iteration_of(
    graph: Graph, chain: Chain, copy_seconds: float, asked: Asked, proceed: Callable[[], bool]
) -> Iteration:
    """Return O-ILP's input for a chain.

    copy_seconds: for a byte, out and back. asked: options of the blocks.
    """
    chain = updates_moved(graph, chain)
    after = _chunks(graph, chain)
    parcels = parcels_of(graph)
    gradients = {x for parcel in parcels for x in parcel.gradients}
    placed = placed_blocks(graph, chain, block_runs(graph, chain))
    blocks = block_options(placed, gradients, copy_seconds, asked, proceed)
    order = [block.forward for block in chain.blocks]
    order += [block.backward for block in reversed(chain.blocks)] + after
    touched = _touched_in(graph, order)
    base, carried = _beside(graph, chain, touched, gradients, len(order))
    seconds = graph.operations.time
    return Iteration(
        blocks=tuple(blocks),
        groups=groups_of(graph, parcels, touched, order),
        base_bytes=tuple(base),
        carried=carried,
        after_seconds=tuple(
            float(sum(seconds[o] for o in chunk if not _is_update(graph, o))) for chunk in after
        ),
        after=tuple(tuple(in_default_mode(chunk)) for chunk in after),
        stays=graph.tensors.stays,
    )


def updates_moved(graph: Graph, chain: Chain) -> Chain:
    """Return the chain with updates early, in the blocks after whose operations they then run."""
    order = (operation for operation, _mode in early_updates(graph, in_default_mode(chain.order())))
    forward = {o for block in chain.blocks for o in block.forward}
    block_of = {o: number for number, block in enumerate(chain.blocks) for o in block.backward}
    rows: list[list[int]] = [[] for _ in chain.blocks]
    after: list[int] = []
    row = rows[-1]
    for operation in (o for o in order if o not in forward):
        if not _is_update(graph, operation):
            row = rows[block_of[operation]] if operation in block_of else after
        row.append(operation)
    blocks = tuple(replace(block, backward=tuple(row)) for block, row in zip(chain.blocks, rows, strict=True))
    return Chain(blocks, chain.shared, tuple(after))


def _is_update(graph: Graph, operation: int) -> bool:
    return graph.operations.phase[operation] == Phase.UPDATE


def _chunks(graph: Graph, chain: Chain) -> list[tuple[int, ...]]:
    """Return the operations after all blocks, in steps with no more persistent bytes than the largest
    block."""
    sizes, persistent = graph.tensors.bytes, graph.persistent

    def of(operations: Iterable[int]) -> set[int]:
        return {x for o in operations for x in graph.input_lists[o] if persistent[x]}

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


def _touched_in(graph: Graph, order: Sequence[Sequence[int]]) -> dict[int, list[int]]:
    """Return per tensor the steps that touch it, in increasing order."""
    touched: dict[int, list[int]] = {}
    for step, operations in enumerate(order):
        for x in {
            x for o in operations for x in (*graph.input_lists[o], *graph.operations.writes[o].tolist())
        }:
            touched.setdefault(x, []).append(step)
    return touched


def _beside(
    graph: Graph, chain: Chain, touched: Mapping[int, list[int]], gradients: set[int], steps: int
) -> tuple[list[int], tuple[Carried, ...]]:
    """Return per step the bytes that the blocks' options do not count, and what may leave in between.

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
    """Return the bytes of the batch and of persistent tensors that do not move."""
    moving = {x for parcel in parcels_of(graph) for x in (*parcel.weights, *parcel.states)}
    return sum(graph.tensors.bytes.item(x) for x in graph.resident.nonzero()[0].tolist() if x not in moving)


def parcels_of(graph: Graph) -> list[Parcel]:
    """Return the weights and states that may move.

    One that changes anywhere but in one update stays on the device.
    """
    kind, sizes = graph.tensors.kind, graph.tensors.bytes
    still = (Kind.PARAMETER, Kind.BUFFER)
    parcels = [
        Parcel((x,), bytes=sizes.item(x))
        for x in range(len(graph.tensors))
        if kind[x] in still and not len(graph.mutators[x]) and len(graph.consumers[x])
    ]
    for operation in range(len(graph.operations)):
        changed = graph.mutate_lists[operation]
        if graph.operations.phase[operation] != Phase.UPDATE or not changed:
            continue
        whole = all(len(graph.mutators[x]) == 1 for x in changed)
        weights = tuple(x for x in changed if kind[x] == Kind.PARAMETER)
        if not whole or not weights:
            continue
        host = variants_on_host(graph, operation)
        reads = dict.fromkeys(graph.read_lists[operation])
        seconds, mode = min(host, default=(0.0, DEFAULT_MODE))
        own = all(x in changed or not graph.resident[x] for x in reads)
        parcels.append(
            Parcel(
                weights=weights,
                states=tuple(x for x in changed if x not in weights),
                gradients=tuple(x for x in reads if not graph.resident[x]),
                update=(operation, DEFAULT_MODE),
                host_run=(operation, mode) if host and own else None,
                host_seconds=seconds,
                bytes=sum(sizes.item(x) for x in weights),
            )
        )
    return parcels


def groups_of(
    graph: Graph, parcels: Sequence[Parcel], touched: Mapping[int, list[int]], order: Sequence[Sequence[int]]
) -> tuple[Group, ...]:
    """Group parcels with the same steps."""
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
        bytes=sum(parcel.bytes for parcel in parcels),
        uses=uses,
        last=last,
        gradient_bytes=sum(size(parcel.gradients) for parcel in parcels),
        state_bytes=sum(size(parcel.states) for parcel in parcels),
        device_seconds=float(sum(columns.time[parcel.update[0]] for parcel in parcels if parcel.update)),
        host_seconds=float(sum(parcel.host_seconds for parcel in parcels)) if parcels[0].host_run else None,
        parcels=tuple(parcels),
    )
