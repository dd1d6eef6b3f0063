"""Order decides memory: which row waits for which, by the rules of planner/simulator/walk.py.

Of a queue's rows only the newest is waited for: it ends last. The state of a moving tensor is one number: per
link whether its newest transfer still holds its source and its target, and whether it made the copy that is
there (copies.py in planner/simulator). Link 2 m goes from memory m down, link 2 m + 1 up to it; the queue of
a link is _LINKS + its number. The links of a spread tensor are two directions of one queue. Collectives that
are operations have one more link, the last, whose source and target are copies on the device. Linear in rows,
events and iterations.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...graphs.arrays import Floats, Ints
from ...graphs.compiled import inner
from ...graphs.machine import MOST_MEMORIES, Memory
from ..simulator.clock import Queue
from .rows import (
    ADD,
    CHANGE,
    DEMAND,
    DROP,
    DROP_PINNED,
    EVENTS_END,
    HELD,
    HOLD,
    JOINED,
    MAKE,
    MEMORY,
    MOVE,
    OVERWRITE,
    PINNED_DEMAND,
    QUEUE,
    READ,
    SHARE,
    SIZE,
    SPREAD,
    IterationTables,
    kind_of,
    memory_of,
    tensor_of,
)

_MAX_ITERATIONS = 17
_COMPUTE, _CPU, _LINKS, _COMM = int(Queue.COMPUTE), int(Queue.CPU), int(Queue.D2H), int(Queue.COMM)
_DEVICE, _PEERS = int(Memory.DEVICE), int(Memory.PEERS)

_FIELD = 16
"""Bits of the state for each of three facts about the links; there are at most 2 · (MOST_MEMORIES − 1), and
that of collectives, whose bit is the last."""
_HOLDS_SOURCE, _HOLDS_TARGET, _MADE = 0, _FIELD, 2 * _FIELD
_MADE_BY_CPU, _MADE_BY_DEVICE = 1 << 3 * _FIELD, 2 << 3 * _FIELD
_ALL_LINKS = (1 << _FIELD) - 1
_COLLECTIVE = _FIELD - 1
_BOTH = 1 << _HOLDS_SOURCE | 1 << _HOLDS_TARGET


def _into(memory: int) -> int:
    """Return the links to a memory, as bits: from above and from below."""
    return (1 << 2 * (memory - 1) if memory else 0) | 1 << 2 * memory + 1


def _out_of(memory: int) -> int:
    """Return the links from a memory, as bits: down and up."""
    return 1 << 2 * memory | (1 << 2 * memory - 1 if memory else 0)


_MAKERS = tuple(
    (_into(memory) & _ALL_LINKS >> 1) << _MADE
    | (_MADE_BY_CPU | _MADE_BY_DEVICE if memory == Memory.HOST else 0)
    | (1 << _MADE + _COLLECTIVE if memory == Memory.DEVICE else 0)
    for memory in range(MOST_MEMORIES)
)
"""Per memory the bits of those that made a copy there, but for the compute queue's own on the device."""
_HOLDERS = tuple(
    _out_of(memory) << _HOLDS_SOURCE
    | _into(memory) << _HOLDS_TARGET
    | (1 << _HOLDS_SOURCE + _COLLECTIVE if memory == Memory.DEVICE else 0)
    for memory in range(MOST_MEMORIES)
)
"""Per memory the bits of those that hold a copy there."""

_BELOW = ~_HOLDERS[Memory.DEVICE]
"""The bits that a reader ends that is not on the compute queue."""

_SIZE, _TENSOR, _TRANSFERS = range(3)
"""The columns of a pending delete: bytes, whose copy, and from _TRANSFERS on the row of each link, or -1."""


