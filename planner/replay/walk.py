"""Order decides memory: which row waits for which, by the rules of planner/simulator/walk.py.

Of a queue's rows only the newest is waited for: it ends last. The state of a moving tensor is one number: per
transfer queue whether its newest transfer still holds its source and its target, and whether it made the copy
that is there (copies.py in planner/simulator). Linear in rows, events and turns.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...graphs.arrays import Floats, Ints
from ...graphs.compiled import inner
from ..simulator.clock import Queue
from ..simulator.pinned import PINNED
from .rows import (
    ADD,
    CHANGE,
    DEMAND,
    DROP,
    DROP_PINNED,
    EVENTS_END,
    MAKE,
    MEMORY,
    MOVE,
    OVERWRITE,
    PINNED_DEMAND,
    QUEUE,
    READ,
    Turn,
)

_TURNS = 17
_PINNED = PINNED
_COMPUTE, _CPU = int(Queue.COMPUTE), int(Queue.CPU)
_HOLDS_SOURCE, _HOLDS_TARGET, _MADE, _MADE_BY_CPU, _MADE_BY_DEVICE = 0, 4, 8, 1 << 12, 1 << 13
_DEVICE = 5
_BOTH = 1 << _HOLDS_SOURCE | 1 << _HOLDS_TARGET
"""The bits of a tensor's state: three times four for the transfer queues, one for the CPU and one for the
device, on the host. Its newest rows: the CPU's, the four transfer queues', at _DEVICE the compute queue's."""

_MAKERS = (2 << _MADE, 9 << _MADE | _MADE_BY_CPU | _MADE_BY_DEVICE, 4 << _MADE)
_HOLDERS = (
    1 << _HOLDS_SOURCE | 2 << _HOLDS_TARGET,
    6 << _HOLDS_SOURCE | 9 << _HOLDS_TARGET,
    8 << _HOLDS_SOURCE | 4 << _HOLDS_TARGET,
)
"""Per memory the bits of those that made a copy there, or hold it; the transfer queues are D2H, H2D,
DISK_WRITE and DISK_READ."""

_BELOW = ~_HOLDERS[0]
"""The bits that a reader ends that is not on the compute queue."""


@inner
def walk(turn: Turn, limits: Floats, peaks: Floats) -> int:
    """Fill `turn.first` and `turn.waits` with the waits of the steady state; their number.

    limits: bytes per memory, and those pinned. peaks: likewise, raised to the turn's. Where an allocation
    does not fit, it takes what there is.
    """
    rows, events, sizes = turn.rows, turn.events, turn.size
    count, moving, drops = turn.counts[0], turn.counts[1], turn.counts[2]
    state = np.zeros(moving, np.int64)
    newest = np.full((moving, 8), -1)
    pending = np.empty((4, 2 * drops + 1, 6), np.int64)
    first, last = np.zeros(4, np.int64), np.zeros(4, np.int64)
    rests = np.zeros((4, 6), np.int64)
    held = np.zeros(4)
    wanted = np.full(6, -1)
    left = np.empty(moving + 6 * (4 * drops + 8), np.int64)
    before = np.empty(len(left), np.int64)
    length = waits = 0
    for number in range(_TURNS):
        begin = number * count
        _settle(pending, first, last, rests, held, begin - count)
        waits = at = 0
        for row in range(count + 1):
            queue = rows[row, QUEUE]
            waiting = False
            while at < rows[row, EVENTS_END]:
                kind, copy = int(events[at]) & 7, int(events[at]) >> 3
                tensor, memory = copy >> 2, copy & 3
                now = int(state[tensor])
                at += 1
                if kind <= ADD:
                    makers = now & _MAKERS[memory]
                    if not makers:
                        continue
                    waiting = True
                    if makers & _MADE_BY_CPU:
                        wanted[0] = max(wanted[0], newest[tensor, 0])
                    if makers & _MADE_BY_DEVICE:
                        wanted[_DEVICE] = max(wanted[_DEVICE], newest[tensor, _DEVICE])
                    links = makers >> _MADE & 15
                    if kind == READ:
                        landed = links << _HOLDS_SOURCE | links << _HOLDS_TARGET
                        now &= ~(landed if queue == _COMPUTE else landed & _BELOW)
                    link = 1
                    while links:
                        if links & 1:
                            wanted[link] = max(wanted[link], newest[tensor, link])
                        links >>= 1
                        link += 1
                elif kind == OVERWRITE:
                    holders = now & _HOLDERS[memory]
                    for link in range(4):
                        if holders & _BOTH << link:
                            waiting = True
                            wanted[link + 1] = max(wanted[link + 1], newest[tensor, link + 1])
                            now &= ~(_BOTH << link)
                elif kind in (DROP, DROP_PINNED):
                    holders = now & _HOLDERS[memory]
                    now &= ~(holders | _MAKERS[memory])
                    if holders and sizes[tensor]:
                        ledger = memory
                        while True:
                            entry = pending[ledger, last[ledger]]
                            entry[0], entry[1] = sizes[tensor], tensor
                            for link in range(4):
                                entry[2 + link] = newest[tensor, link + 1] if holders & _BOTH << link else -1
                            last[ledger] += 1
                            held[ledger] += sizes[tensor]
                            if kind == DROP or ledger == _PINNED:
                                break
                            ledger = _PINNED
                elif kind == MOVE:
                    now |= (_BOTH | 1 << _MADE) << (queue - 2)
                    newest[tensor, queue - 1] = begin + row
                else:
                    if kind == CHANGE:
                        now &= ~_MAKERS[memory]
                    if queue == _CPU:
                        now |= _MADE_BY_CPU
                        newest[tensor, 0] = begin + row
                    elif kind == MAKE:
                        now |= _MADE_BY_DEVICE
                        newest[tensor, _DEVICE] = begin + row
                state[tensor] = now
            if row == count:
                break

            ledger, demand = int(rows[row, MEMORY]), int(rows[row, DEMAND])
            while True:
                missing = demand + held[ledger] - limits[ledger]
                if missing > 0 and held[ledger] > 0:
                    waiting = True
                    held[ledger] -= min(missing, held[ledger])
                    _claim(
                        missing, pending[ledger], rests[ledger], ledger, first, last, state, newest, wanted
                    )
                peaks[ledger] = max(peaks[ledger], demand + held[ledger] - rests[ledger, 0])
                if ledger == _PINNED or rows[row, PINNED_DEMAND] == 0:
                    break
                ledger, demand = _PINNED, int(rows[row, PINNED_DEMAND])
            turn.first[row] = waits
            if waiting:
                for other in range(6):
                    if wanted[other] >= 0:
                        turn.waits[waits] = wanted[other] - begin
                        wanted[other] = -1
                        waits += 1
        turn.first[count] = waits
        left, before, filled = before, left, length
        length = _left_over(state, pending, first, last, rests, begin + count, left)
        same = number > 0 and length == filled
        for place in range(length):
            same = same and left[place] == before[place]
        if same:
            break
    return waits


