"""Lifetimes of what a rank's device has when FSDP2 itself runs a policy, with flat buffers for units.

    forward of u      A(u) is allocated, then A(u − 1) freed; W(u) is copied out of A(u), and freed at u's end
    backward of u     W(u) is copied out of A(u), which is freed; then A(u − 1) is gathered
    its end           W(u) and G(u + 1) are freed; gradients are copied into G(u) and freed; their shares stay

A: the buffer that is gathered, and for a moment the casts of this rank's shares if they have another dtype.
W: the weights. G: the buffer that is scattered, in the dtype in which ranks sum up gradients.

Allocations are in the order in which the CPU issues them, as PyTorch's allocator counts them. Before each
operation of a schedule there are ticks for the end of one unit and the start of another. The root unit stays
gathered, and its gradients are scattered last. Results that selective checkpoints keep stay until backward
reaches their layer, even if nothing reads them.

Reference: torch.distributed.fsdp of PyTorch 2.13: FSDPParamGroup, foreach_all_gather, foreach_reduce.
Linear in the schedule but for one sort.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....graphs.arrays import Ints
from ....graphs.graph import Graph, Kind, Phase
from ....graphs.machine import Peers
from ....planner.addresses.lifetimes import WORKSPACE, Lifetimes, lifetimes_without_transfers
from ....planner.schedule.schedule import Schedule, Verb
from ...recomputation.checkpointing.layer_checkpoint import numbered
from .policies import ROOT, saved_results, unit_of

GATHERED, SCATTERED = WORKSPACE - 1, WORKSPACE - 2
"""Rows of what FSDP2 allocates on its streams: buffers for gathers; what scatters return."""

_TICKS = 5
_COPY_IN, _SCATTER, _GATHER, _COPY_OUT, _RUN = range(_TICKS)
"""Ticks of a step: the end of the unit before it, the start of the unit that it begins, the operation."""


def unit_lifetimes(graph: Graph, schedule: Schedule) -> Lifetimes:
    """Compute what is on the device, in ticks, with FSDP2's buffers in place of the planned full copies.

    graph: of sharded training, whose machine has the network. schedule: a valid one, of a policy.
    """
    return _Rank(graph, schedule).lifetimes()


def unit_peak(graph: Graph, schedule: Schedule) -> int:
    """Return the most bytes that FSDP2 has on a rank's device, workspaces of operations included."""
    return int(unit_lifetimes(graph, schedule).live().max(initial=0))


def workspace_by_tick(graph: Graph, schedule: Schedule, workspace: Ints) -> Ints:
    """Return bytes of workspace per tick. workspace: per operation."""
    local = _without_spread(graph, schedule)
    runs = np.flatnonzero(local.verbs == Verb.COMPUTE)
    found = np.zeros((len(local) + 1) * _TICKS, np.int64)
    found[runs * _TICKS + _RUN] = workspace[local.targets[runs]]
    return found


def _without_spread(graph: Graph, schedule: Schedule) -> Schedule:
    """Return the steps that compute, and those that delete what is not spread."""
    computes, deletes = schedule.verbs == Verb.COMPUTE, schedule.verbs == Verb.DELETE
    # Targets of computations are operations: they are no tensors' numbers.
    deletes[deletes] = ~graph.spread[schedule.targets[deletes]]
    kept = computes | deletes
    return Schedule(schedule.verbs[kept], schedule.targets[kept], schedule.wheres[kept], schedule.initial)


@dataclass
class _Unit:
    """Spread tensors of a unit, and the steps that run it.

    forward, backward: steps of its operations, in order. regathered: whether backward gathers it once more.
    """

    weights: list[int] = field(default_factory=list[int])
    gradients: list[int] = field(default_factory=list[int])
    forward: list[int] = field(default_factory=list[int])
    backward: list[int] = field(default_factory=list[int])
    regathered: bool = False


