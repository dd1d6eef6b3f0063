"""The order of updates on the CPU: each as soon as its gradient is there, or at the end of the iteration.

    CPU     U4    U3    U1 U2   │ U4 …         U2 is late: forward needs its weight after that of U1,
    device  B4 B3 B2 B1 │ F1 F2 F3 F4 │ B4 …   and U3 has kept the CPU until the gradient of U1 was there

The CPU serves its queue in list order. In backward's order it stands still once forward needs the last weight
of the queue, until backward begins anew. So an update may also take place at the end of the list, where the
late ones are in the order in which the next iteration first reads what they change. Linear in the runs but
for sorting.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import inf

from ....graphs.graph import Graph
from ....planner.schedule.sequence import Run
from .drops import Drops
from .state import State


def late_order(graph: Graph, runs: Iterable[Run], updates: Iterable[int]) -> list[int]:
    """Sort updates by the first run that reads what they change."""
    first = dict[int, int]()
    for position, (operation, _mode) in enumerate(runs):
        for x in graph.read_lists[operation]:
            first.setdefault(x, position)

    def read(update: int) -> float:
        return min((first[x] for x in graph.mutate_lists[update] if x in first), default=inf)

    return sorted(updates, key=lambda update: (read(update), update))


def other_slots(
    drops: Drops, runs: Sequence[Run], groups: Iterable[Sequence[int]]
) -> Iterator[tuple[int, int]]:
    """Yield pairs (position, slot) of updates: the end of the list, or the first slot if they are there.

    groups: updates of one weight, which change places together. Late ones come in `late_order`.
    """
    graph, movable, at = drops.graph, drops.movable, dict[int, int]()
    last, end = [-1] * len(graph.tensors), 0
    for position, (operation, _mode) in enumerate(runs):
        if operation in movable:
            at[operation] = position
            continue
        end = position + 1
        for x in (*graph.input_lists[operation], *graph.operations.writes[operation].tolist()):
            last[x] = position
    moved = {o: group for group in groups for o in group if movable.issuperset(group) and o in at}
    order = late_order(graph, runs, moved)
    rank = {operation: number for number, operation in enumerate(order)}
    for operation in order:
        first = 1 + max(last[x] for o in moved[operation] for x in graph.input_lists[o])
        late = [at[o] >= end for o in moved[operation]]
        if all(late) and first < end:
            yield at[operation], first
        if not any(late):
            # After the late ones whose weights are read before.
            before = (at[o] + 1 for o in order if at[o] >= end and rank[o] < rank[operation])
            yield at[operation], max(before, default=end)


def late_updates(state: State, groups: Iterable[Sequence[int]]) -> list[int]:
    """Return the positions of the updates on the CPU that had better be late.

    groups: positions of the runs of each weight's updates, which are all on the CPU and none of them late; in
    list order. Whenever the CPU is free it takes the one whose gradient came last, since that is the one
    whose weight is needed first.
    """
    groups = list(groups)
    graph, runs, starts = state.graph, state.runs, state.starts
    seconds = [sum(graph.seconds(*runs[position]) for position in group) for group in groups]
    # The device waits while the CPU is the slower one.
    stretched = max(1.0, sum(seconds) / float(starts[-1])) if starts[-1] > 0 else 1.0
    free, waiting = 0.0, list[int]()
    for number, group in enumerate(groups):
        ready = stretched * float(starts[max(group)])
        while waiting and free < ready:
            free = max(free, stretched * float(starts[max(groups[waiting[-1]])])) + seconds[waiting.pop()]
        waiting.append(number)
    return [position for number in waiting for position in groups[number]]
