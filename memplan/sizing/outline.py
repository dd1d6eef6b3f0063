"""A way to train without a plan, at all batches of a line: closed forms of its bytes and seconds.

From batch to batch a graph differs in numbers alone, so a schedule has the same steps. Its bytes are sums of
sizes that are straight lines of the batch, its seconds those of kinds of operations times how often each
runs; bytes are the same on all GPUs that run the same operations.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from ..graphs.graph import Graph, Phase
from ..graphs.machines.presets import Preset
from ..planner.addresses.lifetimes import arcs_without_transfers
from ..planner.schedule.schedule import Schedule
from ..profiling.profile.demand_lines import DemandLine
from ..profiling.profile.loops import BLOCK_BYTES, cost_of_adding

_NONE = -1


class Outline:
    """A way's bytes and seconds.

    line: the programs. graph, schedule: the way's at the line's lower end; its tensors begin with the
    program's storages. slower: per operation of the graph, its time relative to the program's.
    """

    def __init__(self, line: DemandLine, graph: Graph, schedule: Schedule, slower: list[float]) -> None:
        operations, self._line = graph.operations, line
        places = {one.name: place for place, one in enumerate(line.program.operations)}
        origins = [places.get(name, _NONE) for name in operations.name]
        self._arcs = arcs_without_transfers(graph, schedule)
        self._sizes, self._workspace = graph.tensors.bytes, operations.workspace
        # An update's workspace is that of its weight, or all copies of the step: the same at every batch.
        origin, is_update = np.array(origins, np.int64), operations.phase == Phase.UPDATE
        self._varying = np.flatnonzero((origin != _NONE) & ~is_update)
        self._kind = line.kind[origin[self._varying]]
        self._counts, (low, high) = self._runs(graph, origins, slower), line.ends
        self._differing = np.flatnonzero(line.bytes(low) != line.bytes(high))

    def _runs(
        self, graph: Graph, origins: list[int], slower: list[float]
    ) -> list[tuple[int, Phase, float, int]]:
        """Return the kinds of runs with their phase, how much slower they are, and how many there are.

        The kind of an addition to a gradient's sum is _NONE less its bytes.
        """
        kinds: list[int] = self._line.kind.tolist()
        phases: list[int] = graph.operations.phase.tolist()
        runs: list[int] = self._arcs.operation.tolist()
        found = Counter[tuple[int, Phase, float]]()
        for run in runs:
            origin = origins[run]
            if origin == _NONE:
                added = int(graph.tensors.bytes[graph.read_lists[run][0]])
                found[_NONE - added, Phase.BACKWARD, 1.0] += 1
            else:
                found[kinds[origin], Phase(phases[run]), slower[run]] += 1
        return [(*key, count) for key, count in found.items()]

    def peak(self, batch: int) -> int:
        """Return the bytes without what cuBLAS keeps."""
        demands = self._line.demands(batch)
        usual = np.array([one.workspace.usual for one in demands], np.int64)
        sizes, workspace = self._sizes.copy(), self._workspace.copy()
        raw = self._line.bytes(batch)[self._differing]
        sizes[self._differing] = -(-raw // BLOCK_BYTES) * BLOCK_BYTES
        workspace[self._varying] = usual[self._kind]
        return self._arcs.peak(sizes, workspace)

    def seconds(self, batch: int, preset: Preset, steps: int) -> float:
        """Return the seconds of an update. steps: its micro-batches, of which the last has the updates."""
        demands, adding = self._line.demands(batch), cost_of_adding(preset)
        last, earlier = [0.0, 0.0], [0.0, 0.0]
        for kind, phase, slower, count in self._counts:
            if kind < 0:
                seconds, launch = adding(_NONE - kind)[0], 0.0
            else:
                cost = demands[kind].cost(preset.gpu, preset.machine.updates, phase)
                seconds, launch = cost.seconds * slower, cost.launch_seconds
            for sums in (last,) if phase == Phase.UPDATE else (last, earlier):
                sums[0] += count * seconds
                sums[1] += count * launch
        # The training thread is a queue of its own: the slower of the two is the period.
        return max(last) + (steps - 1) * max(earlier)
