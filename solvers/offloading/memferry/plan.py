"""One way to run an iteration, and all that MemFerry can make of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from math import gcd, inf

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

    def least_on_device(self, *, twice: bool) -> list[Way]:
        """Every layer in host memory all the time, where it can be; the others fetched, twice if allowed."""
        direct = (layer.direct_forward + layer.direct_backward for layer in self.costs)
        otherwise = Way.TWICE if twice else Way.GFGB
        return [Way.DHA if np.isfinite(seconds) else otherwise for seconds in direct]

    def bytes_on_device(self, ways: Sequence[Way]) -> int:
        """Bytes of the weights that are on the device from forward to backward."""
        return sum(
            layer.size for layer, way in zip(self.costs, ways, strict=True) if way in (Way.GFGB, Way.DFGB)
        )

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
            gains.append(max(self.linked.d2h.seconds(size) - made_in, 0.0))
        return [self._gradients[i] for i in kept_gradients(sizes, gains, int(reserve * sum(sizes)))]


def kept_gradients(sizes: Sequence[int], gains: Sequence[float], room: int, units: int = 2000) -> list[int]:
    """GO-MemFerry: indices of the gradients to keep on the device, of at most `room` bytes together.

    A knapsack, solved exactly by the paper's program D[i, j] = max(D[i-1, j], D[i-1, j - s_i] + gain_i). A
    gain (T_GBP - T_CBP, the seconds that a kept gradient saves) may be negative; such a gradient is never
    kept. units: the room in at most so many; sizes are exact where they have a divisor that large, else
    rounded up. O(n · units).
    """
    if room <= 0 or not sizes:
        return []
    unit = max(gcd(*sizes), -(-room // units), 1)
    whole = room // unit
    table = np.zeros((len(sizes) + 1, whole + 1))
    for row, (size, gain) in enumerate(zip(sizes, gains, strict=True), start=1):
        table[row] = table[row - 1]
        slots = -(-size // unit)
        if slots <= whole:
            with_it = table[row - 1, : whole + 1 - slots] + gain
            table[row, slots:] = np.maximum(table[row, slots:], with_it)
    kept: list[int] = []
    left = whole
    for row in range(len(sizes), 0, -1):
        if table[row, left] > table[row - 1, left]:
            kept.append(row - 1)
            left -= -(-sizes[row - 1] // unit)
    return kept[::-1]
