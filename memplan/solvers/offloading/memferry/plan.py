"""One iteration's runs, MemFerry's decisions on them, and the schedules that follow.

What the paper leaves to its runtime is derived here. The weights are kept on the host, where the CPU updates
them; GFGB layers come to the device before their forward, DFGB layers before their backward, DHA layers
never: the mode of each run says so. Optimizer states never leave the host. A gradient goes to the host once
it is complete, alongside the next computations, so that only what is on its way takes memory; or its
operation writes it there (GO-MemFerry). A kept gradient's buffer stays to the end of the iteration, as in the
paper.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from math import inf

import numpy as np

from ....graphs.graph import Graph, Kind, Phase
from ....graphs.machine import Machine, Memory
from ....planner.errors import InvalidScheduleError
from ....planner.residency.prefetch_placement import build_schedule, place_prefetches
from ....planner.residency.residency import Residency, TensorUse
from ....planner.schedule.schedule import Schedule
from ....planner.schedule.sequence import Run
from ....planner.simulator.simulate import Figures, simulate
from ...candidates import keeping, peak_without
from ...links import LinkedMachine
from ...problem import NotAcceptedError
from ..layers.host_variants import variants_on_host
from ..layers.offload_intervals import gradient_intervals, uses_of
from .estimate import Treatment
from .gradients import gradient_layers, kept_layers, written_below
from .layers import Costs, WeightLayer, costs_of, direct_run, weight_layers, weights_read


class Plan:
    """The runs of an iteration, and what MemFerry decides about on them.

    runs: of an iteration, in variants on the device. checkpoint: some of them recompute forward operations.
    direct: gradients that are not kept are written to the host by their producers, in variants that do that.
    kept: the gradients that stay on the device, at most this share (`reserve`) of all bytes.
    """

    def __init__(
        self,
        solver: str,
        graph: Graph,
        linked: LinkedMachine,
        runs: Sequence[Run],
        *,
        checkpoint: bool = False,
        reserve: float,
        direct: bool = False,
    ) -> None:
        self.graph, self.linked, self.checkpoint, self.direct = graph, linked, checkpoint, direct
        self.baseline = list(runs)
        layers = gradient_layers(graph)
        kept = kept_layers(layers, reserve, direct=direct)
        self.kept = [x for layer in kept for x in layer.gradients]
        # Kept ones are left out: they're produced on the device, at its speed.
        self._below = [layer for layer in layers if direct and layer.direct and layer not in kept]
        self.runs = self._writing_below(with_host_updates(solver, graph, runs))
        self.layers: list[WeightLayer] = weight_layers(graph, self.runs)
        self.costs: list[Costs] = costs_of(graph, self.runs, self.layers, linked.h2d)

    def _writing_below(self, runs: Sequence[Run]) -> list[Run]:
        """Return the runs with the gradients that are not kept written in host memory."""
        below = {o: layer.gradients for layer in self._below for o in layer.producers}
        return [
            (written_below(self.graph, run, below[run[0]]) if run[0] in below else None) or run
            for run in runs
        ]

    @cached_property
    def extra(self) -> int:
        """Return the bytes on the device besides weights and states; gradients that are kept are included."""
        moved = np.isin(self.graph.tensors.kind, (Kind.PARAMETER, Kind.OPTIMIZER_STATE))
        moved[[x for layer in self._below for x in layer.gradients]] = True
        return peak_without(self.graph, self.baseline, np.flatnonzero(moved), staying=self.kept)

    @cached_property
    def computing(self) -> float:
        """Return the seconds of all computations but updates, each in the faster variant: no choice takes
        less."""
        seconds = 0.0
        for run in self.runs:
            if self.graph.operations.phase[run[0]] != Phase.UPDATE:
                variants = [run, direct_run(self.graph, run) or run]
                seconds += min(self.graph.seconds(*variant) for variant in variants)
        return seconds

    def all_in(self, treatment: Treatment) -> list[Treatment]:
        return [treatment] * len(self.costs)

    def least_on_device(self, *, twice: bool) -> list[Treatment]:
        """Return the choice of least memory.

        Layers are read in host memory if possible, else fetched, twice if allowed.
        """
        direct = (layer.direct_forward + layer.direct_backward for layer in self.costs)
        otherwise = Treatment.TWICE if twice else Treatment.GFGB
        return [Treatment.DHA if np.isfinite(seconds) else otherwise for seconds in direct]

    def bytes_on_device(self, treatments: Sequence[Treatment]) -> int:
        """Return the bytes of the weights that are on the device from forward to backward."""
        return sum(
            layer.size
            for layer, treatment in zip(self.costs, treatments, strict=True)
            if treatment in (Treatment.GFGB, Treatment.DFGB)
        )

    def schedule(self, treatments: Sequence[Treatment], budget: int) -> tuple[Schedule, Figures] | None:
        """Return the fastest schedule found; None if none fits."""
        return memferry_schedule(
            self.graph, self.linked.machine, budget, self.residency(treatments), self.kept
        )

    def quick_seconds(self, treatments: Sequence[Treatment], budget: int) -> float:
        """Simulate with every fetch as early as memory allows, and return the seconds.

        ∞ if that does not fit.
        """
        found = place_prefetches(self.graph, self.linked.machine, budget, self.residency(treatments), (inf,))
        return found[1].time if found else inf

    def other_treatments(
        self, treatments: Sequence[Treatment], *, twice: bool
    ) -> Iterator[tuple[int, Treatment]]:
        """Yield each layer, from the first, with each treatment that it could have and has not."""
        for number, layer in enumerate(self.costs):
            possible = [Treatment.GFGB, Treatment.TWICE] if twice else [Treatment.GFGB]
            if np.isfinite(layer.direct_forward):
                possible += [Treatment.DFGB] + [Treatment.DHA] * bool(np.isfinite(layer.direct_backward))
            yield from ((number, treatment) for treatment in possible if treatment != treatments[number])

    def residency(self, treatments: Sequence[Treatment]) -> Residency:
        return memferry_residency(self.graph, self.runs, self.layers, treatments, self._gradients)

    @cached_property
    def _gradients(self) -> list[int]:
        kind = self.graph.tensors.kind
        return np.flatnonzero(kind == Kind.PARAMETER_GRADIENT).tolist()


def memferry_residency(
    graph: Graph,
    runs: Sequence[Run],
    layers: Sequence[WeightLayer],
    treatments: Sequence[Treatment],
    gradients: Iterable[int],
) -> Residency:
    """Return MemFerry's decisions as a residency.

    runs: of the iteration, updates in their variants on the host.
    gradients: those to send to the host, those that nothing updates from too.
    """
    chosen = list(runs)
    for layer, treatment in zip(layers, treatments, strict=True):
        read_there = layer.forward if treatment in (Treatment.DHA, Treatment.DFGB) else ()
        read_there += layer.backward if treatment == Treatment.DHA else ()
        for position in read_there:
            chosen[position] = direct_run(graph, runs[position]) or runs[position]
    offloaded = dict.fromkeys(_offloaded_between(graph, runs, layers, treatments), Memory.HOST)
    device, _host = uses_of(graph, chosen)
    return Residency(chosen, offloaded | gradient_intervals(gradients, device))


def _offloaded_between(
    graph: Graph, runs: Sequence[Run], layers: Sequence[WeightLayer], treatments: Sequence[Treatment]
) -> list[TensorUse]:
    """Return the last forward uses of weights that are fetched twice."""
    last: dict[int, int] = {}
    for layer, treatment in zip(layers, treatments, strict=True):
        if treatment == Treatment.TWICE and layer.backward:
            # Positions ascend, so the last one stays.
            last |= {x: p for p in layer.forward for x in weights_read(graph, runs[p][0])}
    return list(last.items())


def memferry_schedule(
    graph: Graph, machine: Machine, budget: int, residency: Residency, kept: Collection[int]
) -> tuple[Schedule, Figures] | None:
    """Return the fastest schedule for several look-aheads; None if none fits. kept: gradients."""
    found = place_prefetches(graph, machine, budget, residency)
    if found is None or not kept:
        return found
    # Prefetches are placed as if these buffers were freed. If both don't fit, fetches come with their uses.
    for schedule in (found[0], build_schedule(graph, residency)):
        staying = keeping(schedule, kept)
        try:
            return staying, simulate(graph, staying, budget=budget, machine=machine).figures
        except InvalidScheduleError:
            continue
    return None


def with_host_updates(solver: str, graph: Graph, runs: Sequence[Run]) -> list[Run]:
    """Return the runs with every update in its fastest variant on the CPU; what changes buffers alone stays.

    Raises NotAcceptedError if an update has no such variant.
    """
    chosen: list[Run] = []
    for operation, mode_index in runs:
        fastest = mode_index
        if graph.operations.phase[operation] == Phase.UPDATE and _is_optimizers(graph, operation):
            treatments = variants_on_host(graph, operation)
            if not treatments:
                name = graph.operations.name[operation]
                raise NotAcceptedError(f"{solver} updates weights on the CPU: {name} has no mode on the host")
            fastest = min(treatments)[1]
        chosen.append((operation, fastest))
    return chosen


def _is_optimizers(graph: Graph, operation: int) -> bool:
    return any(graph.tensors.kind[x] != Kind.BUFFER for x in graph.mutate_lists[operation])
