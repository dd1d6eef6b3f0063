"""Groups of weights: what one update changes is a parcel; parcels needed in the same steps are a group."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from ....graphs.graph import Graph, Kind, Phase
from ....planner.schedule.schedule import PLAIN
from ..layers.host_ways import ways_on_host
from ..o_ilp.iteration import Group, Parcel


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
        host = ways_on_host(graph, operation)
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
        sum(parcel.bytes for parcel in parcels),
        uses,
        last,
        sum(size(parcel.gradients) for parcel in parcels),
        sum(size(parcel.states) for parcel in parcels),
        float(sum(columns.time[parcel.update[0]] for parcel in parcels if parcel.update)),
        float(sum(parcel.host_seconds for parcel in parcels)) if parcels[0].host_run else None,
        tuple(parcels),
    )
