"""The residencies that need the least memory: whatever the next run does not need is offloaded.

Blocks run as thrifty as they can, all updates are on the CPU or none is, and every tensor leaves the device
between two uses that are not neighbours, operation by operation. What the simulator then asks for is the
smallest budget that Offmate can reach, and the last resort if the program's answers don't fit.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from ....graphs.graph import Graph
from ....graphs.machine import Memory
from ....planner.residency.lifetimes import find_lifetimes, position_of
from ....planner.residency.residency import Residency, TensorUse
from ....planner.schedule.sequence import Run
from ..o_ilp.iteration import Iteration, Option


def min_memory_residencies(graph: Graph, iteration: Iteration, *, disk: bool) -> Iterator[Residency]:
    """Yield residencies that offload to the host, and to the disk if there is one.

    All updates on the CPU come first, then none; blocks that keep least first, then those that keep most.
    """
    for hosted in (True, False):
        for keeping in (False, True):
            runs = _runs(iteration, hosted=hosted, keeping=keeping)
            for memory in (Memory.HOST, Memory.DISK)[: 1 + disk]:
                yield Residency(runs, _offloaded_by(graph, runs, memory))


def _runs(iteration: Iteration, *, hosted: bool, keeping: bool) -> list[Run]:
    pick = min if not keeping else max

    def kept(option: Option) -> int:
        return option.kept_bytes

    chosen = [pick(options, key=kept) for options in iteration.blocks]
    order = [run for option in chosen for run in option.forward]
    order += [run for option in reversed(chosen) for run in option.backward]
    order += [run for chunk in iteration.after for run in chunk]
    if not hosted:
        return order
    parcels = (parcel for group in iteration.groups for parcel in group.parcels)
    on_host = {p.update: p.host_run for p in parcels if p.update is not None and p.host_run is not None}
    return [on_host.get(run, run) for run in order]


def _offloaded_by(graph: Graph, runs: list[Run], memory: Memory) -> dict[TensorUse, Memory]:
    """Return every use whose next one is not the next run's as an offload; for a result, its last use too."""
    offloaded: dict[TensorUse, Memory] = {}
    for lifetime in find_lifetimes(graph, runs):
        if lifetime.survives and graph.resident[lifetime.tensor]:  # the batch
            continue
        positions = [position_of(use.moment) for use in lifetime.uses]
        if lifetime.persistent and positions:
            positions.append(positions[0] + len(runs))
        if lifetime.survives:
            positions.append(len(runs) + 1)
        offloaded.update(
            ((lifetime.tensor, position), memory)
            for position, following in pairwise(positions)
            if following > position + 1
        )
    return offloaded
