"""The simulator's two passes over a schedule's steps, compiled: its period, some thousand times a second.

Knows no rule but memory and time: its input comes from planner/residency, and the simulator itself
validates what is returned. If an allocation does not fit, the excess is noted and the replay goes on, so
that a search sees how far it is. Same figures as planner/simulator/simulate.py on schedules that hold
(tests/planner/replay/test_replay.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...graphs.arrays import Floats, Ints
from ...graphs.compiled import compiled, inner
from ..simulator.clock import Queue
from .clock import period
from .instance import Instance
from .pins import pins_of
from .rows import (
    ADD,
    CHANGE,
    COMPUTE,
    DELETE,
    DEVICE,
    DROP,
    DROP_PINNED,
    HOLD,
    HOST,
    MAKE,
    MOVE,
    OFFLOAD,
    OVERWRITE,
    PEERS,
    QUEUE,
    READ,
    RUN,
    SHARE,
    SIZE,
    SPREAD,
    WAIT,
    IterationTables,
    empty_iteration,
    event,
    put,
    read_queue,
    write_queue,
)
from .walk import walk

_COMPUTE, _CPU, _COMM = int(Queue.COMPUTE), int(Queue.CPU), int(Queue.COMM)
_VANISH = -1
"""The verb of the deletes at the end of the list, from every memory."""

_SECONDS, _EXCESS, _PEAKS = range(3)
_ELSEWHERE = -1
"""Indices into a replay's figures."""

UNASKED = np.empty(0)
"""Stalls, if they are not requested."""


def figures_for(instance: Instance) -> Floats:
    """Return room for the figures of a replay; see `replay`."""
    return np.zeros(_PEAKS + len(instance.limits) + 1)


@compiled
def replay(
    instance: Instance,
    steps: Ints,
    starts: NDArray[np.uint8],
    result: Floats,
    stalls: Floats,
    iterations: int,
) -> None:
    """Simulate one iteration and write its figures into `result`.

    result: from `figures_for`; takes seconds of an iteration, bytes in excess of the limits, the peak per
    memory, the most that is pinned (0 if that has no limit), seconds of all that is not on the compute queue.
    stalls: takes per run on the device, in the steps' order, how long its queue waits for it, if it has room.
    iterations: iterations simulated at most.
    """
    ledgers = len(instance.limits)
    iteration, peaks = _room_for(instance, steps), np.zeros(ledgers)
    result[_EXCESS] = _read(instance, steps, starts, iteration, peaks)
    walk(iteration, instance.limits, peaks)
    for ledger in range(ledgers):
        result[_PEAKS + ledger] = peaks[ledger]
    result[_SECONDS], result[_ELSEWHERE] = period(iteration, iterations), 0.0
    for row in range(iteration.counts[0]):
        if iteration.rows[row, QUEUE] != _COMPUTE:
            result[_ELSEWHERE] += iteration.seconds[row, RUN]
    if len(stalls):
        _add_stalls(instance, steps, iteration, stalls)


@inner
def _add_stalls(instance: Instance, steps: Ints, iteration: IterationTables, stalls: Floats) -> None:
    place = row = 0
    for index in range(len(steps)):
        verb, target = steps[index, 0], steps[index, 1]
        if verb == COMPUTE:
            taken = _rows_of(instance.variants[target])
            if iteration.rows[row, QUEUE] == _COMPUTE:
                stalls[place] = 0.0
                for part in range(taken):
                    stalls[place] += iteration.seconds[row + part, WAIT]
                place += 1
            row += taken
        elif verb != DELETE:
            row += 1


@inner
def _rows_of(variant: Any) -> int:
    """Return the number of rows of a run.

    A run that writes host memory from the device takes two, the first for that memory alone.
    """
    return 2 if variant.host_writes_end > variant.host_writes_start else 1


