"""MemFerry's decisions as runs with their modes, and the schedules that follow.

What the paper leaves to its runtime is derived here. The weights are kept on the host, where the CPU updates
them; GFGB layers come to the device before their forward, DFGB layers before their backward, DHA layers
never: the mode of each run says so. Optimizer states never leave the host. A gradient goes to the host once
it is complete, alongside the next computations, so that only what is on its way takes memory; or its
operation writes it there (GO-MemFerry). A kept gradient's buffer stays to the end of the iteration, as in the
paper.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from ....graphs.graph import Graph, Kind, Phase
from ....graphs.machine import Machine, Memory
from ....planner.errors import InvalidScheduleError
from ....planner.residency.prefetch_placement import place_prefetches
from ....planner.residency.residency import Residency, TensorUse
from ....planner.schedule.schedule import Schedule, Verb
from ....planner.schedule.sequence import Run
from ....planner.simulator.simulate import Figures, simulate
from ...problem import NotAcceptedError
from ..layers.absences import gradient_absences, uses_of
from ..layers.host_ways import ways_on_host
from .estimate import Way
from .layers import WeightLayer, direct_run, weights_read


def memferry_residence(
    graph: Graph,
    runs: Sequence[Run],
    layers: Sequence[WeightLayer],
    ways: Sequence[Way],
    gradients: Iterable[int],
) -> Residency:
    """Return MemFerry's decisions as a residency.

    runs: of the iteration, updates in their variants on the host.
    gradients: those to send to the host, those that nothing updates from too.
    """
    chosen = list(runs)
    for layer, way in zip(layers, ways, strict=True):
        read_there = layer.forward if way in (Way.DHA, Way.DFGB) else ()
        read_there += layer.backward if way == Way.DHA else ()
        for position in read_there:
            chosen[position] = direct_run(graph, runs[position]) or runs[position]
    away = dict.fromkeys(_away_between(graph, runs, layers, ways), Memory.HOST)
    device, _host = uses_of(graph, chosen)
    return Residency(chosen, away | gradient_absences(gradients, device))


def _away_between(
    graph: Graph, runs: Sequence[Run], layers: Sequence[WeightLayer], ways: Sequence[Way]
) -> list[TensorUse]:
    """Return the last forward uses of weights that are fetched twice."""
    last: dict[int, int] = {}
    for layer, way in zip(layers, ways, strict=True):
        if way == Way.TWICE and layer.backward:
            last |= {x: p for p in layer.forward for x in weights_read(graph, runs[p][0])}
    return list(last.items())


def memferry_schedule(
    graph: Graph, machine: Machine, budget: int, residence: Residency, kept: Collection[int]
) -> tuple[Schedule, Figures] | None:
    """Return the fastest schedule for several look-aheads; None if none fits. kept: gradients."""
    found = place_prefetches(graph, machine, budget, residence)
    if found is None or not kept:
        return found
    schedule = _keeping(found[0], kept)
    try:
        return schedule, simulate(graph, schedule, budget=budget, machine=machine).figures
    except InvalidScheduleError:
        return None


def _keeping(schedule: Schedule, kept: Collection[int]) -> Schedule:
    """Return the schedule without deletes of these tensors on the device: they stay until the iteration
    ends."""
    steps = [
        step
        for step in schedule
        if not (step.verb == Verb.DELETE and step.where == Memory.DEVICE and step.target in kept)
    ]
    return Schedule.of(steps, schedule.initial)


def with_host_updates(solver: str, graph: Graph, runs: Sequence[Run]) -> list[Run]:
    """Return the runs with every update in its fastest variant on the CPU; what changes buffers alone stays.

    Raises NotAcceptedError if an update has no such variant.
    """
    chosen: list[Run] = []
    for operation, mode_index in runs:
        fastest = mode_index
        if graph.operations.phase[operation] == Phase.UPDATE and _is_optimizers(graph, operation):
            ways = ways_on_host(graph, operation)
            if not ways:
                name = graph.operations.name[operation]
                raise NotAcceptedError(f"{solver} updates weights on the CPU: {name} has no mode on the host")
            fastest = min(ways)[1]
        chosen.append((operation, fastest))
    return chosen


def _is_optimizers(graph: Graph, operation: int) -> bool:
    return any(graph.tensors.kind[x] != Kind.BUFFER for x in graph.mutate_lists[operation])
