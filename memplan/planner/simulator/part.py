"""The schedule of a part of a graph: that of the whole, without what the part does not contain.

A part has the whole's tensors under the same numbers, and some of its operations. Steps that compute others
go, and steps of tensors that only those touch. What is left keeps every rule, needs no larger budget, and has
each persistent tensor start and end where it does in the whole: the two can follow each other.

    whole   … prefetch m, update w m, offload m, delete m        m, a state, lies on the host
    part    … prefetch m,             offload m, delete m        needless: nothing reads it, and
            …                                                    it is still where it is copied to

Needless transfers go too, unless a memory below the device has no room for what then stays there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ...graphs.graph import Graph
from ...graphs.machine import Machine, Memory
from ..errors import InvalidScheduleError
from ..schedule.schedule import Schedule, ScheduleStep, Verb
from .clock import source_of, transfer_queue
from .simulate import simulate


def part_of(
    schedule: Schedule, part: Graph, places: Sequence[int], *, budget: int | None, machine: Machine | None
) -> Schedule:
    """Return the schedule of a part of a graph.

    places: the indices of the part's operations in the whole graph, in order.
    """
    index = {place: number for number, place in enumerate(places)}
    touched = (*part.input_lists, *part.operations.writes.lists())
    there = {x for row in touched for x in row} | set(part.persistent.nonzero()[0].tolist())
    kept = Schedule.of(
        (
            step._replace(target=index[step.target]) if step.verb == Verb.COMPUTE else step
            for step in schedule
            if step.target in (index if step.verb == Verb.COMPUTE else there)
        ),
        schedule.initial,
    )
    fewer = _without_needless(part, kept)
    try:
        simulate(part, fewer, budget=budget, machine=machine)
    # A memory below the device may lack room for what is no longer sent on.
    except InvalidScheduleError:
        return kept
    return fewer


class _Event(NamedTuple):
    """A step's action on a tensor.

    memory: of the copy that it uses, changes, deletes or makes. source: of the copy that it makes that
    from.
    """

    step: int
    memory: int
    source: int | None = None
    changes: bool = False
    deletes: bool = False


def _without_needless(graph: Graph, schedule: Schedule) -> Schedule:
    steps = list(schedule)
    events: dict[int, list[_Event]] = {}
    for number, step in enumerate(steps):
        for x, event in _events(graph, number, step):
            events.setdefault(x, []).append(event)
    dropped: set[int] = set()
    for x, own in events.items():
        # One removal may make another needless.
        while graph.persistent[x] and (needless := _needless(own, schedule.initial.memories(x))):
            dropped |= needless
            own = [event for event in own if event.step not in needless]
    return Schedule.of((step for n, step in enumerate(steps) if n not in dropped), schedule.initial)


def _events(graph: Graph, number: int, step: ScheduleStep) -> Iterator[tuple[int, _Event]]:
    verb, target, where = step
    if verb == Verb.COMPUTE:
        mode = graph.operations.modes[target][where - 1] if where else None
        on_peers = graph.on_peers(target)
        for x in graph.input_lists[target]:
            on_host = mode is not None and (mode.on_host or x in mode.reads_host)
            memory = Memory.HOST if on_host or x in on_peers else Memory.DEVICE
            yield x, _Event(number, memory, changes=x in graph.mutate_lists[target])
    elif verb == Verb.DELETE:
        yield target, _Event(number, where, deletes=True)
    else:
        yield target, _Event(number, where, source_of(transfer_queue(verb, where)))


def _needless(events: Sequence[_Event], homes: Sequence[int]) -> set[int]:
    """Return steps of a persistent tensor that can be removed together: the first that are found."""
    fresh = set(homes)
    made: dict[int, int] = {}  # copies that nothing has used, by the transfer
    left: dict[int, int] = {}  # copies deleted since the last change, in memories in which the tensor starts
    for event in events:
        memory = event.memory
        if event.source is not None:
            if memory in fresh:
                return {event.step}
            # Nothing has changed it since the delete: neither that nor this copy is needed.
            if memory in left:
                return {left[memory], event.step}
            made.pop(event.source, None)
            made[memory] = event.step
            fresh.add(memory)
        elif event.deletes:
            if memory in made:
                return {made[memory], event.step}
            if memory in fresh and memory in homes and memory != Memory.DEVICE:
                left[memory] = event.step
            fresh.discard(memory)
        else:
            made.pop(memory, None)
            # Every other copy is stale from here on.
            if event.changes:
                fresh, left = {memory}, {}
    return set()