@inner
def walk(iteration: IterationTables, limits: Floats, peaks: Floats) -> int:
    """Fill `iteration.first` and `iteration.waits` with the waits of the steady state; their number.

    limits: bytes per memory, and those pinned. peaks: likewise, raised to the iteration's. If an allocation
    does not fit, it takes what there is.
    """
    rows, events, sizes = iteration.rows, iteration.events, iteration.size
    count, moving, drops = iteration.counts[0], iteration.counts[1], iteration.counts[2]
    ledgers = len(limits)
    pinned, links = ledgers - 1, 2 * (ledgers - 2) + 1
    queues, width = _LINKS + links, _TRANSFERS + links
    state = np.zeros(moving, np.int64)
    newest = np.full((moving, queues + 1), -1)  # the last: of the collective that made it
    pending = np.empty((ledgers, 2 * drops + 1, width), np.int64)
    first, last = np.zeros(ledgers, np.int64), np.zeros(ledgers, np.int64)
    rests = np.zeros((ledgers, width), np.int64)
    held = np.zeros(ledgers)
    network = queues - 1  # where rows of gathers, scatters and collectives are
    # Per queue the newest row that this one waits for: the queue is first in, first out, so that one ends
    # last.
    wanted = np.full(queues, -1)
    left = np.empty(moving + width * (4 * drops + 2 * ledgers), np.int64)
    before = np.empty(len(left), np.int64)
    length = waits = 0
    passed = -1  # the last collective that is an operation that the compute queue has waited for
    for number in range(_MAX_ITERATIONS):
        begin = number * count
        # The fence: copies of iterations before the previous one have landed.
        _settle(pending, first, last, rests, held, begin - count)
        waits = at = 0
        for row in range(count + 1):
            queue = rows[row, QUEUE]
            waiting = False
            while at < rows[row, EVENTS_END]:
                kind, memory, tensor = kind_of(events[at]), memory_of(events[at]), tensor_of(events[at])
                now = int(state[tensor])
                at += 1
                if kind <= ADD:
                    producers = now & _MAKERS[memory]
                    # The compute queue made it: users of the device's memory start after it anyhow
                    # (clock.py).
                    if not producers:
                        continue
                    waiting = True
                    if producers & _MADE_BY_CPU:
                        wanted[_CPU] = max(wanted[_CPU], newest[tensor, _CPU])
                    if producers & _MADE_BY_DEVICE:
                        wanted[_COMPUTE] = max(wanted[_COMPUTE], newest[tensor, _COMPUTE])
                    made_by = producers >> _MADE & _ALL_LINKS
                    if made_by >> _COLLECTIVE:
                        made_by &= ~(1 << _COLLECTIVE)
                        number_of = int(newest[tensor, queues])
                        wanted[network] = max(wanted[network], number_of)
                        if queue == _COMPUTE and kind == READ:
                            passed = max(passed, number_of)
                    if kind == READ:
                        landed = made_by << _HOLDS_SOURCE | made_by << _HOLDS_TARGET  # of transfers
                        # A reader waits for what made the copy, which then holds nothing any more: for the
                        # device's memory only if the reader is the compute queue, since the others run at
                        # times of their own.
                        now &= ~(landed if queue == _COMPUTE else landed & _BELOW)
                    producer = _LINKS
                    while made_by:
                        if made_by & 1:
                            of = network if sizes[tensor, SPREAD] else producer
                            wanted[of] = max(wanted[of], newest[tensor, producer])
                        made_by >>= 1
                        producer += 1
                elif kind == OVERWRITE:
                    holders = _in_flight(now, memory, newest[tensor, network] > passed)
                    for link in range(links):
                        if holders & _bits_of(link, links):
                            waiting = True
                            of = network if sizes[tensor, SPREAD] else _LINKS + link
                            wanted[of] = max(wanted[of], newest[tensor, _LINKS + link])
                            if link < links - 1:
                                now &= ~(_BOTH << link)
                            elif queue == _COMPUTE:
                                passed = max(passed, newest[tensor, of])
                elif kind in (DROP, DROP_PINNED):
                    holders = _in_flight(now, memory, newest[tensor, network] > passed)
                    now &= ~(_HOLDERS[memory] | _MAKERS[memory])
                    ledger, size = memory, sizes[tensor, SIZE]
                    # A rank's share on the peers is device memory.
                    if memory == _PEERS and sizes[tensor, SPREAD]:
                        ledger, size = _DEVICE, sizes[tensor, SHARE]
                    # A transfer still reads or writes the copy: its bytes are free when that ends.
                    if holders and size:
                        while True:
                            entry = pending[ledger, last[ledger]]
                            entry[_SIZE], entry[_TENSOR] = size, tensor
                            for link in range(links):
                                holds = holders & _bits_of(link, links)
                                entry[_TRANSFERS + link] = newest[tensor, _LINKS + link] if holds else -1
                            last[ledger] += 1
                            held[ledger] += size
                            # A pinned copy is counted twice: in host memory, and among pinned bytes.
                            if kind == DROP or ledger == pinned:
                                break
                            ledger = pinned
                elif kind == HOLD:
                    now |= 1 << _HOLDS_SOURCE + _COLLECTIVE
                    newest[tensor, network] = begin + row
                elif kind == MOVE:
                    now |= (_BOTH | 1 << _MADE) << (queue - _LINKS)
                    newest[tensor, queue] = begin + row
                else:
                    if kind == CHANGE:
                        now &= ~_MAKERS[memory]
                    if queue == _CPU:
                        now |= _MADE_BY_CPU
                        newest[tensor, _CPU] = begin + row
                    elif kind == MAKE and queue == _COMM:
                        now |= 1 << _MADE + _COLLECTIVE
                        newest[tensor, queues] = begin + row
                    elif kind == MAKE:
                        now |= _MADE_BY_DEVICE
                        newest[tensor, _COMPUTE] = begin + row
                state[tensor] = now
            if row == count:
                break

            ledger, demand = int(rows[row, MEMORY]), int(rows[row, DEMAND])
            while True:
                # Bytes that pending deletes must give back before the row can begin.
                missing = demand + held[ledger] - limits[ledger]
                if missing > 0 and held[ledger] > 0:
                    waiting = True
                    held[ledger] -= min(missing, held[ledger])
                    awaited = _claim(
                        missing,
                        pending[ledger],
                        rests[ledger],
                        ledger,
                        first,
                        last,
                        state,
                        newest,
                        sizes,
                        wanted,
                    )
                    if queue == _COMPUTE:
                        passed = max(passed, awaited)
                # What a claim has left of a delete is waited for already: those bytes are free.
                peaks[ledger] = max(peaks[ledger], demand + held[ledger] - rests[ledger, _SIZE])
                if ledger == pinned or rows[row, PINNED_DEMAND] == 0:
                    break
                ledger, demand = pinned, int(rows[row, PINNED_DEMAND])
            if rows[row, HELD]:
                entry = pending[_DEVICE, last[_DEVICE]]
                entry[:] = -1
                entry[_SIZE], entry[_TENSOR], entry[_TRANSFERS + links - 1] = rows[row, HELD], 0, begin + row
                last[_DEVICE] += 1
                held[_DEVICE] += rows[row, HELD]
            iteration.first[row] = waits
            if waiting:
                for other in range(queues):
                    if wanted[other] >= 0:
                        # Relative to this iteration; below 0: of one before.
                        iteration.waits[waits] = wanted[other] - begin
                        wanted[other] = -1
                        waits += 1
        iteration.first[count] = waits
        for tensor in range(moving):
            if newest[tensor, network] <= passed:
                state[tensor] &= ~(_BOTH << _COLLECTIVE)
        left, before, filled = before, left, length
        length = _left_over(state, pending, first, last, rests, begin + count, left)
        # The first iteration has nothing before it; from the second on equal states repeat for ever.
        same = number > 0 and length == filled
        for place in range(length):
            same = same and left[place] == before[place]
        if same:
            break
    for row in range(count - 1, 0, -1):  # a collective waits for what any of its tensors waits for
        if rows[row, JOINED]:
            iteration.first[row] = iteration.first[row + 1]
    return waits