@inner
def _read(
    instance: Instance, steps: Ints, starts: NDArray[np.uint8], iteration: IterationTables, starting: Floats
) -> float:
    """Fill `iteration`, and `starting` with what is there at first.

    Returns the most bytes above a limit, if all deletes were immediate.
    """
    tensors, variants, members, limits = (
        instance.tensors,
        instance.variants,
        instance.members,
        instance.limits,
    )
    events = iteration.events
    count, length = len(tensors), len(steps)
    pinned_ledger = memories = len(limits) - 1
    have = np.zeros((memories, count), np.int64)
    moving = _moving(instance, steps, starts, iteration)
    first, flags, pinned = pins_of(instance, steps)
    pins_limited = limits[pinned_ledger] < np.inf
    collective = np.full(count, -1)  # per tensor the last collective that it is part of, by its first row
    first_of = 0
    for x in range(count):
        for memory in range(memories):
            if starts[x] >> memory & 1:
                have[memory, x] = tensors[x].whole
                ledger, size = _footprint(tensors[x], memory)
                starting[ledger] += size
                if memory == HOST and pinned[x]:
                    starting[pinned_ledger] += tensors[x].size
    settled, excess = starting.copy(), 0.0
    # Persistent tensors may not even fit where they start.
    for ledger in range(memories + 1):
        excess = max(excess, settled[ledger] - limits[ledger])
    row = at = drops = 0
    for index in range(length + count):
        # The steps, and after them one entry for each tensor.
        if index < length:
            verb, target, where = steps[index, 0], steps[index, 1], steps[index, 2]
        else:  # what is neither persistent nor an input vanishes
            verb, target, where = _VANISH, index - length, DEVICE
            # Stays where it is, to begin the next iteration.
            if tensors[target].persistent:
                continue
        if verb in (DELETE, _VANISH):
            for memory in range(memories):
                if verb == DELETE and memory != where:
                    continue
                if not have[memory, target] or (
                    # An input stays counted: the next iteration's takes its place.
                    verb == _VANISH and memory == DEVICE and tensors[target].input
                ):
                    continue
                # `settled` counts bytes as if every delete were immediate; what transfers still hold is the
                # walk's (`held`).
                have[memory, target] = 0
                ledger, size = _footprint(tensors[target], memory)
                settled[ledger] -= size
                if moving[target] >= 0:
                    is_pinned = memory == HOST and pinned[target]
                    events[at] = event(DROP_PINNED if is_pinned else DROP, int(moving[target]), memory)
                    at += 1
                    drops += 1
                    if is_pinned:
                        pinned[target] = False
                        settled[pinned_ledger] -= tensors[target].size
            continue

        kept = transient = pins = held = 0
        joined = False
        if verb == COMPUTE:
            variant = variants[target]
            memory, queue = (HOST, _CPU) if variant.host else (DEVICE, _COMM if variant.comm else _COMPUTE)
            for place in range(variant.reads_start, variant.host_reads_end):
                x = int(moving[members[place]])
                if x >= 0:
                    events[at] = event(READ, x, memory if place < variant.reads_end else HOST)
                    at += 1
                    if variant.comm:
                        events[at] = event(HOLD, x, DEVICE)
                        at += 1
            for place in range(variant.mutates_start, variant.mutates_end):
                x = int(moving[members[place]])
                # an update, the only one that changes spread tensors, uses their shares on the peers
                where = PEERS if tensors[members[place]].spread else memory
                if x >= 0:
                    events[at], events[at + 1] = event(OVERWRITE, x, where), event(CHANGE, x, where)
                    at += 2
            if _rows_of(variant) == 2:
                below = reruns = 0
                for place in range(variant.host_writes_start, variant.host_writes_end, 2):
                    x, bit = members[place], members[place + 1]
                    if not have[HOST, x]:
                        below += tensors[x].size
                        pinned[x] = pins_limited
                    elif have[HOST, x] & bit:
                        reruns += tensors[x].size
                    else:
                        events[at] = event(ADD, int(moving[x]), HOST)
                        at += 1
                # First row of two: the bytes on the host, without seconds; the second row is the run.
                demand = int(settled[HOST]) + below + reruns
                pinning = int(settled[pinned_ledger]) + below + reruns if pins_limited else 0
                excess = max(excess, demand - limits[HOST], pinning - limits[pinned_ledger])
                put(iteration, row, queue, HOST, demand, pinning, at, 0.0, 0.0, queue)
                settled[HOST] += below
                settled[pinned_ledger] += below if pins_limited else 0
                row += 1
                for place in range(variant.host_writes_start, variant.host_writes_end, 2):
                    x, bit = members[place], members[place + 1]
                    if not have[HOST, x] & bit:
                        have[HOST, x] |= bit
                        events[at] = event(MAKE, int(moving[x]), HOST)
                        at += 1
            transient = variant.workspace
            for place in range(variant.writes_start, variant.writes_end, 2):
                x, bit = members[place], members[place + 1]
                # A contribution that is there already is recomputed into workspace.
                there = have[memory, x]
                if there & bit:
                    transient += tensors[x].size
                    continue
                have[memory, x] = there | bit
                if not there:
                    kept += tensors[x].size
                    if variant.host and flags[first[index] + (place - variant.writes_start) // 2]:
                        pinned[x] = True
                        pins += tensors[x].size
                # It joins what another queue may have made.
                if moving[x] >= 0 and there:
                    events[at] = event(ADD, int(moving[x]), memory)
                    at += 1
                if variant.host:
                    events[at] = event(MAKE, int(moving[x]), memory)
                    at += 1
                elif variant.comm:
                    events[at], events[at + 1] = (
                        event(MAKE, int(moving[x]), DEVICE),
                        event(HOLD, int(moving[x]), DEVICE),
                    )
                    at += 2
            seconds, launch, turn = variant.seconds, variant.launch, queue
            # A collective keeps its workspace until it has ended, which the walk counts as one more pending
            # delete.
            if variant.comm and transient:
                held = transient
                drops += 1
        else:
            if verb == OFFLOAD:
                source, queue = where - 1, write_queue(where)
            else:
                source, queue = where + 1, read_queue(where)
            to, x = where, int(moving[target])
            memory, size = _footprint(tensors[target], to)
            turn = _COMM if tensors[target].spread else queue
            events[at] = event(READ, x, source)
            at += 1
            if have[to, target]:
                events[at] = event(OVERWRITE, x, to)
                at += 1
            else:
                kept = size
                if memory == HOST and flags[first[index]]:
                    pinned[target] = True
                    pins = kept
            events[at] = event(MOVE, x, to)
            at += 1
            have[to, target] = have[source, target]
            seconds, launch = instance.copies[queue, target], 0.0
            if tensors[target].spread:
                # Neighbouring transfers of spread tensors in one direction are one collective
                # (planner/simulator/collectives.py).
                follows = index > 0 and steps[index - 1, 0] == verb and tensors[steps[index - 1, 1]].spread
                if follows and tensors[target].saves and collective[target] != first_of:
                    # `saves` is the latency that it shares.
                    iteration.seconds[first_of, RUN] += seconds - tensors[target].saves
                    seconds, joined = 0.0, True
                else:
                    first_of = row
                collective[target] = first_of
        excess = max(excess, settled[memory] + kept + transient - limits[memory])
        pinning = 0
        if pins:
            pinning = int(settled[pinned_ledger]) + pins
            excess = max(excess, pinning - limits[pinned_ledger])
            settled[pinned_ledger] += pins
        put(
            iteration,
            row,
            queue,
            memory,
            int(settled[memory]) + kept + transient,
            pinning,
            at,
            seconds,
            launch,
            turn,
            joined,
            held,
        )
        settled[memory] += kept
        row += 1
    # The last row takes no queue: it carries the events of the deletes at the end.
    put(iteration, row, -1, DEVICE, 0, 0, at, 0.0, 0.0, -1)
    iteration.counts[0], iteration.counts[2] = row, drops
    return excess


@inner
def _footprint(tensor: Any, memory: int) -> tuple[int, int]:
    """Return the memory in which the bytes of a tensor's copy count, and their number (Footprint.of)."""
    if memory == PEERS and tensor.spread:
        return DEVICE, tensor.share
    return memory, tensor.size


@inner
def _room_for(instance: Instance, steps: Ints) -> IterationTables:
    variants, tensors, most = (
        instance.variants,
        len(instance.tensors),
        3 * (len(steps) + len(instance.tensors)),
    )
    rows = len(steps)
    for index in range(len(steps)):
        if steps[index, 0] == COMPUTE:
            variant = variants[steps[index, 1]]
            most += (
                variant.host_reads_end - variant.reads_start + variant.host_writes_end - variant.writes_start
            )
            rows += _rows_of(variant) - 1
            most += 2 * (variant.mutates_end - variant.mutates_start)
            if variant.comm:
                most += variant.reads_end - variant.reads_start + variant.writes_end - variant.writes_start
    return empty_iteration(rows, most, tensors, instance.lanes, instance.parts)


@inner
def _moving(instance: Instance, steps: Ints, starts: NDArray[np.uint8], iteration: IterationTables) -> Ints:
    """Return per tensor its number among those that move, or -1.

    Their sizes and their number go into `iteration`.
    """
    variants, members = instance.variants, instance.members
    moving = np.full(len(instance.tensors), -1)
    for x in range(len(moving)):
        # More than the device bit: a copy below the device at the start.
        if starts[x] > 1:
            moving[x] = 0
    for index in range(len(steps)):
        verb, target = steps[index, 0], steps[index, 1]
        if verb == COMPUTE:
            variant = variants[target]
            # Such a run is on another queue, so whatever it touches may have to be waited for.
            whole = variant.host or variant.comm
            for place in range(
                variant.reads_start if whole else variant.host_reads_start, variant.host_reads_end
            ):
                moving[members[place]] = 0
            for place in range(variant.host_writes_start, variant.host_writes_end, 2):
                moving[members[place]] = 0
            if whole:
                for place in range(variant.writes_start, variant.writes_end, 2):
                    moving[members[place]] = 0
                for place in range(variant.mutates_start, variant.mutates_end):
                    moving[members[place]] = 0
        elif verb != DELETE:
            moving[target] = 0
    count = 0
    for x in range(len(moving)):
        if moving[x] == 0:
            moving[x] = count
            tensor = instance.tensors[x]
            iteration.size[count, SIZE], iteration.size[count, SHARE] = tensor.size, tensor.share
            iteration.size[count, SPREAD] = tensor.spread
            count += 1
    iteration.counts[1] = count
    return moving
