"""What a list of runs needs and takes, by one scan from the last run to the first; linear in the runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from ..graphs.graph import Graph
from ..planner.sequence import Run


@dataclass(frozen=True)
class Scanned:
    """runs: those that make something needed. peak: bytes. needed: contributions that are there before."""

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
    """From the last run to the first. after: contributions needed behind them. given: tensors left out.

    always: operations whose first run stays, needed or not.
    """
    sizes = graph.tensors.bytes
    first = {run[0]: position for position, run in reversed(list(enumerate(runs))) if run[0] in always}
    need = {x: bits for x, bits in after.items() if bits and x not in given}
    now = peak = bytes_of(graph, need)
    kept: list[Run] = []
    for position in range(len(runs) - 1, -1, -1):
        operation, mode = runs[position]
        made = [(x, bit) for x, bit in graph.contributions(operation, mode) if x not in given]
        if first.get(operation) != position and not any(need.get(x, 0) & bit for x, bit in made):
            continue
        kept.append((operation, mode))
        inputs = [x for x in graph.input_lists[operation] if x not in given]
        passing = {x for x, _bit in made}.union(inputs).difference(need)
        workspace = _workspace(graph, operation, mode)
        peak = max(peak, now + workspace + sum(sizes.item(x) for x in passing))
        for x, bit in made:
            if x in need:
                need[x] &= ~bit
                if not need[x]:
                    del need[x]
                    now -= sizes.item(x)
        for x in inputs:
            if x not in need:
                now += sizes.item(x)
            need[x] = graph.whole_contributions[x]
    kept.reverse()
    return Scanned(kept, max(peak, now), need)


def _workspace(graph: Graph, operation: int, mode: int) -> int:
    columns = graph.operations
    return columns.modes[operation][mode - 1].workspace if mode else columns.workspace.item(operation)


def bytes_of(graph: Graph, tensors: Iterable[int]) -> int:
    return sum(graph.tensors.bytes.item(x) for x in tensors)