@inner
def _bits_of(link: int, links: int) -> int:
    """Return the bits of what a link holds. links: their number, of which the last is that of collectives."""
    return _BOTH << (_COLLECTIVE if link == links - 1 else link)


@inner
def _in_flight(state: int, memory: int, collective: bool) -> int:
    """Return the bits of those that hold a copy. collective: whether that of its tensor has not ended."""
    holders = state & _HOLDERS[memory]
    return holders if collective else holders & ~(_BOTH << _COLLECTIVE)


@inner
def _claim(
    missing: float,
    pending: Ints,
    rest: Ints,
    ledger: int,
    first: Ints,
    last: Ints,
    state: Ints,
    newest: Ints,
    sizes: Ints,
    wanted: Ints,
) -> int:
    """Take so many bytes: first of what an earlier claim has left of a delete, then of the oldest deletes.

    Returns the last collective that is an operation among what is waited for, or -1.
    """
    links, awaited = len(rest) - _TRANSFERS, -1
    network = _LINKS + links - 1
    # Claimed bytes come in list order, as in planner/simulator/ledger.py, whichever ends first.
    while missing > 0 and (rest[_SIZE] > 0 or first[ledger] < last[ledger]):
        if rest[_SIZE] == 0:
            for part in range(len(rest)):
                rest[part] = pending[first[ledger], part]
            first[ledger] += 1
            for link in range(links):
                transfer = rest[_TRANSFERS + link]
                if link == links - 1:
                    awaited = max(awaited, int(transfer))
                # It is waited for now: for later rows it is no longer in flight.
                elif transfer >= 0 and transfer == newest[rest[_TENSOR], _LINKS + link]:
                    state[rest[_TENSOR]] &= ~(_BOTH << link)
        spread = sizes[rest[_TENSOR], SPREAD]
        for link in range(links):
            of = network if spread else _LINKS + link
            wanted[of] = max(wanted[of], rest[_TRANSFERS + link])
        taken = min(missing, rest[_SIZE])
        rest[_SIZE] -= int(taken)
        missing -= taken
    return awaited


