"""MemFerry's input: the weights in the order of their first use, and the cost of each treatment.

A layer here is the finest there can be: weights that some operation reads together, with all runs that read
them. Any graph with a forward and a backward part has such layers, a chain or not.

| paper          | here                 |                                                          |
|----------------|----------------------|----------------------------------------------------------|
| T_trans(l)     | fetch                | seconds, of the weights' copies over h2d                 |
| T_FP, T_BP     | forward, backward    | seconds, weights on the device                           |
| T^H_FP, T^H_BP | direct_forward, …    | seconds, weights read in host memory; ∞ if they can't    |
| T(A_l,l+1)     | between, between_…   | seconds of others until the next layer's first, each way |
| S_l            | size                 | bytes                                                    |

A forward operation that is recomputed after the first backward one counts as backward. A weight that several
operations of one pass read (tied weights) is charged to the first of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf

from ....graphs.graph import Graph, Kind, Phase
from ....graphs.machine import Link
from ....planner.schedule.schedule import DEFAULT_MODE
from ....planner.schedule.sequence import Run
from ..layers.runs import first_backward


@dataclass(frozen=True)
class Costs:
    """The costs of one layer, in seconds, and its size in bytes."""

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
    """Weights that are used together.

    weights: tensors. forward, backward: the positions of the runs that read them, in order.
    """

    weights: tuple[int, ...]
    forward: tuple[int, ...]
    backward: tuple[int, ...]


def weight_layers(graph: Graph, runs: Sequence[Run]) -> list[WeightLayer]:
    """Return the layers in the order of their first use; runs of updates do not count as uses."""
    phase, turn = graph.operations.phase, first_backward(graph, runs)
    readers = [p for p, (o, _mode) in enumerate(runs) if phase[o] != Phase.UPDATE and weights_read(graph, o)]
    group = groups(weights_read(graph, runs[p][0]) for p in readers)
    members: dict[int, list[int]] = {}
    for position in readers:
        # Any weight of the run will do: all of a run are in one group.
        members.setdefault(group[weights_read(graph, runs[position][0])[0]], []).append(position)
    return [
        WeightLayer(
            tuple(dict.fromkeys(x for p in positions for x in weights_read(graph, runs[p][0]))),
            tuple(p for p in positions if p < turn),
            tuple(p for p in positions if p >= turn),
        )
        for positions in members.values()
    ]


def weights_read(graph: Graph, operation: int) -> list[int]:
    return [x for x in graph.read_lists[operation] if graph.tensors.kind[x] == Kind.PARAMETER]


def direct_run(graph: Graph, run: Run) -> Run | None:
    """Return the same run with the weights, and nothing else, read in host memory: the fastest such
    variant."""
    return variant(graph, run, set(weights_read(graph, run[0])), set(graph.made_on_host(*run)))


def variant(graph: Graph, run: Run, reads_host: set[int], writes_host: set[int]) -> Run | None:
    """Return a run's fastest variant on the device with the same results and just these uses of host memory.

    None if there is none. reads_host, writes_host: the tensors read and written there.
    """
    operation, mode_index = run
    modes = graph.operations.modes.get(operation, ())
    written = graph.operations.writes[operation].tolist()
    writes = set(written if mode_index == DEFAULT_MODE else modes[mode_index - 1].writes)
    variants = [
        # The number breaks ties, so that the choice is deterministic.
        (mode.time, number)
        for number, mode in enumerate(modes, start=1)
        if not mode.on_host
        and (set(mode.reads_host), set(mode.writes_host)) == (reads_host, writes_host)
        # Equal, not a superset: more results would take memory that the run it replaces doesn't.
        and set(mode.writes) == writes
    ]
    return (operation, min(variants)[1]) if variants else None


def costs_of(graph: Graph, runs: Sequence[Run], layers: Sequence[WeightLayer], h2d: Link) -> list[Costs]:
    """Return the costs of each layer.

    Runs before the first layer, or after the last, take the same time in every plan and are left out.
    """
    seconds = [graph.seconds(*run) for run in runs]
    direct = [_direct_seconds(graph, run) for run in runs]
    between, between_backward = _between(graph, runs, layers, seconds)
    costs: list[Costs] = []
    for number, layer in enumerate(layers):
        sizes: list[int] = graph.tensors.bytes[list(layer.weights)].tolist()
        costs.append(
            Costs(
                fetch=h2d.total_seconds(sizes),
                forward=sum(seconds[p] for p in layer.forward),
                direct_forward=sum(direct[p] for p in layer.forward),
                backward=sum(seconds[p] for p in layer.backward),
                direct_backward=sum(direct[p] for p in layer.backward),
                between=between[number],
                between_backward=between_backward[number],
                size=sum(sizes),
            )
        )
    return costs


def _direct_seconds(graph: Graph, run: Run) -> float:
    direct = direct_run(graph, run)
    # One run that can't read the weights there makes the sum ∞: never chosen for the layer.
    return inf if direct is None else graph.seconds(*direct)


def groups(rows: Iterable[Sequence[int]]) -> dict[int, int]:
    """Return per member of a row one member that stands for all that share rows with it, directly or over
    others."""
    leader: dict[int, int] = {}

    def find(x: int) -> int:
        while leader.setdefault(x, x) != x:
            leader[x] = leader[leader[x]]  # halves the path
            x = leader[x]
        return x

    for row in rows:
        for x in row:
            leader[find(x)] = find(row[0])
    return {x: find(x) for x in leader}


def _between(
    graph: Graph, runs: Sequence[Run], layers: Sequence[WeightLayer], seconds: Sequence[float]
) -> tuple[list[float], list[float]]:
    """Return per layer the seconds of other computations until the next layer's, forward and backward.

    Forward: after its first run. Backward: before its first run.
    """
    turn = first_backward(graph, runs)
    starts_forward = {layer.forward[0]: number for number, layer in enumerate(layers) if layer.forward}
    starts_backward = {layer.backward[0]: number for number, layer in enumerate(layers) if layer.backward}
    reading = {p for layer in layers for p in (*layer.forward, *layer.backward)}
    forward, backward = [0.0] * len(layers), [0.0] * len(layers)
    last, waiting = -1, 0.0
    for position, (operation, _mode) in enumerate(runs):
        last = starts_forward.get(position, last)
        if position in starts_backward:
            backward[starts_backward[position]] += waiting
            waiting = 0.0
        # Counted with its layer, or the same in every plan.
        if position in reading or graph.operations.phase[operation] == Phase.UPDATE:
            continue
        if position < turn and last >= 0:
            forward[last] += seconds[position]
        elif position >= turn:
            waiting += seconds[position]
    return forward, backward
