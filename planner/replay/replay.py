"""The simulator's two passes over a schedule's steps, compiled: its period, some thousand times a second.

Knows no rule but memory and time: its input comes from residence/residence.py, and the simulator itself
judges what is handed out. Where an allocation does not fit the excess is noted and the replay goes on, so
that a search sees how far it is. Same figures as planner/simulator/simulate.py on schedules that hold
(tests/planner/test_replay.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...graphs.arrays import Floats, Ints
from ...graphs.compiled import compiled, inner
from ..simulator.clock import Queue
from ..simulator.pinned import PINNED
from .clock import period
from .instance import Instance
from .pins import pins_of
from .rows import (
    ADD,
    CHANGE,
    DROP,
    DROP_PINNED,
    MAKE,
    MOVE,
    OVERWRITE,
    QUEUE,
    READ,
    RUN,
    WAIT,
    Turn,
    empty_turn,
    event,
    put,
)
from .walk import walk

_PINNED = PINNED
_COMPUTE, _CPU, _D2H, _H2D, _WRITE, _READ = (int(queue) for queue in Queue)

FIGURES = 7
"""Of a replay."""

UNASKED = np.empty(0)
"""Stalls that nobody asks for."""


@compiled
def replay(
    instance: Instance,
    steps: Ints,
    starts: NDArray[np.uint8],
    result: Floats,
    stalls: Floats,
    turns: int,
) -> None:
    """result: (seconds of a turn, bytes in excess of the limits, peak per memory, the most that is pinned: 0
    where that has no limit, seconds of all that is not on the compute queue). stalls: takes per run on the
    device, in the steps' order, how long its queue waits for it, if it has room. turns: played at most."""
    turn, peaks = _room_for(instance, steps), np.zeros(4)
    result[1] = _read(instance, steps, starts, turn, peaks)
    walk(turn, instance.limits, peaks)
    for ledger in range(4):
        result[2 + ledger] = peaks[ledger]
    result[0], result[6] = period(turn, turns), 0.0
    for row in range(turn.counts[0]):
        if turn.rows[row, QUEUE] != _COMPUTE:
            result[6] += turn.seconds[row, RUN]
    if len(stalls):
        _add_stalls(instance, steps, turn, stalls)


@inner
def _add_stalls(instance: Instance, steps: Ints, turn: Turn, stalls: Floats) -> None:
    place = row = 0
    for index in range(len(steps)):
        verb, target = steps[index, 0], steps[index, 1]
        if verb == 0:
            taken = _rows_of(instance.ways[target])
            if turn.rows[row, QUEUE] == _COMPUTE:
                stalls[place] = 0.0
                for part in range(taken):
                    stalls[place] += turn.seconds[row + part, WAIT]
                place += 1
            row += taken
        elif verb > 1:
            row += 1


@inner
def _rows_of(way: Any) -> int:
    """A run that writes host memory from the device takes two, the first for that room alone."""
    return 2 if way.host_writes_end > way.host_writes_start else 1