@inner
def _claim(
    missing: float,
    pending: Ints,
    rest: Ints,
    memory: int,
    first: Ints,
    last: Ints,
    state: Ints,
    newest: Ints,
    wanted: Ints,
) -> None:
    """Take so many bytes: first of what an earlier claim has left of a delete, then of the oldest deletes."""
    while missing > 0 and (rest[0] > 0 or first[memory] < last[memory]):
        if rest[0] == 0:
            for part in range(6):
                rest[part] = pending[first[memory], part]
            first[memory] += 1
            for link in range(4):
                if rest[2 + link] >= 0 and rest[2 + link] == newest[rest[1], link + 1]:
                    state[rest[1]] &= ~(_BOTH << link)
        for link in range(4):
            wanted[link + 1] = max(wanted[link + 1], rest[2 + link])
        taken = min(missing, rest[0])
        rest[0] -= int(taken)
        missing -= taken


@inner
def _settle(pending: Any, first: Ints, last: Ints, rests: Ints, held: Floats, oldest: int) -> None:
    """End the deletes that wait only for rows before `oldest`."""
    for memory in range(4):
        kept = 0
        for place in range(first[memory], last[memory]):
            entry = pending[memory, place]
            if max(entry[2], entry[3], entry[4], entry[5]) < oldest:
                held[memory] -= entry[0]
                continue
            for part in range(6):
                pending[memory, kept, part] = entry[part]
            kept += 1
        first[memory], last[memory] = 0, kept
        rest = rests[memory]
        if max(rest[2], rest[3], rest[4], rest[5]) < oldest:
            held[memory] -= rest[0]
            rest[0] = 0


@inner
def _left_over(state: Ints, pending: Any, first: Ints, last: Ints, rests: Ints, end: int, left: Ints) -> int:
    """Write what the next turn waits for, counted from its start; the length of that."""
    length = len(state)
    for tensor in range(length):
        left[tensor] = state[tensor]
    for memory in range(4):
        for place in range(first[memory], last[memory] + 1):
            entry = pending[memory, place] if place < last[memory] else rests[memory]
            if entry[0] == 0:
                continue
            left[length], left[length + 1] = memory, entry[0]
            for part in range(2, 6):
                left[length + part] = entry[part] - end if entry[part] >= 0 else 0
            length += 6
    return length
