"""Conversion of an answer of O-ILP to runs and offload intervals of whole tensors:
planner/residency/residency.py makes the schedule.

Which tensors are offloaded between two uses follows the answer (offload_intervals.py). When copies start is
left to planner/residency/prefetch_placement.py, operation by operation, or taken from the answer's steps.

Updates on the CPU run by their deadlines, among those whose gradient is on the host. A weight updated there
is needed next by the first step that uses it in the next iteration (f_w); blocks with a lower number have
less time between their backward and their next forward (thesis, 4.6). Earliest deadline first, without
preemption, over the steps' times as the program has them; the CPU's queue runs on into the next iteration,
so the second of two iterations is read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import accumulate

from ....graphs.arrays import Floats
from ....graphs.graph import Graph
from ....graphs.machine import Memory
from ....planner.residency.residency import Residency, TensorUse
from ....planner.schedule.sequence import Run
from ..layers.offload_intervals import uses_of
from ..o_ilp.model import OIlpProgram
from ..o_ilp.round import IntegerSolution
from .offload_intervals import on_disk, tensor_intervals


def residency_of(
    graph: Graph, program: OIlpProgram, choice: IntegerSolution, x: Floats
) -> tuple[Residency, Residency]:
    """Return the decisions of an answer twice: without slots for transfers, and with the answer's."""
    order = _steps(program, choice, x)
    runs = [run for step in order for run in step]
    starts = [0, *accumulate(len(step) for step in order)]
    uses, _host = uses_of(graph, runs)
    offloaded: dict[TensorUse, Memory] = {}
    back: dict[TensorUse, int] = {}
    leave: dict[TensorUse, int] = {}
    disk = on_disk(graph, program, choice, x)
    for interval in tensor_intervals(graph, program, choice, x):
        at = uses.get(interval.item)
        if at:
            # A cycle: before the first use comes the last one (index −1), after that the first.
            index = bisect_left(at, starts[interval.gone])
            last, following = at[index - 1], at[index % len(at)]
            offloaded[interval.item, last] = Memory.DISK if interval.item in disk else Memory.HOST
            back[interval.item, following] = starts[interval.back]
            if interval.out >= 0 and starts[interval.out] > last:
                leave[interval.item, last] = starts[interval.out]
    for position, (operation, mode) in enumerate(runs):
        if graph.on_host(operation, mode):
            # A CPU update brings its states from the disk: they return after it.
            for state in disk.intersection(graph.mutate_lists[operation]):
                offloaded[state, position] = Memory.DISK
    residency = Residency(runs, offloaded)
    return residency, replace(residency, offload_slots=leave, prefetch_slots=back)


def _steps(program: OIlpProgram, choice: IntegerSolution, x: Floats) -> list[list[Run]]:
    """Return the runs of every step, and of one more step after all."""
    iteration, blocks = program.iteration, range(len(program.choice))
    chosen = [iteration.blocks[b][choice.options[b]] for b in blocks]
    order = [list(option.forward) for option in chosen]
    order += [list(option.backward) for option in reversed(chosen)]
    order += [list(chunk) for chunk in iteration.after]
    order.append([])
    updates: list[HostUpdate] = []
    runs: list[Run] = []
    for stocks, hosted in zip(program.weights, choice.hosted, strict=True):
        for number in sorted(hosted):
            parcel = stocks.group.parcels[number]
            assert parcel.host_run is not None
            assert parcel.update is not None
            deadline = (stocks.origin + stocks.window) % stocks.steps
            updates.append(HostUpdate(stocks.origin, deadline, parcel.host_seconds))
            runs.append(parcel.host_run)
            order[stocks.origin].remove(parcel.update)
    times = [step.value(x) * program.second for step in program.time]
    later: dict[int, list[Run]] = {}
    for step, number in start_steps(updates, times):
        later.setdefault(step, []).append(runs[number])
    for step, these in later.items():
        order[step][:0] = these
    return order


@dataclass(frozen=True)
class HostUpdate:
    """An update on the CPU.

    release: the step after which its gradient can be on the host. deadline: the step of the next iteration
    that needs the weight. seconds: on the CPU.
    """

    release: int
    deadline: int
    seconds: float


def start_steps(updates: Sequence[HostUpdate], times: Sequence[float]) -> list[tuple[int, int]]:
    """Return pairs (step, number of the update) in the order in which they start.

    Step `len(times)`: after all.
    """
    starts = [0.0, *accumulate(times)]
    now = 0.0
    order: list[tuple[int, int]] = []
    # The second iteration starts with the queue that the first one leaves.
    for _iteration in range(2):
        order = []
        waiting: list[tuple[int, int]] = []
        by_release = sorted(range(len(updates)), key=lambda u: updates[u].release, reverse=True)
        while by_release or waiting:
            if not waiting:
                now = max(now, starts[updates[by_release[-1]].release + 1])
            while by_release and starts[updates[by_release[-1]].release + 1] <= now:
                number = by_release.pop()
                heappush(waiting, (updates[number].deadline, number))
            if waiting:
                _deadline, number = heappop(waiting)
                step = next((t for t in range(len(times)) if now < starts[t + 1]), len(times))
                order.append((max(step, updates[number].release + 1), number))
                now += updates[number].seconds
        # Seconds that the queue runs on into the next iteration.
        now = max(0.0, now - starts[-1])
    steps = 0
    placed: list[tuple[int, int]] = []
    for step, number in order:
        # The queue is first in, first out: nothing starts before what is ahead of it.
        steps = max(steps, step)
        placed.append((steps, number))
    return placed
