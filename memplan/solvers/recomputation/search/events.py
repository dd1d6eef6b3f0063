"""Events of a sequence, and what follows from them for memory and use.

Every item has the sorted list of its events: the slots in which a run makes it or reads it. Between two
neighbouring events a tensor is resident if and only if the second reads it (`sequence.schedule_of` places the
deletes so). One more or one less event thus adds to, or takes from, one range of slots: O(log slots).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ....graphs.arrays import Floats, Ints
from ....graphs.compiled import inner
from .instance import Instance
from .tree import MemoryTree, add

MAKE, READ, ADD = 0, 1, 2
"""Kinds of events. ADD: a contribution to a summed tensor; it keeps the tensor resident as a read does."""

EMPTY = -1


class Sequence(NamedTuple):
    """The runs and what follows from them.

    variant: per slot, the execution variant that runs there, or EMPTY.
    useful: per slot, how many tensors are made for use.
    items: records (start, end, count): the events are start … start + count − 1, with space up to `end`.
    events: records (slot, kind), per item sorted by slot.
    seconds: two sums over the runs, of their own and of their launches.
    useless: slots whose `useful` has become 0; entry 0 counts.
    journal: what has been done since it was cleared, rows (slot, variant, 1 if put, 0 if taken); row 0
        counts.
    """

    variant: Ints
    useful: Ints
    tree: MemoryTree
    items: Any
    events: Any
    seconds: Floats
    useless: Ints
    journal: Ints


@inner
def find_event(sequence: Sequence, item: int, slot: int) -> int:
    """Return the index of the item's first event at `slot` or later."""
    low = sequence.items[item].start
    high = low + sequence.items[item].count
    while low < high:
        middle = (low + high) // 2
        if sequence.events[middle].slot < slot:
            low = middle + 1
        else:
            high = middle
    return low


@inner
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


@inner
def remove_event(instance: Instance, sequence: Sequence, item: int, slot: int) -> None:
    events = sequence.events
    place = find_event(sequence, item, slot)
    _weigh(instance, sequence, item, place, -1)
    sequence.items[item].count -= 1
    for k in range(place, sequence.items[item].start + sequence.items[item].count):
        events[k].slot, events[k].kind = events[k + 1].slot, events[k + 1].kind


@inner
def _weigh(instance: Instance, sequence: Sequence, item: int, place: int, sign: int) -> None:
    """Update memory and useful runs for the event at `place`.

    sign: 1 if it was put there, −1 if it is taken out.
    """
    events = sequence.events
    start = sequence.items[item].start
    end = start + sequence.items[item].count
    slot, kind = events[place].slot, events[place].kind
    has_left, has_right = place > start, place + 1 < end
    # ADD counts as a read: what was there before must stay for it.
    read_right = has_right and events[place + 1].kind != MAKE
    made_left = has_left and events[place - 1].kind == MAKE
    size = instance.items[item].size * sign
    # The tensor is resident here already: a read or a contribution in between changes nothing, a new run ends
    # what was there before.
    if has_left and read_right:
        if kind == MAKE:
            if size:
                add(sequence.tree, events[place - 1].slot + 1, slot - 1, -size)
            _use(sequence, slot, sign)
            if made_left:
                _use(sequence, events[place - 1].slot, -sign)
        return
    # Else it becomes resident from the event before (for a read) up to the event after (if that reads).
    first = events[place - 1].slot + 1 if has_left and kind != MAKE else slot
    last = events[place + 1].slot - 1 if read_right else slot
    if size:
        add(sequence.tree, first, last, size)
    if kind == MAKE:
        if read_right:
            _use(sequence, slot, sign)
    elif made_left:
        _use(sequence, events[place - 1].slot, sign)


@inner
def _use(sequence: Sequence, slot: int, sign: int) -> None:
    sequence.useful[slot] += sign
    if sign < 0 and sequence.useful[slot] == 0:
        note_useless(sequence, slot)


@inner
def note_useless(sequence: Sequence, slot: int) -> None:
    useless = sequence.useless
    # A slot may be noted more than once, or become useful later; `clear_useless` looks.
    if useless[0] + 1 < len(useless):
        useless[0] += 1
        useless[useless[0]] = slot
