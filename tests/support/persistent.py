"""All persistent sequences of a `graphs.generators.chain`, by brute force, each with its time and peak.

Written from the definition alone: knows neither blocks nor a solver nor the simulator. A checkpoint is an x_i
or all that B_i reads; it stays until the backward that reads it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from memplan.graphs.graph import Graph

Sequence = tuple[str, ...]


def sequences(blocks: int) -> set[Sequence]:
    """Every order of F1 … F_L, loss, B_L … B1 that a persistent strategy can lead to.

    To run B_i, forward goes on from the nearest checkpoint below; each block on the way keeps nothing, its
    input, or all (which needs its input too); the last one keeps all.
    """
    found: set[Sequence] = set()

    def step(done: Sequence, next_backward: int, inputs: frozenset[int], saved: frozenset[int]) -> None:
        """inputs: the i for which x_i is kept. saved: the i whose B_i can run as far as F_i goes."""
        if not next_backward:
            found.add(done)
            return
        for order, inputs_then, saved_then in forward(next_backward, inputs, saved):
            backward = (*done, *order, f"B{next_backward}")
            step(backward, next_backward - 1, inputs_then, saved_then)

    def forward(
        target: int, inputs: frozenset[int], saved: frozenset[int]
    ) -> Iterator[tuple[Sequence, frozenset[int], frozenset[int]]]:
        if target in saved:
            yield (), inputs, saved
            return
        start = max(i for i in inputs if i < target)
        way = range(start + 1, target + 1)
        for choice in product("nia", repeat=len(way) - 1):
            kept = [*choice, "a"]
            inputs_then = inputs | {i - 1 for i, keep in zip(way, kept, strict=True) if keep in "ia"}
            saved_then = saved | {i for i, keep in zip(way, kept, strict=True) if keep == "a"}
            yield tuple(f"F{i}" for i in way), inputs_then, saved_then

    first = (*(f"F{i}" for i in range(1, blocks + 1)), "loss")
    for choice in product("nia", repeat=blocks):
        inputs = frozenset([0]) | {i for i, keep in enumerate(choice) if keep in "ia"}
        saved = frozenset(i + 1 for i, keep in enumerate(choice) if keep == "a")
        step(first, blocks, inputs, saved)
    return found


def replay(graph: Graph, order: Sequence) -> tuple[float, int]:
    """Seconds and peak bytes: every F but the last before its B makes x_i alone (where it has a mode for
    that); each tensor goes right after its last use before it is made anew."""
    by_name = {name: graph.operation(index) for index, name in enumerate(graph.operations.name)}
    size = graph.tensors.bytes.tolist()
    always = sum(size[x] for x in range(len(size)) if graph.resident[x])
    last_save = {name: position for position, name in enumerate(order) if name.startswith("F")}
    writes: list[tuple[int, ...]] = []
    workspace: list[int] = []
    time = 0.0
    for position, name in enumerate(order):
        operation = by_name[name]
        way = operation.modes[0] if operation.modes and position != last_save[name] else operation
        writes.append(way.writes)
        workspace.append(way.workspace)
        time += way.time

    def alive_until(x: int, position: int) -> bool:
        """Needed behind `position`."""
        for later in range(position + 1, len(order)):
            if x in by_name[order[later]].reads:
                return True
            if x in writes[later]:
                return False
        return x in graph.results

    present: set[int] = set()
    peak = 0
    for position, written in enumerate(writes):
        present.update(written)
        peak = max(peak, always + sum(size[x] for x in present) + workspace[position])
        present = {x for x in present if alive_until(x, position)}
    return time, peak


def pareto(graph: Graph, blocks: int) -> list[tuple[int, float]]:
    """(peak, least time within it), peaks growing, times falling."""
    outcomes = sorted((peak, time) for time, peak in (replay(graph, order) for order in sequences(blocks)))
    front: list[tuple[int, float]] = []
    for peak, time in outcomes:
        if not front or time < front[-1][1]:
            front.append((peak, time))
    return front
