"""A sequence of runs from what a residency program recomputes, the first runs in traced order.

Between two moments an operation is recomputed just before the first run that needs what it makes. Nothing
says that the result fits the budget, or even that every run finds its inputs: programs look at some moments
only. If it fits, it is as fast as the program's answer, and often optimal.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ....graphs.arrays import Floats
from ....graphs.graph import Graph
from ....graphs.machine import Machine
from ....planner.errors import InvalidScheduleError
from ....planner.schedule.schedule import DEFAULT_MODE, Verb
from ....planner.schedule.sequence import Run, schedule_of
from ....planner.simulator.simulate import simulate
from ...candidates import Candidate
from .moments import Later


@dataclass(frozen=True, eq=False)
class TrialSchedule:
    """A sequence's schedule.

    first_runs: per operation, device bytes while it runs for the first time.
    recomputations: (the latest first run, the operation, bytes) for each recomputation.
    """

    candidate: Candidate
    first_runs: Floats
    recomputations: list[tuple[int, int, int]]


def trial(graph: Graph, later: Later) -> TrialSchedule | None:
    """Build the schedule; None if some run does not find what it needs."""
    try:
        schedule = schedule_of(graph, sequence_of(later))
        replay = simulate(graph, schedule, machine=Machine())
    except InvalidScheduleError:
        return None
    first_runs = np.zeros(len(graph.operations))
    recomputations: list[tuple[int, int, int]] = []
    first = -1
    for step, used in zip(schedule, replay.device_curve.tolist(), strict=True):
        # First runs are in traced order, so a larger number than any before is one.
        if step.verb == Verb.COMPUTE and step.target > first:
            first = step.target
            first_runs[first] = used
        elif step.verb == Verb.COMPUTE:
            recomputations.append((first, step.target, used))
    figures = replay.figures
    return TrialSchedule(Candidate(schedule, figures.time, figures.peak), first_runs, recomputations)


def sequence_of(later: Later) -> list[Run]:
    count = later.runs.shape[1]
    recomputations: list[list[int]] = [[] for _ in range(count + 1)]
    for row in range(1, len(later.starts) + 1):
        here = later.runs[row] - later.runs[row + 1]
        # A fraction of a run is rounded: a schedule runs whole operations.
        for operation in np.flatnonzero(here > 0.5).tolist():
            recomputations[int(later.when[row, operation])].append(operation)
    runs: list[Run] = []
    for first, operations in enumerate(recomputations):
        runs += [(operation, DEFAULT_MODE) for operation in sorted(operations)]
        runs += [(first, DEFAULT_MODE)] if first < count else []
    return runs
