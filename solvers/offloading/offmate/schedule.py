"""Conversion of an answer of O-ILP to runs and offload intervals of whole tensors:
planner/residency/residency.py makes the schedule.

Which tensors are offloaded between two uses follows the answer (absences.py); so does where CPU updates
stand (updates.py). When copies start is left to planner/residency/prefetch_placement.py, operation by
operation, or taken from the answer's steps.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from itertools import accumulate

from ....graphs.arrays import Floats
from ....graphs.graph import Graph
from ....graphs.machine import Memory
from ....planner.residency.residency import Residency, TensorUse
from ....planner.schedule.sequence import Run
from ..layers.absences import uses_of
from ..o_ilp.model import OIlpProgram
from ..o_ilp.round import Choice
from .absences import on_disk, tensor_absences
from .updates import HostUpdate, start_steps


def residence_of(
    graph: Graph, program: OIlpProgram, choice: Choice, x: Floats
) -> tuple[Residency, Residency]:
    """Return the decisions of an answer twice: without slots for transfers, and with the answer's."""
    order = _steps(program, choice, x)
    runs = [run for step in order for run in step]
    starts = [0, *accumulate(len(step) for step in order)]
    uses, _host = uses_of(graph, runs)
    away: dict[TensorUse, Memory] = {}
    back: dict[TensorUse, int] = {}
    leave: dict[TensorUse, int] = {}
    disk = on_disk(graph, program, choice, x)
    for absence in tensor_absences(graph, program, choice, x):
        at = uses.get(absence.item)
        if at:
            index = bisect_left(at, starts[absence.gone])
            last, following = at[index - 1], at[index % len(at)]
            away[absence.item, last] = Memory.DISK if absence.item in disk else Memory.HOST
            back[absence.item, following] = starts[absence.back]
            if absence.out >= 0 and starts[absence.out] > last:
                leave[absence.item, last] = starts[absence.out]
    for position, (operation, mode) in enumerate(runs):
        if graph.on_host(operation, mode):
            for state in disk.intersection(graph.mutate_lists[operation]):
                away[state, position] = Memory.DISK
    plain = Residency(runs, away)
    return plain, replace(plain, offload_slots=leave, prefetch_slots=back)


def _steps(program: OIlpProgram, choice: Choice, x: Floats) -> list[list[Run]]:
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
    behind: dict[int, list[Run]] = {}
    for step, number in start_steps(updates, times):
        behind.setdefault(step, []).append(runs[number])
    for step, these in behind.items():
        order[step][:0] = these
    return order