@inner
def _read(instance: Instance, steps: Ints, starts: NDArray[np.uint8], turn: Turn, starting: Floats) -> float:
    """Fill `turn`, and `starting` with what is there at first; the most bytes above a limit, were all deletes
    immediate."""
    tensors, ways, members, limits = instance.tensors, instance.ways, instance.members, instance.limits
    events = turn.events
    count, length = len(tensors), len(steps)
    have = np.zeros((3, count), np.int64)
    moving = _moving(instance, steps, starts, turn)
    first, flags, pinned = pins_of(instance, steps)
    pins_limited = limits[_PINNED] < np.inf
    for x in range(count):
        for memory in range(3):
            if starts[x] >> memory & 1:
                have[memory, x] = tensors[x].whole
                starting[memory] += tensors[x].size
                if memory == 1 and pinned[x]:
                    starting[_PINNED] += tensors[x].size
    settled, excess = starting.copy(), 0.0
    for ledger in range(4):
        excess = max(excess, settled[ledger] - limits[ledger])
    row = at = drops = 0
    for index in range(length + count):
        if index < length:
            verb, target, where = steps[index, 0], steps[index, 1], steps[index, 2]
        else:  # what is neither persistent nor an input vanishes
            verb, target, where = -1, index - length, 0
            if tensors[target].persistent:
                continue
        if verb in (1, -1):
            for memory in range(3):
                if verb == 1 and memory != where:
                    continue
                if not have[memory, target] or (verb == -1 and memory == 0 and tensors[target].input):
                    continue
                have[memory, target] = 0
                settled[memory] -= tensors[target].size
                if moving[target] >= 0:
                    is_pinned = memory == 1 and pinned[target]
                    events[at] = event(DROP_PINNED if is_pinned else DROP, int(moving[target]), memory)
                    at += 1
                    drops += 1
                    if is_pinned:
                        pinned[target] = False
                        settled[_PINNED] -= tensors[target].size
            continue

        kept = transient = pins = 0
        if verb == 0:
            way = ways[target]
            memory, queue = (1, _CPU) if way.host else (0, _COMPUTE)
            for place in range(way.reads_start, way.host_reads_end):
                x = int(moving[members[place]])
                if x >= 0:
                    events[at] = event(READ, x, memory if place < way.reads_end else 1)
                    at += 1
            for place in range(way.mutates_start, way.mutates_end):
                x = int(moving[members[place]])
                if x >= 0:
                    events[at], events[at + 1] = event(OVERWRITE, x, memory), event(CHANGE, x, memory)
                    at += 2
            if _rows_of(way) == 2:
                below = again = 0
                for place in range(way.host_writes_start, way.host_writes_end, 2):
                    x, bit = members[place], members[place + 1]
                    if not have[1, x]:
                        below += tensors[x].size
                        pinned[x] = pins_limited
                    elif have[1, x] & bit:
                        again += tensors[x].size
                    else:
                        events[at] = event(ADD, int(moving[x]), 1)
                        at += 1
                demand = int(settled[1]) + below + again
                pinning = int(settled[_PINNED]) + below + again if pins_limited else 0
                excess = max(excess, demand - limits[1], pinning - limits[_PINNED])
                put(turn, row, queue, 1, demand, pinning, at, 0.0, 0.0)
                settled[1] += below
                settled[_PINNED] += below if pins_limited else 0
                row += 1
                for place in range(way.host_writes_start, way.host_writes_end, 2):
                    x, bit = members[place], members[place + 1]
                    if not have[1, x] & bit:
                        have[1, x] |= bit
                        events[at] = event(MAKE, int(moving[x]), 1)
                        at += 1
            transient = way.workspace
            for place in range(way.writes_start, way.writes_end, 2):
                x, bit = members[place], members[place + 1]
                there = have[memory, x]
                if there & bit:
                    transient += tensors[x].size
                    continue
                have[memory, x] = there | bit
                if not there:
                    kept += tensors[x].size
                    if way.host and flags[first[index] + (place - way.writes_start) // 2]:
                        pinned[x] = True
                        pins += tensors[x].size
                if moving[x] >= 0 and there:
                    events[at] = event(ADD, int(moving[x]), memory)
                    at += 1
                if way.host:
                    events[at] = event(MAKE, int(moving[x]), memory)
                    at += 1
            seconds, launch = way.seconds, way.launch
        else:
            if verb == 2:
                source, queue = where - 1, _D2H if where == 1 else _WRITE
            else:
                source, queue = where + 1, _H2D if where == 0 else _READ
            memory, x = where, int(moving[target])
            events[at] = event(READ, x, source)
            at += 1
            if have[memory, target]:
                events[at] = event(OVERWRITE, x, memory)
                at += 1
            else:
                kept = tensors[target].size
                if memory == 1 and flags[first[index]]:
                    pinned[target] = True
                    pins = kept
            events[at] = event(MOVE, x, memory)
            at += 1
            have[memory, target] = have[source, target]
            seconds, launch = instance.copies[queue, target], 0.0
        excess = max(excess, settled[memory] + kept + transient - limits[memory])
        pinning = 0
        if pins:
            pinning = int(settled[_PINNED]) + pins
            excess = max(excess, pinning - limits[_PINNED])
            settled[_PINNED] += pins
        put(turn, row, queue, memory, int(settled[memory]) + kept + transient, pinning, at, seconds, launch)
        settled[memory] += kept
        row += 1
    put(turn, row, -1, 0, 0, 0, at, 0.0, 0.0)
    turn.counts[0], turn.counts[2] = row, drops
    return excess


@inner
def _room_for(instance: Instance, steps: Ints) -> Turn:
    ways, tensors, most = instance.ways, len(instance.tensors), 3 * (len(steps) + len(instance.tensors))
    rows = len(steps)
    for index in range(len(steps)):
        if steps[index, 0] == 0:
            way = ways[steps[index, 1]]
            most += way.host_reads_end - way.reads_start + way.host_writes_end - way.writes_start
            rows += _rows_of(way) - 1
            most += 2 * (way.mutates_end - way.mutates_start)
    return empty_turn(rows, most, tensors)


@inner
def _moving(instance: Instance, steps: Ints, starts: NDArray[np.uint8], turn: Turn) -> Ints:
    """Per tensor its number among those that move, or -1; their sizes and their number into `turn`."""
    ways, members = instance.ways, instance.members
    moving = np.full(len(instance.tensors), -1)
    for x in range(len(moving)):
        if starts[x] > 1:
            moving[x] = 0
    for index in range(len(steps)):
        verb, target = steps[index, 0], steps[index, 1]
        if verb > 1:
            moving[target] = 0
        elif verb == 0:
            way = ways[target]
            for place in range(way.reads_start if way.host else way.host_reads_start, way.host_reads_end):
                moving[members[place]] = 0
            for place in range(way.host_writes_start, way.host_writes_end, 2):
                moving[members[place]] = 0
            if way.host:
                for place in range(way.writes_start, way.writes_end, 2):
                    moving[members[place]] = 0
                for place in range(way.mutates_start, way.mutates_end):
                    moving[members[place]] = 0
    count = 0
    for x in range(len(moving)):
        if moving[x] == 0:
            moving[x] = count
            turn.size[count] = instance.tensors[x].size
            count += 1
    turn.counts[1] = count
    return moving
