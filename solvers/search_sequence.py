"""A sequence of runs, changed run by run: its time, its peak and what is useless in it are always at hand.

Runs stand in slots with empty ones between. Every item has the sorted list of its *events*: the slots where
a run makes it or reads it. All memory follows from them: between two neighbouring events a tensor is there
if and only if the second reads it (`sequence.schedule_of` places the deletes so). One more or one less event
thus adds to, or takes from, one range of slots: O(log slots).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..graphs.compiled import compiled
from .search_instance import Floats, Instance, Ints
from .search_tree import MemoryTree, add, memory_tree

MAKE, READ, ADD = 0, 1, 2
"""Kinds of events. ADD: a contribution to a summed tensor; it keeps the tensor there as a read does."""

EMPTY = -1


class Sequence(NamedTuple):
    """The runs and what follows from them.

    way: per slot, the way that runs there, or EMPTY.  useful: per slot, how many tensors are made for use.
    items: records (start, end, count): the events are start … start + count − 1, with room up to `end`.
    events: records (slot, kind), per item sorted by slot.
    seconds: one number, the sum over the runs.  useless: slots where `useful` has become 0; entry 0 counts.
    journal: what has been done since it was cleared, rows (slot, way, 1 if put, 0 if taken); row 0 counts.
    """

    way: Ints
    useful: Ints
    tree: MemoryTree
    items: Any
    events: Any
    seconds: Floats
    useless: Ints
    journal: Ints


_ITEM = np.dtype([("start", np.int64), ("end", np.int64), ("count", np.int64)])
_EVENT = np.dtype([("slot", np.int64), ("kind", np.int64)])


def sequence(instance: Instance, ways: Ints, slots: int = 0) -> Sequence:
    """The ways in this order, spread over at least `slots` slots (by default four a run)."""
    size = 1 << max(4, int(max(slots, 4 * (len(ways) + 2)) - 1).bit_length())
    ends = np.cumsum(3 * _count_events(instance, ways) + 32)
    items = np.zeros(len(ends), _ITEM)
    items["start"][1:], items["end"] = ends[:-1], ends
    made = Sequence(
        way=np.full(size, EMPTY, np.int64),
        useful=np.zeros(size, np.int64),
        tree=memory_tree(size),
        items=items,
        events=np.zeros(ends[-1], _EVENT),
        seconds=np.zeros(1),
        useless=np.zeros(size + 1, np.int64),
        journal=np.zeros((4 * size, 3), np.int64),
    )
    _fill(instance, made, ways)
    return made


@compiled
def _count_events(instance: Instance, ways: Ints) -> Ints:
    count = np.zeros(len(instance.items), np.int64)
    for x in instance.results:
        count[x] += 1
    for way in ways:
        operation = instance.ways[way].operation
        count[instance.tensors + operation] += 1
        for k in range(instance.operations[operation].reads_start, instance.operations[operation].reads_end):
            count[instance.members[k]] += 1
        for k in range(instance.ways[way].writes_start, instance.ways[way].writes_end):
            count[instance.members[k]] += 1
    return count


@compiled
def _fill(instance: Instance, sequence: Sequence, ways: Ints) -> None:
    slots = len(sequence.way)
    add(sequence.tree, 1, slots - 2, instance.always)
    for x in instance.results:
        insert_event(instance, sequence, x, slots - 2, READ)
    for k in range(len(ways)):
        put(instance, sequence, (k + 1) * (slots - 3) // (len(ways) + 1), ways[k])
    sequence.journal[0, 0] = 0


@compiled
def ways_of_sequence(sequence: Sequence) -> Ints:
    return sequence.way[sequence.way >= 0]


@compiled
def find_event(sequence: Sequence, item: int, slot: int) -> int:
    """The index of the item's first event at `slot` or later."""
    low = sequence.items[item].start
    high = low + sequence.items[item].count
    while low < high:
        middle = (low + high) // 2
        if sequence.events[middle].slot < slot:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def has_room(instance: Instance, sequence: Sequence, way: int) -> bool:
    """The items of this way can take one more event."""
    operation = instance.ways[way].operation
    if _is_full(sequence, instance.tensors + operation):
        return False
    for k in range(instance.operations[operation].reads_start, instance.operations[operation].reads_end):
        if _is_full(sequence, instance.members[k]):
            return False
    for k in range(instance.ways[way].writes_start, instance.ways[way].writes_end):
        if _is_full(sequence, instance.members[k]):
            return False
    return sequence.journal[0, 0] + 2 < len(sequence.journal)


@compiled
def _is_full(sequence: Sequence, item: int) -> bool:
    return sequence.items[item].start + sequence.items[item].count == sequence.items[item].end