@inner
def _settle(pending: Any, first: Ints, last: Ints, rests: Ints, held: Floats, oldest: int) -> None:
    """End the deletes that wait only for rows before `oldest`."""
    width = rests.shape[1]
    for ledger in range(len(rests)):
        kept = 0
        for place in range(first[ledger], last[ledger]):
            entry = pending[ledger, place]
            if _newest_of(entry) < oldest:
                held[ledger] -= entry[_SIZE]
                continue
            for part in range(width):
                pending[ledger, kept, part] = entry[part]
            kept += 1
        first[ledger], last[ledger] = 0, kept
        rest = rests[ledger]
        if _newest_of(rest) < oldest:
            held[ledger] -= rest[_SIZE]
            rest[_SIZE] = 0


@inner
def _newest_of(entry: Ints) -> int:
    """Return the newest transfer that a pending delete waits for."""
    found = entry[_TRANSFERS]
    for part in range(_TRANSFERS + 1, len(entry)):
        found = max(found, entry[part])
    return found


@inner
def _left_over(state: Ints, pending: Any, first: Ints, last: Ints, rests: Ints, end: int, left: Ints) -> int:
    """Write what the next iteration waits for, counted from its start, and return its length."""
    length, width = len(state), rests.shape[1]
    for tensor in range(length):
        left[tensor] = state[tensor]
    for ledger in range(len(rests)):
        for place in range(first[ledger], last[ledger] + 1):
            entry = pending[ledger, place] if place < last[ledger] else rests[ledger]
            if entry[_SIZE] == 0:
                continue
            left[length], left[length + 1] = ledger, entry[_SIZE]
            for part in range(_TRANSFERS, width):
                # Relative to the end, or equal states would differ by the iteration's number.
                left[length + part] = entry[part] - end if entry[part] >= 0 else 0
            length += width
    return length
