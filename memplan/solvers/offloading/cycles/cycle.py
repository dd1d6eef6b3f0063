"""A training graph as one cycle of runs with weights that may be offloaded between uses.

    run      0    1    2    3    4    5    6    7  │ 0 …
             F1   F2   F3   loss B3   B2   B1      │ F1
    weight 2      use ───(2,1)───────  use ─────(2,0)────▶ use of the next iteration

All operations run once, in traced order. Any persistent tensor is a weight here (optimizer states and
buffers too), and any stretch of the cycle between two of its uses is an offload interval: a chain of layers
has two for each weight, a weight read by several layers more, one that only its update reads has one. So the
paper's instance is read from every graph, whatever a layer consists of.

A weight's version begins with the run that changes it. One copy to the host serves all intervals of a
version; a weight that nothing changes (frozen) needs none at all.

| paper       | here                                                        |
| u_o         | seconds of a run                                            |
| M_o         | need + the weights that the run uses, bytes                 |
| |w_i|       | size; offload_seconds, prefetch_seconds: |w_i| / β          |
| (i, 1)      | the offload interval between F_i and B_i                    |
| (i, 0)      | the offload interval between B_i and F_i                    |
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....graphs.graph import Graph
from ....graphs.machine import Machine
from ....planner.baseline import baseline_schedule
from ....planner.schedule.schedule import Verb
from ....planner.simulator.simulate import simulate
from ...candidates import device_limit
from ...problem import NotAcceptedError, Problem

FROZEN = -1
"""The version of a weight that nothing changes."""


class WeightInterval(NamedTuple):
    """An offload interval of a weight, between two uses.

    It goes from the run `after`, a use of the weight, to its next use, the run `before` (of the next
    iteration if that is no later). version: its number in `Cycle.changed_by`, or FROZEN.
    """

    weight: int
    after: int
    before: int
    version: int


@dataclass(frozen=True, eq=False)
class Cycle:
    """A graph on a machine as a cycle of runs, with its weights and their offload intervals.

    seconds: per run. need: bytes on the device while it runs, without any weight; rest: likewise after it.
    idle: bytes between two iterations. deaths: tensors deleted after a run.
    tensors, sizes, offload_seconds, prefetch_seconds: per weight its tensor, bytes, seconds to the host and
        back.
    unused: persistent tensors of no run, always on the host.
    changed_by: per version the weight and the run that begins it.
    """

    graph: Graph
    limit: int
    host_limit: int | None
    machine: Machine
    seconds: Sequence[float]
    need: Sequence[int]
    rest: Sequence[int]
    idle: int
    deaths: Sequence[Sequence[int]]
    tensors: Sequence[int]
    sizes: Sequence[int]
    offload_seconds: Sequence[float]
    prefetch_seconds: Sequence[float]
    uses: Sequence[Sequence[int]]
    unused: Sequence[int]
    changed_by: Sequence[tuple[int, int]]
    intervals: Sequence[WeightInterval]

    @property
    def runs(self) -> int:
        return len(self.seconds)

    @cached_property
    def used_by(self) -> list[list[int]]:
        """Per run the weights that it reads or changes."""
        rows: list[list[int]] = [[] for _ in range(self.runs)]
        for weight, uses in enumerate(self.uses):
            for run in uses:
                rows[run].append(weight)
        return rows

    @cached_property
    def covered_seconds(self) -> list[float]:
        """Return per offload interval the seconds of the runs between its two uses."""
        until = [*accumulate(self.seconds, initial=0.0)]
        return [
            until[a.before] - until[a.after + 1] + until[-1] * (a.before <= a.after) for a in self.intervals
        ]

    def offloaded(self, chosen: Iterable[int]) -> list[int]:
        """Return per run the bytes of offloaded weights, if these intervals are chosen."""
        change = [0] * (self.runs + 1)
        for number in chosen:
            interval, size = self.intervals[number], self.sizes[self.intervals[number].weight]
            change[interval.after + 1] += size
            change[interval.before] -= size
            # Around the iteration's end: the weight is offloaded from the first run on, too.
            if interval.before <= interval.after:
                change[0] += size
        return [*accumulate(change[:-1])]

    @property
    def unused_bytes(self) -> int:
        return sum(int(self.graph.tensors.bytes[x]) for x in self.unused)

    @property
    def plain_peak(self) -> int:
        """Return the peak in bytes if no weight ever leaves."""
        return max((self.idle, *self.need)) + sum(self.sizes) + self.unused_bytes

    @property
    def least_budget(self) -> int:
        """Return the bytes with which every weight can be offloaded whenever no run uses it: no order needs
        less."""
        offloaded = self.offloaded(range(len(self.intervals)))
        least = max((need - gone for need, gone in zip(self.need, offloaded, strict=True)), default=self.idle)
        return least + sum(self.sizes)

    def covered(self, interval: WeightInterval) -> list[range]:
        """Return the runs between the two uses, as one or two ranges within the iteration."""
        if interval.after < interval.before:
            return [range(interval.after + 1, interval.before)]
        return [range(interval.after + 1, self.runs), range(interval.before)]


def cycle_of(solver: str, problem: Problem) -> Cycle:
    """Return the cycle of a problem. Raises NotAcceptedError: no links, or nothing that could be moved."""
    graph = problem.graph
    machine = problem.machine or graph.machine or Machine()
    d2h, h2d = machine.links.d2h, machine.links.h2d
    if d2h is None or h2d is None:
        raise NotAcceptedError(
            f"{solver} needs a machine with links d2h and h2d: it moves weights between device and host"
        )
    sizes = graph.tensors.bytes.tolist()
    uses = _uses(graph)
    tensors = [x for x, runs in uses.items() if runs and sizes[x]]
    unused = [x for x, runs in uses.items() if not runs and sizes[x]]
    if not tensors and not unused:
        stay = ", as all stay on the device" if graph.stays[graph.persistent].any() else ""
        raise NotAcceptedError(f"{solver} moves weights; {graph.name} has none{stay}")
    changed_by = [
        (weight, run) for weight, x in enumerate(tensors) for run in sorted(graph.mutators[x].tolist())
    ]
    need, rest, deaths = _device_bytes(graph)
    return Cycle(
        graph=graph,
        limit=device_limit(problem),
        host_limit=_host_limit(machine, sum(sizes[x] for x in unused)),
        machine=machine,
        seconds=graph.operations.time.tolist(),
        need=need,
        rest=rest,
        idle=int(graph.tensors.bytes[graph.resident & ~_moving(graph)].sum()),
        deaths=deaths,
        tensors=tensors,
        sizes=[sizes[x] for x in tensors],
        offload_seconds=[d2h.seconds(sizes[x]) for x in tensors],
        prefetch_seconds=[h2d.seconds(sizes[x]) for x in tensors],
        uses=[uses[x] for x in tensors],
        unused=unused,
        changed_by=changed_by,
        intervals=list(_intervals([uses[x] for x in tensors], changed_by, len(graph.operations))),
    )


def _host_limit(machine: Machine, unused: int) -> int | None:
    """Return the bytes of the host for the weights that move; below zero if the unused ones alone do not fit.

    All that move cross the links, which limits them to pinned memory; the unused ones do not.
    """
    rest = None if machine.host_capacity is None else machine.host_capacity - unused
    return min((limit for limit in (rest, machine.pinned) if limit is not None), default=None)


def _moving(graph: Graph) -> NDArray[np.bool_]:
    """Return per tensor whether it is persistent and may leave the device."""
    return graph.persistent & ~graph.stays


def _uses(graph: Graph) -> dict[int, list[int]]:
    """Return per persistent tensor that may leave the operations that read or change it."""
    uses: dict[int, list[int]] = {x: [] for x in np.flatnonzero(_moving(graph)).tolist()}
    for operation, inputs in enumerate(graph.input_lists):
        for x in inputs:
            if x in uses:
                uses[x].append(operation)
    return uses


def _intervals(
    uses: Sequence[Sequence[int]], changed_by: Sequence[tuple[int, int]], runs: int
) -> list[WeightInterval]:
    """Return the intervals between neighbouring uses with a run between them, around the iteration's end
    too."""
    versions: dict[int, list[tuple[int, int]]] = {}
    for version, (weight, run) in enumerate(changed_by):
        versions.setdefault(weight, []).append((run, version))
    found: list[WeightInterval] = []
    for weight, positions in enumerate(uses):
        for after, before in zip(positions, [*positions[1:], positions[0]], strict=True):
            # No run in between, nothing to gain. The only use of a weight is its own next one, with all other
            # runs between.
            if (before - after - 1) % runs == 0:
                continue
            begun = versions.get(weight, [])
            version = FROZEN
            if begun:
                # The last change up to the interval's start; before the first, what the iteration before has
                # left.
                earlier = [v for run, v in begun if run <= after]
                version = earlier[-1] if earlier else begun[-1][1]
            found.append(WeightInterval(weight, after, before, version))
    return found


def _device_bytes(graph: Graph) -> tuple[list[int], list[int], list[list[int]]]:
    """Return need, rest and deaths of the baseline, without the persistent tensors that may leave."""
    schedule = baseline_schedule(graph)
    curve = simulate(graph, schedule, machine=Machine()).device_curve
    # The baseline keeps all persistent tensors throughout, so they are a constant in its curve.
    curve = (curve - int(graph.tensors.bytes[_moving(graph)].sum())).tolist()
    need: list[int] = []
    rest: list[int] = []
    deaths: list[list[int]] = []
    for (verb, target, _where), level in zip(schedule.rows(), curve, strict=True):
        if verb == Verb.COMPUTE:
            need.append(level)
            # Until the deletes that follow it, a run leaves all but its workspace.
            rest.append(level - int(graph.operations.workspace[target]))
            deaths.append([])
        else:
            rest[-1] = level
            deaths[-1].append(target)
    return need, rest, deaths
