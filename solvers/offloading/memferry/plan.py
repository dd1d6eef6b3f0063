"""One way to run an iteration, and all that MemFerry can make of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from math import inf

import numpy as np

from ....graphs.graph import Graph, Kind, Phase
from ....planner.residence.residence import Residence
from ....planner.residence.transfers import placed
from ....planner.schedule.schedule import Schedule
from ....planner.schedule.sequence import Run
from ....planner.simulator.simulate import Figures
from ...candidates import peak_without
from ...links import LinkedMachine
from .estimate import Way
from .gradients import kept_gradients
from .layers import Costs, WeightLayer, costs_of, direct_run, weight_layers
from .schedule import memferry_residence, memferry_schedule, with_host_updates


class Plan:
    """runs: of an iteration, in modes on the device. checkpoint: some of them repeat forward operations."""

    def __init__(
        self,
        solver: str,
        graph: Graph,
        linked: LinkedMachine,
        runs: Sequence[Run],
        *,
        checkpoint: bool = False,
        reserve: float = 0.0,
    ) -> None:
        self.graph, self.linked, self.checkpoint = graph, linked, checkpoint
        self.plain = list(runs)
        self.runs = with_host_updates(solver, graph, runs)
        self.layers: list[WeightLayer] = weight_layers(graph, self.runs)
        self.costs: list[Costs] = costs_of(graph, self.runs, self.layers, linked.h2d)
        self.kept = self._kept(reserve)

    @cached_property
    def beside(self) -> int:
        """Bytes on the device beside weights and states, gradients that are kept included."""
        sizes = self.graph.tensors.bytes
        moved = np.isin(self.graph.tensors.kind, (Kind.PARAMETER, Kind.OPTIMIZER_STATE))
        return peak_without(self.graph, self.plain, np.flatnonzero(moved)) + int(sizes[self.kept].sum())

    @cached_property
    def computing(self) -> float:
        """Seconds of all computations but updates, each in the faster way: no choice takes less."""
        seconds = 0.0
        for run in self.runs:
            if self.graph.operations.phase[run[0]] != Phase.UPDATE:
                ways = [run, direct_run(self.graph, run) or run]
                seconds += min(self.graph.seconds(*way) for way in ways)
        return seconds

    def all_in(self, way: Way) -> list[Way]:
        return [way] * len(self.costs)

    def thriftiest(self, *, twice: bool) -> list[Way]:
        """Every layer in host memory all the time, where it can be; the others fetched, twice if allowed."""
        direct = (layer.direct_forward + layer.direct_backward for layer in self.costs)
        otherwise = Way.TWICE if twice else Way.GFGB
        return [Way.DHA if np.isfinite(seconds) else otherwise for seconds in direct]

    def on_device(self, ways: Sequence[Way]) -> int:
        """Bytes of the weights that are on the device from forward to backward."""
        stay = (Way.GFGB, Way.DFGB)
        return sum(layer.size for layer, way in zip(self.costs, ways, strict=True) if way in stay)

    def schedule(self, ways: Sequence[Way], budget: int) -> tuple[Schedule, Figures] | None:
        """The fastest that is found; None where none fits."""
        return memferry_schedule(self.graph, self.linked.machine, budget, self.residence(ways), self.kept)

    def quick_seconds(self, ways: Sequence[Way], budget: int) -> float:
        """Simulated with every fetch as early as memory allows; ∞ where that does not fit."""
        found = placed(self.graph, self.linked.machine, budget, self.residence(ways), (inf,))
        return found[1].time if found else inf

    def other_ways(self, ways: Sequence[Way], *, twice: bool) -> Iterator[tuple[int, Way]]:
        """Each layer, from the first, with each way that it could be used in and is not."""
        for number, layer in enumerate(self.costs):
            possible = [Way.GFGB, Way.TWICE] if twice else [Way.GFGB]
            if np.isfinite(layer.direct_forward):
                possible += [Way.DFGB] + [Way.DHA] * bool(np.isfinite(layer.direct_backward))
            yield from ((number, way) for way in possible if way != ways[number])

    def residence(self, ways: Sequence[Way]) -> Residence:
        return memferry_residence(self.graph, self.runs, self.layers, ways, self._gradients)

    @cached_property
    def _gradients(self) -> list[int]:
        kind = self.graph.tensors.kind
        return np.flatnonzero(kind == Kind.PARAMETER_GRADIENT).tolist()

    def _kept(self, reserve: float) -> list[int]:
        """GO-MemFerry's gradients on the device. T_GBP, which a profile would say, is here what writing the
        gradient over the link takes, where that is longer than the computation that makes it."""
        sizes = [int(size) for size in self.graph.tensors.bytes[self._gradients]]
        makers = self.graph.producers
        gains: list[float] = []
        for x, size in zip(self._gradients, sizes, strict=True):
            made_in = sum(float(self.graph.operations.time[o]) for o in makers[x].tolist())
            gains.append(max(size / self.linked.d2h - made_in, 0.0))
        return [self._gradients[i] for i in kept_gradients(sizes, gains, int(reserve * sum(sizes)))]
