"""A sequence of runs, changed run by run, with its time, its peak and its useless runs always up to date.

Runs are in slots with empty ones between. Putting one in, or taking one out, changes the events of what it
reads and makes (events.py), and is noted in a journal, so that a move can be undone. Slots are drawn at
random here too.
"""

from __future__ import annotations

import numpy as np

from ....graphs.arrays import Ints
from ....graphs.compiled import compiled, inner
from .events import ADD, EMPTY, MAKE, READ, Sequence, insert_event, note_useless, remove_event
from .instance import Instance
from .tree import add, memory_tree

_ITEM = np.dtype([("start", np.int64), ("end", np.int64), ("count", np.int64)])
_EVENT = np.dtype([("slot", np.int64), ("kind", np.int64)])

REACH = 6
"""Number of slots to look through for an empty one."""


def sequence(instance: Instance, ways: Ints, slots: int = 0) -> Sequence:
    """Build a sequence of the ways in this order, spread over at least `slots` slots and four per run."""
    size = 1 << max(4, int(max(slots, 4 * (len(ways) + 2)) - 1).bit_length())
    count = np.zeros(len(instance.items), np.int64)
    _count_events(instance, ways, count)
    ends = np.cumsum(3 * count + 32)
    items = np.zeros(len(ends), _ITEM)
    items["start"][1:], items["end"] = ends[:-1], ends
    made = Sequence(
        way=np.full(size, EMPTY, np.int64),
        useful=np.zeros(size, np.int64),
        tree=memory_tree(size),
        items=items,
        events=np.zeros(ends[-1], _EVENT),
        seconds=np.zeros(2),
        useless=np.zeros(size + 1, np.int64),
        journal=np.zeros((4 * size, 3), np.int64),
    )
    _fill(instance, made, ways)
    return made


@compiled
def _count_events(instance: Instance, ways: Ints, count: Ints) -> None:
    for x in instance.results:
        count[x] += 1
    for way in ways:
        operation = instance.ways[way].operation
        count[instance.tensors + operation] += 1
        for k in range(instance.operations[operation].reads_start, instance.operations[operation].reads_end):
            count[instance.members[k]] += 1
        for k in range(instance.ways[way].writes_start, instance.ways[way].writes_end):
            count[instance.members[k]] += 1


@compiled
def _fill(instance: Instance, sequence: Sequence, ways: Ints) -> None:
    slots = len(sequence.way)
    add(sequence.tree, 1, slots - 2, instance.always)
    for x in instance.results:
        insert_event(instance, sequence, x, slots - 2, READ)
    for k in range(len(ways)):
        put(instance, sequence, (k + 1) * (slots - 3) // (len(ways) + 1), ways[k])
    sequence.journal[0, 0] = 0


@inner
def period(sequence: Sequence) -> float:
    """Return the seconds of an iteration: the larger of the device's and the launching thread's.

    Nothing else keeps either waiting.
    """
    return max(sequence.seconds[0], sequence.seconds[1])


@inner
def ways_of_sequence(sequence: Sequence) -> Ints:
    return sequence.way[sequence.way >= 0]


@inner
def has_room(instance: Instance, sequence: Sequence, way: int) -> bool:
    """Tell whether the items of this way can take one more event."""
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


@inner
def _is_full(sequence: Sequence, item: int) -> bool:
    return sequence.items[item].start + sequence.items[item].count == sequence.items[item].end


@inner
def put(instance: Instance, sequence: Sequence, slot: int, way: int) -> None:
    """Run `way` in the empty `slot`."""
    operation = instance.ways[way].operation
    sequence.way[slot] = way
    sequence.useful[slot] = 0
    sequence.seconds[0] += instance.ways[way].seconds
    sequence.seconds[1] += instance.ways[way].launch
    add(sequence.tree, slot, slot, instance.ways[way].workspace)
    insert_event(instance, sequence, instance.tensors + operation, slot, MAKE)
    for k in range(instance.ways[way].writes_start, instance.ways[way].writes_end):
        x = instance.members[k]
        insert_event(instance, sequence, x, slot, ADD if instance.items[x].summed else MAKE)
    for k in range(instance.operations[operation].reads_start, instance.operations[operation].reads_end):
        insert_event(instance, sequence, instance.members[k], slot, READ)
    if sequence.useful[slot] == 0:
        note_useless(sequence, slot)
    _note(sequence, slot, way, 1)


@inner
def take(instance: Instance, sequence: Sequence, slot: int) -> None:
    """Take the run out of the slot."""
    way = sequence.way[slot]
    operation = instance.ways[way].operation
    for k in range(instance.operations[operation].reads_start, instance.operations[operation].reads_end):
        remove_event(instance, sequence, instance.members[k], slot)
    for k in range(instance.ways[way].writes_start, instance.ways[way].writes_end):
        remove_event(instance, sequence, instance.members[k], slot)
    remove_event(instance, sequence, instance.tensors + operation, slot)
    add(sequence.tree, slot, slot, -instance.ways[way].workspace)
    sequence.seconds[0] -= instance.ways[way].seconds
    sequence.seconds[1] -= instance.ways[way].launch
    sequence.way[slot] = EMPTY
    sequence.useful[slot] = 0
    _note(sequence, slot, way, 0)


@inner
def _note(sequence: Sequence, slot: int, way: int, was_put: int) -> None:
    journal = sequence.journal
    journal[0, 0] += 1
    row = journal[0, 0]
    journal[row, 0], journal[row, 1], journal[row, 2] = slot, way, was_put


@inner
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


@inner
def spread(instance: Instance, sequence: Sequence) -> None:
    """Rewrite the sequence with its runs at equal distances."""
    ways = ways_of_sequence(sequence)
    sequence.way[:] = EMPTY
    sequence.useful[:] = 0
    sequence.tree.largest[:] = 0
    sequence.tree.added[:] = 0
    for item in range(len(sequence.items)):
        sequence.items[item].count = 0
    sequence.seconds[:] = 0.0
    _fill(instance, sequence, ways)
    sequence.useless[0] = 0


@inner
def random_run(sequence: Sequence) -> int:
    """Return a random slot with a run."""
    slots = len(sequence.way)
    while True:
        slot = between(1, slots - 2)
        if sequence.way[slot] != EMPTY:
            return slot


@inner
def empty_before(sequence: Sequence, slot: int) -> int:
    for at in range(slot - 1, max(0, slot - REACH), -1):
        if sequence.way[at] == EMPTY:
            return at
    return -1


@inner
def between(first: int, end: int) -> int:
    """Return a random number from first to end − 1."""
    return np.random.randint(first, end)
