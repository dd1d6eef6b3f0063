"""What MemFerry plans with: the weights in the order of their first use, and what each way to use them costs.

A layer here is the finest there can be: weights that some operation reads together, with all operations that
read them. Any graph with a forward and a backward part has such layers, a chain or not.

| paper          | here                 |                                                          |
|----------------|----------------------|----------------------------------------------------------|
| T_trans(l)     | fetch                | seconds, bytes of the weights / h2d                      |
| T_FP, T_BP     | forward, backward    | seconds, weights on the device                           |
| T^H_FP, T^H_BP | direct_forward, …    | seconds, weights read in host memory; ∞ where they can't |
| T(A_l,l+1)     | between, between_…   | seconds of others until the next layer's first, each way |
| S_l            | size                 | bytes                                                    |

A weight that several operations of one pass read (tied weights) is charged where the first of them stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf

from ..graphs.graph import Graph, Kind, Phase
from ..planner.schedule import PLAIN
from ..planner.sequence import Run


@dataclass(frozen=True)
class Costs:
    """Of one layer; seconds, and size in bytes."""

    fetch: float
    forward: float
    direct_forward: float
    backward: float
    direct_backward: float
    between: float = 0.0
    between_backward: float = 0.0
    size: int = 0


@dataclass(frozen=True)
class WeightLayer:
    """weights: tensors. forward, backward: the operations that read them, with their runs in plain modes.

    direct: operation -> its run that reads all these weights in host memory, where it has such a mode.
    """

    weights: tuple[int, ...]
    forward: tuple[int, ...]
    backward: tuple[int, ...]
    direct: dict[int, Run]


def weight_layers(graph: Graph) -> list[WeightLayer]:
    """In the order of their first use in the forward part; those that only the backward part reads, last."""
    phase = graph.operations.phase
    readers = [o for o in range(len(graph.operations)) if phase[o] != Phase.UPDATE and _weights(graph, o)]
    group = _groups(_weights(graph, o) for o in readers)
    members: dict[int, list[int]] = {}
    for operation in readers:
        members.setdefault(group[_weights(graph, operation)[0]], []).append(operation)
    layers = [_layer(graph, operations) for operations in members.values()]
    return sorted(layers, key=lambda layer: (layer.forward or layer.backward)[0])


def costs_of(graph: Graph, layers: Sequence[WeightLayer], h2d: float) -> list[Costs]:
    """h2d: bytes/s. What stands before the first layer belongs to no layer: every plan has it alike."""
    before_first, forward = _between(graph, [layer.forward for layer in layers], backward=False)
    del before_first
    last, backward = _between(graph, [layer.backward for layer in reversed(layers)], backward=True)
    after = [last, *backward[:-1]][::-1]
    costs: list[Costs] = []
    for number, layer in enumerate(layers):
        size = int(graph.tensors.bytes[list(layer.weights)].sum())
        costs.append(
            Costs(
                size / h2d,
                _seconds(graph, layer.forward),
                _direct_seconds(graph, layer, layer.forward),
                _seconds(graph, layer.backward),
                _direct_seconds(graph, layer, layer.backward),
                forward[number],
                after[number],
                size,
            )
        )
    return costs


def _weights(graph: Graph, operation: int) -> list[int]:
    return [x for x in graph.read_lists[operation] if graph.tensors.kind[x] == Kind.PARAMETER]


def _groups(rows: Iterable[list[int]]) -> dict[int, int]:
    """Per weight: one that stands for all that are read together with it, directly or over others."""
    leader: dict[int, int] = {}

    def find(x: int) -> int:
        while leader.setdefault(x, x) != x:
            leader[x] = leader[leader[x]]
            x = leader[x]
        return x

    for row in rows:
        for x in row:
            leader[find(x)] = find(row[0])
    return {x: find(x) for x in leader}


def _layer(graph: Graph, operations: Sequence[int]) -> WeightLayer:
    phase = graph.operations.phase
    weights = tuple(dict.fromkeys(x for o in operations for x in _weights(graph, o)))
    direct = {o: run for o in operations if (run := _direct_run(graph, o)) is not None}
    return WeightLayer(
        weights,
        tuple(o for o in operations if phase[o] != Phase.BACKWARD),
        tuple(o for o in operations if phase[o] == Phase.BACKWARD),
        direct,
    )


def _direct_run(graph: Graph, operation: int) -> Run | None:
    """The fastest mode on the device that reads all the operation's weights in host memory, and nothing
    else.
    """
    weights, writes = set(_weights(graph, operation)), set(graph.operations.writes[operation].tolist())
    ways = [
        (mode.time, number)
        for number, mode in enumerate(graph.operations.modes.get(operation, ()), start=PLAIN + 1)
        if not mode.on_host and set(mode.reads_host) == weights and set(mode.writes) == writes
    ]
    return (operation, min(ways)[1]) if ways else None


def _seconds(graph: Graph, operations: Sequence[int]) -> float:
    return float(graph.operations.time[list(operations)].sum())


def _direct_seconds(graph: Graph, layer: WeightLayer, operations: Sequence[int]) -> float:
    if any(o not in layer.direct for o in operations):
        return inf
    return sum(graph.operations.modes[o][layer.direct[o][1] - 1].time for o in operations)


def _between(graph: Graph, rows: Sequence[tuple[int, ...]], *, backward: bool) -> tuple[float, list[float]]:
    """Seconds of the pass's other operations: before the first row, and from each row to the next."""
    phase, seconds = graph.operations.phase, graph.operations.time
    belongs = {o for row in rows for o in row}
    starts = {row[0]: number for number, row in enumerate(rows) if row}
    before, between, at = 0.0, [0.0] * len(rows), -1
    for operation in range(len(graph.operations)):
        if phase[operation] == Phase.UPDATE or (phase[operation] == Phase.BACKWARD) != backward:
            continue
        at = max(at, starts.get(operation, -1))
        if operation not in belongs:
            if at < 0:
                before += float(seconds[operation])
            else:
                between[at] += float(seconds[operation])
    return before, between
