"""Needs and peak of a list of runs, by one scan from the last run to the first; linear in the runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from ...graphs.graph import Graph
from ...planner.schedule.sequence import Run, backward_scan


@dataclass(frozen=True)
class Scanned:
    """A scanned list of runs.

    runs: those that make something needed.
    peak: bytes.
    needed: contributions that must exist before the first run.
    """

    runs: list[Run]
    peak: int
    needed: dict[int, int]


def scan(
    graph: Graph,
    runs: Sequence[Run],
    after: Mapping[int, int],
    given: AbstractSet[int],
    always: AbstractSet[int] = frozenset(),
) -> Scanned:
    """Scan a list of runs from the last to the first.

    after: contributions needed after them.
    given: tensors left out.
    always: operations whose first run stays, needed or not.
    """
    whole = graph.whole_contributions
    need = defaultdict(int, {x: bits for x, bits in after.items() if x not in given})

    def made(operation: int, mode: int) -> list[tuple[int, int]]:
        return [(x, bit) for x, bit in graph.contributions(operation, mode) if x not in given]

    def inputs(operation: int) -> list[int]:
        return [x for x in graph.input_lists[operation] if x not in given]

    kept = backward_scan(runs, made, inputs=inputs, whole=whole, need=need, always=always)
    needed = {x: bits for x, bits in need.items() if bits}
    alive = set(needed)
    now = peak = bytes_of(graph, alive)
    for (operation, mode), dead in kept:
        # A further contribution to a tensor adds no bytes.
        new = {x for x, _bit in made(operation, mode)} - alive
        now += bytes_of(graph, new)
        # Before its deaths: a run has inputs, outputs and workspace at once.
        peak = max(peak, now + graph.workspace(operation, mode))
        now -= bytes_of(graph, dead)
        alive |= new
        alive.difference_update(dead)
    return Scanned([run for run, _dead in kept], peak, needed)


def bytes_of(graph: Graph, tensors: Iterable[int]) -> int:
    return sum(graph.tensors.bytes.item(x) for x in tensors)
