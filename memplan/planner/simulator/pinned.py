"""The copies in host memory that are pinned: those that cross the link to or from the device.

A copy there exists from the step that makes it to its delete, around the iteration's end too if it stays. It
is pinned, all that time, if in this lifetime a transfer from or to the device reads or fills it, or a
computation on the device reads or writes it there. What goes between the host and the memory below it alone,
and what only the CPU computes with, is not.
"""

from __future__ import annotations

from ...graphs.graph import Graph
from ...graphs.machine import Memory
from ..schedule.schedule import DEFAULT_MODE, Schedule, Verb
from .clock import Queue, transfer_queue

PINNED = -1
"""The ledger of pinned memory: the last, after those of the memories."""

START = -1
"""The step number of copies that are there when an iteration starts."""

_COMPUTE, _DELETE, _HOST = int(Verb.COMPUTE), int(Verb.DELETE), int(Memory.HOST)
_CROSSING = int(Queue.D2H), int(Queue.H2D)


def pinned_copies(graph: Graph, schedule: Schedule) -> frozenset[tuple[int, int]]:
    """Return the pinned copies, each by the step that makes it, or START, and its tensor.

    For a schedule that breaks rules the result is arbitrary.
    """
    in_modes = (schedule.verbs == Verb.COMPUTE) & (schedule.wheres != DEFAULT_MODE)
    # Nothing moves and no mode reads the host: most schedules.
    if not ((schedule.verbs > Verb.DELETE) | in_modes).any():
        return frozenset()
    spread = graph.tensors.spread
    there = {x: (START, x) for x in schedule.initial.on(Memory.HOST) - spread}
    crossing: set[tuple[int, int]] = set()
    for step, (verb, x, where) in enumerate(schedule.rows()):
        if verb == _COMPUTE:
            modes = graph.operations.modes.get(x, ()) if where != DEFAULT_MODE else ()
            # One mode, or none.
            for mode in modes[where - 1 : where]:
                crossing.update(there[read] for read in mode.reads_host if read in there and not mode.on_host)
                for made in mode.made_on_host:
                    there.setdefault(made, (step, made))
                crossing.update(there[made] for made in mode.writes_host)
        elif verb == _DELETE:
            if where == _HOST:
                there.pop(x, None)
        # Copies of spread tensors lie on the peers, though they have the host's index.
        elif x not in spread:
            if where == _HOST:
                there.setdefault(x, (step, x))
            crosses = transfer_queue(verb, where) in _CROSSING
            if crosses and x in there:
                crossing.add(there[x])
    for x, copy in there.items():
        # The copy at the end is the one that the next iteration starts with: pinned in one, in both.
        around = {copy, (START, x)}
        if graph.persistent[x] and crossing & around:
            crossing |= around
    return frozenset(crossing)
