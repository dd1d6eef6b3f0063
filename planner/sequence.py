"""From a sequence of operations, with repeats, to a schedule with the deletes that cost least memory.

A sequence fixes when everything is made. Then each tensor is best deleted right after its last use
before it is made anew: any later only costs memory. Runs that make nothing needed are dropped first.
One backward scan over the sequence, linear in its entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..graphs.graph import Graph
from .schedule import PLAIN, Schedule, Step, compute, delete

Run = tuple[int, int]
"""An operation's index and its mode (PLAIN, or k for its k-th mode)."""


def in_plain_mode(operations: Iterable[int]) -> list[Run]:
    return [(operation, PLAIN) for operation in operations]


def prune(graph: Graph, runs: Sequence[Run]) -> list[Run]:
    """The runs without the repeats that make no contribution needed later."""
    return [run for run, _deletes in _needed(graph, runs)]


def schedule_of(graph: Graph, runs: Sequence[Run]) -> Schedule:
    """The pruned sequence as a schedule on the device alone, each tensor deleted as early as possible."""
    steps: list[Step] = []
    for (operation, mode), dead in _needed(graph, runs):
        steps.append(compute(operation, mode))
        steps.extend(delete(tensor) for tensor in dead)
    return Schedule.of(steps)


def _needed(graph: Graph, runs: Sequence[Run]) -> list[tuple[Run, list[int]]]:
    """The runs to keep, each with the tensors that are dead after it.

    `need[x]` is, at every point of the backward scan, the set of contributions to tensor x (bits) that
    some later run reads and that no run in between has made.
    """
    whole = graph.whole_contributions
    resident = graph.resident.tolist()
    reads, mutates = graph.read_lists, graph.mutate_lists
    need = [0] * len(whole)
    for tensor in graph.results:
        need[tensor] = whole[tensor]
    first = _first_positions(runs, len(graph.operations))

    kept: list[tuple[Run, list[int]]] = []
    for position in range(len(runs) - 1, -1, -1):
        operation, mode = runs[position]
        made = graph.contributions(operation, mode)
        if position != first[operation] and not any(need[x] & bit for x, bit in made):
            continue
        inputs = reads[operation] + mutates[operation]
        touched = dict.fromkeys([x for x, _bit in made] + inputs)
        kept.append((runs[position], [x for x in touched if not need[x] and not resident[x]]))
        for x, bit in made:
            need[x] &= ~bit
        for x in inputs:
            need[x] = whole[x]
    kept.reverse()
    return kept


def _first_positions(runs: Sequence[Run], operations: int) -> list[int]:
    first = [-1] * operations
    for position in range(len(runs) - 1, -1, -1):
        first[runs[position][0]] = position
    return first
