"""The tensors that are offloaded between a layer's passes, as `offloaded` of a residency.

Weights leave after their last use in each section of the runs (a layer's forward, a layer's backward) and,
changed on the CPU, stay in host memory until then; gradients leave after their last use; optimizer states
that the CPU updates never come to the device. Linear in the uses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ....graphs.graph import Graph
from ....graphs.machine import Memory
from ....planner.residency.residency import TensorUse
from ....planner.schedule.sequence import Run
from .runs import LayerRuns
from .training import TrainingLayers

Positions = dict[int, list[int]]
"""Per tensor the positions of some runs, in order."""


def uses_of(graph: Graph, runs: Sequence[Run]) -> tuple[Positions, Positions]:
    """Return per tensor the runs that use it on the device, and those that use it on the host.

    On the device: runs that read, change or produce it there. On the host: those that do so on the CPU or
    write it in host memory.
    """
    device: Positions = {}
    host: Positions = {}
    for position, (operation, mode) in enumerate(runs):
        uses = host if graph.on_host(operation, mode) else device
        below = graph.made_on_host(operation, mode)
        made = (x for x, _bit in graph.contributions(operation, mode))
        # A set: a tensor that a run reads and writes has one use there.
        for x in {*graph.input_lists[operation], *made}:
            (host if x in below else uses).setdefault(x, []).append(position)
    return device, host


class Uses:
    """The uses of tensors by the runs of layers."""

    def __init__(self, graph: Graph, plan: LayerRuns) -> None:
        self.plan = plan
        self.device, self.host = uses_of(graph, plan.runs)

    def section_ends(self, x: int) -> list[int]:
        """Return the last use on the device in each section that has one."""
        # In order, so the last use of a section overwrites the others.
        last = {self.plan.section(position): position for position in self.device.get(x, ())}
        return list(last.values())


def weight_intervals(
    layers: TrainingLayers, uses: Uses, to: Memory, before_update: Memory = Memory.HOST
) -> dict[TensorUse, Memory]:
    """Return the offload intervals of all weights: they are in `to` between sections.

    before_update: the memory in which they are from backward to an update on the CPU.
    """
    offloaded: dict[TensorUse, Memory] = {}
    for x in layers.weights:
        updates = uses.host.get(x, [])
        ends = uses.section_ends(x)
        for end, following in zip(ends, [*ends[1:], len(uses.plan.runs)], strict=True):
            offloaded[x, end] = before_update if any(end < update < following for update in updates) else to
        offloaded |= {(x, update): to for update in updates}
    return offloaded


def state_intervals(layers: TrainingLayers, uses: Uses, to: Memory) -> dict[TensorUse, Memory]:
    """Return the intervals of optimizer states that the CPU alone uses: on the disk, if `to` says so."""
    if to != Memory.DISK:
        return {}
    return {(x, uses.host[x][-1]): to for x in layers.states if x in uses.host and x not in uses.device}


def gradient_intervals(gradients: Iterable[int], device: Positions) -> dict[TensorUse, Memory]:
    """Return the intervals of gradients: on the host after their last use on the device, results too."""
    return {(x, device[x][-1]): Memory.HOST for x in gradients if x in device}


def activation_intervals(uses: Uses, swapped: Mapping[int, Memory]) -> dict[TensorUse, Memory]:
    """Return the intervals of activations, from their last use in forward on.

    swapped: per tensor that forward produces and backward reads, the memory for it.
    """
    plan = uses.plan
    boundary = plan.starts[plan.turn]
    offloaded: dict[TensorUse, Memory] = {}
    for x, memory in swapped.items():
        before = [position for position in uses.device.get(x, ()) if position < boundary]
        # Without a use after the turn it is dead by then: an interval would have no end.
        if before and uses.device[x][-1] > boundary:
            offloaded[x, before[-1]] = memory
    return offloaded
