"""Conversion of a sequence of operations, with repeats, to a schedule with the deletes of least memory.

A sequence fixes when everything is made. Then each tensor is best deleted right after its last use
before it is made anew: any later only costs memory. Runs that make nothing needed are dropped first.
One backward scan over the sequence, linear in its entries.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Sequence

from ...graphs.graph import Graph
from .schedule import DEFAULT_MODE, Schedule, ScheduleStep, Verb, compute, delete

Run = tuple[int, int]
"""An operation's index and its variant (DEFAULT_MODE, or k for its k-th mode)."""


def in_default_mode(operations: Iterable[int]) -> list[Run]:
    return [(operation, DEFAULT_MODE) for operation in operations]


def runs_of(schedule: Schedule) -> list[Run]:
    """Return a schedule's computations, in order."""
    return [(target, where) for verb, target, where in schedule.rows() if verb == Verb.COMPUTE]


def prune(graph: Graph, runs: Sequence[Run]) -> list[Run]:
    """Return the runs without the repeats that make no contribution needed later."""
    return [run for run, _dead in _needed(graph, runs)]


def schedule_of(graph: Graph, runs: Sequence[Run]) -> Schedule:
    """Return the pruned sequence as a schedule on the device alone, each tensor deleted as early as
    possible."""
    resident: list[bool] = graph.resident.tolist()
    steps: list[ScheduleStep] = []
    for (operation, mode), dead in _needed(graph, runs):
        steps.append(compute(operation, mode))
        # Persistent tensors and the batch are not the schedule's to delete.
        steps.extend(delete(tensor) for tensor in dead if not resident[tensor])
    return Schedule.of(steps)


def _needed(graph: Graph, runs: Sequence[Run]) -> list[tuple[Run, list[int]]]:
    whole = graph.whole_contributions
    need = [0] * len(whole)
    for x in graph.results:
        need[x] = whole[x]
    inputs, always = graph.input_lists.__getitem__, range(len(graph.operations))
    return backward_scan(runs, graph.contributions, inputs=inputs, whole=whole, need=need, always=always)


def backward_scan(
    runs: Sequence[Run],
    made: Callable[[int, int], Sequence[tuple[int, int]]],
    inputs: Callable[[int], Sequence[int]],
    whole: Sequence[int],
    need: list[int] | defaultdict[int, int],
    always: Container[int],
) -> list[tuple[Run, list[int]]]:
    """Return the runs to keep, in order, each with the tensors it touches that nobody needs after it.

    made: of an operation in a variant, pairs (tensor, its contribution as a bit). inputs: of an operation.
    whole: per tensor, all its contributions.
    need: per tensor, the contributions that must be resident: passed in as they are after the runs, left as
    they are before them.
    always: operations whose first run stays, needed or not.
    """
    # Backwards, so that the first run of each operation is what stays in the dict.
    first = {runs[position][0]: position for position in range(len(runs) - 1, -1, -1)}
    kept: list[tuple[Run, list[int]]] = []
    for position in range(len(runs) - 1, -1, -1):
        operation, mode = runs[position]
        contributions = made(operation, mode)
        stays = first[operation] == position and operation in always
        if not stays and not any(need[x] & bit for x, bit in contributions):
            continue
        read = inputs(operation)
        touched = dict.fromkeys([*(x for x, _bit in contributions), *read])
        # Before `need` changes: it still says what the runs after this one need.
        kept.append((runs[position], [x for x in touched if not need[x]]))
        for x, bit in contributions:
            need[x] &= ~bit
        # After the contributions are cleared: a run that reads what it adds to needs it whole before.
        for x in read:
            need[x] = whole[x]
    kept.reverse()
    return kept