@compiled
def put(instance: Instance, sequence: Sequence, slot: int, way: int) -> None:
    """Run `way` in the empty `slot`."""
    operation = instance.ways[way].operation
    sequence.way[slot] = way
    sequence.useful[slot] = 0
    sequence.seconds[0] += instance.ways[way].seconds
    add(sequence.tree, slot, slot, instance.ways[way].workspace)
    insert_event(instance, sequence, instance.tensors + operation, slot, MAKE)
    for k in range(instance.ways[way].writes_start, instance.ways[way].writes_end):
        x = instance.members[k]
        insert_event(instance, sequence, x, slot, ADD if instance.items[x].summed else MAKE)
    for k in range(instance.operations[operation].reads_start, instance.operations[operation].reads_end):
        insert_event(instance, sequence, instance.members[k], slot, READ)
    if sequence.useful[slot] == 0:
        _note_useless(sequence, slot)
    _note(sequence, slot, way, 1)


@compiled
def take(instance: Instance, sequence: Sequence, slot: int) -> None:
    """Empty the slot."""
    way = sequence.way[slot]
    operation = instance.ways[way].operation
    for k in range(instance.operations[operation].reads_start, instance.operations[operation].reads_end):
        remove_event(instance, sequence, instance.members[k], slot)
    for k in range(instance.ways[way].writes_start, instance.ways[way].writes_end):
        remove_event(instance, sequence, instance.members[k], slot)
    remove_event(instance, sequence, instance.tensors + operation, slot)
    add(sequence.tree, slot, slot, -instance.ways[way].workspace)
    sequence.seconds[0] -= instance.ways[way].seconds
    sequence.way[slot] = EMPTY
    sequence.useful[slot] = 0
    _note(sequence, slot, way, 0)


@compiled
def _note(sequence: Sequence, slot: int, way: int, was_put: int) -> None:
    journal = sequence.journal
    journal[0, 0] += 1
    row = journal[0, 0]
    journal[row, 0], journal[row, 1], journal[row, 2] = slot, way, was_put


@compiled
def _note_useless(sequence: Sequence, slot: int) -> None:
    useless = sequence.useless
    if useless[0] + 1 < len(useless):
        useless[0] += 1
        useless[useless[0]] = slot


@compiled
def insert_event(instance: Instance, sequence: Sequence, item: int, slot: int, kind: int) -> None:
    events = sequence.events
    start = sequence.items[item].start
    place = start + sequence.items[item].count
    while place > start and events[place - 1].slot > slot:
        events[place].slot, events[place].kind = events[place - 1].slot, events[place - 1].kind
        place -= 1
    events[place].slot, events[place].kind = slot, kind
    sequence.items[item].count += 1
    _weigh(instance, sequence, item, place, 1)


@compiled
def remove_event(instance: Instance, sequence: Sequence, item: int, slot: int) -> None:
    events = sequence.events
    place = find_event(sequence, item, slot)
    _weigh(instance, sequence, item, place, -1)
    sequence.items[item].count -= 1
    for k in range(place, sequence.items[item].start + sequence.items[item].count):
        events[k].slot, events[k].kind = events[k + 1].slot, events[k + 1].kind


@compiled
def _weigh(instance: Instance, sequence: Sequence, item: int, place: int, sign: int) -> None:
    """What the event at `place` changes: in memory, and in which runs are useful. sign: 1 put, −1 taken."""
    events = sequence.events
    start = sequence.items[item].start
    end = start + sequence.items[item].count
    slot, kind = events[place].slot, events[place].kind
    has_left, has_right = place > start, place + 1 < end
    read_right = has_right and events[place + 1].kind != MAKE
    made_left = has_left and events[place - 1].kind == MAKE
    size = instance.items[item].size * sign
    if has_left and read_right:
        if kind == MAKE:
            if size:
                add(sequence.tree, events[place - 1].slot + 1, slot - 1, -size)
            _use(sequence, slot, sign)
            if made_left:
                _use(sequence, events[place - 1].slot, -sign)
        return
    first = events[place - 1].slot + 1 if has_left and kind != MAKE else slot
    last = events[place + 1].slot - 1 if read_right else slot
    if size:
        add(sequence.tree, first, last, size)
    if kind == MAKE:
        if read_right:
            _use(sequence, slot, sign)
    elif made_left:
        _use(sequence, events[place - 1].slot, sign)


@compiled
def _use(sequence: Sequence, slot: int, sign: int) -> None:
    sequence.useful[slot] += sign
    if sign < 0 and sequence.useful[slot] == 0:
        _note_useless(sequence, slot)


@compiled
def undo(instance: Instance, sequence: Sequence) -> None:
    """Take back all that the journal has."""
    journal = sequence.journal
    for row in range(journal[0, 0], 0, -1):
        journal[0, 0] = row
        if journal[row, 2]:
            take(instance, sequence, journal[row, 0])
        else:
            put(instance, sequence, journal[row, 0], journal[row, 1])
    journal[0, 0] = 0
    sequence.useless[0] = 0


@compiled
def spread(instance: Instance, sequence: Sequence) -> None:
    """The same runs at equal distances."""
    ways = ways_of_sequence(sequence)
    sequence.way[:] = EMPTY
    sequence.useful[:] = 0
    sequence.tree.largest[:] = 0
    sequence.tree.added[:] = 0
    for item in range(len(sequence.items)):
        sequence.items[item].count = 0
    sequence.seconds[0] = 0.0
    _fill(instance, sequence, ways)
    sequence.useless[0] = 0
