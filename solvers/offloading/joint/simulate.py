"""The simulator's two passes in one, compiled: the period of a schedule, some thousand times a second.

Knows no rule but memory and time: its input comes from residence/residence.py, and the simulator itself
judges what is handed out. Where an allocation does not fit the excess is noted and the replay goes on, so
that a search sees how far it is. Same figures as planner/simulator/simulate.py on schedules that hold
(tests/solvers/offloading/test_joint_simulate.py).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ....graphs.arrays import Ints
from ....graphs.compiled import compiled
from ....planner.simulator.clock import Queue
from .instance import Instance

_COMPUTE, _CPU, _D2H, _H2D, _WRITE, _READ = (int(queue) for queue in Queue)
_TURNS = 24
_SAME = 1e-9


@compiled
def simulate(
    instance: Instance,
    steps: Ints,
    starts: NDArray[np.uint8],
    result: NDArray[np.float64],
    ends: NDArray[np.float64],
) -> None:
    """result: (period in seconds, excess over the limits in bytes, peak per memory). ends: per step, in the
    last turn, counted from that turn's start on the compute queue."""
    tensors, ways, members = instance.tensors, instance.ways, instance.members
    count, length = len(tensors), len(steps)
    have = np.zeros((3, count), np.int64)
    ready = np.zeros((3, count))
    made = np.full((3, count, 4), -1, np.int64)
    flight = np.full((3, count, 4), -1, np.int64)
    landing = np.zeros((3, count, 4))
    used = np.zeros(3)
    settled = np.zeros(3)
    peak = np.zeros(3)
    excess = 0.0
    most = length + count + 8
    held = np.zeros((3, most))
    until = np.zeros((3, most))
    whose = np.zeros((3, most), np.int64)
    parts = np.full((3, most, 4), -1, np.int64)
    rest_size = np.zeros((3, most))
    rest_end = np.zeros((3, most))
    rest_part = np.zeros((3, most), np.int64)
    rests = np.zeros(3, np.int64)
    first = np.zeros(3, np.int64)
    last = np.zeros(3, np.int64)
    free = np.zeros(6)
    begin = np.zeros(6)
    growth = np.zeros(6)
    fences = np.zeros(3)
    for x in range(count):
        for memory in range(3):
            if starts[x] >> memory & 1:
                have[memory, x] = tensors[x].whole
                used[memory] += tensors[x].size
                settled[memory] += tensors[x].size
    for memory in range(3):
        peak[memory] = used[memory]
        excess = max(excess, settled[memory] - instance.limits[memory])

    half = np.zeros(6)
    settled_down = False
    gained = 0.0
    for turn in range(_TURNS):
        oldest = (turn - 1) * length
        fence = fences[1]
        for memory in range(3):
            kept = first[memory]
            for entry in range(first[memory], last[memory]):
                over = True
                for queue in range(4):
                    over = over and parts[memory, entry, queue] < oldest
                if over:
                    used[memory] -= held[memory, entry]
                else:
                    held[memory, kept] = held[memory, entry]
                    until[memory, kept] = until[memory, entry]
                    whose[memory, kept] = whose[memory, entry]
                    parts[memory, kept] = parts[memory, entry]
                    kept += 1
            shift = first[memory]
            for entry in range(shift, kept):
                held[memory, entry - shift] = held[memory, entry]
                until[memory, entry - shift] = until[memory, entry]
                whose[memory, entry - shift] = whose[memory, entry]
                parts[memory, entry - shift] = parts[memory, entry]
            first[memory], last[memory] = 0, kept - shift
            left = 0
            for entry in range(rests[memory]):
                if rest_part[memory, entry] >= oldest:
                    rest_size[memory, left] = rest_size[memory, entry]
                    rest_end[memory, left] = rest_end[memory, entry]
                    rest_part[memory, left] = rest_part[memory, entry]
                    left += 1
            rests[memory] = left
        for queue in range(6):
            begin[queue] = free[queue]

        for index in range(length + count):
            if index < length:
                verb, target, where = steps[index, 0], steps[index, 1], steps[index, 2]
            else:  # what is neither persistent nor an input vanishes
                target = index - length
                if tensors[target].persistent:
                    continue
                verb, where = -1, 0
            step = turn * length + index
            if verb == 1 or verb == -1:
                for memory in range(3):
                    if verb == 1 and memory != where:
                        continue
                    if not have[memory, target] or (verb == -1 and memory == 0 and tensors[target].input):
                        continue
                    size = tensors[target].size
                    settled[memory] -= size
                    have[memory, target] = 0
                    ready[memory, target] = 0.0
                    end, pending = 0.0, False
                    for queue in range(4):
                        made[memory, target, queue] = -1
                        if flight[memory, target, queue] >= max(0, oldest):
                            pending = True
                            end = max(end, landing[memory, target, queue])
                    if pending and size > 0 and last[memory] < most:
                        place = last[memory]
                        held[memory, place], until[memory, place] = size, end
                        whose[memory, place] = target
                        for queue in range(4):
                            parts[memory, place, queue] = flight[memory, target, queue]
                        last[memory] += 1
                    else:
                        used[memory] -= size
                    for queue in range(4):
                        flight[memory, target, queue] = -1
                continue

            start, need, transient = fence, 0.0, 0.0
            way, source = ways[0], 0
            if verb == 0:
                way = ways[target]
                memory = 1 if way.host else 0
                queue = _CPU if way.host else _COMPUTE
                for place in range(way.reads_start, way.host_reads_end):
                    x = members[place]
                    source = memory if place < way.reads_end else 1
                    start = max(start, ready[source, x])
                    for maker in range(4):
                        own = made[source, x, maker]
                        if own < 0:
                            continue
                        for side in range(3):
                            if flight[side, x, maker] == own and (side > 0 or queue == _COMPUTE):
                                flight[side, x, maker] = -1
                for place in range(way.mutates_start, way.mutates_end):
                    x = members[place]
                    for other in range(4):
                        own = flight[memory, x, other]
                        if own < max(0, oldest):
                            continue
                        start = max(start, landing[memory, x, other])
                        for side in range(3):
                            if flight[side, x, other] == own:
                                flight[side, x, other] = -1
                transient = way.workspace
                for place in range(way.writes_start, way.writes_end, 2):
                    x = members[place]
                    if have[memory, x] == 0:
                        need += tensors[x].size
                    elif have[memory, x] & members[place + 1]:
                        transient += tensors[x].size
                    else:
                        start = max(start, ready[memory, x])
                seconds = way.seconds
            else:
                if verb == 2:
                    queue = _D2H if where == 1 else _WRITE
                    memory, source = where, where - 1
                else:
                    queue = _H2D if where == 0 else _READ
                    memory, source = where, where + 1
                start = max(start, ready[source, target])
                for maker in range(4):
                    own = made[source, target, maker]
                    if own < 0:
                        continue
                    for side in range(1, 3):
                        if flight[side, target, maker] == own:
                            flight[side, target, maker] = -1
                if have[memory, target] == 0:
                    need = tensors[target].size
                else:
                    for other in range(4):
                        own = flight[memory, target, other]
                        if own < max(0, oldest):
                            continue
                        start = max(start, landing[memory, target, other])
                        for side in range(3):
                            if flight[side, target, other] == own:
                                flight[side, target, other] = -1
                seconds = tensors[target].size * instance.pace[queue]
                if queue in (_D2H, _H2D):
                    start = max(start, free[_COMPUTE])

            limit = instance.limits[memory]
            excess = max(excess, settled[memory] + need + transient - limit)
            missing = used[memory] + need + transient - limit
            for entry in range(rests[memory]):
                missing += rest_size[memory, entry]
            while missing > 0 and rests[memory] > 0:
                place = rests[memory] - 1
                start = max(start, rest_end[memory, place])
                taken = min(missing, rest_size[memory, place])
                rest_size[memory, place] -= taken
                missing -= taken
                if rest_size[memory, place] <= 0:
                    rests[memory] -= 1
            while missing > 0 and first[memory] < last[memory]:
                place = first[memory]
                size = held[memory, place]
                used[memory] -= size
                start = max(start, until[memory, place])
                if size > missing:
                    entry = rests[memory]
                    rest_size[memory, entry], rest_end[memory, entry] = size - missing, until[memory, place]
                    rest_part[memory, entry] = parts[memory, place].max()
                    rests[memory] += 1
                missing -= size
                for other in range(4):
                    for side in range(3):
                        if parts[memory, place, other] >= 0 and (
                            flight[side, whose[memory, place], other] == parts[memory, place, other]
                        ):
                            flight[side, whose[memory, place], other] = -1
                first[memory] += 1
            used[memory] += need
            settled[memory] += need
            peak[memory] = max(peak[memory], used[memory] + transient)
            end = max(start, free[queue]) + seconds
            free[queue] = end
            ends[index] = end - begin[_COMPUTE]

            if verb == 0:
                for place in range(way.writes_start, way.writes_end, 2):
                    x, bit = members[place], members[place + 1]
                    if have[memory, x] & bit == 0:
                        have[memory, x] |= bit
                        if queue == _CPU:
                            ready[memory, x] = max(ready[memory, x], end)
                for place in range(way.mutates_start, way.mutates_end):
                    x = members[place]
                    for maker in range(4):
                        made[memory, x, maker] = -1
                    ready[memory, x] = end if queue == _CPU else 0.0
            else:
                have[memory, target] = have[source, target]
                ready[memory, target] = max(ready[memory, target], end)
                made[memory, target, queue - 2] = step
                for side in (source, memory):
                    flight[side, target, queue - 2] = step
                    landing[side, target, queue - 2] = end

        fences[1] = fences[0]
        fences[0] = max(max(free[2], free[3]), max(free[4], free[5]))
        gained, change = 0.0, 0.0
        for queue in range(6):
            now = free[queue] - begin[queue]
            change = max(change, abs(now - growth[queue]))
            gained = max(gained, now)
            growth[queue] = now
        if turn == _TURNS // 2 - 1:
            half[:] = free
        if turn >= 2 and change <= gained * _SAME:
            settled_down = True
            break
    if not settled_down:
        gained = (free - half).max() / (_TURNS - _TURNS // 2)
    result[0], result[1] = gained, max(0.0, excess)
    result[2], result[3], result[4] = peak[0], peak[1], peak[2]
