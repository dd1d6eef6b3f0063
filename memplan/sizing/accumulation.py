"""Gradient accumulation, as a graph: the last of an update's micro-batches.

    forward, backward    K times; each gradient is added to its sum, which is resident from the second
                         micro-batch on
    optimizer.step()     once, on the sums

The last micro-batch holds most: the sums from its start, its own activations, and then the step. The others
are the same without the updates. A sum has the kind of an optimizer state, as in a plan with
`gradient_accumulation_steps`: a plan may offload it.
"""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from ..graphs.draft import Draft
from ..graphs.graph import Graph, Kind, Mode, Phase
from ..graphs.machine import Machine
from ..graphs.transformations.updates import HOST_MODE
from ..planner.schedule.schedule import Schedule
from ..planner.simulator.part import part_of
from ..planner.simulator.simulate import simulate

STEPS = "gradient_accumulation_steps"
"""The entry of a graph's source with its micro-batches per update."""
_SUM = ".sum"

AddCost = Callable[[int], tuple[float, float | None]]
"""A function of a gradient's bytes that returns the seconds of adding it on the device and on the host; None
if it is not added there."""


def accumulating(graph: Graph, steps: int, cost: AddCost) -> Graph:
    """Return the graph of an update's last micro-batch.

    graph: of an iteration with updates of weights, or without; then the sums are what it leaves.
    steps: micro-batches per update; 1 returns the graph as it is.
    """
    if steps == 1:
        return graph
    operations, tensors, draft = graph.operations, graph.tensors, Draft(graph.name)
    for x in range(len(tensors)):
        draft.tensor(*graph.tensor(x))
    is_update = operations.phase == Phase.UPDATE
    used = {x for row in np.flatnonzero(is_update).tolist() for x in graph.read_lists[row]}
    summed = [
        x
        for x in range(len(tensors))
        # Others of this kind are parts, added up into one of these within the micro-batch.
        if tensors.kind[x] == Kind.PARAMETER_GRADIENT and (x in used or x in graph.results)
    ]
    sums, complete = dict[int, int](), dict[int, list[int]]()
    for x in summed:
        name = tensors.name[x].removesuffix(".grad")
        sums[x] = draft.tensor(name + _SUM, int(tensors.bytes[x]), Kind.OPTIMIZER_STATE, tensors.layer[x])
        # Added once complete: tied weights' gradients are accumulated in place by several operations.
        last = max([*graph.producers[x].tolist(), *graph.mutators[x].tolist()])
        complete.setdefault(last, []).append(x)
    for row in range(len(operations)):
        one = graph.operation(row)
        # Backward goes on with this micro-batch's gradient; only updates take the sum.
        reads = [sums.get(x, x) for x in one.reads] if is_update[row] else one.reads
        draft.operation(**one._replace(reads=tuple(reads))._asdict())
        for x in complete.get(row, ()):
            size, name = int(tensors.bytes[x]), tensors.name[x].removesuffix(".grad")
            seconds, on_host = cost(size)
            modes = () if on_host is None else (Mode(HOST_MODE, on_host, 0, (), on_host=True),)
            draft.operation(
                f"{name}/add",
                time=seconds,
                reads=[x],
                mutates=[sums[x]],
                phase=Phase.BACKWARD,
                # A second addition would count the micro-batch twice.
                recompute=False,
                layer=tensors.layer[x],
                modes=modes,
            )
    # A gradient that was a result is freed once added: the sum, a state, stays.
    results = [x for x in graph.results if x not in sums]
    return draft.graph(results, graph.machine, {**graph.source, STEPS: steps})


def steps_of(graph: Graph) -> int:
    """Return the micro-batches per update of which the graph is the last."""
    return int(graph.source.get(STEPS, 1))


def is_sum(graph: Graph) -> NDArray[np.bool_]:
    """Return per tensor whether it is the sum of a gradient."""
    if steps_of(graph) == 1:
        return np.zeros(len(graph.tensors), np.bool_)
    named = np.array([name.endswith(_SUM) for name in graph.tensors.name], np.bool_)
    return named & (graph.tensors.kind == Kind.OPTIMIZER_STATE)


_without: WeakKeyDictionary[Graph, tuple[Graph, list[int]]] = WeakKeyDictionary()


def without_updates(graph: Graph) -> tuple[Graph, list[int]]:
    """Return the graph of a micro-batch that is not the last, and its operations' places in the whole."""
    if graph not in _without:
        places = np.flatnonzero(graph.operations.phase != Phase.UPDATE).tolist()
        draft = Draft(graph.name)
        for x in range(len(graph.tensors)):
            draft.tensor(*graph.tensor(x))
        for place in places:
            draft.operation(**graph.operation(place)._asdict())
        _without[graph] = draft.graph(graph.results, graph.machine), places
    return _without[graph]


def earlier_seconds(graph: Graph, schedule: Schedule, budget: int | None, machine: Machine) -> float:
    """Return the seconds of all micro-batches before the last, by the schedule without its updates."""
    steps = steps_of(graph)
    if steps == 1:
        return 0.0
    part, places = without_updates(graph)
    found = part_of(schedule, part, places, budget=budget, machine=machine)
    # The first counts like the others, though it copies where they add.
    return (steps - 1) * simulate(part, found, budget=budget, machine=machine).figures.time