class _Rank:
    """One rank that runs a policy's schedule.

    local: its steps without spread tensors. runs: those that compute. backward: the step at which backward
    begins; the number of steps if there is none. rows: of spread tensors, (tensor, bytes, start, end).
    """

    def __init__(self, graph: Graph, schedule: Schedule) -> None:
        self.graph, self.local = graph, _without_spread(graph, schedule)
        peers = graph.machine and graph.machine.links.peers
        assert peers is not None, "a sharded graph names its network"
        self.peers: Peers = peers
        self.runs = np.flatnonzero(self.local.verbs == Verb.COMPUTE)
        self.operations = self.local.targets[self.runs]
        self.phases = graph.operations.phase[self.operations]
        begins = self.runs[self.phases == Phase.BACKWARD]
        self.backward = int(begins[0]) if len(begins) else len(self.local)
        gathered = schedule.targets[schedule.verbs == Verb.PREFETCH]
        self.units = self._units(np.bincount(gathered, minlength=len(graph.tensors)) > 1)
        self.rows: list[tuple[int, int, int, int]] = []

    def lifetimes(self) -> Lifetimes:
        rows, ends = self._local_rows(), self._late_ends()
        first = min(self.graph.tensors.spread)
        self.rows.append((first, self.graph.share_bytes, 0, self._tick(len(self.local) + 1)))
        self._pass_forward()
        self._pass_backward(ends)
        for row, x in enumerate(rows.tensor.tolist()):
            if x in ends:
                rows.end[row] = max(int(rows.end[row]), ends[x])
        spread = np.array([row for row in self.rows if row[1] and row[2] < row[3]], np.int64).reshape(-1, 4)
        columns = (rows.tensor, rows.size, rows.start, rows.end)
        tensor, size, start, end = map(np.concatenate, zip(columns, spread.T, strict=True))
        return Lifetimes(tensor, size, start, end, rows.steps).in_order()

    def _tick(self, step: int, tick: int = 0) -> int:
        return step * _TICKS + tick

    def _after(self, step: int) -> int:
        """Return the next step that computes: what ends with this one has been deleted until then."""
        place = int(np.searchsorted(self.runs, step, side="right"))
        return int(self.runs[place]) if place < len(self.runs) else len(self.local)

    def _units(self, twice: NDArray[np.bool_]) -> dict[str, _Unit]:
        """Return the units with weights. twice: per tensor, whether it is gathered twice."""
        graph, units = self.graph, defaultdict[str, _Unit](_Unit)
        for x in sorted(graph.tensors.spread):
            unit = units[unit_of(graph, x)]
            if graph.tensors.kind[x] == Kind.PARAMETER:
                unit.weights.append(x)
                unit.regathered |= bool(twice[x])
            elif graph.tensors.kind[x] == Kind.PARAMETER_GRADIENT:
                unit.gradients.append(x)
        for step, operation, phase in zip(
            *map(_listed, (self.runs, self.operations, self.phases)), strict=True
        ):
            # The root module is around all others.
            names = {ROOT, numbered(graph.operations.layer[operation])} if phase != Phase.UPDATE else ()
            for unit in (units[name] for name in names if name in units):
                (unit.forward if step < self.backward else unit.backward).append(step)
        return {name: unit for name, unit in units.items() if unit.weights and unit.forward}

    def _local_rows(self) -> Lifetimes:
        """Return the lifetimes of what is not spread, in ticks."""
        found = lifetimes_without_transfers(self.graph, self.local)
        spread = np.append(self.graph.spread, False)  # for WORKSPACE, the last
        tensor, size, start, end, steps = found.of(~spread[found.tensor])
        resident = np.append(self.graph.resident, False)[tensor] & (start == 0)
        ends = np.where(end == steps, (steps + 1) * _TICKS, end * _TICKS)
        runs = start * _TICKS + _RUN
        start = np.where(resident, 0, runs)
        return Lifetimes(
            tensor, size, start, np.where(tensor == WORKSPACE, runs + 1, ends), (steps + 1) * _TICKS
        )

    def _late_ends(self) -> dict[int, int]:
        """Return the tick at which tensors end that FSDP2, or a checkpoint, keeps for longer than a plan."""
        graph, ends = self.graph, dict[int, int]()
        counts = np.bincount(self.operations, minlength=len(graph.operations))
        saved = defaultdict[str, list[int]](list)
        for operation in saved_results(graph):
            saved[numbered(graph.operations.layer[operation])].append(operation)
        for name, kept in saved.items():
            unit = self.units.get(name)
            if unit is None or not unit.backward or counts[kept].max() > 1:
                continue
            if counts[self.operations[np.searchsorted(self.runs, unit.forward)]].max() > 1:
                for operation in kept:
                    writes = graph.operations.writes[operation].tolist()
                    ends |= dict.fromkeys(writes, self._tick(unit.backward[0], _RUN))
        return ends

    def _pass_forward(self) -> None:
        # The root comes first, even if a layer begins with the same operation.
        units = sorted(self.units.items(), key=lambda one: (one[1].forward[0], one[0] != ROOT))
        starts = [unit.forward[0] for _name, unit in units]
        last = max(
            (unit.backward[-1] for unit in self.units.values() if unit.backward), default=self.backward
        )
        for (_name, unit), start, following in zip(units, starts, [*starts[1:], self.backward], strict=True):
            full, casts = self._gathered_bytes(unit)
            copied = self._tick(start, _COPY_OUT)
            self.rows.append((GATHERED, full, self._tick(start, _GATHER), self._tick(following, _COPY_OUT)))
            self.rows.append((GATHERED, casts, self._tick(start, _GATHER), copied))
            until = unit.forward[-1] if unit.regathered else max(unit.backward, default=last)
            self.rows.append((unit.weights[0], full, copied, self._tick(self._after(until))))

    def _pass_backward(self, ends: dict[int, int]) -> None:
        """Add the rows of backward: weights gathered once more, then gradients.

        ends: per tensor the tick at which it ends, to which gradients of this rank's batch are added.
        """
        units = [(name, unit) for name, unit in self.units.items() if unit.backward]
        units.sort(key=lambda one: (one[1].backward[0], one[0] != ROOT))
        for number, (_name, unit) in enumerate(units):
            start, end = unit.backward[0], self._tick(self._after(unit.backward[-1]))
            if not unit.regathered:
                continue
            full, casts = self._gathered_bytes(unit)
            # In the backward pass of the unit before it; the first unit has none.
            before = self._tick(units[number - 1][1].backward[0], _COPY_OUT) if number else self._tick(start)
            copied = self._tick(start, _GATHER)
            self.rows.append((GATHERED, full, before, copied + 1))
            self.rows.append((GATHERED, casts, before, before + 1))
            self.rows.append((unit.weights[0], full, copied, end))
        ending = [(name, unit) for name, unit in units if unit.gradients]
        ending.sort(key=lambda one: (one[1].backward[-1], one[0] == ROOT))
        copies = [
            self._tick(self._after(unit.backward[-1]), _GATHER if name == ROOT else _COPY_IN)
            for name, unit in ending
        ]
        after = [*copies[1:], copies[-1] + 2] if copies else []
        for (_name, unit), copied, freed in zip(ending, copies, after, strict=True):
            self._scatter(unit, copied, freed, ends)

    def _scatter(self, unit: _Unit, copied: int, freed: int, ends: dict[int, int]) -> None:
        """Add the gradients of a unit. copied, freed: ticks of the buffer that is scattered."""
        graph, peers, sizes = self.graph, self.peers, self.graph.tensors.bytes
        full = int(sizes[unit.gradients].sum())
        shares = sum(graph.tensors.share_of(x, peers) for x in unit.gradients)
        received = sum(peers.share_of(int(sizes[x])) for x in unit.gradients)
        scattered = copied + 1
        self.rows.append((unit.gradients[0], full, copied, freed))
        self.rows.append((SCATTERED, shares, scattered, self._tick(len(self.local) + 1)))
        if received != shares:
            # What ranks sum up in 16 bits is then cast to the dtype of the shares.
            self.rows.append((SCATTERED, received, scattered, scattered + 1))
        for x in unit.gradients:
            producers = graph.producers[x].tolist()
            local = graph.tensor_index.get(f"{graph.tensors.name[x]}.local")
            if local is not None and local in graph.read_lists[producers[-1]]:
                ends[local] = scattered
                continue
            first = min(self.runs[np.isin(self.operations, producers)].tolist())
            self.rows.append((x, int(sizes[x]), self._tick(first, _RUN), scattered))

    def _gathered_bytes(self, unit: _Unit) -> tuple[int, int]:
        """Return the bytes of a unit's weights, and those of the casts of this rank's shares of them."""
        tensors, peers = self.graph.tensors, self.peers
        parts = {x: peers.share_of(int(tensors.bytes[x])) for x in unit.weights}
        casts = sum(part for x, part in parts.items() if tensors.share_of(x, peers) != part)
        return int(tensors.bytes[unit.weights].sum()), casts


def _listed(column: NDArray[Any]) -> list[int]:
    return column.tolist()
