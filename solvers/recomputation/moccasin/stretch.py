"""Part of a sequence of runs as a window to decide anew (window.py): for large-neighbourhood search.

No solver uses it yet, only tests: such a search is still to be built on it.

    before ── inside, now the window ── after

What is on the device before it and needed behind it is the window's start, what `after` needs its end. In it
may run again: what does so now, and what can make again what its first runs and its end need, down to what is
there at the start. Any solution between `before` and `after` is a sequence; judge it whole again, since a
tensor with several contributions may hold more of them at either edge than is needed there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ....graphs.closure import closure
from ....graphs.graph import Graph
from ....planner.schedule.sequence import Run, backward_scan, prune
from .window import Window


@dataclass(frozen=True)
class Stretch:
    before: list[Run]
    inside: list[Run]
    after: list[Run]
    window: Window


def stretch_of(
    graph: Graph, sequence: Sequence[Run], first: int, last: int, capacity: int, copies: int = 2
) -> Stretch | None:
    """Of the runs first … last − 1 of the pruned sequence, up to the last first run among them; None where
    there is none. capacity, copies: as in `Window`."""
    runs = prune(graph, sequence)
    positions: dict[int, int] = {}
    for position, (operation, _mode) in enumerate(runs):
        positions.setdefault(operation, position)
    stages = [operation for operation, position in positions.items() if first <= position < last]
    if not stages:
        return None
    last = positions[stages[-1]] + 1
    before, inside, after = runs[:first], runs[first:last], runs[last:]
    end = _needed(graph, after, {x: graph.whole_contributions[x] for x in graph.results})
    start = _needed(graph, inside, end)
    recompute = _may_recompute(graph, positions, stages, inside, set(start), set(end))
    window = Window(
        graph, stages, recompute, _by_producer(graph, start), _by_producer(graph, end), capacity, copies
    )
    return Stretch(before, inside, after, window)


def _needed(graph: Graph, runs: Sequence[Run], end: dict[int, int]) -> dict[int, int]:
    """Tensor -> the contributions (bits) that must be there before the runs. end: behind them."""
    need = defaultdict(int, end)
    every = range(len(graph.operations))
    inputs = graph.input_lists.__getitem__
    backward_scan(runs, graph.contributions, inputs, graph.whole_contributions, need, every)
    return {x: bits for x, bits in need.items() if bits and not graph.resident[x]}


def _by_producer(graph: Graph, need: dict[int, int]) -> dict[int, frozenset[int]]:
    producers = {x: graph.producers[x].tolist() for x in need}
    return {x: frozenset(p for k, p in enumerate(producers[x]) if bits >> k & 1) for x, bits in need.items()}


def _may_recompute(
    graph: Graph,
    positions: dict[int, int],
    stages: list[int],
    inside: list[Run],
    start: set[int],
    end: set[int],
) -> dict[int, tuple[int, int]]:
    """What may run again, and in which stages."""
    stage = {operation: number for number, operation in enumerate(stages)}
    behind = positions[stages[-1]]
    recompute: dict[int, tuple[int, int]] = {}
    for operation in {operation for operation, _mode in inside} | _makers(graph, stages, start, end):
        if positions.get(operation, behind + 1) > behind or graph.mutate_lists[operation]:
            continue
        touched = {*graph.read_lists[operation], *graph.operations.writes[operation].tolist()}
        changes = [change for x in touched for change in graph.mutators[x].tolist() if change > operation]
        first, last = stage.get(operation, -1) + 1, len(stages) - 1
        for change in changes:
            if positions.get(change, behind + 1) <= behind:
                last = min(last, stage.get(change, -1))
        if graph.operations.recompute[operation] and first <= last:
            recompute[operation] = first, last
    return recompute


def _makers(graph: Graph, stages: list[int], start: set[int], end: set[int]) -> set[int]:
    """What makes the inputs of the stages and the tensors at the end, down to what is there at the start."""
    producers = graph.producers.lists()

    def before(operation: int) -> Iterator[int]:
        return (p for x in graph.read_lists[operation] if x not in start for p in producers[x])

    needed = {x for operation in stages for x in graph.read_lists[operation]} | end
    return closure((p for x in needed for p in producers[x]), before)
