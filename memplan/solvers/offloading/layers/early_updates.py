"""Updates as early as they can run: right after the last run that they must wait for.

An update of a weight waits for its gradient, for the last run that reads the weight and for changes that
stand before it in the file; one that draws random numbers for what draws before it. On the CPU it then runs
alongside the backward computations, and its gradient leaves the host. All other runs keep their order, with
the updates that one of them waits for. Linear in the edges but for one sort.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np

from ....graphs.graph import Graph, Phase
from ....planner.schedule.sequence import Run


def early_updates(graph: Graph, runs: Sequence[Run]) -> list[Run]:
    """Return the same runs, with updates moved to the front as far as they can go."""
    others, updates = updates_apart(graph, runs)
    # Number 0 sorts a run before the updates that wait for it, which keep their own order.
    places = [(position, 0, run) for position, run in enumerate(others)]
    places += [(position, number, run) for number, (position, run) in enumerate(updates, start=1)]
    return [run for _position, _number, run in sorted(places, key=lambda place: place[:2])]


def updates_apart(graph: Graph, runs: Sequence[Run]) -> tuple[list[Run], list[tuple[int, Run]]]:
    """Return the runs without updates that can move, and these updates, in order.

    Each with the position of the last other run that it must wait for, -1 for none.
    """
    drawn, moved = _drawn(graph), movable_updates(graph)
    others = [run for run in runs if run[0] not in moved]
    last = {operation: position for position, (operation, _mode) in enumerate(others)}
    updates = list[tuple[int, Run]]()
    for run in runs:
        if run[0] in moved:
            before = (*_before(graph, run[0]), drawn.get(run[0]))
            # An update that waits for another takes over its place: that one's entry is in `last` by now.
            last[run[0]] = max((last[o] for o in before if o in last), default=-1)
            updates.append((last[run[0]], run))
    return others, updates


def movable_updates(graph: Graph) -> set[int]:
    """Return the updates that no other operation waits for, except updates that none waits for either."""
    drawn = _drawn(graph)
    moved = set(np.flatnonzero(graph.operations.phase == Phase.UPDATE).tolist())
    # Backwards: by the time an update is looked at, all that wait for it have spoken.
    for operation in reversed(range(len(graph.operations))):
        if operation not in moved:
            for x in graph.input_lists[operation]:
                moved.difference_update(graph.producers[x].tolist())
                moved.difference_update(_earlier(graph.mutators[x].tolist(), operation))
            # Without one the default is the operation itself, which isn't in `moved`.
            moved.discard(drawn.get(operation, operation))
    return moved


def _drawn(graph: Graph) -> dict[int, int]:
    """Return per operation that draws random numbers the one that draws before it."""
    return {after: before for before, after in pairwise(np.flatnonzero(graph.operations.random).tolist())}


def _before(graph: Graph, update: int) -> Iterator[int]:
    """Yield the operations that an update must not pass."""
    for x in graph.read_lists[update]:
        yield from graph.producers[x].tolist()
        yield from _earlier(graph.mutators[x].tolist(), update)
    for x in graph.mutate_lists[update]:
        yield from graph.producers[x].tolist()
        yield from _earlier(graph.consumers[x].tolist(), update)
        yield from _earlier(graph.mutators[x].tolist(), update)


def _earlier(operations: Iterable[int], than: int) -> Iterator[int]:
    return (operation for operation in operations if operation < than)
